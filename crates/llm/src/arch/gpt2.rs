//! GPT-2 (Radford et al. 2019): learned positions, layer norms, one matrix for queries, keys and
//! values, a plain feed-forward layer.

use import::ModelFile;

use super::{
    Arch, Dims, GgufForm, GgufSettings, HfNames, HfSettings, LinearShape, Part, Plan, Weights,
};
use crate::parts::{Activation, Attention, Block, Decoder, Embedding, Head, Mlp};
use crate::{Error, Result};

pub(super) static ARCH: Arch = Arch {
    name: "gpt2",
    gguf: &["gpt2"],
    hf: &["gpt2"],
    llama2c: false,
    names: &HfNames {
        prefixes: &["transformer."],
        parts: &[
            (Part::Tokens, "wte"),
            (Part::Positions, "wpe"),
            (Part::Output, "lm_head"),
            (Part::FinalNorm, "ln_f"),
            (Part::AttentionNorm, "h.#.ln_1"),
            (Part::QueryKeyValue, "h.#.attn.c_attn"),
            (Part::AttentionOutput, "h.#.attn.c_proj"),
            (Part::MlpNorm, "h.#.ln_2"),
            (Part::Up, "h.#.mlp.c_fc"),
            (Part::Down, "h.#.mlp.c_proj"),
        ],
        // Causal masks.
        buffers: &[".attn.bias", ".attn.masked_bias"],
    },
    plan,
};

/// GGUF's key of the norms' epsilon.
const EPSILON: &str = "attention.layer_norm_epsilon";

struct Settings {
    dims: Dims,
    activation: Activation,
    /// Factor of each layer's attention scores.
    scales: Vec<f32>,
    tied: bool,
}

fn plan(file: &ModelFile) -> Result<Plan> {
    let (settings, refused) = match file {
        ModelFile::Gguf(m) => {
            let mut s = GgufSettings::new(m)?;
            let dims = s.dims(EPSILON)?;
            let settings = Settings {
                dims,
                activation: Activation::GeluTanh,
                scales: vec![(dims.head_dim as f32).sqrt().recip(); dims.layers],
                tied: !file.contains("output.weight"),
            };
            (settings, s.into_refused())
        }
        ModelFile::HuggingFace(m) => {
            let mut s = HfSettings::new(m)?;
            let dims = hf_dims(&s)?.checked(m.path())?;
            s.refuse_if("add_cross_attention")?;
            let settings = Settings {
                dims,
                activation: s.activation("activation_function", Activation::GeluTanh)?,
                scales: hf_scales(&s, &dims)?,
                tied: s.find("tie_word_embeddings")?.unwrap_or(true),
            };
            (settings, s.into_refused())
        }
        ModelFile::Llama2c(_) => return Err(Error::bug("llama2.c files are Llamas")),
    };
    let dims = settings.dims;
    if dims.query_width() != dims.width || dims.kv_heads != dims.heads {
        let why = format!("width {} does not divide into {} equal heads", dims.width, dims.heads);
        return Err(Error::invalid(file.path(), why));
    }
    Ok(Plan {
        dims,
        window: None,
        tied: settings.tied,
        interleaved: false,
        refused,
        gguf: Some(gguf_form(&settings)),
        build: Box::new(move |weights| decoder(weights, &settings)),
    })
}

fn gguf_form(s: &Settings) -> GgufForm {
    let mut refused = Vec::new();
    if s.activation != Activation::GeluTanh {
        refused.push("its activation".to_owned());
    }
    if s.scales.iter().any(|&scale| scale != (s.dims.head_dim as f32).sqrt().recip()) {
        refused.push("its scale of attention".to_owned());
    }
    GgufForm { epsilon: EPSILON, rope_base: None, interleaved: false, refused }
}

fn hf_dims(s: &HfSettings<'_>) -> Result<Dims> {
    let (width, heads): (usize, usize) = (s.get("n_embd")?, s.get("n_head")?);
    // Configurations older than `n_positions` had `n_ctx`.
    let max_context = match s.find("n_positions")? {
        Some(n) => n,
        None => s.get("n_ctx")?,
    };
    Ok(Dims {
        layers: s.get("n_layer")?,
        width,
        feed_forward: s.find("n_inner")?.unwrap_or(width.saturating_mul(4)),
        heads,
        kv_heads: heads,
        head_dim: width / heads.max(1),
        vocab: s.get("vocab_size")?,
        max_context,
        norm_epsilon: s.find("layer_norm_epsilon")?.unwrap_or(1e-5),
    })
}

fn hf_scales(s: &HfSettings<'_>, dims: &Dims) -> Result<Vec<f32>> {
    let whole = match s.find("scale_attn_weights")?.unwrap_or(true) {
        true => (dims.head_dim as f32).sqrt().recip(),
        false => 1.0,
    };
    let by_layer = s.find("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    let divisor = |layer: usize| if by_layer { (layer + 1) as f32 } else { 1.0 };
    Ok((0..dims.layers).map(|layer| whole / divisor(layer)).collect())
}

fn decoder(weights: &mut Weights<'_>, s: &Settings) -> Result<Decoder> {
    let Dims { width, vocab, max_context, norm_epsilon, .. } = s.dims;
    let tokens = weights.matrix(Part::Tokens, None, [vocab, width])?;
    let positions = weights.matrix(Part::Positions, None, [max_context, width])?;
    let blocks = s
        .scales
        .iter()
        .enumerate()
        .map(|(layer, &scale)| block(weights, s, layer, scale))
        .collect::<Result<_>>()?;
    let output = weights.output(tokens, s.tied, (vocab, width))?;
    let norm = weights.layer_norm(Part::FinalNorm, None, width, norm_epsilon)?;
    Ok(Decoder {
        embedding: Embedding { tokens, positions: Some(positions), scale: None },
        blocks,
        head: Head { norm, output, softcap: None },
    })
}

fn block(weights: &mut Weights<'_>, s: &Settings, layer: usize, scale: f32) -> Result<Block> {
    let d = &s.dims;
    let at = Some(layer);
    let shape = |part, output, input| LinearShape { part, output, input };
    let [query, key, value] =
        weights.fused_conv1d(shape(Part::QueryKeyValue, 3 * d.width, d.width), at)?;
    let attention = Attention {
        query,
        key,
        value,
        output: weights.conv1d(shape(Part::AttentionOutput, d.width, d.width), at)?,
        query_norm: None,
        key_norm: None,
        rope: None,
        heads: d.heads,
        kv_heads: d.kv_heads,
        head_dim: d.head_dim,
        scale,
        window: None,
        softcap: None,
    };
    Ok(Block {
        attention_norm: weights.layer_norm(Part::AttentionNorm, at, d.width, d.norm_epsilon)?,
        attention,
        post_attention_norm: None,
        mlp_norm: weights.layer_norm(Part::MlpNorm, at, d.width, d.norm_epsilon)?,
        mlp: Mlp::Plain {
            up: weights.conv1d(shape(Part::Up, d.feed_forward, d.width), at)?,
            down: weights.conv1d(shape(Part::Down, d.width, d.feed_forward), at)?,
            activation: s.activation,
        },
        post_mlp_norm: None,
    })
}
