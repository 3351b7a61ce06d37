//! The closed table: what is known of the gradient of each kind of operation.

use mil::{FunctionBuilder, OpError, OpKind, OpView, ValueId};

use crate::gated_mlp;

use super::site::{Done, Site};
use super::{elementwise, gather, linear, llm, norm, reduction, shape, slice, unary};

/// How operations of a kind are differentiated.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Emits the derivatives by the arguments.
    Emit(fn(&mut Site<'_, '_, '_>) -> Done),
    /// Emits simpler operations that stand for it and its one result, which has that name.
    Expand(fn(&OpView<'_>, &mut FunctionBuilder<'_>, &str) -> Result<ValueId, OpError>),
    /// Its own decomposition stands for it.
    Decompose,
    /// Small changes of the arguments change nothing: integers, truth values, steps.
    Zero,
    /// There is no gradient.
    Unsupported,
}

/// How operations of a kind are differentiated, for tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Coverage {
    /// By a rule of its own.
    Rule,
    /// As the simpler operations that stand for it.
    Expanded,
    /// The derivative is zero.
    Zero,
    /// Not at all.
    Unsupported,
}

impl Rule {
    pub(super) fn coverage(self) -> Coverage {
        match self {
            Rule::Emit(_) => Coverage::Rule,
            Rule::Expand(_) | Rule::Decompose => Coverage::Expanded,
            Rule::Zero => Coverage::Zero,
            Rule::Unsupported => Coverage::Unsupported,
        }
    }
}

/// The rule of a kind.
pub(super) fn rule(kind: OpKind) -> Rule {
    use OpKind::*;
    match kind {
        // The language-model dialect.
        LlmRmsNorm => Rule::Emit(norm::rms_norm),
        LlmLinear | Linear => Rule::Emit(linear::linear),
        LlmEmbedding => Rule::Emit(gather::embedding),
        LlmDequantize => Rule::Emit(unary::cast),
        LlmRope => Rule::Emit(llm::rope),
        LlmAttention => Rule::Emit(llm::attention),
        LlmGatedMlp => Rule::Expand(gated_mlp::split),
        LlmHeadLoss => Rule::Emit(llm::head_loss),
        LlmRmsNormGrad | LlmAttentionGrad | LlmHeadLossGrad => Rule::Unsupported,

        // Elementwise.
        Add => Rule::Emit(elementwise::add),
        Sub => Rule::Emit(elementwise::sub),
        Mul => Rule::Emit(elementwise::mul),
        RealDiv => Rule::Emit(elementwise::real_div),
        Mod => Rule::Emit(elementwise::modulo),
        Pow => Rule::Emit(elementwise::pow),
        Maximum => Rule::Emit(elementwise::maximum),
        Minimum => Rule::Emit(elementwise::minimum),
        Select => Rule::Emit(elementwise::select),
        Abs => Rule::Emit(unary::abs),
        Acos => Rule::Emit(unary::acos),
        Asin => Rule::Emit(unary::asin),
        Atan => Rule::Emit(unary::atan),
        Atanh => Rule::Emit(unary::atanh),
        Cos => Rule::Emit(unary::cos),
        Cosh => Rule::Emit(unary::cosh),
        Erf => Rule::Emit(unary::erf),
        Exp => Rule::Emit(unary::exp),
        Exp2 => Rule::Emit(unary::exp2),
        Relu => Rule::Emit(unary::relu),
        Relu6 => Rule::Emit(unary::relu6),
        Sigmoid => Rule::Emit(unary::sigmoid),
        Silu => Rule::Emit(unary::silu),
        Sin => Rule::Emit(unary::sin),
        Sinh => Rule::Emit(unary::sinh),
        Softplus => Rule::Emit(unary::softplus),
        Softsign => Rule::Emit(unary::softsign),
        Sqrt => Rule::Emit(unary::sqrt),
        Square => Rule::Emit(unary::square),
        Tan => Rule::Emit(unary::tan),
        Tanh => Rule::Emit(unary::tanh),
        Inverse => Rule::Emit(unary::inverse),
        Log => Rule::Emit(unary::log),
        Rsqrt => Rule::Emit(unary::rsqrt),
        Clip => Rule::Emit(unary::clip),
        Cast | Identity => Rule::Emit(unary::cast),
        Gelu => Rule::Emit(unary::gelu),

        // Rows and axes.
        Softmax => Rule::Emit(reduction::softmax),
        LayerNorm => Rule::Emit(norm::layer_norm),
        ReduceSum => Rule::Emit(reduction::sum),
        ReduceMean => Rule::Emit(reduction::mean),
        ReduceMax | ReduceMin => Rule::Emit(reduction::extreme),
        ReduceSumSquare => Rule::Emit(reduction::sum_square),
        ReduceL1Norm => Rule::Emit(reduction::norm_1),
        ReduceL2Norm => Rule::Emit(reduction::norm_2),
        ReduceLogSum => Rule::Emit(reduction::log_sum),
        ReduceLogSumExp => Rule::Emit(reduction::log_sum_exp),
        Cumsum => Rule::Emit(reduction::cumsum),
        Topk => Rule::Emit(gather::topk),

        // Products of matrices.
        Matmul => Rule::Emit(linear::matmul),
        Conv => Rule::Emit(linear::conv),
        Einsum | ScaledDotProductAttention => Rule::Decompose,

        // Moves.
        Reshape | ReshapeLike | ExpandDims | Squeeze | Flatten2d => Rule::Emit(shape::reshape),
        Transpose => Rule::Emit(shape::transpose),
        Concat => Rule::Emit(shape::concat),
        Split => Rule::Emit(shape::split),
        Stack => Rule::Emit(shape::stack),
        Tile => Rule::Emit(shape::tile),
        Pad => Rule::Emit(shape::pad),
        Reverse => Rule::Emit(shape::reverse),
        BandPart => Rule::Emit(shape::band_part),
        SliceByIndex => Rule::Emit(slice::by_index),
        SliceBySize => Rule::Emit(slice::by_size),
        SliceUpdate => Rule::Emit(slice::update),
        Gather => Rule::Emit(gather::gather),
        GatherAlongAxis => Rule::Emit(gather::gather_along_axis),
        GatherNd => Rule::Emit(gather::gather_nd),
        Scatter => Rule::Emit(gather::scatter),
        ScatterAlongAxis => Rule::Emit(gather::scatter_along_axis),
        ScatterNd => Rule::Emit(gather::scatter_nd),

        // Steps, integers, truth values, and what depends on sizes alone.
        Ceil
        | Floor
        | Round
        | Sign
        | FloorDiv
        | Equal
        | NotEqual
        | Less
        | LessEqual
        | Greater
        | GreaterEqual
        | LogicalAnd
        | LogicalOr
        | LogicalXor
        | LogicalNot
        | ReduceArgmax
        | ReduceArgmin
        | Argsort
        | NonZero
        | OneHot
        | Shape
        | Fill
        | FillLike
        | Range1d
        | RandomBernoulli
        | RandomNormal
        | RandomUniform
        | RandomCategorical
        | NonMaximumSuppression
        | Classify
        | ListLength
        | Quantize => Rule::Zero,

        // Constants have no arguments that vary, and states are not differentiated.
        Const
        | ConstexprBlockwiseShiftScale
        | ConstexprLutToDense
        | ConstexprSparseToDense
        | ConstexprLutToSparse
        | ConstexprSparseBlockwiseShiftScale
        | ConstexprAffineDequantize
        | ConstexprCast
        | ReadState => Rule::Zero,

        // No language model has these where it learns.
        WriteState
        | ReduceProd
        | ClampedRelu
        | Elu
        | LeakyRelu
        | LinearActivation
        | Prelu
        | ScaledTanh
        | SigmoidHard
        | SoftplusParametric
        | Threshold
        | ThresholdedRelu
        | BatchNorm
        | InstanceNorm
        | L2Norm
        | LocalResponseNorm
        | ConvTranspose
        | AvgPool
        | L2Pool
        | MaxPool
        | ReverseSequence
        | SlidingWindows
        | DepthToSpace
        | SpaceToDepth
        | PixelShuffle
        | PixelUnshuffle
        | SpaceToBatch
        | BatchToSpace
        | UpsampleNearestNeighbor
        | UpsampleBilinear
        | ResizeNearestNeighbor
        | ResizeBilinear
        | Resize
        | Crop
        | Resample
        | Affine
        | CropResize
        | Rnn
        | Gru
        | Lstm
        | Dequantize
        | Cond
        | WhileLoop
        | MakeList
        | ListWrite
        | ListRead
        | ListGather
        | ListScatter => Rule::Unsupported,
    }
}
