//! Random numbers. The distributions are those asked for, the numbers not those of Core ML, whose
//! generator is not documented: equal seeds give equal numbers here, and -1 counts as a seed too.

use tensor::DType;

use super::shaping::{sizes, unknown_sizes};
use super::{Domain, Effect, OpDef, OpView, Param};
use crate::eval::{Array, Data, EvalCx, Value, bounded};
use crate::{Dim, OpError, TensorType, Type};

/// SplitMix64 (Steele et al. 2014).
struct Generator(u64);

impl Generator {
    fn of(op: &OpView<'_>) -> Result<Self, OpError> {
        Ok(Generator(op.int("seed")?.unwrap_or(-1) as u64))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

/// The element type of the constant scalars `names`, `fp32` if none is given.
fn dtype(op: &OpView<'_>, names: &[&str]) -> Result<DType, OpError> {
    let mut found = None;
    for name in names {
        op.float(name)?;
        let Some(t) = op.opt_tensor(name)? else { continue };
        if *found.get_or_insert(t.dtype) != t.dtype {
            return Err(OpError::invalid(format!("{} are not of one type", names.join(" and "))));
        }
    }
    Ok(found.unwrap_or(DType::F32))
}

/// Defines random tensors of a given shape by the constant scalars that they depend on, their
/// defaults, and how a number is drawn.
macro_rules! distributions {
    ($($(#[$doc:meta])* $kind:ident $name:literal [$($param:literal $default:literal),+] $draw:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// `shape` is a vector of integers, `seed` a constant (-1 by default); the result has the
            /// element type of the constants, `fp32` if none is given.
            pub(super) struct $kind;

            impl OpDef for $kind {
                fn name(&self) -> &'static str {
                    $name
                }

                fn params(&self) -> &'static [Param] {
                    const {
                        &[
                            Param::new("shape", Domain::Int),
                            $(Param::new($param, Domain::Float).optional().constant(),)+
                            Param::new("seed", Domain::Int).optional().constant(),
                        ]
                    }
                }

                fn effect(&self, _: &OpView<'_>) -> Effect {
                    Effect::Random
                }

                fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
                    op.int("seed")?;
                    let shape = match op.literal("shape") {
                        Some(_) => {
                            let given = op.ints("shape")?.unwrap_or_default();
                            sizes(&given)?.into_iter().map(Dim::Fixed).collect()
                        }
                        None => unknown_sizes(op, "shape")?,
                    };
                    Ok(vec![TensorType { dtype: dtype(op, &[$($param),+])?, shape }.into()])
                }

                fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
                    let dtype = dtype(&cx.op, &[$($param),+])?;
                    let shape = sizes(cx.array("shape")?.ints()?)?;
                    bounded(&shape)?;
                    let constants = [$(cx.op.float($param)?.unwrap_or($default)),+];
                    let mut generator = Generator::of(&cx.op)?;
                    let draw: fn(&mut Generator, [f64; [$($param),+].len()]) -> f64 = $draw;
                    let count = shape.iter().product::<usize>();
                    let values = (0..count).map(|_| draw(&mut generator, constants)).collect();
                    Ok(vec![Array { dtype, shape, data: Data::Float(values) }.into()])
                }
            }
        )*
    };
}

distributions! {
    /// 1 with probability `prob` (0.5 by default), else 0.
    RandomBernoulli "random_bernoulli" ["prob" 0.5]
        |g, [prob]| if g.uniform() < prob { 1.0 } else { 0.0 };
    /// Normally distributed, of `mean` (0 by default) and standard deviation `stddev` (1 by default).
    RandomNormal "random_normal" ["mean" 0.0, "stddev" 1.0]
        |g, [mean, stddev]| mean + stddev * g.normal();
    /// Uniformly distributed from `low` (0 by default) to before `high` (1 by default).
    RandomUniform "random_uniform" ["low" 0.0, "high" 1.0]
        |g, [low, high]| low + (high - low) * g.uniform();
}

/// `size` (1 by default) draws for each row along the last axis of `x`: the class, as a float, of those
/// whose logarithms of probabilities (up to a summand) or, if `mode` is `probs`, whose probabilities
/// (up to a factor) the row has. `mode` is `logits` by default. All but `x` are constants.
pub(super) struct RandomCategorical;

impl RandomCategorical {
    fn options(op: &OpView<'_>) -> Result<(bool, usize), OpError> {
        let size = super::windows::sizes(op, "size", 1, 1, 1)?[0];
        match op.str("mode")?.unwrap_or("logits") {
            "logits" => Ok((true, size)),
            "probs" => Ok((false, size)),
            other => Err(OpError::invalid(format!("mode \"{other}\" is unknown"))),
        }
    }
}

impl OpDef for RandomCategorical {
    fn name(&self) -> &'static str {
        "random_categorical"
    }

    fn params(&self) -> &'static [Param] {
        const {
            &[
                Param::new("x", Domain::Float),
                Param::new("mode", Domain::Str).optional().constant(),
                Param::new("size", Domain::Int).optional().constant(),
                Param::new("seed", Domain::Int).optional().constant(),
            ]
        }
    }

    fn effect(&self, _: &OpView<'_>) -> Effect {
        Effect::Random
    }

    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError> {
        let mut out = op.tensor("x")?.clone();
        let (_, size) = Self::options(op)?;
        op.int("seed")?;
        match out.shape.last_mut() {
            Some(last) => *last = Dim::Fixed(size),
            None => return Err(OpError::invalid("x is a scalar")),
        }
        Ok(vec![out.into()])
    }

    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError> {
        let x = cx.array("x")?;
        let (logits, size) = Self::options(&cx.op)?;
        let classes = x.shape.last().copied().filter(|&n| n > 0);
        let classes = classes.ok_or_else(|| OpError::invalid("x has no classes"))?;
        let mut shape = x.shape.clone();
        shape.pop();
        shape.push(size);
        bounded(&shape)?;
        let mut generator = Generator::of(&cx.op)?;
        let mut out = Vec::with_capacity(shape.iter().product());
        for row in x.floats()?.chunks_exact(classes) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weight = |&v: &f64| if logits { (v - max).exp() } else { v };
            let total: f64 = row.iter().map(weight).sum();
            for _ in 0..size {
                let mut left = generator.uniform() * total;
                let drawn = row.iter().position(|v| {
                    left -= weight(v);
                    left < 0.0
                });
                out.push(drawn.unwrap_or(classes - 1) as f64);
            }
        }
        Ok(vec![Array { dtype: x.dtype, shape, data: Data::Float(out) }.into()])
    }
}
