//! Activation functions as the engine reads them: straight lines between the points of a table.
//!
//! What is published is the number of points (33) and the largest error of each function, not where
//! the points lie. The tables here are made so that they have those errors: over the widest range,
//! or the most octaves, for which equally spaced points keep within the published error.

use std::collections::BTreeMap;

use ane_model::Chip;
use ane_model::chip::{Fact, Unit};
use mil::OpKind;

/// How an argument is brought into a table's range.
#[derive(Clone, Copy, Debug)]
enum Reduction {
    /// Not at all: beyond the range the function is its asymptote (of `-x`, of `x`).
    Clamp(fn(f64) -> f64, fn(f64) -> f64),
    /// As [`Reduction::Clamp`] for positive arguments; `f(-x) = -f(x)`.
    Odd(fn(f64) -> f64),
    /// `x = m 2^e` with `e` a multiple of the octaves and `f(x)` from `f(m)` and `e`.
    Octaves(fn(f64, f64) -> f64),
    /// `2^x` by the whole octaves of `x`.
    Power,
    /// A quarter of the circle.
    Quarter,
}

/// A function that the engine has a table for.
struct Shape {
    kind: OpKind,
    exact: fn(f64) -> f64,
    reduction: Reduction,
}

const SHAPES: &[Shape] = &[
    Shape { kind: OpKind::Sigmoid, exact: sigmoid, reduction: Reduction::Clamp(zero, one) },
    Shape { kind: OpKind::Tanh, exact: f64::tanh, reduction: Reduction::Odd(one) },
    // EXACT and TANH_APPROXIMATION share one table (751K).
    Shape { kind: OpKind::Gelu, exact: gelu, reduction: Reduction::Clamp(zero, same) },
    Shape { kind: OpKind::Silu, exact: silu, reduction: Reduction::Clamp(zero, same) },
    Shape { kind: OpKind::Erf, exact: libm::erf, reduction: Reduction::Odd(one) },
    Shape { kind: OpKind::Exp, exact: f64::exp2, reduction: Reduction::Power },
    Shape { kind: OpKind::Sqrt, exact: f64::sqrt, reduction: Reduction::Octaves(scaled_sqrt) },
    Shape { kind: OpKind::Rsqrt, exact: rsqrt, reduction: Reduction::Octaves(scaled_rsqrt) },
    Shape { kind: OpKind::Inverse, exact: f64::recip, reduction: Reduction::Octaves(scaled_recip) },
    Shape { kind: OpKind::Log, exact: f64::ln, reduction: Reduction::Octaves(scaled_log) },
    Shape { kind: OpKind::Sin, exact: f64::sin, reduction: Reduction::Quarter },
];

fn zero(_: f64) -> f64 {
    0.0
}

fn one(_: f64) -> f64 {
    1.0
}

fn same(x: f64) -> f64 {
    x
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))
}

fn rsqrt(x: f64) -> f64 {
    x.sqrt().recip()
}

fn scaled_sqrt(m: f64, e: f64) -> f64 {
    m * (e / 2.0).exp2()
}

fn scaled_rsqrt(m: f64, e: f64) -> f64 {
    m * (-e / 2.0).exp2()
}

fn scaled_recip(m: f64, e: f64) -> f64 {
    m * (-e).exp2()
}

fn scaled_log(m: f64, e: f64) -> f64 {
    m + e * std::f64::consts::LN_2
}

/// One function's table.
#[derive(Clone, Debug)]
struct Table {
    low: f64,
    high: f64,
    points: Vec<f64>,
    reduction: Reduction,
}

impl Table {
    fn new(shape: &Shape, count: usize, [low, high]: [f64; 2]) -> Self {
        let step = (high - low) / (count - 1) as f64;
        let points = (0..count).map(|i| (shape.exact)(low + step * i as f64)).collect();
        Table { low, high, points, reduction: shape.reduction }
    }

    /// The table with the widest range that keeps within `error`.
    fn fitted(shape: &Shape, count: usize, error: &Fact<f64>) -> Self {
        let within = |range: [f64; 2]| {
            let table = Table::new(shape, count, range);
            (table.largest_error(shape.exact, error.unit) <= error.value).then_some(table)
        };
        match shape.reduction {
            Reduction::Clamp(..) | Reduction::Odd(_) => {
                let symmetric = matches!(shape.reduction, Reduction::Clamp(..));
                let range = |high: f64| if symmetric { [-high, high] } else { [0.0, high] };
                let (mut fits, mut fails) = (0.125, 64.0);
                for _ in 0..40 {
                    let middle = (fits + fails) / 2.0;
                    match within(range(middle)) {
                        Some(_) => fits = middle,
                        None => fails = middle,
                    }
                }
                Table::new(shape, count, range(fits))
            }
            Reduction::Octaves(_) => Self::octaves(&within, |n| [1.0, f64::from(n).exp2()])
                .unwrap_or_else(|| Table::new(shape, count, [1.0, 2.0])),
            Reduction::Power => Self::octaves(&within, |n| [0.0, f64::from(n)])
                .unwrap_or_else(|| Table::new(shape, count, [0.0, 1.0])),
            Reduction::Quarter => Table::new(shape, count, [0.0, std::f64::consts::FRAC_PI_2]),
        }
    }

    fn octaves(
        within: &dyn Fn([f64; 2]) -> Option<Table>,
        range: fn(i32) -> [f64; 2],
    ) -> Option<Self> {
        (1..=16).rev().find_map(|n| within(range(n)))
    }

    /// The largest error over the range, in the unit of the published one: absolute, or in units of
    /// fp16's last place with the half of the last rounding.
    fn largest_error(&self, exact: fn(f64) -> f64, unit: Unit) -> f64 {
        let steps = (self.points.len() - 1) * 16;
        let errors = (0..steps).map(|i| {
            let x = self.low + (self.high - self.low) * i as f64 / steps as f64;
            let (wanted, got) = (exact(x), self.line(x));
            match unit {
                Unit::Ulp => {
                    let ulp = (wanted.abs().max(f64::MIN_POSITIVE).log2().floor() - 10.0).exp2();
                    (got - wanted).abs() / ulp + 0.5
                }
                _ => (got - wanted).abs(),
            }
        });
        errors.fold(0.0, f64::max)
    }

    /// The straight line at `x`, which is in the range.
    fn line(&self, x: f64) -> f64 {
        let intervals = self.points.len() - 1;
        let position = (x - self.low) / (self.high - self.low) * intervals as f64;
        let i = (position.max(0.0) as usize).min(intervals - 1);
        let t = position - i as f64;
        self.points[i] + t * (self.points[i + 1] - self.points[i])
    }

    fn clamped(&self, x: f64, below: fn(f64) -> f64, above: fn(f64) -> f64) -> f64 {
        if x < self.low {
            below(x)
        } else if x > self.high {
            above(x)
        } else {
            self.line(x)
        }
    }

    fn eval(&self, x: f64) -> f64 {
        match self.reduction {
            Reduction::Clamp(below, above) => self.clamped(x, below, above),
            Reduction::Odd(above) => self.clamped(x.abs(), above, above).copysign(x),
            Reduction::Octaves(scale) => {
                // Zeros, negative numbers and infinity are as the exact function has them: they are
                // limits of the scale, which the table does not reach.
                if !(x > 0.0 && x.is_finite()) {
                    return f64::NAN;
                }
                let octaves = self.high.log2();
                let exponent = (x.log2() / octaves).floor() * octaves;
                scale(self.line((x * (-exponent).exp2()).clamp(self.low, self.high)), exponent)
            }
            Reduction::Power => {
                let whole = (x / self.high).floor() * self.high;
                if x.is_finite() { self.line(x - whole) * whole.exp2() } else { x.exp2() }
            }
            Reduction::Quarter => {
                let turns = x / std::f64::consts::TAU;
                let angle = (turns - turns.floor()) * std::f64::consts::TAU;
                let (half, sign) = match angle >= std::f64::consts::PI {
                    true => (angle - std::f64::consts::PI, -1.0),
                    false => (angle, 1.0),
                };
                sign * self.line(half.min(std::f64::consts::PI - half).max(0.0))
            }
        }
    }
}

/// The tables of a chip.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables(BTreeMap<OpKind, Table>);

impl Tables {
    /// Those whose errors are known; other functions are exact.
    pub(crate) fn of(chip: &Chip) -> Self {
        let count = chip.numerics.table_points.as_ref().map_or(33, |p| p.value.max(2) as usize);
        let known = SHAPES.iter().filter_map(|shape| {
            let error = chip.table_errors.get(shape.kind.name())?;
            Some((shape.kind, Table::fitted(shape, count, error)))
        });
        Tables(known.collect())
    }

    /// The engine's value of function `kind` at `x`; `None` if it has no table, or not for `x`.
    pub(crate) fn eval(&self, kind: OpKind, x: f64) -> Option<f64> {
        let (kind, x) = match kind {
            OpKind::Exp => (kind, x * std::f64::consts::LOG2_E),
            OpKind::Exp2 => (OpKind::Exp, x),
            OpKind::Cos => (OpKind::Sin, x + std::f64::consts::FRAC_PI_2),
            other => (other, x),
        };
        let y = self.0.get(&kind)?.eval(x);
        (!y.is_nan()).then_some(y)
    }

    /// Whether there is a table for `kind`.
    pub(crate) fn has(&self, kind: OpKind) -> bool {
        let kind = match kind {
            OpKind::Exp2 => OpKind::Exp,
            OpKind::Cos => OpKind::Sin,
            other => other,
        };
        self.0.contains_key(&kind)
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// Every function over all fp16 numbers of a wide range: within the published error, and not
    /// exact.
    #[test]
    fn errors_are_the_published_ones() {
        let chip = Chip::find("m4").unwrap();
        let tables = Tables::of(chip);
        assert_eq!(tables.0.len(), chip.table_errors.len());
        for shape in SHAPES {
            let bound = &chip.table_errors[shape.kind.name()];
            let exact: fn(f64) -> f64 =
                if shape.kind == OpKind::Exp { f64::exp } else { shape.exact };
            let mut worst = 0.0f64;
            for x in (0..=u16::MAX).map(|b| f16::from_bits(b).to_f64()) {
                let Some(got) = tables.eval(shape.kind, x) else { continue };
                let (wanted, rounded) = (exact(x), f16::from_f64(got).to_f64());
                let normal = wanted.abs() >= 6.2e-5 && wanted.abs() < 65504.0;
                if !normal || x.abs() > 512.0 {
                    continue;
                }
                worst = worst.max(match bound.unit {
                    Unit::Ulp => {
                        (rounded - wanted).abs() / (wanted.abs().log2().floor() - 10.0).exp2()
                    }
                    _ => (got - wanted).abs(),
                });
            }
            assert!(worst <= bound.value * 1.02, "{}: {worst}", shape.kind.name());
            assert!(worst >= bound.value * 0.02, "{}: {worst} is too exact", shape.kind.name());
        }
    }

    #[test]
    fn ends_and_symmetries() {
        let tables = Tables::of(Chip::find("m4").unwrap());
        let at = |kind, x| tables.eval(kind, x).unwrap();
        assert_eq!(at(OpKind::Sigmoid, 60.0), 1.0);
        assert_eq!(at(OpKind::Sigmoid, -60.0), 0.0);
        assert_eq!(at(OpKind::Tanh, -0.75), -at(OpKind::Tanh, 0.75));
        assert_eq!(at(OpKind::Gelu, 30.0), 30.0);
        assert_eq!(at(OpKind::Exp, f64::NEG_INFINITY), 0.0);
        assert_eq!(at(OpKind::Exp, 0.0), 1.0);
        assert!((at(OpKind::Cos, 0.0) - 1.0).abs() < 1e-3);
        assert_eq!(tables.eval(OpKind::Log, -1.0), None);
        assert!(!Tables::of(Chip::find("m1").unwrap()).has(OpKind::Relu));
    }
}
