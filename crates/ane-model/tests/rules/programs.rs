//! For each rule on programs, one that it accepts and one that it refuses.

use std::fmt::Write as _;

use rigel_ane_model::Path::{self, CoreMl, Direct};
use rigel_ane_model::rules::{Condition, rules};

use crate::common::{chip, findings, program};

/// Rule, chip, path, system, a program that it accepts, one that it refuses (see `common`).
type Case = (&'static str, &'static str, Path, &'static str, String, String);

fn case(id: &'static str, chip: &'static str, path: Path, accepted: &str, refused: &str) -> Case {
    (id, chip, path, "", accepted.to_owned(), refused.to_owned())
}

/// `x` of 4 channels and 64 columns, through one operation that keeps the shape.
fn unary(op: &str) -> String {
    format!("h[1, 4, 1, 64] x | h[1, 4, 1, 64] y = {op}; | y")
}

const RELU: &str = "h[1, 4, 1, 64] x | h[1, 4, 1, 64] y = relu(x = x); | y";

fn direct() -> Vec<Case> {
    let concat = "h[1, 4, 1, 64] x | h[1, 8, 1, 64] y = concat(values = (x, x), axis = int32(1), interleave = bool(false)); | y";
    let sdpa = |mask: &str| {
        format!(
            "h[1, 4, 64, 32] q, h[1, 1, 64, 64] m | h[1, 4, 64, 32] y = \
             scaled_dot_product_attention(query = q, key = q, value = q{mask}); | y"
        )
    };
    let conv = |more: &str| {
        format!(
            "h[1, 4, 1, 64] x | weight w h[8, 4, 1, 1];\nweight c h[8];\nh[1, 8, 1, 64] y = conv(x = x, weight = w{more}); | y"
        )
    };
    let inputs = |n: u32| {
        format!(
            "h[1, {n}, 1, 16] x | weight w h[8, {n}, 1, 1];\nh[1, 8, 1, 16] y = conv(x = x, weight = w); | y"
        )
    };
    let softmax = |n: u32| {
        format!("h[1, 4, 1, {n}] x | h[1, 4, 1, {n}] y = softmax(x = x, axis = int32(-1)); | y")
    };
    let slice = |begin: u32| {
        format!(
            "h[1, 4, 1, 64] x | h[1, 4, 1, 32] y = slice_by_size(x = x, begin = tensor<int32, [4]>([0, 0, 0, {begin}]), \
             size = tensor<int32, [4]>([1, 4, 1, 32])); | y"
        )
    };
    let matmul = |k: u32| {
        format!(
            "h[1, 1, 16, {k}] x, h[1, 1, {k}, 16] z | h[1, 1, 16, 16] y = matmul(x = x, y = z); | y"
        )
    };
    let wide = |n: u32| format!("h[1, 4, 1, {n}] x | h[1, 4, 1, {n}] y = relu(x = x); | y");
    let root = "h[1, 4, 1, 64] x | h[1, 1, 1, 64] s = reduce_sum(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));\n\
                h[1, 1, 1, 64] y = sqrt(x = s); | y";
    vec![
        case("ane-concat", "m4", Direct, RELU, concat),
        case("ane-sdpa-mask", "m4", Direct, &sdpa(""), &sdpa(", attn_mask = m")),
        case("ane-gelu", "m4", Direct, RELU, &unary("gelu(x = x)")),
        case("ane-silu", "m4", Direct, &unary("sigmoid(x = x)"), &unary("silu(x = x)")),
        case("ane-conv-bias", "m4", Direct, &conv(""), &conv(", bias = c")),
        case(
            "ane-inline-argument",
            "m4",
            Direct,
            "h[1, 4, 64, 64] x | bool t = const()[val = bool(true)];\nh[1, 4, 64, 64] y = matmul(x = x, y = x, transpose_y = t); | y",
            "h[1, 4, 64, 64] x | h[1, 4, 64, 64] y = matmul(x = x, y = x, transpose_y = bool(true)); | y",
        ),
        case("ane-conv-input-channels", "m4", Direct, &inputs(31999), &inputs(32000)),
        case(
            "ane-matmul-for-conv",
            "m4",
            Direct,
            &conv(""),
            "h[1, 1, 64, 4] x | weight w h[4, 8];\nh[1, 1, 64, 8] y = matmul(x = x, y = w); | y",
        ),
        case(
            "ane-rsqrt",
            "m4",
            Direct,
            &unary("sqrt(x = x)"),
            &unary("rsqrt(x = x, epsilon = fp16(0x1p-10))"),
        ),
        case(
            "ane-missing-epsilon",
            "m4",
            Direct,
            &unary("log(x = x, epsilon = fp16(0x1p-10))"),
            &unary("log(x = x)"),
        ),
        case(
            "ane-pow",
            "m1",
            Direct,
            &unary("mul(x = x, y = x)"),
            &unary("pow(x = x, y = fp16(0x1p+1))"),
        ),
        case("ane-root-after-reduce", "m4", Direct, &unary("sqrt(x = x)"), root),
        case(
            "ane-tile",
            "m4",
            Direct,
            RELU,
            "h[1, 4, 1, 64] x | h[1, 8, 1, 64] y = tile(x = x, reps = tensor<int32, [4]>([1, 2, 1, 1])); | y",
        ),
        case(
            "ane-gather-direct",
            "m4",
            Direct,
            RELU,
            "h[64, 16] x | h[2, 16] y = gather(x = x, indices = tensor<int32, [2]>([1, 2]), axis = int32(0)); | y",
        ),
        case("ane-softmax-length", "m4", Direct, &softmax(64), &softmax(96)),
        case("ane-slice-offset", "m2", Direct, &slice(0), &slice(32)),
        case("ane-matmul-multiple", "m1", Direct, &matmul(64), &matmul(63)),
        case("ane-sine", "m1", CoreMl, RELU, &unary("sin(x = x)")),
        case("ane-sine", "m4", Direct, &unary("cos(x = x)"), ""),
        case(
            "ane-dilated-conv",
            "m4",
            Direct,
            &conv(""),
            &conv(", dilations = tensor<int32, [2]>([2, 2])"),
        ),
        case("ane-dead-output", "m4", Direct, RELU, &unary("identity(x = x)")),
        case("ane-input-spatial", "m4", Direct, &wide(14592), &wide(14600)),
        case(
            "ane-unsupported-direct",
            "m4",
            Direct,
            RELU,
            "h[1, 4, 1, 64] x | h[1, 4, 1, 64] y = cumsum(x = x, axis = int32(3), exclusive = bool(false), reverse = bool(false)); | y",
        ),
        case("ane-int32-direct", "m4", Direct, RELU, "i[4] a | i[4] y = add(x = a, y = a); | y"),
    ]
}

fn surfaces() -> Vec<Case> {
    let two = "h[1, 4, 1, 64] a, h[1, 4, 1, 64] b | h[1, 4, 1, 64] c = add(x = a, y = b);\nh[1, 4, 1, 64] d = mul(x = a, y = b); | c, d";
    let split = "h[1, 12, 1, 64] x | h[1, 4, 1, 64] c, h[1, 8, 1, 64] d = split(x = x, split_sizes = tensor<int32, [2]>([4, 8]), axis = int32(1)); | c, d";
    let unequal = "h[1, 4, 1, 64] a, h[1, 1, 1, 64] b | h[1, 4, 1, 64] c = add(x = a, y = b); | c";
    let square =
        |n: u32, m: u32| format!("h[1, {n}, 1, {m}] x | h[1, {n}, 1, {m}] y = relu(x = x); | y");
    let inputs = |n: u32| {
        let names: Vec<String> = (0..n).map(|i| format!("h[1, 4, 1, 64] x{i}")).collect();
        format!("{} | h[1, 4, 1, 64] y = relu(x = x0); | y", names.join(", "))
    };
    vec![
        case("ane-output-sizes", "m4", Direct, two, split),
        case("ane-input-sizes", "m4", Direct, two, unequal),
        case("ane-packed-surface", "m4", Direct, two, unequal),
        case("ane-output-order", "m4", Direct, two, &two.replace("| c, d", "| d, c")),
        case(
            "ane-input-order",
            "m4",
            Direct,
            two,
            &two.replace("] b |", "] Z |").replace("y = b", "y = Z"),
        ),
        case("ane-minimum-surface", "m4", Direct, &square(768, 32), &square(768, 16)),
        case(
            "ane-io-dtype",
            "m1",
            Direct,
            RELU,
            "f[1, 4, 1, 64] x | f[1, 4, 1, 64] y = relu(x = x); | y",
        ),
        case("ane-input-count", "m5-max", Direct, &inputs(8), &inputs(44)),
        case("ane-width-multiple", "m4", Direct, &square(4, 64), &square(4, 63)),
        case("ane-few-columns", "m4", Direct, &square(768, 16), &square(1024, 16)),
    ]
}

fn weights() -> Vec<Case> {
    let linear = |o: u32, i: u32| {
        format!(
            "h[1, 16, {i}] x | weight w h[{o}, {i}];\nh[1, 16, {o}] y = linear(x = x, weight = w); | y"
        )
    };
    let matmul = |i: u32| {
        format!(
            "h[1, 1, 16, {i}] x | weight w h[{i}, 64];\nh[1, 1, 16, 64] y = matmul(x = x, y = w); | y"
        )
    };
    let at = |offset: u32| {
        format!(
            "h[1, 4, 1, 64] x | weight@{offset} w h[1, 4, 1, 1];\nh[1, 4, 1, 64] y = mul(x = x, y = w); | y"
        )
    };
    // `n` vectors that are multiplied one after the other, and a scalar.
    let many = |n: u32, last: &str| {
        let mut text = "h[1, 4, 1, 64] x | ".to_owned();
        for i in 0..n {
            let before = if i == 0 { "x".to_owned() } else { format!("y{}", i - 1) };
            writeln!(
                text,
                "weight w{i} h[1, 4, 1, 1];\nh[1, 4, 1, 64] y{i} = mul(x = {before}, y = w{i});"
            )
            .unwrap();
        }
        format!(
            "{text}\nh[1, 4, 1, 64] y = {last}(x = y{}, y = {}); | y",
            n - 1,
            if last == "mul" { "fp16(0x1p-1)" } else { "x" }
        )
    };
    let kernel = |values: &str| {
        format!(
            "h[1, 1, 8, 8] x | h[1, 1, 1, 3] w = const()[val = tensor<fp16, [1, 1, 1, 3]>([[[[{values}]]]])];\n\
             h[1, 1, 8, 6] y = conv(x = x, weight = w, pad_type = string(\"valid\")); | y"
        )
    };
    vec![
        case("ane-weights-baked", "m4", Direct, RELU, &linear(8, 8)),
        case("ane-blob-offset", "m4", Direct, &at(64), &at(128)),
        case("ane-weight-slots", "m4", Direct, &many(16, "add"), &many(17, "add")),
        case("ane-scalar-operand", "m4", Direct, &many(15, "mul"), &many(16, "mul")),
        case("ane-dma-notch", "m4", Direct, &linear(2048, 2048), &linear(2048, 4096)),
        case("ane-large-weight", "m4", Direct, &linear(2048, 2048), &linear(32768, 768)),
        case("ane-wide-head", "m4", Direct, &linear(50257, 16), &linear(262144, 16)),
        case("ane-weight-window", "m4", Direct, &matmul(4032), &matmul(4096)),
        case(
            "ane-zero-taps",
            "m4",
            Direct,
            &kernel("0x1p+0, 0x1p+1, 0x1p+0"),
            &kernel("0x1p+0, 0x1p+1, 0x0p+0"),
        ),
    ]
}

fn shapes() -> Vec<Case> {
    let relu = |shape: &str| format!("h[{shape}] x | h[{shape}] y = relu(x = x); | y");
    let matmul = |k: u32| {
        format!(
            "h[1, 1, 16, {k}] x, h[1, 1, {k}, 16] z | h[1, 1, 16, 16] y = matmul(x = x, y = z); | y"
        )
    };
    let conv = |h: u32, w: u32| {
        format!(
            "h[1, 1, 40, 40] x | weight w h[1, 1, {h}, {w}];\nh[1, 1, {}, {}] y = conv(x = x, weight = w, pad_type = string(\"valid\")); | y",
            41 - h,
            41 - w
        )
    };
    let pool = |h: u32, w: u32| {
        format!(
            "h[1, 1, 40, 40] x | h[1, 1, {}, {}] y = max_pool(x = x, kernel_sizes = tensor<int32, [2]>([{h}, {w}]), \
             strides = tensor<int32, [2]>([1, 1]), pad_type = string(\"valid\")); | y",
            41 - h,
            41 - w
        )
    };
    let enumerated = |kind: &str| {
        format!(
            "program(1.3)\n{{\nfunc main<ios18>(h[?, 64] x) [FlexibleShapeInformation = \
             dict<string, string>({{{{\"{kind}\", \"x\"}}}})] {{\nh[?, 64] y = relu(x = x);\n}} -> (y);\n}}\n"
        )
    };
    let softmax = |n: u32| {
        format!("h[1, 1, 1, {n}] x | h[1, 1, 1, {n}] y = softmax(x = x, axis = int32(-1)); | y")
    };
    let sdpa = |n: u32| {
        format!(
            "h[1, 1, {n}, 64] q | h[1, 1, {n}, 64] y = scaled_dot_product_attention(query = q, key = q, value = q); | y"
        )
    };
    let depthwise = |n: u32| {
        format!(
            "h[1, {n}, 1, 16] x | weight w h[{n}, 1, 1, 3];\nh[1, {n}, 1, 14] y = conv(x = x, weight = w, groups = int32({n}), pad_type = string(\"valid\")); | y"
        )
    };
    let scale = |n: u32| {
        format!(
            "h[1, {n}, 1, 16] x | weight w h[1, {n}, 1, 1];\nh[1, {n}, 1, 16] y = mul(x = x, y = w); | y"
        )
    };
    let activated = |rank: u32| {
        let ones = if rank == 2 { "" } else { "1, 1, " };
        format!(
            "h[{ones}4, 16] x | weight w h[8, 16];\nh[{ones}4, 8] l = linear(x = x, weight = w);\nh[{ones}4, 8] y = sigmoid_hard(x = l, alpha = fp16(0x1p-3), beta = fp16(0x1p-1)); | y"
        )
    };
    vec![
        case("ane-axis-limit", "m1", Direct, &relu("1, 4, 1, 16384"), &relu("1, 4, 1, 16385")),
        case("ane-axis-limit", "m4", CoreMl, &relu("1, 4, 1, 65536"), &relu("1, 4, 1, 65537")),
        case("ane-rank", "m4", Direct, &relu("1, 2, 2, 2, 2"), &relu("1, 2, 2, 2, 2, 2")),
        case("ane-zero-size", "m4", Direct, RELU, &relu("1, 4, 0, 64")),
        case("ane-reduction-depth", "m4", Direct, &matmul(16384), &matmul(40000)),
        case("ane-short-reduction", "m4", CoreMl, &matmul(8192), &matmul(64)),
        case("ane-conv-kernel", "m4", Direct, &conv(31, 1), &conv(1, 17)),
        case("ane-conv-kernel", "m4", Direct, &conv(16, 16), &conv(17, 17)),
        case("ane-wide-kernel", "m4", Direct, &conv(3, 8), &conv(3, 9)),
        case("ane-pool-window", "m4", Direct, &pool(9, 1), &pool(1, 9)),
        case("ane-dynamic-shape", "m4", CoreMl, RELU, &relu("?, 64")),
        case(
            "ane-enumerated-shape",
            "m4",
            CoreMl,
            &enumerated("RangeDims"),
            &enumerated("EnumeratedShapes"),
        ),
        case(
            "ane-matmul-rank",
            "m4",
            CoreMl,
            &matmul(64),
            "h[1, 1, 1, 16, 16] x | h[1, 1, 1, 16, 16] y = matmul(x = x, y = x); | y",
        ),
        case(
            "ane-conv-rank",
            "m4",
            Direct,
            &conv(3, 3),
            "h[1, 4, 64] x | weight w h[8, 4, 1];\nh[1, 8, 64] y = conv(x = x, weight = w); | y",
        ),
        case("ane-rank2-activation", "m4", CoreMl, &activated(4), &activated(2)),
        case("ane-softmax-history", "m6", Direct, &softmax(16384), &softmax(32768)),
        case("ane-sdpa-length", "m4", CoreMl, &sdpa(512), &sdpa(1024)),
        case("ane-depthwise-row", "m4", CoreMl, &depthwise(512), &depthwise(1024)),
        case("ane-scaled-channels", "m3-max", Direct, &scale(16384), &scale(17408)),
    ]
}

fn types() -> Vec<Case> {
    let island = |wide: &str, cast: &str| {
        format!(
            "h[1, 4, 1, 64] x | h[1, 4, 1, 64] a = relu(x = x);\n{wide}[1, 4, 1, 64] c = cast(x = a, dtype = string(\"{cast}\"));\n\
             {wide}[1, 4, 1, 64] y = exp(x = c); | y"
        )
    };
    vec![
        case("ane-int32", "m4", CoreMl, RELU, "i[4] a | i[4] y = add(x = a, y = a); | y"),
        case(
            "ane-bool-compute",
            "m4",
            CoreMl,
            RELU,
            "h[1, 4, 1, 64] x | b[1, 4, 1, 64] y = less(x = x, y = fp16(0x1p+0)); | y",
        ),
        case("ane-fp32-island", "m4", CoreMl, &island("h", "fp16"), &island("f", "fp32")),
        case(
            "ane-wide-float",
            "m4",
            Direct,
            RELU,
            "tensor<fp64, [1, 4, 1, 64]> x | tensor<fp64, [1, 4, 1, 64]> y = relu(x = x); | y",
        ),
    ]
}

fn states() -> Vec<Case> {
    let state = |shape: &str| {
        format!(
            "state<h[{shape}]> s, h[{shape}] x | h[{shape}] r = read_state(input = s);\nh[{shape}] a = add(x = r, y = x);\n\
             write_state(data = a, input = s);\nh[{shape}] y = relu(x = a); | y"
        )
    };
    let three = |n: u32| {
        let states: Vec<String> = (0..n).map(|i| format!("state<h[1, 1, 32, 32]> s{i}")).collect();
        let reads: String =
            (0..n).map(|i| format!("h[1, 1, 32, 32] r{i} = read_state(input = s{i});\n")).collect();
        format!("{} | {reads}h[1, 1, 32, 32] y = relu(x = r0); | y", states.join(", "))
    };
    let output = "state<h[1, 1, 32, 32]> s | h[1, 1, 32, 32] y = read_state(input = s); | y";
    let shifted = "state<h[1, 1, 64, 32]> s, h[1, 1, 1, 32] x | h[1, 1, 64, 32] r = read_state(input = s);\n\
        h[1, 1, 63, 32] t = slice_by_size(x = r, begin = tensor<int32, [4]>([0, 0, 1, 0]), size = tensor<int32, [4]>([1, 1, 63, 32]));\n\
        h[1, 1, 64, 32] n = concat(values = (t, x), axis = int32(2), interleave = bool(false));\n\
        write_state(data = n, input = s);\nh[1, 1, 64, 32] y = relu(x = n); | y";
    let update = |write: &str| {
        format!(
            "state<h[1, 1, 64, 32]> s, h[1, 1, 1, 32] x | h[1, 1, 64, 32] r = read_state(input = s);\n\
             h[1, 1, 64, 32] u = slice_update(x = r, update = x, begin = tensor<int32, [4]>([0, 0, 3, 0]), end = tensor<int32, [4]>([1, 1, 4, 32]));\n\
             {write}h[1, 1, 64, 32] y = relu(x = u); | y"
        )
    };
    let functions = |tokens: u32| {
        let body = |name: &str, n: u32| {
            format!(
                "func {name}<ios18>(h[1, {n}, 1, 64] x, state<h[1, 1, 32, 32]> k, state<h[1, 1, 32, 32]> v) {{\n\
                 h[1, {n}, 1, 64] y = relu(x = x);\n}} -> (y);\n"
            )
        };
        format!("program(1.3)\n{{\n{}{}}}\n", body("decode", 1), body("prefill", tokens))
    };
    vec![
        case("ane-state-dimension", "m4", CoreMl, &state("1, 8, 64, 256"), &state("1, 8, 64, 270")),
        case(
            "ane-state-power-of-two",
            "m4",
            CoreMl,
            &state("1, 8, 64, 256"),
            &state("1, 8, 64, 288"),
        ),
        case("ane-state-count", "m4", CoreMl, &three(2), &three(3)),
        case("ane-state-second", "a18", CoreMl, &three(1), &three(2)),
        case("ane-state-output", "m4", CoreMl, &state("1, 1, 32, 32"), output),
        case(
            "ane-state-chained-update",
            "m4",
            CoreMl,
            &update("write_state(data = u, input = s);\n"),
            shifted,
        ),
        case("ane-state-multi-token", "a19-pro", CoreMl, &functions(1), &functions(64)),
        case("ane-state-rank", "m4", CoreMl, &state("1, 8, 64, 256"), &state("8, 64, 256")),
        case(
            "ane-standalone-update",
            "m4",
            CoreMl,
            &update("write_state(data = u, input = s);\n"),
            &update(""),
        ),
    ]
}

fn compressed() -> Vec<Case> {
    let blob = |ty: &str| {
        format!(
            "{ty}(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))"
        )
    };
    let linear = |constexpr: &str| {
        format!(
            "h[4, 64] x | h[32, 64] w = {constexpr};\nh[4, 32] y = linear(x = x, weight = w); | y"
        )
    };
    let scaled = |data: &str, scale: &str| {
        linear(&format!(
            "constexpr_blockwise_shift_scale(data = {}, scale = {})",
            blob(&format!("tensor<{data}, [32, 64]>")),
            blob(&format!("tensor<fp16, [{scale}]>"))
        ))
    };
    let palette = |bits: u32, dtype: &str, rows: u32, lut: &str| {
        let axis = if rows == 32 { "" } else { ", vector_axis = int32(0)" };
        linear(&format!(
            "constexpr_lut_to_dense(indices = {}, lut = {}{axis})",
            blob(&format!("tensor<uint{bits}, [{rows}, 64]>")),
            blob(&format!("tensor<{dtype}, [{lut}]>"))
        ))
    };
    let int8_table = "h[4, 64] x | q[32, 64] w = constexpr_lut_to_dense(indices = tensor<uint4, [32, 64]>(BLOBFILE(path = string(\"w\"), \
        offset = uint64(64))), lut = tensor<int8, [1, 1, 16, 1]>(BLOBFILE(path = string(\"w\"), offset = uint64(4096))));\n\
        h[32, 64] v = constexpr_blockwise_shift_scale(data = w, scale = tensor<fp16, [1, 1]>([[0x1p-3]]));\nh[4, 32] y = linear(x = x, weight = v); | y";
    let scaled_table = int8_table.replace("q[32", "h[32").replace("<int8,", "<fp16,");
    let plain = palette(4, "fp16", 32, "1, 1, 16, 1");
    let quantised = |weight: &str| {
        format!(
            "h[4, 64] x | q[4, 64] a = quantize(input = x, scale = fp16(0x1p-3), output_dtype = string(\"int8\"));\n\
             h[4, 64] c = dequantize(input = a, scale = fp16(0x1p-3));\n{weight}\nh[4, 32] y = linear(x = c, weight = w); | y"
        )
    };
    let dense = "weight w h[32, 64];";
    let lut = "h[32, 64] w = constexpr_lut_to_dense(indices = tensor<uint4, [32, 64]>(BLOBFILE(path = string(\"w\"), offset = uint64(64))), \
               lut = tensor<fp16, [1, 1, 16, 1]>(BLOBFILE(path = string(\"w\"), offset = uint64(4096))));";
    let stateful = format!("state<h[1, 1, 32, 32]> s, {plain}");
    let mut cases = vec![
        case(
            "ane-blockwise-scale",
            "m4",
            CoreMl,
            &scaled("int8", "32, 1"),
            &scaled("int4", "32, 4"),
        ),
        case("ane-grouped-palette", "m4", CoreMl, &plain, &palette(4, "fp16", 32, "1, 4, 16, 1")),
        case(
            "ane-vector-palette",
            "m6",
            CoreMl,
            &palette(4, "fp16", 16, "1, 1, 16, 2"),
            &palette(8, "fp16", 16, "1, 1, 256, 2"),
        ),
        case(
            "ane-vector-palette",
            "m6",
            CoreMl,
            &palette(4, "fp16", 2, "1, 1, 16, 16"),
            &palette(2, "fp16", 1, "1, 1, 4, 32"),
        ),
        case("ane-palette-dtype", "m4", CoreMl, &plain, int8_table),
        case("ane-palette-activation", "m4", CoreMl, &quantised(dense), &quantised(lut)),
        case("ane-int8-expanded", "m1", Direct, &plain, &scaled("int8", "32, 1")),
        case(
            "ane-dynamic-conv",
            "m4",
            CoreMl,
            "h[1, 4, 1, 64] x | weight w h[8, 4, 1, 1];\nh[1, 8, 1, 64] y = conv(x = x, weight = w); | y",
            "h[1, 4, 1, 64] x, h[8, 4, 1, 1] w | h[1, 8, 1, 64] y = conv(x = x, weight = w); | y",
        ),
        case(
            "ane-zero-point",
            "m4",
            Direct,
            &quantised(dense),
            &quantised(dense).replace("x, scale", "x, zero_point = int8(3), scale"),
        ),
        case(
            "ane-quantize-scale",
            "m4",
            Direct,
            &quantised(dense),
            &quantised(dense).replace("x, scale = fp16(0x1p-3)", "x, scale = fp16(0x0p+0)"),
        ),
        case("ane-palette-unstable", "m4", CoreMl, &plain, &stateful),
    ];
    cases.push((
        "ane-scaled-palette",
        "m4",
        CoreMl,
        "macos15",
        scaled_table.clone(),
        String::new(),
    ));
    cases.push(("ane-scaled-palette", "m4", CoreMl, "macos26", plain, scaled_table));
    cases
}

fn numbers() -> Vec<Case> {
    let add = |eps: &str| {
        format!(
            "h[1, 4, 1, 64] x | h[1, 4, 1, 64] a = add(x = x, y = fp16({eps}));\nh[1, 4, 1, 64] y = rsqrt(x = a, epsilon = fp16(0x1p-12)); | y"
        )
    };
    let sum = |n: u32| {
        format!(
            "h[1, {n}, 1, 16] x | h[1, {n}, 1, 16] s = mul(x = x, y = x);\n\
             h[1, 1, 1, 16] y = reduce_sum(x = s, axes = tensor<int32, [1]>([1]), keep_dims = bool(true)); | y"
        )
    };
    let mish = "h[1, 4, 1, 64] x | h[1, 4, 1, 64] s = softplus(x = x);\nh[1, 4, 1, 64] t = tanh(x = s);\nh[1, 4, 1, 64] y = mul(x = x, y = t); | y";
    vec![
        case("ane-subnormal-epsilon", "m4", Direct, &add("0x1p-12"), &add("0x1p-20")),
        case(
            "ane-fp16-range",
            "m4",
            Direct,
            &unary("mul(x = x, y = fp16(0x1p+10))"),
            &unary("mul(x = x, y = fp16(0x1.f4p+15))"),
        ),
        case("ane-sum-overflow", "m4", Direct, &sum(4), &sum(768)),
        case("ane-softplus", "m6", Direct, RELU, &unary("softplus(x = x)")),
        case(
            "ane-exp-range",
            "m4",
            Direct,
            &unary("exp(x = x)").replace("exp(x = x)", "softmax(x = x, axis = int32(1))"),
            &unary("exp(x = x)"),
        ),
        case("ane-mish", "m4", CoreMl, &unary("mul(x = x, y = x)"), mish),
        case("ane-table-error", "m4", Direct, RELU, &unary("sigmoid(x = x)")),
    ]
}

fn sizes() -> Vec<Case> {
    let bytes = |rows: u32| {
        format!(
            "h[1, 16, 16384] x | weight w h[{rows}, 16384];\nh[1, 16, {rows}] y = linear(x = x, weight = w); | y"
        )
    };
    let chain = |n: u32, op: &str| {
        let mut text =
            "h[1, 64, 1, 64] x | weight w h[64, 64, 1, 1];\nh[1, 64, 1, 64] y0 = relu(x = x);\n"
                .to_owned();
        for i in 1..=n {
            writeln!(text, "h[1, 64, 1, 64] y{i} = {};", op.replace("$", &format!("y{}", i - 1)))
                .unwrap();
        }
        format!("{text} | y{n}")
    };
    let relu = |n| chain(n, "relu(x = $)");
    let softmax = |n| chain(n, "softmax(x = $, axis = int32(1))");
    let conv = |n| chain(n, "conv(x = $, weight = w)");
    let large = |n: u32| format!("h[1, 3, {n}, {n}] x | h[1, 3, {n}, {n}] y = relu(x = x); | y");
    let functions = |n: u32| {
        let one = |i: u32| {
            format!(
                "func f{i}<ios18>(h[4, 64] x) {{\nweight w{i} h[32, 64];\nh[4, 32] y = linear(x = x, weight = w{i});\n}} -> (y);\n"
            )
        };
        format!("program(1.3)\n{{\n{}}}\n", (0..n).map(one).collect::<String>())
    };
    let opset = |name: &str| {
        format!(
            "program(1.3)\n{{\nfunc main<{name}>(h[1, 4, 1, 64] x) {{\nh[1, 4, 1, 64] y = relu(x = x);\n}} -> (y);\n}}\n"
        )
    };
    let mut cases = vec![
        case("ane-program-bytes", "a19-pro", CoreMl, &bytes(16384), &bytes(43000)),
        case("ane-program-operations", "m4", CoreMl, &relu(100), &relu(3001)),
        case("ane-program-layers", "a19-pro", CoreMl, &softmax(17), &softmax(18)),
        case("ane-depth", "m6", Direct, &conv(386), &conv(387)),
        case("ane-elementwise-chain", "m6", Direct, &relu(64), &relu(256)),
        case("ane-working-set", "m4", Direct, &large(1024), &large(4096)),
        case("ane-large-tensor", "m4", CoreMl, &large(4096), &large(5568)),
        case("ane-function-weights", "m4", CoreMl, &functions(1), &functions(2)),
    ];
    cases.push(("ane-opset", "m4", Direct, "macos14", opset("ios17"), opset("ios18")));
    cases
}

fn coreml() -> Vec<Case> {
    let cumsum = "h[1, 4, 1, 64] x | h[1, 4, 1, 64] y = cumsum(x = x, axis = int32(3), exclusive = bool(false), reverse = bool(false)); | y";
    let control = "program(1.3)\n{\nfunc main<ios18>(b[] p, h[1, 4, 1, 64] x) {\nh[1, 4, 1, 64] y = cond(pred = p)\n\
        () {\nh[1, 4, 1, 64] a = relu(x = x);\n} -> (a)\n() {\nh[1, 4, 1, 64] c = tanh(x = x);\n} -> (c);\n} -> (y);\n}\n";
    let gru = "h[1, 1, 4] x, h[1, 4] s | h[1, 1, 4] y, h[1, 4] z = rnn(x = x, initial_h = s, \
        weight_ih = tensor<fp16, [4, 4]>(BLOBFILE(path = string(\"w\"), offset = uint64(64))), \
        weight_hh = tensor<fp16, [4, 4]>(BLOBFILE(path = string(\"w\"), offset = uint64(4096)))); | y";
    let norm = "h[1, 4, 64] x | weight w h[64];\nh[1, 4, 64] y = llm.rms_norm(x = x, weight = w, epsilon = fp32(0x1p-16)); | y";
    let slice = |begin: &str| {
        format!(
            "h[1, 4, 1, 64] x, i[4] p | h[1, 4, 1, 32] y = slice_by_size(x = x, begin = {begin}, \
             size = tensor<int32, [4]>([1, 4, 1, 32])); | y"
        )
    };
    let einsum = "h[1, 4, 8, 16] x, h[1, 16, 8, 8] z | h[1, 4, 8, 8] y = einsum(values = (x, z), \
        equation = string(\"nchw,nwhu->nchu\")); | y";
    let topk = |k: u32| {
        format!(
            "h[1, 4, 1, 64] x | h[1, 4, 1, {k}] v, i[1, 4, 1, {k}] n = topk(x = x, k = int32({k}), axis = int32(3)); | v, n"
        )
    };
    let argmax = |axis: u32, shape: &str| {
        format!(
            "h[2, 4, 1, 64] x | i[{shape}] y = reduce_argmax(x = x, axis = int32({axis}), keep_dims = bool(true)); | y"
        )
    };
    let pad = |value: &str| {
        format!(
            "h[1, 4, 1, 64] x | h[1, 4, 1, 66] y = pad(x = x, pad = tensor<int32, [2]>([1, 1]), mode = string(\"constant\"), \
             constant_val = fp16({value})); | y"
        )
    };
    let nms = |n: u32| {
        format!(
            "h[1, 4, {n}] a, h[1, 2, {n}] s | h[1, 4, 8] c, h[1, 2, 8] d, i[1, 8] e = non_maximum_suppression(boxes = a, scores = s, \
             iou_threshold = fp16(0x1p-1), max_boxes = int32(8), per_class_suppression = bool(false)); | c, d"
        )
    };
    vec![
        case("ane-unsupported-op", "m4", CoreMl, RELU, cumsum),
        case("ane-control-flow", "m4", CoreMl, RELU, control),
        case("ane-recurrent", "m4", CoreMl, RELU, gru),
        case("ane-dialect", "m4", CoreMl, RELU, norm),
        case(
            "ane-dynamic-slice",
            "m4",
            CoreMl,
            &slice("tensor<int32, [4]>([0, 0, 0, 8])"),
            &slice("p"),
        ),
        case("ane-pow-coreml", "m4", CoreMl, RELU, &unary("pow(x = x, y = fp16(0x1p+1))")),
        case("ane-einsum", "m4", CoreMl, RELU, einsum),
        case("ane-tail-island", "m4", CoreMl, RELU, &topk(4)),
        case("ane-topk", "m4", CoreMl, &topk(40), &topk(41)),
        case("ane-argmax-axis", "m4", CoreMl, &argmax(1, "2, 1, 1, 64"), &argmax(0, "1, 4, 1, 64")),
        case("ane-pad-value", "m4", CoreMl, &pad("0x0p+0"), &pad("0x1p+0")),
        case("ane-nms-boxes", "m4", CoreMl, &nms(2048), &nms(2049)),
    ]
}

fn all() -> Vec<Case> {
    let topics =
        [direct, surfaces, weights, shapes, types, states, compressed, numbers, sizes, coreml];
    topics.iter().flat_map(|topic| topic()).collect()
}

#[test]
fn each_rule_accepts_and_refuses() {
    let mut wrong = Vec::new();
    for (id, name, path, os, accepted, refused) in all() {
        let found = |text: &str| {
            let all = findings(text, chip(name), path, os);
            all.into_iter().find(|d| d.rule.id == id)
        };
        if let Some(d) = found(&accepted) {
            wrong.push(format!("{id} refuses {accepted}: {}", d.message));
        }
        if !refused.is_empty() && found(&refused).is_none() {
            wrong.push(format!("{id} accepts {refused}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_rule_lacks_its_programs() {
    let cases = all();
    let missing: Vec<_> = rules()
        .filter(|r| !matches!(r.condition, Condition::Call(_)))
        .filter(|r| !cases.iter().any(|c| c.0 == r.id && !c.4.is_empty() && !c.5.is_empty()))
        .map(|r| r.id)
        .collect();
    assert!(missing.is_empty(), "no programs for {missing:?}");
}

#[test]
fn the_programs_are_mil() {
    let mut wrong = Vec::new();
    for (id, _, _, _, accepted, refused) in all() {
        for text in [accepted, refused].iter().filter(|t| !t.is_empty()) {
            if let Err(e) = mil::verify(&program(text)) {
                wrong.push(format!("{id}: {e}\n{text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
