//! Scalar functions of the interpreter in `f64`.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// `1 / (1 + exp(-x))`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub(crate) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `x * P(X <= x)` for a standard normal `X`.
pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2)
}

/// GELU by `tanh`: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
pub(crate) fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
}

/// `log(1 + exp(x))`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
