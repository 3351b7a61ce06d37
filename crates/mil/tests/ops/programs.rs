//! Operations that need a program around them: control flow, lists, constants in attributes.

use std::collections::BTreeMap;

use mil::eval::{self, Arithmetic, Array, Data, States, Value};
use mil::package::blob::BlobFile;
use mil::{Effect, OpKind, OpView, Program};
use tensor::Bytes;

use crate::common::{assert_close, f32s, ints};
use crate::plain::v;

/// Operations whose refusals are tested here.
pub(crate) const REFUSED: [OpKind; 10] = [
    OpKind::ConstexprAffineDequantize,
    OpKind::Cond,
    OpKind::WhileLoop,
    OpKind::MakeList,
    OpKind::ListLength,
    OpKind::ListWrite,
    OpKind::ListRead,
    OpKind::ListGather,
    OpKind::ListScatter,
    OpKind::Classify,
];

/// Parses and verifies a program of one function.
fn program(inputs: &str, body: &str, outputs: &str) -> Result<Program, mil::Error> {
    let text = format!(
        "program(1.3)\n[buildInfo = dict<string, string>({{}})]\n{{\n    func main<ios18>({inputs}) {{\n\
         {body}\n        }} -> ({outputs});\n}}"
    );
    let empty = [[0, 0, 0, 0, 2].as_slice(), &[0; 59]].concat();
    let blobs = BlobFile::new(Bytes::copy_from(&empty)).unwrap();
    let program = mil::text::parse(&text, &blobs)?.program;
    mil::verify(&program)?;
    Ok(program)
}

fn run(program: &Program, inputs: &[(&str, Array)]) -> Result<Vec<Value>, mil::Error> {
    let inputs: BTreeMap<String, Value> =
        inputs.iter().map(|(name, a)| ((*name).to_owned(), a.clone().into())).collect();
    let mut states = eval::new_states(program, "main").unwrap_or_else(|_| States::new());
    eval::run(program, "main", Arithmetic::Exact, &inputs, &mut states)
}

fn arrays(program: &Program, inputs: &[(&str, Array)]) -> Vec<Array> {
    let out = run(program, inputs).unwrap();
    out.iter().map(|v| v.array().unwrap().as_ref().clone()).collect()
}

/// What is said against a program when verified or run.
fn refusal(inputs: &str, body: &str, outputs: &str, given: &[(&str, Array)]) -> String {
    let refused = program(inputs, body, outputs).and_then(|p| run(&p, given));
    refused.unwrap_err().to_string()
}

fn truth(value: bool) -> Array {
    Array { dtype: tensor::DType::Bool, shape: vec![], data: Data::Bool(vec![value]) }
}

const COND: &str = "
    tensor<fp32, [2]> y = cond(pred = p)[name = string(\"y\")]
        () { tensor<fp32, [2]> a = add(x = x, y = fp32(0x1p+0)); } -> (a)
        () { tensor<fp32, [2]> s = sub(x = x, y = fp32(0x1p+0)); } -> (s);";

#[test]
fn branches() {
    let cond = program("tensor<fp32, [2]> x, bool p", COND, "y").unwrap();
    for (p, expected) in [(true, [2.0, 4.0]), (false, [0.0, 2.0])] {
        let out = arrays(&cond, &[("x", v(&[1.0, 3.0])), ("p", truth(p))]);
        assert_close(&out[0], &v(&expected), 0.0);
    }
    let text = refusal("tensor<fp32, [2]> x, tensor<bool, [2]> p", COND, "y", &[]);
    assert!(text.contains("cond") && text.contains("[2]"), "{text}");
    let uneven = COND.replace("(s)", "(s, s)");
    let text = refusal("tensor<fp32, [2]> x, bool p", &uneven, "y", &[]);
    assert!(text.contains("1 and 2 results"), "{text}");
}

#[test]
fn branches_of_different_sizes_have_an_unknown_one() {
    let body = "
        tensor<fp32, [?]> y = cond(pred = p)[name = string(\"y\")]
            () { tensor<fp32, [2]> a = abs(x = x); } -> (a)
            () { tensor<fp32, [4]> t = tile(reps = tensor<int32, [1]>([2]), x = x); } -> (t);";
    let cond = program("tensor<fp32, [2]> x, bool p", body, "y").unwrap();
    let out = arrays(&cond, &[("x", v(&[1.0, 3.0])), ("p", truth(false))]);
    assert_close(&out[0], &v(&[1.0, 3.0, 1.0, 3.0]), 0.0);
}

const LOOP: &str = "
    fp32 zero = const()[name = string(\"zero\"), val = fp32(0x0p+0)];
    tensor<fp32, [2]> y, fp32 n = while_loop(loop_vars = (x, zero))[name = string(\"y\")]
        (tensor<fp32, [2]> a, fp32 c) { bool more = less(x = c, y = limit); } -> (more)
        (tensor<fp32, [2]> a, fp32 c) {
            tensor<fp32, [2]> double = mul(x = a, y = fp32(0x1p+1));
            fp32 next = add(x = c, y = fp32(0x1p+0));
        } -> (double, next);";

#[test]
fn loops() {
    let looping = program("tensor<fp32, [2]> x, fp32 limit", LOOP, "y, n").unwrap();
    for (limit, factor) in [(0.0, 1.0), (3.0, 8.0)] {
        let given = [("x", v(&[1.0, 3.0])), ("limit", f32s(&[], [limit]))];
        let out = arrays(&looping, &given);
        assert_close(&out[0], &v(&[factor, 3.0 * factor]), 0.0);
        assert_close(&out[1], &f32s(&[], [limit]), 0.0);
    }
    let fewer = LOOP.replace("(double, next)", "(double)");
    let text = refusal("tensor<fp32, [2]> x, fp32 limit", &fewer, "y", &[]);
    assert!(text.contains("while_loop") && text.contains("the body makes"), "{text}");
    let untrue = LOOP.replace("(more)", "(c)");
    let text = refusal("tensor<fp32, [2]> x, fp32 limit", &untrue, "y", &[]);
    assert!(text.contains("truth value"), "{text}");
}

/// What stands in a block has its effect and its cost outside.
#[test]
fn blocks_count() {
    let body = LOOP.replace(
        "fp32 next",
        "tensor<fp16, [2]> h = cast(dtype = string(\"fp16\"), x = double);
         write_state(data = h, input = s);
         fp32 next",
    );
    let inputs = "tensor<fp32, [2]> x, fp32 limit, state<tensor<fp16, [2]>> s";
    for (body, inputs, effect) in [
        (LOOP, "tensor<fp32, [2]> x, fp32 limit", Effect::Pure),
        (body.as_str(), inputs, Effect::WritesState),
    ] {
        let program = program(inputs, body, "y").unwrap();
        let main = &program.functions["main"];
        let op = main.ops.values().find(|op| op.kind == OpKind::WhileLoop).unwrap();
        let view = OpView::new(main, &program.weights, op);
        let def = op.kind.def();
        assert_eq!(def.effect(&view), effect);
        let flops = def.flops(&view, &[]);
        assert!(flops >= 4.0, "{flops}");
    }
}

#[test]
fn lists() {
    let body = "
        list<tensor<fp32, [2]>, 1> none = make_list(dtype = string(\"fp32\"), elem_shape = (int32(2)));
        list<tensor<fp32, [2]>, 1> one = list_write(index = int32(2), ls = none, value = x);
        tensor<fp32, [2, 2]> pair = stack(axis = int32(0), values = (x, x));
        list<tensor<fp32, [2]>, 1> all = list_scatter(
            indices = tensor<int32, [2]>([0, 3]), ls = one, value = pair);
        int32 n = list_length(ls = all);
        tensor<fp32, [2]> second = list_read(index = int32(1), ls = all);
        tensor<fp32, [2, 2]> some = list_gather(indices = tensor<int32, [2]>([3, 1]), ls = all);";
    let program = program("tensor<fp32, [2]> x", body, "n, second, some").unwrap();
    let out = arrays(&program, &[("x", v(&[5.0, 6.0]))]);
    assert_close(&out[0], &ints(&[], [4]), 0.0);
    assert_close(&out[1], &v(&[0.0, 0.0]), 0.0);
    assert_close(&out[2], &f32s(&[2, 2], [5.0, 6.0, 0.0, 0.0]), 0.0);
}

#[test]
fn lists_are_refused() {
    let list = "list<tensor<fp32, [2]>, 1> l = make_list(elem_shape = (int32(2)));\n";
    let x = [("x", v(&[5.0, 6.0]))];
    for (op, mention) in [
        ("list<tensor<fp32, [2]>, 1> y = make_list(elem_shape = (int32(-2)));", "-2"),
        ("int32 y = list_length(ls = x);", "not a list"),
        (
            "list<tensor<fp32, [2]>, 1> y = list_write(index = int32(0), ls = l, value = fp32(0x0p+0));",
            "value",
        ),
        ("list<tensor<fp32, [2]>, 1> y = list_write(index = int32(-1), ls = l, value = x);", "-1"),
        ("tensor<fp32, [2]> y = list_read(index = int32(1), ls = l);", "index 1"),
        (
            "tensor<fp32, [1, 2]> y = list_gather(indices = tensor<int32, [1]>([1]), ls = l);",
            "index 1",
        ),
        (
            "list<tensor<fp32, [2]>, 1> y = list_scatter(indices = tensor<int32, [1]>([0]), ls = l, value = x);",
            "[1, 2]",
        ),
    ] {
        let text = refusal("tensor<fp32, [2]> x", &format!("{list}{op}"), "y", &x);
        assert!(text.contains(mention), "{text:?} does not mention {mention:?}");
    }
}

#[test]
fn classes() {
    let body = "
        string best, dict<string, fp64> all = classify(
            classes = list<string, 2>([\"cat\", \"dog\"]), probabilities = p);";
    let program = program("tensor<fp32, [1, 2]> p", body, "best, all").unwrap();
    let out = run(&program, &[("p", f32s(&[1, 2], [0.25, 0.75]))]).unwrap();
    assert_eq!(out[0].array().unwrap().data, Data::Str(vec!["dog".into()]));
    let Value::Dict(entries) = &out[1] else { panic!("{:?}", out[1]) };
    assert_eq!(entries[0].1.array().unwrap().data, Data::Float(vec![0.25]));
    let text = refusal("tensor<fp32, [3]> p", body, "best", &[]);
    assert!(text.contains("classify") && text.contains("2 classes"), "{text}");
}

/// The form of iOS 16, with operands in attributes and packed bits.
#[test]
fn constants_in_attributes() {
    let body = "
        tensor<fp32, [2, 2]> a = constexpr_affine_dequantize()[axis = int32(0),
            quantized_data = tensor<uint8, [2, 2]>([[1, 2], [3, 4]]),
            scale = tensor<fp32, [2]>([0x1p-1, 0x1p+1]), zero_point = uint8(1)];
        tensor<fp32, [3]> l = constexpr_lut_to_dense()[indices = tensor<uint8, [1]>([36]),
            lut = tensor<fp32, [4]>([0x1p+0, 0x1p+1, 0x1p+2, 0x1p+3]), shape = tensor<uint32, [1]>([3])];
        tensor<fp32, [3]> s = constexpr_sparse_to_dense()[mask = tensor<uint8, [1]>([5]),
            nonzero_data = tensor<fp32, [2]>([0x1p+0, 0x1p+1]), shape = tensor<uint32, [1]>([3])];
        tensor<fp32, [1]> c = constexpr_cast()[output_dtype = string(\"fp32\"),
            source_val = tensor<fp16, [1]>([0x1p+0])];";
    let expected =
        [f32s(&[2, 2], [0.0, 0.5, 4.0, 6.0]), v(&[1.0, 2.0, 4.0]), v(&[1.0, 0.0, 2.0]), v(&[1.0])];
    let whole = program("", body, "a, l, s, c").unwrap();
    for (actual, expected) in arrays(&whole, &[]).iter().zip(&expected) {
        assert_close(actual, expected, 0.0);
    }
    for (old, new, mention) in [
        (
            "scale = tensor<fp32, [2]>([0x1p-1, 0x1p+1])",
            "scale = tensor<fp32, [1]>([0x1p-1])",
            "scale",
        ),
        ("axis = int32(0),", "", "\"axis\" is missing"),
        ("uint8, [1]>([36])", "uint8, [2]>([36, 0])", "2 bytes do not hold 3"),
        ("[5]", "[7]", "2 elements for 3 places"),
    ] {
        let broken = body.replace(old, new);
        let text = refusal("", &broken, "a, l, s, c", &[]);
        assert!(text.contains(mention), "{text:?} does not mention {mention:?}");
    }
}

#[test]
fn missing_operations_are_named() {
    let body = "fp32 y = conv_quantized(x = x); fp32 z = conv_quantised(x = x);";
    let text = refusal("fp32 x", body, "y", &[]);
    let expected = "unsupported: operations that Rigel does not have: conv_quantised, \
                    conv_quantized (of coremltools, not supported yet)";
    assert!(text.ends_with(expected), "{text}");
}
