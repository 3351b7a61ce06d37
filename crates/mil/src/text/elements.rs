//! Elements of tensors: from numbers in text to bytes, and back.

use std::fmt::{self, Write};

use tensor::{DType, Tensor};

use super::hexfloat;
use super::lexer::Token;
use crate::eval::{functions, tensor_floats, tensor_ints};

/// Gathers the bytes of a tensor, element by element.
pub(super) struct ElementWriter {
    dtype: DType,
    pub(super) bytes: Vec<u8>,
    /// Elements so far.
    pub(super) len: usize,
}

impl ElementWriter {
    /// No elements yet, to be gathered in `memory`; `None` for types whose elements cannot be written as
    /// numbers.
    pub(super) fn new(dtype: DType, mut memory: Vec<u8>) -> Option<Self> {
        let number = dtype == DType::Bool || dtype.is_int() || has_float_text(dtype);
        memory.clear();
        number.then_some(ElementWriter { dtype, bytes: memory, len: 0 })
    }

    /// Adds the element that `token` writes; the error says what is wrong with it.
    pub(super) fn push(&mut self, token: Token<'_>) -> Result<(), String> {
        match self.dtype {
            DType::Bool => match token {
                Token::Name("true") => self.bytes.push(1),
                Token::Name("false") => self.bytes.push(0),
                _ => return Err(format!("true or false is needed, not {}", token.describe())),
            },
            d if d.is_int() => self.push_int(token)?,
            _ => self.push_float(token)?,
        }
        self.len += 1;
        Ok(())
    }

    fn push_int(&mut self, token: Token<'_>) -> Result<(), String> {
        let needed = || format!("an integer is needed, not {}", token.describe());
        let Token::Number(text) = token else { return Err(needed()) };
        if self.dtype == DType::I32
            && let Ok(value) = text.parse::<i32>()
        {
            self.bytes.extend_from_slice(&value.to_le_bytes());
            return Ok(());
        }
        let value: i128 = text.parse().map_err(|_| needed())?;
        let fits = |(low, high): (i128, i128)| (low..=high).contains(&value);
        if !self.dtype.int_range().is_some_and(fits) {
            return Err(format!("{value} does not fit {}", self.dtype));
        }
        let (len, size) = (self.dtype.block_len(), self.dtype.block_bytes());
        if len == 1 {
            self.bytes.extend_from_slice(&value.to_le_bytes()[..size]);
            return Ok(());
        }
        let bits = size * 8 / len;
        for bit in 0..bits {
            let at = self.len * bits + bit;
            if at / 8 == self.bytes.len() {
                self.bytes.push(0);
            }
            self.bytes[at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
        }
        Ok(())
    }

    fn push_float(&mut self, token: Token<'_>) -> Result<(), String> {
        let (x, finite) = match token {
            Token::Number("-inf") => (Some(f64::NEG_INFINITY), false),
            Token::Name("inf") => (Some(f64::INFINITY), false),
            Token::Name("nan") => (Some(f64::NAN), false),
            Token::Number(text) => (hexfloat::parse(text).or_else(|| text.parse().ok()), true),
            _ => (None, true),
        };
        let x = x.ok_or_else(|| format!("a float is needed, not {}", token.describe()))?;
        let fits = match self.dtype {
            DType::F16 => {
                let rounded = functions::half(x);
                self.bytes.extend(rounded.to_le_bytes());
                rounded.is_finite()
            }
            DType::Bf16 => {
                let rounded = functions::brain(x);
                self.bytes.extend(rounded.to_le_bytes());
                rounded.is_finite()
            }
            DType::F64 => {
                self.bytes.extend(x.to_le_bytes());
                x.is_finite()
            }
            _ => {
                let rounded = x as f32;
                self.bytes.extend(rounded.to_le_bytes());
                rounded.is_finite()
            }
        };
        if finite && !fits {
            return Err(format!("{} does not fit {}", token.describe(), self.dtype));
        }
        Ok(())
    }
}

fn has_float_text(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::F32 | DType::F64 | DType::Bf16)
}

/// The elements of a tensor, to be written one by one.
pub(super) enum Elements {
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    /// Of `uint64`, which [`Elements::Ints`] cannot hold all of.
    Unsigned(Vec<u64>),
    Floats(Vec<f64>),
}

impl Elements {
    /// The elements of `t`; `None` if its type cannot be written as numbers.
    pub(super) fn of(t: &Tensor) -> Option<Self> {
        match t.dtype() {
            DType::Bool => Some(Elements::Bools(t.bytes().iter().map(|&b| b != 0).collect())),
            DType::U64 => tensor_ints(t)
                .map(|v| Elements::Unsigned(v.into_iter().map(i64::cast_unsigned).collect())),
            d if d.is_int() => tensor_ints(t).map(Elements::Ints),
            d if has_float_text(d) => tensor_floats(t).map(Elements::Floats),
            _ => None,
        }
    }

    /// Writes element `i`; floats in decimal if `decimal`.
    pub(super) fn write(&self, out: &mut String, i: usize, decimal: bool) -> fmt::Result {
        match self {
            Elements::Bools(v) => write!(out, "{}", v[i]),
            Elements::Ints(v) => write!(out, "{}", v[i]),
            Elements::Unsigned(v) => write!(out, "{}", v[i]),
            Elements::Floats(v) if decimal && v[i].is_finite() => write!(out, "{:?}", v[i]),
            Elements::Floats(v) => hexfloat::write(out, v[i]),
        }
    }
}
