//! Pipelines: models that run one after the other, each a program of its own.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

use super::proto::{Kept, Model};
use super::{Package, compiled, files, manifest};
use crate::{Error, ErrorKind, Result};

/// The models of the specification `bytes`, with the names that a pipeline gives them.
///
/// # Errors
/// When the bytes are no specification.
pub(super) fn models(bytes: &[u8]) -> Result<Vec<(String, Kept<Model>)>> {
    let mut model = Kept::<Model>::decode(bytes)
        .map_err(|e| Error::new(ErrorKind::Invalid, format!("not a Core ML model: {e}")))?;
    let Some(pipeline) = model.pipeline.take() else {
        return Ok(vec![(String::new(), model)]);
    };
    let pipeline = pipeline.message;
    let names = pipeline.names.into_iter().chain(std::iter::repeat(String::new()));
    Ok(names.zip(pipeline.models).collect())
}

/// The model of a pipeline of one.
///
/// # Errors
/// When there are more or none.
pub(super) fn only<T>(mut models: Vec<(String, T)>) -> Result<T> {
    if models.len() == 1
        && let Some((_, model)) = models.pop()
    {
        return Ok(model);
    }
    let names: Vec<String> = models.into_iter().map(|(name, _)| format!("{name:?}")).collect();
    let message = match names.as_slice() {
        [] => "a pipeline of no models".to_owned(),
        names => format!(
            "a pipeline of {} models is more than one program: {}",
            names.len(),
            names.join(", ")
        ),
    };
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// The folders of a compiled pipeline's models, in order; none if `folder` is no such pipeline.
pub(super) fn compiled_models(folder: &Path) -> Vec<(String, PathBuf)> {
    let part = |i: usize| format!("model{i}");
    let there = |name: &String| folder.join(name).join(compiled::TEXT).exists();
    (0..).map(part).take_while(there).map(|name| (name.clone(), folder.join(name))).collect()
}

impl Package {
    /// Opens the models of a pipeline, in the order in which they run, each with its name (of a
    /// compiled pipeline, its folder's); any other model is the only one of its own, without a name.
    ///
    /// # Errors
    /// As [`Package::open`].
    pub fn open_pipeline(path: impl AsRef<Path>) -> Result<Vec<(String, Self)>> {
        let path = path.as_ref();
        let meta = fs::metadata(path).map_err(|e| files::io_error(path, "open", &e))?;
        let specification = if meta.is_dir() {
            let is_package = path.join(manifest::NAME).exists();
            is_package.then(|| manifest::root_model(path)).transpose()?
        } else {
            path.extension().is_some_and(|e| e == "mlmodel").then(|| path.to_owned())
        };
        if let Some(path) = specification {
            let (bytes, blobs) = super::map_model(&path)?;
            let open = |(name, model)| Ok((name, Self::of_model(model, &blobs)?));
            let opened = models(&bytes).and_then(|m| m.into_iter().map(open).collect());
            return opened.map_err(|e| e.in_file(&path));
        }
        let parts = compiled_models(path);
        if parts.is_empty() {
            return Ok(vec![(String::new(), Self::open(path)?)]);
        }
        parts.into_iter().map(|(name, part)| Ok((name, Self::open(part)?))).collect()
    }
}
