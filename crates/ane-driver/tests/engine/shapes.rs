//! Tensors of few and of many axes, parameters that a program computes, and random programs, on an emulated
//! machine against the reference interpreter.

use ane_emu::Arithmetic;
use exec::{Backend, Fallback};
use mil::Program;
use proptest::prelude::*;
use testkit::{Tolerance, check_case, random_program};

use crate::common::Setup;
use crate::plain::run;

/// A program of one function with parameters `inputs`, whose body makes `y`.
fn program(inputs: &str, body: &str) -> Program {
    let text = format!(
        "program(1.3)\n[]\n{{\n    func main<ios18>({inputs}) {{\n        {body}\n    }} -> (y);\n}}"
    );
    mil::text::parse(&text, &mil::text::NoBlobs).unwrap().program
}

/// What stays on the host of a program that gives what the interpreter gives, and the dispatches of a run.
fn left(program: &Program) -> (Vec<Fallback>, usize) {
    let setup = || Setup { functions: None, ..Setup::new("m4", Arithmetic::Exact) };
    let ran = run(program, "main", setup(), 1).unwrap();
    assert!(ran.difference < 4e-3, "{}", ran.difference);
    (setup().rig().backend.prepare(program).unwrap().fallbacks().to_vec(), ran.dispatches)
}

#[test]
fn tensors_of_any_rank() {
    for (shape, dispatches) in [
        ("[]", 1),
        ("[5]", 1),
        ("[3, 5]", 1),
        ("[1, 2, 1, 3, 5]", 1),
        ("[2, 2, 1, 3, 5]", 0),
        ("[2, 0]", 0),
    ] {
        let ty = format!("tensor<fp16, {shape}>");
        let body = format!("{ty} a = tanh(x = x); {ty} y = mul(x = a, y = x);");
        let (left, made) = left(&program(&format!("{ty} x"), &body));
        assert_eq!((made, left.is_empty()), (dispatches, dispatches > 0), "{shape}: {left:?}");
        let why = match shape {
            "[2, 0]" => "which has no elements",
            _ => "which has more than four axes",
        };
        assert!(left.iter().all(|f| f.reason.ends_with(why)), "{shape}: {left:?}");
    }
    // A reduction to no axis at all, and axes that come and go.
    let body = "tensor<fp16, []> s = reduce_sum(x = x, axes = tensor<int32, [2]>([0, 1]), keep_dims = bool(false));
        tensor<fp16, [1, 1, 1]> e = expand_dims(x = s, axes = tensor<int32, [3]>([0, 1, 2]));
        tensor<fp16, [1, 3, 5]> y = add(x = e, y = x);";
    let (left, _) = left(&program("tensor<fp16, [3, 5]> x", body));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_stays_on_the_host_says_why() {
    for (inputs, body, why) in [
        (
            "tensor<fp32, [2, 4]> x",
            "tensor<fp16, [2, 4]> h = cast(x = x, dtype = string(\"fp16\"));
             tensor<fp16, [2, 4]> g = tanh(x = h);
             tensor<fp16, [2, 4]> y = cumsum(x = g, axis = int32(1));",
            "there is no cumsum on the engine",
        ),
        (
            "tensor<int32, [2, 4]> x",
            "tensor<int32, [2, 4]> y = add(x = x, y = x);",
            "y is tensor<int32, [2, 4]>, where the engine takes floats",
        ),
        (
            "tensor<fp16, [2, 4]> x",
            "tensor<fp16, [4, 2]> y = reshape(x = x, shape = tensor<int32, [2]>([4, 2]));",
            "it only moves elements, which are on the host",
        ),
    ] {
        let (left, _) = left(&program(inputs, body));
        assert!(left.iter().any(|f| f.reason == why), "{why}: {left:?}");
    }
}

#[test]
fn computed_parameters() {
    let weight = "tensor<fp16, [2, 4]>([[1, 2, 3, 4], [5, 6, 7, 8]])";
    for (inputs, body, why) in [
        (
            "tensor<fp16, [3, 4]> x, tensor<fp16, [2]> b",
            format!(
                "tensor<fp16, [2]> c = tanh(x = b);
                 tensor<fp16, [3, 2]> y = linear(x = x, weight = {weight}, bias = c);"
            ),
            "bias is computed",
        ),
        (
            "tensor<fp16, [3, 4]> x, tensor<fp16, [4]> g",
            "tensor<fp16, [4]> c = tanh(x = g);
             tensor<fp16, [3, 4]> y = layer_norm(x = x, axes = tensor<int32, [1]>([1]), gamma = c,
                 epsilon = fp16(0x1p-8));"
                .to_owned(),
            "gamma is computed",
        ),
    ] {
        let (left, _) = left(&program(inputs, &body));
        assert!(left.iter().any(|f| f.reason.contains(why)), "{why}: {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// In plain MIL, and with room for what fp16 loses of weights and between programs.
    #[test]
    fn random_programs_run_alike(made in random_program(6)) {
        let mut case = made.case();
        let wanted = ["decompose", "dead_code"].iter().filter_map(|name| passes::pass(name));
        passes::run(&mut case.program, &wanted.collect::<Vec<_>>()).unwrap();
        case.tolerance = Tolerance { abs: 5e-2, rel: 5e-2 };
        let rig = Setup { functions: None, ..Setup::new("m4", Arithmetic::Exact) }.rig();
        if let Err(why) = check_case(&rig.backend, &case) {
            return Err(TestCaseError::fail(why));
        }
    }
}
