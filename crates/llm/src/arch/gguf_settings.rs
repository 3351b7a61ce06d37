//! Hyperparameters of a GGUF file: keys below the architecture's name.

use import::Gguf;
use import::gguf::{FromValue, Value};

use super::{Dims, RopeSettings};
use crate::parts::RopeScaling;
use crate::{Error, Result};

/// The hyperparameters of one file, and what of them Rigel does not implement.
pub(crate) struct GgufSettings<'f> {
    file: &'f Gguf,
    arch: &'f str,
    refused: Vec<String>,
}

impl<'f> GgufSettings<'f> {
    /// The settings of `file`.
    ///
    /// # Errors
    /// When it does not name its architecture.
    pub(crate) fn new(file: &'f Gguf) -> Result<Self> {
        let arch = file.metadata().get("general.architecture")?;
        Ok(GgufSettings { file, arch, refused: Vec::new() })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// The value of `ARCH.name`, if there is one.
    ///
    /// # Errors
    /// When it is of another type.
    pub(crate) fn find<T: FromValue<'f>>(&self, name: &str) -> Result<Option<T>> {
        Ok(self.file.metadata().find(&self.key(name))?)
    }

    /// The value of `ARCH.name`, whatever it is.
    pub(crate) fn value(&self, name: &str) -> Option<&'f Value> {
        self.file.metadata().value(&self.key(name))
    }

    /// An error about `ARCH.name`.
    pub(crate) fn error(&self, name: &str, why: impl Into<String>) -> Error {
        self.file.metadata().error(&self.key(name), why).into()
    }

    /// Notes something that the file asks for and Rigel does not do.
    pub(crate) fn refuse(&mut self, what: impl Into<String>) {
        self.refused.push(what.into());
    }

    /// What was refused.
    pub(crate) fn into_refused(self) -> Vec<String> {
        self.refused
    }

    /// A size that some files give for each layer; those must be equal.
    fn uniform(&mut self, name: &str) -> Result<Option<usize>> {
        if !matches!(self.value(name), Some(Value::Array(_))) {
            return self.find(name);
        }
        let sizes: Vec<usize> = self.find(name)?.unwrap_or_default();
        if sizes.windows(2).any(|pair| pair[0] != pair[1]) {
            self.refuse(format!("{name} that differs between layers"));
        }
        Ok(sizes.first().copied())
    }

    fn required(&mut self, name: &str) -> Result<usize> {
        self.uniform(name)?.ok_or_else(|| self.error(name, "no such key"))
    }

    /// The dimensions; `epsilon` is the key of the norms' epsilon.
    ///
    /// # Errors
    /// When a key is missing or of another type, or a size makes no sense.
    pub(crate) fn dims(&mut self, epsilon: &str) -> Result<Dims> {
        let (layers, width) = (self.required("block_count")?, self.required("embedding_length")?);
        let heads = self.required("attention.head_count")?;
        let head_dim = match self.uniform("attention.key_length")? {
            Some(n) => n,
            None => width / heads.max(1),
        };
        if self.uniform("attention.value_length")?.is_some_and(|n| n != head_dim) {
            self.refuse("values of another width than keys");
        }
        if let Some(experts) = self.uniform("expert_count")?.filter(|&n| n > 0) {
            self.refuse(format!("a mixture of {experts} experts"));
        }
        let vocab = match self.file.info("token_embd.weight").map(|t| t.shape.as_slice()) {
            Some(&[vocab, _]) => vocab,
            _ => {
                let why = "tensor \"token_embd.weight\" is missing or no matrix";
                return Err(Error::invalid(self.file.path(), why));
            }
        };
        let norm_epsilon = self.file.metadata().get(&self.key(epsilon))?;
        let dims = Dims {
            layers,
            width,
            feed_forward: self.required("feed_forward_length")?,
            heads,
            kv_heads: self.uniform("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            vocab,
            max_context: self.required("context_length")?,
            norm_epsilon,
        };
        dims.checked(self.file.path())
    }

    /// The rotary embedding of a model with heads of `head_dim`.
    ///
    /// # Errors
    /// When a key is of another type or makes no sense.
    pub(crate) fn rope(&mut self, head_dim: usize) -> Result<RopeSettings> {
        let base = self.find::<f32>("rope.freq_base")?.map_or(10_000.0, f64::from);
        let rotated = self.find("rope.dimension_count")?.unwrap_or(head_dim);
        let mut factor = self.find::<f32>("rope.scaling.factor")?;
        if factor.is_none() {
            // The key of files older than the scaling types.
            factor = self.find("rope.scale_linear")?;
        }
        let scaling = match (self.find::<&str>("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => RopeScaling::None,
            (None | Some("linear"), Some(f)) => RopeScaling::Linear { factor: f.into() },
            (Some(other), _) => {
                self.refuse(format!("rope scaling {other:?}; there are linear and none"));
                RopeScaling::None
            }
        };
        RopeSettings { base, scaling, rotated }.checked(self.file.path(), head_dim)
    }
}
