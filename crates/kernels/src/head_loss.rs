//! Cross-entropy fused with the output layer, and its gradients.
//!
//! Logits exist for some rows at a time, in blocks of the vocabulary that lie one behind another, so that a
//! block of the weight is decoded once for both of its products.

use tensor::DType;

use crate::arch::{Kernel, Simd};
use crate::columns::{columns, matmul_turned};
use crate::convert::decode;
use crate::math::{ExpBelow, Map, SoftCap, greatest, sum_of_exp, update};
use crate::panel::{PANEL, WIDTH};
use crate::scratch::Scratch;
use crate::share::{Shared, row_chunks};
use crate::{KernelError, Linear, Matrix, Pool, matmul_many};

/// Weight rows of a block: many tasks of products.
const BLOCK: usize = 43 * PANEL;
/// Logits that exist at a time, unless so few rows would not pay for reading the weights.
const LOGITS: usize = 1 << 24;
const ROWS: usize = 64;

/// An output layer and what it should say.
#[derive(Clone, Copy, Debug)]
pub struct HeadLoss<'a> {
    /// Inputs `[rows, d]`.
    pub x: &'a [f32],
    /// Weights `[vocab, d]`.
    pub weight: Matrix<'a>,
    /// Added to the logits: `[vocab]`.
    pub bias: Option<&'a [f32]>,
    /// The token after each row; rows with a negative one do not count.
    pub targets: &'a [i32],
    /// With `Some(c)` a logit `z` becomes `c * tanh(z / c)`.
    pub softcap: Option<f32>,
}

/// Where the gradients of a loss go.
#[derive(Debug)]
pub struct HeadGrad<'a> {
    /// What they are multiplied by.
    pub factor: f32,
    /// By the inputs.
    pub x: &'a mut [f32],
    /// By the weights, if wanted.
    pub weight: Option<&'a mut [f32]>,
    /// By the bias, if wanted.
    pub bias: Option<&'a mut [f32]>,
}

/// Rows whose logits exist at a time.
fn rows_at_a_time(rows: usize, vocab: usize) -> usize {
    // Shares of about the same size, of whole vectors of rows.
    let most = (LOGITS / vocab.max(1)).max(ROWS);
    let parts = rows.div_ceil(most).max(1);
    rows.div_ceil(parts).next_multiple_of(WIDTH).min(rows)
}

/// Numbers of working memory that [`head_loss`] needs for `rows` rows and a vocabulary.
pub fn logits_len(rows: usize, vocab: usize) -> usize {
    rows_at_a_time(rows, vocab) * vocab
}

/// The mean over the rows that count of `log(Σ exp(logits)) - logits[target]`, 0 if none does, and its
/// gradients. `logits` are [`logits_len`] numbers of working memory.
///
/// # Errors
/// When a target is past the vocabulary.
///
/// # Panics
/// When a slice does not have the length its shape says.
pub fn head_loss(
    pool: &Pool,
    args: &HeadLoss<'_>,
    logits: &mut [f32],
    mut by: Option<HeadGrad<'_>>,
) -> Result<f32, KernelError> {
    let HeadLoss { x, weight, bias, targets, .. } = *args;
    let (vocab, d) = (weight.rows(), weight.cols());
    assert_eq!(x.len(), targets.len() * d, "input is not [rows, {d}]");
    assert!(bias.is_none_or(|b| b.len() == vocab), "bias is not [{vocab}]");
    assert_eq!(logits.len(), logits_len(targets.len(), vocab), "working memory of another size");
    let past = |&t: &i32| usize::try_from(t).is_ok_and(|t| t >= vocab);
    if let Some(row) = targets.iter().position(past) {
        return Err(KernelError::Target { row, target: targets[row], vocab });
    }
    if let Some(by) = &mut by {
        assert_eq!(by.x.len(), x.len(), "the gradient by the input is not as it");
        assert!(by.weight.as_ref().is_none_or(|w| w.len() == vocab * d), "not [vocab, {d}]");
        let bias = by.bias.as_deref_mut();
        bias.into_iter().for_each(|b| b.fill(0.0));
        // The first rows overwrite it.
        let weight = by.weight.as_deref_mut().filter(|_| targets.is_empty());
        weight.into_iter().for_each(|w| w.fill(0.0));
    }
    let count = targets.iter().filter(|&&t| t >= 0).count().max(1) as f32;
    let step = rows_at_a_time(targets.len(), vocab);
    let mut sum = 0.0;
    for first in (0..targets.len()).step_by(step.max(1)) {
        let rows = first..targets.len().min(first + step);
        let part = Part {
            args: &HeadLoss {
                x: &x[rows.start * d..rows.end * d],
                targets: &targets[rows.clone()],
                ..*args
            },
            vocab,
            d,
        };
        let mut seen = vec![Seen { max: f32::NEG_INFINITY, sum: 0.0, target: 0.0 }; rows.len()];
        part.forward(pool, logits, &mut seen);
        let counted = seen.iter().zip(part.args.targets).filter(|&(_, &t)| t >= 0);
        sum += counted.map(|(s, _)| s.log_sum() - f64::from(s.target)).sum::<f64>();
        if let Some(by) = &mut by {
            let by_x = &mut by.x[rows.start * d..rows.end * d];
            let factor = by.factor / count;
            let by = HeadGrad {
                factor,
                x: by_x,
                weight: by.weight.as_deref_mut(),
                bias: by.bias.as_deref_mut(),
            };
            part.backward(pool, logits, &seen, by, first > 0);
        }
    }
    Ok((sum / f64::from(count)) as f32)
}

/// What is known of a row after some blocks of the vocabulary.
#[derive(Clone, Copy)]
struct Seen {
    /// The greatest logit.
    max: f32,
    /// The sum of `exp(logit - max)`.
    sum: f64,
    /// The target's logit.
    target: f32,
}

impl Seen {
    fn log_sum(&self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }
}

/// Rows whose logits exist together.
struct Part<'a> {
    args: &'a HeadLoss<'a>,
    vocab: usize,
    d: usize,
}

impl Part<'_> {
    fn rows(&self) -> usize {
        self.args.targets.len()
    }

    /// Calls `work` with the tokens and the logits `[rows, tokens]` of each block.
    fn blocks(&self, logits: &mut [f32], mut work: impl FnMut(std::ops::Range<usize>, &mut [f32])) {
        let mut rest = logits;
        for first in (0..self.vocab).step_by(BLOCK) {
            let tokens = first..self.vocab.min(first + BLOCK);
            let (block, later) = rest.split_at_mut(self.rows() * tokens.len());
            rest = later;
            work(tokens, block);
        }
    }

    fn forward(&self, pool: &Pool, logits: &mut [f32], seen: &mut [Seen]) {
        let HeadLoss { x, weight, bias, targets, softcap } = *self.args;
        self.blocks(logits, |tokens, out| {
            let (weight, bias) = (weight.slice(tokens.clone()), bias.map(|b| &b[tokens.clone()]));
            matmul_many(pool, x, &mut [Linear { weight, bias, out }]);
            let (width, out, seen) = (tokens.len(), Shared::new(out), Shared::new(&mut *seen));
            row_chunks(pool, out.len(), width, |rows| {
                for row in rows {
                    // SAFETY: a row belongs to one task.
                    let (logits, seen) = unsafe {
                        (
                            out.slice(row * width..(row + 1) * width),
                            &mut seen.slice(row..row + 1)[0],
                        )
                    };
                    pool.isa().run(Look { logits, softcap, seen });
                    let target = usize::try_from(targets[row]).ok();
                    if let Some(target) = target.filter(|t| tokens.contains(t)) {
                        seen.target = logits[target - tokens.start];
                    }
                }
            });
        });
    }

    /// Makes the logits derivatives, and multiplies; `again` if gradients by the weight and bias are there.
    fn backward(
        &self,
        pool: &Pool,
        logits: &mut [f32],
        seen: &[Seen],
        mut by: HeadGrad<'_>,
        again: bool,
    ) {
        let HeadLoss { x, weight, targets, softcap, .. } = *self.args;
        let (rows, d) = (self.rows(), self.d);
        by.x.fill(0.0);
        let mut decoded = weight.dtype().is_block_quantized().then(|| Scratch::new(BLOCK * d));
        self.blocks(logits, |tokens, logits| {
            let width = tokens.len();
            let shared = Shared::new(&mut *logits);
            row_chunks(pool, shared.len(), width, |chunk| {
                for row in chunk {
                    // SAFETY: a row belongs to one task.
                    let logits = unsafe { shared.slice(row * width..(row + 1) * width) };
                    let Ok(target) = usize::try_from(targets[row]) else {
                        logits.fill(0.0);
                        continue;
                    };
                    let log_sum = seen[row].log_sum() as f32;
                    let target = target.checked_sub(tokens.start).filter(|&t| t < width);
                    pool.isa().run(Slope { logits, log_sum, target, softcap, factor: by.factor });
                }
            });
            let mut weight = weight.slice(tokens.clone());
            if let Some(decoded) = &mut decoded {
                let out = &mut decoded[..width * d];
                decode(pool, weight, out);
                weight = single(&decoded[..width * d], width, d);
            }
            columns(pool, single(logits, rows, width), weight, true, by.x);
            if let Some(by) = &mut by.weight {
                let out = &mut by[tokens.start * d..tokens.end * d];
                matmul_turned(pool, logits, single(x, rows, d), again, out);
            }
            if let Some(by) = &mut by.bias {
                for row in logits.chunks_exact(width) {
                    by[tokens.clone()].iter_mut().zip(row).for_each(|(o, l)| *o += l);
                }
            }
        });
    }
}

/// Numbers as a matrix.
fn single(x: &[f32], rows: usize, cols: usize) -> Matrix<'_> {
    match Matrix::new(DType::F32, rows, cols, bytemuck::cast_slice(x)) {
        Ok(matrix) => matrix,
        Err(_) => unreachable!("{} numbers are [{rows}, {cols}]", x.len()),
    }
}

/// Caps a row of logits, and adds it to what was seen.
struct Look<'a> {
    logits: &'a mut [f32],
    softcap: Option<f32>,
    seen: &'a mut Seen,
}

impl Kernel for Look<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if let Some(cap) = self.softcap {
            update(s, self.logits, &SoftCap { cap });
        }
        let max = greatest(s, self.logits).max(self.seen.max);
        if max == f32::NEG_INFINITY && !self.logits.iter().any(|z| z.is_nan()) {
            // They weigh nothing, and their distance from the greatest is no number.
            return;
        }
        let sum = sum_of_exp(s, self.logits, max);
        let before = self.seen.sum * f64::from(self.seen.max - max).exp();
        let before = if self.seen.sum == 0.0 { 0.0 } else { before };
        (self.seen.max, self.seen.sum) = (max, before + f64::from(sum));
    }
}

/// Logits to derivatives: `(exp(z - log_sum) - [z is the target]) * (1 - (z / cap)²) * factor`.
struct Slope<'a> {
    logits: &'a mut [f32],
    log_sum: f32,
    target: Option<usize>,
    softcap: Option<f32>,
    factor: f32,
}

struct Softmax {
    log_sum: f32,
    softcap: Option<f32>,
    factor: f32,
}

impl Map for Softmax {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, v: S::V) -> S::V {
        let p = s.mul(ExpBelow { max: self.log_sum }.of(s, v), s.splat(self.factor));
        match self.softcap {
            None => p,
            Some(cap) => {
                let share = s.mul(v, s.splat(1.0 / cap));
                s.mul(p, s.sub(s.splat(1.0), s.mul(share, share)))
            }
        }
    }
}

impl Kernel for Slope<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Slope { logits, log_sum, target, softcap, factor } = self;
        let slope =
            target.map_or(0.0, |t| softcap.map_or(1.0, |cap| 1.0 - (logits[t] / cap).powi(2)));
        update(s, logits, &Softmax { log_sum, softcap, factor });
        if let Some(target) = target {
            logits[target] -= slope * factor;
        }
    }
}
