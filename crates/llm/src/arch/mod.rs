//! The architectures: one file a family, one line each in [`ARCHS`].

mod dims;
mod gemma3;
mod gguf_settings;
mod gpt2;
mod hf_settings;
mod initial;
mod llama;
mod part_names;
mod qwen2;
mod qwen3;
mod rope_settings;
mod weights;

use std::collections::BTreeMap;

use import::ModelFile;
use tensor::{Tensor, WeightStore};

pub(crate) use dims::Dims;
pub(crate) use gguf_settings::GgufSettings;
pub(crate) use hf_settings::{HfSettings, RopeKeys};
pub(crate) use part_names::{HfNames, Part};
pub(crate) use rope_settings::RopeSettings;
pub(crate) use weights::{LinearShape, Stored, Weights, transposed};

use crate::parts::Decoder;
use crate::{Error, ModelConfig, Result};

/// Every architecture.
const ARCHS: &[&Arch] = &[&gemma3::ARCH, &gpt2::ARCH, &llama::ARCH, &qwen2::ARCH, &qwen3::ARCH];

/// An architecture: which files are its own, and how to read them.
pub(crate) struct Arch {
    /// The name users see.
    name: &'static str,
    /// Values of GGUF's `general.architecture`.
    gguf: &'static [&'static str],
    /// Values of `model_type` in Hugging Face configurations.
    hf: &'static [&'static str],
    /// Whether llama2.c checkpoints are of this architecture.
    llama2c: bool,
    /// Names of weights in Hugging Face checkpoints.
    names: &'static HfNames,
    /// Reads the settings.
    plan: fn(&ModelFile) -> Result<Plan>,
}

/// What a GGUF file of a model says besides its dimensions.
#[derive(Clone, Debug)]
pub(crate) struct GgufForm {
    /// The key of the norms' epsilon.
    pub(crate) epsilon: &'static str,
    /// The base of the rotary embedding, if there is one.
    pub(crate) rope_base: Option<f64>,
    /// Whether rows of queries and keys are in the order for a rotation of neighbours.
    pub(crate) interleaved: bool,
    /// What of the model has no key there.
    pub(crate) refused: Vec<String>,
}

/// A model's settings, understood; the weights are still to be read.
pub(crate) struct Plan {
    /// Dimensions.
    pub(crate) dims: Dims,
    /// The widest window of sliding layers.
    pub(crate) window: Option<usize>,
    /// Whether the output layer is the embedding.
    pub(crate) tied: bool,
    /// Whether the rows of queries and keys stand in the order for a rotation of neighbouring elements,
    /// where Hugging Face's models have them for a rotation of halves.
    pub(crate) interleaved: bool,
    /// What the file asks for and Rigel does not do.
    pub(crate) refused: Vec<String>,
    /// How the model is written as GGUF; `None` for a family that is not.
    pub(crate) gguf: Option<GgufForm>,
    /// Takes the weights.
    pub(crate) build: Build,
}

/// Makes the parts of a model from its weights.
type Build = Box<dyn FnOnce(&mut Weights<'_>) -> Result<Decoder>>;

/// Everything a program is made of.
pub(crate) struct Built {
    /// The parts.
    pub(crate) decoder: Decoder,
    /// Their weights.
    pub(crate) weights: WeightStore,
    /// How the file holds those, by name in the file, that it holds otherwise.
    pub(crate) stored: BTreeMap<String, Stored>,
}

/// A linear layer of Hugging Face's model in the file at hand.
pub(crate) struct AdaptedLayer {
    /// The names of its weights, more than one where one matrix is cut.
    pub(crate) weights: Vec<String>,
    /// Rows of a head, where their order is that of [`Plan::interleaved`].
    pub(crate) head: Option<usize>,
}

/// A model file whose architecture is known.
pub(crate) struct Planned<'f> {
    file: &'f ModelFile,
    arch: &'static Arch,
    plan: Plan,
}

impl<'f> Planned<'f> {
    /// Finds the architecture of `file` and reads its settings.
    ///
    /// # Errors
    /// `unsupported` for an unknown architecture, `invalid` for settings that are missing or wrong.
    pub(crate) fn new(file: &'f ModelFile) -> Result<Self> {
        let arch = find(file)?;
        Ok(Planned { file, arch, plan: (arch.plan)(file)? })
    }

    /// What the model is.
    pub(crate) fn config(&self) -> ModelConfig {
        let Plan { dims, window, tied, .. } = &self.plan;
        ModelConfig {
            arch: self.arch.name,
            name: given_name(self.file),
            parameters: Weights::new(self.file, self.arch.names).parameters(*tied),
            layers: dims.layers,
            width: dims.width,
            feed_forward: dims.feed_forward,
            heads: dims.heads,
            kv_heads: dims.kv_heads,
            head_dim: dims.head_dim,
            vocab: dims.vocab,
            max_context: dims.max_context,
            window: *window,
            tied: *tied,
        }
    }

    /// The dimensions.
    pub(crate) fn dims(&self) -> &Dims {
        &self.plan.dims
    }

    /// The value of GGUF's `general.architecture`, and how the model is written there, if it is.
    pub(crate) fn gguf_form(&self) -> Option<(&'static str, &GgufForm)> {
        Some((self.arch.gguf.first()?, self.plan.gguf.as_ref()?))
    }

    /// The names in the file that weights and biases of all parts would have, with part and layer.
    pub(crate) fn weight_names(&self) -> Vec<(Part, Option<usize>, String)> {
        let weights = Weights::new(self.file, self.arch.names);
        let mut found = Vec::new();
        for &(part, name) in self.arch.names.parts {
            let layers: Vec<Option<usize>> = match name.contains('#') {
                true => (0..self.plan.dims.layers).map(Some).collect(),
                false => vec![None],
            };
            for layer in layers {
                let names = ["weight", "bias"].map(|suffix| weights.name(part, layer, suffix));
                found.extend(names.map(|name| (part, layer, name)));
            }
        }
        found
    }

    /// What the file asks for and Rigel does not do.
    pub(crate) fn refused(&self) -> &[String] {
        &self.plan.refused
    }

    /// The name of the output layer's tensor, if that is the embedding and a file's tensor of its own only
    /// a copy.
    pub(crate) fn tied_output(&self) -> Option<String> {
        let weights = Weights::new(self.file, self.arch.names);
        self.plan.tied.then(|| weights.name(Part::Output, None, "weight"))
    }

    /// Paths of all linear layers in Hugging Face's model; without the output layer where that is the
    /// embedding, whose rows are looked up too.
    pub(crate) fn linear_layers(&self) -> Vec<String> {
        let names = self.arch.names;
        let prefix = names.prefixes.first().copied().unwrap_or("");
        let mut paths = Vec::new();
        for &(part, name) in names.parts.iter().filter(|(part, _)| part.is_linear()) {
            match part {
                Part::Output if self.plan.tied => {}
                Part::Output => paths.push(name.to_owned()),
                _ => {
                    let layers = (0..self.plan.dims.layers).map(|n| n.to_string());
                    paths.extend(layers.map(|n| format!("{prefix}{}", name.replace('#', &n))));
                }
            }
        }
        paths
    }

    /// The linear layer at each of `modules`, which are paths in Hugging Face's model; `None` where it has
    /// none.
    pub(crate) fn adapted_layers<'m>(
        &self,
        modules: impl Iterator<Item = &'m str>,
    ) -> Vec<Option<AdaptedLayer>> {
        let weights = Weights::new(self.file, self.arch.names);
        let layer = |module| {
            let (part, layer) = self.arch.names.find(module)?;
            let part = if part == Part::Output && self.plan.tied { Part::Tokens } else { part };
            let name = weights.name(part, layer, "weight");
            let weights = match part {
                Part::QueryKeyValue => (0..3).map(|i| format!("{name}.{i}")).collect(),
                _ => vec![name],
            };
            let turned = self.plan.interleaved && matches!(part, Part::Query | Part::Key);
            Some(AdaptedLayer { weights, head: turned.then_some(self.plan.dims.head_dim) })
        };
        modules.map(layer).collect()
    }

    /// Takes the weights.
    ///
    /// # Errors
    /// When something was refused, or a weight is missing, misshapen, of an unsupported type or one
    /// too many.
    pub(crate) fn build(self) -> Result<Built> {
        let weights = Weights::new(self.file, self.arch.names);
        self.build_from(weights)
    }

    /// The first weights of the model, whose file has none yet, by their names in a file.
    ///
    /// # Errors
    /// When something was refused.
    pub(crate) fn initial(self, seed: u64) -> Result<Vec<(String, Tensor)>> {
        let mut initial = initial::Initial::new(seed, self.plan.dims.layers);
        let weights = Weights::fresh(self.file, self.arch.names, &mut initial);
        self.build_from(weights)?;
        Ok(initial.made)
    }

    fn build_from(self, mut weights: Weights<'_>) -> Result<Built> {
        let Planned { file, arch, plan } = self;
        if !plan.refused.is_empty() {
            let what = plan.refused.join("; ");
            return Err(Error::unsupported(file.path(), format!("{}: {what}", arch.name)));
        }
        let decoder = (plan.build)(&mut weights)?;
        let (weights, stored) = weights.finish(arch.name, plan.tied)?;
        Ok(Built { decoder, weights, stored })
    }
}

fn find(file: &ModelFile) -> Result<&'static Arch> {
    let (name, has): (String, fn(&Arch, &str) -> bool) = match file {
        ModelFile::Gguf(m) => {
            let name: &str = m.metadata().get("general.architecture")?;
            (name.to_owned(), |arch, name| arch.gguf.contains(&name))
        }
        ModelFile::HuggingFace(m) => (m.get("model_type")?, |arch, name| arch.hf.contains(&name)),
        ModelFile::Llama2c(_) => ("llama2.c".to_owned(), |arch, _| arch.llama2c),
    };
    ARCHS.iter().copied().find(|arch| has(arch, &name)).ok_or_else(|| {
        let known: Vec<&str> = match file {
            ModelFile::HuggingFace(_) => ARCHS.iter().flat_map(|a| a.hf).copied().collect(),
            _ => ARCHS.iter().flat_map(|a| a.gguf).copied().collect(),
        };
        let why = format!("architecture {name:?}; there are {}", known.join(", "));
        Error::unsupported(file.path(), why)
    })
}

/// The name that the file's maker gave the model.
fn given_name(file: &ModelFile) -> Option<String> {
    match file {
        ModelFile::Gguf(m) => m.metadata().find("general.name").ok()?.map(str::to_owned),
        ModelFile::HuggingFace(m) => {
            m.find("_name_or_path").ok()?.filter(|n: &String| !n.is_empty())
        }
        ModelFile::Llama2c(_) => None,
    }
}
