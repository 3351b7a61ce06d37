//! The rewritings that answer rules: their names, and what they promise.

/// A rewriting of programs that does what a rule advises. `passes::fixes` has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fix {
    /// An operation of Rigel's dialect becomes plain MIL.
    Dialect,
    /// gelu becomes erf, tanh or sigmoid with mul and add, as its mode says.
    Gelu,
    /// silu becomes x times sigmoid(x).
    Silu,
    /// rsqrt becomes pow(x + epsilon, -0.5), or 1 / sqrt(x + epsilon) where pow is refused.
    Rsqrt,
    /// sqrt, or rsqrt, becomes pow(x, 0.5), or pow(x + epsilon, -0.5).
    Root,
    /// Attention becomes query times key, plus mask, softmax, times value.
    Attention,
    /// einsum becomes transpositions and a matmul.
    Einsum,
    /// The bias of a convolution is added behind it.
    ConvBias,
    /// The default epsilon is written out.
    Epsilon,
    /// A product becomes the sum of products over parts of what it sums over.
    SplitReduction,
    /// The last two axes of a state grow to what the engine takes; its old part is sliced out where it is read.
    PadState,
    /// Inputs grow to the bytes of the largest one; what was there is sliced out.
    UniformInputs,
    /// Outputs grow to the bytes of the largest one, padded with zeros.
    UniformOutputs,
    /// Weights that fit together become one, of which slices are taken.
    PackWeights,
    /// Constants that are written in arguments become named ones.
    NamedConstants,
}

impl Fix {
    /// All of them, in their order and the one in which they are applied: what makes work for others comes first.
    pub const ALL: &[Fix] = &[
        Fix::Dialect,
        Fix::Gelu,
        Fix::Silu,
        Fix::Rsqrt,
        Fix::Root,
        Fix::Attention,
        Fix::Einsum,
        Fix::ConvBias,
        Fix::Epsilon,
        Fix::SplitReduction,
        Fix::PadState,
        Fix::UniformInputs,
        Fix::UniformOutputs,
        Fix::PackWeights,
        Fix::NamedConstants,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Fix::Dialect => "dialect",
            Fix::Gelu => "gelu",
            Fix::Silu => "silu",
            Fix::Rsqrt => "rsqrt",
            Fix::Root => "root",
            Fix::Attention => "attention",
            Fix::Einsum => "einsum",
            Fix::ConvBias => "conv-bias",
            Fix::Epsilon => "epsilon",
            Fix::SplitReduction => "split-reduction",
            Fix::PadState => "pad-state",
            Fix::UniformInputs => "uniform-inputs",
            Fix::UniformOutputs => "uniform-outputs",
            Fix::PackWeights => "pack-weights",
            Fix::NamedConstants => "named-constants",
        }
    }

    /// Whether inputs, outputs or states have other sizes afterwards.
    pub const fn changes_interface(self) -> bool {
        matches!(self, Fix::PadState | Fix::UniformInputs | Fix::UniformOutputs)
    }

    /// Whether it makes constants that are no numbers of the program, such as the root of two, and rounds them to
    /// the program's types. Otherwise results are the same but for the order of exact operations.
    pub const fn rounds_constants(self) -> bool {
        use Fix::{Attention, Dialect, Epsilon, Gelu, Root, Rsqrt};
        matches!(self, Dialect | Gelu | Rsqrt | Root | Attention | Epsilon)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_are_listed_once_by_name_and_answer_a_rule() {
        let names: BTreeSet<&str> = Fix::ALL.iter().map(|f| f.name()).collect();
        assert_eq!(names.len(), Fix::ALL.len());
        assert!(Fix::ALL.is_sorted());
        let answers: BTreeSet<Fix> = super::super::rules().filter_map(|r| r.rewriting).collect();
        assert_eq!(answers, Fix::ALL.iter().copied().collect());
    }
}
