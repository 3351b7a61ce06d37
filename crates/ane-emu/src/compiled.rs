//! From a program's directory to something that can be evaluated: parse, verify, ask the rules, read
//! the weights once and for all.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path as FilePath};

use ane_model::chip::{BindingOrder, Effect};
use ane_model::rules::{CheckOptions, Diagnostic, Outcome, Path, Severity, check};
use exec::port::{MODEL_FILE, MODEL_PATH};
use mil::eval::{self, Arithmetic};
use mil::package::blob::BlobFile;
use mil::text::{self, BlobSource};
use mil::{OpError, OpId, OpKind, Program, TensorType, ValueId};
use tensor::{Bytes, Tensor};

use crate::machine::Machine;

/// Why something was refused: what the framework says, and what it does not say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) reason: String,
}

impl Refusal {
    /// What the framework says of a program whose text it does not take.
    fn invalid(reason: impl ToString) -> Self {
        Refusal { message: "InvalidMILProgram".into(), reason: reason.to_string() }
    }

    /// What it says of a rule that is broken.
    fn rule(d: &Diagnostic) -> Self {
        let place = d.name.as_ref().map_or_else(String::new, |name| format!("{name}: "));
        Refusal {
            message: d.rule.code.unwrap_or(d.rule.symptom).to_owned(),
            reason: format!("{}: {place}{}", d.rule.id, d.message),
        }
    }
}

/// An input or output.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) value: ValueId,
    pub(crate) ty: TensorType,
    pub(crate) shape: Vec<usize>,
    /// Of the packed tensor.
    pub(crate) bytes: usize,
}

/// A compiled program.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) program: Program,
    /// The function that procedure 0 is.
    pub(crate) function: String,
    /// In the order in which surfaces are bound.
    pub(crate) inputs: Vec<Slot>,
    pub(crate) outputs: Vec<Slot>,
    /// Why it cannot be loaded, if it cannot.
    pub(crate) unloadable: Option<Refusal>,
    /// Why it cannot be evaluated, if it cannot.
    pub(crate) unusable: Option<Refusal>,
}

impl Compiled {
    /// Compiles the program in `directory`.
    ///
    /// # Errors
    /// When the text cannot be read, is wrong, or breaks a rule of the compiler.
    pub(crate) fn new(machine: &Machine, directory: &FilePath) -> Result<Self, Refusal> {
        let file = directory.join(MODEL_FILE);
        let text = fs::read_to_string(&file).map_err(|e| Refusal {
            message: "ANECCompile() FAILED: err=()".into(),
            reason: format!("{}: {e}", file.display()),
        })?;
        let files = Files { root: directory, open: RefCell::default() };
        let mut program = text::parse(&text, &files).map_err(Refusal::invalid)?.program;
        mil::verify(&program).map_err(Refusal::invalid)?;
        let Machine { chip, os, .. } = machine;
        let found = check(&program, &CheckOptions { chip, path: Path::Direct, os: Some(*os) });
        let first = |outcomes: &[Outcome]| {
            let broken = |d: &&Diagnostic| {
                d.severity == Severity::Error && outcomes.contains(&d.rule.outcome)
            };
            found.iter().find(broken).map(Refusal::rule)
        };
        if let Some(refusal) = first(&[Outcome::CompileFails, Outcome::Crash]) {
            return Err(refusal);
        }
        let name = program.functions.keys().next().cloned();
        let name = name.ok_or_else(|| Refusal::invalid("there is no function"))?;
        bake(&mut program, &name, machine).map_err(Refusal::invalid)?;
        let function = &program.functions[&name];
        let slots = |values: &[ValueId]| -> Result<Vec<Slot>, Refusal> {
            values.iter().map(|&value| slot(function, value)).collect()
        };
        let (mut inputs, mut outputs) = (slots(&function.inputs)?, slots(&function.body.outputs)?);
        let order = chip.switches.binding.as_ref().map_or(BindingOrder::Name, |b| b.value);
        match order {
            BindingOrder::Name => {
                inputs.sort_by(|a, b| a.name.cmp(&b.name));
                outputs.sort_by(|a, b| a.name.cmp(&b.name));
            }
            BindingOrder::Size => {
                inputs.sort_by_key(|s| s.bytes);
                outputs.sort_by_key(|s| std::cmp::Reverse(s.bytes));
            }
            BindingOrder::Signature => {}
        }
        let (unloadable, unusable) =
            (first(&[Outcome::LoadFails]), first(&[Outcome::EvaluationFails]));
        Ok(Compiled { function: name, inputs, outputs, unloadable, unusable, program })
    }

    /// Whether both were compiled with the same weights.
    pub(crate) fn has_weights_of(&self, other: &Compiled) -> bool {
        let bytes = |c: &Compiled| -> Vec<Tensor> {
            c.program.weights.iter().map(|(_, w)| w.tensor.clone()).collect()
        };
        let (own, others) = (bytes(self), bytes(other));
        own.len() == others.len()
            && own.iter().zip(&others).all(|(a, b)| a.bytes()[..] == b.bytes()[..])
    }
}

fn slot(function: &mil::Function, value: ValueId) -> Result<Slot, Refusal> {
    let data = &function.values[value];
    let unfit =
        || Refusal::invalid(format!("{} is no tensor of fixed size: {}", data.name, data.ty));
    let ty = data.ty.as_tensor().ok_or_else(unfit)?.clone();
    let shape = ty.fixed_shape().ok_or_else(unfit)?;
    let count = tensor::element_count(&shape).ok_or_else(unfit)?;
    let bytes = ty.dtype.byte_len(count).ok_or_else(unfit)?;
    Ok(Slot { name: data.name.clone(), value, ty, shape, bytes })
}

/// Weights become plain constants, and arguments that the engine ignores go.
fn bake(program: &mut Program, name: &str, machine: &Machine) -> Result<(), mil::Error> {
    eval::decompress(program, name, Arithmetic::Fp16)?;
    let ops: Vec<OpId> = program.functions[name].ops.keys().collect();
    for op in ops {
        let kind = program.functions[name].ops[op].kind;
        let ignored =
            machine.chip.switches.sdpa_mask.as_ref().is_some_and(|m| m.value == Effect::Ignored);
        if kind == OpKind::ScaledDotProductAttention
            && ignored
            && let Some(slot) = kind.param_index("attn_mask")
            && let Some(function) = program.functions.get_mut(name)
        {
            function.ops[op].args[slot] = None;
        }
    }
    Ok(())
}

/// Weight files of a directory, read whole: a program keeps the weights it was compiled with.
struct Files<'a> {
    root: &'a FilePath,
    open: RefCell<HashMap<String, BlobFile>>,
}

impl BlobSource for Files<'_> {
    fn tensor(&self, path: &str, offset: u64, ty: &TensorType) -> Result<Tensor, OpError> {
        if let Some(file) = self.open.borrow().get(path) {
            return file.tensor(offset, ty);
        }
        let relative = path
            .strip_prefix(MODEL_PATH)
            .map(FilePath::new)
            .filter(|p| p.components().all(|c| matches!(c, Component::Normal(_))));
        let relative = relative.ok_or_else(|| {
            OpError::invalid(format!("{path:?} is not in the program's directory"))
        })?;
        let bytes = fs::read(self.root.join(relative))
            .map_err(|e| OpError::invalid(format!("weight file {path:?}: {e}")))?;
        let file = BlobFile::new(Bytes::copy_from(&bytes))?;
        let tensor = file.tensor(offset, ty);
        self.open.borrow_mut().insert(path.to_owned(), file);
        tensor
    }
}
