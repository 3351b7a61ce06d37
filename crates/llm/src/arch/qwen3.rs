//! Qwen 3, dense (Yang et al. 2025): Llama's blocks with each head's query and key normalised.

use super::llama::{self, Variant};
use super::{Arch, HfNames};

pub(super) static ARCH: Arch = Arch {
    name: "qwen3",
    gguf: &["qwen3"],
    hf: &["qwen3"],
    llama2c: false,
    names: &HfNames { prefixes: &["model."], parts: llama::HF_PARTS, buffers: llama::HF_BUFFERS },
    plan: |file| {
        llama::plan(
            file,
            Variant {
                gguf_interleaved: false,
                qkv_bias: false,
                qk_norm: true,
                window_switch: true,
            },
        )
    },
};
