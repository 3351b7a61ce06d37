//! PEFT adapter directories, read and written: `adapter_config.json` and the factors of low-rank
//! changes of linear layers (LoRA, Hu et al. 2021) in `adapter_model.safetensors`.

mod config;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensor::{Bytes, DType, Tensor};

use crate::atomic::{write_directory, write_file};
use crate::error::quoted;
use crate::safetensors::{self, SafeTensors};
use crate::source::map_file;
use crate::{ImportError, Result};
use config::Config;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLE: &str = "adapter_model.bin";
/// What stands before a layer's path in the names of tensors.
const PREFIX: &str = "base_model.model.";
const FACTOR_A: &str = ".lora_A.weight";
const FACTOR_B: &str = ".lora_B.weight";
/// Layers with factors; the largest models have some hundred.
const MAX_LAYERS: usize = 1 << 14;
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
        if let Some((module, key)) = config.left_out(&modules)? {
            let name = format!("{PREFIX}{module}{FACTOR_A}");
            let why = format!("{key} of {CONFIG} leaves this layer out");
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
