//! `adapter_config.json`: which layers an adapter changes and how strongly, and what is refused.

use std::collections::HashSet;
use std::iter;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::Value;

use crate::error::quoted;
use crate::json::{self, UniqueMap};
use crate::{ImportError, Result};

/// The value of `target_modules` for all linear layers, of which the file then has the names.
const ALL_LINEAR: &str = "all-linear";

/// Bytes of a configuration; those of published adapters have some thousand.
const MAX_CONFIG: usize = 1 << 20;
/// Patterns of ranks or factors, each of which may be tried on each layer.
const MAX_PATTERNS: usize = 1 << 10;
/// Memory of a compiled pattern.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Settings that change what an adapter computes and that are not implemented, unless they are off.
const REFUSED: &[&str] = &[
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
];

/// Ways to begin training that leave the base model's weights alone, besides true and false. Others
/// change them, and what they change is in no adapter's file.
const HARMLESS_STARTS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// What counts of a configuration.
pub(super) struct Config {
    pub(super) path: PathBuf,
    pub(super) base_model: Option<String>,
    targets: Modules,
    excluded: Option<Modules>,
    /// Which of a stack of layers have factors; all if there are none.
    layers: Vec<i64>,
    /// What finds the number of a layer in a module's path, the first that does.
    numbers: Vec<Regex>,
    /// `r` and `rank_pattern`.
    pub(super) ranks: ByModule<usize>,
    /// `lora_alpha` and `alpha_pattern`.
    pub(super) alphas: ByModule<f64>,
    /// Whether factors are divided by the root of the rank.
    pub(super) root: bool,
}

/// `target_modules` or `exclude_modules`: layers that have factors, and of these such as have none.
#[derive(Deserialize)]
#[serde(untagged)]
enum Modules {
    /// Paths, or their ends behind a dot.
    Ends(Vec<String>),
    /// A regular expression of whole paths, or [`ALL_LINEAR`].
    Pattern(String),
}

/// Whether a module, by its path, is one of some.
type IsOne<'a> = Box<dyn Fn(&str) -> bool + 'a>;

/// A value by itself, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn all(self) -> Vec<T> {
        match self {
            OneOrMore::One(value) => vec![value],
            OneOrMore::More(values) => values,
        }
    }
}

/// A setting of all modules, and of those that match a pattern, the first of several.
pub(super) struct ByModule<T> {
    key: &'static str,
    default: T,
    patterns: IndexMap<String, T>,
}

#[derive(Deserialize)]
struct Raw {
    peft_type: Option<String>,
    base_model_name_or_path: Option<String>,
    r: Option<usize>,
    lora_alpha: Option<f64>,
    use_rslora: Option<bool>,
    bias: Option<String>,
    target_modules: Option<Modules>,
    exclude_modules: Option<Modules>,
    layers_to_transform: Option<OneOrMore<i64>>,
    layers_pattern: Option<OneOrMore<String>>,
    rank_pattern: Option<UniqueMap<usize>>,
    alpha_pattern: Option<UniqueMap<f64>>,
    init_lora_weights: Option<Value>,
}

impl Config {
    /// Reads `text`, the contents of `path`.
    ///
    /// # Errors
    /// `invalid` when it breaks its format, `unsupported` for what is not implemented, `limit` beyond a bound.
    pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Self> {
        if text.len() > MAX_CONFIG {
            let why = format!("{} bytes, at most {MAX_CONFIG}", text.len());
            return Err(ImportError::limit(path, why));
        }
        let all: UniqueMap<Value> = json::parse(path, text, 0)?;
        let raw: Raw = json::parse(path, text, 0)?;
        let refuse = |key: &str, why: String| ImportError::unsupported(path, why).key(key);
        let kind = raw.peft_type.unwrap_or_default();
        if kind != "LORA" {
            return Err(refuse("peft_type", format!("is {}, not \"LORA\"", quoted(&kind))));
        }
        for &key in REFUSED {
            if all.0.get(key).is_some_and(is_on) {
                return Err(refuse(key, "is not implemented".to_owned()));
            }
        }
        if let Some(bias) = raw.bias.filter(|b| b != "none") {
            return Err(refuse("bias", format!("is {}: biases change too", quoted(&bias))));
        }
        if let Some(Value::String(start)) = &raw.init_lora_weights
            && !HARMLESS_STARTS.contains(&start.as_str())
        {
            let why = format!("is {}, which changes the base model's weights too", quoted(start));
            return Err(refuse("init_lora_weights", why));
        }
        let missing = |key: &str| ImportError::invalid(path, "no such key").key(key);
        let ranks = ByModule {
            key: "rank_pattern",
            default: raw.r.ok_or_else(|| missing("r"))?,
            patterns: raw.rank_pattern.map(|p| p.0).unwrap_or_default(),
        };
        let alphas = ByModule {
            key: "alpha_pattern",
            default: raw.lora_alpha.ok_or_else(|| missing("lora_alpha"))?,
            patterns: raw.alpha_pattern.map(|p| p.0).unwrap_or_default(),
        };
        let targets = raw.target_modules.unwrap_or(Modules::Pattern(ALL_LINEAR.to_owned()));
        let layers = raw.layers_to_transform.map(OneOrMore::all).unwrap_or_default();
        if !layers.is_empty() && matches!(&targets, Modules::Pattern(p) if p != ALL_LINEAR) {
            let why = "goes with a list of target_modules, not with a pattern";
            return Err(ImportError::invalid(path, why).key("layers_to_transform"));
        }
        let names = raw.layers_pattern.map(OneOrMore::all).unwrap_or_default();
        Ok(Config {
            path: path.to_path_buf(),
            base_model: raw.base_model_name_or_path,
            targets,
            excluded: raw.exclude_modules.filter(|m| !m.is_empty()),
            layers,
            numbers: numbers(path, &names)?,
            ranks,
            alphas,
            root: raw.use_rslora.unwrap_or(false),
        })
    }
}

impl Config {
    /// The first module whose factors PEFT would leave out, and the key that says so.
    ///
    /// # Errors
    /// `unsupported` when a pattern of `exclude_modules` is of a kind that only Python's expressions have.
    pub(super) fn left_out<'m>(
        &self,
        modules: &[&'m str],
    ) -> Result<Option<(&'m str, &'static str)>> {
        // Python's may look around; of targets, what cannot be checked is believed.
        let is_target = self.targets.matcher().unwrap_or_else(|_| Box::new(|_: &str| true));
        let key = "exclude_modules";
        let excluded = self.excluded.as_ref().map(Modules::matcher).transpose();
        let is_excluded = excluded.map_err(|why| {
            ImportError::unsupported(&self.path, format!("pattern: {why}")).key(key)
        })?;
        Ok(modules.iter().find_map(|&module| {
            let key = if is_excluded.as_ref().is_some_and(|is| is(module)) {
                key
            } else if !is_target(module) {
                "target_modules"
            } else if !self.has_layer(module) {
                "layers_to_transform"
            } else {
                return None;
            };
            Some((module, key))
        }))
    }

    /// Whether a module is of one of the layers that have factors.
    fn has_layer(&self, module: &str) -> bool {
        let number = || {
            let found = self.numbers.iter().find_map(|regex| regex.captures(module))?;
            found.name("number")?.as_str().parse::<i64>().ok()
        };
        self.layers.is_empty() || number().is_some_and(|n| self.layers.contains(&n))
    }
}

/// What finds the number of a layer in a module's path, for the `names` of stacks in `layers_pattern`; without
/// any, it is the first number that two names stand before. As in PEFT, each is a regular expression.
fn numbers(config: &Path, names: &[String]) -> Result<Vec<Regex>> {
    let key = "layers_pattern";
    if names.len() > MAX_PATTERNS {
        let why = format!("{} patterns, at most {MAX_PATTERNS}", names.len());
        return Err(ImportError::limit(config, why).key(key));
    }
    let patterns = match names {
        [] => vec![r"^.*?\.[^.]*\.(?P<number>[0-9]+)\.".to_owned()],
        names => {
            names.iter().map(|n| format!(r"^(?:.*?\.)?(?:{n})\.(?P<number>[0-9]+)\.")).collect()
        }
    };
    let regex = |pattern: &String| {
        compiled(pattern)
            .map_err(|why| ImportError::unsupported(config, format!("pattern: {why}")).key(key))
    };
    patterns.iter().map(regex).collect()
}

impl Modules {
    fn is_empty(&self) -> bool {
        match self {
            Modules::Ends(ends) => ends.is_empty(),
            Modules::Pattern(pattern) => pattern.is_empty(),
        }
    }

    /// Whether a module is one of these.
    fn matcher(&self) -> std::result::Result<IsOne<'_>, regex::Error> {
        Ok(match self {
            Modules::Pattern(all) if all == ALL_LINEAR => Box::new(|_| true),
            Modules::Pattern(pattern) => {
                let regex = compiled(&format!("^(?:{pattern})$"))?;
                Box::new(move |module| regex.is_match(module))
            }
            Modules::Ends(ends) => {
                let ends: HashSet<&str> = ends.iter().map(String::as_str).collect();
                Box::new(move |module| {
                    let dots = module.match_indices('.').map(|(at, _)| at + 1);
                    iter::once(0).chain(dots).any(|at| ends.contains(&module[at..]))
                })
            }
        })
    }
}

/// Whether a setting says something.
fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    }
}

impl<T: Copy> ByModule<T> {
    /// The setting of each module. As in PEFT, a pattern is a regular expression for the end of a path
    /// that begins the path or stands behind a dot.
    pub(super) fn of(&self, modules: &[&str], config: &Path) -> Result<Vec<T>> {
        if self.patterns.len() > MAX_PATTERNS {
            let why = format!("{} patterns, at most {MAX_PATTERNS}", self.patterns.len());
            return Err(ImportError::limit(config, why).key(self.key));
        }
        let mut found: Vec<Option<T>> = vec![None; modules.len()];
        for (pattern, &value) in &self.patterns {
            let regex = compiled(&format!(r"^(?:.*\.)?(?:{pattern})$")).map_err(|why| {
                let why = format!("pattern {}: {why}", quoted(pattern));
                ImportError::unsupported(config, why).key(self.key)
            })?;
            let open = found.iter_mut().zip(modules).filter(|(f, _)| f.is_none());
            open.filter(|(_, m)| regex.is_match(m)).for_each(|(f, _)| *f = Some(value));
        }
        Ok(found.into_iter().map(|f| f.unwrap_or(self.default)).collect())
    }
}

fn compiled(pattern: &str) -> std::result::Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build()
}
