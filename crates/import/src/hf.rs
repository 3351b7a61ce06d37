//! A Hugging Face model directory: `config.json`, safetensors in one file or sharded, and the paths
//! of the tokenizer's files.

use std::path::{Component, Path, PathBuf};

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tensor::Tensor;

use crate::atomic::{write_directory, write_file};
use crate::error::quoted;
use crate::json::{self, UniqueMap, read_json};
use crate::safetensors::{SafeTensors, TensorInfo};
use crate::source::{dir_of, map_file};
use crate::{ImportError, Result};

pub(crate) const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Files of pickled weights that a directory may hold instead.
const PICKLES: &[&str] = &["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// An open Hugging Face model directory.
#[derive(Clone, Debug)]
pub struct HfDir {
    dir: PathBuf,
    config: Value,
    side_files: SideFiles,
    shards: Vec<SafeTensors>,
    /// Which shard holds a tensor.
    tensors: IndexMap<String, usize>,
}

/// The files beside the weights, where they are present. They are not opened.
#[derive(Clone, Debug, Default)]
pub struct SideFiles {
    /// `tokenizer.json`, of the `tokenizers` library.
    pub tokenizer_json: Option<PathBuf>,
    /// `tokenizer.model`, of SentencePiece.
    pub tokenizer_model: Option<PathBuf>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<PathBuf>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<PathBuf>,
    /// `generation_config.json`.
    pub generation_config: Option<PathBuf>,
    /// `chat_template.jinja`.
    pub chat_template: Option<PathBuf>,
}

impl SideFiles {
    /// Those that are there.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        let SideFiles {
            tokenizer_json,
            tokenizer_model,
            tokenizer_config,
            special_tokens_map,
            generation_config,
            chat_template,
        } = self;
        let all = [
            tokenizer_json,
            tokenizer_model,
            tokenizer_config,
            special_tokens_map,
            generation_config,
            chat_template,
        ];
        all.into_iter().filter_map(Option::as_deref)
    }

    fn of(dir: &Path) -> Self {
        let present = |name| Some(dir.join(name)).filter(|path| path.is_file());
        SideFiles {
            tokenizer_json: present("tokenizer.json"),
            tokenizer_model: present("tokenizer.model"),
            tokenizer_config: present("tokenizer_config.json"),
            special_tokens_map: present("special_tokens_map.json"),
            generation_config: present("generation_config.json"),
            chat_template: present("chat_template.jinja"),
        }
    }
}

impl HfDir {
    /// Opens the model in directory `dir`. An index of shards goes before a single file.
    ///
    /// # Errors
    /// When a file is missing or breaks its format, and `unsupported` when there are only pickled
    /// weights.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let config = read_config(dir)?;
        let index = dir.join(INDEX);
        if index.is_file() {
            let weight_map = read_index(&index)?;
            let mut shards = Vec::new();
            let mut files: Vec<&str> = weight_map.values().map(String::as_str).collect();
            files.sort_unstable();
            files.dedup();
            for file in files {
                shards.push(SafeTensors::open(dir.join(file))?);
            }
            let model = Self::with_shards(dir, config, shards)?;
            model.check_index(&index, &weight_map)?;
            return Ok(model);
        }
        let single = dir.join(SINGLE);
        if !single.is_file()
            && let Some(pickle) = PICKLES.iter().find(|name| dir.join(name).is_file())
        {
            let why = format!("{pickle} holds pickled weights; convert them to safetensors");
            return Err(ImportError::unsupported(dir, why));
        }
        Self::with_shards(dir, config, vec![SafeTensors::open(single)?])
    }

    /// Whether `dir` looks like a model of this kind: it has a configuration and safetensors.
    pub(crate) fn has_weights(dir: &Path) -> bool {
        let present = |name| dir.join(name).is_file();
        present(CONFIG) && (present(INDEX) || present(SINGLE))
    }

    /// Opens one safetensors file that has `config.json` beside it.
    ///
    /// # Errors
    /// When either is missing or breaks its format.
    pub fn open_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let dir = dir_of(path);
        let config = read_config(dir)?;
        Self::with_shards(dir, config, vec![SafeTensors::open(path)?])
    }

    /// A model that has no weights yet, of the `config.json` in `dir`.
    ///
    /// # Errors
    /// When that is missing or no object.
    pub fn without_weights(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        Self::with_shards(dir, read_config(dir)?, Vec::new())
    }

    /// Writes a model as a new directory `dir`, which appears when it is whole: `config` as
    /// `config.json`, `tensors` in their order as one safetensors file, and copies of `side_files`.
    ///
    /// # Errors
    /// When there is something at `dir` already, as [`safetensors::write`](crate::safetensors::write), or
    /// when a file cannot be copied.
    pub fn write(
        dir: impl AsRef<Path>,
        config: &Value,
        tensors: &[(&str, &Tensor)],
        side_files: &[&Path],
    ) -> Result<()> {
        write_directory(dir.as_ref(), |partial| {
            crate::safetensors::write(partial.join(SINGLE), &[("format", "pt")], tensors)?;
            write_file(&partial.join(CONFIG), |out| {
                serde_json::to_writer_pretty(out, config).map_err(Into::into)
            })?;
            for file in side_files {
                let name = file.file_name().unwrap_or_default();
                std::fs::copy(file, partial.join(name))
                    .map_err(|e| ImportError::io(file, "copy", e))?;
            }
            Ok(())
        })
    }

    fn with_shards(dir: &Path, config: Value, shards: Vec<SafeTensors>) -> Result<Self> {
        let mut tensors = IndexMap::new();
        for (n, shard) in shards.iter().enumerate() {
            for (name, _) in shard.tensors() {
                if let Some(first) = tensors.insert(name.to_owned(), n) {
                    let why = format!("tensor is also in {}", shards[first].path().display());
                    return Err(ImportError::invalid(shard.path(), why).tensor(name));
                }
            }
        }
        let side_files = SideFiles::of(dir);
        Ok(HfDir { dir: dir.to_path_buf(), config, side_files, shards, tensors })
    }

    /// Each tensor of the index has to be in the file that the index says.
    fn check_index(&self, index: &Path, weight_map: &IndexMap<String, String>) -> Result<()> {
        for (name, file) in weight_map {
            let holds = self.tensors.get(name).map(|&n| self.shards[n].path());
            if holds != Some(self.dir.join(file).as_path()) {
                let why = format!("the index puts it in {}, which lacks it", quoted(file));
                return Err(ImportError::invalid(index, why).tensor(name));
            }
        }
        Ok(())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// `config.json`, which is an object.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The value of `key` in `config.json`; dots lead into inner objects.
    ///
    /// # Errors
    /// When the key is missing, null, or not of type `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        self.find(key)?.ok_or_else(|| self.error(key, "no such key"))
    }

    /// As [`HfDir::get`], but `None` when the key is missing or null.
    ///
    /// # Errors
    /// When the value is not of type `T`.
    pub fn find<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let value = key.split('.').try_fold(&self.config, |value, part| value.get(part));
        let Some(value) = value.filter(|v| !v.is_null()) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|e| self.error(key, e.to_string()))
    }

    /// An `invalid` error about a key of `config.json`, for a caller that finds its value unusable.
    pub fn error(&self, key: &str, why: impl Into<String>) -> ImportError {
        ImportError::invalid(&self.dir.join(CONFIG), why).key(key)
    }

    /// The files beside the weights.
    pub fn side_files(&self) -> &SideFiles {
        &self.side_files
    }

    /// The safetensors files.
    pub fn shards(&self) -> &[SafeTensors] {
        &self.shards
    }

    /// All tensors by name, each with the shard that holds it, including those of unsupported type.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo, &SafeTensors)> {
        self.shards.iter().flat_map(|s| s.tensors().map(move |(name, info)| (name, info, s)))
    }

    /// What is known of a tensor without reading it.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.shards[*self.tensors.get(name)?].info(name)
    }

    /// A tensor over the mapped bytes; see [`SafeTensors::tensor`].
    ///
    /// # Errors
    /// `invalid` when there is none of this name, `unsupported` when its type cannot be held.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.tensors.get(name) {
            Some(&shard) => self.shards[shard].tensor(name),
            None => Err(ImportError::invalid(&self.dir, "no such tensor").tensor(name)),
        }
    }
}

fn read_config(dir: &Path) -> Result<Value> {
    let path = dir.join(CONFIG);
    let config: Value = read_json(&path)?;
    if !config.is_object() {
        return Err(ImportError::invalid(&path, "is not a JSON object"));
    }
    Ok(config)
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

/// Which file holds each tensor. Files lie in the directory itself.
fn read_index(path: &Path) -> Result<IndexMap<String, String>> {
    let index: Index = json::parse(path, &map_file(path)?, 0)?;
    for (name, file) in &index.weight_map.0 {
        let mut parts = Path::new(file).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            let why = format!("{} is not a file of this directory", quoted(file));
            return Err(ImportError::invalid(path, why).tensor(name));
        }
    }
    Ok(index.weight_map.0)
}
