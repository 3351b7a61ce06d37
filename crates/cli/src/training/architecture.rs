//! What a new model is: a preset, or a file of the user's.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::corpus::TokenizerArgs;
use super::recipe::Recipe;

/// The architectures that are known by name: keys of Hugging Face's `config.json`, and how each is usually
/// trained.
const PRESETS: &[(&str, &str)] = &[
    ("tiny", include_str!("../../presets/tiny.toml")),
    ("stories110m", include_str!("../../presets/stories110m.toml")),
    ("gpt2-124m", include_str!("../../presets/gpt2-124m.toml")),
];

/// The file of an architecture's keys.
pub(crate) const CONFIG: &str = "config.json";

/// Tables of a TOML file that are not the model's.
const RECIPE: &str = "train";
const TOKENIZER: &str = "tokenizer";
/// Tables that are the model's.
const TABLES: [&str; 5] =
    ["rope_scaling", "rope_parameters", "task_specific_params", "id2label", "label2id"];

/// An architecture, and what its file says of training.
pub(crate) struct Architecture {
    /// Keys of `config.json`.
    pub(crate) config: Map<String, Value>,
    /// How it is trained.
    pub(crate) recipe: Recipe,
    /// Its tokenizer.
    pub(crate) tokenizer: TokenizerArgs,
}

impl Architecture {
    /// The preset called `name`, or what the file `name` says: a `config.json`, or the same keys in TOML with the
    /// tables `train` and `tokenizer` beside them.
    ///
    /// # Errors
    /// When it is neither, or not understood.
    pub(crate) fn find(name: &str) -> Result<Self> {
        if let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == name) {
            return Self::from_toml(text, Path::new("")).with_context(|| format!("preset {name}"));
        }
        let path = Path::new(name);
        let names = PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let read = || fs::read_to_string(path).with_context(|| format!("{name}: cannot read"));
        match path.extension().and_then(|e| e.to_str()) {
            Some("toml") => {
                let folder = path.parent().unwrap_or(Path::new(""));
                Self::from_toml(&read()?, folder).context(name.to_owned())
            }
            Some("json") => {
                let config: Value = serde_json::from_str(&read()?).context(name.to_owned())?;
                let Value::Object(config) = config else { bail!("{name}: is no object") };
                let (recipe, tokenizer) = (Recipe::default(), TokenizerArgs::default());
                Ok(Architecture { config, recipe, tokenizer })
            }
            _ => bail!("no architecture {name:?}: neither {names} nor a .toml or config.json"),
        }
    }

    /// What `text` says, in which paths are relative to `folder`.
    fn from_toml(text: &str, folder: &Path) -> Result<Self> {
        let table: toml::Table = toml::from_str(text)?;
        table.iter().try_for_each(|(key, value)| check_finite(key, value))?;
        let Value::Object(mut config) = serde_json::to_value(table)? else { bail!("is no table") };
        let recipe = config.remove(RECIPE).map(serde_json::from_value).transpose();
        let mut tokenizer = config.remove(TOKENIZER);
        if let Some(Value::String(path)) = tokenizer.as_mut().and_then(|t| t.get_mut(TOKENIZER)) {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
        let tokenizer = tokenizer.map(serde_json::from_value).transpose();
        for (name, _) in config.iter().filter(|(_, value)| value.is_object()) {
            ensure!(
                TABLES.contains(&&**name),
                "[{name}] is none of the tables {RECIPE}, {TOKENIZER}, {}",
                TABLES.join(", ")
            );
        }
        Ok(Architecture {
            config,
            recipe: recipe.context(RECIPE)?.unwrap_or_default(),
            tokenizer: tokenizer.context(TOKENIZER)?.unwrap_or_default(),
        })
    }

    /// Longest sequence, in tokens.
    ///
    /// # Errors
    /// When the configuration does not say.
    pub(crate) fn max_context(&self) -> Result<usize> {
        let keys = ["max_position_embeddings", "n_positions", "n_ctx"];
        let number = keys.iter().find_map(|key| self.config.get(*key)?.as_u64());
        let number = number.and_then(|n| usize::try_from(n).ok());
        number.with_context(|| format!("the architecture has no number {}", keys.join(" or ")))
    }

    /// Gives the model the ids that begin and end a text, or none.
    pub(crate) fn set_ends(&mut self, bos: Option<u32>, eos: Option<u32>) {
        for (key, id) in [("bos_token_id", bos), ("eos_token_id", eos)] {
            self.config.insert(key.to_owned(), id.into());
        }
    }

    /// Gives the model a vocabulary of `vocab` ids, unless it has a few more already. Returns the size that was
    /// replaced.
    pub(crate) fn set_vocab(&mut self, vocab: usize) -> Option<u64> {
        let own = self.config.get("vocab_size").and_then(Value::as_u64);
        // Rows are padded for speed; what is beyond a tenth is a tokenizer of another model.
        if own.is_some_and(|own| own >= vocab as u64 && own <= vocab as u64 * 11 / 10) {
            return None;
        }
        self.config.insert("vocab_size".to_owned(), vocab.into());
        own
    }

    /// Writes `config.json` into the directory `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        ensure!(self.config.contains_key("model_type"), "the architecture has no model_type");
        let path = dir.join(CONFIG);
        let text = serde_json::to_string_pretty(&self.config)?;
        fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))
    }
}

/// JSON has no number that is not finite, so that it would be as if it were not said.
fn check_finite(key: &str, value: &toml::Value) -> Result<()> {
    match value {
        toml::Value::Float(number) => ensure!(number.is_finite(), "{key} is {number}"),
        toml::Value::Array(all) => all.iter().try_for_each(|value| check_finite(key, value))?,
        toml::Value::Table(all) => all
            .iter()
            .try_for_each(|(inner, value)| check_finite(&format!("{key}.{inner}"), value))?,
        _ => {}
    }
    Ok(())
}
