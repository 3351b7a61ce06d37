//! Parsing programs, functions and operations.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use foldhash::HashMap;
use tensor::WeightId;

use super::lexer::{Lexer, Result, Token};
use super::literals::{WeightName, is_type_name};
use super::{BlobSource, Dialect};
use crate::error::missing_operations;
use crate::ops::OPS;
use crate::package::weights::WeightTable;
use crate::{
    Arg, Attributes, BlobRef, Block, Error, ErrorKind, Function, OpError, OpId, OpKind, Operation,
    Opset, Program, Span, TensorType, Type, ValueData, ValueDef, ValueId,
};

/// What a text says.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The program; not verified.
    pub program: Program,
    /// The dialect that its first line names.
    pub dialect: Dialect,
}

/// Parses MIL text; constants in weight files come from `blobs`.
///
/// The program is not verified: see [`verify`](crate::verify()).
///
/// # Errors
/// With line and column: when the text breaks the grammar, uses a name that is not defined or
/// defines one twice, when a weight cannot be found. When operations are missing in the catalogue,
/// one error lists all of them.
pub fn parse(text: &str, blobs: &dyn BlobSource) -> crate::Result<Parsed> {
    if u32::try_from(text.len()).is_err() {
        return Err(Error::new(ErrorKind::Limit, "a text of 4 GiB or more"));
    }
    let mut parser = Parser::new(text, blobs).map_err(|e| *e)?;
    let parsed = parser.program().map_err(|e| *e)?;
    if let Some(first) = parser.first_missing {
        let message = missing_operations(&parser.missing);
        return Err(*parser.lexer.error(ErrorKind::Unsupported, first, message));
    }
    Ok(parsed)
}

pub(crate) static KINDS: LazyLock<HashMap<&'static str, OpKind>> =
    LazyLock::new(|| OPS.iter().map(|k| (k.name(), *k)).collect());

pub(super) struct Parser<'s, 'b> {
    lexer: Lexer<'s>,
    /// The token to be read next, and where it starts.
    pub(super) token: Token<'s>,
    pub(super) start: usize,
    /// Where the token before it started and ended.
    pub(super) previous: usize,
    end: usize,
    pub(super) depth: usize,
    blobs: &'b dyn BlobSource,
    pub(super) table: WeightTable,
    /// Operations that are not in the catalogue.
    missing: BTreeSet<&'s str>,
    first_missing: Option<usize>,
    /// Length of the text before the first function, which most often is the only one.
    whole: Option<usize>,
    /// Memory for the results that an operation announces, and for the elements of a constant.
    results: Results<'s>,
    pub(super) elements: Vec<u8>,
}

/// A function under construction.
struct Scope<'s> {
    function: Function,
    /// Values that can be used at this place.
    visible: HashMap<&'s str, ValueId>,
}

/// How many attributes a program, a function or an operation may have; real ones have a handful.
const MAX_ATTRIBUTES: usize = 256;

/// What an operation takes of a text, at the least in the mean of long ones.
const BYTES_PER_OP: usize = 192;

impl Scope<'_> {
    /// Makes room for `ops` operations of one result each.
    fn expect(&mut self, ops: usize) {
        self.function.ops.reserve(ops);
        self.function.values.reserve(ops);
        self.visible.reserve(ops);
    }
}

/// The results that an operation announces: type, name, and where the name stands.
type Results<'s> = Vec<(Type, &'s str, usize)>;

impl<'s, 'b> Parser<'s, 'b> {
    fn new(text: &'s str, blobs: &'b dyn BlobSource) -> Result<Self> {
        let mut lexer = Lexer::new(text);
        let (token, start) = lexer.next()?;
        Ok(Parser {
            lexer,
            token,
            start,
            previous: 0,
            end: 0,
            depth: 0,
            blobs,
            table: WeightTable::default(),
            missing: BTreeSet::new(),
            first_missing: None,
            whole: Some(text.len()),
            results: Vec::new(),
            elements: Vec::new(),
        })
    }

    /// Reads a token and returns it.
    pub(super) fn advance(&mut self) -> Result<Token<'s>> {
        let token = self.token;
        self.previous = self.start;
        self.end = self.lexer.offset();
        (self.token, self.start) = self.lexer.next()?;
        Ok(token)
    }

    /// Reads `mark` if it comes next.
    pub(super) fn take(&mut self, mark: u8) -> Result<bool> {
        let found = matches!(self.token, Token::Punct(found) if found == mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    /// Reads `mark`.
    pub(super) fn expect(&mut self, mark: u8) -> Result<()> {
        if self.take(mark)? {
            return Ok(());
        }
        let message = format!("\"{}\" is needed, not {}", char::from(mark), self.token.describe());
        Err(self.error(ErrorKind::Invalid, message))
    }

    /// Reads an identifier; `what` says what for.
    pub(super) fn name(&mut self, what: &str) -> Result<&'s str> {
        match self.token {
            Token::Name(name) => {
                self.advance()?;
                Ok(name)
            }
            other => {
                let message = format!("{what} is needed, not {}", other.describe());
                Err(self.error(ErrorKind::Invalid, message))
            }
        }
    }

    /// An error about the token just read.
    pub(super) fn unexpected(&self, needed: &str, found: Token<'_>) -> Box<Error> {
        let message = format!("{needed} is needed, not {}", found.describe());
        self.error_at(ErrorKind::Invalid, self.previous, message)
    }

    /// An error at the next token.
    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Box<Error> {
        self.error_at(kind, self.start, message)
    }

    /// An error at byte `offset`.
    pub(super) fn error_at(
        &self,
        kind: ErrorKind,
        offset: usize,
        message: impl Into<String>,
    ) -> Box<Error> {
        self.lexer.error(kind, offset, message)
    }

    fn invalid_at(&self, offset: usize, message: impl Into<String>) -> Box<Error> {
        self.error_at(ErrorKind::Invalid, offset, message)
    }

    /// The weight of type `ty` at a place in a weight file; read when first named.
    pub(super) fn weight(
        &mut self,
        path: &str,
        offset: u64,
        ty: &TensorType,
        name: WeightName<'_>,
    ) -> std::result::Result<WeightId, OpError> {
        let place = BlobRef { path: self.table.path(path), offset };
        self.table.weight(self.blobs, place, ty, name)
    }

    fn program(&mut self) -> Result<Parsed> {
        let start = self.start;
        if self.name("program")? != "program" {
            return Err(self.invalid_at(start, "the text does not start with \"program\""));
        }
        self.expect(b'(')?;
        let start = self.start;
        let dialect = match self.advance()? {
            Token::Number("1.0") => Dialect::V1_0,
            Token::Number("1.3") => Dialect::V1_3,
            other => {
                let message = format!("version {} of the language", other.describe());
                return Err(self.error_at(ErrorKind::Unsupported, start, message));
            }
        };
        self.expect(b')')?;
        let attributes = self.attributes("", 1)?;
        self.expect(b'{')?;
        let mut functions = BTreeMap::new();
        while !self.take(b'}')? {
            let start = self.start;
            let (name, function) = self.function()?;
            if functions.insert(name.to_owned(), function).is_some() {
                return Err(self.invalid_at(start, format!("function {name} is defined twice")));
            }
        }
        if self.token != Token::End {
            let message = format!("{} after the end of the program", self.token.describe());
            return Err(self.error(ErrorKind::Invalid, message));
        }
        let WeightTable { weights, refs: blobs, .. } = std::mem::take(&mut self.table);
        Ok(Parsed { program: Program { functions, attributes, weights, blobs }, dialect })
    }

    /// `[name = literal, ...]`, probably so many; `owner` names weights in it.
    fn attributes(&mut self, owner: &str, expected: usize) -> Result<Attributes> {
        self.expect(b'[')?;
        let mut attributes = Attributes::with_capacity(expected);
        self.items(b']', |p| {
            let start = p.start;
            let name = p.name("an attribute's name")?;
            p.expect(b'=')?;
            let literal = p.literal(WeightName { owner, attribute: name })?;
            let key = match name {
                "name" => Cow::Borrowed("name"),
                "val" => Cow::Borrowed("val"),
                other => Cow::Owned(other.to_owned()),
            };
            if attributes.len() == MAX_ATTRIBUTES {
                let message = format!("more than {MAX_ATTRIBUTES} attributes");
                return Err(p.error_at(ErrorKind::Limit, start, message));
            }
            if attributes.insert(key, literal).is_some() {
                return Err(p.invalid_at(start, format!("attribute {name} is given twice")));
            }
            Ok(())
        })?;
        Ok(attributes)
    }

    fn opset(&mut self) -> Result<Opset> {
        self.expect(b'<')?;
        let start = self.start;
        let name = self.name("an operation set")?;
        let opset = name.parse().map_err(|()| {
            let message = format!("operation set \"{name}\"");
            self.error_at(ErrorKind::Unsupported, start, message)
        })?;
        self.expect(b'>')?;
        Ok(opset)
    }

    fn function(&mut self) -> Result<(&'s str, Function)> {
        let start = self.start;
        if self.name("func")? != "func" {
            return Err(self.invalid_at(start, "\"func\" is needed"));
        }
        let name = self.name("a function's name")?;
        let opset = self.opset()?;
        let mut scope = Scope { function: Function::new(opset), visible: HashMap::default() };
        if let Some(rest) = self.whole.take() {
            scope.expect(rest / BYTES_PER_OP);
        }
        scope.function.inputs = self.params(&mut scope)?;
        if self.token == Token::Punct(b'[') {
            scope.function.attributes = self.attributes(name, 1)?;
        }
        let (ops, outputs) = self.body(&mut scope)?;
        self.expect(b';')?;
        scope.function.body = Block { params: Vec::new(), ops, outputs };
        Ok((name, scope.function))
    }

    /// `(type name, ...)`
    fn params(&mut self, scope: &mut Scope<'s>) -> Result<Vec<ValueId>> {
        self.expect(b'(')?;
        let mut params = Vec::new();
        self.items(b')', |p| {
            let ty = p.ty()?;
            let start = p.start;
            let name = p.name("a parameter's name")?;
            params.push(p.define(scope, ty, name, start, ValueDef::Param)?);
            Ok(())
        })?;
        Ok(params)
    }

    fn define(
        &self,
        scope: &mut Scope<'s>,
        ty: Type,
        name: &'s str,
        start: usize,
        def: ValueDef,
    ) -> Result<ValueId> {
        let v = scope.function.values.push(ValueData { name: name.to_owned(), ty, def });
        match scope.visible.insert(name, v) {
            None => Ok(v),
            Some(_) => Err(self.invalid_at(start, format!("{name} is defined twice"))),
        }
    }

    /// `{ op; ... } -> (name, ...)`
    fn body(&mut self, scope: &mut Scope<'s>) -> Result<(Vec<OpId>, Vec<ValueId>)> {
        self.expect(b'{')?;
        let mut ops = Vec::new();
        while !self.take(b'}')? {
            ops.extend(self.operation(scope)?);
        }
        if self.token != Token::Arrow {
            let message = format!("\"->\" is needed, not {}", self.token.describe());
            return Err(self.error(ErrorKind::Invalid, message));
        }
        self.advance()?;
        self.expect(b'(')?;
        let mut outputs = Vec::new();
        self.items(b')', |p| {
            let start = p.start;
            let name = p.name("an output's name")?;
            outputs.push(p.lookup(scope, name, start)?);
            Ok(())
        })?;
        Ok((ops, outputs))
    }

    /// A nested block: `(type name, ...) { ... } -> (...)`.
    fn block(&mut self, scope: &mut Scope<'s>) -> Result<Block> {
        let params = self.params(scope)?;
        let (ops, outputs) = self.body(scope)?;
        // What the block defines is not visible behind it.
        let inner = params.iter().copied();
        let inner = inner.chain(ops.iter().flat_map(|&op| scope.function.ops[op].outputs.clone()));
        for v in inner.collect::<Vec<_>>() {
            scope.visible.remove(scope.function.values[v].name.as_str());
        }
        Ok(Block { params, ops, outputs })
    }

    fn lookup(&self, scope: &Scope<'s>, name: &str, start: usize) -> Result<ValueId> {
        let found = scope.visible.get(name).copied();
        found.ok_or_else(|| self.invalid_at(start, format!("{name} is not defined here")))
    }

    /// `type name, ... = kind(args)[attributes] blocks ;` The operation, if it is in the catalogue.
    fn operation(&mut self, scope: &mut Scope<'s>) -> Result<Option<OpId>> {
        let start = self.start;
        // Nested blocks find a memory of their own.
        let mut results = std::mem::take(&mut self.results);
        self.announced(&mut results)?;
        let kind_start = self.start;
        let name = self.name("an operation")?;
        let kind = KINDS.get(name).copied();
        if kind.is_none() {
            self.missing.insert(name);
            self.first_missing.get_or_insert(kind_start);
        }
        let opset = match self.token {
            Token::Punct(b'<') => Some(self.opset()?),
            _ => None,
        };
        let args = self.args(scope, kind)?;
        let owner = results.first().map_or("", |r| r.1);
        let attributes = if self.token == Token::Punct(b'[') {
            let expected = if kind == Some(OpKind::Const) { 2 } else { 1 };
            self.attributes(owner, expected)?
        } else {
            Attributes::new()
        };
        let mut blocks = Vec::new();
        while self.token == Token::Punct(b'(') {
            blocks.push(self.nested(|p| p.block(scope))?);
        }
        self.expect(b';')?;
        let span = Some(Span { start: start as u32, end: self.end as u32 });
        let id = scope.function.ops.next_key();
        let outputs = results
            .drain(..)
            .enumerate()
            .map(|(i, (ty, name, start))| {
                // The results of an operation that is missing still have users.
                let def = kind.map_or(ValueDef::Param, |_| ValueDef::Result(id, i as u32));
                self.define(scope, ty, name, start, def)
            })
            .collect::<Result<_>>()?;
        self.results = results;
        let Some(kind) = kind else { return Ok(None) };
        scope.function.ops.push(Operation { kind, args, outputs, blocks, opset, attributes });
        scope.function.spans[id] = span;
        Ok(Some(id))
    }

    /// `type name, type name =`, or nothing for an operation without results.
    fn announced(&mut self, results: &mut Results<'s>) -> Result<()> {
        if !matches!(self.token, Token::Name(name) if is_type_name(name)) {
            return Ok(());
        }
        loop {
            let ty = self.ty()?;
            let start = self.start;
            results.push((ty, self.name("a result's name")?, start));
            if self.take(b'=')? {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// `(name = arg, ...)`; in the slots of `kind`, if that is known.
    fn args(&mut self, scope: &Scope<'s>, kind: Option<OpKind>) -> Result<Vec<Option<Arg>>> {
        let mut args = Vec::new();
        args.resize_with(kind.map_or(0, |k| k.def().params().len()), || None);
        self.expect(b'(')?;
        self.items(b')', |p| {
            let start = p.start;
            let name = p.name("an argument's name")?;
            p.expect(b'=')?;
            let arg = p.arg(scope)?;
            let Some(kind) = kind else { return Ok(()) };
            let index = kind.param_index(name).ok_or_else(|| {
                p.invalid_at(start, format!("{} has no parameter \"{name}\"", kind.name()))
            })?;
            match args[index].replace(arg) {
                None => Ok(()),
                Some(_) => Err(p.invalid_at(start, format!("argument {name} is given twice"))),
            }
        })?;
        Ok(args)
    }

    fn arg(&mut self, scope: &Scope<'s>) -> Result<Arg> {
        if self.take(b'(')? {
            let mut items = Vec::new();
            self.nested(|p| {
                p.items(b')', |p| {
                    items.push(p.arg(scope)?);
                    Ok(())
                })
            })?;
            return Ok(Arg::List(items));
        }
        let start = self.start;
        let Token::Name(name) = self.token else {
            let message = format!("an argument is needed, not {}", self.token.describe());
            return Err(self.error(ErrorKind::Invalid, message));
        };
        // A value can have a type's name; a literal goes on with a bracket.
        if matches!(self.lexer.peek(), Some(b'(' | b'<')) && is_type_name(name) {
            let name = WeightName { owner: name, attribute: "val" };
            return self.literal(name).map(Arg::from);
        }
        self.advance()?;
        self.lookup(scope, name, start).map(Arg::Value)
    }
}
