//! Where the engine's arithmetic gives something else than the model means.

use mil::{OpKind, ValueId};
use tensor::DType;

use super::cx::OpCx;
use super::{Condition, DIRECT, Finding, Outcome, Path, Rule, Severity, claimed, measured};

const NUMBER: Rule = Rule {
    paths: &[Path::Direct, Path::CoreMl],
    outcome: Outcome::WrongResult,
    severity: Severity::Warning,
    symptom: "results differ from the CPU's, silently",
    code: None,
    ..DIRECT
};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "ane-subnormal-epsilon",
        title: "an epsilon below fp16's normal numbers is lost",
        symptom: "rsqrt(0) is infinite",
        evidence: &[
            claimed("Anemll Forge: below 6.1e-5"),
            claimed("CoreML-LLM: rsqrt and log with an epsilon below 2^-24"),
        ],
        fix: "scale what is under the root, and epsilon with it, above 6.1e-5",
        condition: Condition::Op(epsilon),
        ..NUMBER
    },
    Rule {
        id: "ane-fp16-range",
        title: "a factor is beyond what fp16 holds well",
        evidence: &[claimed(
            "CoreML-LLM: magnitudes above 6e4; hollance: above 1e2 loses precision",
        )],
        fix: "fold the factor into weights, in two steps if need be",
        condition: Condition::Op(large_factor),
        ..NUMBER
    },
    Rule {
        id: "ane-sum-overflow",
        title: "a sum of squares saturates",
        symptom: "the sum is infinite, the normalised value 0",
        evidence: &[
            measured("751K, M4 and M6: infinite from 32,768"),
            measured("ANEForge, M1: 32,758.8"),
            claimed(
                "Orion: RMSNorm by reduce_sum overflows for a mean square above 85 at width 768",
            ),
        ],
        fix: "divide by the largest magnitude first, or use reduce_mean of scaled values",
        condition: Condition::Op(sum_of_squares),
        ..NUMBER
    },
    Rule {
        id: "ane-exp-range",
        title: "nothing keeps the argument of exp small",
        severity: Severity::Info,
        symptom: "infinite above 11.09 in fp16",
        evidence: &[claimed("CoreML-LLM; hollance/neural-engine: fp16 everywhere")],
        fix: "subtract the maximum first, as softmax does",
        condition: Condition::Op(|op| {
            let half = op.result_type()?.dtype == DType::F16;
            let bounded = op
                .maker("x")
                .is_some_and(|m| matches!(m.kind, OpKind::Sub | OpKind::Clip | OpKind::Minimum));
            (op.kind() == OpKind::Exp && half && !bounded)
                .then(|| Finding::new("exp of what is not bounded"))
        }),
        ..NUMBER
    },
    Rule {
        id: "ane-softplus",
        title: "softplus of large arguments is 0",
        symptom: "0 from about 11 on",
        evidence: &[measured("Anemll Forge, M6: a fifth of the decays of a layer")],
        fix: "write relu(x) + log(1 + exp(-|x|))",
        condition: Condition::Op(|op| {
            let softplus = matches!(op.kind(), OpKind::Softplus | OpKind::SoftplusParametric);
            let from = softplus.then(|| op.chip().numerics.softplus_max.as_ref())??;
            Some(Finding::new(format!("{} is 0 from {from} on", op.kind().name())))
        }),
        ..NUMBER
    },
    Rule {
        id: "ane-mish",
        title: "mish is inexact",
        evidence: &[measured("apple/coremltools #2359")],
        fix: "write x * t / (t + 2) with t = e(e + 2), e = exp(min(x, 10))",
        condition: Condition::Op(|op| {
            let tanh_of_softplus = |name| {
                let tanh = op.maker(name).filter(|m| m.kind == OpKind::Tanh)?;
                match tanh.arg("x")? {
                    mil::Arg::Value(v) => op.cx.maker(*v).filter(|m| m.kind == OpKind::Softplus),
                    _ => None,
                }
            };
            let mish = op.kind() == OpKind::Mul
                && (tanh_of_softplus("x").or_else(|| tanh_of_softplus("y"))).is_some();
            mish.then(|| Finding::new("x * tanh(softplus(x))"))
        }),
        ..NUMBER
    },
    Rule {
        id: "ane-table-error",
        title: "the function is read from a table",
        severity: Severity::Info,
        symptom: "results differ from the exact function by up to the table's error",
        evidence: &[
            measured("751K, M4 and M6: 33 points, linear between"),
            measured("Anemll Forge: silu +-1e-3 near 0"),
        ],
        fix: "silu through tanh (x/2 * (1 + tanh(x/2))) is more exact",
        condition: Condition::Op(|op| {
            let error = op.chip().table_errors.get(op.kind().name())?;
            Some(Finding::new(format!("{} is off by up to {error}", op.kind().name())))
        }),
        ..NUMBER
    },
];

/// The float of a constant scalar argument.
fn scalar(op: &OpCx<'_>, name: &str) -> Option<f64> {
    let ty = op.view().opt_tensor(name).ok()??;
    (ty.rank() == 0 && ty.dtype.is_float()).then(|| op.view().float(name).ok())??
}

fn epsilon(op: &OpCx<'_>) -> Option<Finding> {
    use OpKind::*;
    let smallest = op.chip().numerics.smallest.as_ref()?;
    let small = |x: f64| x.abs() < smallest.value;
    let half = op.result_type()?.dtype == DType::F16;
    let value = match op.kind() {
        // Their default, 1e-12 and less, is no better.
        Rsqrt | Log | Inverse => scalar(op, "epsilon").filter(|&e| small(e))?,
        Add if op
            .users()
            .any(|u| matches!(u.kind, Rsqrt | Pow | Sqrt | Log | Inverse | RealDiv)) =>
        {
            let added = scalar(op, "x").or_else(|| scalar(op, "y"))?;
            Some(added).filter(|&e| e != 0.0 && small(e))?
        }
        _ => return None,
    };
    half.then(|| Finding::new(format!("epsilon {value:e}; the smallest number kept is {smallest}")))
}

fn large_factor(op: &OpCx<'_>) -> Option<Finding> {
    if !matches!(op.kind(), OpKind::Mul | OpKind::RealDiv) || op.result_type()?.dtype != DType::F16
    {
        return None;
    }
    let factor = scalar(op, "x").or_else(|| scalar(op, "y"))?;
    (factor.abs() > 6e4).then(|| Finding::new(format!("a factor of {factor}")))
}

/// Whether a value is `x * x` or `square(x)`.
fn is_square(op: &OpCx<'_>, value: ValueId) -> bool {
    op.cx.maker(value).is_some_and(|m| match m.kind {
        OpKind::Square => true,
        OpKind::Mul => m.arg("x") == m.arg("y"),
        _ => false,
    })
}

fn sum_of_squares(op: &OpCx<'_>) -> Option<Finding> {
    let squares = match op.kind() {
        OpKind::ReduceSumSquare | OpKind::ReduceL2Norm => true,
        OpKind::ReduceSum => is_square(op, op.value("x")?),
        _ => return None,
    };
    let ty = op.result_type()?;
    let (shape, saturation) = (op.shape("x")?, op.chip().numerics.saturation.as_ref()?);
    if !squares || ty.dtype != DType::F16 {
        return None;
    }
    let view = op.view();
    let axes = view.ints("axes").ok()?;
    let n: u64 = match axes {
        Some(axes) => {
            let axes = axes.iter().map(|&a| view.axis(a, shape.len()).ok());
            axes.collect::<Option<Vec<_>>>()?.into_iter().map(|a| shape[a]).product()
        }
        None => shape.iter().product(),
    };
    let rms = (saturation.value / n as f64).sqrt();
    // Activations of trained models reach tens; a limit above that is no danger.
    (rms < 64.0).then(|| {
        Finding::new(format!(
            "{n} squares saturate at {saturation}: for a root mean square above {rms:.1}"
        ))
    })
}
