//! Deterministic model weights from (seed, tensor name, length), the same to the bit as `tests/golden/seeded.py`.
//!
//! One stream per tensor: splitmix64 whose state starts at fnv1a64(utf8 name) XOR seed. The top 24 bits `m` of its
//! k-th output give the unit value `u = (m - 2^23) / 2^23`, in [-1, 1) and exact in f32. Elements follow the
//! row-major order of the shape under which Hugging Face stores the tensor (GPT-2's Conv1D: `[in, out]`).

/// `len` values in `[-scale, scale)`: one f32 multiplication of the unit value each.
pub fn tensor(seed: u64, name: &str, len: usize, scale: f32) -> Vec<f32> {
    const HALF: f32 = 8_388_608.0;
    let mut state = fnv1a64(name) ^ seed;
    (0..len).map(|_| ((splitmix64(&mut state) >> 40) as f32 - HALF) / HALF * scale).collect()
}

/// What the name says of a weight: the offset and the scale of its values.
///
/// The `weight` of a norm (its module's name contains `norm` or starts with `ln_`) is 1 + 0.1 u, any other
/// tensor 0.3 u.
pub fn offset_and_scale(name: &str) -> (f32, f32) {
    let mut parts = name.rsplit('.');
    let last = parts.next().unwrap_or_default();
    let module = parts.next().unwrap_or_default();
    if last == "weight" && (module.contains("norm") || module.starts_with("ln_")) {
        (1.0, 0.1)
    } else {
        (0.0, 0.3)
    }
}

/// The `len` values of the weight of this name.
pub fn weight(seed: u64, name: &str, len: usize) -> Vec<f32> {
    let (offset, scale) = offset_and_scale(name);
    let mut values = tensor(seed, name, len, scale);
    if offset != 0.0 {
        values.iter_mut().for_each(|v| *v += offset);
    }
    values
}

/// 64-bit FNV-1a of the text's UTF-8 bytes.
fn fnv1a64(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Advances the state and returns the next output of splitmix64.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators_match_their_published_values() {
        assert_eq!(fnv1a64(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64("a"), 0xaf63_dc4c_8601_ec8c);
        let mut state = 0;
        assert_eq!(
            [(); 2].map(|()| splitmix64(&mut state)),
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]
        );
    }

    /// The values that `python tests/golden/seeded.py` prints.
    #[test]
    fn weights_match_the_python_script() {
        let cases: [(u64, &str, [u32; 4]); 4] = [
            (0, "model.embed_tokens.weight", [0xbd9e_2887, 0xbddd_2964, 0x3c02_995a, 0x3e8b_ce80]),
            (
                7,
                "model.layers.1.self_attn.q_norm.weight",
                [0x3f89_6d43, 0x3f78_bb70, 0x3f83_6322, 0x3f88_c2e3],
            ),
            (7, "transformer.h.0.ln_1.bias", [0xbe2d_29e3, 0x3e69_b879, 0xbe57_8edb, 0x3e65_df6c]),
            (u64::MAX, "名.norm.weight", [0x3f66_af9b, 0x3f76_5589, 0x3f89_78a2, 0x3f81_970f]),
        ];
        for (seed, name, bits) in cases {
            let values = weight(seed, name, 1000);
            assert_eq!([0, 1, 2, 999].map(|i: usize| values[i].to_bits()), bits, "{name}");
        }
    }

    #[test]
    fn only_the_weight_of_a_norm_is_centred_on_one() {
        for name in [
            "model.norm.weight",
            "transformer.ln_f.weight",
            "model.layers.0.post_attention_layernorm.weight",
        ] {
            assert_eq!(offset_and_scale(name), (1.0, 0.1), "{name}");
        }
        for name in
            ["transformer.ln_f.bias", "model.embed_tokens.weight", "lm_head.weight", "weight", ""]
        {
            assert_eq!(offset_and_scale(name), (0.0, 0.3), "{name}");
        }
    }
}
