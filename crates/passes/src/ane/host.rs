//! Programs for the host: parts of the source, and what the engine needs to know of positions.

use half::f16;
use mil::{
    Dim, FunctionBuilder, Literal, OpId, OpKind, Opset, Program, Result, TensorType, ValueDef,
    ValueId,
};
use tensor::{DType, Tensor, WeightStore};

/// Added to the scores of slots that are not attended. Its exponential is 0 in fp16, and adding it
/// to a score of fp16 does not overflow.
const MASKED: f64 = -1e4;

/// `ops` of function `name` as the program `main` that takes `inputs` and returns `outputs`.
pub(super) fn part(
    program: &Program,
    name: &str,
    ops: &[OpId],
    inputs: &[ValueId],
    outputs: &[ValueId],
) -> Result<Program> {
    let mut function = program.functions[name].clone();
    let constants = function.body.ops.iter().copied();
    let constants = constants.filter(|&op| function.ops[op].kind == OpKind::Const);
    function.body.ops = constants.chain(ops.iter().copied()).collect();
    function.body.outputs = outputs.to_vec();
    function.inputs = inputs.to_vec();
    function.attributes = Default::default();
    for &v in inputs {
        function.values[v].def = ValueDef::Param;
    }
    // Inputs are visible from the start, where a nested block may use a name that was given later.
    crate::rewrite::make_names_unique(&mut function);
    crate::rewrite::compact(&mut function);
    let mut part = Program {
        functions: [("main".to_owned(), function)].into(),
        weights: program.weights.clone(),
        ..Program::default()
    };
    let dead = crate::pass("dead_code").into_iter().collect::<Vec<_>>();
    crate::run(&mut part, &dead)?;
    Ok(part)
}

/// A tensor that follows from the positions `[S]` of a program's columns, -1 where there is no token.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Auxiliary {
    /// `[1, 1, S, slots]`: 1 where a column's key and value go, else 0.
    Written {
        /// Slots of the cache.
        slots: usize,
    },
    /// `[1, 1, 1, slots]`: 0 for slots that are written, else 1.
    Kept {
        /// Slots of the cache.
        slots: usize,
    },
    /// `[1, 1, S, slots]`: 0 where a column attends a slot, else [`MASKED`].
    Mask {
        /// Slots of the cache.
        slots: usize,
        /// How many positions are attended.
        window: Option<i64>,
    },
    /// `[1, 1, D, S]`: cosine or sine of position times frequency.
    Rotation {
        /// The bits of the frequency of each element.
        frequencies: Vec<u32>,
        /// Which of the two.
        sine: bool,
    },
}

impl Auxiliary {
    pub(super) fn label(&self) -> &'static str {
        match self {
            Auxiliary::Written { .. } => "written",
            Auxiliary::Kept { .. } => "kept",
            Auxiliary::Mask { .. } => "mask",
            Auxiliary::Rotation { sine: true, .. } => "sine",
            Auxiliary::Rotation { sine: false, .. } => "cosine",
        }
    }

    /// The program that makes it, `y` of `positions`, and its type.
    pub(super) fn program(&self, columns: usize) -> Result<(Program, TensorType)> {
        let mut store = WeightStore::new();
        let mut builder = FunctionBuilder::new("main", Opset::Ios18, &mut store);
        let b = &mut builder;
        let positions = b.input("positions", TensorType::new(DType::I32, [Dim::Fixed(columns)]));
        let y = match self {
            Auxiliary::Written { slots } => {
                let hit = written(b, positions, columns, *slots)?;
                cast(b, hit, "fp16", "y")?
            }
            Auxiliary::Kept { slots } => {
                let hit = written(b, positions, columns, *slots)?;
                let hit = cast(b, hit, "fp16", "hit")?;
                let any = b
                    .op(OpKind::ReduceMax)
                    .arg("x", hit)
                    .arg("axes", Literal::vector(&[2i32]))
                    .arg("keep_dims", Literal::bool(true))
                    .name("any")
                    .result()?;
                let one = Literal::scalar(f16::ONE);
                b.op(OpKind::Sub).arg("x", one).arg("y", any).name("y").result()?
            }
            Auxiliary::Mask { slots, window } => mask(b, positions, columns, *slots, *window)?,
            Auxiliary::Rotation { frequencies, sine } => {
                let row = reshape(b, positions, [1, 1, 1, columns as i32], "row")?;
                let row = cast(b, row, "fp32", "at")?;
                let table: Vec<f32> =
                    frequencies.iter().map(|&bits| f32::from_bits(bits)).collect();
                let table = constant(b, "frequencies", &[1, 1, table.len(), 1], &table)?;
                let angle =
                    b.op(OpKind::Mul).arg("x", row).arg("y", table).name("angle").result()?;
                let kind = if *sine { OpKind::Sin } else { OpKind::Cos };
                let wave = b.op(kind).arg("x", angle).name("wave").result()?;
                cast(b, wave, "fp16", "y")?
            }
        };
        let function = builder.finish(vec![y]);
        let ty = function.tensor_ty(y).cloned();
        let program = Program {
            functions: [("main".to_owned(), function)].into(),
            weights: store,
            ..Program::default()
        };
        mil::verify(&program)?;
        Ok((program, ty.unwrap_or_else(|| TensorType::new(DType::F16, [0usize; 0]))))
    }
}

fn constant<T: tensor::Element>(
    b: &mut FunctionBuilder<'_>,
    name: &str,
    shape: &[usize],
    values: &[T],
) -> Result<ValueId> {
    let tensor = Tensor::from_slice(shape, values);
    let tensor = tensor.map_err(|e| mil::Error::new(mil::ErrorKind::Bug, e.to_string()))?;
    Ok(b.constant(name, Literal::tensor(tensor)))
}

fn cast(b: &mut FunctionBuilder<'_>, x: ValueId, dtype: &str, name: &str) -> Result<ValueId> {
    b.op(OpKind::Cast).arg("x", x).arg("dtype", Literal::string(dtype)).name(name).result()
}

fn reshape(
    b: &mut FunctionBuilder<'_>,
    x: ValueId,
    shape: [i32; 4],
    name: &str,
) -> Result<ValueId> {
    b.op(OpKind::Reshape).arg("x", x).arg("shape", Literal::vector(&shape)).name(name).result()
}

/// The columns' positions `[1, 1, S, 1]` and the slots' `[1, 1, 1, slots]`.
fn axes(
    b: &mut FunctionBuilder<'_>,
    positions: ValueId,
    columns: usize,
    slots: usize,
) -> Result<[ValueId; 2]> {
    let rows = reshape(b, positions, [1, 1, columns as i32, 1], "rows")?;
    let numbers: Vec<i32> = (0..slots as i32).collect();
    Ok([rows, constant(b, "slots", &[1, 1, 1, slots], &numbers)?])
}

fn compare(
    b: &mut FunctionBuilder<'_>,
    kind: OpKind,
    x: ValueId,
    y: ValueId,
    name: &str,
) -> Result<ValueId> {
    b.op(kind).arg("x", x).arg("y", y).name(name).result()
}

fn written(
    b: &mut FunctionBuilder<'_>,
    positions: ValueId,
    columns: usize,
    slots: usize,
) -> Result<ValueId> {
    let [rows, slots] = axes(b, positions, columns, slots)?;
    compare(b, OpKind::Equal, slots, rows, "written")
}

fn mask(
    b: &mut FunctionBuilder<'_>,
    positions: ValueId,
    columns: usize,
    slots: usize,
    window: Option<i64>,
) -> Result<ValueId> {
    let [rows, slots] = axes(b, positions, columns, slots)?;
    let mut seen = compare(b, OpKind::LessEqual, slots, rows, "earlier")?;
    if let Some(window) = window {
        let width = Literal::scalar(window as i32);
        let first = b.op(OpKind::Sub).arg("x", rows).arg("y", width).name("before").result()?;
        let near = compare(b, OpKind::Greater, slots, first, "near")?;
        seen = compare(b, OpKind::LogicalAnd, seen, near, "seen")?;
    }
    let [zero, masked] = [0.0, MASKED].map(|x| Literal::scalar(f16::from_f64(x)));
    b.op(OpKind::Select).arg("cond", seen).arg("a", zero).arg("b", masked).name("y").result()
}
