//! Parsing types and literals.

use tensor::{Bytes, DType, Tensor};

use super::MAX_DEPTH;
use super::elements::ElementWriter;
use super::lexer::Token;
use super::parser::Parser;
use crate::{Dim, ErrorKind, Literal, Payload, Result, TensorType, Type};

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
        if let Ok(dtype) = name.parse::<DType>() {
            return Ok(TensorType::scalar(dtype).into());
        }
        match name {
            "tensor" => Ok(self.tensor_ty()?.into()),
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
    pub(super) fn literal(&mut self, name: &str) -> Result<Literal> {
        let ty = self.ty()?;
        self.expect(b'(')?;
        let payload = self.payload(&ty, name)?;
        self.expect(b')')?;
        Ok(Literal { ty, payload })
    }

    fn payload(&mut self, ty: &Type, name: &str) -> Result<Payload> {
        if self.token == Token::Name("BLOBFILE") {
            return self.blob(ty, name);
        }
        match ty {
            Type::Tensor(t) if t.dtype == DType::Str => {
                let mut strings = Vec::new();
                let shape = self.elements(t, &mut |p| {
                    strings.push(p.string()?);
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
        let mut writer = ElementWriter::new(ty.dtype).ok_or_else(|| {
            let message = format!("{} values written in place", ty.dtype);
            self.error(ErrorKind::Unsupported, message)
        })?;
        let shape = self.elements(ty, &mut |p| {
            writer.push(p.token).map_err(|message| p.error(ErrorKind::Invalid, message))?;
            p.advance().map(|_| ())
        })?;
        self.check_count(ty, &shape, writer.len)?;
        let tensor = Tensor::new(ty.dtype, &shape, Bytes::copy_from(&writer.bytes));
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
    fn blob(&mut self, ty: &Type, name: &str) -> Result<Payload> {
        let start = self.start;
        self.advance()?;
        self.expect(b'(')?;
        self.keyword("path")?;
        let path = self.nested(|p| p.literal(""))?;
        self.expect(b',')?;
        self.keyword("offset")?;
        let offset = self.nested(|p| p.literal(""))?;
        self.expect(b')')?;
        let offset = offset.resolve(&self.table.weights).and_then(|t| match t.as_slice::<u64>() {
            Ok(&[n]) => Some(n),
            _ => None,
        });
        let (Some(path), Some(offset)) = (path.as_str(), offset) else {
            let message = "BLOBFILE needs a string as path and a uint64 as offset";
            return Err(self.error_at(ErrorKind::Invalid, start, message));
        };
        let Type::Tensor(ty) = ty else {
            let message = format!("{ty} cannot lie in a weight file");
            return Err(self.error_at(ErrorKind::Invalid, start, message));
        };
        self.weight(path, offset, ty, name)
            .map(Payload::Weight)
            .map_err(|e| self.error_at(e.kind, start, e.message))
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
    fn string(&mut self) -> Result<String> {
        let start = self.start;
        let raw = match self.advance()? {
            Token::Str(raw) => raw,
            other => return Err(self.unexpected("a string", other)),
        };
        if !raw.contains('\\') {
            return Ok(raw.to_owned());
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
                    return Err(self.error_at(ErrorKind::Unsupported, start, message));
                }
            });
        }
        Ok(out)
    }
}
