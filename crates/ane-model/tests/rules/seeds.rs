//! The cases that people ask about first.

use rigel_ane_model::{Path, Severity};

use crate::common::{chip, findings};

fn severity(short: &str, name: &str, path: Path, id: &str) -> Option<Severity> {
    findings(short, chip(name), path, "").into_iter().find(|d| d.rule.id == id).map(|d| d.severity)
}

#[test]
fn a_convolution_of_32k_channels() {
    let conv = |i: u32, o: u32| {
        format!(
            "h[1, {i}, 1, 16] x | weight w h[{o}, {i}, 1, 1];\nh[1, {o}, 1, 16] y = conv(x = x, weight = w); | y"
        )
    };
    let found = |i, o, path| severity(&conv(i, o), "m4-max", path, "ane-conv-input-channels");
    // Refused as inputs, fine as outputs; a limit at 32,768 is what the binary says.
    assert_eq!(found(32000, 16, Path::Direct), Some(Severity::Warning));
    assert_eq!(found(33000, 16, Path::Direct), Some(Severity::Error));
    assert_eq!(found(16, 32000, Path::Direct), None);
    assert_eq!(found(32000, 16, Path::CoreMl), None);
}

#[test]
fn a_history_of_65536_with_a_block_of_64_rows() {
    let joined = |rows: u32| {
        format!(
            "h[1, 4, {rows}, 64] past, h[1, 4, 64, 64] block | h[1, 4, {}, 64] y = concat(values = (past, block), \
             axis = int32(2), interleave = bool(false)); | y",
            rows + 64
        )
    };
    let found = |rows, name| severity(&joined(rows), name, Path::CoreMl, "ane-axis-limit");
    assert_eq!(found(65472, "m6"), None);
    assert_eq!(found(65536, "m6"), Some(Severity::Error));
    assert_eq!(found(16320, "m1"), None);
    assert_eq!(found(16384, "m1"), Some(Severity::Error));
}

#[test]
fn attention_over_2048_positions() {
    let sdpa = |queries: u32| {
        format!(
            "h[1, 8, {queries}, 64] q, h[1, 8, 2048, 64] k, h[1, 8, 2048, 64] v | \
             h[1, 8, {queries}, 64] y = scaled_dot_product_attention(query = q, key = k, value = v); | y"
        )
    };
    assert!(severity(&sdpa(2048), "m4", Path::CoreMl, "ane-sdpa-length").is_some());
    assert_eq!(severity(&sdpa(64), "m4", Path::CoreMl, "ane-sdpa-length"), None);
}

#[test]
fn the_73_megabyte_head_of_gpt2() {
    let head = "h[1, 768, 1, 16] x | weight w h[50257, 768, 1, 1];\nh[1, 50257, 1, 16] y = conv(x = x, weight = w); | y";
    assert_eq!(severity(head, "m4-max", Path::Direct, "ane-large-weight"), Some(Severity::Info));
    assert_eq!(severity(head, "m4-max", Path::Direct, "ane-wide-head"), None);
    // 50,257 channels: within 65,536, above the 32,768 of the binary's string.
    assert_eq!(severity(head, "m4-max", Path::Direct, "ane-axis-limit"), Some(Severity::Warning));
}

#[test]
fn inputs_of_unequal_sizes_in_surfaces_of_one_size() {
    let lora =
        "h[1, 768, 1, 32] x, h[1, 768, 1, 16] lora_a | h[1, 768, 1, 32] y = relu(x = x); | y";
    let found = findings(lora, chip("m4-max"), Path::Direct, "");
    let packed = found.iter().find(|d| d.rule.id == "ane-packed-surface").unwrap();
    assert!(packed.message.contains("first 24576 of 49152 bytes"), "{}", packed.message);
    let order = found.iter().find(|d| d.rule.id == "ane-input-order").unwrap();
    assert!(order.message.contains("bound as lora_a, x"), "{}", order.message);
}

#[test]
fn the_notch_of_a_2048_by_4096_projection() {
    let linear = |o: u32, i: u32| {
        format!(
            "h[1, 16, {i}] x | weight w h[{o}, {i}];\nh[1, 16, {o}] y = linear(x = x, weight = w); | y"
        )
    };
    let found = |o, i| severity(&linear(o, i), "m4", Path::CoreMl, "ane-dma-notch");
    assert_eq!(found(2048, 4096), Some(Severity::Warning));
    assert_eq!(found(2048, 2048), None);
    // Split along the reduction, each half is half a megabyte.
    assert_eq!(found(4096, 4096), Some(Severity::Warning));
    assert_eq!(found(2048, 4096 - 128), None);
}
