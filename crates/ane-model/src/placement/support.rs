//! Which operations the engine runs when Core ML gives them to it.

use mil::{Arg, OpKind};

use super::is_dynamic;
use crate::rules::{CheckOptions, Condition, OpCx, Outcome, Severity, is_constant_kind};

/// Whether the engine runs an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Support {
    /// A model of this one operation was placed on it.
    Yes,
    /// Such a model was refused.
    No,
    /// Nobody published it.
    Unknown,
}

/// What one-operation models on an M4 showed of a kind, whatever its sizes and types (751K study).
pub fn support(kind: OpKind) -> Support {
    use OpKind::*;
    match kind {
        // Constants are no work.
        kind if is_constant_kind(kind) => Support::Yes,
        Relu | Relu6 | ClampedRelu | LeakyRelu | Prelu | Elu | ThresholdedRelu | Sigmoid
        | SigmoidHard | Tanh | ScaledTanh | Silu | Gelu | Softplus | SoftplusParametric
        | Softsign | Erf | Exp | Exp2 | Log | Sqrt | Rsqrt | Inverse | Sin | Cos | Atan | Floor
        | Ceil | Round | Sign | Abs | Square | Clip | LinearActivation | Threshold => Support::Yes,
        Add | Sub | Mul | RealDiv | FloorDiv | Pow | Maximum | Minimum | Equal | NotEqual
        | Less | LessEqual | Greater | GreaterEqual | Select | LogicalAnd => Support::Yes,
        Conv | ConvTranspose | Matmul | Linear | ScaledDotProductAttention => Support::Yes,
        AvgPool | MaxPool | L2Pool => Support::Yes,
        Softmax | LayerNorm | InstanceNorm | BatchNorm | L2Norm | LocalResponseNorm => Support::Yes,
        ReduceL1Norm | ReduceL2Norm | ReduceLogSum | ReduceLogSumExp | ReduceMax | ReduceMean
        | ReduceMin | ReduceSum | ReduceSumSquare | ReduceArgmax | ReduceArgmin => Support::Yes,
        Reshape | Transpose | ExpandDims | Squeeze | Concat | Split | Stack | SliceByIndex
        | SliceBySize | Reverse | Tile | Pad | DepthToSpace | SpaceToDepth | PixelShuffle
        | PixelUnshuffle | SpaceToBatch | BatchToSpace => Support::Yes,
        UpsampleNearestNeighbor
        | UpsampleBilinear
        | ResizeNearestNeighbor
        | ResizeBilinear
        | Resize
        | Affine
        | Resample
        | Gather
        | GatherAlongAxis
        | GatherNd
        | Topk
        | Quantize
        | Dequantize
        | Cast
        | Identity => Support::Yes,
        Asin | Acos | Tan | Sinh | Cosh | Atanh | Mod | ReduceProd | Cumsum | Lstm | Gru | Rnn
        | BandPart | OneHot | NonZero | Range1d | RandomNormal | RandomUniform
        | RandomBernoulli | RandomCategorical | SlidingWindows | CropResize | Scatter
        | ScatterAlongAxis | ScatterNd | Argsort | Cond | WhileLoop => Support::No,
        LlmRmsNorm | LlmLinear | LlmEmbedding | LlmDequantize | LlmRope | LlmAttention
        | LlmGatedMlp | LlmHeadLoss | LlmRmsNormGrad | LlmAttentionGrad | LlmHeadLossGrad => {
            Support::No
        }
        Einsum
        | LogicalOr
        | LogicalXor
        | LogicalNot
        | Shape
        | Fill
        | FillLike
        | ReshapeLike
        | Flatten2d
        | ReverseSequence
        | Crop
        | NonMaximumSuppression
        | ReadState
        | WriteState
        | SliceUpdate
        | MakeList
        | ListLength
        | ListWrite
        | ListRead
        | ListGather
        | ListScatter
        | Classify => Support::Unknown,
        // The guard above took them.
        Const
        | ConstexprBlockwiseShiftScale
        | ConstexprLutToDense
        | ConstexprSparseToDense
        | ConstexprLutToSparse
        | ConstexprSparseBlockwiseShiftScale
        | ConstexprAffineDequantize
        | ConstexprCast => Support::Yes,
    }
}

/// What keeps an operation off the engine: findings of rules on it and on the compressed weights
/// that it takes, by rule.
pub(super) fn obstacles(op: &OpCx<'_>, options: &CheckOptions<'_>) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if is_dynamic(op.cx) {
        found.push(("ane-dynamic-shape", "sizes are not known when compiling".to_owned()));
    }
    let weights = op.op.args.iter().flatten().filter_map(|arg| match arg {
        Arg::Value(v) => match op.cx.function.values[*v].def {
            mil::ValueDef::Result(id, _) => Some(OpCx::new(op.cx, id)),
            mil::ValueDef::Param => None,
        },
        _ => None,
    });
    let weights = weights.filter(|w| !w.computes());
    for place in std::iter::once(*op).chain(weights) {
        for rule in crate::rules::rules().filter(|r| crate::rules::applies(r, options)) {
            let off = matches!(rule.outcome, Outcome::OffEngine | Outcome::CompileFails);
            let Condition::Op(condition) = rule.condition else { continue };
            if !off || rule.severity == Severity::Info {
                continue;
            }
            // A finding with a severity of its own is one that sources disagree on.
            if let Some(finding) = condition(&place)
                && finding.severity.is_none()
            {
                found.push((rule.id, finding.message));
            }
        }
    }
    found
}
