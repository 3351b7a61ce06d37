//! The table of operations: which kernel runs each, or why none does.

use kernels::Activation;
use mil::OpKind;
use tensor::DType;

use crate::kernel::{Binding, Native};
use crate::op_cx::{Bind, OpCx};

use crate::ops::elementwise::{self, Function1, Function2};
use crate::ops::reduce::{self, Reduction};
use crate::ops::{attention, convert, layout, linear, matmul, norm};

/// How an operation at fixed sizes runs, or why it is left to the reference interpreter.
pub(crate) fn bind(cx: &mut OpCx<'_>) -> Bind<Binding> {
    use OpKind::*;
    let native = match cx.op.kind {
        // The language-model dialect.
        LlmRmsNorm => norm::rms_norm(cx),
        LlmLinear | Linear => linear::parts(cx).and_then(|p| linear::linears(vec![p])),
        LlmEmbedding => linear::embedding(cx),
        LlmDequantize => linear::dequantize(cx),
        LlmRope => attention::rope(cx),
        LlmAttention => attention::attention(cx),
        LlmGatedMlp => linear::gated_mlp(cx),

        // Elementwise.
        Add => elementwise::binary(cx, Function2::Add),
        Sub => elementwise::binary(cx, Function2::Sub),
        Mul => elementwise::binary(cx, Function2::Mul),
        RealDiv => elementwise::binary(cx, Function2::Div),
        Maximum => elementwise::binary(cx, Function2::Max),
        Minimum => elementwise::binary(cx, Function2::Min),
        Pow => elementwise::binary(cx, Function2::Pow),
        Abs => elementwise::unary(cx, Function1::Abs),
        Ceil => elementwise::unary(cx, Function1::Ceil),
        Floor => elementwise::unary(cx, Function1::Floor),
        Round => elementwise::unary(cx, Function1::Round),
        Cos => elementwise::unary(cx, Function1::Cos),
        Sin => elementwise::unary(cx, Function1::Sin),
        Exp2 => elementwise::unary(cx, Function1::Exp2),
        Sqrt => elementwise::unary(cx, Function1::Sqrt),
        Square => elementwise::unary(cx, Function1::Square),
        Inverse => elementwise::with_epsilon(cx, Function1::Inverse, 1e-4),
        Log => elementwise::with_epsilon(cx, Function1::Log, 1e-45),
        Rsqrt => elementwise::with_epsilon(cx, Function1::Rsqrt, 1e-12),
        Clip => elementwise::clip(cx),
        Exp => elementwise::activation(cx, Activation::Exp),
        Relu => elementwise::activation(cx, Activation::Relu),
        Sigmoid => elementwise::activation(cx, Activation::Sigmoid),
        Silu => elementwise::activation(cx, Activation::Silu),
        Tanh => elementwise::activation(cx, Activation::Tanh),
        Gelu => elementwise::gelu(cx),

        // Rows and axes.
        Softmax => norm::softmax(cx),
        LayerNorm => norm::layer_norm(cx),
        ReduceSum => reduce::reduce(cx, Reduction::Sum),
        ReduceMean => reduce::reduce(cx, Reduction::Mean),
        ReduceMax => reduce::reduce(cx, Reduction::Max),
        ReduceMin => reduce::reduce(cx, Reduction::Min),
        ReduceSumSquare => reduce::reduce(cx, Reduction::SumSquare),
        Matmul => matmul::matmul(cx),

        // Moves.
        Cast => return convert::cast(cx),
        Identity | Reshape | ExpandDims | Squeeze => return elementwise::pass_on(cx),
        Transpose => return layout::transpose(cx),
        SliceByIndex | SliceBySize => return layout::slice(cx),
        Split => return layout::split(cx),
        Concat | Stack => return layout::concat(cx),
        Gather => return layout::gather(cx),

        // Constants are operands, not steps.
        Const
        // What is left to the interpreter whatever its arguments.
        | ConstexprBlockwiseShiftScale
        | FloorDiv | Mod
        | Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual
        | LogicalAnd | LogicalOr | LogicalXor | LogicalNot
        | Erf | Sign | Softplus | Tan
        | Acos | Asin | Atan | Atanh | Cosh | Relu6 | Sinh | Softsign
        | ClampedRelu | Elu | LeakyRelu | LinearActivation | Prelu | ScaledTanh | SigmoidHard
        | SoftplusParametric | Threshold | ThresholdedRelu | ReduceLogSum
        | BatchNorm | InstanceNorm | L2Norm | LocalResponseNorm
        | ConstexprLutToDense | ConstexprSparseToDense | ConstexprLutToSparse
        | ConstexprSparseBlockwiseShiftScale | ConstexprAffineDequantize | ConstexprCast
        | GatherNd | ScatterAlongAxis | ScatterNd
        | Cumsum | Reverse | ReverseSequence | SlidingWindows | Argsort
        | BandPart | NonZero | OneHot | Flatten2d | FillLike | ReshapeLike
        | DepthToSpace | SpaceToDepth | PixelShuffle | PixelUnshuffle | SpaceToBatch | BatchToSpace
        | UpsampleNearestNeighbor | UpsampleBilinear | ResizeNearestNeighbor | ResizeBilinear | Resize | Crop
        | Resample | Affine | CropResize | NonMaximumSuppression | Rnn | Gru | Lstm
        | RandomBernoulli | RandomNormal | RandomUniform | RandomCategorical
        | Quantize | Dequantize | Cond | WhileLoop | Classify
        | MakeList | ListLength | ListWrite | ListRead | ListGather | ListScatter
        | ConvTranspose | AvgPool | L2Pool | MaxPool
        | ReduceL1Norm | ReduceL2Norm | ReduceLogSumExp | ReduceProd
        | ReduceArgmax | ReduceArgmin
        | ScaledDotProductAttention | Conv | Einsum
        | GatherAlongAxis | Scatter | Shape | Fill | Range1d | Tile | Pad
        | SliceUpdate | Select | Topk | ReadState | WriteState => {
            Err("no native kernel".into())
        }
    };
    narrowable(cx, native?).map(Binding::from)
}

/// Lets kernels that compute in `fp32` give results of half precision too, and of no other type.
fn narrowable(cx: &OpCx<'_>, native: Native) -> Bind<Native> {
    for i in 0..cx.op.outputs.len() {
        let (dtype, _) = cx.result(i)?;
        if native.floats && !matches!(dtype, DType::F32 | DType::F16) {
            return Err(format!("a result of type {dtype}").into());
        }
    }
    Ok(native)
}

/// Whether `kind` is a linear layer, which can share a step with others of the same input.
pub(crate) fn is_linear(kind: OpKind) -> bool {
    matches!(kind, OpKind::LlmLinear | OpKind::Linear)
}
