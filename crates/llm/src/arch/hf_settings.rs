//! Hyperparameters of a Hugging Face `config.json`, as transformers 4 and 5 write it.

use import::HfDir;
use serde::de::DeserializeOwned;

use super::{Dims, RopeSettings};
use crate::Result;
use crate::parts::{Activation, RopeScaling};

/// The hyperparameters of one model, and what of them Rigel does not implement.
pub(crate) struct HfSettings<'f> {
    dir: &'f HfDir,
    refused: Vec<String>,
}

/// Where a configuration says what the rotary embedding of some layers is.
pub(crate) struct RopeKeys {
    /// Key inside `rope_parameters` (transformers 5), for models with several kinds of layers.
    pub(crate) layer_type: Option<&'static str>,
    /// Key of the base where there is no `rope_parameters` (transformers 4).
    pub(crate) theta: &'static str,
    /// The base if neither is there.
    pub(crate) default_theta: f64,
    /// Whether `rope_scaling` (transformers 4) is about these layers.
    pub(crate) scaled: bool,
}

impl RopeKeys {
    /// Models with one kind of layer.
    pub(crate) const PLAIN: RopeKeys =
        RopeKeys { layer_type: None, theta: "rope_theta", default_theta: 1e4, scaled: true };
}

impl<'f> HfSettings<'f> {
    /// The settings of the model in `dir`.
    ///
    /// # Errors
    /// When a key is of another type than it must be.
    pub(crate) fn new(dir: &'f HfDir) -> Result<Self> {
        let mut settings = HfSettings { dir, refused: Vec::new() };
        if settings.dir.config().get("quantization_config").is_some_and(|q| !q.is_null()) {
            let method: Option<String> = settings.find("quantization_config.quant_method")?;
            let method = method.unwrap_or_else(|| "unnamed".into());
            settings.refuse(format!("quantization_config of method {method:?}"));
        }
        Ok(settings)
    }

    /// Notes something that the file asks for and Rigel does not do.
    pub(crate) fn refuse(&mut self, what: impl Into<String>) {
        self.refused.push(what.into());
    }

    /// What was refused.
    pub(crate) fn into_refused(self) -> Vec<String> {
        self.refused
    }

    /// The value of `key`, if there is one and it is not null; dots lead into inner objects.
    ///
    /// # Errors
    /// When it is of another type.
    pub(crate) fn find<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        Ok(self.dir.find(key)?)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// When it is missing or of another type.
    pub(crate) fn get<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        Ok(self.dir.get(key)?)
    }

    /// Refuses the model if `key` is true.
    ///
    /// # Errors
    /// When it is not a truth value.
    pub(crate) fn refuse_if(&mut self, key: &str) -> Result<()> {
        if self.find(key)? == Some(true) {
            self.refuse(format!("{key} = true"));
        }
        Ok(())
    }

    /// The dimensions, under the keys that all but GPT-2 use.
    ///
    /// # Errors
    /// When a key is missing or of another type, or a size makes no sense.
    pub(crate) fn dims(&self) -> Result<Dims> {
        let (width, heads): (usize, usize) =
            (self.get("hidden_size")?, self.get("num_attention_heads")?);
        let head_dim = self.find("head_dim")?;
        if head_dim.is_none() && heads > 0 && !width.is_multiple_of(heads) {
            let why = format!("hidden_size {width} is no multiple of {heads} heads");
            return Err(crate::Error::invalid(self.dir.path(), why));
        }
        let dims = Dims {
            layers: self.get("num_hidden_layers")?,
            width,
            feed_forward: self.get("intermediate_size")?,
            heads,
            kv_heads: self.find("num_key_value_heads")?.unwrap_or(heads),
            head_dim: head_dim.unwrap_or(width / heads.max(1)),
            vocab: self.get("vocab_size")?,
            max_context: self.get("max_position_embeddings")?,
            norm_epsilon: self.find("rms_norm_eps")?.unwrap_or(1e-6),
        };
        dims.checked(self.dir.path())
    }

    /// The activation under `key`, or `default`.
    ///
    /// # Errors
    /// When it is not a string.
    pub(crate) fn activation(&mut self, key: &str, default: Activation) -> Result<Activation> {
        Ok(match self.find::<String>(key)?.as_deref() {
            None => default,
            Some("silu" | "swish") => Activation::Silu,
            Some("gelu") => Activation::Gelu,
            Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some(other) => {
                self.refuse(format!(
                    "{key} = {other:?}; there are silu, gelu, gelu_new and gelu_pytorch_tanh"
                ));
                default
            }
        })
    }

    /// Window of each layer: where `layer_types` says, else where `is_sliding` does.
    ///
    /// # Errors
    /// When a key is of another type or says nothing about a layer.
    pub(crate) fn windows(
        &mut self,
        layers: usize,
        is_sliding: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>> {
        let window: Option<usize> = self.find("sliding_window")?;
        if window == Some(0) {
            return Err(self.dir.error("sliding_window", "is 0").into());
        }
        let Some(types) = self.find::<Vec<String>>("layer_types")? else {
            return Ok((0..layers).map(|layer| window.filter(|_| is_sliding(layer))).collect());
        };
        if types.len() != layers {
            let why = format!("{} entries for {layers} layers", types.len());
            return Err(self.dir.error("layer_types", why).into());
        }
        types.iter().map(|ty| self.window_of(ty, window)).collect()
    }

    fn window_of(&mut self, layer_type: &str, window: Option<usize>) -> Result<Option<usize>> {
        match layer_type {
            "full_attention" => Ok(None),
            "sliding_attention" if window.is_some() => Ok(window),
            "sliding_attention" => {
                Err(self.dir.error("sliding_window", "no such key, but layers that slide").into())
            }
            other => {
                self.refuse(format!(
                    "layer type {other:?}; there are full_attention and sliding_attention"
                ));
                Ok(None)
            }
        }
    }

    /// The rotary embedding that `keys` speak of, for heads of `head_dim`.
    ///
    /// # Errors
    /// When a key is missing or of another type, or makes no sense.
    pub(crate) fn rope(&mut self, head_dim: usize, keys: &RopeKeys) -> Result<RopeSettings> {
        let has = |key: &str| self.dir.config().get(key).is_some_and(|v| !v.is_null());
        let (base, scaling) = if has("rope_parameters") {
            let mut key = "rope_parameters".to_owned();
            if let Some(ty) = keys.layer_type {
                key = format!("{key}.{ty}");
            }
            (self.get(&format!("{key}.rope_theta"))?, Some(key))
        } else {
            let scaling = (keys.scaled && has("rope_scaling")).then(|| "rope_scaling".to_owned());
            (self.find(keys.theta)?.unwrap_or(keys.default_theta), scaling)
        };
        self.refuse_partial_rotation("partial_rotary_factor")?;
        let scaling = match scaling {
            Some(key) => self.rope_scaling(&key)?,
            None => RopeScaling::None,
        };
        RopeSettings { base, scaling, rotated: head_dim }.checked(self.dir.path(), head_dim)
    }

    fn rope_scaling(&mut self, key: &str) -> Result<RopeScaling> {
        self.refuse_partial_rotation(&format!("{key}.partial_rotary_factor"))?;
        let mut ty: Option<String> = self.find(&format!("{key}.rope_type"))?;
        if ty.is_none() {
            // The name before transformers 4.45.
            ty = self.find(&format!("{key}.type"))?;
        }
        let number = |name: &str| self.get::<f64>(&format!("{key}.{name}"));
        Ok(match ty.as_deref() {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: number("factor")? },
            Some("llama3") => RopeScaling::ByWavelength {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: number("original_max_position_embeddings")?,
            },
            Some(other) => {
                self.refuse(format!("rope type {other:?}; there are default, linear and llama3"));
                RopeScaling::None
            }
        })
    }

    fn refuse_partial_rotation(&mut self, key: &str) -> Result<()> {
        if let Some(factor) = self.find::<f64>(key)?.filter(|&f| f != 1.0) {
            self.refuse(format!("{key} = {factor}"));
        }
        Ok(())
    }
}
