//! Printing programs as Apple's compiler does.

use std::fmt::{self, Write};

use cranelift_entity::SecondaryMap;
use tensor::WeightId;

use super::Dialect;
use super::elements::Elements;
use super::lexer::is_name;
use super::types::{write_tensor, write_type};
use crate::{
    Arg, Attributes, BlobRef, Block, Error, ErrorKind, Function, Literal, OpId, Payload, Program,
    Result, TensorType, Type, ValueId,
};

/// Prints a program whose weights all lie in weight files ([`Program::blobs`]).
///
/// # Errors
/// When a weight has no place in a file, or a constant in the program has an element type that
/// text cannot hold, or a name is no identifier.
pub fn print(program: &Program, dialect: Dialect) -> Result<String> {
    print_refs(program, &program.blobs, dialect)
}

/// As [`print`], with other places of the weights.
pub(super) fn print_refs(
    program: &Program,
    refs: &SecondaryMap<WeightId, Option<BlobRef>>,
    dialect: Dialect,
) -> Result<String> {
    let mut printer = Printer { program, refs, dialect, out: String::new(), error: None };
    match printer.program() {
        Ok(()) => Ok(printer.out),
        Err(fmt::Error) => Err(printer
            .error
            .unwrap_or_else(|| Error::new(ErrorKind::Bug, "a program could not be formatted"))),
    }
}

struct Printer<'p> {
    program: &'p Program,
    refs: &'p SecondaryMap<WeightId, Option<BlobRef>>,
    dialect: Dialect,
    out: String,
    /// Why a method returned [`fmt::Error`].
    error: Option<Error>,
}

impl<'p> Printer<'p> {
    fn program(&mut self) -> fmt::Result {
        write!(self.out, "program({})\n[", self.dialect.version())?;
        self.attributes(&self.program.attributes)?;
        self.out.push_str("]\n{\n");
        for (name, function) in &self.program.functions {
            if let Err(e) = self.function(name, function) {
                self.error = self.error.take().map(|e| e.in_function(name));
                return Err(e);
            }
        }
        self.out.push('}');
        Ok(())
    }

    fn function(&mut self, name: &str, f: &'p Function) -> fmt::Result {
        self.out.push_str("    func ");
        self.name(name)?;
        write!(self.out, "<{}>(", f.opset)?;
        let mut inputs = f.inputs.clone();
        inputs.sort_by(|&a, &b| f.values[a].name.cmp(&f.values[b].name));
        self.typed_names(f, &inputs)?;
        self.out.push(')');
        if !f.attributes.is_empty() {
            self.out.push_str(" [");
            self.attributes(&f.attributes)?;
            self.out.push(']');
        }
        self.out.push_str(" {\n");
        self.ops(f, &f.body, 12)?;
        self.out.push_str("        } -> (");
        self.names(f, &f.body.outputs);
        self.out.push_str(");\n");
        Ok(())
    }

    fn typed_names(&mut self, f: &Function, values: &[ValueId]) -> fmt::Result {
        for (i, &v) in values.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            write_type(&mut self.out, f.ty(v), self.dialect)?;
            self.out.push(' ');
            self.name(&f.values[v].name)?;
        }
        Ok(())
    }

    /// A name where it is defined: packages may hold names that text has no form for.
    fn name(&mut self, name: &str) -> fmt::Result {
        if is_name(name) {
            self.out.push_str(name);
            return Ok(());
        }
        let message = format!("the name {name:?} in a text");
        self.fail(ErrorKind::Unsupported, message)
    }

    fn names(&mut self, f: &Function, values: &[ValueId]) {
        for (i, &v) in values.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.out.push_str(&f.values[v].name);
        }
    }

    fn indent(&mut self, width: usize) {
        self.out.extend(std::iter::repeat_n(' ', width));
    }

    fn ops(&mut self, f: &'p Function, block: &'p Block, indent: usize) -> fmt::Result {
        for &op in &block.ops {
            if let Err(e) = self.operation(f, op, indent) {
                if let Some(error) = &mut self.error {
                    error.operation.get_or_insert_with(|| f.describe(op).into());
                }
                return Err(e);
            }
        }
        Ok(())
    }

    fn operation(&mut self, f: &'p Function, op: OpId, indent: usize) -> fmt::Result {
        let operation = &f.ops[op];
        self.indent(indent);
        if !operation.outputs.is_empty() {
            self.typed_names(f, &operation.outputs)?;
            self.out.push_str(" = ");
        }
        self.out.push_str(operation.kind.name());
        if let Some(opset) = operation.opset {
            write!(self.out, "<{opset}>")?;
        }
        self.out.push('(');
        let params = operation.kind.def().params();
        let mut args: Vec<(&str, &Arg)> = params
            .iter()
            .zip(&operation.args)
            .filter_map(|(p, a)| a.as_ref().map(|a| (p.name, a)))
            .collect();
        args.sort_by_key(|&(name, _)| name);
        for (i, (name, arg)) in args.into_iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.out.push_str(name);
            self.out.push_str(" = ");
            self.arg(f, arg)?;
        }
        self.out.push(')');
        if !operation.attributes.is_empty() {
            self.out.push('[');
            self.attributes(&operation.attributes)?;
            self.out.push(']');
        }
        for block in &operation.blocks {
            self.out.push('\n');
            self.indent(indent + 4);
            self.out.push('(');
            self.typed_names(f, &block.params)?;
            self.out.push_str(") {\n");
            self.ops(f, block, indent + 8)?;
            self.indent(indent + 4);
            self.out.push_str("} -> (");
            self.names(f, &block.outputs);
            self.out.push(')');
        }
        self.out.push_str(";\n");
        Ok(())
    }

    fn arg(&mut self, f: &Function, arg: &'p Arg) -> fmt::Result {
        match arg {
            Arg::Value(v) => self.out.push_str(&f.values[*v].name),
            Arg::Literal(literal) => self.literal(literal)?,
            Arg::List(items) => {
                self.out.push('(');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        self.out.push_str(", ");
                    }
                    self.arg(f, item)?;
                }
                self.out.push(')');
            }
        }
        Ok(())
    }

    fn attributes(&mut self, attributes: &'p Attributes) -> fmt::Result {
        for (i, (name, literal)) in attributes.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.name(name)?;
            self.out.push_str(" = ");
            self.literal(literal)?;
        }
        Ok(())
    }

    fn literal(&mut self, literal: &'p Literal) -> fmt::Result {
        write_type(&mut self.out, &literal.ty, self.dialect)?;
        self.out.push('(');
        self.payload(&literal.ty, &literal.payload, false)?;
        self.out.push(')');
        Ok(())
    }

    /// Floats inside of dictionaries are in decimal.
    fn payload(&mut self, ty: &Type, payload: &'p Payload, decimal: bool) -> fmt::Result {
        match (payload, ty) {
            (Payload::Tensor(t), _) => {
                let Some(elements) = Elements::of(t) else {
                    let message = format!("a constant of {} outside of the weights", t.dtype());
                    return self.fail(ErrorKind::Unsupported, message);
                };
                nested(&mut self.out, t.shape(), 0, &mut |out, i| elements.write(out, i, decimal))
            }
            (Payload::Strings(strings), Type::Tensor(t)) => {
                let shape = t.fixed_shape().unwrap_or_else(|| vec![strings.len()]);
                if tensor::element_count(&shape) != Some(strings.len()) {
                    return self.mismatch(ty);
                }
                nested(&mut self.out, &shape, 0, &mut |out, i| quote(out, &strings[i]))
            }
            (Payload::Weight(id), Type::Tensor(_)) => self.blob(*id),
            (Payload::Items(items), Type::List(item, _)) => {
                self.out.push('[');
                self.items(items.iter().map(|p| (&**item, p)), decimal)?;
                self.out.push(']');
                Ok(())
            }
            (Payload::Items(items), Type::Tuple(types)) if items.len() == types.len() => {
                self.out.push('(');
                self.items(types.iter().zip(items), decimal)?;
                self.out.push(')');
                Ok(())
            }
            (Payload::Entries(entries), Type::Dict(key, value)) => {
                self.out.push('{');
                for (i, (k, v)) in entries.iter().enumerate() {
                    self.out.push_str(if i > 0 { ", {" } else { "{" });
                    self.payload(key, k, true)?;
                    self.out.push_str(", ");
                    self.payload(value, v, true)?;
                    self.out.push('}');
                }
                self.out.push('}');
                Ok(())
            }
            _ => self.mismatch(ty),
        }
    }

    fn items<'t>(
        &mut self,
        items: impl Iterator<Item = (&'t Type, &'p Payload)>,
        decimal: bool,
    ) -> fmt::Result {
        for (i, (ty, payload)) in items.enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.payload(ty, payload, decimal)?;
        }
        Ok(())
    }

    fn blob(&mut self, id: WeightId) -> fmt::Result {
        let Some(place) = &self.refs[id] else {
            let weight = self.program.weights.get(id);
            let name = weight.map_or_else(|| id.to_string(), |w| w.name.clone());
            let message = format!("weight {name} has no place in a weight file");
            return self.fail(ErrorKind::Invalid, message);
        };
        let scalar = |dtype| TensorType::scalar(dtype);
        self.out.push_str("BLOBFILE(path = ");
        write_tensor(&mut self.out, &scalar(tensor::DType::Str), self.dialect)?;
        self.out.push('(');
        quote(&mut self.out, &place.path)?;
        self.out.push_str("), offset = ");
        write_tensor(&mut self.out, &scalar(tensor::DType::U64), self.dialect)?;
        write!(self.out, "({}))", place.offset)
    }

    fn mismatch(&mut self, ty: &Type) -> fmt::Result {
        self.fail(ErrorKind::Invalid, format!("a literal's value does not have its type {ty}"))
    }

    fn fail(&mut self, kind: ErrorKind, message: String) -> fmt::Result {
        self.error = Some(Error::new(kind, message));
        Err(fmt::Error)
    }
}

/// Writes elements in nested brackets; `at` is the number of the first.
fn nested(
    out: &mut String,
    shape: &[usize],
    at: usize,
    element: &mut dyn FnMut(&mut String, usize) -> fmt::Result,
) -> fmt::Result {
    let Some((&n, inner)) = shape.split_first() else { return element(out, at) };
    // Beside an axis of no elements the others may be of any size.
    let stride = inner.iter().fold(1usize, |n, &d| n.wrapping_mul(d));
    out.push('[');
    for i in 0..n {
        if i > 0 {
            out.push_str(", ");
        }
        nested(out, inner, at.wrapping_add(i.wrapping_mul(stride)), element)?;
    }
    out.push(']');
    Ok(())
}

fn quote(out: &mut String, s: &str) -> fmt::Result {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}
