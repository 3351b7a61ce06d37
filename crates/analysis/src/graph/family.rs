//! What operations are for, as far as colours tell them apart.

use mil::OpKind;

/// A group of operations of one colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    Linear,
    Attention,
    Normalisation,
    Activation,
    Elementwise,
    Reduction,
    Movement,
    Type,
    State,
    Control,
    Other,
    Input,
    Output,
}

impl Family {
    /// Those of operations, in the order of the legend.
    pub(super) const OPERATIONS: [Family; 11] = [
        Family::Linear,
        Family::Attention,
        Family::Normalisation,
        Family::Activation,
        Family::Elementwise,
        Family::Reduction,
        Family::Movement,
        Family::Type,
        Family::State,
        Family::Control,
        Family::Other,
    ];

    /// The family of an operation.
    pub(super) fn of(kind: OpKind) -> Self {
        use OpKind::*;
        match kind {
            Linear | Matmul | Conv | ConvTranspose | Einsum | LlmLinear | LlmEmbedding
            | LlmGatedMlp | LlmHeadLoss | LlmHeadLossGrad | Lstm | Gru | Rnn => Family::Linear,
            ScaledDotProductAttention | LlmAttention | LlmAttentionGrad | LlmRope => {
                Family::Attention
            }
            LayerNorm | BatchNorm | InstanceNorm | L2Norm | LocalResponseNorm | LlmRmsNorm
            | LlmRmsNormGrad => Family::Normalisation,
            Gelu | Softmax | Relu | Relu6 | Sigmoid | Silu | Softplus | Softsign | Tanh
            | ClampedRelu | Elu | LeakyRelu | LinearActivation | Prelu | ScaledTanh
            | SigmoidHard | SoftplusParametric | Threshold | ThresholdedRelu => Family::Activation,
            Add | Sub | Mul | RealDiv | FloorDiv | Mod | Pow | Maximum | Minimum | Equal
            | NotEqual | Less | LessEqual | Greater | GreaterEqual | LogicalAnd | LogicalOr
            | LogicalXor | LogicalNot | Abs | Ceil | Cos | Erf | Exp | Exp2 | Floor | Round
            | Sign | Sin | Sqrt | Square | Inverse | Log | Rsqrt | Clip | Select => {
                Family::Elementwise
            }
            ReduceL1Norm | ReduceL2Norm | ReduceLogSum | ReduceLogSumExp | ReduceMax
            | ReduceMean | ReduceMin | ReduceProd | ReduceSum | ReduceSumSquare | ReduceArgmax
            | ReduceArgmin | AvgPool | L2Pool | MaxPool | Topk | Cumsum => Family::Reduction,
            Gather
            | GatherAlongAxis
            | GatherNd
            | Scatter
            | ScatterAlongAxis
            | ScatterNd
            | Reshape
            | Transpose
            | ExpandDims
            | Squeeze
            | Concat
            | Split
            | Stack
            | Tile
            | Pad
            | SliceByIndex
            | SliceBySize
            | SliceUpdate
            | Reverse
            | Flatten2d
            | ReshapeLike
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
            | Crop => Family::Movement,
            Cast | Identity | Quantize | Dequantize | LlmDequantize => Family::Type,
            ReadState | WriteState => Family::State,
            Cond | WhileLoop => Family::Control,
            _ => Family::Other,
        }
    }

    /// The name in the legend, which is the class in the drawing too.
    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Linear => "linear",
            Family::Attention => "attention",
            Family::Normalisation => "normalisation",
            Family::Activation => "activation",
            Family::Elementwise => "elementwise",
            Family::Reduction => "reduction",
            Family::Movement => "movement",
            Family::Type => "type",
            Family::State => "state",
            Family::Control => "control",
            Family::Other => "other",
            Family::Input => "input",
            Family::Output => "output",
        }
    }

    /// Fill and border.
    pub(super) fn colours(self) -> (&'static str, &'static str) {
        match self {
            Family::Linear => ("#dbe7fb", "#3f6fc4"),
            Family::Attention => ("#e6dcf7", "#7a4fc0"),
            Family::Normalisation => ("#fdebc8", "#c98a17"),
            Family::Activation => ("#fadad6", "#c9543f"),
            Family::Elementwise => ("#dff2de", "#4b9a4a"),
            Family::Reduction => ("#d4f0ee", "#2c948c"),
            Family::Movement => ("#eceff3", "#8390a3"),
            Family::Type => ("#f7f7f4", "#a8a797"),
            Family::State => ("#fbe0ee", "#bd4f8a"),
            Family::Control => ("#fffdf5", "#8a7a3d"),
            Family::Other => ("#f1ece6", "#94795c"),
            Family::Input | Family::Output => ("#38424f", "#38424f"),
        }
    }
}
