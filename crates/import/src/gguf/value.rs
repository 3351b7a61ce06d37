//! Metadata values, read from a file and made for one. Arrays keep their on-disk bytes, so that a
//! vocabulary of 262,144 pieces costs no allocation per piece.

use std::fmt;

use tensor::Bytes;

use crate::reader::Reader;
use crate::{ImportError, Result};

/// Arrays may hold arrays; ggml itself writes one level.
const MAX_ARRAY_DEPTH: usize = 8;

macro_rules! scalar_types {
    ($($variant:ident $ty:ident $id:literal $name:literal $size:literal,)*) => {
        /// The type of a metadata value, numbered as in a file.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum ValueType {
            $(#[doc = concat!("`", $name, "`")] $variant = $id,)*
            /// Truth value, one byte.
            Bool = 7,
            /// UTF-8 text.
            Str = 8,
            /// Values of one type.
            Array = 9,
        }

        /// A metadata value.
        #[derive(Clone, Debug)]
        pub enum Value {
            $(#[doc = concat!("`", $name, "`")] $variant($ty),)*
            /// Truth value.
            Bool(bool),
            /// UTF-8 text.
            Str(String),
            /// Values of one type.
            Array(Array),
        }

        impl ValueType {
            fn from_id(id: u32) -> Option<Self> {
                Some(match id {
                    $($id => ValueType::$variant,)*
                    7 => ValueType::Bool,
                    8 => ValueType::Str,
                    9 => ValueType::Array,
                    _ => return None,
                })
            }

            /// Bytes of one value; `None` if they vary.
            fn size(self) -> Option<usize> {
                Some(match self {
                    $(ValueType::$variant => $size,)*
                    ValueType::Bool => 1,
                    ValueType::Str | ValueType::Array => return None,
                })
            }

            /// The name used by messages: `u32`, `f32`, `bool`, `string`, `array`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ValueType::$variant => $name,)*
                    ValueType::Bool => "bool",
                    ValueType::Str => "string",
                    ValueType::Array => "array",
                }
            }
        }

        impl Value {
            /// The type, as numbered in a file.
            pub fn value_type(&self) -> ValueType {
                match self {
                    $(Value::$variant(_) => ValueType::$variant,)*
                    Value::Bool(_) => ValueType::Bool,
                    Value::Str(_) => ValueType::Str,
                    Value::Array(_) => ValueType::Array,
                }
            }

            fn read_scalar(ty: ValueType, r: &mut Reader<'_>) -> Result<Value> {
                Ok(match ty {
                    $(ValueType::$variant => Value::$variant(r.$ty("a metadata value")?),)*
                    ValueType::Bool => Value::Bool(read_bool(r)?),
                    ValueType::Str => Value::Str(read_string(r, "a metadata string")?.to_owned()),
                    ValueType::Array => unreachable!("the caller reads arrays"),
                })
            }

            /// Appends the on-disk form, without the type number.
            pub(super) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Value::$variant(v) => out.extend_from_slice(&v.to_le_bytes()),)*
                    Value::Bool(v) => out.push(u8::from(*v)),
                    Value::Str(v) => encode_string(v.as_bytes(), out),
                    Value::Array(v) => v.encode(out),
                }
            }
        }

        impl Array {
            fn scalar(ty: ValueType, bytes: &[u8]) -> Value {
                match ty {
                    $(ValueType::$variant => Value::$variant($ty::from_le_bytes(
                        bytes.try_into().expect("cut to the type's size"))),)*
                    ValueType::Bool => Value::Bool(bytes[0] != 0),
                    ValueType::Str | ValueType::Array => unreachable!("kept apart"),
                }
            }
        }

        $(impl From<$ty> for Value {
            fn from(v: $ty) -> Self { Value::$variant(v) }
        }
        impl From<&[$ty]> for Value {
            fn from(values: &[$ty]) -> Self {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                Value::Array(Array { ty: ValueType::$variant, len: values.len(), items: Items::Fixed(Bytes::copy_from(&bytes)) })
            }
        })*
    };
}
scalar_types! {
    U8 u8 0 "u8" 1, I8 i8 1 "i8" 1, U16 u16 2 "u16" 2, I16 i16 3 "i16" 2, U32 u32 4 "u32" 4, I32 i32 5 "i32" 4,
    F32 f32 6 "f32" 4, U64 u64 10 "u64" 8, I64 i64 11 "i64" 8, F64 f64 12 "f64" 8,
}

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Value::Bool(v)
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Value::Str(v.to_owned())
    }
}

impl From<&[&str]> for Value {
    fn from(values: &[&str]) -> Self {
        let mut bytes = Vec::new();
        let mut starts = Vec::with_capacity(values.len());
        for v in values {
            starts.push(bytes.len());
            encode_string(v.as_bytes(), &mut bytes);
        }
        let items = Items::Strings { bytes: Bytes::copy_from(&bytes), starts };
        Value::Array(Array { ty: ValueType::Str, len: values.len(), items })
    }
}

/// A metadata array: values of one type.
#[derive(Clone)]
pub struct Array {
    ty: ValueType,
    len: usize,
    items: Items,
}

#[derive(Clone)]
enum Items {
    /// The values one after the other.
    Fixed(Bytes),
    /// Length-prefixed strings, and where each begins.
    Strings {
        bytes: Bytes,
        starts: Vec<usize>,
    },
    Arrays(Vec<Array>),
}

impl Array {
    /// The type of the values.
    pub fn element_type(&self) -> ValueType {
        self.ty
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value at `index`. Numbers and truth values only; see [`Array::bytes_of`] and [`Array::arrays`].
    pub fn scalar_at(&self, index: usize) -> Option<Value> {
        let size = self.ty.size()?;
        match &self.items {
            Items::Fixed(bytes) if index < self.len => {
                Some(Array::scalar(self.ty, &bytes[index * size..(index + 1) * size]))
            }
            _ => None,
        }
    }

    /// The string at `index`, as it is in the file: not all vocabularies are valid UTF-8.
    pub fn bytes_of(&self, index: usize) -> Option<&[u8]> {
        match &self.items {
            Items::Strings { bytes, starts } => {
                let start = starts.get(index)? + 8;
                let end = starts.get(index + 1).copied().unwrap_or(bytes.len());
                Some(&bytes[start..end])
            }
            _ => None,
        }
    }

    /// The arrays of an array of arrays; empty for any other.
    pub fn arrays(&self) -> &[Array] {
        match &self.items {
            Items::Arrays(arrays) => arrays,
            _ => &[],
        }
    }

    fn read(r: &mut Reader<'_>, file: &Bytes, depth: usize) -> Result<Array> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(r.limit(format!("metadata arrays nested deeper than {MAX_ARRAY_DEPTH}")));
        }
        let ty = read_type(r)?;
        let count = r.u64("an array's length")?;
        let start = r.pos();
        let window = |end| file.slice(start..end).expect("the reader stays inside the file");
        let items = match ty {
            ValueType::Str => {
                let mut starts = Vec::with_capacity(bounded(count, r.remaining() / 8));
                for _ in 0..count {
                    starts.push(r.pos() - start);
                    read_bytes(r, "a string of a metadata array")?;
                }
                Items::Strings { bytes: window(r.pos()), starts }
            }
            ValueType::Array => {
                // An inner array takes at least 12 bytes: its type and its length.
                let mut arrays = Vec::with_capacity(bounded(count, r.remaining() / 12));
                for _ in 0..count {
                    arrays.push(Array::read(r, file, depth + 1)?);
                }
                Items::Arrays(arrays)
            }
            _ => {
                let size = ty.size().expect("only strings and arrays vary in size") as u64;
                let len = count.checked_mul(size);
                let len =
                    len.ok_or_else(|| r.limit(format!("array of {count} {} values", ty.name())))?;
                r.take(len, "a metadata array")?;
                Items::Fixed(window(r.pos()))
            }
        };
        let len = usize::try_from(count).expect("as many values were read");
        Ok(Array { ty, len, items })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.ty as u32).to_le_bytes());
        out.extend_from_slice(&(self.len as u64).to_le_bytes());
        match &self.items {
            Items::Fixed(bytes) | Items::Strings { bytes, .. } => out.extend_from_slice(bytes),
            Items::Arrays(arrays) => arrays.iter().for_each(|a| a.encode(out)),
        }
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.ty.name(), self.len)
    }
}

/// `count` as a capacity, but no more than the rest of the file can hold.
fn bounded(count: u64, most: usize) -> usize {
    usize::try_from(count).map_or(most, |c| c.min(most))
}

impl Value {
    /// Reads a type number and the value. `file` is what `r` reads from.
    pub(super) fn read(r: &mut Reader<'_>, file: &Bytes) -> Result<Value> {
        match read_type(r)? {
            ValueType::Array => Ok(Value::Array(Array::read(r, file, 1)?)),
            ty => Value::read_scalar(ty, r),
        }
    }
}

fn read_type(r: &mut Reader<'_>) -> Result<ValueType> {
    let at = r.pos();
    let id = r.u32("a metadata value's type")?;
    ValueType::from_id(id).ok_or_else(|| {
        ImportError::invalid(r.file, format!("unknown metadata value type {id}")).at(at)
    })
}

fn read_bool(r: &mut Reader<'_>) -> Result<bool> {
    let at = r.pos();
    match r.u8("a metadata value")? {
        0 => Ok(false),
        1 => Ok(true),
        v => Err(ImportError::invalid(r.file, format!("a bool is 0 or 1, not {v}")).at(at)),
    }
}

fn read_bytes<'a>(r: &mut Reader<'a>, what: &str) -> Result<&'a [u8]> {
    let len = r.u64(what)?;
    r.take(len, what)
}

/// A length-prefixed string that has to be UTF-8.
pub(super) fn read_string<'a>(r: &mut Reader<'a>, what: &str) -> Result<&'a str> {
    let bytes = read_bytes(r, what)?;
    let at = r.pos() - bytes.len();
    std::str::from_utf8(bytes).map_err(|e| {
        ImportError::invalid(r.file, format!("{what} is not UTF-8")).at(at + e.valid_up_to())
    })
}

pub(super) fn encode_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}
