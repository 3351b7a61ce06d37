//! Types of values: tensors (a scalar is one of rank 0), lists, tuples, dictionaries, states.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tensor::DType;

use crate::text::{Dialect, write_tensor, write_type};

/// One dimension of a tensor type.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// A known size.
    Fixed(usize),
    /// A size known once the program is specialised, such as the sequence length. Equal names are
    /// equal sizes.
    Symbol(Arc<str>),
    /// A size only known when running; MIL's `?`.
    Unknown,
}

impl Dim {
    /// A symbolic size.
    pub fn symbol(name: &str) -> Self {
        Dim::Symbol(Arc::from(name))
    }

    /// The size, if known.
    pub fn fixed(&self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(*n),
            _ => None,
        }
    }

    /// Whether the two may be the same size at run time.
    pub fn compatible(&self, other: &Dim) -> bool {
        match (self, other) {
            (Dim::Fixed(a), Dim::Fixed(b)) => a == b,
            _ => true,
        }
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::Fixed(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Symbol(s) => f.write_str(s),
            Dim::Unknown => f.write_str("?"),
        }
    }
}

/// Element type and dimensions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, slowest first; none for a scalar.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A tensor type of given dimensions.
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = impl Into<Dim>>) -> Self {
        TensorType { dtype, shape: shape.into_iter().map(Into::into).collect() }
    }

    /// A scalar type.
    pub fn scalar(dtype: DType) -> Self {
        TensorType { dtype, shape: Vec::new() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The dimensions, if all are fixed.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(Dim::fixed).collect()
    }

    /// As [`Type::refined`].
    fn refined(&self, other: &TensorType) -> Option<TensorType> {
        if self.dtype != other.dtype || self.rank() != other.rank() {
            return None;
        }
        let dims = self.shape.iter().zip(&other.shape).map(|(a, b)| match (a, b) {
            (Dim::Unknown, d) | (d, Dim::Unknown) => Some(d.clone()),
            (a, b) => (a == b).then(|| a.clone()),
        });
        Some(TensorType { dtype: self.dtype, shape: dims.collect::<Option<_>>()? })
    }

    /// Same element type and rank, and dimensions that may be equal.
    pub fn compatible(&self, other: &TensorType) -> bool {
        self.dtype == other.dtype
            && self.rank() == other.rank()
            && self.shape.iter().zip(&other.shape).all(|(a, b)| a.compatible(b))
    }
}

/// The form of MIL's 1.3 dialect.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_tensor(f, self, Dialect::V1_3)
    }
}

/// The type of a value. Its `Display` is the form of MIL's 1.3 dialect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// A tensor; a scalar if of rank 0.
    Tensor(TensorType),
    /// Equal-typed items, of known or unknown number.
    List(Box<Type>, Option<usize>),
    /// Items of given types.
    Tuple(Vec<Type>),
    /// Key type and value type.
    Dict(Box<Type>, Box<Type>),
    /// Memory that outlives a call.
    State(TensorType),
}

impl Type {
    /// The tensor type, if this is one (a state is not).
    pub fn as_tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// The type of a state's content.
    pub fn as_state(&self) -> Option<&TensorType> {
        match self {
            Type::State(t) => Some(t),
            _ => None,
        }
    }

    /// Whether a value of type `self` can stand where `other` is expected, up to unknown sizes.
    pub fn compatible(&self, other: &Type) -> bool {
        match (self, other) {
            (Type::Tensor(a), Type::Tensor(b)) | (Type::State(a), Type::State(b)) => {
                a.compatible(b)
            }
            (Type::List(a, n), Type::List(b, m)) => {
                a.compatible(b) && (n.is_none() || m.is_none() || n == m)
            }
            (Type::Tuple(a), Type::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.compatible(b))
            }
            (Type::Dict(k, v), Type::Dict(l, w)) => k.compatible(l) && v.compatible(w),
            _ => false,
        }
    }

    /// The more precise of two types of the same value; `None` if they contradict each other: in
    /// form, element type or rank, or in two sizes neither of which is unknown.
    pub fn refined(&self, other: &Type) -> Option<Type> {
        Some(match (self, other) {
            (Type::Tensor(a), Type::Tensor(b)) => Type::Tensor(a.refined(b)?),
            (Type::State(a), Type::State(b)) => Type::State(a.refined(b)?),
            (Type::List(a, n), Type::List(b, m)) if n.is_none() || m.is_none() || n == m => {
                Type::List(Box::new(a.refined(b)?), n.or(*m))
            }
            (Type::Tuple(a), Type::Tuple(b)) if a.len() == b.len() => {
                Type::Tuple(a.iter().zip(b).map(|(a, b)| a.refined(b)).collect::<Option<_>>()?)
            }
            (Type::Dict(k, v), Type::Dict(l, w)) => {
                Type::Dict(Box::new(k.refined(l)?), Box::new(v.refined(w)?))
            }
            _ => return None,
        })
    }

    /// Calls `f` on every tensor type inside.
    pub fn for_each_tensor(&self, f: &mut dyn FnMut(&TensorType)) {
        match self {
            Type::Tensor(t) | Type::State(t) => f(t),
            Type::List(item, _) => item.for_each_tensor(f),
            Type::Tuple(items) => items.iter().for_each(|t| t.for_each_tensor(f)),
            Type::Dict(k, v) => {
                k.for_each_tensor(f);
                v.for_each_tensor(f);
            }
        }
    }

    /// Every tensor type inside, for rewriting dimensions.
    pub(crate) fn for_each_tensor_mut(&mut self, f: &mut dyn FnMut(&mut TensorType)) {
        match self {
            Type::Tensor(t) | Type::State(t) => f(t),
            Type::List(item, _) => item.for_each_tensor_mut(f),
            Type::Tuple(items) => items.iter_mut().for_each(|t| t.for_each_tensor_mut(f)),
            Type::Dict(k, v) => {
                k.for_each_tensor_mut(f);
                v.for_each_tensor_mut(f);
            }
        }
    }
}

impl From<TensorType> for Type {
    fn from(t: TensorType) -> Self {
        Type::Tensor(t)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_type(f, self, Dialect::V1_3)
    }
}

/// A version of the operation set; later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Opset {
    /// Core ML 5: iOS 15, macOS 12.
    Ios15,
    /// Core ML 6: iOS 16, macOS 13.
    Ios16,
    /// Core ML 7: iOS 17, macOS 14.
    Ios17,
    /// Core ML 8: iOS 18, macOS 15.
    Ios18,
    /// Core ML 9: iOS 26, macOS 26.
    Ios26,
}

impl Opset {
    /// All versions, oldest first.
    pub const ALL: [Opset; 5] =
        [Opset::Ios15, Opset::Ios16, Opset::Ios17, Opset::Ios18, Opset::Ios26];

    /// The name in MIL text.
    pub const fn name(self) -> &'static str {
        match self {
            Opset::Ios15 => "ios15",
            Opset::Ios16 => "ios16",
            Opset::Ios17 => "ios17",
            Opset::Ios18 => "ios18",
            Opset::Ios26 => "ios26",
        }
    }
}

impl fmt::Display for Opset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Opset {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        Opset::ALL.into_iter().find(|o| o.name() == s).ok_or(())
    }
}
