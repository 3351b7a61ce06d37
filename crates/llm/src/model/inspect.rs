//! What a model file holds and what of it Rigel would not run, without failing over it.

use std::path::PathBuf;

use import::ModelFile;
use import::gguf::Value;
use mil::ErrorKind;
use serde::Serialize;
use tensor::DType;

use super::ModelConfig;
use crate::Error;
use crate::arch::Planned;

/// A model file, listed.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// File or directory.
    pub path: PathBuf,
    /// Format and version, such as `GGUF v3`.
    pub format: String,
    /// Bytes of all files that hold tensors.
    pub bytes: usize,
    /// Metadata or configuration, in the file's order; of a GGUF array only length and type.
    pub metadata: Vec<(String, String)>,
    /// Every tensor, in the file's order.
    pub tensors: Vec<TensorSummary>,
    /// What the model is, if its architecture is known and its settings make sense.
    pub config: Option<ModelConfig>,
    /// Why it would not run; empty if it does.
    pub problems: Vec<Problem>,
}

/// A tensor of a file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TensorSummary {
    /// Name.
    pub name: String,
    /// Type as the format names it.
    pub ty: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Bytes in the file; `None` for a type of unknown size.
    pub bytes: Option<usize>,
    /// Whether Rigel can read it.
    pub supported: bool,
}

/// A reason why a model would not run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Problem {
    /// `invalid`, `unsupported`, `limit` or `bug`.
    pub kind: &'static str,
    /// What and where.
    pub message: String,
}

impl Problem {
    fn unsupported(message: String) -> Self {
        Problem { kind: "unsupported", message }
    }
}

impl From<Error> for Problem {
    fn from(e: Error) -> Self {
        let kind = match e.kind() {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Limit => "limit",
            ErrorKind::Bug => "bug",
        };
        Problem { kind, message: e.to_string() }
    }
}

/// Lists the model in an open file.
pub fn inspect(file: &ModelFile) -> Inspection {
    let (config, problems) = judge(file);
    Inspection {
        path: file.path().to_path_buf(),
        format: file.format_name(),
        bytes: file.byte_len(),
        metadata: metadata(file),
        tensors: file
            .tensors()
            .into_iter()
            .map(|e| TensorSummary {
                name: e.name.to_owned(),
                ty: e.type_name.into_owned(),
                shape: e.shape.to_vec(),
                bytes: e.byte_len,
                supported: e.dtype.is_some(),
            })
            .collect(),
        config,
        problems,
    }
}

/// What the model is, and why it would not run.
fn judge(file: &ModelFile) -> (Option<ModelConfig>, Vec<Problem>) {
    let mut problems = unsupported_types(file);
    let planned = match Planned::new(file) {
        Ok(planned) => planned,
        Err(e) => {
            problems.push(e.into());
            return (None, problems);
        }
    };
    let config = planned.config();
    problems.extend(planned.refused().iter().cloned().map(Problem::unsupported));
    // Reading the weights would only fail on what is listed already.
    if problems.is_empty() {
        let program = planned
            .build()
            .and_then(|built| Ok(built.decoder.program(built.weights, 1, DType::F16)?));
        problems.extend(program.err().map(Problem::from));
    }
    (Some(config), problems)
}

/// One problem for each tensor type that cannot be read.
fn unsupported_types(file: &ModelFile) -> Vec<Problem> {
    let mut types: Vec<(String, String, usize)> = Vec::new();
    for e in file.tensors().into_iter().filter(|e| e.dtype.is_none()) {
        match types.iter_mut().find(|(ty, ..)| *ty == e.type_name) {
            Some((_, _, count)) => *count += 1,
            None => types.push((e.type_name.into_owned(), e.name.to_owned(), 1)),
        }
    }
    let say = |(ty, first, count)| format!("tensor type {ty} ({count} tensors, first {first:?})");
    types.into_iter().map(say).map(Problem::unsupported).collect()
}

/// A metadata value as text; of an array only what it holds, for vocabularies are long.
fn shown(value: &Value) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => v.clone(),
        Value::Array(v) => format!("{} x {}", v.len(), v.element_type().name()),
    }
}

/// The metadata or configuration as text.
fn metadata(file: &ModelFile) -> Vec<(String, String)> {
    match file {
        ModelFile::Gguf(m) => m.metadata().iter().map(|(k, v)| (k.to_owned(), shown(v))).collect(),
        ModelFile::HuggingFace(m) => m
            .config()
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.to_string()))
            .collect(),
        ModelFile::Llama2c(m) => {
            let c = m.config();
            let entries = [
                ("dim", c.dim),
                ("hidden_dim", c.hidden_dim),
                ("n_layers", c.n_layers),
                ("n_heads", c.n_heads),
                ("n_kv_heads", c.n_kv_heads),
                ("vocab_size", c.vocab_size),
                ("seq_len", c.seq_len),
                ("shared_classifier", c.shared_classifier.into()),
            ];
            entries.map(|(k, v)| (k.to_owned(), v.to_string())).into()
        }
    }
}
