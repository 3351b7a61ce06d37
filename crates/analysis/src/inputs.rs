//! What a function of a Core ML program is given: from files, zeros or random numbers, checked against its types.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use fastrand::Rng;
use mil::eval::{Array, Data, Value};
use mil::package::{Kind, Package, Shapes};
use mil::{Dim, Function, TensorType};
use tensor::{DType, Tensor, element_count};

use crate::error::{Context, Result, bail, ensure};
use crate::npy;

/// Random integers go up to this: they are ids or positions in most models, which any of them has.
const LARGEST_INTEGER: i128 = 9;

/// Most elements of an input made here.
const LARGEST: usize = 1 << 30;

/// An argument `NAME=SOURCE`, or `zeros` or `random` for every input that no other argument names.
#[derive(Clone, Debug)]
pub struct InputArg {
    name: Option<String>,
    source: Source,
}

#[derive(Clone, PartialEq, Debug)]
enum Source {
    /// A file that [`npy::read`] reads.
    File(String),
    /// Numbers: all elements in their order, or one for each step.
    Numbers(Vec<f64>),
    /// Zeros of that shape, or of the default one.
    Zeros(Option<Vec<usize>>),
    /// Random numbers of that shape, or of the default one.
    Random(Option<Vec<usize>>),
}

impl InputArg {
    /// The input's name, if the argument has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl FromStr for InputArg {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, String> {
        let usage = "is not NAME=FILE.npy, NAME=FILE.npz:ARRAY, NAME=1,2,3, NAME=zeros[:2x3], NAME=random[:2x3], \
                     zeros or random";
        match argument {
            "zeros" => return Ok(InputArg { name: None, source: Source::Zeros(None) }),
            "random" => return Ok(InputArg { name: None, source: Source::Random(None) }),
            _ => {}
        }
        let (name, source) = argument.split_once('=').ok_or(usage)?;
        if name.is_empty() || source.is_empty() {
            return Err(usage.to_owned());
        }
        let (word, shape) = match source.split_once(':') {
            Some((word, shape)) => (word, Some(shape)),
            None => (source, None),
        };
        let sizes = |s: &str| s.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>();
        let made = matches!(word, "zeros" | "random");
        let shape = shape.filter(|_| made).map(sizes).transpose().map_err(|_| usage)?;
        let source = match word {
            "zeros" => Source::Zeros(shape),
            "random" => Source::Random(shape),
            _ => match source.split(',').map(|n| n.trim().parse()).collect() {
                Ok(numbers) => Source::Numbers(numbers),
                Err(_) => Source::File(source.to_owned()),
            },
        };
        Ok(InputArg { name: Some(name.to_owned()), source })
    }
}

/// One input of the function, ready for every step.
struct Input {
    name: String,
    ty: TensorType,
    source: Prepared,
}

enum Prepared {
    /// The same in every step.
    Same(Value),
    /// One for each step.
    Each(Vec<Value>),
    /// Random numbers of that shape, new in each step.
    Random(Vec<usize>),
}

/// The inputs of a run.
pub struct Inputs {
    inputs: Vec<Input>,
    rng: Rng,
    /// What symbolic sizes stand for.
    pub sizes: BTreeMap<String, usize>,
}

impl Inputs {
    /// The inputs that `arguments` give to function `name` for `steps` steps. A file whose array has `steps`
    /// as one more axis in front has one input for each step; so have `steps` numbers for an input of one.
    ///
    /// # Errors
    /// One that lists all missing inputs with their types; an argument of an unknown name or given twice; a
    /// file that cannot be read; a type or shape that the input does not have.
    pub fn new(
        package: &Package,
        name: &str,
        arguments: &[InputArg],
        steps: usize,
        seed: u64,
    ) -> Result<Self> {
        let function = package.program.functions.get(name).with_context(|| {
            let known: Vec<&str> = package.program.functions.keys().map(String::as_str).collect();
            format!("no function \"{name}\" (there is {})", known.join(", "))
        })?;
        let types = types(function);
        let arguments = complete(&types, arguments)?;
        let shapes = shapes(package, name);
        let mut sizes = BTreeMap::new();
        let mut files = BTreeMap::new();
        // Files first: they fix the sizes that zeros and random numbers follow.
        for &(name, source) in &arguments {
            let ty = types[name];
            let place_of = || format!("input {name}");
            let array = match source {
                Source::File(place) => npy::read(place).with_context(place_of)?,
                Source::Numbers(numbers) => listed(numbers, ty, steps).with_context(place_of)?,
                Source::Zeros(_) | Source::Random(_) => continue,
            };
            let source = prepared(&array, ty, steps).with_context(place_of)?;
            let first = match &source {
                Prepared::Each(values) => values.first(),
                Prepared::Same(value) => Some(value),
                Prepared::Random(_) => None,
            };
            if let Some(Value::Array(array)) = first {
                check(ty, &array.shape, shapes.get(name), &mut sizes).with_context(place_of)?;
            }
            files.insert(name, source);
        }
        let mut inputs = Vec::new();
        for (name, source) in arguments {
            let ty = types[name];
            let place_of = || format!("input {name}");
            let mut made = |shape: &Option<Vec<usize>>| -> Result<Vec<usize>> {
                let known = shapes.get(name);
                let shape = shape.clone().map_or_else(|| default_shape(ty, known, &sizes), Ok)?;
                let small = element_count(&shape).is_some_and(|n| n <= LARGEST);
                ensure!(small, "{shape:?} is too large");
                check(ty, &shape, known, &mut sizes)?;
                Ok(shape)
            };
            let source = match source {
                Source::File(_) | Source::Numbers(_) => files.remove(name),
                Source::Zeros(shape) => {
                    let shape = made(shape).with_context(place_of)?;
                    Some(Prepared::Same(zeros(ty.dtype, &shape).with_context(place_of)?.into()))
                }
                Source::Random(shape) => {
                    Some(Prepared::Random(made(shape).with_context(place_of)?))
                }
            };
            let source = source.with_context(|| format!("input {name} is given twice"))?;
            inputs.push(Input { name: name.to_owned(), ty: ty.clone(), source });
        }
        Ok(Inputs { inputs, rng: Rng::with_seed(seed), sizes })
    }

    /// The inputs of step `step`, by name. Steps are asked for in order.
    pub fn step(&mut self, step: usize) -> BTreeMap<String, Value> {
        let rng = &mut self.rng;
        let mut value = |input: &Input| match &input.source {
            Prepared::Same(value) => value.clone(),
            Prepared::Each(values) => values[step].clone(),
            Prepared::Random(shape) => random(input.ty.dtype, shape, rng).into(),
        };
        self.inputs.iter().map(|input| (input.name.clone(), value(input))).collect()
    }
}

/// The types of inputs that are given, by name: those that are no states.
fn types(function: &Function) -> BTreeMap<&str, &TensorType> {
    let typed = |&v| Some((function.values[v].name.as_str(), function.tensor_ty(v)?));
    function.inputs.iter().filter_map(typed).collect()
}

/// The source of each input, in the order of the arguments, which name every input once and nothing else.
fn complete<'a>(
    types: &BTreeMap<&'a str, &TensorType>,
    arguments: &'a [InputArg],
) -> Result<Vec<(&'a str, &'a Source)>> {
    let (mut given, mut sources, mut rest) = (BTreeSet::new(), Vec::new(), None);
    for InputArg { name, source } in arguments {
        let Some(name) = name else {
            ensure!(rest.replace(source).is_none(), "the other inputs are given twice");
            continue;
        };
        if !types.contains_key(name.as_str()) {
            let known: Vec<&str> = types.keys().copied().collect();
            bail!("no input \"{name}\" (there is {})", known.join(", "));
        }
        ensure!(given.insert(name.as_str()), "input {name} is given twice");
        sources.push((name.as_str(), source));
    }
    let missing = types.iter().filter(|(name, _)| !given.contains(*name));
    if let Some(source) = rest {
        sources.extend(missing.map(|(&name, _)| (name, source)));
        return Ok(sources);
    }
    let missing: Vec<String> = missing.map(|(name, ty)| format!("{name} ({ty})")).collect();
    ensure!(missing.is_empty(), "missing inputs: {}", missing.join(", "));
    Ok(sources)
}

/// The shapes that the model's description lets inputs have.
fn shapes(package: &Package, name: &str) -> BTreeMap<String, Shapes> {
    // A program whose interface Core ML cannot have still runs by its types.
    let inputs = package.interface(name).map(|i| i.inputs).unwrap_or_default();
    let shaped = inputs.into_iter().filter_map(|f| match f.kind {
        Kind::Array(_, shapes) => Some((f.name, shapes)),
        _ => None,
    });
    shaped.collect()
}

/// The shape of an input that no file gives: fixed and known sizes, else the description's default.
fn default_shape(
    ty: &TensorType,
    shapes: Option<&Shapes>,
    sizes: &BTreeMap<String, usize>,
) -> Result<Vec<usize>> {
    let default = match shapes {
        Some(
            Shapes::Fixed(default)
            | Shapes::Range { default, .. }
            | Shapes::Enumerated { default, .. },
        ) => default.as_slice(),
        None => &[],
    };
    let size = |(i, dim): (usize, &Dim)| {
        let known = match dim {
            Dim::Fixed(n) => Some(*n),
            Dim::Symbol(name) => sizes.get(&**name).copied(),
            Dim::Unknown => None,
        };
        let known = known.or_else(|| default.get(i).and_then(|&n| usize::try_from(n).ok()));
        known.with_context(|| format!("size {dim} of {ty} is open: give it as zeros:2x3"))
    };
    ty.shape.iter().enumerate().map(size).collect()
}

/// Checks a shape against the type and the description; `sizes` collects what symbols stand for.
fn check(
    ty: &TensorType,
    shape: &[usize],
    shapes: Option<&Shapes>,
    sizes: &mut BTreeMap<String, usize>,
) -> Result<()> {
    let fits = fits(ty, shape, sizes);
    ensure!(fits, "shape {shape:?} is not that of {ty}");
    let allowed = match shapes {
        Some(Shapes::Range { ranges, .. }) => shape
            .iter()
            .zip(ranges)
            .all(|(&n, (low, high))| n as u64 >= *low && high.is_none_or(|high| n as u64 <= high)),
        Some(Shapes::Enumerated { shapes, .. }) => {
            let same = |s: &Vec<i64>| s.iter().copied().eq(shape.iter().map(|&n| n as i64));
            shapes.iter().any(same)
        }
        Some(Shapes::Fixed(_)) | None => true,
    };
    ensure!(allowed, "shape {shape:?} is none that the model takes: {}", described(shapes));
    Ok(())
}

/// What the symbols of `function`'s inputs stand for, given these.
///
/// # Errors
/// When one does not have its type.
pub(crate) fn sizes(
    function: &Function,
    given: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, usize>> {
    let mut sizes = BTreeMap::new();
    for (name, ty) in types(function) {
        if let Some(Value::Array(array)) = given.get(name) {
            let fits = fits(ty, &array.shape, &mut sizes);
            ensure!(fits, "input {name}: shape {:?} is not that of {ty}", array.shape);
        }
    }
    Ok(sizes)
}

/// Whether a shape is one of `ty`, given what symbols stand for.
fn fits(ty: &TensorType, shape: &[usize], sizes: &mut BTreeMap<String, usize>) -> bool {
    let same = |(&n, dim): (&usize, &Dim)| match dim {
        Dim::Fixed(size) => n == *size,
        Dim::Symbol(name) => *sizes.entry(name.to_string()).or_insert(n) == n,
        Dim::Unknown => true,
    };
    shape.len() == ty.rank() && shape.iter().zip(&ty.shape).all(same)
}

/// Shapes other than the one of the type, for people.
pub fn described(shapes: Option<&Shapes>) -> String {
    match shapes {
        Some(Shapes::Range { ranges, .. }) => {
            let range = |(low, high): &(u64, Option<u64>)| match high {
                Some(high) if high == low => low.to_string(),
                Some(high) => format!("{low}..{high}"),
                None => format!("{low}.."),
            };
            format!("[{}]", ranges.iter().map(range).collect::<Vec<_>>().join(", "))
        }
        Some(Shapes::Enumerated { shapes, .. }) => {
            shapes.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(" or ")
        }
        Some(Shapes::Fixed(_)) | None => String::new(),
    }
}

/// A file's array as one value, or as one for each step.
fn prepared(array: &Array, ty: &TensorType, steps: usize) -> Result<Prepared> {
    let typed = converted(array, ty.dtype)?;
    let each = steps > 1
        && typed.shape.first() == Some(&steps)
        && !fits(ty, &typed.shape, &mut BTreeMap::new());
    if !each {
        return Ok(Prepared::Same(typed.into()));
    }
    let tensor = typed.to_tensor()?;
    let shape = &typed.shape[1..];
    let len = tensor.bytes().len() / steps;
    let slice = |step: usize| -> Result<Value> {
        let bytes =
            tensor.bytes().slice(step * len..(step + 1) * len).context("bytes of a step")?;
        Ok(Array::from_tensor(&Tensor::new(ty.dtype, shape, bytes)?)?.into())
    };
    Ok(Prepared::Each((0..steps).map(slice).collect::<Result<_>>()?))
}

/// Numbers as the input of that type, or as one input for each step.
fn listed(numbers: &[f64], ty: &TensorType, steps: usize) -> Result<Array> {
    let shape = ty.fixed_shape().context("numbers need an input of fixed shape; give a file")?;
    let elements = element_count(&shape).unwrap_or(usize::MAX);
    let shape = match numbers.len() {
        n if n == elements => shape,
        n if n == steps && elements == 1 => [&[steps], &shape[..]].concat(),
        n => bail!("{n} numbers for {ty}, which has {elements} elements"),
    };
    let whole = numbers.iter().all(|n| n.fract() == 0.0 && n.abs() < 2f64.powi(53));
    let data = match ty.dtype {
        DType::Bool => Data::Bool(numbers.iter().map(|&n| n != 0.0).collect()),
        d if d.is_int() => {
            ensure!(whole, "whole numbers are wanted for {ty}");
            Data::Int(numbers.iter().map(|&n| n as i64).collect())
        }
        _ => Data::Float(numbers.to_vec()),
    };
    Ok(Array { dtype: ty.dtype, shape, data })
}

/// The array in the element type of an input: floats are rounded to it, integers must fit.
pub(crate) fn converted(array: &Array, dtype: DType) -> Result<Array> {
    let same_kind = match &array.data {
        Data::Float(_) => dtype.is_float(),
        Data::Int(values) => {
            if let Some((low, high)) = dtype.int_range()
                && let Some(v) = values.iter().find(|v| !(low..=high).contains(&i128::from(**v)))
            {
                bail!("{v} does not fit {dtype}");
            }
            dtype.is_int()
        }
        Data::Bool(_) => dtype == DType::Bool,
        Data::Str(_) => false,
    };
    ensure!(same_kind, "elements are {}, not {dtype}", array.dtype);
    let typed = Array { dtype, ..array.clone() };
    Ok(Array::from_tensor(&typed.to_tensor()?)?)
}

fn zeros(dtype: DType, shape: &[usize]) -> Result<Array> {
    Ok(Array::from_tensor(&Tensor::zeros(dtype, shape)?)?)
}

/// Floats of -1 to 1, small integers, or truth values.
fn random(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    let n: usize = shape.iter().product();
    let data = match dtype {
        DType::Bool => Data::Bool((0..n).map(|_| rng.bool()).collect()),
        d if d.is_int() => {
            let largest = d.int_range().map_or(0, |(_, high)| high).min(LARGEST_INTEGER);
            Data::Int((0..n).map(|_| rng.i64(0..=largest as i64)).collect())
        }
        // 11 bits, which half precision holds exactly.
        _ => Data::Float((0..n).map(|_| f64::from(rng.i32(-1024..1024)) / 1024.0).collect()),
    };
    Array { dtype, shape: shape.to_vec(), data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let source = |s: &str| s.parse::<InputArg>().map(|a| a.source);
        assert_eq!(source("x=zeros"), Ok(Source::Zeros(None)));
        assert_eq!(source("x=random:2x3"), Ok(Source::Random(Some(vec![2, 3]))));
        assert_eq!(source("x=a.npz:in0"), Ok(Source::File("a.npz:in0".into())));
        assert_eq!(source("x=1,-2.5"), Ok(Source::Numbers(vec![1.0, -2.5])));
        assert_eq!(source("x=1,b"), Ok(Source::File("1,b".into())));
        assert_eq!(source("random"), Ok(Source::Random(None)));
        assert_eq!(source("x=./zeros"), Ok(Source::File("./zeros".into())));
        for wrong in ["x", "=zeros", "x=", "x=zeros:2x", "x=random:-1"] {
            source(wrong).unwrap_err();
        }
    }

    #[test]
    fn numbers_fill_an_input_or_its_steps() {
        let one = TensorType::new(DType::I32, [1usize, 1]);
        let each = listed(&[5.0, 6.0], &one, 2).unwrap();
        assert_eq!((each.shape, each.data), (vec![2, 1, 1], Data::Int(vec![5, 6])));
        let pair = TensorType::new(DType::F16, [2usize]);
        assert_eq!(listed(&[0.5, 6.0], &pair, 2).unwrap().shape, [2]);
        for wrong in [&[0.5][..], &[1.0, 2.0, 3.0]] {
            listed(wrong, &one, 2).unwrap_err();
        }
    }

    #[test]
    fn floats_are_rounded_and_integers_must_fit() {
        let array = |dtype, data| Array { dtype, shape: vec![1], data };
        let half = converted(&array(DType::F32, Data::Float(vec![1.0 / 3.0])), DType::F16).unwrap();
        assert_eq!(half.data, Data::Float(vec![0.333_251_953_125]));
        let wide = array(DType::I64, Data::Int(vec![1 << 31]));
        let error = converted(&wide, DType::I32).unwrap_err().to_string();
        assert_eq!(error, "2147483648 does not fit int32");
        let error = converted(&wide, DType::F32).unwrap_err().to_string();
        assert_eq!(error, "elements are int64, not fp32");
    }

    #[test]
    fn random_numbers_are_of_their_type() {
        let mut rng = Rng::with_seed(7);
        let floats = random(DType::F16, &[100], &mut rng);
        assert!(floats.floats().unwrap().iter().all(|x| (-1.0..1.0).contains(x)));
        assert_eq!(converted(&floats, DType::F16).unwrap(), floats);
        let bits = random(DType::U1, &[100], &mut rng);
        assert!(bits.ints().unwrap().iter().all(|i| [0, 1].contains(i)));
    }
}
