//! The engine's form of the language-model dialect: tokens as columns, caches as inputs and outputs.

use half::f16;
use mil::{Error, ErrorKind, OpError, OpId, OpKind, OpView, Result, TensorType, ValueId};
use tensor::Tensor;

use super::emitter::Emitter;
use super::host::Auxiliary;
use super::lowering::{Lowering, bug, reshaped};
use super::partition::{tokens, weight_name};
use super::{AdapterSlot, HostSource, HostStep, Source, StateSlot, Step, Wire};

impl Lowering<'_> {
    fn state(&mut self, v: ValueId) -> Result<usize> {
        if let Some(i) = self.states.iter().position(|(known, _)| *known == v) {
            let name = &self.states[i].1.name;
            let message = format!("function {}: state {name} is written twice", self.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let name = self.function.values[v].name.clone();
        let ty = self.function.ty(v).as_state();
        let Some(&[1, heads, slots, dim]) = ty.and_then(TensorType::fixed_shape).as_deref() else {
            let message = format!("function {}: state {name} has no fixed size", self.name);
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        if [heads, slots, dim].contains(&0) {
            let message = format!("function {}: state {name} is empty", self.name);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if slots != self.target.padded(slots) {
            let message = format!(
                "function {}: state {name} has {slots} slots, where {} takes multiples of {}",
                self.name,
                self.target.chip.title,
                self.target.width_multiple()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.states.push((v, StateSlot { name, heads, dim, slots }));
        Ok(self.states.len() - 1)
    }

    /// The tensor that the host makes once for all steps.
    fn auxiliary(&mut self, positions: ValueId, wanted: Auxiliary) -> Result<Wire> {
        if let Some(&wire) = self.auxiliary.get(&(positions, wanted.clone())) {
            return Ok(wire);
        }
        let (program, ty) = wanted.program(self.target.columns)?;
        let wire = Wire(self.wires.len());
        self.wires.push((wanted.label().to_owned(), ty));
        let source = HostSource::Padded(self.wire(positions)?);
        self.steps.push(Step::Host(HostStep {
            program,
            inputs: vec![("positions".to_owned(), source)],
            outputs: vec![("y".to_owned(), wire)],
        }));
        self.auxiliary.insert((positions, wanted), wire);
        Ok(wire)
    }

    pub(super) fn emit(&mut self, e: &mut Emitter<'_>, id: OpId) -> Result<()> {
        let op = &self.function.ops[id];
        let view = OpView::new(self.function, &self.program.weights, op);
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let name = self.function.values[op.outputs[0]].name.clone();
        let name = name.as_str();
        let float = |key: &str| view.float(key).map_err(place);
        let made = match op.kind {
            OpKind::LlmLinear => {
                let x = self.tensor(e, id, "x")?;
                let y = self.product(e, id, (x, "weight"), name)?;
                self.biased(e, id, y, name)?
            }
            OpKind::LlmRmsNorm => {
                let x = self.tensor(e, id, "x")?;
                let gamma = self.half(id, "weight")?;
                let epsilon = float("epsilon")?.unwrap_or(0.0);
                let (width, dim, columns) = (self.width(id, "x")?, gamma.len(), e.columns);
                // A norm of each head is one over the elements of the head.
                match width == dim {
                    true => {
                        let gamma = reshaped(&gamma, [1, dim, 1, 1])?;
                        e.normalise(x, 1, [Some(gamma), None], epsilon, name)?
                    }
                    false => {
                        let split = [1, width / dim, dim, columns];
                        let x = e.reshape(x, split, &format!("{name}_split"))?;
                        let gamma = reshaped(&gamma, [1, 1, dim, 1])?;
                        let y = e.normalise(x, 2, [Some(gamma), None], epsilon, name)?;
                        e.reshape(y, [1, width, 1, columns], name)?
                    }
                }
            }
            OpKind::LayerNorm => {
                let x = self.tensor(e, id, "x")?;
                let width = self.width(id, "x")?;
                let scale = self.scale_and_shift(id, [1, width, 1, 1])?;
                let epsilon = float("epsilon")?.unwrap_or(1e-5);
                let centred = e.centre(x, 1, name)?;
                e.normalise(centred, 1, scale, epsilon, name)?
            }
            OpKind::LlmGatedMlp => {
                let x = self.tensor(e, id, "x")?;
                let gate = self.product(e, id, (x, "gate"), &format!("{name}_gate"))?;
                let gate = match view.str("activation").map_err(place)? {
                    Some("silu") => e.silu(gate, name)?,
                    Some("gelu") => e.gelu(gate, true, name)?,
                    Some("gelu_tanh") => e.gelu(gate, false, name)?,
                    other => {
                        return Err(place(OpError::unsupported(format!("activation {other:?}"))));
                    }
                };
                let up = self.product(e, id, (x, "up"), &format!("{name}_up"))?;
                let inner = e.binary(OpKind::Mul, gate, up, &format!("{name}_inner"))?;
                self.product(e, id, (inner, "down"), name)?
            }
            OpKind::Gelu => {
                let x = self.tensor(e, id, "x")?;
                self.gelu(e, id, x, name)?
            }
            OpKind::Silu => {
                let x = self.tensor(e, id, "x")?;
                e.silu(x, name)?
            }
            OpKind::Tanh | OpKind::Sigmoid => {
                let x = self.tensor(e, id, "x")?;
                e.unary(op.kind, x, name)?
            }
            // Channels first, heads and flat tokens lie alike.
            OpKind::Reshape => self.tensor(e, id, "x")?,
            OpKind::Add | OpKind::Mul => {
                let (x, y) = (self.addend(e, id, "x")?, self.addend(e, id, "y")?);
                e.binary(op.kind, x, y, name)?
            }
            OpKind::LlmRope => self.rope(e, id, name)?,
            OpKind::LlmAttention => self.attention(e, id, name)?,
            other => return Err(bug(format!("{} has no form on the engine", other.name()))),
        };
        e.values.insert(self.function.ops[id].outputs[0], made);
        Ok(())
    }

    fn width(&self, id: OpId, name: &str) -> Result<usize> {
        let v = self.arg(id, name)?;
        let tokens = tokens(self.function, v);
        Ok(tokens.ok_or_else(|| bug(format!("{} are no tokens", self.function.values[v].name)))?.1)
    }

    /// The engine's form of a tensor of tokens, an input of the program if another step makes it.
    fn tensor(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let v = self.arg(id, name)?;
        if let Some(&known) = e.values.get(&v) {
            return Ok(known);
        }
        let (width, wire) = (self.width(id, name)?, self.wire(v)?);
        let label = format!("in_{}", self.function.values[v].name);
        let input = e.input(&label, [1, width, 1, e.columns], Source::Tokens(wire));
        e.values.insert(v, input);
        Ok(input)
    }

    /// `gamma` and `beta` of a norm, in `shape`.
    pub(super) fn scale_and_shift(
        &mut self,
        id: OpId,
        shape: [usize; 4],
    ) -> Result<[Option<Tensor>; 2]> {
        let mut found = [None, None];
        for (place, name) in found.iter_mut().zip(["gamma", "beta"]) {
            *place = self.opt_half(id, name)?.map(|t| reshaped(&t, shape)).transpose()?;
        }
        Ok(found)
    }

    /// A tensor or a scalar constant.
    fn addend(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        if view.literal(name).is_none() {
            return self.tensor(e, id, name);
        }
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let value = view.float(name).map_err(place)?.unwrap_or(0.0);
        Ok(e.scalar(value))
    }

    /// The product of `x` and the weight that argument `arg` is, with its adapter's change.
    fn product(
        &mut self,
        e: &mut Emitter<'_>,
        id: OpId,
        (x, arg): (ValueId, &str),
        name: &str,
    ) -> Result<ValueId> {
        let weight = weight_name(self.program, self.function, id, arg);
        let named = |known: &String| Some(known) == weight.as_ref();
        let ty = self.view(id).tensor(arg).ok().and_then(TensorType::fixed_shape);
        let Some(&[out, inner]) = ty.as_deref() else {
            return Err(bug(format!("{}: {arg} is no matrix", self.function.describe(id))));
        };
        let y = if self.variable.weights.iter().any(named) {
            self.given_product(e, (x, weight.clone()), [out, inner], name)?
        } else {
            let kernel = self.matrix(id, arg)?;
            e.conv(x, kernel, name)?
        };
        let slot = self.variable.adapters.iter().find(|s| named(&s.weight)).cloned();
        let Some(slot) = slot else { return Ok(y) };
        // Both factors have the rank as their width, which is as wide as surfaces must be.
        let rank = self.target.padded(slot.rank);
        let (number, columns) = (self.adapters.len(), e.columns);
        self.adapters.push((AdapterSlot { rank, ..slot }, [out, inner]));
        let a = e.input(&format!("lora_a_{name}"), [1, inner, 1, rank], Source::AdapterA(number));
        let b = e.input(&format!("lora_b_{name}"), [1, out, 1, rank], Source::AdapterB(number));
        let a = e.reshape(a, [1, 1, inner, rank], &format!("{name}_a"))?;
        let b = e.reshape(b, [1, 1, out, rank], &format!("{name}_b"))?;
        let x = e.reshape(x, [1, 1, inner, columns], &format!("{name}_x"))?;
        let low = e.matmul(a, x, [true, false], &format!("{name}_low"))?;
        let change = e.matmul(b, low, [false, false], &format!("{name}_change"))?;
        let change = e.reshape(change, [1, out, 1, columns], &format!("{name}_changed"))?;
        e.binary(OpKind::Add, y, change, &format!("{name}_adapted"))
    }

    /// The product by a weight that is an input.
    fn given_product(
        &mut self,
        e: &mut Emitter<'_>,
        (x, weight): (ValueId, Option<String>),
        [out, inner]: [usize; 2],
        name: &str,
    ) -> Result<ValueId> {
        let (width, columns) = (self.target.padded(inner), e.columns);
        let source = Source::Weight(self.given.len());
        self.given.push((weight.unwrap_or_default(), [out, inner]));
        let mut w = e.input(&format!("weight_{name}"), [1, out, 1, width], source);
        if width != inner {
            let end = [1, out, 1, inner];
            w = e.slice(w, [0; 4], end, [1; 4], &format!("{name}_cut"))?;
        }
        let w = e.reshape(w, [1, 1, out, inner], &format!("{name}_matrix"))?;
        let x = e.reshape(x, [1, 1, inner, columns], &format!("{name}_x"))?;
        let y = e.matmul(w, x, [false, false], &format!("{name}_products"))?;
        e.reshape(y, [1, out, 1, columns], &format!("{name}_product"))
    }

    fn rope(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let interleaved = view.bool_or("interleaved", false).map_err(place)?;
        let constant = view.literal("inv_freq").and_then(|l| l.resolve(&self.program.weights));
        let frequencies = constant.and_then(mil::eval::tensor_floats);
        let frequencies = frequencies.ok_or_else(|| bug("inv_freq is no constant of floats"))?;
        let positions = self.arg(id, "positions")?;
        let x = self.tensor(e, id, "x")?;
        let shape = self.function.tensor_ty(self.arg(id, "x")?).map(|t| t.shape.clone());
        let sizes = shape.as_deref().and_then(|s| Some((s.get(2)?.fixed()?, s.get(3)?.fixed()?)));
        let (heads, dim) = sizes.ok_or_else(|| bug("rotation of a tensor without heads"))?;
        let mut rotation = vec![f16::ZERO; dim * dim];
        let mut table = vec![0.0f32; dim];
        let pairs = frequencies.len();
        for (i, &frequency) in frequencies.iter().enumerate() {
            let [first, second] = if interleaved { [2 * i, 2 * i + 1] } else { [i, i + pairs] };
            rotation[first * dim + second] = f16::NEG_ONE;
            rotation[second * dim + first] = f16::ONE;
            table[first] = frequency as f32;
            table[second] = frequency as f32;
        }
        let bits: Vec<u32> = table.iter().map(|f| f.to_bits()).collect();
        let sine = Auxiliary::Rotation { frequencies: bits.clone(), sine: true };
        let cosine = Auxiliary::Rotation { frequencies: bits, sine: false };
        let columns = e.columns;
        let sine = self.auxiliary(positions, sine)?;
        let cosine = self.auxiliary(positions, cosine)?;
        let sine = e.raw("in_sine", [1, 1, dim, columns], sine);
        let cosine = e.raw("in_cosine", [1, 1, dim, columns], cosine);
        let rotation = Tensor::from_slice(&[1, 1, dim, dim], &rotation);
        let rotation = e.shared(
            &format!("rotation_{interleaved}_{pairs}_{dim}"),
            rotation.map_err(|e| bug(e.to_string()))?,
        )?;
        let split = e.reshape(x, [1, heads, dim, columns], &format!("{name}_heads"))?;
        let turned = e.matmul(rotation, split, [false, false], &format!("{name}_turned"))?;
        let turned = e.binary(OpKind::Mul, turned, sine, &format!("{name}_sine"))?;
        let kept = e.binary(OpKind::Mul, split, cosine, &format!("{name}_cosine"))?;
        let sum = e.binary(OpKind::Add, kept, turned, &format!("{name}_sum"))?;
        e.reshape(sum, [1, heads * dim, 1, columns], name)
    }

    fn attention(&mut self, e: &mut Emitter<'_>, id: OpId, name: &str) -> Result<ValueId> {
        let view = OpView::new(self.function, &self.program.weights, &self.function.ops[id]);
        let place = |error: OpError| Error::at_op(error, self.name, self.function.describe(id));
        let scale = view.float("scale").map_err(place)?.unwrap_or(1.0);
        let (window, softcap) =
            (view.int("window").map_err(place)?, view.float("softcap").map_err(place)?);
        let positions = self.arg(id, "positions")?;
        let query = self.tensor(e, id, "query")?;
        let width = self.width(id, "query")?;
        let (key, value) = (self.tensor(e, id, "key")?, self.tensor(e, id, "value")?);
        let states =
            [self.state(self.arg(id, "key_cache")?)?, self.state(self.arg(id, "value_cache")?)?];
        let StateSlot { heads: groups, dim, slots, .. } = self.states[states[0]].1;
        let (heads, s) = (width / dim, e.columns);
        let written = Auxiliary::Written { slots };
        let kept = Auxiliary::Kept { slots };
        let mask = Auxiliary::Mask { slots, window };
        let (written, kept, mask) = (
            self.auxiliary(positions, written)?,
            self.auxiliary(positions, kept)?,
            self.auxiliary(positions, mask)?,
        );
        let written = e.raw(&format!("in_written_{slots}"), [1, 1, s, slots], written);
        let kept = e.raw(&format!("in_kept_{slots}"), [1, 1, 1, slots], kept);
        let window = window.map_or_else(String::new, |w| format!("_{w}"));
        let mask = e.raw(&format!("in_mask_{slots}{window}"), [1, 1, s, slots], mask);
        let mut caches = Vec::new();
        for (state, new) in states.into_iter().zip([key, value]) {
            let channels = groups * dim;
            let label = self.states[state].1.name.clone();
            let old =
                e.input(&format!("in_{label}"), [1, channels, 1, slots], Source::State(state));
            let new = e.reshape(new, [1, 1, channels, s], &format!("{label}_rows"))?;
            let new = e.matmul(new, written, [false, false], &format!("{label}_placed"))?;
            let new = e.reshape(new, [1, channels, 1, slots], &format!("{label}_new"))?;
            let old = e.binary(OpKind::Mul, old, kept, &format!("{label}_kept"))?;
            let cache = e.binary(OpKind::Add, old, new, &format!("out_{label}"))?;
            e.output(cache, &format!("out_{label}"), Source::State(state))?;
            caches.push(e.reshape(cache, [1, groups, dim, slots], &format!("{label}_heads"))?);
        }
        // The factor goes on the query, before the products can leave the range of fp16.
        let factor = e.scalar(scale);
        let q = e.binary(OpKind::Mul, query, factor, &format!("{name}_scaled"))?;
        let q = e.reshape(q, [1, heads, dim, s], &format!("{name}_heads"))?;
        let q = e.transpose(q, [0, 1, 3, 2], &format!("{name}_rows"))?;
        let rows = heads / groups * s;
        let q = e.reshape(q, [1, groups, rows, dim], &format!("{name}_groups"))?;
        let scores = e.matmul(q, caches[0], [false, false], &format!("{name}_products"))?;
        let mut scores = e.reshape(scores, [1, heads, s, slots], &format!("{name}_scores"))?;
        if let Some(cap) = softcap {
            let down = e.scalar(cap.recip());
            scores = e.binary(OpKind::Mul, scores, down, &format!("{name}_small"))?;
            scores = e.unary(OpKind::Tanh, scores, &format!("{name}_squashed"))?;
            let up = e.scalar(cap);
            scores = e.binary(OpKind::Mul, scores, up, &format!("{name}_capped"))?;
        }
        let masked = e.binary(OpKind::Add, scores, mask, &format!("{name}_masked"))?;
        let weights = e.softmax(masked, &format!("{name}_weights"))?;
        let weights = e.reshape(weights, [1, groups, rows, slots], &format!("{name}_grouped"))?;
        let mixed = e.matmul(weights, caches[1], [false, true], &format!("{name}_mixed"))?;
        let mixed = e.reshape(mixed, [1, heads, s, dim], &format!("{name}_mixed_heads"))?;
        let mixed = e.transpose(mixed, [0, 1, 3, 2], &format!("{name}_columns"))?;
        e.reshape(mixed, [1, heads * dim, 1, s], name)
    }
}
