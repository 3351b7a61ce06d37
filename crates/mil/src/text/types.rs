//! The text form of types.

use std::fmt::{self, Write};

use super::Dialect;
use crate::{TensorType, Type};

/// Writes a type as `dialect` spells it.
pub(crate) fn write_type(out: &mut impl Write, ty: &Type, dialect: Dialect) -> fmt::Result {
    match ty {
        Type::Tensor(t) => write_tensor(out, t, dialect),
        Type::State(t) => {
            out.write_str("state<")?;
            write_tensor(out, t, dialect)?;
            out.write_char('>')
        }
        Type::List(item, len) => {
            out.write_str("list<")?;
            write_type(out, item, dialect)?;
            match len {
                Some(n) => write!(out, ", {n}>"),
                None => out.write_str(", ?>"),
            }
        }
        Type::Dict(key, value) => {
            out.write_str("dict<")?;
            write_type(out, key, dialect)?;
            out.write_str(", ")?;
            write_type(out, value, dialect)?;
            out.write_char('>')
        }
        Type::Tuple(items) => {
            out.write_str("tuple<")?;
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.write_str(", ")?;
                }
                write_type(out, item, dialect)?;
            }
            out.write_char('>')
        }
    }
}

/// Writes a tensor type as `dialect` spells it.
pub(crate) fn write_tensor(out: &mut impl Write, t: &TensorType, dialect: Dialect) -> fmt::Result {
    if t.shape.is_empty() && dialect == Dialect::V1_3 {
        return out.write_str(t.dtype.name());
    }
    write!(out, "tensor<{}, [", t.dtype.name())?;
    for (i, dim) in t.shape.iter().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write!(out, "{dim}")?;
    }
    out.write_str("]>")
}
