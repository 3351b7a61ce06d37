//! The catalogue of operations: one struct an op, one line each in `OPS`.

use tensor::DType;

use crate::eval::{EvalCx, Value};
use crate::{FunctionBuilder, OpError, Opset, TensorType, Type, ValueId};

mod activation;
mod blocks;
mod compressed;
mod constant;
mod control;
mod conv;
mod conv_transpose;
mod detection;
mod einsum;
mod elementwise;
mod emit;
mod gather;
mod joining;
mod linear;
mod lists;
mod llm;
mod masks;
mod norm;
mod parametric;
mod pooling;
mod quantization;
mod random;
mod recurrent;
mod reduction;
mod reshaping;
mod resizing;
mod sampling;
mod scatter;
mod selection;
mod sequence;
mod shapes;
mod shaping;
mod slicing;
mod state;
mod unary;
mod view;
mod windows;

pub use emit::Emit;
pub use shapes::broadcast;
pub use view::OpView;
pub use windows::{Axis as WindowAxis, Windows};

/// Builds [`OpKind`] and the catalogue from one list, so that a kind without a definition does not
/// compile.
macro_rules! ops {
    ($($module:ident: $($kind:ident),* $(,)?;)*) => {
        /// Which operation; the closed catalogue that everything matches exhaustively.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[expect(missing_docs, reason = "the definition's own doc says it")]
        pub enum OpKind { $($($kind,)*)* }

        /// Every operation.
        pub const OPS: &[OpKind] = &[$($(OpKind::$kind,)*)*];

        impl OpKind {
            /// The definition.
            pub fn def(self) -> &'static dyn OpDef {
                match self { $($(OpKind::$kind => &$module::$kind,)*)* }
            }
        }
    };
}

ops! {
    constant: Const, ConstexprBlockwiseShiftScale;
    elementwise: Add, Sub, Mul, RealDiv, FloorDiv, Mod, Pow, Maximum, Minimum, Equal, NotEqual, Less,
        LessEqual, Greater, GreaterEqual, LogicalAnd, LogicalOr, LogicalXor;
    unary: Abs, Acos, Asin, Atan, Atanh, Ceil, Cos, Cosh, Erf, Exp, Exp2, Floor, Relu, Relu6, Round,
        Sigmoid, Sign, Silu, Sin, Sinh, Softplus, Softsign, Sqrt, Square, Tan, Tanh, Inverse, Log, Rsqrt, Clip, LogicalNot, Identity, Cast;
    activation: Gelu, Softmax;
    parametric: ClampedRelu, Elu, LeakyRelu, LinearActivation, Prelu, ScaledTanh, SigmoidHard,
        SoftplusParametric, Threshold, ThresholdedRelu;
    reduction: ReduceL1Norm, ReduceL2Norm, ReduceLogSum, ReduceLogSumExp, ReduceMax, ReduceMean, ReduceMin,
        ReduceProd, ReduceSum, ReduceSumSquare, ReduceArgmax, ReduceArgmin;
    norm: LayerNorm, BatchNorm, InstanceNorm, L2Norm, LocalResponseNorm;
    linear: Linear, Matmul, ScaledDotProductAttention;
    conv: Conv;
    conv_transpose: ConvTranspose;
    pooling: AvgPool, L2Pool, MaxPool;
    einsum: Einsum;
    gather: Gather, GatherAlongAxis, GatherNd;
    scatter: Scatter, ScatterAlongAxis, ScatterNd;
    shaping: Reshape, Transpose, ExpandDims, Squeeze, Shape, Fill, Range1d;
    joining: Concat, Split, Stack, Tile, Pad;
    slicing: SliceByIndex, SliceBySize, SliceUpdate;
    selection: Select, Topk;
    sequence: Cumsum, Reverse, ReverseSequence, SlidingWindows, Argsort;
    masks: BandPart, NonZero, OneHot;
    reshaping: Flatten2d, FillLike, ReshapeLike;
    blocks: DepthToSpace, SpaceToDepth, PixelShuffle, PixelUnshuffle, SpaceToBatch, BatchToSpace;
    resizing: UpsampleNearestNeighbor, UpsampleBilinear, ResizeNearestNeighbor, ResizeBilinear, Resize, Crop;
    sampling: Resample, Affine, CropResize;
    detection: NonMaximumSuppression;
    random: RandomBernoulli, RandomNormal, RandomUniform, RandomCategorical;
    recurrent: Rnn, Gru, Lstm;
    state: ReadState, WriteState;
    compressed: ConstexprLutToDense, ConstexprSparseToDense, ConstexprLutToSparse,
        ConstexprSparseBlockwiseShiftScale, ConstexprAffineDequantize, ConstexprCast;
    quantization: Quantize, Dequantize;
    control: Cond, WhileLoop;
    lists: MakeList, ListLength, ListWrite, ListRead, ListGather, ListScatter, Classify;
    llm: LlmRmsNorm, LlmLinear, LlmEmbedding, LlmDequantize, LlmRope, LlmAttention, LlmGatedMlp, LlmHeadLoss,
        LlmRmsNormGrad, LlmAttentionGrad, LlmHeadLossGrad;
}

/// Operations that coremltools knows and the catalogue lacks.
pub const UNSUPPORTED: &[&str] = &["conv_quantized"];

impl OpKind {
    /// The name in MIL text.
    pub fn name(self) -> &'static str {
        self.def().name()
    }

    /// Whether it is one of Core ML's, not of Rigel's dialect.
    pub fn is_core_ml(self) -> bool {
        !self.name().contains('.')
    }

    /// Whether it makes a constant from compressed data.
    pub fn is_constexpr(self) -> bool {
        use OpKind::*;
        matches!(
            self,
            ConstexprBlockwiseShiftScale
                | ConstexprLutToDense
                | ConstexprSparseToDense
                | ConstexprLutToSparse
                | ConstexprSparseBlockwiseShiftScale
                | ConstexprAffineDequantize
                | ConstexprCast
        )
    }

    /// The operation called `name`.
    pub fn from_name(name: &str) -> Option<OpKind> {
        OPS.iter().copied().find(|k| k.name() == name)
    }

    /// The slot of parameter `name` in [`Operation::args`](crate::Operation::args).
    pub fn param_index(self, name: &str) -> Option<usize> {
        self.def().params().iter().position(|p| p.name == name)
    }
}

/// What an operation does besides computing its results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing: equal arguments give equal results, unused ones can go.
    Pure,
    /// It reads a state.
    ReadsState,
    /// It changes a state.
    WritesState,
    /// It draws random numbers.
    Random,
}

/// A named input of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name in MIL text.
    pub name: &'static str,
    /// Whether it must be given.
    pub required: bool,
    /// Whether it must be known at compile time.
    pub constant: bool,
    /// Whether it takes a list of values.
    pub variadic: bool,
    /// What is accepted.
    pub domain: Domain,
}

/// What types a parameter accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Anything.
    Any,
    /// Tensors of floats.
    Float,
    /// Tensors of integers.
    Int,
    /// Tensors of floats or integers.
    Number,
    /// Tensors of truth values.
    Bool,
    /// Strings.
    Str,
    /// States.
    State,
    /// Weights in any storage format, block-quantised ones included.
    Weight,
}

impl Domain {
    /// Whether `ty` is accepted.
    pub fn accepts(self, ty: &Type) -> bool {
        let dtype = match ty {
            Type::Tensor(t) => t.dtype,
            Type::State(_) => return matches!(self, Domain::State | Domain::Any),
            _ => return self == Domain::Any,
        };
        match self {
            Domain::Any => true,
            Domain::Float => dtype.is_float(),
            Domain::Int => dtype.is_int(),
            Domain::Number => dtype.is_float() || dtype.is_int(),
            Domain::Bool => dtype == DType::Bool,
            Domain::Str => dtype == DType::Str,
            Domain::State => false,
            Domain::Weight => dtype.is_float() || dtype.is_block_quantized(),
        }
    }
}

impl Param {
    /// A required parameter.
    pub const fn new(name: &'static str, domain: Domain) -> Self {
        Param { name, required: true, constant: false, variadic: false, domain }
    }

    /// It may be left out.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// It must be known at compile time.
    #[must_use]
    pub const fn constant(mut self) -> Self {
        self.constant = true;
        self
    }

    /// It takes a list.
    #[must_use]
    pub const fn variadic(mut self) -> Self {
        self.variadic = true;
        self
    }
}

/// Work that one execution does.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Cost {
    /// Floating-point operations; a multiply-add is two.
    pub flops: f64,
    /// Bytes read and written once each.
    pub bytes: f64,
}

/// The definition of an operation: its struct's doc comment says what it means.
pub trait OpDef: Sync {
    /// The name in MIL text.
    fn name(&self) -> &'static str;

    /// The first operation set that has it.
    fn opset(&self) -> Opset {
        Opset::Ios15
    }

    /// Its inputs.
    fn params(&self) -> &'static [Param];

    /// What this use of it does besides computing.
    fn effect(&self, op: &OpView<'_>) -> Effect {
        let _ = op;
        Effect::Pure
    }

    /// Types of the results.
    ///
    /// # Errors
    /// When the arguments do not fit.
    fn infer(&self, op: &OpView<'_>) -> Result<Vec<Type>, OpError>;

    /// The reference evaluation: correct and slow on purpose.
    ///
    /// # Errors
    /// When values (not types) make it impossible, such as an index out of range.
    fn eval(&self, cx: &mut EvalCx<'_, '_>) -> Result<Vec<Value>, OpError>;

    /// Floating-point operations of one execution, unknown sizes counting 1: a multiply-add is two,
    /// any other operation or elementary function one. The default: one an output element.
    fn flops(&self, op: &OpView<'_>, results: &[Type]) -> f64 {
        let _ = op;
        elements(results)
    }

    /// Work of one execution. The default: [`OpDef::flops`], and all bytes once.
    fn cost(&self, op: &OpView<'_>, results: &[Type]) -> Cost {
        Cost { flops: self.flops(op, results), bytes: op.arg_bytes() + bytes(results) }
    }

    /// Whether [`OpDef::decompose`] has something to say.
    fn is_composite(&self) -> bool {
        false
    }

    /// The same meaning in simpler operations, for composite ones: emits them and returns the
    /// values that take the place of the results.
    ///
    /// # Errors
    /// When this use of the operation has no simpler form.
    fn decompose(
        &self,
        op: &OpView<'_>,
        b: &mut FunctionBuilder<'_>,
    ) -> Result<Vec<ValueId>, OpError> {
        let _ = (op, b);
        Err(OpError::unsupported(format!("{} has no decomposition", self.name())))
    }
}

/// Elements of all tensors among `types` (unknown sizes count 1).
pub fn elements(types: &[Type]) -> f64 {
    types.iter().filter_map(Type::as_tensor).map(count).sum()
}

/// Bytes of all tensors among `types` (unknown sizes count 1).
pub fn bytes(types: &[Type]) -> f64 {
    types.iter().filter_map(Type::as_tensor).map(|t| count(t) * t.dtype.bits() / 8.0).sum()
}

fn count(t: &TensorType) -> f64 {
    t.shape.iter().map(|d| d.fixed().unwrap_or(1) as f64).product()
}
