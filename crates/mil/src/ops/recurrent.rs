//! Recurrent layers: RNN, GRU, LSTM.

use super::{Domain, OpDef, OpView, Param, elements};
use crate::eval::exact::dot;
use crate::eval::{Array, Data, EvalCx, Value, functions, matmul_nt};
use crate::{Dim, OpError, TensorType, Type};

/// A gate's function by its name in MIL.
fn activation(op: &OpView<'_>, name: &str, default: &str) -> Result<fn(f64) -> f64, OpError> {
    match op.str(name)?.unwrap_or(default) {
        "tanh" => Ok(f64::tanh),
        "sigmoid" => Ok(functions::sigmoid),
        // The constants are those of Keras.
        "hard_sigmoid" | "sigmoid_hard" => Ok(|x| (0.2 * x + 0.5).clamp(0.0, 1.0)),
        "scaled_tanh" => Err(OpError::unsupported(format!(
            "{name} \"scaled_tanh\", whose constants in a recurrent layer are not documented"
        ))),
        "relu" => Ok(|x| if x < 0.0 { 0.0 } else { x }),
        "linear" => Ok(|x| x),
        other => Err(OpError::invalid(format!("{name} \"{other}\" is unknown"))),
    }
}

/// Which way the sequence is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Reverse,
    Bidirectional,
}

impl Direction {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        match op.str("direction")?.unwrap_or("forward") {
            "forward" => Ok(Direction::Forward),
            "reverse" => Ok(Direction::Reverse),
            "bidirectional" if op.kind == super::OpKind::Lstm => Ok(Direction::Bidirectional),
            other => Err(OpError::invalid(format!("direction \"{other}\" is unknown"))),
        }
    }

    fn count(self) -> usize {
        if self == Direction::Bidirectional { 2 } else { 1 }
    }
}

/// Checks weights `[gates * H, I]` and `[gates * H, H]` and their bias, whose names end in `suffix`,
/// and gives `H`.
fn hidden_size(op: &OpView<'_>, gates: usize, suffix: &str) -> Result<Dim, OpError> {
    let named = |name: &str| op.tensor(&format!("{name}{suffix}"));
    let (x, ih, hh) = (op.tensor("x")?, named("weight_ih")?, named("weight_hh")?);
    let mismatch = || {
        OpError::invalid(format!(
            "weights {ih} and {hh} do not fit x {x} [s, b, I]: they must be [{gates} H, I] and \
             [{gates} H, H]"
        ))
    };
    if x.rank() != 3 || ih.rank() != 2 || hh.rank() != 2 {
        return Err(mismatch());
    }
    let hidden = hh.shape[1].clone();
    let rows = hidden.fixed().map_or(Dim::Unknown, |h| Dim::Fixed(gates * h));
    let fits = ih.shape[0].compatible(&rows)
        && hh.shape[0].compatible(&rows)
        && ih.shape[1].compatible(&x.shape[2]);
    if !fits {
        return Err(mismatch());
    }
    let peephole = hidden.fixed().map_or(Dim::Unknown, |h| Dim::Fixed(3 * h));
    for (name, size) in [("bias", &rows), ("peephole", &peephole)] {
        let Some(t) = op.opt_tensor(&format!("{name}{suffix}"))? else { continue };
        if t.rank() != 1 || !t.shape[0].compatible(size) {
            return Err(OpError::invalid(format!("{name}{suffix} {t} does not fit weight {hh}")));
        }
    }
    Ok(hidden)
}

/// The types of the sequence of hidden states and of `states` last states.
fn infer(op: &OpView<'_>, gates: usize, states: &[&str]) -> Result<Vec<Type>, OpError> {
    let x = op.tensor("x")?;
    let hidden = hidden_size(op, gates, "")?;
    let directions = Direction::of(op)?.count();
    if directions == 2 && !hidden_size(op, gates, "_back")?.compatible(&hidden) {
        return Err(OpError::invalid("the two directions differ in size"));
    }
    let width = hidden.fixed().map_or(Dim::Unknown, |h| Dim::Fixed(directions * h));
    let state = TensorType { dtype: x.dtype, shape: vec![x.shape[1].clone(), width.clone()] };
    for name in states {
        let initial = op.tensor(name)?;
        if !initial.compatible(&state) {
            return Err(OpError::invalid(format!("{name} is {initial}, not {state}")));
        }
    }
    let all = op.bool_or("output_sequence", false)?;
    let steps = if all { x.shape[0].clone() } else { Dim::Fixed(1) };
    let sequence =
        TensorType { dtype: x.dtype, shape: vec![steps, x.shape[1].clone(), width] }.into();
    Ok([vec![sequence], vec![state.into(); states.len()]].concat())
}

/// Two for each weight, step and sequence of the batch.
fn flops(op: &OpView<'_>) -> f64 {
    let weights = ["weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"];
    let weights = weights.iter().filter_map(|name| op.opt_tensor(name).ok().flatten());
    let count: f64 = weights.map(|t| elements(&[t.clone().into()])).sum();
    let rows = op.tensor("x").map_or(1.0, |x| {
        let sizes = x.shape.iter().take(2).map(|d| d.fixed().unwrap_or(1) as f64);
        sizes.product()
    });
    2.0 * count * rows
}

/// One direction of a layer.
struct Layer {
    gates: usize,
    hidden: usize,
    weight_ih: Vec<f64>,
    weight_hh: Vec<f64>,
    bias: Vec<f64>,
    peephole: Option<Vec<f64>>,
}

/// The last states, and the hidden states of all steps in the order of the sequence.
struct Run {
    states: Vec<Vec<f64>>,
    sequence: Vec<Vec<f64>>,
}

impl Layer {
    fn of(cx: &EvalCx<'_, '_>, gates: usize, suffix: &str) -> Result<Self, OpError> {
        let named = |name: &str| cx.array(&format!("{name}{suffix}"));
        let optional = |name: &str| {
            let array = cx.opt_array(&format!("{name}{suffix}"))?;
            array.map(|a| a.floats().map(<[f64]>::to_vec)).transpose()
        };
        let (ih, hh) = (named("weight_ih")?, named("weight_hh")?);
        let hidden = hh.shape.get(1).copied().unwrap_or(0);
        let bias = optional("bias")?.unwrap_or_else(|| vec![0.0; gates * hidden]);
        let peephole = optional("peephole")?;
        let fits = hh.shape == [gates * hidden, hidden]
            && ih.shape.first() == Some(&(gates * hidden))
            && bias.len() == gates * hidden
            && peephole.as_ref().is_none_or(|p| p.len() == 3 * hidden);
        if !fits {
            return Err(OpError::invalid(format!(
                "weights {:?} and {:?} do not go together",
                ih.shape, hh.shape
            )));
        }
        let (weight_ih, weight_hh) = (ih.floats()?.to_vec(), hh.floats()?.to_vec());
        Ok(Layer { gates, hidden, weight_ih, weight_hh, bias, peephole })
    }

    /// Runs over the steps of `x` `[s, b, I]` from `states`, each `[b, H]`. `step` gets the products
    /// of the input (bias added) and of the hidden state with their weights, the states, and where
    /// the batch's row begins, and changes the states of that row.
    fn run(
        &self,
        x: &Array,
        reverse: bool,
        mut states: Vec<Vec<f64>>,
        step: impl Fn(&[f64], &[f64], &mut [&mut [f64]]),
    ) -> Result<Run, OpError> {
        let &[steps, batch, width] = &*x.shape else {
            return Err(OpError::invalid(format!("x {:?} is not [s, b, I]", x.shape)));
        };
        let (rows, hidden) = (self.gates * self.hidden, self.hidden);
        if self.weight_ih.len() != rows * width || states.iter().any(|s| s.len() != batch * hidden)
        {
            return Err(OpError::invalid(format!("weights or states do not fit x {:?}", x.shape)));
        }
        let sizes = [steps * batch, width, rows];
        let from_x = matmul_nt(x.floats()?, &self.weight_ih, Some(&self.bias), sizes);
        let mut sequence = vec![Vec::new(); steps];
        for i in 0..steps {
            let at = if reverse { steps - 1 - i } else { i };
            let from_h = matmul_nt(&states[0], &self.weight_hh, None, [batch, hidden, rows]);
            for b in 0..batch {
                let mut own: Vec<&mut [f64]> =
                    states.iter_mut().map(|s| &mut s[b * hidden..(b + 1) * hidden]).collect();
                let x = &from_x[(at * batch + b) * rows..][..rows];
                step(x, &from_h[b * rows..][..rows], &mut own);
            }
            sequence[at] = states[0].clone();
        }
        Ok(Run { states, sequence })
    }
}

/// The results of a layer whose directions ran one beside the other.
fn results(cx: &EvalCx<'_, '_>, x: &Array, runs: &[Run]) -> Result<Vec<Value>, OpError> {
    let batch = x.shape.get(1).copied().unwrap_or(0);
    let beside = |parts: Vec<&Vec<f64>>| -> Vec<f64> {
        let width = |part: &Vec<f64>| part.len() / batch.max(1);
        let row = |b: usize| {
            parts.iter().flat_map(move |p| p[b * width(p)..(b + 1) * width(p)].iter().copied())
        };
        (0..batch).flat_map(row).collect()
    };
    let last: Vec<Vec<f64>> = (0..runs[0].states.len())
        .map(|i| beside(runs.iter().map(|r| &r.states[i]).collect()))
        .collect();
    let width = last[0].len() / batch.max(1);
    let sequence: Vec<f64> = if cx.op.bool_or("output_sequence", false)? {
        let steps = 0..runs[0].sequence.len();
        steps.flat_map(|t| beside(runs.iter().map(|r| &r.sequence[t]).collect())).collect()
    } else {
        last[0].clone()
    };
    let steps = sequence.len() / last[0].len().max(1);
    let array = |shape: Vec<usize>, values: Vec<f64>| {
        Value::from(Array { dtype: x.dtype, shape, data: Data::Float(values) })
    };
    let first = array(vec![steps, batch, width], sequence);
    let last = last.into_iter().map(|state| array(vec![batch, width], state));
    Ok(std::iter::once(first).chain(last).collect())
}

/// `h = activation(W_ih x + W_hh h + bias)` over the steps of `x` `[s, b, I]`, from `initial_h`
/// `[b, H]`.
///
/// `weight_ih` `[H, I]`, `weight_hh` `[H, H]`, `bias` `[H]` (zero by default). Constants: `direction`
/// `forward` (default) or `reverse`; `activation` (`tanh`); `output_sequence` (false): the first
/// result has the hidden states of all steps `[s, b, H]` or only the last one's `[1, b, H]`. The
/// second is the last hidden state `[b, H]`.
pub(super) struct Rnn;

impl OpDef for Rnn {
    fn name(&self) -> &'static str {
        "rnn"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("initial_h", Domain::Float),
                Param::new("weight_ih", Domain::Float).constant(),
                Param::new("weight_hh", Domain::Float).constant(),
                Param::new("bias", Domain::Float).optional().constant(),
                Param::new("direction", Domain::Str).optional().constant(),
                Param::new("output_sequence", Domain::Bool).optional().constant(),
                Param::new("activation", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        activation(op, "activation", "tanh")?;
        infer(op, 1, &["initial_h"])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let activation = activation(&cx.op, "activation", "tanh")?;
        let (x, layer) = (cx.array("x")?, Layer::of(cx, 1, "")?);
        let states = vec![cx.array("initial_h")?.floats()?.to_vec()];
        let reverse = Direction::of(&cx.op)? == Direction::Reverse;
        let run = layer.run(&x, reverse, states, |x, from_h, states| {
            for (i, h) in states[0].iter_mut().enumerate() {
                *h = activation(x[i] + from_h[i]);
            }
        })?;
        results(cx, &x, &[run])
    }

    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        flops(op)
    }
}

/// A gated recurrent unit (Cho et al. 2014) over the steps of `x` `[s, b, I]`, from `initial_h`
/// `[b, H]`:
///
/// `r = recurrent(W_ir x + W_hr h + b_r)`, `z` likewise, `o = activation(W_io x + W_ho (r * h) + b_o)`,
/// `h = (1 - z) * o + z * h`, where `b` is the sum of `bias` and `input_bias`. If the constant
/// `reset_after` (false by default) holds, it is `o = activation(W_io x + input_b_o + r * (W_ho h +
/// b_o))`.
///
/// `weight_ih` `[3 H, I]`, `weight_hh` `[3 H, H]` and the biases `[3 H]` (zero by default) have the
/// gates in the order `r`, `o`, `z`. Constants and results as of `rnn`, and `recurrent_activation`
/// (`sigmoid`). `reset_after` and `input_bias` are of iOS 18.
pub(super) struct Gru;

impl OpDef for Gru {
    fn name(&self) -> &'static str {
        "gru"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("initial_h", Domain::Float),
                Param::new("weight_ih", Domain::Float).constant(),
                Param::new("weight_hh", Domain::Float).constant(),
                Param::new("bias", Domain::Float).optional().constant(),
                Param::new("direction", Domain::Str).optional().constant(),
                Param::new("output_sequence", Domain::Bool).optional().constant(),
                Param::new("recurrent_activation", Domain::Str).optional().constant(),
                Param::new("activation", Domain::Str).optional().constant(),
                Param::new("reset_after", Domain::Bool).optional().constant(),
                Param::new("input_bias", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        activation(op, "recurrent_activation", "sigmoid")?;
        activation(op, "activation", "tanh")?;
        op.bool_or("reset_after", false)?;
        let (weight, bias) = (op.tensor("weight_hh")?, op.opt_tensor("input_bias")?);
        if let Some(bias) = bias
            && !(bias.rank() == 1
                && weight.rank() == 2
                && bias.shape[0].compatible(&weight.shape[0]))
        {
            return Err(OpError::invalid(format!(
                "input_bias {bias} does not fit weight {weight}"
            )));
        }
        infer(op, 3, &["initial_h"])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let recurrent = activation(&cx.op, "recurrent_activation", "sigmoid")?;
        let activation = activation(&cx.op, "activation", "tanh")?;
        let (x, mut layer) = (cx.array("x")?, Layer::of(cx, 3, "")?);
        let states = vec![cx.array("initial_h")?.floats()?.to_vec()];
        let reverse = Direction::of(&cx.op)? == Direction::Reverse;
        let n = layer.hidden;
        let after = cx.op.bool_or("reset_after", false)?;
        // Behind the reset gate the bias of `o` belongs to the product with the hidden state.
        let reset_bias = layer.bias[n..2 * n].to_vec();
        if after {
            layer.bias[n..2 * n].fill(0.0);
        }
        if let Some(bias) = cx.opt_array("input_bias")? {
            layer.bias.iter_mut().zip(bias.floats()?).for_each(|(b, more)| *b += more);
        }
        let new_weights = &layer.weight_hh[n * n..2 * n * n];
        let run = layer.run(&x, reverse, states, |x, from_h, states| {
            let [h] = states else { return };
            let r: Vec<f64> = (0..n).map(|i| recurrent(x[i] + from_h[i])).collect();
            let reset: Vec<f64> = h.iter().zip(&r).map(|(h, r)| h * r).collect();
            for (i, h) in h.iter_mut().enumerate() {
                let from_h_new = match after {
                    true => r[i] * (from_h[n + i] + reset_bias[i]),
                    false => dot(0.0, &new_weights[i * n..][..n], &reset),
                };
                let o = activation(x[n + i] + from_h_new);
                let z = recurrent(x[2 * n + i] + from_h[2 * n + i]);
                *h = (1.0 - z) * o + z * *h;
            }
        })?;
        results(cx, &x, &[run])
    }

    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        flops(op)
    }
}

/// Long short-term memory (Hochreiter and Schmidhuber 1997) over the steps of `x` `[s, b, I]`, from
/// `initial_h` and `initial_c` `[b, D H]`, for `D` directions:
///
/// `i = recurrent(W_ii x + b_i + W_hi h)`, `f` and `o` likewise, `g = cell(W_ig x + b_g + W_hg h)`,
/// `c = f * c + i * g`, `h = o * activation(c)`.
///
/// `weight_ih` `[4 H, I]`, `weight_hh` `[4 H, H]` and `bias` `[4 H]` (zero by default) have the gates
/// in the order `i`, `f`, `o`, `g`. With `peephole` `[3 H]`, `i` and `f` see the old and `o` the new
/// `c`, times its weights. Constants: `direction` `forward` (default), `reverse` or `bidirectional`,
/// which takes the other direction's weights from the arguments ending in `_back` and puts its
/// results behind; `recurrent_activation` (`sigmoid`), `cell_activation` and `activation` (`tanh`);
/// `clip`: what the gates' functions get is confined to `-clip..=clip`; `output_sequence` (false).
/// Results: the hidden states of all steps or the last `[s or 1, b, D H]`, the last `h` and `c`.
pub(super) struct Lstm;

impl OpDef for Lstm {
    fn name(&self) -> &'static str {
        "lstm"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("initial_h", Domain::Float),
                Param::new("initial_c", Domain::Float),
                Param::new("weight_ih", Domain::Float).constant(),
                Param::new("weight_hh", Domain::Float).constant(),
                Param::new("bias", Domain::Float).optional().constant(),
                Param::new("peephole", Domain::Float).optional().constant(),
                Param::new("weight_ih_back", Domain::Float).optional().constant(),
                Param::new("weight_hh_back", Domain::Float).optional().constant(),
                Param::new("bias_back", Domain::Float).optional().constant(),
                Param::new("peephole_back", Domain::Float).optional().constant(),
                Param::new("direction", Domain::Str).optional().constant(),
                Param::new("output_sequence", Domain::Bool).optional().constant(),
                Param::new("recurrent_activation", Domain::Str).optional().constant(),
                Param::new("cell_activation", Domain::Str).optional().constant(),
                Param::new("activation", Domain::Str).optional().constant(),
                Param::new("clip", Domain::Float).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        Cell::of(op)?;
        infer(op, 4, &["initial_h", "initial_c"])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (cell, direction) = (Cell::of(&cx.op)?, Direction::of(&cx.op)?);
        let x = cx.array("x")?;
        let (h, c) = (cx.array("initial_h")?, cx.array("initial_c")?);
        let mut runs = Vec::new();
        for d in 0..direction.count() {
            let layer = Layer::of(cx, 4, if d == 0 { "" } else { "_back" })?;
            let states = [&h, &c].map(|state| columns(state, d, layer.hidden));
            let states = states.into_iter().collect::<Result<Vec<_>, _>>()?;
            let reverse = d == 1 || direction == Direction::Reverse;
            runs.push(layer.run(&x, reverse, states, |x, from_h, states| {
                cell.step(x, from_h, layer.peephole.as_deref(), states);
            })?);
        }
        results(cx, &x, &runs)
    }

    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        flops(op)
    }
}

/// Columns `d * n..(d + 1) * n` of a matrix.
fn columns(state: &Array, d: usize, n: usize) -> Result<Vec<f64>, OpError> {
    let width = state.shape.get(1).copied().unwrap_or(0);
    if width < (d + 1) * n {
        return Err(OpError::invalid(format!("a state {:?} is too small", state.shape)));
    }
    let rows = state.floats()?.chunks_exact(width.max(1));
    Ok(rows.flat_map(|row| row[d * n..(d + 1) * n].iter().copied()).collect())
}

/// The functions of an LSTM's cell.
struct Cell {
    recurrent: fn(f64) -> f64,
    cell: fn(f64) -> f64,
    activation: fn(f64) -> f64,
    clip: f64,
}

impl Cell {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        let clip = op.float("clip")?.unwrap_or(f64::INFINITY);
        if clip.is_nan() || clip < 0.0 {
            return Err(OpError::invalid(format!("clip {clip} is no bound")));
        }
        Ok(Cell {
            recurrent: activation(op, "recurrent_activation", "sigmoid")?,
            cell: activation(op, "cell_activation", "tanh")?,
            activation: activation(op, "activation", "tanh")?,
            clip,
        })
    }

    fn step(&self, x: &[f64], from_h: &[f64], peephole: Option<&[f64]>, states: &mut [&mut [f64]]) {
        let [h, c] = states else { return };
        let n = h.len();
        let clip = |v: f64| v.clamp(-self.clip, self.clip);
        let peep = |gate: usize, i: usize, c: f64| peephole.map_or(0.0, |p| p[gate * n + i] * c);
        for i in 0..n {
            let sum = |gate: usize| x[gate * n + i] + from_h[gate * n + i];
            let input = (self.recurrent)(clip(sum(0) + peep(0, i, c[i])));
            let forget = (self.recurrent)(clip(sum(1) + peep(1, i, c[i])));
            let new = (self.cell)(clip(sum(3)));
            c[i] = forget * c[i] + input * new;
            let output = (self.recurrent)(clip(sum(2) + peep(2, i, c[i])));
            h[i] = output * (self.activation)(c[i]);
        }
    }
}
