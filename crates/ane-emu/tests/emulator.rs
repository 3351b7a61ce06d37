//! The emulated engine's life of a program, its limits, its disputed switches, its arithmetic.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::time::Duration;

use ane_model::Chip;
use ane_model::chip::{Acceptance, BindingOrder, Reload};
use exec::port::{MODEL_FILE, Port, PortError, PortResult, Qos, Usage, WeightFile};
use half::f16;
use mil::Program;
use mil::text::{Dialect, NoBlobs, parse, print_with_weights};
use rigel_ane_emu::{Arithmetic, Emulator, Machine, Model, Surface};
use tempfile::TempDir;
use tensor::Tensor;

const QOS: Qos = Qos(21);

/// A process on a machine whose chip `change` has changed.
fn process(
    chip: &str,
    arithmetic: Arithmetic,
    change: impl FnOnce(&mut Machine),
) -> (Emulator, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let chip = Chip::find(chip).unwrap().clone();
    let os = "macos15".parse().unwrap();
    let mut machine = Machine::new(chip, os, arithmetic, directory.path().to_owned());
    change(&mut machine);
    (Emulator::new(machine), directory)
}

fn m4() -> (Emulator, TempDir) {
    process("m4", Arithmetic::Fp16, |_| {})
}

/// A function of `[1, 768, 1, 32]` tensors (49,152 bytes) with the given lines.
fn text(inputs: &[&str], lines: &str, outputs: &str) -> String {
    let inputs: Vec<String> =
        inputs.iter().map(|i| format!("tensor<fp16, [1, 768, 1, 32]> {i}")).collect();
    format!(
        "program(1.3)\n[buildInfo = dict<string, string>({{}})]\n{{\n    func main<ios18>({}) {{\n{lines}\n        }} -> ({outputs});\n}}",
        inputs.join(", ")
    )
}

const T: &str = "tensor<fp16, [1, 768, 1, 32]>";

/// Writes the directory, compiles and loads.
fn loaded(emulator: &Emulator, text: &str, weights: &[(&str, Vec<u8>)]) -> PortResult<Model> {
    let files: Vec<WeightFile<'_>> =
        weights.iter().map(|(key, data)| WeightFile { key, data }).collect();
    let model = emulator.model(text.as_bytes(), &files)?;
    let directory = emulator.directory(&model);
    fs::create_dir_all(directory.join("weights")).unwrap();
    fs::write(directory.join(MODEL_FILE), text).unwrap();
    for (key, data) in weights {
        fs::write(directory.join(key.strip_prefix("@model_path/").unwrap()), data).unwrap();
    }
    emulator.compile(&model, QOS)?;
    emulator.load(&model, QOS)?;
    Ok(model)
}

const BYTES: usize = 768 * 32 * 2;

fn filled(emulator: &Emulator, value: f64) -> Surface {
    let surface = emulator.surface(BYTES).unwrap();
    emulator
        .access(&surface, &mut |bytes| {
            bytes
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|b| *b = f16::from_f64(value).to_le_bytes());
        })
        .unwrap();
    surface
}

fn first(emulator: &Emulator, surface: &Surface) -> f64 {
    let mut value = 0.0;
    emulator
        .access(surface, &mut |bytes| value = f16::from_le_bytes([bytes[0], bytes[1]]).to_f64())
        .unwrap();
    value
}

/// Evaluates with inputs filled with `values`; the first element of each output.
fn evaluate(
    emulator: &Emulator,
    model: &Model,
    values: &[f64],
    outputs: usize,
) -> PortResult<Vec<f64>> {
    let inputs: Vec<Surface> = values.iter().map(|&v| filled(emulator, v)).collect();
    let outputs: Vec<Surface> = (0..outputs).map(|_| emulator.surface(BYTES).unwrap()).collect();
    let request = emulator
        .request(&inputs.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>())?;
    emulator.evaluate(model, &request, QOS)?;
    Ok(outputs.iter().map(|s| first(emulator, s)).collect())
}

fn reason(error: &PortError) -> &str {
    error.reason.as_deref().unwrap_or_default()
}

/// A convolution of 768 channels by a diagonal of `value`s, and its weight file.
fn diagonal(value: f64) -> (String, Vec<u8>) {
    let lines = format!(
        "            string pt = const()[name = string(\"pt\"), val = string(\"valid\")];
            tensor<int32, [2]> st = const()[name = string(\"st\"), val = tensor<int32, [2]>([1, 1])];
            tensor<int32, [4]> pd = const()[name = string(\"pd\"), val = tensor<int32, [4]>([0, 0, 0, 0])];
            tensor<int32, [2]> dl = const()[name = string(\"dl\"), val = tensor<int32, [2]>([1, 1])];
            int32 gr = const()[name = string(\"gr\"), val = int32(1)];
            tensor<fp16, [768, 768, 1, 1]> w = const()[name = string(\"w\"), val = tensor<fp16, [768, 768, 1, 1]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];
            {T} y = conv(dilations = dl, groups = gr, pad = pd, pad_type = pt, strides = st, weight = w, x = x)[name = string(\"y\")];"
    );
    let mut weights = vec![f16::ZERO; 768 * 768];
    weights.iter_mut().step_by(769).for_each(|w| *w = f16::from_f64(value));
    let mut program = Program::default();
    let tensor = Tensor::from_slice(&[768, 768, 1, 1], &weights).unwrap();
    program.weights.insert("w", tensor);
    (text(&["x"], &lines, "y"), blob(&program))
}

/// The weight file of all weights of a program.
fn blob(program: &Program) -> Vec<u8> {
    let ids = program.weights.iter().map(|(id, _)| id).collect::<Vec<_>>();
    let layout = mil::package::blob::Layout::new(&program.weights, ids).unwrap();
    let mut file = Vec::new();
    layout.write(&program.weights, &mut file).unwrap();
    file
}

const KEY: &str = "@model_path/weights/weight.bin";

#[test]
fn a_program_lives_and_leaves_nothing() {
    let (emulator, _directory) = m4();
    let (text, file) = diagonal(3.0);
    let model = loaded(&emulator, &text, &[(KEY, file)]).unwrap();
    assert_eq!(evaluate(&emulator, &model, &[2.0], 1).unwrap(), [6.0]);
    assert_eq!(
        emulator.usage(),
        Usage { compilations: 1, models: 1, loaded: 1, ..Usage::default() }
    );
    emulator.unload(&model, QOS).unwrap();
    let again = evaluate(&emulator, &model, &[2.0], 1).unwrap_err();
    assert!(reason(&again).contains("unloaded"), "{again}");
    drop(model);
    assert_eq!(emulator.usage(), Usage { compilations: 1, ..Usage::default() });
    let time = emulator.virtual_time();
    assert!(time.evaluating > Some(Duration::ZERO) && time.preparing > Some(Duration::ZERO));
}

#[test]
fn a_time_whose_rate_is_unknown_is_unknown() {
    let changed = |change: fn(&mut Chip)| {
        let (emulator, _directory) =
            process("m4", Arithmetic::Fp16, |machine| change(&mut machine.chip));
        let (text, file) = diagonal(3.0);
        let model = loaded(&emulator, &text, &[(KEY, file)]).unwrap();
        evaluate(&emulator, &model, &[2.0], 1).unwrap();
        let time = emulator.virtual_time();
        (time.evaluating.is_some(), time.preparing.is_some())
    };
    assert_eq!(changed(|_| {}), (true, true));
    assert_eq!(changed(|chip| chip.rates.fp16_tflops = None), (false, true));
    assert_eq!(changed(|chip| chip.rates.weight_gbps = None), (false, true));
    assert_eq!(changed(|chip| chip.rates.dispatch_ms = None), (false, true));
    assert_eq!(changed(|chip| chip.rates.compile_ms = None), (true, false));
    assert_eq!(changed(|chip| chip.rates.load_ms = None), (true, false));
}

#[test]
fn surfaces_are_bound_by_name_size_or_signature() {
    let lines = format!(
        "            {T} b_out = sub(x = z, y = a)[name = string(\"b_out\")];
            {T} a_out = add(x = z, y = a)[name = string(\"a_out\")];"
    );
    let text = text(&["z", "a"], &lines, "b_out, a_out");
    let run = |binding: BindingOrder| {
        let (emulator, _directory) = process("m4", Arithmetic::Fp16, |m| {
            let switch = m.chip.switches.binding.take();
            m.chip.switches.binding = switch.map(|s| s.with(binding));
        });
        let model = loaded(&emulator, &text, &[]).unwrap();
        evaluate(&emulator, &model, &[1.0, 10.0], 2).unwrap()
    };
    // By name: a = 1, z = 10; outputs a_out, b_out.
    assert_eq!(run(BindingOrder::Name), [11.0, 9.0]);
    // As written: z = 1, a = 10; outputs b_out, a_out. Equal sizes keep that order.
    assert_eq!(run(BindingOrder::Signature), [-9.0, 11.0]);
    assert_eq!(run(BindingOrder::Size), [-9.0, 11.0]);
}

#[test]
fn surfaces_must_be_equal_and_large_enough() {
    let (emulator, _directory) = m4();
    let lines = format!("            {T} y = add(x = a, y = b)[name = string(\"y\")];");
    let model = loaded(&emulator, &text(&["a", "b"], &lines, "y"), &[]).unwrap();
    let (small, whole, large) = (
        emulator.surface(BYTES / 2).unwrap(),
        emulator.surface(BYTES).unwrap(),
        emulator.surface(BYTES * 2).unwrap(),
    );
    let status = |inputs: &[&Surface], outputs: &[&Surface]| {
        let request = emulator.request(inputs, outputs).unwrap();
        emulator.evaluate(&model, &request, QOS).map_err(|e| e.status)
    };
    assert_eq!(status(&[&whole, &whole], &[&whole]), Ok(()));
    assert_eq!(status(&[&large, &large], &[&whole]), Ok(()));
    assert_eq!(status(&[&whole, &large], &[&whole]), Err(Some(0x1d)));
    assert_eq!(status(&[&small, &small], &[&whole]), Err(Some(0x1d)));
    assert_eq!(status(&[&whole], &[&whole]), Err(Some(0x1d)));
}

#[test]
fn the_120th_compilation_and_a_full_queue_fail() {
    let (emulator, _directory) = m4();
    let lines = format!("            {T} y = add(x = a, y = a)[name = string(\"y\")];");
    let model = loaded(&emulator, &text(&["a"], &lines, "y"), &[]).unwrap();
    emulator.unload(&model, QOS).unwrap();
    for _ in 1..119 {
        emulator.compile(&model, QOS).unwrap();
    }
    let error = emulator.compile(&model, QOS).unwrap_err();
    assert!(reason(&error).contains("ane-compile-budget"), "{error}");

    let (emulator, _directory) = process("m4", Arithmetic::Fp16, |m| m.queued = 127);
    let model = loaded(&emulator, &text(&["a"], &lines, "y"), &[]).unwrap();
    let error = evaluate(&emulator, &model, &[1.0], 1).unwrap_err();
    assert!(reason(&error).contains("ane-queue-depth"), "{error}");
}

#[test]
fn too_many_programs_are_not_loaded() {
    let (emulator, _directory) = process("m4", Arithmetic::Fp16, |m| {
        let fact = m.chip.runtime.loaded_programs.take();
        m.chip.runtime.loaded_programs = fact.map(|f| f.with(2));
    });
    let lines = format!("            {T} y = add(x = a, y = a)[name = string(\"y\")];");
    let text = text(&["a"], &lines, "y");
    let held: Vec<Model> = (0..2).map(|_| loaded(&emulator, &text, &[]).unwrap()).collect();
    let error = loaded(&emulator, &text, &[]).map(|_| ()).unwrap_err();
    assert_eq!(error.status, Some(0x50004), "{error}");
    assert_eq!(emulator.usage().loaded, 2);
    emulator.unload(&held[0], QOS).unwrap();
    loaded(&emulator, &text, &[]).unwrap();
}

#[test]
fn files_are_what_the_compiler_reads() {
    let (emulator, _directory) = m4();
    let (text, file) = diagonal(3.0);
    let files = [WeightFile { key: KEY, data: &file }];
    let model = emulator.model(text.as_bytes(), &files).unwrap();
    let error = emulator.compile(&model, QOS).unwrap_err();
    assert!(error.message.contains("ANECCompile() FAILED"), "{error}");
    let directory = emulator.directory(&model);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(MODEL_FILE), &text).unwrap();
    let error = emulator.compile(&model, QOS).unwrap_err();
    assert!(reason(&error).contains("weight.bin"), "{error}");
    let error = emulator.load(&model, QOS).unwrap_err();
    assert!(reason(&error).contains("not compiled"), "{error}");
    assert_eq!(emulator.usage().loaded, 0);
}

#[test]
fn overwritten_weights_count_only_where_delta_reload_works() {
    for (reload, wanted) in
        [(Reload::Applied, Some(10.0)), (Reload::Ignored, Some(6.0)), (Reload::Refused, None)]
    {
        let (emulator, _directory) = process("m4", Arithmetic::Fp16, |m| {
            let switch = m.chip.switches.delta_reload.take();
            m.chip.switches.delta_reload = switch.map(|s| s.with(reload));
        });
        let (text, file) = diagonal(3.0);
        let model = loaded(&emulator, &text, &[(KEY, file)]).unwrap();
        fs::write(emulator.directory(&model).join("weights/weight.bin"), diagonal(5.0).1).unwrap();
        assert_eq!(evaluate(&emulator, &model, &[2.0], 1).unwrap(), [6.0]);
        emulator.unload(&model, QOS).unwrap();
        let Some(wanted) = wanted else {
            let error = emulator.load(&model, QOS).unwrap_err();
            assert!(reason(&error).contains("not the one that was compiled"), "{error}");
            // With its own weights it is loaded as before.
            let weights = emulator.directory(&model).join("weights/weight.bin");
            fs::write(weights, diagonal(3.0).1).unwrap();
            emulator.load(&model, QOS).unwrap();
            assert_eq!(evaluate(&emulator, &model, &[2.0], 1).unwrap(), [6.0]);
            continue;
        };
        emulator.load(&model, QOS).unwrap();
        assert_eq!(evaluate(&emulator, &model, &[2.0], 1).unwrap(), [wanted]);
    }
}

#[test]
fn concat_compiles_where_the_switch_says_so() {
    let lines = "            int32 ax = const()[name = string(\"ax\"), val = int32(1)];
            bool il = const()[name = string(\"il\"), val = bool(false)];
            tensor<fp16, [1, 1536, 1, 32]> y = concat(axis = ax, interleave = il, values = (a, a))[name = string(\"y\")];";
    let text = text(&["a"], lines, "y");
    for (acceptance, compiles) in [(Acceptance::Accepted, true), (Acceptance::Refused, false)] {
        let (emulator, _directory) = process("m4", Arithmetic::Fp16, |m| {
            let switch = m.chip.switches.concat.take();
            m.chip.switches.concat = switch.map(|s| s.with(acceptance));
        });
        assert_eq!(loaded(&emulator, &text, &[]).is_ok(), compiles);
    }
}

#[test]
fn the_engines_arithmetic_saturates_and_reads_tables() {
    let (text, file) = diagonal(200.0);
    for (arithmetic, wanted) in [(Arithmetic::Fp16, 40000.0), (Arithmetic::Engine, f64::INFINITY)] {
        let (emulator, _directory) = process("m4", arithmetic, |_| {});
        let model = loaded(&emulator, &text, &[(KEY, file.clone())]).unwrap();
        assert_eq!(evaluate(&emulator, &model, &[200.0], 1).unwrap(), [wanted]);
    }
    let lines = format!("            {T} y = sigmoid(x = a)[name = string(\"y\")];");
    let text = self::text(&["a"], &lines, "y");
    let at = |arithmetic, x: f64| {
        let (emulator, _directory) = process("m4", arithmetic, |_| {});
        let model = loaded(&emulator, &text, &[]).unwrap();
        evaluate(&emulator, &model, &[x], 1).unwrap()[0]
    };
    let (exact, engine) = (at(Arithmetic::Fp16, 1.3), at(Arithmetic::Engine, 1.3));
    assert!(exact != engine && (exact - engine).abs() <= 0.0034 + 0.0005, "{exact} {engine}");
    assert_eq!(at(Arithmetic::Engine, -60.0), 0.0);
}

/// Every program that the text form can hold compiles or is refused, never worse: planted errors.
#[test]
fn wrong_texts_are_invalid_programs() {
    let (emulator, _directory) = m4();
    let good =
        text(&["a"], &format!("            {T} y = add(x = a, y = a)[name = string(\"y\")];"), "y");
    for bad in [good.replace("add", "ad"), good.replace("y = a)", "y = b)"), good[..60].to_owned()]
    {
        let error = loaded(&emulator, &bad, &[]).map(|_| ()).unwrap_err();
        assert_eq!(error.message, "InvalidMILProgram", "{error}");
    }
    // The parser and printer agree on what these tests write.
    let program = parse(&good, &NoBlobs).unwrap().program;
    let mut none = Vec::new();
    assert_eq!(print_with_weights(&program, Dialect::V1_3, &mut none).unwrap(), good);
}

/// A width that is no multiple of 16 comes back as wrong data, as sources say; none of the driver's
/// programs has one.
#[test]
fn odd_widths_give_wrong_data() {
    let (emulator, _directory) = m4();
    for (width, right) in [(32, true), (24, false)] {
        let text = text(&["a"], &format!("{T} y = add(x = a, y = a)[name = string(\"y\")];"), "y");
        let text = text.replace("[1, 768, 1, 32]", &format!("[1, 768, 1, {width}]"));
        let model = loaded(&emulator, &text, &[]).unwrap();
        let (x, y) = (emulator.surface(BYTES).unwrap(), emulator.surface(BYTES).unwrap());
        let number = |i: usize| f16::from_f64((i % 512) as f64);
        emulator
            .access(&x, &mut |bytes| {
                let halves = bytes.as_chunks_mut::<2>().0.iter_mut().enumerate();
                halves.for_each(|(i, half)| *half = number(i).to_le_bytes());
            })
            .unwrap();
        let request = emulator.request(&[&x], &[&y]).unwrap();
        emulator.evaluate(&model, &request, QOS).unwrap();
        let mut all = true;
        emulator
            .access(&y, &mut |bytes| {
                let halves = bytes.as_chunks::<2>().0.iter().take(768 * width).enumerate();
                for (i, half) in halves {
                    all &= f16::from_le_bytes(*half).to_f32() == 2.0 * number(i).to_f32();
                }
            })
            .unwrap();
        assert_eq!(all, right, "{width}");
    }
}
