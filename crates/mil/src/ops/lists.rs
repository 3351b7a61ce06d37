//! Lists of tensors of one type, and classes by name.

use tensor::DType;

use super::shaping::sizes;
use super::{Domain, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Arg, Dim, OpError, TensorType, Type};

/// The item type and length of the list argument `ls`.
fn list<'a>(op: &OpView<'a>) -> Result<(&'a TensorType, Option<usize>), OpError> {
    match op.arg_type(op.required("ls")?) {
        Some(Type::List(item, length)) => match item.as_tensor() {
            Some(item) => Ok((item, *length)),
            None => Err(OpError::invalid(format!("\"ls\" is a list of {item}"))),
        },
        _ => Err(OpError::invalid("\"ls\" is not a list")),
    }
}

fn list_type(item: &TensorType, length: Option<usize>) -> Type {
    Type::List(Box::new(item.clone().into()), length)
}

fn items(cx: &EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
    match cx.value("ls")? {
        Value::List(items) => Ok(items),
        _ => Err(OpError::invalid("\"ls\" is not a list")),
    }
}

/// Checks that argument `name` is one integer.
fn check_index(op: &OpView<'_>, name: &str) -> Result<(), OpError> {
    match op.tensor(name)? {
        t if t.rank() == 0 => Ok(()),
        t => Err(OpError::invalid(format!("{name} {t} is not one integer"))),
    }
}

/// What stands in a list before anything is written: zeros, none of them along unknown sizes.
fn blank(item: &TensorType) -> Result<Value, OpError> {
    let shape: Vec<usize> = item.shape.iter().map(|d| d.fixed().unwrap_or(0)).collect();
    Ok(Array::zeros(item.dtype, &shape)?.into())
}

fn put(items: &mut Vec<Value>, index: i64, item: &TensorType, value: Value) -> Result<(), OpError> {
    let at = usize::try_from(index)
        .map_err(|_| OpError::invalid(format!("index {index} of a list is negative")))?;
    bounded(&[at])?;
    if at >= items.len() {
        items.resize(at + 1, blank(item)?);
    }
    items[at] = value;
    Ok(())
}

fn item(items: &[Value], index: i64) -> Result<&Value, OpError> {
    let found = usize::try_from(index).ok().and_then(|i| items.get(i));
    found.ok_or_else(|| {
        OpError::invalid(format!("index {index} is not in the {} items", items.len()))
    })
}

fn single(cx: &EvalCx<'_, '_>, name: &str) -> Result<i64, OpError> {
    match cx.array(name)?.ints()? {
        [n] => Ok(*n),
        many => Err(OpError::invalid(format!("{} integers as \"{name}\", not one", many.len()))),
    }
}

/// A list of `init_length` (1 by default) tensors of the element type that the constant string `dtype`
/// names (`fp32` by default) and of the constant sizes `elem_shape`; a string among them stands for a
/// size that is not known. The items are zeros. Whether the list may grow, as the constant
/// `dynamic_length` says, makes no difference here: every list grows when written behind its end.
pub(super) struct MakeList;

impl MakeList {
    fn item(op: &OpView<'_>) -> Result<TensorType, OpError> {
        let name = op.str("dtype")?.unwrap_or("fp32");
        let dtype = name.parse().map_err(|_| OpError::invalid(format!("dtype \"{name}\"")))?;
        let given = match op.required("elem_shape")? {
            Arg::List(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        let mut shape = Vec::new();
        for arg in given {
            let literal = op.function.const_arg(arg);
            let literal = literal
                .ok_or_else(|| OpError::invalid("an item of \"elem_shape\" is not a constant"))?;
            if literal.as_str().is_some() {
                shape.push(Dim::Unknown);
                continue;
            }
            let ints = literal.resolve(op.weights).and_then(crate::eval::tensor_ints);
            let ints = ints
                .ok_or_else(|| OpError::invalid("an item of \"elem_shape\" is not an integer"))?;
            shape.extend(sizes(&ints)?.into_iter().map(Dim::Fixed));
        }
        Ok(TensorType { dtype, shape })
    }
}

impl OpDef for MakeList {
    fn name(&self) -> &'static str {
        "make_list"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("init_length", Domain::Int).optional(),
                Param::new("dynamic_length", Domain::Bool).optional().constant(),
                Param::new("elem_shape", Domain::Any).constant().variadic(),
                Param::new("dtype", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let length = match (op.arg("init_length"), op.literal("init_length")) {
            (None, _) => Some(1),
            (Some(_), None) => None,
            _ => Some(sizes(&[op.int("init_length")?.unwrap_or(1)])?[0]),
        };
        Ok(vec![list_type(&Self::item(op)?, length)])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let given = cx.op.arg("init_length").map(|_| single(cx, "init_length")).transpose()?;
        let length = sizes(&[given.unwrap_or(1)])?;
        bounded(&length)?;
        Ok(vec![Value::List(vec![blank(&Self::item(&cx.op)?)?; length[0]])])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The number of items of the list `ls`.
pub(super) struct ListLength;

impl OpDef for ListLength {
    fn name(&self) -> &'static str {
        "list_length"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("ls", Domain::Any)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        list(op)?;
        Ok(vec![TensorType::scalar(DType::I32).into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let data = Data::Int(vec![items(cx)?.len() as i64]);
        Ok(vec![Array { dtype: DType::I32, shape: vec![], data }.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The list `ls` with `value` at `index`, longer if that is behind its end.
pub(super) struct ListWrite;

impl OpDef for ListWrite {
    fn name(&self) -> &'static str {
        "list_write"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("ls", Domain::Any),
                Param::new("index", Domain::Int),
                Param::new("value", Domain::Any),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let ((item, length), value) = (list(op)?, op.tensor("value")?);
        check_index(op, "index")?;
        if !value.compatible(item) {
            return Err(OpError::invalid(format!("value {value} in a list of {item}")));
        }
        Ok(vec![list_type(item, length)])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (item, index) = (list(&cx.op)?.0, single(cx, "index")?);
        let mut items = items(cx)?;
        put(&mut items, index, item, cx.value("value")?)?;
        Ok(vec![Value::List(items)])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The item `index` of the list `ls`.
pub(super) struct ListRead;

impl OpDef for ListRead {
    fn name(&self) -> &'static str {
        "list_read"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("ls", Domain::Any), Param::new("index", Domain::Int)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        check_index(op, "index")?;
        Ok(vec![list(op)?.0.clone().into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        Ok(vec![item(&items(cx)?, single(cx, "index")?)?.clone()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The items `indices` `[n]` of the list `ls`, stacked along a new first axis.
pub(super) struct ListGather;

impl OpDef for ListGather {
    fn name(&self) -> &'static str {
        "list_gather"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("ls", Domain::Any), Param::new("indices", Domain::Int)] }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let ((item, _), indices) = (list(op)?, op.tensor("indices")?);
        if indices.rank() != 1 {
            return Err(OpError::invalid(format!("indices {indices} are not a vector")));
        }
        let shape = [&indices.shape, &*item.shape].concat();
        Ok(vec![TensorType { dtype: item.dtype, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (items, indices) = (items(cx)?, cx.array("indices")?);
        let mut stacked = Array::clone(blank(list(&cx.op)?.0)?.array()?);
        let mut shape = None;
        let mut parts = Vec::new();
        for &index in indices.ints()? {
            let part = item(&items, index)?.array()?.clone();
            if *shape.get_or_insert(part.shape.clone()) != part.shape {
                return Err(OpError::invalid("items of different sizes"));
            }
            parts.push(part);
        }
        let shape = shape.unwrap_or_else(|| stacked.shape.clone());
        stacked.shape = [&[parts.len()], &*shape].concat();
        stacked.data = match stacked.data {
            Data::Bool(_) => {
                Data::Bool(parts.iter().map(|p| p.bools()).collect::<Result<Vec<_>, _>>()?.concat())
            }
            Data::Int(_) => {
                Data::Int(parts.iter().map(|p| p.ints()).collect::<Result<Vec<_>, _>>()?.concat())
            }
            _ => {
                let floats = parts.iter().map(|p| p.floats()).collect::<Result<Vec<_>, _>>()?;
                Data::Float(floats.concat())
            }
        };
        Ok(vec![stacked.into()])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The list `ls` with the slices of `value` along its first axis at `indices` `[n]`.
pub(super) struct ListScatter;

impl OpDef for ListScatter {
    fn name(&self) -> &'static str {
        "list_scatter"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("ls", Domain::Any),
                Param::new("indices", Domain::Int),
                Param::new("value", Domain::Any),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let ((item, length), indices) = (list(op)?, op.tensor("indices")?);
        let value = op.tensor("value")?;
        let shape = [&indices.shape, &*item.shape].concat();
        let needed = TensorType { dtype: item.dtype, shape };
        if indices.rank() != 1 || !value.compatible(&needed) {
            return Err(OpError::invalid(format!("value {value} is not {needed}")));
        }
        Ok(vec![list_type(item, length)])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (mut items, item) = (items(cx)?, list(&cx.op)?.0);
        let (indices, value) = (cx.array("indices")?, cx.array("value")?);
        let shape = value.shape.get(1..).unwrap_or(&[]).to_vec();
        let size: usize = shape.iter().product();
        if value.shape.first() != Some(&indices.len()) {
            return Err(OpError::invalid("\"value\" has not a slice for each index"));
        }
        for (n, &index) in indices.ints()?.iter().enumerate() {
            let slice = value.pick(shape.clone(), n * size..(n + 1) * size);
            put(&mut items, index, item, slice.into())?;
        }
        Ok(vec![Value::List(items)])
    }

    fn flops(&self, _: &OpView<'_>, _: &[Type]) -> f64 {
        0.0
    }
}

/// The likeliest of the constant list `classes`, strings or integers, and a dictionary of all with
/// their `probabilities`, which have as many elements. Among equals the first is the likeliest.
pub(super) struct Classify;

impl OpDef for Classify {
    fn name(&self) -> &'static str {
        "classify"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("probabilities", Domain::Float),
                Param::new("classes", Domain::Any).constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let probabilities = op.tensor("probabilities")?;
        let (class, count) = match op.arg_type(op.required("classes")?) {
            Some(Type::List(class, Some(count))) => (class, *count),
            _ => return Err(OpError::invalid("\"classes\" is not a list")),
        };
        let named = class
            .as_tensor()
            .is_some_and(|t| t.rank() == 0 && matches!(t.dtype, DType::Str | DType::I64));
        let size = probabilities.fixed_shape().map(|s| s.iter().product::<usize>());
        if !named || count == 0 || size.is_some_and(|n| n != count) {
            return Err(OpError::invalid(format!(
                "{count} classes {class} for probabilities {probabilities}"
            )));
        }
        let probability = TensorType::scalar(DType::F64).into();
        Ok(vec![(**class).clone(), Type::Dict(class.clone(), Box::new(probability))])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (probabilities, classes) = (cx.array("probabilities")?, cx.value("classes")?);
        let Value::List(classes) = classes else {
            return Err(OpError::invalid("\"classes\" is not a list"));
        };
        let values = probabilities.floats()?;
        let mut best = 0;
        for (i, &p) in values.iter().enumerate() {
            if p > values[best] {
                best = i;
            }
        }
        let class = classes.get(best).filter(|_| classes.len() == values.len());
        let class = class.cloned().ok_or_else(|| {
            OpError::invalid(format!(
                "{} classes for {} probabilities",
                classes.len(),
                values.len()
            ))
        })?;
        let scalar = |&p: &f64| {
            Value::from(Array { dtype: DType::F64, shape: vec![], data: Data::Float(vec![p]) })
        };
        let entries = classes.into_iter().zip(values.iter().map(scalar)).collect();
        Ok(vec![class, Value::Dict(entries)])
    }

    /// One for each class.
    fn flops(&self, op: &OpView<'_>, _: &[Type]) -> f64 {
        op.tensor("probabilities").map_or(0.0, |t| super::elements(&[t.clone().into()]))
    }
}
