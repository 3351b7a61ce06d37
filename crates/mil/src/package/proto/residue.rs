//! Whether a program's message has parts that a [`Program`](crate::Program) does not hold.

use std::collections::BTreeMap;

use super::*;

/// A message, or a field of one, of a program.
pub(in crate::package) trait Residue {
    /// Whether there is something inside that a program does not hold: fields that are not
    /// modelled, and comments on constants.
    fn has_residue(&self) -> bool;
}

impl<M: Residue> Residue for Kept<M> {
    fn has_residue(&self) -> bool {
        !self.unknown.is_empty() || self.message.has_residue()
    }
}

impl<T: Residue> Residue for Option<T> {
    fn has_residue(&self) -> bool {
        self.as_ref().is_some_and(Residue::has_residue)
    }
}

impl<T: Residue> Residue for Box<T> {
    fn has_residue(&self) -> bool {
        (**self).has_residue()
    }
}

impl<T: Residue> Residue for Vec<T> {
    fn has_residue(&self) -> bool {
        self.iter().any(Residue::has_residue)
    }
}

impl<T: Residue> Residue for BTreeMap<String, T> {
    fn has_residue(&self) -> bool {
        self.values().any(Residue::has_residue)
    }
}

impl Residue for String {
    fn has_residue(&self) -> bool {
        false
    }
}

impl Residue for Value {
    fn has_residue(&self) -> bool {
        !self.doc_string.is_empty() || self.r#type.has_residue() || self.value.has_residue()
    }
}

/// Messages with the fields that are messages themselves.
macro_rules! messages {
    ($($message:ident [$($field:ident),*];)*) => {
        $(impl Residue for $message {
            fn has_residue(&self) -> bool {
                false $(|| self.$field.has_residue())*
            }
        })*
    };
}

/// Choices of messages.
macro_rules! choices {
    ($($choice:ident [$($variant:ident),*];)*) => {
        $(impl Residue for $choice {
            fn has_residue(&self) -> bool {
                match self { $($choice::$variant(inner) => inner.has_residue(),)* }
            }
        })*
    };
}

messages! {
    Program [functions, attributes];
    Function [inputs, block_specializations, attributes];
    Block [inputs, operations, attributes];
    Operation [inputs, outputs, blocks, attributes];
    Argument [arguments];
    Binding [binding];
    NamedValueType [r#type];
    ValueType [kind];
    TensorType [dimensions, attributes];
    ListType [r#type, length];
    TupleType [types];
    DictionaryType [key_type, value_type];
    StateType [wrapped_type];
    Dimension [dimension];
    ConstantDimension [];
    UnknownDimension [];
    ImmediateValue [value];
    BlobFileValue [];
    TensorValue [value];
    Floats [];
    Ints [];
    Bools [];
    Strings [];
    LongInts [];
    Doubles [];
    RawBytes [];
    Values [values];
    DictionaryValue [values];
    KeyValuePair [key, value];
}

choices! {
    BindingKind [Name, Value];
    TypeKind [Tensor, List, Tuple, Dictionary, State];
    DimensionKind [Constant, Unknown];
    ValueKind [Immediate, BlobFile];
    ImmediateKind [Tensor, Tuple, List, Dictionary];
    Elements [Floats, Ints, Bools, Strings, LongInts, Doubles, Bytes];
}
