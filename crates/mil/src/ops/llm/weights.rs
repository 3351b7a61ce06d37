//! Operations on stored weights: linear layers, embedding rows, dequantisation.

use tensor::DType;

use crate::eval::{Array, Data, EvalCx, Value, matmul_nt};
use crate::ops::emit::{Emit, value};
use crate::ops::{Domain, Param, bytes, elements};
use crate::{Cost, FunctionBuilder, OpDef, OpError, OpKind, OpView, TensorType, Type, ValueId};

/// `x weight^T + bias`: a linear layer whose weight may be block-quantised.
///
/// `x` float `[..., in]`, `weight` `[out, in]`, `bias` `[out]`; the result is `[..., out]` of
/// `x`'s element type.
pub(in crate::ops) struct LlmLinear;

impl OpDef for LlmLinear {
    fn name(&self) -> &'static str {
        "llm.linear"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("weight", Domain::Weight),
                Param::new("bias", Domain::Weight).optional(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let x = op.tensor("x")?;
        Ok(vec![linear_type(x, op.tensor("weight")?, op.opt_tensor("bias")?)?.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let (x, weight, bias) = (cx.array("x")?, cx.array("weight")?, cx.opt_array("bias")?);
        let bias = bias.as_deref().map(Array::floats).transpose()?;
        Ok(vec![eval_linear(&x, &weight, bias)?.into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let dtype = op.tensor("x")?.dtype;
        let x = op.required("x")?.clone();
        let mut e = Emit::new(b);
        let weight = e.plain_weight(op, "weight", dtype)?;
        let mut args = vec![("x", x), ("weight", weight)];
        if op.arg("bias").is_some() {
            args.push(("bias", e.plain_weight(op, "bias", dtype)?));
        }
        e.op(OpKind::Linear, args).map(value)
    }

    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        linear_flops(op, results)
    }
}

/// The type of a linear layer's result.
pub(in crate::ops) fn linear_type(
    x: &TensorType,
    weight: &TensorType,
    bias: Option<&TensorType>,
) -> Result<TensorType, OpError> {
    let fits = weight.rank() == 2 && x.shape.last().is_some_and(|d| d.compatible(&weight.shape[1]));
    if !fits {
        return Err(OpError::invalid(format!(
            "weight {weight} is not [out, in] for the last axis of x {x}"
        )));
    }
    if let Some(bias) = bias
        && !(bias.rank() == 1 && bias.shape[0].compatible(&weight.shape[0]))
    {
        return Err(OpError::invalid(format!("bias {bias} is not [out] for weight {weight}")));
    }
    let mut shape = x.shape.clone();
    shape.pop();
    shape.push(weight.shape[0].clone());
    Ok(TensorType { dtype: x.dtype, shape })
}

/// `x weight^T + bias` over the last axis of `x`.
pub(in crate::ops) fn eval_linear(
    x: &Array,
    weight: &Array,
    bias: Option<&[f64]>,
) -> Result<Array, OpError> {
    let &[out, inner] = &weight.shape[..] else {
        return Err(OpError::invalid(format!(
            "weight of shape {:?} is not [out, in]",
            weight.shape
        )));
    };
    if x.shape.last() != Some(&inner) || bias.is_some_and(|b| b.len() != out) {
        return Err(OpError::invalid(format!(
            "x of shape {:?} or the bias does not fit weight of shape {:?}",
            x.shape, weight.shape
        )));
    }
    let rows = x.shape.iter().rev().skip(1).product();
    let y = matmul_nt(x.floats()?, weight.floats()?, bias, [rows, inner, out]);
    let mut shape = x.shape.clone();
    shape.pop();
    shape.push(out);
    Ok(Array { dtype: x.dtype, shape, data: Data::Float(y) })
}

/// Two for each weight and row.
pub(in crate::ops) fn linear_flops(op: &OpView<'_>, results: &[Type]) -> f64 {
    let inner = op.tensor("weight").ok().and_then(|w| w.shape.last()?.fixed()).unwrap_or(1);
    2.0 * elements(results) * inner as f64
}

/// The element type that the constant string `dtype` names, `fp32` by default.
fn float_dtype(op: &OpView<'_>) -> Result<DType, OpError> {
    let name = op.str("dtype")?.unwrap_or("fp32");
    name.parse()
        .ok()
        .filter(|d: &DType| d.is_float())
        .ok_or_else(|| OpError::invalid(format!("dtype \"{name}\" is not a float type")))
}

/// Rows of an embedding table, which may be block-quantised.
///
/// `ids` integers of any shape, usually `[B, T]`, each in `0..vocab`; `weight` `[vocab, d]`;
/// `dtype` a constant float type's name, `fp32` by default. The result is `ids`' shape and `d`.
pub(in crate::ops) struct LlmEmbedding;

impl OpDef for LlmEmbedding {
    fn name(&self) -> &'static str {
        "llm.embedding"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("ids", Domain::Int),
                Param::new("weight", Domain::Weight),
                Param::new("dtype", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let (ids, weight) = (op.tensor("ids")?, op.tensor("weight")?);
        if weight.rank() != 2 {
            return Err(OpError::invalid(format!("weight {weight} is not [vocab, d]")));
        }
        let mut shape = ids.shape.clone();
        shape.push(weight.shape[1].clone());
        Ok(vec![TensorType { dtype: float_dtype(op)?, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let dtype = float_dtype(&cx.op)?;
        let ids = cx.array("ids")?;
        let (shape, rows) = (&ids.shape, ids.ints()?);
        let (d, values) = cx.rows("weight", rows)?;
        let shape = shape.iter().copied().chain([d]).collect();
        Ok(vec![Array { dtype, shape, data: Data::Float(values) }.into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let dtype = float_dtype(op)?;
        let ids = op.required("ids")?.clone();
        let mut e = Emit::new(b);
        // Floats are converted after the rows are chosen, which are few; blocks cannot be.
        let stored = op.tensor("weight")?.dtype;
        let table = if stored.is_float() { stored } else { dtype };
        let table = e.plain_weight(op, "weight", table)?;
        let axis = e.int(0);
        let rows = e.op(OpKind::Gather, [("x", table), ("indices", ids), ("axis", axis)])?;
        e.cast(rows, dtype).map(value)
    }

    /// No flops; only the rows in question are read.
    fn cost(&self, op: &OpView<'_>, results: &[Type]) -> Cost {
        let bits = op.tensor("weight").map_or(0.0, |w| w.dtype.bits());
        let ids = op.tensor("ids").map_or(0.0, |t| bytes(&[t.clone().into()]));
        Cost { flops: 0.0, bytes: ids + elements(results) * bits / 8.0 + bytes(results) }
    }
}

/// The float values of a weight, block-quantised or not.
///
/// `x` of any shape; `dtype` a constant float type's name, `fp32` by default. The result has `x`'s
/// shape.
pub(in crate::ops) struct LlmDequantize;

impl OpDef for LlmDequantize {
    fn name(&self) -> &'static str {
        "llm.dequantize"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Weight),
                Param::new("dtype", Domain::Str).optional().constant(),
            ]
        }
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let shape = op.tensor("x")?.shape.clone();
        Ok(vec![TensorType { dtype: float_dtype(op)?, shape }.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let dtype = float_dtype(&cx.op)?;
        let x = cx.array("x")?;
        let values = x.floats()?.to_vec();
        Ok(vec![Array { dtype, shape: x.shape.clone(), data: Data::Float(values) }.into()])
    }

    fn is_composite(&self) -> bool {
        true
    }

    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let mut e = Emit::new(b);
        let plain = e.plain_weight(op, "x", float_dtype(op)?)?;
        e.op(OpKind::Identity, [("x", plain)]).map(value)
    }
}
