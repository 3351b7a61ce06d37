//! PEFT adapter directories, read and written: `adapter_config.json` and the factors of low-rank
//! changes of linear layers (LoRA, Hu et al. 2021) in `adapter_model.safetensors`.

use std::collections::{BTreeMap, HashSet};
use std::iter;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use tensor::{Bytes, DType, Tensor};

use crate::atomic::{write_directory, write_file};
use crate::error::quoted;
use crate::json::{self, UniqueMap};
use crate::safetensors::{self, SafeTensors};
use crate::source::map_file;
use crate::{ImportError, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLE: &str = "adapter_model.bin";
/// What stands before a layer's path in the names of tensors.
const PREFIX: &str = "base_model.model.";
const FACTOR_A: &str = ".lora_A.weight";
const FACTOR_B: &str = ".lora_B.weight";
/// The value of `target_modules` for all linear layers, of which the file then has the names.
const ALL_LINEAR: &str = "all-linear";

/// Bytes of a configuration; those of published adapters have some thousand.
const MAX_CONFIG: usize = 1 << 20;
/// Layers with factors; the largest models have some hundred.
const MAX_LAYERS: usize = 1 << 14;
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

/// Parts of tensors' names that tell what else than low-rank factors an adapter holds.
const OTHER_TENSORS: &[(&str, &str)] = &[
    (".lora_magnitude_vector", "magnitudes, of DoRA"),
    (".lora_embedding_", "factors of an embedding"),
    (".lora_A.bias", "a bias"),
    (".lora_B.bias", "a bias"),
    (".bias", "a bias"),
    (".lora_A.", "a factor under an adapter's name; save_pretrained leaves that out"),
    (".lora_B.", "a factor under an adapter's name; save_pretrained leaves that out"),
    (
        ".base_layer.",
        "a copy of the base model's own weight; save_embedding_layers=False leaves it out",
    ),
];

/// An adapter: low-rank changes of linear layers of some model.
#[derive(Clone, Debug)]
pub struct PeftAdapter {
    dir: PathBuf,
    base_model: Option<String>,
    layers: Vec<LowRank>,
}

/// The change of one linear layer: `y += scale B (A x)`.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// The layer's path in the model as Hugging Face names it, such as
    /// `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// `[rank, in]`, fp32, fp16 or bf16.
    pub a: Tensor,
    /// `[out, rank]`, fp32, fp16 or bf16. It is so for GPT-2's `Conv1D` layers too, whose own weights are
    /// `[in, out]`: `fan_in_fan_out` is about merging alone.
    pub b: Tensor,
    /// `lora_alpha / rank`, or with `use_rslora` `lora_alpha / sqrt(rank)` (Kalajdzievski 2023).
    pub scale: f64,
}

impl LowRank {
    /// Rows of `A`.
    pub fn rank(&self) -> usize {
        self.a.shape().first().copied().unwrap_or(0)
    }
}

impl PeftAdapter {
    /// Opens the adapter in directory `dir`; its factors are mapped.
    ///
    /// # Errors
    /// `invalid` when a file is missing or breaks its format, when a factor lacks its other one, or when
    /// ranks disagree; `unsupported` for what else than low-rank changes of linear layers an adapter can be.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let config = map_file(&dir.join(CONFIG))?;
        let weights = dir.join(WEIGHTS);
        if !weights.is_file() && dir.join(PICKLE).is_file() {
            let why = format!("{PICKLE} holds pickled weights; convert them to safetensors");
            return Err(ImportError::unsupported(dir, why));
        }
        Self::from_bytes(dir, &config, map_file(&weights)?)
    }

    /// Reads the contents of both files from memory; `dir` stands for the directory in errors.
    ///
    /// # Errors
    /// As [`PeftAdapter::open`].
    pub fn from_bytes(dir: impl AsRef<Path>, config: &[u8], weights: Bytes) -> Result<Self> {
        let dir = dir.as_ref();
        let config = Config::parse(&dir.join(CONFIG), config)?;
        let file = SafeTensors::from_bytes(dir.join(WEIGHTS), weights)?;
        let pairs = pairs(&file)?;
        let modules: Vec<&str> = pairs.keys().map(String::as_str).collect();
        if let Some(module) = config.targets.others(&modules).first() {
            let name = format!("{PREFIX}{module}{FACTOR_A}");
            let why = format!("target_modules of {CONFIG} is without this layer");
            return Err(ImportError::invalid(file.path(), why).tensor(&name));
        }
        let ranks = config.ranks.of(&modules, &config.path)?;
        let alphas = config.alphas.of(&modules, &config.path)?;
        let mut layers = Vec::with_capacity(pairs.len());
        for ((module, [a, b]), (rank, alpha)) in pairs.into_iter().zip(ranks.iter().zip(alphas)) {
            let name = format!("{PREFIX}{module}{FACTOR_A}");
            let wrong = |why: String| ImportError::invalid(file.path(), why).tensor(&name);
            let (&[own, _], &[_, inner]) = (a.shape(), b.shape()) else {
                let why = format!("factors {:?} and {:?} are not matrices", a.shape(), b.shape());
                return Err(ImportError::unsupported(file.path(), why).tensor(&name));
            };
            if own != inner {
                let why = format!("A {:?} and B {:?} differ in rank", a.shape(), b.shape());
                return Err(wrong(why));
            }
            if own != *rank || own == 0 {
                let why = format!("has rank {own}, and {CONFIG} says {rank}");
                return Err(wrong(why));
            }
            let divisor = if config.root { (own as f64).sqrt() } else { own as f64 };
            layers.push(LowRank { module, a, b, scale: alpha / divisor });
        }
        if layers.is_empty() {
            return Err(ImportError::invalid(file.path(), "holds no factors"));
        }
        Ok(PeftAdapter { dir: dir.to_path_buf(), base_model: config.base_model, layers })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The model that the adapter says it was trained for.
    pub fn base_model(&self) -> Option<&str> {
        self.base_model.as_deref()
    }

    /// The changes, by their modules' names in order.
    pub fn layers(&self) -> &[LowRank] {
        &self.layers
    }
}

/// The factors `[A, B]` of each module.
fn pairs(file: &SafeTensors) -> Result<BTreeMap<String, [Tensor; 2]>> {
    if file.tensors().len() > 2 * MAX_LAYERS {
        let why = format!("{} tensors, at most {}", file.tensors().len(), 2 * MAX_LAYERS);
        return Err(ImportError::limit(file.path(), why));
    }
    let mut halves: BTreeMap<String, [Option<Tensor>; 2]> = BTreeMap::new();
    for (name, _) in file.tensors() {
        let refuse = |why: String| ImportError::unsupported(file.path(), why).tensor(name);
        let Some(path) = name.strip_prefix(PREFIX) else {
            let why = format!("is not named {PREFIX}…, as tensors of adapters are");
            return Err(ImportError::invalid(file.path(), why).tensor(name));
        };
        let ends = [FACTOR_A, FACTOR_B].map(|end| path.strip_suffix(end));
        let (module, which) = match ends {
            [Some(module), _] => (module, 0),
            [_, Some(module)] => (module, 1),
            _ => {
                let other = OTHER_TENSORS.iter().find(|(part, _)| path.contains(part));
                let what = other.map_or("a layer's own weight, of modules_to_save", |(_, w)| w);
                return Err(refuse(format!("is {what}")));
            }
        };
        let tensor = file.tensor(name)?;
        if !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::Bf16) {
            return Err(refuse(format!("is of {}", tensor.dtype())));
        }
        halves.entry(module.to_owned()).or_default()[which] = Some(tensor);
    }
    let whole = |(module, halves): (String, [Option<Tensor>; 2])| match halves {
        [Some(a), Some(b)] => Ok((module, [a, b])),
        [has_a, _] => {
            let ends = if has_a.is_some() { [FACTOR_A, FACTOR_B] } else { [FACTOR_B, FACTOR_A] };
            let [there, missing] = ends.map(|end| format!("{PREFIX}{module}{end}"));
            let why = format!("has no counterpart {}", quoted(&missing));
            Err(ImportError::invalid(file.path(), why).tensor(&there))
        }
    };
    halves.into_iter().map(whole).collect()
}

/// What counts of a configuration.
struct Config {
    path: PathBuf,
    base_model: Option<String>,
    targets: Targets,
    /// `r` and `rank_pattern`.
    ranks: ByModule<usize>,
    /// `lora_alpha` and `alpha_pattern`.
    alphas: ByModule<f64>,
    /// Whether factors are divided by the root of the rank.
    root: bool,
}

/// `target_modules`: which layers have factors.
#[derive(Deserialize)]
#[serde(untagged)]
enum Targets {
    /// Paths, or their ends behind a dot.
    Ends(Vec<String>),
    /// A regular expression of whole paths, or [`ALL_LINEAR`].
    Pattern(String),
}

/// A setting of all modules, and of those that match a pattern, the first of several.
struct ByModule<T> {
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
    target_modules: Option<Targets>,
    rank_pattern: Option<UniqueMap<usize>>,
    alpha_pattern: Option<UniqueMap<f64>>,
    init_lora_weights: Option<Value>,
}

impl Config {
    fn parse(path: &Path, text: &[u8]) -> Result<Self> {
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
        Ok(Config {
            path: path.to_path_buf(),
            base_model: raw.base_model_name_or_path,
            targets: raw.target_modules.unwrap_or(Targets::Pattern(ALL_LINEAR.to_owned())),
            ranks,
            alphas,
            root: raw.use_rslora.unwrap_or(false),
        })
    }
}

impl Targets {
    /// The modules that are no targets: PEFT would leave out their factors.
    fn others<'m>(&self, modules: &[&'m str]) -> Vec<&'m str> {
        let is_target: Box<dyn Fn(&str) -> bool> = match self {
            Targets::Pattern(all) if all == ALL_LINEAR => Box::new(|_| true),
            Targets::Pattern(pattern) => {
                // Python's may look around; what cannot be checked is believed.
                let regex = compiled(&format!("^(?:{pattern})$")).ok();
                Box::new(move |module| regex.as_ref().is_none_or(|r| r.is_match(module)))
            }
            Targets::Ends(ends) => {
                let ends: HashSet<&str> = ends.iter().map(String::as_str).collect();
                Box::new(move |module| {
                    let dots = module.match_indices('.').map(|(at, _)| at + 1);
                    iter::once(0).chain(dots).any(|at| ends.contains(&module[at..]))
                })
            }
        };
        modules.iter().copied().filter(|m| !is_target(m)).collect()
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
    fn of(&self, modules: &[&str], config: &Path) -> Result<Vec<T>> {
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

/// Writes an adapter as a new directory `dir`, which appears when it is whole: `layers` in their order,
/// for a causal language model called `base_model`.
///
/// # Errors
/// When there is something at `dir` already, there are no layers, two are of one module, a factor is no
/// matrix of the other's rank, or the files cannot be written.
pub fn write(dir: impl AsRef<Path>, base_model: Option<&str>, layers: &[LowRank]) -> Result<()> {
    let dir = dir.as_ref();
    let config = configuration(dir, base_model, layers)?;
    let names: Vec<[String; 2]> = layers
        .iter()
        .map(|l| [FACTOR_A, FACTOR_B].map(|end| format!("{PREFIX}{}{end}", l.module)))
        .collect();
    let tensors: Vec<(&str, &Tensor)> = names
        .iter()
        .zip(layers)
        .flat_map(|([a, b], l)| [(a.as_str(), &l.a), (b.as_str(), &l.b)])
        .collect();
    write_directory(dir, |partial| {
        safetensors::write(partial.join(WEIGHTS), &[("format", "pt")], &tensors)?;
        write_file(&partial.join(CONFIG), |out| {
            serde_json::to_writer_pretty(out, &config).map_err(Into::into)
        })
    })
}

/// `adapter_config.json` of layers: the commonest rank as `r`, all others by pattern.
fn configuration(dir: &Path, base_model: Option<&str>, layers: &[LowRank]) -> Result<Value> {
    let mut ranks: BTreeMap<usize, usize> = BTreeMap::new();
    let mut modules: Vec<&str> = Vec::with_capacity(layers.len());
    for layer in layers {
        let (a, b) = (layer.a.shape(), layer.b.shape());
        if a.len() != 2 || b.len() != 2 || a[0] != b[1] || a[0] == 0 {
            let why = format!("factors A {a:?} and B {b:?} are of no one rank");
            return Err(ImportError::invalid(dir, why).tensor(&layer.module));
        }
        let float = |t: &Tensor| matches!(t.dtype(), DType::F32 | DType::F16 | DType::Bf16);
        if !layer.scale.is_finite() || !float(&layer.a) || !float(&layer.b) {
            let why = format!("a factor of {} or of type {}", layer.scale, layer.a.dtype());
            return Err(ImportError::unsupported(dir, why).tensor(&layer.module));
        }
        *ranks.entry(layer.rank()).or_default() += 1;
        modules.push(&layer.module);
    }
    let common = ranks.iter().max_by_key(|(_, count)| **count).map(|(&rank, _)| rank);
    let (Some(r), Some(first)) = (common, layers.first()) else {
        return Err(ImportError::invalid(dir, "an adapter without layers"));
    };
    let alpha_of = |l: &LowRank| l.scale * l.rank() as f64;
    let alpha = alpha_of(first);
    let mut rank_pattern = serde_json::Map::new();
    let mut alpha_pattern = serde_json::Map::new();
    for layer in layers {
        let pattern = || format!("^{}", regex::escape(&layer.module));
        if layer.rank() != r {
            rank_pattern.insert(pattern(), layer.rank().into());
        }
        if alpha_of(layer) != alpha {
            alpha_pattern.insert(pattern(), alpha_of(layer).into());
        }
    }
    Ok(json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": true,
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "rank_pattern": rank_pattern,
        "alpha_pattern": alpha_pattern,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": false,
        "use_rslora": false,
        "use_dora": false,
        "modules_to_save": null,
    }))
}
