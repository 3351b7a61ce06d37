//! The table of operations: which kernel runs each, or why none does.

use kernels::Activation;
use mil::OpKind;
use tensor::DType;

use crate::kernel::{Binding, Native};
use crate::op_cx::{Bind, OpCx};

use crate::ops::elementwise::{self, Function1, Function2};
use crate::ops::numbers::{self, Comparison, Logic};
use crate::ops::reduce::{self, Reduction};
use crate::ops::{
    attention, conv, convert, head, layout, linear, matmul, norm, row_attention, scaled_attention,
    states,
};

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
        LlmHeadLoss | LlmHeadLossGrad => head::head_loss(cx),
        LlmRmsNormGrad => norm::rms_norm_grad(cx),
        LlmAttentionGrad => row_attention::attention_grad(cx),

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
        Inverse => elementwise::with_epsilon(cx, Function1::Inverse),
        Log => elementwise::with_epsilon(cx, Function1::Log),
        Rsqrt => elementwise::with_epsilon(cx, Function1::Rsqrt),
        FloorDiv => elementwise::binary(cx, Function2::FloorDiv),
        Mod => elementwise::binary(cx, Function2::Mod),
        Clip => elementwise::clip(cx),
        Acos => elementwise::unary(cx, Function1::Wide(f64::acos)),
        Asin => elementwise::unary(cx, Function1::Wide(f64::asin)),
        Atan => elementwise::unary(cx, Function1::Wide(f64::atan)),
        Atanh => elementwise::unary(cx, Function1::Wide(libm::atanh)),
        Cosh => elementwise::unary(cx, Function1::Wide(f64::cosh)),
        Erf => elementwise::unary(cx, Function1::Wide(libm::erf)),
        Relu6 => elementwise::unary(cx, Function1::Clip(0.0, 6.0)),
        Sign => elementwise::unary(cx, Function1::Wide(elementwise::sign)),
        Sinh => elementwise::unary(cx, Function1::Wide(f64::sinh)),
        Softplus => elementwise::unary(cx, Function1::Wide(elementwise::softplus)),
        Softsign => elementwise::unary(cx, Function1::Wide(|x| x / (1.0 + x.abs()))),
        Tan => elementwise::unary(cx, Function1::Wide(f64::tan)),
        ClampedRelu | Elu | LeakyRelu | LinearActivation | ScaledTanh | SigmoidHard | Threshold
        | ThresholdedRelu => elementwise::parametric(cx),
        Prelu | SoftplusParametric => elementwise::by_channel(cx),

        // Comparison, logic, choice.
        Equal => numbers::compare(cx, Comparison::Equal),
        NotEqual => numbers::compare(cx, Comparison::NotEqual),
        Less => numbers::compare(cx, Comparison::Less),
        LessEqual => numbers::compare(cx, Comparison::LessEqual),
        Greater => numbers::compare(cx, Comparison::Greater),
        GreaterEqual => numbers::compare(cx, Comparison::GreaterEqual),
        LogicalAnd => numbers::logic(cx, Logic::And),
        LogicalOr => numbers::logic(cx, Logic::Or),
        LogicalXor => numbers::logic(cx, Logic::Xor),
        LogicalNot => numbers::logical_not(cx),
        Select => numbers::select(cx),

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
        ReduceL1Norm => reduce::reduce(cx, Reduction::Norm1),
        ReduceL2Norm => reduce::reduce(cx, Reduction::Norm2),
        ReduceLogSum => reduce::reduce(cx, Reduction::LogSum),
        ReduceLogSumExp => reduce::reduce(cx, Reduction::LogSumExp),
        ReduceProd => reduce::reduce(cx, Reduction::Product),
        ReduceArgmax => reduce::extreme(cx, true),
        ReduceArgmin => reduce::extreme(cx, false),
        BatchNorm => norm::batch_norm(cx),
        InstanceNorm => norm::instance_norm(cx),
        Matmul => matmul::matmul(cx),
        Einsum => matmul::einsum(cx),
        ScaledDotProductAttention => scaled_attention::attention(cx),
        Conv => conv::conv(cx),
        AvgPool | L2Pool | MaxPool => conv::pool(cx),

        // Moves.
        Cast => return convert::cast(cx),
        Identity | Reshape | ReshapeLike | Flatten2d | ExpandDims | Squeeze => return elementwise::pass_on(cx),
        Transpose => return layout::transpose(cx),
        SliceByIndex | SliceBySize => return layout::slice(cx),
        Split => return layout::split(cx),
        Concat | Stack => return layout::concat(cx),
        Gather => return layout::gather(cx),

        Shape => return layout::shape(cx),
        Tile => return layout::tile(cx),
        Reverse => return layout::reverse(cx),
        Pad => return layout::pad(cx),
        SliceUpdate | Scatter => states::update(cx, None),
        Fill => layout::fill(cx),
        ReadState => states::read(cx),
        WriteState => states::write(cx),

        // Weights that are decompressed once.
        ConstexprBlockwiseShiftScale | ConstexprLutToDense | ConstexprSparseToDense
        | ConstexprAffineDequantize | ConstexprCast | ConstexprLutToSparse
        | ConstexprSparseBlockwiseShiftScale => return decompressed(cx),

        // Constants are operands, not steps.
        Const
        // What is left to the interpreter whatever its arguments.
        | L2Norm | LocalResponseNorm
        | GatherNd | ScatterAlongAxis | ScatterNd
        | Cumsum | ReverseSequence | SlidingWindows | Argsort
        | BandPart | NonZero | OneHot | FillLike
        | DepthToSpace | SpaceToDepth | PixelShuffle | PixelUnshuffle | SpaceToBatch | BatchToSpace
        | UpsampleNearestNeighbor | UpsampleBilinear | ResizeNearestNeighbor | ResizeBilinear | Resize | Crop
        | Resample | Affine | CropResize | NonMaximumSuppression | Rnn | Gru | Lstm
        | RandomBernoulli | RandomNormal | RandomUniform | RandomCategorical
        | Quantize | Dequantize | Cond | WhileLoop | Classify
        | MakeList | ListLength | ListWrite | ListRead | ListGather | ListScatter
        | ConvTranspose
        | GatherAlongAxis | Range1d | Topk => Err("no native kernel".into()),
    };
    narrowable(cx, native?).map(Binding::from)
}

/// Constants made of compressed ones.
fn decompressed(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let result = cx.op.outputs.first().copied().ok_or("no result")?;
    let (id, _) = cx.maker(&result.into()).ok_or("a weight that nothing makes")?;
    Ok(Binding::Constants(cx.decompressed(id)?))
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
