//! Gemma 3, text (Gemma Team 2025): scaled embeddings, norms before and after each layer, normalised
//! queries and keys, and five sliding-window layers for each global one, with a rotary base of
//! their own.

use import::gguf::Value;
use import::{Gguf, ModelFile};

use super::{
    Arch, Dims, GgufSettings, HfNames, HfSettings, LinearShape, Part, Plan, RopeKeys, RopeSettings,
    Weights,
};
use crate::parts::{
    Activation, Attention, Block, Decoder, Embedding, Head, Mlp, Rope, RopeScaling,
    inverse_frequencies,
};
use crate::{Error, Result};

pub(super) static ARCH: Arch = Arch {
    name: "gemma3",
    gguf: &["gemma3"],
    hf: &["gemma3_text"],
    llama2c: false,
    names: &HfNames {
        prefixes: &["model."],
        parts: &[
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
            (Part::PostAttentionNorm, "layers.#.post_attention_layernorm"),
            (Part::MlpNorm, "layers.#.pre_feedforward_layernorm"),
            (Part::Gate, "layers.#.mlp.gate_proj"),
            (Part::Up, "layers.#.mlp.up_proj"),
            (Part::Down, "layers.#.mlp.down_proj"),
            (Part::PostMlpNorm, "layers.#.post_feedforward_layernorm"),
        ],
        buffers: &[],
    },
    plan,
};

/// One layer in so many is global, where the file does not say.
const PATTERN: usize = 6;
/// Rotary base of sliding layers, where the file does not say.
const LOCAL_BASE: f64 = 10_000.0;
/// Gemma 3 27B alone scales scores by the width for each head, which its GGUF files do not say.
const LAYERS_OF_27B: usize = 62;

struct Settings {
    dims: Dims,
    /// Of global layers.
    global_rope: RopeSettings,
    /// Of sliding layers.
    local_rope: RopeSettings,
    /// Window of each layer; none in global ones.
    windows: Vec<Option<usize>>,
    activation: Activation,
    /// Factor of attention scores.
    scale: f32,
    score_softcap: Option<f32>,
    logit_softcap: Option<f32>,
    /// What the stored weights of norms lack: checkpoints hold `w` where the model multiplies with
    /// `1 + w`; converters to GGUF have added the 1.
    norm_offset: f32,
    tied: bool,
}

fn plan(file: &ModelFile) -> Result<Plan> {
    let (settings, refused) = match file {
        ModelFile::Gguf(m) => {
            let mut s = GgufSettings::new(m)?;
            let settings = gguf_settings(m, &mut s)?;
            (settings, s.into_refused())
        }
        ModelFile::HuggingFace(m) => {
            let mut s = HfSettings::new(m)?;
            let settings = hf_settings(&mut s)?;
            (settings, s.into_refused())
        }
        ModelFile::Llama2c(_) => return Err(Error::bug("llama2.c files are Llamas")),
    };
    if !(settings.scale > 0.0 && settings.scale.is_finite()) {
        let why = format!("factor {} of attention scores", settings.scale);
        return Err(Error::invalid(file.path(), why));
    }
    Ok(Plan {
        dims: settings.dims,
        window: settings.windows.iter().copied().flatten().max(),
        tied: settings.tied,
        interleaved: false,
        refused,
        gguf: None,
        build: Box::new(move |weights| decoder(weights, &settings)),
    })
}

fn gguf_settings(file: &Gguf, s: &mut GgufSettings<'_>) -> Result<Settings> {
    let dims = s.dims("attention.layer_norm_rms_epsilon")?;
    let window = s.find::<usize>("attention.sliding_window")?.filter(|&w| w > 0);
    let sliding = gguf_pattern(s, dims.layers)?;
    let local_base = s.find::<f32>("rope.freq_base_swa")?.map_or(LOCAL_BASE, f64::from);
    let head_scale = match dims.layers {
        LAYERS_OF_27B => dims.width as f32 / dims.heads as f32,
        _ => dims.head_dim as f32,
    };
    Ok(Settings {
        dims,
        global_rope: s.rope(dims.head_dim)?,
        local_rope: RopeSettings {
            base: local_base,
            scaling: RopeScaling::None,
            rotated: dims.head_dim,
        }
        .checked(file.path(), dims.head_dim)?,
        windows: sliding.iter().map(|&s| window.filter(|_| s)).collect(),
        activation: Activation::GeluTanh,
        scale: s.find("attention.scale")?.unwrap_or(head_scale.sqrt().recip()),
        score_softcap: s.find("attn_logit_softcapping")?.filter(|&c| c > 0.0),
        logit_softcap: s.find("final_logit_softcapping")?.filter(|&c| c > 0.0),
        norm_offset: 0.0,
        tied: file.info("output.weight").is_none(),
    })
}

/// Which layers slide: one truth value each, or how many layers a period has, its last being global.
fn gguf_pattern(s: &GgufSettings<'_>, layers: usize) -> Result<Vec<bool>> {
    const KEY: &str = "attention.sliding_window_pattern";
    if !matches!(s.value(KEY), Some(Value::Array(_))) {
        let period = s.find::<usize>(KEY)?.filter(|&p| p > 0).unwrap_or(PATTERN);
        return Ok((1..=layers).map(|n| n % period != 0).collect());
    }
    let pattern: Vec<bool> = s.find(KEY)?.unwrap_or_default();
    match pattern.len() == layers {
        true => Ok(pattern),
        false => Err(s.error(KEY, format!("{} entries for {layers} layers", pattern.len()))),
    }
}

fn hf_settings(s: &mut HfSettings<'_>) -> Result<Settings> {
    let dims = s.dims()?;
    s.refuse_if("use_bidirectional_attention")?;
    let mut period: Option<usize> = s.find("sliding_window_pattern")?;
    if period.is_none() {
        period = s.find("_sliding_window_pattern")?;
    }
    let period = period.filter(|&p| p > 0).unwrap_or(PATTERN);
    let global = RopeKeys {
        layer_type: Some("full_attention"),
        theta: "rope_theta",
        default_theta: 1e6,
        scaled: true,
    };
    let local = RopeKeys {
        layer_type: Some("sliding_attention"),
        theta: "rope_local_base_freq",
        default_theta: LOCAL_BASE,
        scaled: false,
    };
    let score_width = s.find("query_pre_attn_scalar")?.unwrap_or(256.0f32);
    Ok(Settings {
        dims,
        global_rope: s.rope(dims.head_dim, &global)?,
        local_rope: s.rope(dims.head_dim, &local)?,
        windows: s.windows(dims.layers, |layer| (layer + 1) % period != 0)?,
        activation: s.activation("hidden_activation", Activation::GeluTanh)?,
        scale: score_width.sqrt().recip(),
        score_softcap: s.find("attn_logit_softcapping")?,
        logit_softcap: s.find("final_logit_softcapping")?,
        norm_offset: 1.0,
        tied: s.find("tie_word_embeddings")?.unwrap_or(true),
    })
}

fn decoder(weights: &mut Weights<'_>, s: &Settings) -> Result<Decoder> {
    let Dims { width, vocab, norm_epsilon, .. } = s.dims;
    let tokens = weights.matrix(Part::Tokens, None, [vocab, width])?;
    let mut rope = |settings: RopeSettings, name: &str| -> Result<Rope> {
        let RopeSettings { base, scaling, rotated } = settings;
        let frequencies = inverse_frequencies(rotated, base, scaling, None);
        let inverse_frequencies = weights.computed(name, &frequencies)?;
        Ok(Rope { inverse_frequencies, interleaved: false })
    };
    let global = rope(s.global_rope, "rope_inverse_frequencies")?;
    let local = rope(s.local_rope, "rope_inverse_frequencies_local")?;
    let blocks = s
        .windows
        .iter()
        .enumerate()
        .map(|(layer, &window)| {
            let rope = if window.is_some() { local } else { global };
            block(weights, s, rope, (layer, window))
        })
        .collect::<Result<_>>()?;
    let output = weights.output(tokens, s.tied, (vocab, width))?;
    let norm = weights.rms_norm(Part::FinalNorm, None, width, (norm_epsilon, s.norm_offset))?;
    Ok(Decoder {
        embedding: Embedding { tokens, positions: None, scale: Some((width as f32).sqrt()) },
        blocks,
        head: Head { norm, output, softcap: s.logit_softcap },
    })
}

fn block(
    weights: &mut Weights<'_>,
    s: &Settings,
    rope: Rope,
    (layer, window): (usize, Option<usize>),
) -> Result<Block> {
    let d = &s.dims;
    let at = Some(layer);
    let norm = (d.norm_epsilon, s.norm_offset);
    let shape = |part, output, input| LinearShape { part, output, input };
    let attention = Attention {
        query: weights.linear(shape(Part::Query, d.query_width(), d.width), at, false)?,
        key: weights.linear(shape(Part::Key, d.kv_width(), d.width), at, false)?,
        value: weights.linear(shape(Part::Value, d.kv_width(), d.width), at, false)?,
        output: weights.linear(
            shape(Part::AttentionOutput, d.width, d.query_width()),
            at,
            false,
        )?,
        query_norm: Some(weights.rms_norm(Part::QueryNorm, at, d.head_dim, norm)?),
        key_norm: Some(weights.rms_norm(Part::KeyNorm, at, d.head_dim, norm)?),
        rope: Some(rope),
        heads: d.heads,
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
        scale: s.scale,
        window,
        softcap: s.score_softcap,
    };
    Ok(Block {
        attention_norm: weights.rms_norm(Part::AttentionNorm, at, d.width, norm)?,
        attention,
        post_attention_norm: Some(weights.rms_norm(Part::PostAttentionNorm, at, d.width, norm)?),
        mlp_norm: weights.rms_norm(Part::MlpNorm, at, d.width, norm)?,
        mlp: Mlp::Gated {
            gate: weights.matrix(Part::Gate, at, [d.feed_forward, d.width])?,
            up: weights.matrix(Part::Up, at, [d.feed_forward, d.width])?,
            down: weights.matrix(Part::Down, at, [d.width, d.feed_forward])?,
            activation: s.activation,
        },
        post_mlp_norm: Some(weights.rms_norm(Part::PostMlpNorm, at, d.width, norm)?),
    })
}
