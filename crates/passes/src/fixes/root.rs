//! Writes rsqrt as `pow(x + epsilon, -0.5)`, or as `1 / sqrt(x + epsilon)` where pow is refused; and sqrt as
//! `pow(x, 0.5)`.

use ane_model::CheckOptions;
use ane_model::chip::Acceptance;
use mil::eval::tensor_floats;
use mil::{Arg, OpError, OpKind};
use tensor::DType;

use super::emit::{Emit, scalar};
use super::operations::Rewritten;
use crate::rebuild::Site;

/// An epsilon that its type rounds to zero is left out: it is less than half of the type's smallest number, so that
/// it makes no difference but where `x` is zero, and there its reciprocal root has no finite value in that type.
pub(super) fn rewrite(
    site: &mut Site<'_, '_>,
    options: &CheckOptions<'_>,
) -> Result<Rewritten, OpError> {
    let view = site.view();
    let (mut x, dtype) = (Arg::clone(view.required("x")?), view.tensor("x")?.dtype);
    let default = view.kind.default_epsilon();
    let stated = if default.is_some() { view.float("epsilon")? } else { None };
    let added = stated.or(default).unwrap_or(0.0);
    let refused =
        options.chip.switches.pow.as_ref().is_some_and(|p| p.value == Acceptance::Refused);
    let sqrt = view.kind == OpKind::Sqrt;
    if sqrt && refused {
        return Ok(Rewritten::Kept("the chip refuses pow too".to_owned()));
    }
    let vanishes = tensor_floats(&scalar(dtype, added)?).is_some_and(|v| v == [0.0]);
    // Inside of rsqrt such an epsilon counts; as an operand the engine takes it for zero.
    let least = f64::from(half::f16::MIN_POSITIVE);
    if dtype == DType::F16 && added.abs() < least && !vanishes {
        let why = format!(
            "epsilon {:e} is below fp16's normal numbers: scale x and epsilon up",
            added as f32
        );
        return Ok(Rewritten::Kept(why));
    }
    let mut e = Emit::at(site);
    let sum = if vanishes { "x" } else { "x + epsilon" };
    if !vanishes {
        let added = e.scalar("epsilon", dtype, added)?;
        x = e.binary(OpKind::Add, x, added, "sum")?.into();
    }
    let (y, what) = if refused {
        let (one, root) = (e.scalar("one", dtype, 1.0)?, e.unary(OpKind::Sqrt, x, "root")?);
        (e.binary(OpKind::RealDiv, one, root, "inverse")?, format!("1 / sqrt({sum})"))
    } else {
        let exponent = if sqrt { 0.5 } else { -0.5 };
        let power = e.scalar("power", dtype, exponent)?;
        (e.binary(OpKind::Pow, x, power, "pow")?, format!("pow({sum}, {exponent})"))
    };
    Ok(Rewritten::Done(vec![y], what))
}
