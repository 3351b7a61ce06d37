//! From a language model to a Core ML package: functions of fixed sizes that share their weights, in
//! plain MIL of the target's operation set, with the key-value cache in two states.

mod error;
mod interface;
mod target;

use std::collections::BTreeMap;

use llm::{Model, ModelConfig};
use mil::package::{Metadata, Package};
use mil::{Opset, Program};
use passes::{Pass, pipelines};

pub use error::{ExportError, Result};
pub use interface::POSITION;

/// What Core ML calls the function of a package that has one.
pub const MAIN: &str = "main";

/// The Neural Engine runs programs of up to this many states.
const MOST_STATES: usize = 2;
/// What the Neural Engine wants sizes of states to be multiples of.
const STATE_SIZE: usize = 32;

/// A function of a language model's package.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// Takes [`Options::length`] tokens, extends the cache, returns the logits of the last.
    Prefill,
    /// Takes one token, extends the cache, returns its logits.
    Decode,
    /// Takes [`Options::length`] tokens and returns the logits of each; has no states.
    Score,
}

impl Role {
    /// The function's name in a model's program and in a package of several functions.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Prefill => llm::interface::PREFILL,
            Role::Decode => llm::interface::DECODE,
            Role::Score => llm::interface::SCORE,
        }
    }

    fn has_states(self) -> bool {
        self != Role::Score
    }
}

/// What weights and arithmetic are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Half, what the Neural Engine computes in; positions and their angles are of single.
    Fp16,
    /// Single, for comparison.
    Fp32,
}

/// What is exported.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The oldest system that shall run it, by its operation set.
    pub target: Opset,
    /// Functions of the package; one alone is called [`MAIN`].
    pub functions: Vec<Role>,
    /// Tokens of one call of prefill and score.
    pub length: usize,
    /// Slots of the cache.
    pub context: usize,
    /// Of weights and arithmetic. That of the cache is the model's.
    pub precision: Precision,
}

/// A package, and what its maker should know about it.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The package.
    pub package: Package,
    /// Why the Neural Engine may not run it, one line each.
    pub notes: Vec<String>,
}

/// Makes a package of `model`.
///
/// Every function takes `ids` int32 `[1, T]` and [`POSITION`] int32 `[1]`, the position of the first
/// of them, and returns `logits` fp32. Prefill and decode share the states `k_cache` and `v_cache`
/// `[layers, kv_heads, context, head_dim]`. Tokens after a prompt's end may be anything: their slots are
/// not attended before they are written again.
///
/// # Errors
/// When the sizes do not fit the model or each other, or the target lacks states, several functions
/// or an operation; and when a weight is beyond the precision's range.
pub fn export(model: &Model, options: &Options) -> Result<Exported> {
    check(model.config(), options)?;
    let mut program = fixed(model, options)?;
    for role in &options.functions {
        interface::start_from_position(&mut program, role.name())?;
    }
    passes::run(&mut program, pipeline(options.precision))?;
    target::set(&mut program, options.target)?;
    if let [role] = options.functions[..]
        && let Some(function) = program.functions.remove(role.name())
    {
        program.functions.insert(MAIN.to_owned(), function);
    }
    let notes = notes(&program);
    let mut package = Package::from_program(program);
    package.set_metadata(metadata(model, options))?;
    Ok(Exported { package, notes })
}

fn check(config: &ModelConfig, options: &Options) -> Result<()> {
    let Options { target, ref functions, length, context, .. } = *options;
    if functions.is_empty() {
        return Err(ExportError::invalid("no function to export"));
    }
    let twice = (1..functions.len()).find(|&i| functions[..i].contains(&functions[i]));
    if let Some(i) = twice {
        return Err(ExportError::invalid(format!("function {} twice", functions[i].name())));
    }
    let states = functions.iter().find(|f| f.has_states());
    if target < Opset::Ios18 && (states.is_some() || functions.len() > 1) {
        let why = match states {
            Some(role) => format!("{} keeps its cache in states", role.name()),
            None => "the package has several functions".to_owned(),
        };
        return Err(ExportError::unsupported(format!(
            "{why}, which {target} does not have: {} is the first that does; for {target} there is \
             {} alone",
            Opset::Ios18,
            Role::Score.name(),
        )));
    }
    let max = config.max_context;
    let sized = functions.iter().any(|f| *f != Role::Decode);
    for (what, n, used) in [("length", length, sized), ("context", context, states.is_some())] {
        if used && !(1..=max).contains(&n) {
            let why = format!("{what} of {n} tokens; this model takes 1 to {max}");
            return Err(ExportError::limit(why));
        }
    }
    if functions.contains(&Role::Prefill) && length > context {
        let why = format!("prefill of {length} tokens does not fit in a context of {context}");
        return Err(ExportError::invalid(why));
    }
    Ok(())
}

/// The functions asked for, of fixed sizes.
fn fixed(model: &Model, options: &Options) -> Result<Program> {
    let mut program = model.program().clone();
    program.functions.retain(|name, _| options.functions.iter().any(|f| f.name() == name));
    let sizes = [(llm::interface::SEQ, options.length), (llm::interface::CONTEXT, options.context)];
    let sizes: BTreeMap<String, usize> = sizes.map(|(name, n)| (name.to_owned(), n)).into();
    Ok(program.specialize(&sizes)?)
}

fn pipeline(precision: Precision) -> &'static [&'static dyn Pass] {
    match precision {
        Precision::Fp16 => pipelines::DEPLOY,
        Precision::Fp32 => pipelines::DEPLOY_FP32,
    }
}

/// What of the states the Neural Engine does not like.
fn notes(program: &Program) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, function) in &program.functions {
        let states = function
            .inputs
            .iter()
            .filter_map(|&v| Some((&function.values[v].name, function.ty(v).as_state()?)));
        let states: Vec<_> = states.collect();
        if states.len() > MOST_STATES {
            notes.push(format!(
                "function {name} has {} states; the Neural Engine runs programs of up to {MOST_STATES}",
                states.len()
            ));
        }
        for (state, ty) in states {
            // The first axes are counted, the last two are laid out.
            let odd = ty.shape.iter().rev().take(2).filter_map(|d| d.fixed());
            let odd: Vec<String> =
                odd.filter(|n| !n.is_multiple_of(STATE_SIZE)).map(|n| n.to_string()).collect();
            if !odd.is_empty() {
                notes.push(format!(
                    "function {name}, state {state} {ty}: sizes that are not multiples of \
                     {STATE_SIZE} ({}) keep it from the Neural Engine",
                    odd.join(", ")
                ));
            }
        }
    }
    notes
}

/// What the package says about itself.
fn metadata(model: &Model, options: &Options) -> Metadata {
    let config = model.config();
    let source = model.file().path();
    let source = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy().into_owned();
    let precision = match options.precision {
        Precision::Fp16 => "fp16",
        Precision::Fp32 => "fp32",
    };
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let mut say = |key: &str, value: String| said.insert(format!("rigel.{key}"), value);
    say("source", source);
    say("architecture", config.arch.to_owned());
    say("parameters", config.parameters.to_string());
    say("layers", config.layers.to_string());
    say("vocabulary", config.vocab.to_string());
    say("precision", precision.to_owned());
    say("version", env!("CARGO_PKG_VERSION").to_owned());
    let has = |wanted: fn(&Role) -> bool| options.functions.iter().any(wanted);
    if has(|f| f.has_states()) {
        say("context", options.context.to_string());
    }
    if has(|f| *f != Role::Decode) {
        say("length", options.length.to_string());
    }
    let name = config.name.as_deref().unwrap_or(config.arch);
    Metadata {
        short_description: format!("{name}, a language model"),
        user_defined: said,
        ..Metadata::default()
    }
}
