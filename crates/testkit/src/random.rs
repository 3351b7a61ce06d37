//! Random small programs, valid by construction, to hold two engines against each other.

use exec::Tensors;
use mil::{Arg, FunctionBuilder, Literal, OpKind, Opset, Program, TensorType, Type, ValueId};
use proptest::prelude::*;
use tensor::{DType, Tensor};

use crate::case::Step;
use crate::{Case, Tolerance, seeded, seeded_tensor};

/// How to make a program: one input `x` `[1, rows, width]`, then an operation per instruction.
/// Instructions shrink to fewer and simpler ones.
#[derive(Clone, Debug)]
pub struct RandomProgram {
    rows: usize,
    width: usize,
    instructions: Vec<Instruction>,
}

/// What to do, with which of the values so far, and a choice among the forms.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    action: Action,
    a: usize,
    b: usize,
    form: usize,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Unary,
    Binary,
    Linear,
    RmsNorm,
    LayerNorm,
    Softmax,
    Transpose,
    Reshape,
    Concat,
    Attention,
    GatedMlp,
    Cast,
    Conv,
    Affine,
    Layer,
    Reduce,
}

/// Programs of up to `longest` operations or so.
pub fn random_program(longest: usize) -> impl Strategy<Value = RandomProgram> {
    use Action::{
        Affine, Attention, Binary, Cast, Concat, Conv, GatedMlp, Layer, LayerNorm, Linear, Reduce,
        Reshape, RmsNorm, Softmax, Transpose, Unary,
    };
    let actions = vec![
        Unary, Binary, Linear, RmsNorm, LayerNorm, Softmax, Transpose, Transpose, Reshape, Concat,
        Attention, GatedMlp, Cast, Conv, Affine, Layer, Reduce,
    ];
    let instruction = (prop::sample::select(actions), 0..16usize, 0..16usize, 0..12usize)
        .prop_map(|(action, a, b, form)| Instruction { action, a, b, form });
    let instructions = prop::collection::vec(instruction, 1..=longest.max(1));
    (1..5usize, prop::sample::select(vec![8usize, 32, 64]), instructions)
        .prop_map(|(rows, width, instructions)| RandomProgram { rows, width, instructions })
}

impl RandomProgram {
    /// The program with two calls, the second of which finds the states of the first.
    ///
    /// # Panics
    /// When an operation refuses what should be right by construction.
    pub fn case(&self) -> Case {
        let mut program = Program::default();
        let f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
        let mut maker = Maker { f, rows: self.rows, values: Vec::new(), weights: 0 };
        let x = maker.f.input("x", TensorType::new(DType::F32, [1, self.rows, self.width]));
        let positions = TensorType::new(DType::I32, [self.rows]);
        let positions = maker.f.input("positions", positions);
        maker.values.push(x);
        for &instruction in &self.instructions {
            let made = maker.make(instruction, positions).unwrap_or_else(|e| panic!("{e}"));
            maker.values.push(made);
        }
        let outputs = match maker.values[1..] {
            [.., a, b] => vec![a, b],
            ref few => few.to_vec(),
        };
        let function = maker.f.finish(outputs);
        program.functions.insert("main".into(), function);
        let steps = (0..CALLS).map(|call| self.step(call)).collect();
        // Exact results do not have what a cast to half precision loses, and norms may magnify it.
        let halves = self.instructions.iter().any(|i| matches!(i.action, Action::Cast));
        let tolerance = if halves { 5e-2 } else { 2e-3 };
        let tolerance = Tolerance { abs: tolerance, rel: tolerance };
        Case { name: format!("{self:?}"), program, steps, tolerance }
    }

    fn step(&self, call: usize) -> Step {
        let (rows, width) = (self.rows, self.width);
        let x = seeded::tensor(call as u64, "x", rows * width, 1.0);
        let positions: Vec<i32> = (call * rows..(call + 1) * rows).map(|p| p as i32).collect();
        let inputs = Tensors::from([
            ("x".into(), Tensor::from_slice(&[1, rows, width], &x).expect("as many values")),
            ("positions".into(), Tensor::from_slice(&[rows], &positions).expect("one each")),
        ]);
        Step { function: "main".into(), inputs }
    }
}

const CALLS: usize = 2;

struct Maker<'w> {
    f: FunctionBuilder<'w>,
    rows: usize,
    /// What instructions choose from.
    values: Vec<ValueId>,
    /// Weights so far, for names.
    weights: usize,
}

impl Maker<'_> {
    fn shape(&self, v: ValueId) -> Vec<usize> {
        let ty = self.f.ty(v).as_tensor().expect("all values are tensors");
        ty.fixed_shape().expect("all sizes are fixed")
    }

    fn weight(&mut self, dtype: DType, shape: &[usize]) -> mil::Result<ValueId> {
        self.weights += 1;
        let name = format!("w{}", self.weights);
        let tensor = seeded_tensor(dtype, &name, shape);
        self.f.new_weight(&name, tensor)
    }

    fn unary(&mut self, kind: OpKind, x: ValueId) -> mil::Result<ValueId> {
        self.f.op(kind).arg("x", x).result()
    }

    fn make(&mut self, i: Instruction, positions: ValueId) -> mil::Result<ValueId> {
        let x = self.values[i.a % self.values.len()];
        let shape = self.shape(x);
        let last = shape.last().copied().unwrap_or(1);
        match i.action {
            Action::Unary => {
                let kinds = [OpKind::Tanh, OpKind::Sigmoid, OpKind::Silu, OpKind::Gelu];
                self.unary(kinds[i.form % kinds.len()], x)
            }
            Action::Binary => {
                let kinds = [OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Maximum];
                let kind = kinds[i.form % kinds.len()];
                let y = self.values[i.b % self.values.len()];
                let y = if self.shape(y) == shape { y } else { x };
                let made = self.f.op(kind).arg("x", x).arg("y", y).result()?;
                // Products of products would leave the range in which tolerances make sense.
                if kind == OpKind::Mul { self.unary(OpKind::Tanh, made) } else { Ok(made) }
            }
            Action::Linear => {
                let dtype = weight_type(i.form, last);
                let w = self.weight(dtype, &[[8, 32, 64][i.b % 3], last])?;
                let made = self.f.op(OpKind::LlmLinear).arg("x", x).arg("weight", w).result()?;
                self.unary(OpKind::Tanh, made)
            }
            Action::RmsNorm => {
                let w = self.weight(DType::F32, &[last])?;
                let op = self.f.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w);
                op.arg("epsilon", Literal::scalar(1e-2f32)).result()
            }
            Action::LayerNorm => {
                let gamma = self.weight(DType::F32, &[last])?;
                let op = self.f.op(OpKind::LayerNorm).arg("x", x).arg("gamma", gamma);
                let op = op.arg("axes", Literal::vector(&[-1i32]));
                op.arg("epsilon", Literal::scalar(1e-2f32)).result()
            }
            Action::Softmax => {
                self.f.op(OpKind::Softmax).arg("x", x).arg("axis", Literal::scalar(-1i32)).result()
            }
            Action::Transpose => {
                let rank = shape.len();
                let perm: Vec<i32> = (0..rank).map(|a| ((a + i.form) % rank) as i32).collect();
                self.f
                    .op(OpKind::Transpose)
                    .arg("x", x)
                    .arg("perm", Literal::vector(&perm))
                    .result()
            }
            Action::Reshape => {
                let target: Vec<i32> = match i.form % 3 {
                    0 => vec![1, -1],
                    1 if last % 2 == 0 => vec![-1, 2],
                    _ => vec![1, shape[0] as i32, -1],
                };
                self.reshape(x, &target)
            }
            Action::Concat => {
                let y = self.values[i.b % self.values.len()];
                let y = if self.shape(y) == shape { y } else { x };
                // Doubling again and again would only make the test slow.
                if shape.iter().product::<usize>() > 2048 {
                    return self.unary(OpKind::Tanh, x);
                }
                let axis = Literal::scalar((i.form % shape.len()) as i32);
                let values = Arg::from(vec![x, y]);
                self.f.op(OpKind::Concat).arg("values", values).arg("axis", axis).result()
            }
            Action::Attention => self.attention(x, &shape, i, positions),
            Action::Cast => self.cast(x, &shape, i.form),
            Action::Conv => self.conv(x, &shape, i),
            Action::Affine => {
                let axis = i.b % shape.len();
                self.affine(x, axis, i.form)
            }
            Action::Layer => self.layer(x, last, i),
            Action::Reduce => {
                let axis = Literal::vector(&[(i.b % shape.len()) as i32]);
                let kind = [OpKind::ReduceMean, OpKind::ReduceMax][i.form % 2];
                let op = self.f.op(kind).arg("x", x).arg("axes", axis);
                op.arg("keep_dims", Literal::bool(true)).result()
            }
            Action::GatedMlp => {
                let dtype = weight_type(i.form, last);
                let gate = self.weight(dtype, &[32, last])?;
                let up = self.weight(dtype, &[32, last])?;
                let down = self.weight(weight_type(i.form, 32), &[last, 32])?;
                let op = self.f.op(OpKind::LlmGatedMlp).arg("x", x).arg("gate", gate);
                let op = op.arg("up", up).arg("down", down);
                let made = op.arg("activation", Literal::string("silu")).result()?;
                self.unary(OpKind::Tanh, made)
            }
        }
    }

    fn reshape(&mut self, x: ValueId, shape: &[i32]) -> mil::Result<ValueId> {
        self.f.op(OpKind::Reshape).arg("x", x).arg("shape", Literal::vector(shape)).result()
    }

    /// To half precision and back, with something that only moves elements between, and at times on.
    fn cast(&mut self, x: ValueId, shape: &[usize], form: usize) -> mil::Result<ValueId> {
        let to = |m: &mut Self, x, dtype: &str| {
            m.f.op(OpKind::Cast).arg("x", x).arg("dtype", Literal::string(dtype)).result()
        };
        let half = to(self, x, "fp16")?;
        let moved = match form % 4 {
            0 => half,
            1 => self.reshape(half, &[-1])?,
            2 => self.unary(OpKind::Relu, half)?,
            _ => {
                let perm: Vec<i32> = (0..shape.len() as i32).rev().collect();
                let op = self.f.op(OpKind::Transpose).arg("x", half);
                op.arg("perm", Literal::vector(&perm)).result()?
            }
        };
        let mut single = to(self, moved, "fp32")?;
        if form >= 6 {
            let again = self.reshape(single, &[1, -1])?;
            let half = to(self, again, "fp16")?;
            single = to(self, half, "fp32")?;
        }
        Ok(single)
    }

    /// A constant of one number for each place along `axis`, near 1 so that dividing is tame.
    fn channels(&mut self, rank: usize, axis: usize, n: usize) -> Literal {
        self.weights += 1;
        let values = seeded::tensor(1, &format!("c{}", self.weights), n, 0.25);
        let values: Vec<f32> = values.iter().map(|v| 1.0 + v).collect();
        let mut shape = vec![1; rank - axis];
        shape[0] = n;
        Literal::tensor(Tensor::from_slice(&shape, &values).expect("one value a channel"))
    }

    /// Multiplies, divides, or shifts channels.
    fn affine(&mut self, x: ValueId, axis: usize, form: usize) -> mil::Result<ValueId> {
        let shape = self.shape(x);
        let n = shape[axis];
        if form % 5 == 4 && axis == 1 && (3..=5).contains(&shape.len()) {
            let [mean, variance, gamma] = [(); 3].map(|()| self.channels(1, 0, n));
            let op = self.f.op(OpKind::BatchNorm).arg("x", x).arg("mean", mean);
            return op.arg("variance", variance).arg("gamma", gamma).result();
        }
        let kinds = [OpKind::Add, OpKind::Mul, OpKind::Sub, OpKind::RealDiv];
        let constant = self.channels(shape.len(), axis, n);
        self.f.op(kinds[form % kinds.len()]).arg("x", x).arg("y", constant).result()
    }

    /// A linear layer or product with a constant, with constants around it.
    fn layer(&mut self, x: ValueId, last: usize, i: Instruction) -> mil::Result<ValueId> {
        let rank = self.shape(x).len();
        let x = if i.form.is_multiple_of(2) { x } else { self.affine(x, rank - 1, i.b)? };
        let out = [4, 8][i.b % 2];
        let turned = i.form.is_multiple_of(3);
        let w = self.weight(DType::F32, &if turned { [last, out] } else { [out, last] })?;
        let made = if i.form % 3 == 2 {
            self.f.op(OpKind::Linear).arg("x", x).arg("weight", w).result()?
        } else {
            let op = self.f.op(OpKind::Matmul).arg("x", x).arg("y", w);
            op.arg("transpose_y", Literal::bool(!turned)).result()?
        };
        let rank = self.shape(made).len();
        let made = self.affine(made, rank - 1, i.form)?;
        self.unary(OpKind::Tanh, made)
    }

    /// A convolution over `x` in rows of channels, with constants around it.
    fn conv(&mut self, x: ValueId, shape: &[usize], i: Instruction) -> mil::Result<ValueId> {
        let n: usize = shape.iter().product();
        let channels = if n.is_multiple_of(4) { 4 } else { 1 };
        let x = self.reshape(x, &[1, channels, -1])?;
        let x = if i.form.is_multiple_of(2) { x } else { self.affine(x, 1, i.b)? };
        let groups = if i.b.is_multiple_of(2) { 1 } else { channels };
        let transposed = i.form >= 9;
        // No more taps than positions.
        let taps = if i.b % 4 < 2 || n == channels as usize { 1 } else { 2 };
        let inner = channels as usize / if transposed { 1 } else { groups as usize };
        let sizes = if transposed { [inner, 4 / groups as usize, taps] } else { [4, inner, taps] };
        let w = self.weight(DType::F32, &sizes)?;
        let kind = if transposed { OpKind::ConvTranspose } else { OpKind::Conv };
        let pad = ["valid", "same"][i.form / 3 % 2];
        let op = self.f.op(kind).arg("x", x).arg("weight", w);
        let op = op.arg("pad_type", Literal::string(pad)).arg("groups", Literal::scalar(groups));
        let made = op.result()?;
        let made = self.affine(made, 1, i.form)?;
        self.unary(OpKind::Tanh, made)
    }

    /// Attention of `x` to itself, with or without caches, after bringing it to `[1, rows, H, D]`.
    fn attention(
        &mut self,
        x: ValueId,
        shape: &[usize],
        i: Instruction,
        positions: ValueId,
    ) -> mil::Result<ValueId> {
        let n: usize = shape.iter().product();
        let heads = [1, 2, 4][i.b % 3];
        if !n.is_multiple_of(self.rows * heads) {
            return self.unary(OpKind::Sigmoid, x);
        }
        let head = n / (self.rows * heads);
        let sizes = [1, self.rows as i32, heads as i32, -1];
        let query = self.reshape(x, &sizes)?;
        // With one group the first head's elements serve all heads.
        let grouped = i.form % 2 == 1;
        let groups = if grouped { 1 } else { heads };
        let key = if grouped {
            let op = self.f.op(OpKind::SliceBySize).arg("x", query);
            let op = op.arg("begin", Literal::vector(&[0i32; 4]));
            let size = [1, self.rows as i32, 1, head as i32];
            op.arg("size", Literal::vector(&size)).result()?
        } else {
            query
        };
        let caches = (!i.form.is_multiple_of(3)).then(|| {
            let dtype = if i.form % 3 == 1 { DType::F16 } else { DType::F32 };
            let ty = TensorType::new(dtype, [1, groups, CALLS * self.rows, head]);
            ["k_cache", "v_cache"].map(|name| self.f.input(name, Type::State(ty.clone())))
        });
        let window = (i.form >= 6).then(|| Literal::scalar(2i32));
        let made = self
            .f
            .op(OpKind::LlmAttention)
            .arg("query", query)
            .arg("key", key)
            .arg("value", key)
            .arg("positions", positions)
            .arg("scale", Literal::scalar(1.0 / (head as f32).sqrt()))
            .opt_arg("key_cache", caches.map(|c| c[0]))
            .opt_arg("value_cache", caches.map(|c| c[1]))
            .opt_arg("window", window)
            .result()?;
        self.reshape(made, &[1, self.rows as i32, -1])
    }
}

/// A storage type of rows of `len` elements.
fn weight_type(form: usize, len: usize) -> DType {
    let types: &[DType] = if len.is_multiple_of(32) {
        &[DType::F32, DType::F16, DType::Q8_0, DType::Q4_1, DType::Q4_0]
    } else {
        &[DType::F32, DType::F16, DType::Bf16]
    };
    types[form % types.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InterpreterBackend, check_case};
    use mil::eval::Arithmetic;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn they_are_valid_and_tame(program in random_program(10)) {
            let case = program.case();
            let backend = InterpreterBackend::new(Arithmetic::F32);
            prop_assert_eq!(check_case(&backend, &case), Ok(()));
        }
    }
}
