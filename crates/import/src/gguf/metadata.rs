//! The key-value part of a GGUF file, with typed access whose errors name file and key.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::value::{Array, Value};
use crate::{ImportError, Result};

/// Metadata in the order of the file.
#[derive(Clone, Debug)]
pub struct Metadata {
    pub(super) file: PathBuf,
    pub(super) values: IndexMap<String, Value>,
}

impl Metadata {
    /// The value of `key` as `T`: an integer type it fits in, `f32`, `bool`, `&str`, or a `Vec` of
    /// any of those.
    ///
    /// # Errors
    /// When the key is missing or holds something else.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.find(key)?.ok_or_else(|| self.error(key, "no such key"))
    }

    /// As [`Metadata::get`], but `None` when the key is missing.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn find<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|why| self.error(key, why))
    }

    /// The value of `key`, whatever it is.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The array at `key`.
    ///
    /// # Errors
    /// When the key is missing or no array.
    pub fn array(&self, key: &str) -> Result<&Array> {
        match self.values.get(key) {
            Some(Value::Array(array)) => Ok(array),
            Some(other) => Err(self.error(key, format!("holds {}, not an array", describe(other)))),
            None => Err(self.error(key, "no such key")),
        }
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The file that the metadata came from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// An `invalid` error about `key`, for a caller that finds its value unusable.
    pub fn error(&self, key: &str, why: impl Into<String>) -> ImportError {
        ImportError::invalid(&self.file, why).key(key)
    }
}

/// What a metadata value can be read as; see [`Metadata::get`].
pub trait FromValue<'a>: Sized {
    /// The conversion, or why not.
    ///
    /// # Errors
    /// One line saying what the value is and what was wanted.
    fn from_value(value: &'a Value) -> std::result::Result<Self, String>;
}

fn describe(value: &Value) -> String {
    match value {
        Value::Array(a) => format!("an array of {}", a.element_type().name()),
        other => other.value_type().name().to_owned(),
    }
}

fn mismatch(value: &Value, wanted: &str) -> String {
    format!("holds {}, not {wanted}", describe(value))
}

fn integer(value: &Value) -> Option<i128> {
    Some(match *value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        _ => return None,
    })
}

fn elements<T>(
    value: &Value,
    wanted: &str,
    convert: impl Fn(&Value) -> std::result::Result<T, String>,
) -> std::result::Result<Vec<T>, String> {
    let Value::Array(array) = value else { return Err(mismatch(value, wanted)) };
    (0..array.len())
        .map(|i| {
            let item = array.scalar_at(i).ok_or_else(|| mismatch(value, wanted))?;
            convert(&item).map_err(|why| format!("element {i} {why}"))
        })
        .collect()
}

macro_rules! from_scalar {
    ($($ty:ident $wanted:literal $array:literal $convert:expr;)*) => { $(
        impl FromValue<'_> for $ty {
            fn from_value(value: &Value) -> std::result::Result<Self, String> {
                $convert(value).map_err(|out_of_range: Option<i128>| match out_of_range {
                    Some(v) => format!("holds {v}, which is out of range for {}", $wanted),
                    None => mismatch(value, $wanted),
                })
            }
        }
        impl FromValue<'_> for Vec<$ty> {
            fn from_value(value: &Value) -> std::result::Result<Self, String> {
                elements(value, $array, |item| $ty::from_value(item))
            }
        }
    )* };
}

fn int<T: TryFrom<i128>>(value: &Value) -> std::result::Result<T, Option<i128>> {
    let v = integer(value).ok_or(None)?;
    T::try_from(v).map_err(|_| Some(v))
}

from_scalar! {
    u32 "u32" "an array of u32" int;
    i32 "i32" "an array of i32" int;
    u64 "u64" "an array of u64" int;
    usize "usize" "an array of usize" int;
    f32 "f32" "an array of f32" |v: &Value| match *v {
        Value::F32(f) => Ok(f),
        Value::F64(f) => Ok(f as f32),
        _ => Err(None),
    };
    bool "bool" "an array of bool" |v: &Value| match *v {
        Value::Bool(b) => Ok(b),
        _ => Err(None),
    };
}

impl<'a> FromValue<'a> for &'a str {
    fn from_value(value: &'a Value) -> std::result::Result<Self, String> {
        match value {
            Value::Str(s) => Ok(s),
            other => Err(mismatch(other, "string")),
        }
    }
}

/// An array of strings, as bytes: not all vocabularies are valid UTF-8.
impl<'a> FromValue<'a> for Vec<&'a [u8]> {
    fn from_value(value: &'a Value) -> std::result::Result<Self, String> {
        const WANTED: &str = "an array of string";
        let Value::Array(array) = value else { return Err(mismatch(value, WANTED)) };
        (0..array.len()).map(|i| array.bytes_of(i).ok_or_else(|| mismatch(value, WANTED))).collect()
    }
}

impl<'a> FromValue<'a> for Vec<&'a str> {
    fn from_value(value: &'a Value) -> std::result::Result<Self, String> {
        let strings = Vec::<&[u8]>::from_value(value)?;
        let text = |(i, s)| std::str::from_utf8(s).map_err(|_| format!("element {i} is not UTF-8"));
        strings.into_iter().enumerate().map(text).collect()
    }
}
