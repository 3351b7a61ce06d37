//! Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024) and the models built like them:
//! SmolLM2, TinyLlama, llama2.c's stories, and Mistral with its sliding window.

use import::{Llama2c, ModelFile};

use super::{
    Arch, Dims, GgufForm, GgufSettings, HfNames, HfSettings, LinearShape, Part, Plan, RopeKeys,
    RopeSettings, Weights,
};
use crate::Result;
use crate::parts::{
    Activation, Attention, Block, Decoder, Embedding, Head, Mlp, Rope, RopeScaling,
    inverse_frequencies,
};

pub(super) static ARCH: Arch = Arch {
    name: "llama",
    gguf: &["llama"],
    hf: &["llama", "mistral"],
    llama2c: true,
    names: &HfNames { prefixes: &["model."], parts: HF_PARTS, buffers: HF_BUFFERS },
    plan: |file| {
        plan(
            file,
            Variant {
                gguf_interleaved: true,
                qkv_bias: false,
                qk_norm: false,
                window_switch: false,
            },
        )
    },
};

/// Names that most families have taken over.
pub(super) const HF_PARTS: &[(Part, &str)] = &[
    (Part::Tokens, "embed_tokens"),
    (Part::Output, "lm_head"),
    (Part::FinalNorm, "norm"),
    (Part::AttentionNorm, "layers.#.input_layernorm"),
    (Part::Query, "layers.#.self_attn.q_proj"),
    (Part::Key, "layers.#.self_attn.k_proj"),
    (Part::Value, "layers.#.self_attn.v_proj"),
    (Part::AttentionOutput, "layers.#.self_attn.o_proj"),
    (Part::QueryNorm, "layers.#.self_attn.q_norm"),
    (Part::KeyNorm, "layers.#.self_attn.k_norm"),
    (Part::MlpNorm, "layers.#.post_attention_layernorm"),
    (Part::Gate, "layers.#.mlp.gate_proj"),
    (Part::Up, "layers.#.mlp.up_proj"),
    (Part::Down, "layers.#.mlp.down_proj"),
];

/// Tables that old checkpoints keep though they follow from the configuration.
pub(super) const HF_BUFFERS: &[&str] = &[".rotary_emb.inv_freq"];

/// What Llama's relatives change.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    /// Whether GGUF files hold queries and keys permuted for rotation of neighbouring elements.
    pub(super) gguf_interleaved: bool,
    /// Whether queries, keys and values must have biases.
    pub(super) qkv_bias: bool,
    /// Whether each head's query and key is normalised.
    pub(super) qk_norm: bool,
    /// Whether windows are off unless `use_sliding_window` is true.
    pub(super) window_switch: bool,
}

/// GGUF's key of the norms' epsilon.
const EPSILON: &str = "attention.layer_norm_rms_epsilon";

struct Settings {
    dims: Dims,
    rope: RopeSettings,
    interleaved: bool,
    windows: Vec<Option<usize>>,
    activation: Activation,
    /// Whether all projections of attention must have biases.
    attention_bias: bool,
    tied: bool,
}

/// Reads the settings of a Llama or of a relative.
pub(super) fn plan(file: &ModelFile, variant: Variant) -> Result<Plan> {
    let (settings, refused) = match file {
        ModelFile::Gguf(m) => {
            let mut s = GgufSettings::new(m)?;
            let dims = s.dims(EPSILON)?;
            let settings = Settings {
                dims,
                rope: s.rope(dims.head_dim)?,
                interleaved: variant.gguf_interleaved,
                windows: vec![s.find("attention.sliding_window")?.filter(|&w| w > 0); dims.layers],
                activation: Activation::Silu,
                attention_bias: false,
                tied: !file.contains("output.weight"),
            };
            (settings, s.into_refused())
        }
        ModelFile::HuggingFace(m) => {
            let mut s = HfSettings::new(m)?;
            let settings = hf_settings(&mut s, variant)?;
            (settings, s.into_refused())
        }
        ModelFile::Llama2c(m) => (llama2c_settings(m)?, Vec::new()),
    };
    Ok(Plan {
        dims: settings.dims,
        window: settings.windows.iter().copied().flatten().max(),
        tied: settings.tied,
        interleaved: settings.interleaved,
        refused,
        gguf: Some(gguf_form(&settings, variant)),
        build: Box::new(move |weights| decoder(weights, &settings, variant)),
    })
}

fn gguf_form(s: &Settings, variant: Variant) -> GgufForm {
    let mut refused = Vec::new();
    if s.activation != Activation::Silu {
        refused.push("its activation".to_owned());
    }
    if s.windows.iter().any(|window| *window != s.windows[0]) {
        refused.push("a window of some layers".to_owned());
    }
    if s.rope.scaling != RopeScaling::None {
        refused.push("a scaled rotary embedding".to_owned());
    }
    let interleaved = variant.gguf_interleaved;
    GgufForm { epsilon: EPSILON, rope_base: Some(s.rope.base), interleaved, refused }
}

fn hf_settings(s: &mut HfSettings<'_>, variant: Variant) -> Result<Settings> {
    let dims = s.dims()?;
    s.refuse_if("mlp_bias")?;
    let slides = s.find("use_sliding_window")?.unwrap_or(!variant.window_switch);
    let first = s.find("max_window_layers")?.unwrap_or(0);
    Ok(Settings {
        dims,
        rope: s.rope(dims.head_dim, &RopeKeys::PLAIN)?,
        interleaved: false,
        windows: s.windows(dims.layers, |layer| slides && layer >= first)?,
        activation: s.activation("hidden_act", Activation::Silu)?,
        attention_bias: s.find("attention_bias")?.unwrap_or(false),
        tied: s.find("tie_word_embeddings")?.unwrap_or(false),
    })
}

fn llama2c_settings(m: &Llama2c) -> Result<Settings> {
    let c = m.config();
    let dims = Dims {
        layers: c.n_layers,
        width: c.dim,
        feed_forward: c.hidden_dim,
        heads: c.n_heads,
        kv_heads: c.n_kv_heads,
        head_dim: c.head_dim(),
        vocab: c.vocab_size,
        max_context: c.seq_len,
        norm_epsilon: Llama2c::NORM_EPS,
    }
    .checked(m.path())?;
    let base = f64::from(Llama2c::ROPE_BASE);
    let rope = RopeSettings { base, scaling: RopeScaling::None, rotated: dims.head_dim };
    Ok(Settings {
        dims,
        rope: rope.checked(m.path(), dims.head_dim)?,
        interleaved: Llama2c::ROPE_INTERLEAVED,
        windows: vec![None; dims.layers],
        activation: Activation::Silu,
        attention_bias: false,
        tied: c.shared_classifier,
    })
}

fn decoder(weights: &mut Weights<'_>, s: &Settings, variant: Variant) -> Result<Decoder> {
    let Dims { width, vocab, norm_epsilon, .. } = s.dims;
    let tokens = weights.matrix(Part::Tokens, None, [vocab, width])?;
    let factors = weights.rope_factors(s.rope.rotated / 2)?;
    let frequencies =
        inverse_frequencies(s.rope.rotated, s.rope.base, s.rope.scaling, factors.as_deref());
    let rope = Rope {
        inverse_frequencies: weights.computed("rope_inverse_frequencies", &frequencies)?,
        interleaved: s.interleaved,
    };
    let blocks = s
        .windows
        .iter()
        .enumerate()
        .map(|(layer, &window)| block(weights, s, variant, rope, (layer, window)))
        .collect::<Result<_>>()?;
    let output = weights.output(tokens, s.tied, (vocab, width))?;
    Ok(Decoder {
        embedding: Embedding { tokens, positions: None, scale: None },
        blocks,
        head: Head {
            norm: weights.rms_norm(Part::FinalNorm, None, width, (norm_epsilon, 0.0))?,
            output,
            softcap: None,
        },
    })
}

fn block(
    weights: &mut Weights<'_>,
    s: &Settings,
    variant: Variant,
    rope: Rope,
    (layer, window): (usize, Option<usize>),
) -> Result<Block> {
    let d = &s.dims;
    let at = Some(layer);
    let norm = (d.norm_epsilon, 0.0);
    let qkv_bias = variant.qkv_bias || s.attention_bias;
    let shape = |part, output, input| LinearShape { part, output, input };
    let head_norm = |weights: &mut Weights<'_>, part| {
        variant.qk_norm.then(|| weights.rms_norm(part, at, d.head_dim, norm)).transpose()
    };
    let attention = Attention {
        query: weights.linear(shape(Part::Query, d.query_width(), d.width), at, qkv_bias)?,
        key: weights.linear(shape(Part::Key, d.kv_width(), d.width), at, qkv_bias)?,
        value: weights.linear(shape(Part::Value, d.kv_width(), d.width), at, qkv_bias)?,
        output: weights.linear(
            shape(Part::AttentionOutput, d.width, d.query_width()),
            at,
            s.attention_bias,
        )?,
        query_norm: head_norm(weights, Part::QueryNorm)?,
        key_norm: head_norm(weights, Part::KeyNorm)?,
        rope: Some(rope),
        heads: d.heads,
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
        scale: (d.head_dim as f32).sqrt().recip(),
        window,
        softcap: None,
    };
    Ok(Block {
        attention_norm: weights.rms_norm(Part::AttentionNorm, at, d.width, norm)?,
        attention,
        post_attention_norm: None,
        mlp_norm: weights.rms_norm(Part::MlpNorm, at, d.width, norm)?,
        mlp: Mlp::Gated {
            gate: weights.matrix(Part::Gate, at, [d.feed_forward, d.width])?,
            up: weights.matrix(Part::Up, at, [d.feed_forward, d.width])?,
            down: weights.matrix(Part::Down, at, [d.width, d.feed_forward])?,
            activation: s.activation,
        },
        post_mlp_norm: None,
    })
}
