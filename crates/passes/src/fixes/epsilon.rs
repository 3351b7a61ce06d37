//! Writes out the epsilon that rsqrt, log and inverse take if none is given.

use std::collections::{BTreeMap, BTreeSet};

use mil::{Arg, Literal, OpId, Opset, Program};
use tensor::DType;

use super::Attempt;
use super::emit::scalar;

/// In single precision where the operation set lets it differ from `x`, which is from iOS 17 on; in `x`'s type
/// before.
pub(super) fn apply(program: &mut Program, ops: &BTreeMap<String, BTreeSet<OpId>>) -> Attempt {
    let mut attempt = Attempt::default();
    for (name, ops) in ops {
        let Some(function) = program.functions.get_mut(name) else { continue };
        for &id in ops {
            let described = function.describe(id);
            let x = function.ops[id].arg("x");
            let own = match x {
                Some(Arg::Value(v)) => function.tensor_ty(*v).map(|t| t.dtype),
                _ => None,
            };
            let dtype = own.filter(|_| function.opset < Opset::Ios17).unwrap_or(DType::F32);
            let op = &mut function.ops[id];
            let epsilon = op.kind.default_epsilon().zip(op.kind.param_index("epsilon"));
            let Some((value, index)) = epsilon else { continue };
            let Ok(number) = scalar(dtype, value) else { continue };
            op.args[index] = Some(Arg::from(Literal::tensor(number)));
            attempt.applied.push((
                name.clone(),
                described,
                format!("epsilon = {:e}", value as f32),
            ));
        }
    }
    attempt
}
