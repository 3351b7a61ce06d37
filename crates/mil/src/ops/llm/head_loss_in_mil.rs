//! The loss of an output layer and its gradient in plain MIL, some rows at a time.

use tensor::DType;

use super::head_loss::Options;
use crate::ops::emit::Emit;
use crate::{Arg, Dim, OpError, OpKind, OpView};

/// The arguments as matrices, and which rows count.
struct Rows {
    /// `[rows, d]`.
    x: Arg,
    /// `[vocab, d]` of `x`'s type.
    weight: Arg,
    bias: Option<Arg>,
    /// `[rows, 1]`; 0 where a row does not count.
    targets: Arg,
    /// `[rows, 1]` fp32: 1 where a row counts, else 0.
    counts: Arg,
    /// fp32 scalar: how many do, at least 1.
    count: Arg,
    rows: usize,
    options: Options,
}

/// The logits of some rows.
struct Logits {
    /// Rows of `x`.
    x: Arg,
    /// fp32 `[n, vocab]`.
    logits: Arg,
    /// The hyperbolic tangents that cap them.
    bent: Option<Arg>,
    targets: Arg,
    counts: Arg,
}

impl Rows {
    fn new(op: &OpView<'_>, options: &Options, e: &mut Emit<'_, '_>) -> Result<Self, OpError> {
        let ty = op.tensor("x")?;
        let shape = ty
            .fixed_shape()
            .ok_or_else(|| OpError::unsupported(format!("the sizes of x {ty} must be known")))?;
        let Some((&width, outer)) = shape.split_last() else {
            return Err(OpError::invalid(format!("x {ty} has no axis")));
        };
        let rows = outer.iter().product();
        let x = e.reshape(op.required("x")?, &[rows, width])?;
        let weight = e.plain_weight(op, "weight", ty.dtype)?;
        let bias = match op.arg("bias") {
            Some(_) => Some(e.plain_weight(op, "bias", ty.dtype)?),
            None => None,
        };
        let targets = e.cast(op.required("targets")?.clone(), DType::I32)?;
        let targets = e.reshape(&targets, &[rows, 1])?;
        let zero = e.int(0);
        let counted = e.binary(OpKind::GreaterEqual, &targets, &zero)?;
        let counts = e.cast(counted, DType::F32)?;
        let targets = e.binary(OpKind::Maximum, &targets, &zero)?;
        let sum = e.reduce(OpKind::ReduceSum, &counts, &[0, 1], false)?;
        let one = e.scalar(DType::F32, 1.0)?;
        let count = e.binary(OpKind::Maximum, &sum, &one)?;
        let options = Options { ..*options };
        Ok(Rows { x, weight, bias, targets, counts, count, rows, options })
    }

    /// The first row of each chunk, and the one behind its last.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, chunk) = (self.rows, self.options.chunk);
        (0..rows).step_by(chunk).map(move |from| (from, rows.min(from.saturating_add(chunk))))
    }

    fn logits(&self, e: &mut Emit<'_, '_>, (from, to): (usize, usize)) -> Result<Logits, OpError> {
        let x = e.rows(&self.x, from, to)?;
        let mut args = vec![("x", x.clone()), ("weight", self.weight.clone())];
        args.extend(self.bias.clone().map(|b| ("bias", b)));
        let logits = e.op(OpKind::Linear, args)?;
        let (mut logits, mut bent) = (e.cast(logits, DType::F32)?, None);
        if let Some(cap) = self.options.softcap {
            // A quotient: the reciprocal would be rounded once more.
            let divisor = e.scalar(DType::F32, cap)?;
            let small = e.binary(OpKind::RealDiv, &logits, &divisor)?;
            let tanh = e.unary(OpKind::Tanh, &small)?;
            logits = e.times(&tanh, cap)?;
            bent = Some(tanh);
        }
        let targets = e.rows(&self.targets, from, to)?;
        let counts = e.rows(&self.counts, from, to)?;
        Ok(Logits { x, logits, bent, targets, counts })
    }
}

impl Logits {
    /// The sum of the losses of the rows that count, a scalar.
    fn loss(&self, e: &mut Emit<'_, '_>) -> Result<Arg, OpError> {
        let norm = e.reduce(OpKind::ReduceLogSumExp, &self.logits, &[1], true)?;
        let axis = e.int(1);
        let picked = e.op(
            OpKind::GatherAlongAxis,
            [("x", self.logits.clone()), ("indices", self.targets.clone()), ("axis", axis)],
        )?;
        let losses = e.sub(&norm, &picked)?;
        let losses = e.mul(&losses, &self.counts)?;
        e.reduce(OpKind::ReduceSum, &losses, &[0, 1], false)
    }

    /// `factor` (a scalar) times the derivatives of the sum of the losses by the logits before the cap,
    /// of `dtype`.
    fn grad(&self, e: &mut Emit<'_, '_>, factor: &Arg, dtype: DType) -> Result<Arg, OpError> {
        let last = e.int(-1);
        let shares = e.op(OpKind::Softmax, [("x", self.logits.clone()), ("axis", last)])?;
        let rows = e.ty(&self.counts)?.shape[0].fixed().unwrap_or(0);
        let (minus, axis, mode) = (e.full(DType::F32, &[rows, 1], -1.0)?, e.int(1), e.str("add"));
        let mut slopes = e.op(
            OpKind::ScatterAlongAxis,
            [
                ("data", shares),
                ("indices", self.targets.clone()),
                ("updates", minus),
                ("axis", axis),
                ("mode", mode),
            ],
        )?;
        if let Some(bent) = &self.bent {
            let square = e.mul(bent, bent)?;
            let one = e.scalar(DType::F32, 1.0)?;
            let slope = e.sub(&one, &square)?;
            slopes = e.mul(&slopes, &slope)?;
        }
        let factors = e.mul(&self.counts, factor)?;
        let slopes = e.mul(&slopes, &factors)?;
        e.cast(slopes, dtype)
    }
}

/// `sum + x`, or `x` if there is no sum yet.
fn add(e: &mut Emit<'_, '_>, sum: &mut Option<Arg>, x: Arg) -> Result<(), OpError> {
    *sum = Some(match sum {
        Some(sum) => e.add(sum, &x)?,
        None => x,
    });
    Ok(())
}

fn mean(e: &mut Emit<'_, '_>, sum: Option<Arg>, count: &Arg) -> Result<Arg, OpError> {
    let sum = match sum {
        Some(sum) => sum,
        None => e.scalar(DType::F32, 0.0)?,
    };
    e.binary(OpKind::RealDiv, &sum, count)
}

/// Emits `llm.head_loss` and returns the loss.
pub(super) fn decompose(
    op: &OpView<'_>,
    options: &Options,
    e: &mut Emit<'_, '_>,
) -> Result<Arg, OpError> {
    let rows = Rows::new(op, options, e)?;
    let mut sum = None;
    for chunk in rows.chunks() {
        let loss = rows.logits(e, chunk)?.loss(e)?;
        add(e, &mut sum, loss)?;
    }
    mean(e, sum, &rows.count)
}

/// Emits `llm.head_loss_grad` and returns its results.
pub(super) fn decompose_grad(
    op: &OpView<'_>,
    options: &Options,
    e: &mut Emit<'_, '_>,
) -> Result<Vec<Arg>, OpError> {
    let (ty, rows) = (op.tensor("x")?, Rows::new(op, options, e)?);
    let grad = match op.arg("grad") {
        Some(grad) => e.cast(grad.clone(), DType::F32)?,
        None => e.scalar(DType::F32, 1.0)?,
    };
    let factor = e.binary(OpKind::RealDiv, &grad, &rows.count)?;
    let by_weight = op.bool_or("by_weight", true)?;
    let (mut sum, mut parts, mut by, mut by_bias) = (None, Vec::new(), None, None);
    for chunk in rows.chunks() {
        let logits = rows.logits(e, chunk)?;
        let loss = logits.loss(e)?;
        add(e, &mut sum, loss)?;
        let slopes = logits.grad(e, &factor, ty.dtype)?;
        parts.push(e.matmul(&slopes, &rows.weight, [false, false])?);
        if by_weight {
            let product = e.matmul(&slopes, &logits.x, [true, false])?;
            add(e, &mut by, product)?;
            if rows.bias.is_some() {
                let total = e.reduce(OpKind::ReduceSum, &slopes, &[0], false)?;
                add(e, &mut by_bias, total)?;
            }
        }
    }
    let loss = mean(e, sum, &rows.count)?;
    let by_x = match <[Arg; 1]>::try_from(parts) {
        Ok([whole]) => whole,
        Err(parts) => {
            let axis = e.int(0);
            e.op(OpKind::Concat, [("values", Arg::List(parts)), ("axis", axis)])?
        }
    };
    let shape: Vec<usize> = ty.shape.iter().filter_map(Dim::fixed).collect();
    let mut results = vec![loss, e.reshape(&by_x, &shape)?];
    for (name, by) in [("weight", by), ("bias", by_bias)] {
        if let Some(by) = by {
            results.push(e.cast(by, op.tensor(name)?.dtype)?);
        }
    }
    Ok(results)
}
