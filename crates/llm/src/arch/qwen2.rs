//! Qwen 2 and 2.5 (Yang et al. 2024): Llama's blocks with biases on queries, keys and values.

use super::llama::{self, Variant};
use super::{Arch, HfNames};

pub(super) static ARCH: Arch = Arch {
    name: "qwen2",
    gguf: &["qwen2"],
    hf: &["qwen2"],
    llama2c: false,
    names: &HfNames { prefixes: &["model."], parts: llama::HF_PARTS, buffers: llama::HF_BUFFERS },
    plan: |file| {
        llama::plan(
            file,
            Variant {
                gguf_interleaved: false,
                qkv_bias: true,
                qk_norm: false,
                window_switch: true,
            },
        )
    },
};
