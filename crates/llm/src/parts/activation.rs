//! The non-linearity inside a feed-forward layer.

use mil::{FunctionBuilder, Literal, OpKind, Result, ValueId};

/// An elementwise non-linearity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Phi(x)` with the exact normal distribution (Hendrycks and Gimpel 2016).
    Gelu,
    /// GELU by its authors' tanh approximation.
    GeluTanh,
}

impl Activation {
    /// The value of `llm.gated_mlp`'s parameter `activation`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
        }
    }

    /// The function of `x`, of any float shape.
    pub(crate) fn apply(
        self,
        b: &mut FunctionBuilder<'_>,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId> {
        let mode = match self {
            Activation::Silu => return b.op(OpKind::Silu).arg("x", x).name(name).result(),
            Activation::Gelu => "EXACT",
            Activation::GeluTanh => "TANH_APPROXIMATION",
        };
        b.op(OpKind::Gelu).arg("x", x).arg("mode", Literal::string(mode)).name(name).result()
    }
}
