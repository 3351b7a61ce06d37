//! Constants behind arguments: consts, literals in place and compressed constants, each as one thing, so that how a
//! constant is written (in place, by a const, in a weight file) makes no difference.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use mil::eval::{self, Arithmetic, Array, Value};
use mil::{
    Arg, Function, Literal, OpError, OpId, OpKind, Payload, Program, Type, ValueDef, ValueId,
};
use tensor::WeightId;

/// Numbers of a constant that is still written out; a larger one counts as a weight, as Core ML's weight files
/// have it.
const WRITTEN: usize = 9;

/// Whether an operation makes a constant.
pub(crate) fn is_constant(kind: OpKind) -> bool {
    kind == OpKind::Const || kind.is_constexpr()
}

/// A constant of a function.
#[derive(Clone, Copy)]
pub(crate) enum Constant<'a> {
    /// A value written in the program or a weight file.
    Literal(&'a Literal),
    /// The result of that number of an operation on compressed data.
    Compressed(OpId, usize),
}

/// Deepest nesting of compressed constants that is followed: Core ML's own go two deep.
const DEPTH: usize = 8;

fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The hash of result `n` of an operation.
fn hash_result(hash: u64, n: usize) -> u64 {
    match n {
        0 => hash,
        _ => {
            let mut hasher = DefaultHasher::new();
            (hash, n).hash(&mut hasher);
            hasher.finish()
        }
    }
}

/// A function with its program and the hashes of its constants.
pub(crate) struct Scope<'a> {
    pub(crate) program: &'a Program,
    pub(crate) name: &'a str,
    pub(crate) function: &'a Function,
    /// Of the operations that make constants, once they are asked for: weights are large.
    hashes: OnceCell<HashMap<OpId, u64>>,
    /// Of the bytes of weights that were asked for.
    bytes: RefCell<HashMap<WeightId, u64>>,
}

impl<'a> Scope<'a> {
    /// Function `name` of `program`, if there is one.
    pub(crate) fn new(program: &'a Program, name: &str) -> Option<Self> {
        let (name, function) = program.functions.get_key_value(name)?;
        Some(Scope { program, name, function, hashes: OnceCell::new(), bytes: RefCell::default() })
    }

    /// The constant that value `v` is, if it is one.
    pub(crate) fn constant_of(&self, v: ValueId) -> Option<Constant<'a>> {
        let ValueDef::Result(op, n) = self.function.values[v].def else { return None };
        let operation = &self.function.ops[op];
        match operation.const_value() {
            Some(literal) => Some(Constant::Literal(literal)),
            None => operation.kind.is_constexpr().then_some(Constant::Compressed(op, n as usize)),
        }
    }

    /// The constant behind an argument, if it is one.
    pub(crate) fn constant(&self, arg: &'a Arg) -> Option<Constant<'a>> {
        match arg {
            Arg::Literal(literal) => Some(Constant::Literal(literal)),
            Arg::Value(v) => self.constant_of(*v),
            Arg::List(_) => None,
        }
    }

    /// The operands of a compressed constant by name: arguments, or attributes in iOS 16's form.
    pub(crate) fn operands(&self, op: OpId) -> BTreeMap<&'a str, Constant<'a>> {
        let operation = &self.function.ops[op];
        let params = operation.kind.def().params().iter();
        let args = params.zip(&operation.args);
        let args = args.filter_map(|(p, a)| Some((p.name, self.constant(a.as_ref()?)?)));
        let attributes = operation.attributes.iter().filter(|(name, _)| *name != "name");
        args.chain(attributes.map(|(n, l)| (n, Constant::Literal(l)))).collect()
    }

    /// The type of a constant.
    pub(crate) fn ty(&self, constant: Constant<'a>) -> &'a Type {
        match constant {
            Constant::Literal(literal) => &literal.ty,
            Constant::Compressed(op, n) => self.function.ty(self.function.ops[op].outputs[n]),
        }
    }

    /// The weights that operations use, each once.
    pub(crate) fn weights(&self) -> Vec<Constant<'a>> {
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        let ops = self.function.ops.values().filter(|op| !is_constant(op.kind));
        for arg in ops.flat_map(|op| op.args.iter().flatten()) {
            let items = match arg {
                Arg::List(items) => items.as_slice(),
                single => std::slice::from_ref(single),
            };
            for arg in items {
                let known = matches!(arg, Arg::Value(v) if !seen.insert(*v));
                found.extend(self.constant(arg).filter(|&c| !known && self.is_weight(c)));
            }
        }
        found
    }

    /// Whether the constant counts as a weight: compressed, in a weight file, or of many numbers.
    pub(crate) fn is_weight(&self, constant: Constant<'a>) -> bool {
        match constant {
            Constant::Literal(literal) => match &literal.payload {
                Payload::Weight(_) => true,
                Payload::Tensor(t) => t.len() > WRITTEN,
                Payload::Strings(_) | Payload::Items(_) | Payload::Entries(_) => false,
            },
            Constant::Compressed(..) => true,
        }
    }

    /// Bytes that the constant takes as it is stored.
    pub(crate) fn stored_bytes(&self, constant: Constant<'a>) -> u64 {
        self.bytes_within(constant, DEPTH)
    }

    fn bytes_within(&self, constant: Constant<'a>, depth: usize) -> u64 {
        match constant {
            Constant::Compressed(..) if depth == 0 => 0,
            Constant::Literal(literal) => {
                literal.resolve(&self.program.weights).map_or(0, |t| t.bytes().len() as u64)
            }
            Constant::Compressed(op, _) => {
                self.operands(op).values().map(|&c| self.bytes_within(c, depth - 1)).sum()
            }
        }
    }

    /// A hash of type and value; equal for equal constants, wherever they are stored.
    pub(crate) fn hash(&self, constant: Constant<'_>) -> u64 {
        match constant {
            Constant::Compressed(op, n) => {
                self.hashes().get(&op).map_or(0, |&hash| hash_result(hash, n))
            }
            Constant::Literal(literal) => {
                let mut hasher = DefaultHasher::new();
                literal.ty.hash(&mut hasher);
                self.hash_payload(&literal.payload, &mut hasher);
                hasher.finish()
            }
        }
    }

    /// As [`Scope::hash`], of the constant that an argument is.
    pub(crate) fn hash_arg(&self, arg: &Arg) -> Option<u64> {
        self.hash_known(arg, self.hashes())
    }

    fn hashes(&self) -> &HashMap<OpId, u64> {
        self.hashes.get_or_init(|| {
            let mut known = HashMap::new();
            let ops = self.function.ops.keys();
            // In order of their ids, an operand comes before what is made of it, or else it counts as nothing.
            for op in ops.filter(|&op| is_constant(self.function.ops[op].kind)) {
                let hash = self.hash_op(op, &known);
                known.insert(op, hash);
            }
            known
        })
    }

    fn hash_known(&self, arg: &Arg, known: &HashMap<OpId, u64>) -> Option<u64> {
        match arg {
            Arg::Value(v) => match self.function.values[*v].def {
                ValueDef::Result(op, n) => {
                    known.get(&op).map(|&hash| hash_result(hash, n as usize))
                }
                ValueDef::Param => None,
            },
            Arg::Literal(literal) => Some(self.hash(Constant::Literal(literal))),
            Arg::List(_) => None,
        }
    }

    fn hash_op(&self, op: OpId, known: &HashMap<OpId, u64>) -> u64 {
        let operation = &self.function.ops[op];
        if let Some(literal) = operation.const_value() {
            return self.hash(Constant::Literal(literal));
        }
        let mut hasher = DefaultHasher::new();
        operation.kind.hash(&mut hasher);
        for (param, arg) in operation.kind.def().params().iter().zip(&operation.args) {
            if let Some(hash) = arg.as_ref().and_then(|a| self.hash_known(a, known)) {
                (param.name, hash).hash(&mut hasher);
            }
        }
        for (name, literal) in operation.attributes.iter().filter(|(name, _)| *name != "name") {
            (name, self.hash(Constant::Literal(literal))).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn hash_payload(&self, payload: &Payload, hasher: &mut DefaultHasher) {
        match payload {
            Payload::Tensor(t) => hash_bytes(t.bytes()).hash(hasher),
            Payload::Weight(id) => {
                let weight = || self.program.weights.get(*id).map(|w| hash_bytes(w.tensor.bytes()));
                let mut known = self.bytes.borrow_mut();
                known.entry(*id).or_insert_with(|| weight().unwrap_or(0)).hash(hasher);
            }
            Payload::Strings(strings) => strings.hash(hasher),
            Payload::Items(items) => items.iter().for_each(|p| self.hash_payload(p, hasher)),
            Payload::Entries(entries) => entries.iter().for_each(|(k, v)| {
                self.hash_payload(k, hasher);
                self.hash_payload(v, hasher);
            }),
        }
    }

    /// The constant's numbers, decompressed.
    ///
    /// # Errors
    /// When it holds none, its operands do not fit each other, or constants are compressed too often over.
    pub(crate) fn array(&self, constant: Constant<'a>) -> mil::Result<Rc<Array>> {
        self.array_within(constant, DEPTH)
    }

    fn array_within(&self, constant: Constant<'a>, depth: usize) -> mil::Result<Rc<Array>> {
        let place = |e: OpError| mil::Error::new(e.kind, e.message).in_function(self.name);
        let (op, n) = match constant {
            Constant::Compressed(op, n) => (op, n),
            Constant::Literal(literal) => {
                let value = Value::from_literal(literal, &self.program.weights);
                return value.and_then(|v| v.array().cloned()).map_err(place);
            }
        };
        if depth == 0 {
            return Err(place(OpError::limit("constants of constants nested too deep")));
        }
        let mut operands = Vec::new();
        self.function.ops[op].for_each_arg_value(|v| operands.push(v));
        let mut given = Vec::new();
        for v in operands {
            if let Some(inner @ Constant::Compressed(..)) = self.constant_of(v) {
                given.push((v, Value::Array(self.array_within(inner, depth - 1)?)));
            }
        }
        let (states, rounding) = (&mut BTreeMap::new(), Arithmetic::Fp16);
        let values = eval::run_op(self.program, self.name, op, rounding, given, states)?;
        let result = values.get(n).map(|v| v.array().cloned());
        let none = || Err(OpError::invalid("a constant without a value"));
        result.unwrap_or_else(none).map_err(place)
    }
}
