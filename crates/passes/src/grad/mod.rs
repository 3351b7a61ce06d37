//! Differentiation: from a program with a loss to one that computes the loss and its gradients.
//!
//! Reverse mode over the operations of one function. The gradients are operations of the same IR, so that
//! the result is verified, rewritten by the other passes and run by every backend like any program.
//!
//! - `rules` is the closed table of what is known of each kind of operation: a rule that emits the
//!   gradients by its arguments, simpler operations that stand for it, a derivative that is zero, or
//!   that it is not supported. An operation without a rule is an error only where the loss depends
//!   on what is differentiated through it.
//! - A weight that is differentiated becomes an input of the function, so that a trainer can hand in new
//!   values (`promote`).
//! - A value that is used several times has the sum of what its uses contribute (`tape`).
//! - Activations between checkpoints are computed again when the gradients need them (`recompute`).

mod activity;
mod elementwise;
mod expand;
mod gather;
mod linear;
mod llm;
mod norm;
mod promote;
mod recompute;
mod reduction;
mod rules;
mod shape;
mod site;
mod slice;
mod tape;
mod unary;

use mil::{Error, ErrorKind, Function, OpKind, Program, TensorType, ValueId};
use tensor::WeightId;

use crate::{Pass, dead_code, rewrite};

pub use rules::Coverage;

/// What to differentiate, and how.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The function; its sizes must be fixed.
    pub function: &'a str,
    /// The name of its output that is the loss: one float.
    pub loss: &'a str,
    /// By what.
    pub by: By<'a>,
    /// Names of values that are kept for the gradients, such as the input of each layer. What is computed
    /// from them up to the next one is computed again; with none, everything is kept.
    pub checkpoints: &'a [String],
    /// Whether the gradients are multiplied by a further input [`LOSS_SCALE`], an `fp32` scalar: against
    /// underflow in half precision, or to average over several calls.
    pub scaled: bool,
}

/// What a loss is differentiated by.
#[derive(Clone, Copy)]
pub enum By<'a> {
    /// The weights whose names are chosen. Those that the loss does not depend on are left out.
    Weights(&'a dyn Fn(&str) -> bool),
    /// Inputs of the function.
    Inputs(&'a [&'a str]),
}

/// The input that the gradients are multiplied by.
pub const LOSS_SCALE: &str = "loss_scale";

/// A program that computes gradients.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// The program handed in, in which the weights that are differentiated are inputs of the function, with
    /// one more function.
    pub program: Program,
    /// The name of that function. Its inputs are those of the function that is differentiated; its outputs
    /// are the loss and the gradients in the order of `parameters`.
    pub function: String,
    /// What the loss is differentiated by.
    pub parameters: Vec<Parameter>,
}

/// Something that a loss is differentiated by.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// The weight that holds its first value; `None` if it was an input all along.
    pub weight: Option<WeightId>,
    /// The weight's name, or the input's.
    pub name: String,
    /// The input that stands for it.
    pub input: String,
    /// The output with its gradient.
    pub gradient: String,
    /// Its type, and the gradient's. Weights in 16-bit floats are inputs of `fp32` wherever the operations
    /// that use them take any storage type, as the language-model dialect does.
    pub ty: TensorType,
}

/// How the operations of `kind` are differentiated.
pub fn coverage(kind: OpKind) -> Coverage {
    rules::rule(kind).coverage()
}

/// Adds to `program` a function that computes the gradients of a loss.
///
/// # Errors
/// `invalid` when function, loss or inputs are not there or not floats; `unsupported` when an operation
/// between has no gradient, a state is written on the way, a size is not fixed, or a chosen weight is
/// not of floats.
pub fn differentiate(program: &Program, request: &Request<'_>) -> mil::Result<Gradients> {
    let mut program = program.clone();
    let name = request.function;
    let place = |e: Error| e.in_function(name);
    loss_of(function_of(&program, name)?, request.loss).map_err(place)?;
    let promoted = match request.by {
        By::Weights(chosen) => promote::promote(&mut program, name, request.loss, chosen)?,
        By::Inputs(names) => given(function_of(&program, name)?, names).map_err(place)?,
    };
    let target = format!("{name}_grad");
    let mut function = function_of(&program, name)?.clone();
    let inputs: Vec<String> = promoted.iter().map(|p| p.input.clone()).collect();
    program.functions.insert(target.clone(), function);
    expand::expand(&mut program, &target, &inputs, request.loss)?;
    function = function_of(&program, &target)?.clone();
    let outputs = tape::reverse(&mut program, &target, &function, &inputs, request)?;
    let parameters = promoted
        .into_iter()
        .zip(outputs)
        .map(|(parameter, gradient)| Parameter { gradient, ..parameter })
        .collect();
    // The loss comes with the gradient of an output layer: then it is not computed by itself.
    dead_code::DeadCode.run(&mut program, &target)?;
    if let Some(function) = program.functions.get_mut(&target) {
        rewrite::compact(function);
    }
    mil::verify(&program)?;
    Ok(Gradients { program, function: target, parameters })
}

fn function_of<'p>(program: &'p Program, name: &str) -> mil::Result<&'p Function> {
    let missing = || Error::new(ErrorKind::Invalid, format!("no function {name}"));
    program.functions.get(name).ok_or_else(missing)
}

/// The output `name`, which must be one float.
fn loss_of(function: &Function, name: &str) -> mil::Result<ValueId> {
    let outputs = function.body.outputs.iter().copied();
    let loss = outputs.clone().find(|&v| function.values[v].name == name).ok_or_else(|| {
        let there: Vec<&str> = outputs.map(|v| &*function.values[v].name).collect();
        let message = format!("no output {name}; there are {}", there.join(", "));
        Error::new(ErrorKind::Invalid, message)
    })?;
    let single = function.tensor_ty(loss).is_some_and(|t| {
        t.dtype.is_float() && t.fixed_shape().is_some_and(|s| s.iter().product::<usize>() == 1)
    });
    if !single {
        let message = format!("output {name} is {}, not one float", function.ty(loss));
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(loss)
}

/// The inputs `names` as parameters, their gradients still to be named.
fn given(function: &Function, names: &[&str]) -> mil::Result<Vec<Parameter>> {
    let parameter = |(i, &name): (usize, &&str)| {
        let float = |v: ValueId| function.tensor_ty(v).filter(|t| t.dtype.is_float());
        let ty = function.input(name).and_then(float).filter(|_| !names[..i].contains(&name));
        let invalid = || {
            let message = format!("{name} is no input of floats, or is named twice");
            Error::new(ErrorKind::Invalid, message)
        };
        Ok(Parameter {
            weight: None,
            name: name.to_owned(),
            input: name.to_owned(),
            gradient: String::new(),
            ty: ty.ok_or_else(invalid)?.clone(),
        })
    };
    names.iter().enumerate().map(parameter).collect()
}
