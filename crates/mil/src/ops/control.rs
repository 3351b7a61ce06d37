//! Control flow: branches and loops, whose bodies are nested blocks.

use super::{Cost, Domain, Effect, OpDef, OpView, Param};
use crate::eval::{EvalCx, Value};
use crate::{Arg, Block, Dim, OpError, TensorType, Type, ValueId};

/// The most rounds of a loop; one that goes on is taken for endless.
const MAX_ROUNDS: usize = 1 << 24;

/// The type of a value that is of either type: sizes that differ are unknown.
fn either(a: &Type, b: &Type) -> Result<Type, OpError> {
    let mismatch = || OpError::invalid(format!("a value is {a} or {b}"));
    Ok(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Type::Tensor(a), Type::Tensor(b)) if a.dtype == b.dtype && a.rank() == b.rank() => {
            let dims = a.shape.iter().zip(&b.shape);
            let shape = dims.map(|(a, b)| if a == b { a.clone() } else { Dim::Unknown });
            TensorType { dtype: a.dtype, shape: shape.collect() }.into()
        }
        (Type::List(a, n), Type::List(b, m)) => {
            Type::List(Box::new(either(a, b)?), if n == m { *n } else { None })
        }
        _ => return Err(mismatch()),
    })
}

/// The two nested blocks.
fn blocks<'a>(op: &OpView<'a>) -> Result<[&'a Block; 2], OpError> {
    match op.blocks {
        [a, b] => Ok([a, b]),
        others => Err(OpError::invalid(format!("{} nested blocks, not two", others.len()))),
    }
}

fn types<'a>(op: &OpView<'a>, values: &[ValueId]) -> Vec<&'a Type> {
    values.iter().map(|&v| op.function.ty(v)).collect()
}

/// The views of the operations in `block` with the types of their results.
fn inside<'a>(op: &OpView<'a>, block: &'a Block) -> impl Iterator<Item = (OpView<'a>, Vec<Type>)> {
    let (function, weights) = (op.function, op.weights);
    block.ops.iter().map(move |&id| {
        let inner = &function.ops[id];
        let results = inner.outputs.iter().map(|&v| function.ty(v).clone()).collect();
        (OpView::new(function, weights, inner), results)
    })
}

/// The strongest effect of what stands in the nested blocks.
fn effect(op: &OpView<'_>) -> Effect {
    let mut strongest = Effect::Pure;
    for (inner, _) in op.blocks.iter().flat_map(|block| inside(op, block)) {
        strongest = match (strongest, inner.kind.def().effect(&inner)) {
            (Effect::WritesState, _) | (_, Effect::WritesState) => Effect::WritesState,
            (Effect::Random, _) | (_, Effect::Random) => Effect::Random,
            (Effect::ReadsState, _) | (_, Effect::ReadsState) => Effect::ReadsState,
            (Effect::Pure, Effect::Pure) => Effect::Pure,
        };
    }
    strongest
}

fn block_cost(op: &OpView<'_>, block: &Block) -> Cost {
    inside(op, block).fold(Cost::default(), |sum, (inner, results)| {
        let cost = inner.kind.def().cost(&inner, &results);
        Cost { flops: sum.flops + cost.flops, bytes: sum.bytes + cost.bytes }
    })
}

fn truth(value: &Value) -> Result<bool, OpError> {
    match value.array()?.bools()? {
        [truth] => Ok(*truth),
        many => Err(OpError::invalid(format!("{} truth values where one is needed", many.len()))),
    }
}

fn is_truth(ty: &Type) -> bool {
    *ty == Type::Tensor(TensorType::scalar(tensor::DType::Bool))
}

/// The results of the first nested block if the scalar `pred` holds, else those of the second.
/// Neither block has parameters; sizes in which their results differ are unknown.
pub(super) struct Cond;

impl OpDef for Cond {
    fn name(&self) -> &'static str {
        "cond"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("pred", Domain::Bool)] }
    }

    fn effect(&self, op: &OpView<'_>) -> Effect {
        effect(op)
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let [yes, no] = blocks(op)?;
        let pred = op.tensor("pred")?;
        if pred.rank() != 0 {
            return Err(OpError::invalid(format!("pred {pred} is not one truth value")));
        }
        if !yes.params.is_empty() || !no.params.is_empty() {
            return Err(OpError::invalid("a branch takes no values"));
        }
        if yes.outputs.len() != no.outputs.len() {
            return Err(OpError::invalid(format!(
                "branches of {} and {} results",
                yes.outputs.len(),
                no.outputs.len()
            )));
        }
        let pairs = types(op, &yes.outputs).into_iter().zip(types(op, &no.outputs));
        pairs.map(|(a, b)| either(a, b)).collect()
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let branch = if truth(&cx.value("pred")?)? { 0 } else { 1 };
        cx.run_block(branch, Vec::new())
    }

    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        self.cost(op, results).flops
    }

    /// That of the dearer branch.
    fn cost(&self, op: &OpView<'_>, _: &[Type]) -> Cost {
        let costs = op.blocks.iter().map(|block| block_cost(op, block));
        costs.fold(Cost::default(), |a, b| Cost {
            flops: a.flops.max(b.flops),
            bytes: a.bytes.max(b.bytes),
        })
    }
}

/// A loop over `loop_vars`: as long as the first nested block, given their values, says true, the
/// second one makes the next ones of them. The results are the last values. A size that changes from
/// round to round must be unknown in the blocks' parameters.
pub(super) struct WhileLoop;

impl WhileLoop {
    fn vars<'a>(op: &OpView<'a>) -> Result<Vec<&'a Type>, OpError> {
        let items = match op.required("loop_vars")? {
            Arg::List(items) => items.as_slice(),
            single => std::slice::from_ref(single),
        };
        let types = items.iter().map(|a| op.arg_type(a)).collect::<Option<_>>();
        types.ok_or_else(|| OpError::invalid("a list in \"loop_vars\""))
    }
}

impl OpDef for WhileLoop {
    fn name(&self) -> &'static str {
        "while_loop"
    }

    fn params(&self) -> &'static [Param] {
        const { &[Param::new("loop_vars", Domain::Any).variadic()] }
    }

    fn effect(&self, op: &OpView<'_>) -> Effect {
        effect(op)
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let ([condition, body], vars) = (blocks(op)?, Self::vars(op)?);
        if !matches!(*types(op, &condition.outputs), [ty] if is_truth(ty)) {
            return Err(OpError::invalid("the condition does not make one truth value"));
        }
        let next = types(op, &body.outputs);
        for (what, values) in [
            ("the condition takes", types(op, &condition.params)),
            ("the body takes", types(op, &body.params)),
            ("the body makes", next.clone()),
        ] {
            let fits = values.len() == vars.len()
                && values.iter().zip(&vars).all(|(a, b)| a.compatible(b));
            if !fits {
                return Err(OpError::invalid(format!(
                    "{what} {}, but loop_vars are {}",
                    list(&values),
                    list(&vars)
                )));
            }
        }
        vars.into_iter().zip(next).map(|(first, next)| either(first, next)).collect()
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let mut values = match cx.value("loop_vars")? {
            Value::List(items) => items,
            single => vec![single],
        };
        for _ in 0..MAX_ROUNDS {
            let [goes_on] = &*cx.run_block(0, values.clone())? else {
                return Err(OpError::invalid("the condition does not make one truth value"));
            };
            if !truth(goes_on)? {
                return Ok(values);
            }
            values = cx.run_block(1, values)?;
        }
        Err(OpError::limit(format!("a loop of more than {MAX_ROUNDS} rounds")))
    }

    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        self.cost(op, results).flops
    }

    /// That of one round: how many there will be is not known.
    fn cost(&self, op: &OpView<'_>, _: &[Type]) -> Cost {
        let costs = op.blocks.iter().map(|block| block_cost(op, block));
        costs.fold(Cost::default(), |a, b| Cost {
            flops: a.flops + b.flops,
            bytes: a.bytes + b.bytes,
        })
    }
}

fn list(types: &[&Type]) -> String {
    let texts: Vec<String> = types.iter().map(|t| t.to_string()).collect();
    format!("({})", texts.join(", "))
}
