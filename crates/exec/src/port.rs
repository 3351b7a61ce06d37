//! The raw boundary of a Neural Engine: the private framework's verbs, one method each, and nothing
//! decided above them.
//!
//! What implements [`Port`] behaves as the framework does, mistakes and silences included; order of
//! surfaces, sizes, budgets and retries are the driver's. The life of a program is [`Port::model`],
//! the driver's writing of `model.mil` and the weight files under [`Port::directory`] (the compiler
//! reads the file system, not only the dictionary), [`Port::compile`], [`Port::load`],
//! [`Port::evaluate`] any number of times, [`Port::unload`], removal of the directory.

use std::path::PathBuf;
use std::time::Duration;

/// Start of the keys of a weight dictionary and of the paths in MIL text.
pub const MODEL_PATH: &str = "@model_path/";
/// Name, in a program's directory, of its MIL text.
pub const MODEL_FILE: &str = "model.mil";

/// The verbs of the private framework. Handles release what they hold when dropped, but a loaded
/// program stays with the engine until [`Port::unload`].
pub trait Port: Send + Sync {
    /// `_ANEInMemoryModel`: a program in one of the [`Stage`]s.
    type Model: Send + Sync;
    /// `_ANEIOSurfaceObject` with its `IOSurface`: shared memory of a fixed size.
    type Surface: Send + Sync;
    /// `_ANERequest`: surfaces bound to a program's inputs and outputs.
    type Request: Send + Sync;

    /// The machine this leads to.
    fn machine(&self) -> &Machine;

    /// `+modelWithMILText:weights:optionsPlist:`, then `+inMemoryModelWithDescriptor:`. The text is
    /// UTF-8. An empty dictionary is passed as one, never as nil.
    ///
    /// # Errors
    /// When the framework returns nil.
    fn model(&self, text: &[u8], weights: &[WeightFile<'_>]) -> PortResult<Self::Model>;

    /// `-hexStringIdentifier`: equal for equal text and weights.
    fn identifier(&self, model: &Self::Model) -> String;

    /// The directory that the compiler reads: the temporary directory joined with the identifier.
    /// The port does not create it.
    fn directory(&self, model: &Self::Model) -> PathBuf;

    /// `-compileWithQoS:options:error:`.
    ///
    /// # Errors
    /// When the compiler refuses the program, or the process has used up its compilations.
    fn compile(&self, model: &Self::Model, qos: Qos) -> PortResult<()>;

    /// `-loadWithQoS:options:error:`.
    ///
    /// # Errors
    /// When the program is not compiled or too many are loaded.
    fn load(&self, model: &Self::Model, qos: Qos) -> PortResult<()>;

    /// `-unloadWithQoS:error:`.
    ///
    /// # Errors
    /// When the program is not loaded.
    fn unload(&self, model: &Self::Model, qos: Qos) -> PortResult<()>;

    /// `IOSurfaceCreate` of `bytes` zeroed bytes and `+objectWithIOSurface:`.
    ///
    /// # Errors
    /// When there is no memory.
    fn surface(&self, bytes: usize) -> PortResult<Self::Surface>;

    /// Shows a surface's bytes to `access` between lock and unlock.
    ///
    /// # Errors
    /// When the surface cannot be locked.
    fn access(&self, surface: &Self::Surface, access: &mut dyn FnMut(&mut [u8])) -> PortResult<()>;

    /// `+requestWithInputs:inputIndices:outputs:outputIndices:weightsBuffer:perfStats:procedureIndex:`
    /// with indices from 0 and procedure 0. The engine binds the surfaces to the program's inputs
    /// and outputs in alphabetical order of their names.
    ///
    /// # Errors
    /// When the framework returns nil.
    fn request(
        &self,
        inputs: &[&Self::Surface],
        outputs: &[&Self::Surface],
    ) -> PortResult<Self::Request>;

    /// `-evaluateWithQoS:options:request:error:`; returns when the outputs are written.
    ///
    /// # Errors
    /// When the program is not loaded, the queue is full, or the engine refuses the surfaces.
    fn evaluate(&self, model: &Self::Model, request: &Self::Request, qos: Qos) -> PortResult<()>;

    /// What this process holds of the engine now.
    fn usage(&self) -> Usage;

    /// Time that the emulated engine says has passed since the port was made.
    fn virtual_time(&self) -> VirtualTime;
}

/// What an emulated engine's clock says: `None` where time is real, or something took a time that is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VirtualTime {
    /// Of evaluations.
    pub evaluating: Option<Duration>,
    /// Of compiling and loading.
    pub preparing: Option<Duration>,
}

/// Result of a verb.
pub type PortResult<T> = Result<T, PortError>;

/// The machine that a port leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// Chip, by the name of its file: `m4`.
    pub chip: String,
    /// Version of the operating system: `15.0`.
    pub os: String,
    /// Whether it is emulated.
    pub emulated: bool,
}

/// One file of a weight dictionary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightFile<'a> {
    /// `@model_path/weights/weight.bin`.
    pub key: &'a str,
    /// The file's bytes, header and all.
    pub data: &'a [u8],
}

/// Quality of service: 0 to 63, of which 21 (user initiated) is the usual one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Qos(pub u32);

impl Default for Qos {
    fn default() -> Self {
        Qos(21)
    }
}

/// How far a program has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Described only.
    Created,
    /// Compiled.
    Compiled,
    /// Loaded: it can be evaluated.
    Loaded,
    /// Unloaded again; loading needs no compilation.
    Unloaded,
}

/// What a process holds of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Compilations so far; the process does not get them back.
    pub compilations: usize,
    /// Models not yet dropped.
    pub models: usize,
    /// Programs loaded.
    pub loaded: usize,
    /// Surfaces not yet dropped.
    pub surfaces: usize,
    /// Their bytes.
    pub surface_bytes: usize,
}

/// A verb of [`Port`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Finding the framework and its classes.
    Open,
    /// [`Port::model`].
    Model,
    /// [`Port::compile`].
    Compile,
    /// [`Port::load`].
    Load,
    /// [`Port::unload`].
    Unload,
    /// [`Port::surface`].
    Surface,
    /// [`Port::access`].
    Access,
    /// [`Port::request`].
    Request,
    /// [`Port::evaluate`].
    Evaluate,
}

impl std::fmt::Display for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verb::Open => "open",
            Verb::Model => "model",
            Verb::Compile => "compile",
            Verb::Load => "load",
            Verb::Unload => "unload",
            Verb::Surface => "surface",
            Verb::Access => "access",
            Verb::Request => "request",
            Verb::Evaluate => "evaluate",
        })
    }
}

/// What the framework said when a verb failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{verb}: {message}{}", said(.reason))]
pub struct PortError {
    /// Which verb.
    pub verb: Verb,
    /// The engine's status (0x1d) or the error's code, where there is one.
    pub status: Option<i64>,
    /// The error's own words.
    pub message: String,
    /// What an emulated engine knows and the real one does not say.
    pub reason: Option<String>,
}

fn said(reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(String::new, |r| format!(" ({r})"))
}
