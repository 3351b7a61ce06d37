//! Constant values: typed literals, in the program or in the weight store.

use tensor::{DType, Element, Tensor, WeightId, WeightStore};

use crate::{OpError, TensorType, Type};

/// A constant with its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Literal {
    /// Its type.
    pub ty: Type,
    /// Its value, in the form that the type prescribes.
    pub payload: Payload,
}

/// The value of a [`Literal`]. Items of lists, tuples and dictionaries have the types that the
/// enclosing type gives them.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Elements of a tensor that is not of strings.
    Tensor(Tensor),
    /// Elements of a string tensor, row-major.
    Strings(Vec<String>),
    /// A tensor in the program's weight store.
    Weight(WeightId),
    /// Items of a list or tuple.
    Items(Vec<Payload>),
    /// Entries of a dictionary, in order.
    Entries(Vec<(Payload, Payload)>),
}

impl Payload {
    /// As [`Literal::check`].
    fn check(&self, ty: &Type, weights: &WeightStore) -> Result<(), OpError> {
        let mismatch =
            |what: String| Err(OpError::invalid(format!("a constant of type {ty} holds {what}")));
        let tensor = |t: &Tensor| {
            let own = TensorType::new(t.dtype(), t.shape().iter().copied());
            let same = ty.as_tensor().is_some_and(|ty| ty.compatible(&own));
            if same { Ok(()) } else { mismatch(own.to_string()) }
        };
        match (self, ty) {
            (Payload::Tensor(t), _) => tensor(t),
            (Payload::Weight(id), _) => match weights.get(*id) {
                Some(weight) => tensor(&weight.tensor),
                None => mismatch(format!("{id}, which is not in the store")),
            },
            (Payload::Strings(strings), Type::Tensor(t)) if t.dtype == DType::Str => {
                let count = t.fixed_shape().map(|s| tensor::element_count(&s));
                match count {
                    Some(n) if n != Some(strings.len()) => {
                        mismatch(format!("{} strings", strings.len()))
                    }
                    _ => Ok(()),
                }
            }
            (Payload::Items(items), Type::List(item, n)) if n.is_none_or(|n| n == items.len()) => {
                items.iter().try_for_each(|p| p.check(item, weights))
            }
            (Payload::Items(items), Type::Tuple(types)) if items.len() == types.len() => {
                items.iter().zip(types).try_for_each(|(p, ty)| p.check(ty, weights))
            }
            (Payload::Entries(entries), Type::Dict(key, value)) => {
                entries.iter().try_for_each(|(k, v)| {
                    k.check(key, weights).and_then(|()| v.check(value, weights))
                })
            }
            (Payload::Strings(_), _) => mismatch("strings".into()),
            (Payload::Items(items), _) => mismatch(format!("{} items", items.len())),
            (Payload::Entries(_), _) => mismatch("entries".into()),
        }
    }

    /// Calls `f` on this payload and all inside of it.
    pub fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Payload)) {
        f(self);
        match self {
            Payload::Items(items) => items.iter().for_each(|p| p.for_each(f)),
            Payload::Entries(entries) => entries.iter().for_each(|(key, value)| {
                key.for_each(f);
                value.for_each(f);
            }),
            Payload::Tensor(_) | Payload::Strings(_) | Payload::Weight(_) => {}
        }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Payload::Tensor(a), Payload::Tensor(b)) => {
                a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes()[..] == b.bytes()[..]
            }
            (Payload::Strings(a), Payload::Strings(b)) => a == b,
            (Payload::Weight(a), Payload::Weight(b)) => a == b,
            (Payload::Items(a), Payload::Items(b)) => a == b,
            (Payload::Entries(a), Payload::Entries(b)) => a == b,
            _ => false,
        }
    }
}

impl Literal {
    /// A tensor constant held in the program.
    pub fn tensor(tensor: Tensor) -> Self {
        let ty = TensorType::new(tensor.dtype(), tensor.shape().iter().copied());
        Literal { ty: ty.into(), payload: Payload::Tensor(tensor) }
    }

    /// A scalar of `T`'s type.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::array(&[], &[value])
    }

    /// A vector of `T`'s type.
    pub fn vector<T: Element>(values: &[T]) -> Self {
        Self::array(&[values.len()], values)
    }

    fn array<T: Element>(shape: &[usize], values: &[T]) -> Self {
        Self::tensor(
            Tensor::from_slice(shape, values).expect("length is the shape's by construction"),
        )
    }

    /// A scalar truth value.
    pub fn bool(value: bool) -> Self {
        Self::bools(&[], &[value])
    }

    /// A vector of truth values.
    pub fn bool_vector(values: &[bool]) -> Self {
        Self::bools(&[values.len()], values)
    }

    fn bools(shape: &[usize], values: &[bool]) -> Self {
        let bytes: Vec<u8> = values.iter().map(|&b| b.into()).collect();
        let tensor = Tensor::new(DType::Bool, shape, tensor::Bytes::copy_from(&bytes));
        Self::tensor(tensor.expect("length is the shape's by construction"))
    }

    /// A scalar string.
    pub fn string(value: impl Into<String>) -> Self {
        let ty = TensorType::scalar(DType::Str).into();
        Literal { ty, payload: Payload::Strings(vec![value.into()]) }
    }

    /// A reference to a weight; its type is that of the stored tensor.
    ///
    /// # Errors
    /// When the id is not of `weights`.
    pub fn weight(weights: &WeightStore, id: WeightId) -> Result<Self, OpError> {
        let weight =
            weights.get(id).ok_or_else(|| OpError::invalid(format!("no {id} in the store")))?;
        let tensor = &weight.tensor;
        let ty = TensorType::new(tensor.dtype(), tensor.shape().iter().copied());
        Ok(Literal { ty: ty.into(), payload: Payload::Weight(id) })
    }

    /// Checks that the value has the type, and that the weights it refers to exist.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, weights: &WeightStore) -> Result<(), OpError> {
        self.payload.check(&self.ty, weights)
    }

    /// The tensor behind an immediate or a weight; `None` for strings and compound values.
    pub fn resolve<'a>(&'a self, weights: &'a WeightStore) -> Option<&'a Tensor> {
        match &self.payload {
            Payload::Tensor(t) => Some(t),
            Payload::Weight(id) => weights.get(*id).map(|w| &w.tensor),
            _ => None,
        }
    }

    /// The string of a scalar string literal.
    pub fn as_str(&self) -> Option<&str> {
        match &self.payload {
            Payload::Strings(s) if s.len() == 1 => Some(&s[0]),
            _ => None,
        }
    }
}
