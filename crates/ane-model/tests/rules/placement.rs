//! Core ML's placement against what was published of it.
use rigel_ane_model::placement::{
    Backend, OpPlacement, Placement, PlacementError, Support, placement,
};

use crate::common::{chip, program};

fn place(short: &str, name: &str) -> Placement {
    placement(&program(short), "main", chip(name), None).unwrap()
}

fn only(short: &str) -> OpPlacement {
    let placed = place(short, "m4");
    assert_eq!(placed.ops.len(), 1);
    placed.ops[0].clone()
}

fn conv(kernel: u32, size: u32) -> String {
    format!(
        "h[1, 64, {size}, {size}] x | weight w h[64, 64, {kernel}, {kernel}];\n\
         h[1, 64, {size}, {size}] y = conv(x = x, weight = w, pad_type = string(\"same\")); | y"
    )
}

/// Microseconds on the engine and on the CPU, published for one M4.
#[test]
fn estimates_are_the_published_ones() {
    let map = |op: &str| format!("h[1, 64, 32, 32] x | h[1, 64, 32, 32] y = {op}; | y");
    let cases = [
        (conv(3, 32), 4.67, 100.06),
        (conv(1, 32), 1.17, 21.62),
        ("h[128, 256] x, h[256, 128] z | h[128, 128] y = matmul(x = x, y = z); | y".to_owned(), 2.24, 11.12),
        (
            "h[1, 32, 32, 32] x, h[1, 32, 32, 32] z | h[1, 64, 32, 32] y = concat(values = (x, z), axis = int32(1), \
             interleave = bool(false)); | y".to_owned(),
            2.62,
            22.79,
        ),
        (
            "h[1, 8, 128, 64] q, h[1, 8, 128, 64] k, h[1, 8, 128, 64] v | h[1, 8, 128, 64] y = \
             scaled_dot_product_attention(query = q, key = k, value = v); | y".to_owned(),
            7.18,
            8.62,
        ),
        (map("softmax(x = x, axis = int32(1))"), 3.59, 4.31),
        (map("layer_norm(x = x, axes = tensor<int32, [1]>([1]))"), 3.59, 4.31),
        (map("relu(x = x)"), 2.62, 2.62),
        (map("transpose(x = x, perm = tensor<int32, [4]>([0, 1, 3, 2]))"), 3.81, 3.00),
    ];
    for (text, ane, cpu) in cases {
        let op = only(&text);
        let near = |ms: f64, us: f64| (ms * 1e3 / us - 1.0).abs() < 0.01;
        assert!(
            near(op.estimates.ane_ms, ane),
            "{} for {ane} us: {text}",
            op.estimates.ane_ms * 1e3
        );
        assert!(
            near(op.estimates.bnns_ms, cpu),
            "{} for {cpu} us: {text}",
            op.estimates.bnns_ms * 1e3
        );
    }
}

#[test]
fn small_operations_stay_on_the_cpu() {
    // It saves 0.095 ms, and a launch and an output cost 0.25.
    let small = only(&conv(3, 32));
    assert_eq!((small.supported, small.chosen), (Support::Yes, Backend::Bnns));
    assert!((small.margin_ms.unwrap() - (0.25 - 0.0954)).abs() < 1e-3);
    // Four times the work saves 0.38.
    assert_eq!(only(&conv(3, 64)).chosen, Backend::Ane);
}

#[test]
fn one_unsupported_operation_pulls_a_network_to_the_cpu() {
    let network = |middle: &str| {
        format!(
            "h[1, 64, 48, 48] x | weight w h[64, 64, 3, 3];\n\
             h[1, 64, 48, 48] a = conv(x = x, weight = w, pad_type = string(\"same\"));\n\
             h[1, 64, 48, 48] m = {middle};\n\
             h[1, 64, 48, 48] y = conv(x = m, weight = w, pad_type = string(\"same\")); | y"
        )
    };
    let inside = place(&network("relu(x = a)"), "m4");
    assert_eq!((inside.on_ane(), inside.ane_segments()), (3, 1));
    let broken = place(&network("asin(x = a)"), "m4");
    assert_eq!(broken.on_ane(), 0);
    assert_eq!(broken.ops[1].supported, Support::No);
    assert_eq!(broken.ops[1].why_not[0].0, "ane-unsupported-op");
    assert_eq!(broken.ops[0].supported, Support::Yes);
}

#[test]
fn sizes_and_types_keep_operations_off() {
    let long = only("h[1, 4, 1, 65537] x | h[1, 4, 1, 65537] y = relu(x = x); | y");
    assert_eq!(long.why_not[0].0, "ane-axis-limit");
    let ints = only("i[4] x | i[4] y = add(x = x, y = x); | y");
    assert_eq!((ints.supported, ints.why_not[0].0), (Support::No, "ane-int32"));
    let open = only("h[?, 64] x | h[?, 64] y = relu(x = x); | y");
    assert_eq!(open.why_not[0].0, "ane-dynamic-shape");
}

#[test]
fn what_cannot_be_predicted_is_said() {
    let p = program(&conv(3, 32));
    let missing = placement(&p, "decode", chip("m4"), None).unwrap_err();
    assert_eq!(missing, PlacementError::NoFunction("decode".into()));
    let blank =
        rigel_ane_model::Chip::from_toml("name = \"x\"\ntitle = \"X\"\nplatform = \"mac\"\n");
    let unknown = placement(&p, "main", &blank.unwrap(), None).unwrap_err();
    assert!(unknown.to_string().contains("unknown"), "{unknown}");
}
