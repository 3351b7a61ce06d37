//! Parsing types and literals.

use std::borrow::Cow;
use std::fmt;

use tensor::{Bytes, DType, Tensor};

use super::MAX_DEPTH;
use super::elements::ElementWriter;
use super::lexer::{Result, Token};
use super::parser::Parser;
use crate::{Dim, Error, ErrorKind, Literal, Payload, TensorType, Type};

/// What a weight is called that an attribute or an argument holds; made up when there is one.
#[derive(Clone, Copy)]
pub(super) struct WeightName<'n> {
    /// The function or the first result of the operation.
    pub(super) owner: &'n str,
    /// The attribute; `val` for what `owner` itself stands for.
    pub(super) attribute: &'n str,
}

impl fmt::Display for WeightName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.owner)?;
        if self.attribute == "val" { Ok(()) } else { write!(f, "_{}", self.attribute) }
    }
}

/// Whether `name` begins a type.
pub(super) fn is_type_name(name: &str) -> bool {
    matches!(name, "tensor" | "list" | "dict" | "tuple" | "state" | "tensor_buffer")
        || name.parse::<DType>().is_ok()
}

impl<'s> Parser<'s, '_> {
    /// Runs `f` one level deeper.
    pub(super) fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(self.error(ErrorKind::Limit, message));
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    /// Items up to `close`, separated by commas; the opening mark has been read.
    pub(super) fn items(
        &mut self,
        close: u8,
        mut item: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if self.take(close)? {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.take(close)? {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// A type.
    pub(super) fn ty(&mut self) -> Result<Type> {
        let start = self.start;
        let name = self.name("a type")?;
        if name == "tensor" {
            return Ok(self.tensor_ty()?.into());
        }
        if let Ok(dtype) = name.parse::<DType>() {
            return Ok(TensorType::scalar(dtype).into());
        }
        match name {
            "list" | "dict" | "tuple" | "state" => self.nested(|p| p.compound_ty(name)),
            "tensor_buffer" => Err(self.error_at(
                ErrorKind::Unsupported,
                start,
                "tensor_buffer types, which only the Neural Engine compiler's dumps have",
            )),
            _ => {
                let message = format!("\"{name}\" is not a type");
                Err(self.error_at(ErrorKind::Invalid, start, message))
            }
        }
    }

    fn compound_ty(&mut self, name: &str) -> Result<Type> {
        self.expect(b'<')?;
        let start = self.start;
        let first = self.ty()?;
        Ok(match name {
            "list" => {
                self.expect(b',')?;
                let len = match self.advance()? {
                    Token::Punct(b'?') => None,
                    Token::Number(n) => Some(n.parse().map_err(|_| {
                        self.error_at(ErrorKind::Invalid, start, "a list's length is no number")
                    })?),
                    other => return Err(self.unexpected("a list's length", other)),
                };
                self.expect(b'>')?;
                Type::List(Box::new(first), len)
            }
            "dict" => {
                self.expect(b',')?;
                let value = self.ty()?;
                self.expect(b'>')?;
                Type::Dict(Box::new(first), Box::new(value))
            }
            "tuple" => {
                let mut items = vec![first];
                while !self.take(b'>')? {
                    self.expect(b',')?;
                    items.push(self.ty()?);
                }
                Type::Tuple(items)
            }
            _ => {
                self.expect(b'>')?;
                let Type::Tensor(content) = first else {
                    let message = "a state can only hold a tensor";
                    return Err(self.error_at(ErrorKind::Invalid, start, message));
                };
                Type::State(content)
            }
        })
    }

    /// `<dtype, [dim, ...]>`
    fn tensor_ty(&mut self) -> Result<TensorType> {
        self.expect(b'<')?;
        let start = self.start;
        let name = self.name("an element type")?;
        let dtype = name.parse().map_err(|()| {
            self.error_at(ErrorKind::Invalid, start, format!("\"{name}\" is not an element type"))
        })?;
        self.expect(b',')?;
        self.expect(b'[')?;
        let mut shape = Vec::new();
        self.items(b']', |p| {
            let start = p.start;
            shape.push(match p.advance()? {
                Token::Number(n) => Dim::Fixed(n.parse().map_err(|_| {
                    p.error_at(ErrorKind::Invalid, start, format!("{n} is not a size"))
                })?),
                Token::Punct(b'?') => Dim::Unknown,
                Token::Name(symbol) => Dim::symbol(symbol),
                other => return Err(p.unexpected("a size", other)),
            });
            Ok(())
        })?;
        self.expect(b'>')?;
        Ok(TensorType { dtype, shape })
    }

    /// `type(payload)`; `name` is what a weight in it shall be called.
    pub(super) fn literal(&mut self, name: WeightName<'_>) -> Result<Literal> {
        let ty = self.ty()?;
        self.expect(b'(')?;
        let payload = self.payload(&ty, name)?;
        self.expect(b')')?;
        Ok(Literal { ty, payload })
    }

    fn payload(&mut self, ty: &Type, name: WeightName<'_>) -> Result<Payload> {
        if matches!(self.token, Token::Name("BLOBFILE")) {
            return self.blob(ty, name);
        }
        match ty {
            Type::Tensor(t) if t.dtype == DType::Str && t.shape.is_empty() => {
                Ok(Payload::Strings(vec![self.string()?.into_owned()]))
            }
            Type::Tensor(t) if t.dtype == DType::Str => {
                let mut strings = Vec::new();
                let shape = self.elements(t, &mut |p| {
                    strings.push(p.string()?.into_owned());
                    Ok(())
                })?;
                self.check_count(t, &shape, strings.len())?;
                Ok(Payload::Strings(strings))
            }
            Type::Tensor(t) => self.numbers(t),
            Type::List(item, len) => {
                let start = self.start;
                self.expect(b'[')?;
                let mut items = Vec::new();
                self.nested(|p| {
                    p.items(b']', |p| {
                        items.push(p.payload(item, name)?);
                        Ok(())
                    })
                })?;
                if len.is_some_and(|n| n != items.len()) {
                    let message = format!("{} items where {ty} is needed", items.len());
                    return Err(self.error_at(ErrorKind::Invalid, start, message));
                }
                Ok(Payload::Items(items))
            }
            Type::Tuple(types) => self.nested(|p| {
                p.expect(b'(')?;
                let mut items = Vec::with_capacity(types.len());
                for (i, ty) in types.iter().enumerate() {
                    if i > 0 {
                        p.expect(b',')?;
                    }
                    items.push(p.payload(ty, name)?);
                }
                p.expect(b')')?;
                Ok(Payload::Items(items))
            }),
            Type::Dict(key, value) => self.nested(|p| {
                let mut entries = Vec::new();
                p.expect(b'{')?;
                p.items(b'}', |p| {
                    p.expect(b'{')?;
                    let key = p.payload(key, name)?;
                    p.expect(b',')?;
                    entries.push((key, p.payload(value, name)?));
                    p.expect(b'}')
                })?;
                Ok(Payload::Entries(entries))
            }),
            Type::State(_) => {
                Err(self.error(ErrorKind::Invalid, format!("{ty} cannot be a constant")))
            }
        }
    }

    fn numbers(&mut self, ty: &TensorType) -> Result<Payload> {
        let start = self.start;
        let memory = std::mem::take(&mut self.elements);
        let mut writer = ElementWriter::new(ty.dtype, memory).ok_or_else(|| {
            let message = format!("{} values written in place", ty.dtype);
            self.error(ErrorKind::Unsupported, message)
        })?;
        let mut element = |p: &mut Self| {
            writer.push(p.token).map_err(|message| p.error(ErrorKind::Invalid, message))?;
            p.advance().map(|_| ())
        };
        let shape = if ty.shape.is_empty() {
            element(self)?;
            Vec::new()
        } else {
            self.elements(ty, &mut element)?
        };
        self.check_count(ty, &shape, writer.len)?;
        let tensor = Tensor::new(ty.dtype, &shape, Bytes::copy_from(&writer.bytes));
        self.elements = writer.bytes;
        tensor
            .map(Payload::Tensor)
            .map_err(|e| self.error_at(ErrorKind::Invalid, start, e.to_string()))
    }

    /// A tensor's elements in nested brackets, in row-major order; returns the sizes found.
    fn elements(
        &mut self,
        ty: &TensorType,
        element: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<Vec<usize>> {
        if ty.rank() == 1 {
            let mut size = [ty.shape[0].fixed()];
            self.axis(ty, &mut size, 0, element)?;
            return Ok(vec![size[0].unwrap_or_default()]);
        }
        let mut shape: Vec<Option<usize>> = ty.shape.iter().map(Dim::fixed).collect();
        self.axis(ty, &mut shape, 0, element)?;
        // What is inside of an axis of no elements has never been seen.
        Ok(shape.into_iter().map(Option::unwrap_or_default).collect())
    }

    fn axis(
        &mut self,
        ty: &TensorType,
        shape: &mut [Option<usize>],
        axis: usize,
        element: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if axis == shape.len() {
            return element(self);
        }
        let start = self.start;
        self.expect(b'[')?;
        let mut count = 0;
        self.nested(|p| {
            p.items(b']', |p| {
                count += 1;
                p.axis(ty, shape, axis + 1, element)
            })
        })?;
        if *shape[axis].get_or_insert(count) != count {
            let message = format!("{count} elements along axis {axis} of {ty}");
            return Err(self.error_at(ErrorKind::Invalid, start, message));
        }
        Ok(())
    }

    /// Guards against shapes such as `[0, 99999999999, 99999999999]`.
    fn check_count(&self, ty: &TensorType, shape: &[usize], found: usize) -> Result<()> {
        if tensor::element_count(shape) == Some(found) {
            return Ok(());
        }
        Err(self.error(ErrorKind::Invalid, format!("{found} elements where {ty} is needed")))
    }

    /// `BLOBFILE(path = string("..."), offset = uint64(n))`
    fn blob(&mut self, ty: &Type, name: WeightName<'_>) -> Result<Payload> {
        let start = self.start;
        self.advance()?;
        self.expect(b'(')?;
        self.keyword("path")?;
        let path = match self.scalar(DType::Str)? {
            Some(Token::Str(raw)) => self.unescaped(raw)?,
            _ => return Err(self.invalid_blob(start)),
        };
        self.expect(b')')?;
        self.expect(b',')?;
        self.keyword("offset")?;
        let offset = match self.scalar(DType::U64)? {
            Some(Token::Number(n)) => n.parse().ok(),
            _ => None,
        };
        let Some(offset) = offset else { return Err(self.invalid_blob(start)) };
        self.expect(b')')?;
        self.expect(b')')?;
        let Type::Tensor(ty) = ty else {
            let message = format!("{ty} cannot lie in a weight file");
            return Err(self.error_at(ErrorKind::Invalid, start, message));
        };
        self.weight(&path, offset, ty, name)
            .map(Payload::Weight)
            .map_err(|e| self.error_at(e.kind, start, e.message))
    }

    /// `type(token`, up to the closing bracket; nothing if the type is no scalar of `dtype`.
    fn scalar(&mut self, dtype: DType) -> Result<Option<Token<'s>>> {
        let ty = self.ty()?;
        self.expect(b'(')?;
        let right = ty.as_tensor().is_some_and(|t| t.dtype == dtype && t.shape.is_empty());
        if right { self.advance().map(Some) } else { Ok(None) }
    }

    fn invalid_blob(&self, start: usize) -> Box<Error> {
        let message = "BLOBFILE needs a string as path and a uint64 as offset";
        self.error_at(ErrorKind::Invalid, start, message)
    }

    /// `name =`
    fn keyword(&mut self, wanted: &str) -> Result<()> {
        let start = self.start;
        if self.name(wanted)? != wanted {
            return Err(self.error_at(ErrorKind::Invalid, start, format!("{wanted} is needed")));
        }
        self.expect(b'=')
    }

    /// A string, escapes resolved.
    fn string(&mut self) -> Result<Cow<'s, str>> {
        match self.advance()? {
            Token::Str(raw) => self.unescaped(raw),
            other => Err(self.unexpected("a string", other)),
        }
    }

    /// The string just read, its escapes resolved.
    fn unescaped(&self, raw: &'s str) -> Result<Cow<'s, str>> {
        if !raw.as_bytes().contains(&b'\\') {
            return Ok(Cow::Borrowed(raw));
        }
        let mut out = String::with_capacity(raw.len());
        let mut chars = raw.chars();
        while let Some(c) = chars.next() {
            if c != '\\' {
                out.push(c);
                continue;
            }
            out.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(c @ ('"' | '\\' | '\'')) => c,
                other => {
                    let message = format!("unknown escape \\{}", other.unwrap_or(' '));
                    return Err(self.error_at(ErrorKind::Unsupported, self.previous, message));
                }
            });
        }
        Ok(Cow::Owned(out))
    }
}
