//! A program with its MIL text, and where in it operations stand.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ane_model::Diagnostic;
use mil::package::Package;
use mil::package::blob::{Layout, WEIGHTS_PATH};
use mil::text::{BlobSource, parse, print};
use mil::{OpError, Program, Span, TensorType};
use tensor::{Tensor, WeightId};

use crate::error::{Context, Result};

/// A place in the text: what of an operation's line names it, or a function's name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column of the first character, from 1.
    pub column: usize,
    /// Column behind the last character.
    pub end_column: usize,
    /// The same in bytes of the line.
    pub(super) bytes: Range<usize>,
}

/// A program to be checked.
#[derive(Debug)]
pub struct Subject {
    name: String,
    program: Program,
    text: Option<Text>,
    printed: bool,
}

impl Subject {
    /// The program at `path`, as [`Package::open`] takes it, verified. Its text is the file's own if it is MIL
    /// text, else printed.
    ///
    /// # Errors
    /// Those of reading and verifying it.
    pub fn open(path: &Path) -> Result<Subject> {
        let package = Package::open(path)?;
        mil::verify(&package.program).map_err(|e| e.in_file(path))?;
        let parsed = |file: &PathBuf| file.is_file() && has_spans(&package.program);
        let Some(file) = text_file(path).filter(parsed) else {
            return Ok(Subject::of_package(path.display().to_string(), package));
        };
        let name = file.display().to_string();
        let content = fs::read_to_string(&file).with_context(|| name.clone())?;
        let text = Some(Text::new(content));
        Ok(Subject { name, program: package.program, text, printed: false })
    }

    /// A program that is no text, under a name for people. Its text is printed; if it has none, findings
    /// have no places.
    pub fn of_package(name: String, package: Package) -> Subject {
        let (program, text) = match printed(&package) {
            Ok((program, text)) => (program, Some(Text::new(text))),
            Err(_) => (package.program, None),
        };
        Subject { name, program, text, printed: true }
    }

    /// A verified program from MIL text, under a name for people.
    ///
    /// # Errors
    /// Those of parsing and verifying it.
    pub fn of_text(name: &str, content: &str, blobs: &dyn BlobSource) -> Result<Subject> {
        let program = parse(content, blobs).map_err(|e| e.in_file(Path::new(name)))?.program;
        mil::verify(&program).map_err(|e| e.in_file(Path::new(name)))?;
        let text = Some(Text::new(content.to_owned()));
        Ok(Subject { name: name.to_owned(), program, text, printed: false })
    }

    /// What it is called: a path, or the name that it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// Whether the text is printed and not the file's own.
    pub(super) fn is_printed(&self) -> bool {
        self.printed
    }

    /// A line of the text, from 1.
    pub(super) fn line(&self, number: usize) -> Option<&str> {
        self.text.as_ref()?.line(number)
    }

    /// Where a finding points to: its operation's kind, its function's name, or the first word.
    pub(super) fn place(&self, diagnostic: &Diagnostic) -> Option<Place> {
        let text = self.text.as_ref()?;
        match (&diagnostic.function, diagnostic.op) {
            (Some(function), Some(op)) => {
                let kind = self.program.functions.get(function)?.ops.get(op)?.kind.name();
                text.place(text.operation(diagnostic.span?, kind)?)
            }
            (Some(function), None) => text.place(text.function(function)?),
            (None, _) => text.place(0..text.content.find('(')?),
        }
    }

    /// The line of an operation.
    pub(super) fn line_of(&self, function: &str, op: mil::OpId) -> Option<usize> {
        let span = self.program.functions.get(function)?.spans[op]?;
        Some(self.text.as_ref()?.line_at(span.start as usize))
    }
}

fn has_spans(program: &Program) -> bool {
    program.functions.values().any(|f| f.spans.values().any(Option::is_some))
}

/// The file of MIL text that `path` stands for, if any.
fn text_file(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return (!path.join("Manifest.json").exists()).then(|| path.join("model.mil"));
    }
    path.extension().is_none_or(|e| e != "mlmodel").then(|| path.to_owned())
}

/// The program as its printed text has it, and that text.
fn printed(package: &Package) -> Result<(Program, String)> {
    let mut program = package.program.clone();
    if program.weights.iter().any(|(id, _)| program.blobs[id].is_none()) {
        // Made in memory: weights get the places that they would have in a package.
        let layout = Layout::new(&program.weights, program.weights.iter().map(|(id, _)| id))?;
        program.blobs = layout.refs(WEIGHTS_PATH);
    }
    let text = print(&program, package.dialect())?;
    let parsed = parse(&text, &Own::of(&program))?;
    Ok((parsed.program, text))
}

/// A program's own weights, by the places that its text has them at.
struct Own<'a> {
    program: &'a Program,
    places: HashMap<(Arc<str>, u64), Vec<WeightId>>,
}

impl<'a> Own<'a> {
    fn of(program: &'a Program) -> Self {
        let mut places: HashMap<_, Vec<WeightId>> = HashMap::new();
        for (id, _) in program.weights.iter() {
            if let Some(blob) = &program.blobs[id] {
                places.entry((blob.path.clone(), blob.offset)).or_default().push(id);
            }
        }
        Own { program, places }
    }
}

impl BlobSource for Own<'_> {
    fn tensor(&self, path: &str, offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        let shape = ty.fixed_shape();
        let here = self.places.get(&(path.into(), offset)).into_iter().flatten();
        let mut tensors = here.filter_map(|&id| self.program.weights.get(id)).map(|w| &w.tensor);
        let fits = |t: &&Tensor| t.dtype() == ty.dtype && Some(t.shape()) == shape.as_deref();
        let found = tensors.find(fits).cloned();
        found.ok_or_else(|| OpError::invalid(format!("no weight of type {ty} at {path}:{offset}")))
    }
}

/// A text with the starts of its lines.
#[derive(Debug)]
struct Text {
    content: String,
    starts: Vec<usize>,
}

impl Text {
    fn new(content: String) -> Self {
        let ends = content.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(i, _)| i + 1)).collect();
        Text { content, starts }
    }

    /// The number of the line that byte `at` is in.
    fn line_at(&self, at: usize) -> usize {
        self.starts.partition_point(|&start| start <= at)
    }

    fn line(&self, number: usize) -> Option<&str> {
        let start = *self.starts.get(number.checked_sub(1)?)?;
        let end = self.starts.get(number).map_or(self.content.len(), |next| next - 1);
        Some(self.content.get(start..end)?.trim_end_matches('\r'))
    }

    /// The bytes of the word for `kind` in an operation, or the operation's first character.
    fn operation(&self, span: Span, kind: &str) -> Option<Range<usize>> {
        let start = span.start as usize;
        let operation = self.content.get(start..span.end as usize)?;
        let equals = format!("= {kind}");
        let at = match operation.find(&equals) {
            Some(at) => start + at + 2,
            None if operation.starts_with(kind) => start,
            None => return Some(start..start + operation.chars().next()?.len_utf8()),
        };
        Some(at..at + kind.len())
    }

    /// The bytes of a function's name.
    fn function(&self, name: &str) -> Option<Range<usize>> {
        let at = self.content.find(&format!("func {name}<"))? + "func ".len();
        Some(at..at + name.len())
    }

    /// The place of bytes that are in one line.
    fn place(&self, bytes: Range<usize>) -> Option<Place> {
        let line = self.line_at(bytes.start);
        let start = *self.starts.get(line - 1)?;
        let characters = |end: usize| Some(self.content.get(start..end)?.chars().count() + 1);
        Some(Place {
            line,
            column: characters(bytes.start)?,
            end_column: characters(bytes.end)?,
            bytes: bytes.start - start..bytes.end - start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_from_one() {
        let text =
            Text::new("program(1.3)\r\n{\nfunc main<ios18>() {\nä = relu(x = x);\n".to_owned());
        assert_eq!(text.line(1), Some("program(1.3)"));
        assert_eq!((text.line(0), text.line(6)), (None, None));
        let main = text.place(text.function("main").unwrap()).unwrap();
        assert_eq!((main.line, main.column, main.end_column), (3, 6, 10));
        let start = text.content.find('ä').unwrap() as u32;
        let span = Span { start, end: text.content.len() as u32 - 1 };
        let relu = text.place(text.operation(span, "relu").unwrap()).unwrap();
        assert_eq!((relu.line, relu.column, relu.end_column), (4, 5, 9));
        assert_eq!(&text.line(4).unwrap()[relu.bytes], "relu");
    }
}
