//! Cross-entropy fused with the output layer, and its gradient: logits exist for a few rows at a time.

use tensor::DType;

use super::head_loss_in_mil::{decompose, decompose_grad};
use crate::eval::exact::{Sum, dot, quotient};
use crate::eval::{Array, Data, EvalCx, Value};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, elements};
use crate::{FunctionBuilder, OpDef, OpError, OpView, TensorType, Type, ValueId};

/// The mean cross-entropy, in nats, of a language model's output layer.
///
/// `x` float `[..., d]`, `weight` `[vocab, d]`, `bias` `[vocab]` or absent, `targets` integers of the
/// shape of `x` without its last axis: a row whose target is negative does not count, any other must
/// be below `vocab`. Logits are `x weight^T + bias`, or `softcap * tanh(logits / softcap)` if that is
/// given. The result is an `fp32` scalar: the mean over counted rows of
/// `log(sum(exp(logits))) - logits[target]`, 0 if none counts. `chunk`, a constant (256 by default), is
/// for how many rows the decomposition has logits at a time.
pub(in crate::ops) struct LlmHeadLoss;

/// The gradient of `llm.head_loss`, and the loss itself, which comes with it.
///
/// The arguments of `llm.head_loss`, `grad` (a float scalar, 1 by default: the derivative by the loss
/// of what is differentiated) and `by_weight` (a constant, true by default). Results: the loss, an
/// `fp32` scalar; the gradient by `x`, as `x`; and, if `by_weight`, those by `weight`, which then must
/// be of a float type, and by `bias` if there is one.
pub(in crate::ops) struct LlmHeadLossGrad;

const PARAMS: &[Param] = &[
    Param::new("x", Domain::Float),
    Param::new("weight", Domain::Weight),
    Param::new("targets", Domain::Int),
    Param::new("bias", Domain::Weight).optional(),
    Param::new("softcap", Domain::Float).optional().constant(),
    Param::new("chunk", Domain::Int).optional().constant(),
];

/// The constant options of both.
pub(super) struct Options {
    pub(super) softcap: Option<f64>,
    /// Rows whose logits exist at a time.
    pub(super) chunk: usize,
}

impl Options {
    pub(super) fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let (softcap, chunk) = (op.float("softcap")?, op.int("chunk")?.unwrap_or(256));
        let rows = usize::try_from(chunk).ok().filter(|&n| n > 0);
        match rows.filter(|_| softcap.is_none_or(|c| c > 0.0)) {
            Some(chunk) => Ok(Options { softcap, chunk }),
            None => Err(OpError::invalid("softcap and chunk must be positive")),
        }
    }
}

fn check(op: &OpView<'_>) -> Result<(), OpError> {
    let (x, weight, targets) = (op.tensor("x")?, op.tensor("weight")?, op.tensor("targets")?);
    let fits = weight.rank() == 2
        && x.shape.last().is_some_and(|d| d.compatible(&weight.shape[1]))
        && targets.rank() + 1 == x.rank()
        && targets.shape.iter().zip(&x.shape).all(|(a, b)| a.compatible(b));
    if !fits {
        return Err(OpError::invalid(format!(
            "x {x} is not [..., d] for weight {weight} [vocab, d] and targets {targets} [...]"
        )));
    }
    if let Some(bias) = op.opt_tensor("bias")?
        && !(bias.rank() == 1 && bias.shape[0].compatible(&weight.shape[0]))
    {
        return Err(OpError::invalid(format!("bias {bias} is not [vocab] of weight {weight}")));
    }
    Options::of(op).map(drop)
}

fn loss_type() -> Type {
    TensorType::scalar(DType::F32).into()
}

/// The values of the arguments, and which rows count.
struct Rows {
    x: Vec<f64>,
    weight: Vec<f64>,
    bias: Option<Vec<f64>>,
    /// Row and target of those that count.
    counted: Vec<(usize, usize)>,
    width: usize,
    vocab: usize,
    softcap: Option<f64>,
}

/// What one row gives.
struct Row {
    loss: f64,
    /// The derivative of the row's loss by each logit before the cap.
    by_logits: Vec<f64>,
}

impl Rows {
    fn of(cx: &EvalCx<'_, '_>) -> Result<Self, OpError> {
        let (x, weight, targets) = (cx.array("x")?, cx.array("weight")?, cx.array("targets")?);
        let bias = cx.opt_array("bias")?;
        let mismatch = || {
            OpError::invalid(format!(
                "x {:?}, weight {:?} and targets {:?} do not go together",
                x.shape, weight.shape, targets.shape
            ))
        };
        let &[vocab, width] = &weight.shape[..] else { return Err(mismatch()) };
        let fits = x.shape.split_last() == Some((&width, &targets.shape[..]))
            && bias.as_ref().is_none_or(|b| b.len() == vocab);
        if !fits {
            return Err(mismatch());
        }
        let mut counted = Vec::new();
        for (row, &target) in targets.ints()?.iter().enumerate() {
            match usize::try_from(target) {
                Ok(target) if target < vocab => counted.push((row, target)),
                Ok(_) => {
                    return Err(OpError::invalid(format!(
                        "target {target} of row {row} is not in the vocabulary of {vocab}"
                    )));
                }
                Err(_) => {}
            }
        }
        Ok(Rows {
            x: x.floats()?.to_vec(),
            weight: weight.floats()?.to_vec(),
            bias: bias.map(|b| b.floats().map(<[f64]>::to_vec)).transpose()?,
            counted,
            width,
            vocab,
            softcap: Options::of(&cx.op)?.softcap,
        })
    }

    fn row(&self, (row, target): (usize, usize)) -> Row {
        let x = &self.x[row * self.width..][..self.width];
        let start = |token: usize| self.bias.as_ref().map_or(0.0, |b| b[token]);
        let row = |token: usize| &self.weight[token * self.width..][..self.width];
        let plain = (0..self.vocab).map(|token| dot(start(token), x, row(token)));
        let logits: Vec<f64> = match self.softcap {
            None => plain.collect(),
            Some(cap) => plain.map(|z| cap * (z / cap).tanh()).collect(),
        };
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|z| (z - max).exp()).sum();
        let slope = |z: f64| self.softcap.map_or(1.0, |cap| 1.0 - (z / cap).powi(2));
        let by_logits = logits.iter().enumerate().map(|(token, &z)| {
            ((z - max).exp() / sum - f64::from(u8::from(token == target))) * slope(z)
        });
        Row { loss: max + sum.ln() - logits[target], by_logits: by_logits.collect() }
    }

    /// Rows that count, at least 1: what the mean divides by.
    fn count(&self) -> f64 {
        self.counted.len().max(1) as f64
    }
}

fn loss_value(sum: Sum, rows: &Rows) -> Value {
    let data = Data::Float(vec![quotient(sum.value(), rows.count())]);
    Array { dtype: DType::F32, shape: Vec::new(), data }.into()
}

/// `2 rows vocab d` for each product with the output layer.
fn product_flops(op: &OpView<'_>) -> f64 {
    let x = op.tensor("x").map_or(0.0, |x| elements(&[x.clone().into()]));
    let vocab = op.tensor("weight").ok().and_then(|w| w.shape.first()?.fixed()).unwrap_or(1);
    2.0 * x * vocab as f64
}

impl OpDef for LlmHeadLoss {
    fn name(&self) -> &'static str {
        "llm.head_loss"
    }

    fn params(&self) -> &'static [Param] {
        PARAMS
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check(op)?;
        Ok(vec![loss_type()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let rows = Rows::of(cx)?;
        let sum = rows.counted.iter().map(|&row| rows.row(row).loss).collect();
        Ok(vec![loss_value(sum, &rows)])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        decompose(op, &Options::of(op)?, &mut Emit::new(b)).map(value)
    }

    /// Those of the logits.
    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        product_flops(op)
    }
}

impl OpDef for LlmHeadLossGrad {
    fn name(&self) -> &'static str {
        "llm.head_loss_grad"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                PARAMS[0],
                PARAMS[1],
                PARAMS[2],
                PARAMS[3],
                PARAMS[4],
                PARAMS[5],
                Param::new("grad", Domain::Float).optional(),
                Param::new("by_weight", Domain::Bool).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check(op)?;
        if let Some(grad) = op.opt_tensor("grad")?
            && grad.rank() != 0
        {
            return Err(OpError::invalid(format!("grad {grad} is not a scalar")));
        }
        let mut types = vec![loss_type(), op.tensor("x")?.clone().into()];
        if op.bool_or("by_weight", true)? {
            for ty in [Some(op.tensor("weight")?), op.opt_tensor("bias")?].into_iter().flatten() {
                if !ty.dtype.is_float() {
                    return Err(OpError::invalid(format!("no gradient by a weight {ty}")));
                }
                types.push(ty.clone().into());
            }
        }
        Ok(types)
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let rows = Rows::of(cx)?;
        let by_weight = cx.op.bool_or("by_weight", true)?;
        let grad = match cx.opt_array("grad")? {
            Some(grad) => grad.floats()?.first().copied().unwrap_or(1.0),
            None => 1.0,
        };
        let (factor, d) = (grad / rows.count(), rows.width);
        let mut by_x = vec![0.0; rows.x.len()];
        let mut by = vec![0.0; if by_weight { rows.weight.len() } else { 0 }];
        let mut by_bias = vec![0.0; rows.bias.as_ref().map_or(0, Vec::len)];
        let mut sum = Sum::default();
        for &(row, target) in &rows.counted {
            let Row { loss, by_logits } = rows.row((row, target));
            sum.add(loss);
            for (token, slope) in by_logits.into_iter().enumerate() {
                let slope = slope * factor;
                for i in 0..d {
                    by_x[row * d + i] += slope * rows.weight[token * d + i];
                    if by_weight {
                        by[token * d + i] += slope * rows.x[row * d + i];
                    }
                }
                by_bias.get_mut(token).into_iter().for_each(|b| *b += slope);
            }
        }
        let mut results = vec![loss_value(sum, &rows), cx.array("x")?.with_floats(by_x).into()];
        if by_weight {
            results.push(cx.array("weight")?.with_floats(by).into());
            if let Some(bias) = cx.opt_array("bias")? {
                results.push(bias.with_floats(by_bias).into());
            }
        }
        Ok(results)
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let results = decompose_grad(op, &Options::of(op)?, &mut Emit::new(b))?;
        Ok(results.into_iter().flat_map(value).collect())
    }

    /// Those of the logits, of the gradient by `x`, and of that by the weight.
    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        let products = if op.bool_or("by_weight", true).unwrap_or(true) { 3.0 } else { 2.0 };
        products * product_flops(op)
    }
}
