//! What passes make of small texts: the operations that are left, and that they compute the same.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use mil::eval::{self, Arithmetic, Array, Data, Value};
use mil::{OpKind, Program};
use rigel_passes::{pass, run};
use tensor::DType;

fn parse(params: &str, body: &str, outputs: &str) -> Program {
    let text = format!(
        "program(1.3)\n[]\n{{\n    func main<ios18>({params}) {{\n{body}\n    }} -> ({outputs});\n}}"
    );
    let program = mil::text::parse(&text, &mil::text::NoBlobs).unwrap().program;
    mil::verify(&program).unwrap();
    program
}

/// Inputs that differ from place to place, with fractions that single precision holds.
fn inputs(program: &Program) -> BTreeMap<String, Value> {
    let function = &program.functions["main"];
    let value = |(n, &v): (usize, &mil::ValueId)| {
        let ty = function.tensor_ty(v).unwrap();
        let shape = ty.fixed_shape().unwrap();
        let count = shape.iter().product::<usize>();
        let number = |i: usize| ((i * 37 + n * 11) % 64) as f64 / 16.0 - 1.9;
        let data = match ty.dtype {
            DType::Bool => Data::Bool((0..count).map(|i| i % 3 != 0).collect()),
            d if d.is_int() => Data::Int((0..count).map(|i| (i * 77 % 300) as i64 - 20).collect()),
            _ => Data::Float((0..count).map(number).collect()),
        };
        let exact = Array { dtype: ty.dtype, shape, data };
        let array = Array::from_tensor(&exact.to_tensor().unwrap()).unwrap();
        (function.values[v].name.clone(), Value::from(array))
    };
    function.inputs.iter().enumerate().map(value).collect()
}

fn outputs(program: &Program, arithmetic: Arithmetic) -> Vec<Array> {
    let values =
        eval::run(program, "main", arithmetic, &inputs(program), &mut BTreeMap::new()).unwrap();
    values.iter().map(|v| v.array().unwrap().as_ref().clone()).collect()
}

fn kinds(program: &Program) -> Vec<&'static str> {
    let function = &program.functions["main"];
    let ops = function.body.ops.iter().map(|&id| function.ops[id].kind);
    ops.filter(|k| *k != OpKind::Const).map(OpKind::name).collect()
}

/// Holds that the pass leaves `expected` of the text, and that results stay.
fn becomes(name: &str, params: &str, body: &str, out: &str, expected: &[&str]) -> Program {
    let pass = pass(name).unwrap();
    let before = parse(params, body, out);
    let mut after = before.clone();
    run(&mut after, &[pass]).unwrap();
    assert_eq!(kinds(&after), expected, "{body}");
    let names = |p: &Program| {
        let f = &p.functions["main"];
        f.body.outputs.iter().map(|&v| f.values[v].name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&after), names(&before));
    if pass.exact() {
        assert_eq!(outputs(&after, Arithmetic::Fp16), outputs(&before, Arithmetic::Fp16), "{body}");
        return after;
    }
    for (a, e) in outputs(&after, Arithmetic::Exact).iter().zip(outputs(&before, Arithmetic::Exact))
    {
        let tolerance = if e.dtype == DType::F16 { 5e-3 } else { 1e-5 };
        assert_eq!(a.shape, e.shape);
        for (a, e) in a.floats().unwrap().iter().zip(e.floats().unwrap()) {
            assert!((a - e).abs() <= tolerance * (1.0 + e.abs()), "{a} {e} {body}");
        }
    }
    after
}

#[test]
fn casts_cancel_only_where_nothing_is_lost() {
    let cast = |out: &str, ty: &str, x: &str, dtype: &str| {
        format!("tensor<{ty}, [2, 3]> {out} = cast(x = {x}, dtype = string(\"{dtype}\"));\n")
    };
    let pair = |types: [&str; 3], expected: &[&str]| {
        let [from, between, to] = types;
        let body = cast("a", between, "x", between) + &cast("b", to, "a", to);
        let params = format!("tensor<{from}, [2, 3]> x");
        becomes("cast_fusion", &params, &body, "b", expected);
    };
    pair(["fp16", "fp32", "fp16"], &["identity"]);
    pair(["fp16", "fp32", "int32"], &["cast"]);
    pair(["bool", "fp32", "int32"], &["cast"]);
    pair(["int32", "int16", "int8"], &["cast"]);
    pair(["fp32", "fp16", "fp32"], &["cast", "cast"]);
    pair(["fp32", "int32", "fp32"], &["cast", "cast"]);
    pair(["int32", "fp32", "int32"], &["cast", "cast"]);
    pair(["int16", "fp32", "uint8"], &["cast", "cast"]);
}

#[test]
fn casts_cancel_around_what_moves_elements() {
    let body = "
        tensor<fp32, [2, 3]> a = cast(x = x, dtype = string(\"fp32\"));
        tensor<fp32, [2, 3]> b = cast(x = y, dtype = string(\"fp32\"));
        tensor<fp32, [4, 3]> c = concat(values = (a, b), axis = int32(0));
        tensor<fp32, [3, 4]> d = transpose(x = c, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [3, 4]> e = relu(x = d);
        tensor<fp16, [3, 4]> f = cast(x = e, dtype = string(\"fp16\"));";
    let params = "tensor<fp16, [2, 3]> x, tensor<fp16, [2, 3]> y";
    becomes("cast_fusion", params, body, "f", &["concat", "transpose", "relu"]);
    // What computes rounds elsewhere in the narrow type.
    let body = "
        tensor<fp32, [2, 3]> a = cast(x = x, dtype = string(\"fp32\"));
        tensor<fp32, [2, 3]> b = exp(x = a);
        tensor<fp16, [2, 3]> c = cast(x = b, dtype = string(\"fp16\"));";
    becomes("cast_fusion", "tensor<fp16, [2, 3]> x", body, "c", &["cast", "exp", "cast"]);
}

#[test]
fn casts_of_constants_are_computed() {
    let body = "
        tensor<fp32, [3]> w = const()[val = tensor<fp32, [3]>([0.1, 0.2, 0.3])];
        tensor<fp16, [3]> h = cast(x = w, dtype = string(\"fp16\"));
        tensor<fp16, [2, 3]> y = mul(x = x, y = h);";
    becomes("cast_fusion", "tensor<fp16, [2, 3]> x", body, "y", &["mul"]);
}

#[test]
fn casts_in_nested_blocks_cancel() {
    let body = "
        tensor<fp32, [2]> a = cast(x = x, dtype = string(\"fp32\"));
        tensor<fp16, [2]> y = cond(pred = p)
            () { tensor<fp16, [2]> b = cast(x = a, dtype = string(\"fp16\")); } -> (b)
            () { tensor<fp16, [2]> c = add(x = x, y = x); } -> (c);";
    let params = "tensor<fp16, [2]> x, bool p";
    becomes("cast_fusion", params, body, "y", &["cond"]);
}

#[test]
fn constants_around_a_convolution_fold() {
    let body = "
        tensor<fp32, [1, 4, 1]> s = const()[val = tensor<fp32, [1, 4, 1]>([[[0.5], [1.5], [-2.0], [3.0]]])];
        tensor<fp32, [1, 4, 5]> a = mul(x = x, y = s);
        tensor<fp32, [2, 2, 1]> w = const()[val = tensor<fp32, [2, 2, 1]>([[[1.0], [2.0]], [[3.0], [4.0]]])];
        tensor<fp32, [1, 2, 5]> b = conv(x = a, weight = w, groups = int32(2));
        tensor<fp32, [1, 2, 5]> c = sub(x = b, y = tensor<fp32, [2, 1]>([[0.25], [0.75]]));
        tensor<fp32, [1, 2, 5]> d = batch_norm(x = c, mean = tensor<fp32, [2]>([0.1, 0.2]),
            variance = tensor<fp32, [2]>([1.5, 0.5]), gamma = tensor<fp32, [2]>([2.0, -1.0]),
            beta = tensor<fp32, [2]>([0.3, 0.4]), epsilon = fp32(0.001));
        tensor<fp32, [1, 2, 5]> e = real_div(x = d, y = fp32(4.0));";
    becomes("linear_folding", "tensor<fp32, [1, 4, 5]> x", body, "e", &["conv"]);
}

#[test]
fn padding_keeps_a_summand_in_front() {
    let body = |pad: &str| {
        format!(
            "tensor<fp32, [1, 2, 5]> a = add(x = x, y = fp32(1.5));
        tensor<fp32, [1, 1, ?]> b = conv(x = a, weight = tensor<fp32, [1, 2, 2]>([[[1.0, 2.0], [3.0, 4.0]]]),
            pad_type = string(\"{pad}\"));"
        )
    };
    let params = "tensor<fp32, [1, 2, 5]> x";
    becomes("linear_folding", params, &body("same"), "b", &["add", "conv"]);
    becomes("linear_folding", params, &body("valid"), "b", &["conv"]);
}

#[test]
fn transposed_convolutions_fold() {
    let body = "
        tensor<fp32, [4, 1]> s = const()[val = tensor<fp32, [4, 1]>([[0.5], [1.5], [-2.0], [3.0]])];
        tensor<fp32, [1, 4, 5]> a = mul(x = x, y = s);
        tensor<fp32, [4, 1, 2]> w = const()[val = tensor<fp32, [4, 1, 2]>([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]], [[7.0, 8.0]]])];
        tensor<fp32, [1, 2, 6]> b = conv_transpose(x = a, weight = w, groups = int32(2));
        tensor<fp32, [1, 2, 6]> c = mul(x = tensor<fp32, [2, 1]>([[0.25], [0.75]]), y = b);";
    becomes("linear_folding", "tensor<fp32, [1, 4, 5]> x", body, "c", &["conv_transpose"]);
}

#[test]
fn a_product_with_a_constant_and_a_sum_is_a_linear_layer() {
    let body = "
        tensor<fp32, [3, 2]> w = const()[val = tensor<fp32, [3, 2]>([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])];
        tensor<fp32, [4, 3]> a = add(x = x, y = tensor<fp32, [3]>([0.1, 0.2, 0.3]));
        tensor<fp32, [4, 2]> b = matmul(x = a, y = w);
        tensor<fp32, [4, 2]> c = mul(x = b, y = fp32(2.0));
        tensor<fp32, [4, 2]> d = sub(x = tensor<fp32, [2]>([0.5, -0.5]), y = c);";
    becomes("linear_folding", "tensor<fp32, [4, 3]> x", body, "d", &["linear"]);
}

#[test]
fn a_weight_used_twice_or_that_would_lose_precision_stays() {
    let body = "
        tensor<fp32, [2, 2]> w = const()[val = tensor<fp32, [2, 2]>([[1.0, 2.0], [3.0, 4.0]])];
        tensor<fp32, [3, 2]> a = linear(x = x, weight = w);
        tensor<fp32, [3, 2]> b = mul(x = a, y = fp32(2.0));
        tensor<fp32, [3, 2]> c = linear(x = b, weight = w);
        tensor<fp32, [3, 2]> d = add(x = c, y = fp32(2.0));";
    becomes("linear_folding", "tensor<fp32, [3, 2]> x", body, "d", &["linear", "mul", "linear"]);
    let body = "
        tensor<fp16, [2, 2]> w = const()[val = tensor<fp16, [2, 2]>([[1.0, 2.0], [3.0, 4.0]])];
        tensor<fp16, [3, 2]> a = linear(x = x, weight = w);
        tensor<fp16, [3, 2]> b = mul(x = a, y = fp16(0.00001));";
    becomes("linear_folding", "tensor<fp16, [3, 2]> x", body, "b", &["linear", "mul"]);
}

#[test]
fn a_layer_in_front_of_a_loop_stays_there() {
    let body = "
        tensor<fp32, [4]> a = linear(x = x, weight = tensor<fp32, [4, 3]>([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 0, 1]]));
        tensor<fp32, [4]> s, fp32 n = while_loop(loop_vars = (y, fp32(0)))
            (tensor<fp32, [4]> s0, fp32 n0) { bool less = less(x = n0, y = fp32(3)); } -> (less)
            (tensor<fp32, [4]> s1, fp32 n1) {
                tensor<fp32, [4]> b = mul(x = a, y = fp32(0.5));
                tensor<fp32, [4]> s2 = add(x = s1, y = b);
                fp32 n2 = add(x = n1, y = fp32(1));
            } -> (s2, n2);";
    let params = "tensor<fp32, [3]> x, tensor<fp32, [4]> y";
    becomes("linear_folding", params, body, "s", &["linear", "while_loop"]);
}

#[test]
fn inverse_transposes_cancel_through_what_lies_between() {
    let body = "
        tensor<fp32, [2, 4, 3]> a = transpose(x = x, perm = tensor<int32, [3]>([0, 2, 1]));
        tensor<fp32, [2, 4, 3]> b = tanh(x = a);
        tensor<fp32, [2, 4, 3]> c = add(x = b, y = tensor<fp32, [3]>([0.5, 1.5, 2.5]));
        tensor<fp32, [2, 4, 3]> d = softmax(x = c, axis = int32(1));
        tensor<fp32, [2, 8, 3]> e = concat(values = (c, d), axis = int32(1));
        tensor<fp32, [2, 2, 3]> f = slice_by_index(x = e, begin = tensor<int32, [3]>([0, 1, 0]),
            end = tensor<int32, [3]>([2, 6, 3]), stride = tensor<int32, [3]>([1, 3, 1]));
        tensor<fp32, [2, 3, 2]> g = transpose(x = f, perm = tensor<int32, [3]>([0, 2, 1]));";
    let expected = ["tanh", "add", "softmax", "concat", "slice_by_index"];
    becomes("transpose_sinking", "tensor<fp32, [2, 3, 4]> x", body, "g", &expected);
}

#[test]
fn reductions_and_splits_let_transposes_through() {
    let body = "
        tensor<fp32, [4, 2, 3]> a = transpose(x = x, perm = tensor<int32, [3]>([2, 0, 1]));
        tensor<fp32, [4, 3]> b = reduce_sum(x = a, axes = tensor<int32, [1]>([1]));
        tensor<fp32, [3, 4]> c = transpose(x = b, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [2, 2, 3]> d, tensor<fp32, [2, 2, 3]> e = split(x = a, num_splits = int32(2), axis = int32(0));
        tensor<fp32, [2, 3, 2]> f = transpose(x = d, perm = tensor<int32, [3]>([1, 2, 0]));
        tensor<fp32, [2, 3, 2]> g = transpose(x = e, perm = tensor<int32, [3]>([1, 2, 0]));
        tensor<fp32, [4, 2, 3]> h = pad(x = d, pad = tensor<int32, [6]>([1, 1, 0, 0, 0, 0]));
        tensor<fp32, [2, 3, 4]> i = transpose(x = h, perm = tensor<int32, [3]>([1, 2, 0]));";
    let expected = ["reduce_sum", "split", "identity", "identity", "pad"];
    let expected = &expected[..];
    let after = becomes_any_order("tensor<fp32, [2, 3, 4]> x", body, "c, f, g, i");
    assert!(after.iter().all(|k| expected.contains(k)), "{after:?}");
}

/// The kinds that transpose_sinking leaves.
fn becomes_any_order(params: &str, body: &str, out: &str) -> Vec<&'static str> {
    let before = parse(params, body, out);
    let mut after = before.clone();
    run(&mut after, &[pass("transpose_sinking").unwrap()]).unwrap();
    assert_eq!(outputs(&after, Arithmetic::Fp16), outputs(&before, Arithmetic::Fp16), "{body}");
    kinds(&after)
}

#[test]
fn products_take_transposes_as_flags_and_chains_are_one() {
    let body = "
        tensor<fp32, [2, 4, 3]> a = transpose(x = x, perm = tensor<int32, [3]>([0, 2, 1]));
        tensor<fp32, [2, 4, 4]> b = matmul(x = a, y = x);";
    becomes("transpose_sinking", "tensor<fp32, [2, 3, 4]> x", body, "b", &["matmul"]);
    let body = "
        tensor<fp32, [4, 2, 3]> a = transpose(x = x, perm = tensor<int32, [3]>([2, 0, 1]));
        tensor<fp32, [2, 4, 3]> b = transpose(x = a, perm = tensor<int32, [3]>([1, 0, 2]));";
    becomes("transpose_sinking", "tensor<fp32, [2, 3, 4]> x", body, "b", &["transpose"]);
}

#[test]
fn a_long_chain_of_transposes_cancels() {
    let mut body = String::new();
    let perms = ["[1, 2, 0]", "[0, 2, 1]", "[2, 1, 0]", "[1, 0, 2]"];
    let mut last = "x".to_owned();
    for i in 0..400 {
        let perm = perms[i % 4];
        body += &format!(
            "tensor<fp32, [2, 2, 2]> t{i} = transpose(x = {last}, perm = tensor<int32, [3]>({perm}));\n\
             tensor<fp32, [2, 2, 2]> r{i} = relu(x = t{i});\n"
        );
        last = format!("r{i}");
    }
    let left = becomes_any_order("tensor<fp32, [2, 2, 2]> x", &body, &last);
    let transposes = left.iter().filter(|k| **k == "transpose").count();
    assert!(transposes <= 1 && left.len() - transposes == 400, "{transposes} are left");
}

#[test]
fn a_transpose_that_would_come_back_stays() {
    // Behind the two operations there would be two transposes in the place of one.
    let body = "
        tensor<fp32, [3, 2]> a = transpose(x = x, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [3, 2]> b = tanh(x = a);
        tensor<fp32, [3, 2]> c = relu(x = a);";
    let params = "tensor<fp32, [2, 3]> x";
    becomes("transpose_sinking", params, body, "b, c", &["transpose", "tanh", "relu"]);
    // An operand that is not transposed keeps the other one.
    let body = "
        tensor<fp32, [2, 2]> a = transpose(x = x, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [2, 2]> b = add(x = a, y = x);
        tensor<fp32, [2, 2]> c = transpose(x = b, perm = tensor<int32, [2]>([1, 0]));";
    let params = "tensor<fp32, [2, 2]> x";
    becomes("transpose_sinking", params, body, "c", &["transpose", "add", "transpose"]);
    // One use pays for moving the transpose, though the other then needs one of its own.
    let body = "
        tensor<fp32, [3, 2]> a = transpose(x = x, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [3, 2]> b = tanh(x = a);
        tensor<fp32, [2, 3]> c = transpose(x = b, perm = tensor<int32, [2]>([1, 0]));
        tensor<fp32, [3]> d = reduce_sum(x = b, axes = tensor<int32, [1]>([1]));
        tensor<fp32, [3, 2]> e = cumsum(x = b, axis = int32(0), reverse = bool(true));";
    let params = "tensor<fp32, [2, 3]> x";
    let left = becomes_any_order(params, body, "c, d, e");
    assert_eq!(left.iter().filter(|k| **k == "transpose").count(), 1, "{left:?}");
}

#[test]
fn reshapes_that_follow_each_other_are_one() {
    let body = "
        tensor<fp32, [1, 2, 6]> a = expand_dims(x = x, axes = tensor<int32, [1]>([0]));
        tensor<fp32, [3, 4]> b = reshape(x = a, shape = tensor<int32, [2]>([3, -1]));
        tensor<fp32, [3, 1, 4]> c = expand_dims(x = b, axes = tensor<int32, [1]>([1]));";
    becomes("merge_reshapes", "tensor<fp32, [2, 6]> x", body, "c", &["reshape"]);
    let body = "
        tensor<fp32, [1, 2, 6]> a = expand_dims(x = x, axes = tensor<int32, [1]>([0]));
        tensor<fp32, [2, 6]> b = squeeze(x = a, axes = tensor<int32, [1]>([0]));
        tensor<fp32, [2, 6]> c = tanh(x = b);";
    becomes("merge_reshapes", "tensor<fp32, [2, 6]> x", body, "c", &["tanh"]);
}

#[test]
fn composites_become_what_every_system_has() {
    let body = |mask: &str| {
        format!(
            "tensor<fp32, [1, 2, 3, 4]> y = scaled_dot_product_attention(query = q, key = k, value = k{mask});"
        )
    };
    let params = "tensor<fp32, [1, 2, 3, 4]> q, tensor<fp32, [1, 2, 5, 4]> k, tensor<bool, [3, 5]> b, \
                  tensor<fp32, [1, 1, 3, 5]> f";
    let whole = ["mul", "matmul", "softmax", "matmul"];
    becomes("decompose_attention", params, &body(""), "y", &whole);
    let added = ["mul", "matmul", "add", "softmax", "matmul"];
    becomes("decompose_attention", params, &body(", attn_mask = f"), "y", &added);
    let chosen = ["mul", "matmul", "select", "softmax", "matmul"];
    becomes("decompose_attention", params, &body(", attn_mask = b"), "y", &chosen);
    let body = "
        tensor<fp32, [1, 2, 3, 5]> a = einsum(values = (x, y), equation = string(\"nchw,nwhu->nchu\"));
        tensor<fp32, [1, 2, 3, 5]> b = gelu(x = a, mode = string(\"EXACT\"));
        tensor<fp32, [1, 2, 3, 5]> c = gelu(x = b, mode = string(\"TANH_APPROXIMATION\"));
        tensor<fp32, [1, 2, 3, 5]> d = gelu(x = c, mode = string(\"SIGMOID_APPROXIMATION\"));";
    let params = "tensor<fp32, [1, 2, 3, 4]> x, tensor<fp32, [1, 4, 3, 5]> y";
    let before = parse(params, body, "d");
    let mut after = before.clone();
    run(&mut after, &[pass("decompose_composites").unwrap()]).unwrap();
    let left = kinds(&after);
    assert!(!left.contains(&"einsum") && !left.contains(&"gelu"), "{left:?}");
    let (a, e) = (outputs(&after, Arithmetic::Exact), outputs(&before, Arithmetic::Exact));
    let worst = a[0].floats().unwrap().iter().zip(e[0].floats().unwrap());
    assert!(worst.map(|(a, e)| (a - e).abs() / (1.0 + e.abs())).fold(0.0, f64::max) < 1e-6);
}
