//! The seam between a plan and the code of its steps: kernels over operands' bytes.

use bytemuck::{AnyBitPattern, NoUninit};
use exec::State;
use kernels::Pool;
use mil::{OpError, ValueId};
use tensor::{DType, Tensor};

/// What a step runs: sizes and options are fixed when it is bound.
pub(crate) trait Kernel: Send + Sync {
    /// Inputs whose memory the first output may take over, being of the same length.
    fn in_place(&self) -> &'static [usize] {
        &[]
    }

    /// Computes `outs` (results, then scratch memory) from `ins`.
    ///
    /// # Errors
    /// When values (not types) make it impossible.
    fn run(&self, cx: &mut RunCx<'_>, ins: &[&[u8]], outs: &mut [&mut [u8]])
    -> Result<(), OpError>;
}

/// What a kernel may use besides its operands.
pub(crate) struct RunCx<'a> {
    /// Threads.
    pub(crate) pool: &'a Pool,
    /// The memory of all states.
    pub(crate) state: &'a mut State,
    /// The input that lies in the first output's memory; its slice in `ins` is empty.
    pub(crate) in_place: Option<usize>,
}

/// An input of a step.
#[derive(Clone)]
pub(crate) struct Operand {
    /// Where it comes from.
    pub(crate) source: Source,
    /// Element type.
    pub(crate) dtype: DType,
    /// Dimensions.
    pub(crate) shape: Vec<usize>,
}

/// Where an input comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// A value of the function.
    Value(ValueId),
    /// A value of a narrower float type, converted to `fp32`.
    Widened(ValueId),
    /// A constant.
    Const(Tensor),
    /// Cosines or sines `[T, R/2]` of a rotary embedding, which steps share.
    Angles {
        /// Positions `[T]`.
        positions: ValueId,
        /// Frequencies `[R/2]`, `fp32`.
        inv_freq: Tensor,
        /// Sines, not cosines.
        sine: bool,
    },
}

impl Operand {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// A constant operand.
    pub(crate) fn constant(tensor: Tensor) -> Self {
        Operand {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            source: Source::Const(tensor),
        }
    }

    /// The constant, if it is one.
    pub(crate) fn as_const(&self) -> Option<&Tensor> {
        match &self.source {
            Source::Const(t) => Some(t),
            _ => None,
        }
    }
}

/// How an operation runs on the CPU.
pub(crate) enum Binding {
    /// By a kernel.
    Native(Native),
    /// Not at all: results lie in the memory of an operand, at these byte offsets.
    View {
        /// Whose memory.
        of: Operand,
        /// Offset of each result in it.
        offsets: Vec<usize>,
    },
    /// Not at all: the results are these constants, of which nothing reads those that are missing.
    Constants(Vec<Option<Tensor>>),
}

/// A kernel with its operands.
pub(crate) struct Native {
    /// The code.
    pub(crate) kernel: Box<dyn Kernel>,
    /// Its inputs.
    pub(crate) inputs: Vec<Operand>,
    /// Bytes of each piece of memory it needs while running.
    pub(crate) scratch: Vec<usize>,
    /// Whether it computes in `fp32`, so that results of a narrower float type are converted.
    pub(crate) floats: bool,
    /// Names of the states that it writes.
    pub(crate) writes: Vec<String>,
}

impl Native {
    /// A kernel that computes in `fp32`.
    pub(crate) fn floats(kernel: impl Kernel + 'static, inputs: Vec<Operand>) -> Self {
        Native {
            kernel: Box::new(kernel),
            inputs,
            scratch: Vec::new(),
            floats: true,
            writes: Vec::new(),
        }
    }

    /// A kernel that moves elements of any type.
    pub(crate) fn moves(kernel: impl Kernel + 'static, inputs: Vec<Operand>) -> Self {
        Native {
            kernel: Box::new(kernel),
            inputs,
            scratch: Vec::new(),
            floats: false,
            writes: Vec::new(),
        }
    }

    /// The same, writing these states.
    pub(crate) fn writing(mut self, states: &[&String]) -> Self {
        self.writes = states.iter().map(|&s| s.clone()).collect();
        self
    }

    /// The same with scratch memory of the given numbers of `fp32` elements.
    pub(crate) fn with_scratch(mut self, elements: &[usize]) -> Self {
        self.scratch = elements.iter().map(|n| n * size_of::<f32>()).collect();
        self
    }
}

impl From<Native> for Binding {
    fn from(n: Native) -> Self {
        Binding::Native(n)
    }
}

/// `bytes` as numbers. The plan aligns every operand for its type; an empty slice, which stands for
/// what is computed in place, needs no alignment.
pub(crate) fn numbers<T: AnyBitPattern>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

/// `bytes` as numbers, to write.
pub(crate) fn numbers_mut<T: AnyBitPattern + NoUninit>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

/// `bytes` as `fp32`.
pub(crate) fn f32s(bytes: &[u8]) -> &[f32] {
    numbers(bytes)
}

/// `bytes` as `fp32`, to write.
pub(crate) fn f32s_mut(bytes: &mut [u8]) -> &mut [f32] {
    numbers_mut(bytes)
}

/// `bytes` as `int32`.
pub(crate) fn i32s(bytes: &[u8]) -> &[i32] {
    numbers(bytes)
}
