//! Adapters that PEFT saved, on the engine: its logits, without compiling for another adapter.

use std::collections::BTreeMap;
use std::fs;

use ane_emu::Arithmetic;
use exec::Tensors;
use import::PeftAdapter;
use llm::Model;
use llm::adapter::{Adapters, Factors};
use passes::ane::AdapterSlot;
use passes::low_rank::{input_names, low_rank_inputs};
use serde_json::{Value, json};
use tensor::Tensor;
use testkit::seeded;

use crate::common::{CONTEXT, Setup, largest_difference, prepared};
use crate::families::golden;

/// Of the values of the adapters' factors, see `tests/golden/adapters.py`.
const SCALE: f32 = 0.2;

struct Case {
    base: String,
    adapter: PeftAdapter,
    ids: Vec<u32>,
    /// After the last id.
    logits: Vec<f32>,
}

/// A golden adapter as PEFT saves it, its configuration changed.
fn case(name: &str, change: impl Fn(&mut Value)) -> Case {
    let from = testkit::workspace_dir().join("tests/golden/adapters").join(name);
    let read = |file: &str| -> Value {
        serde_json::from_slice(&fs::read(from.join(file)).unwrap()).unwrap()
    };
    let (expected, mut config) = (read("expected.json"), read("adapter_config.json"));
    change(&mut config);
    let seed = expected["seed"].as_u64().unwrap();
    let tensor = |entry: &Value| {
        let name = entry[0].as_str().unwrap().to_owned();
        let size = |axis: usize| entry[1][axis].as_u64().unwrap() as usize;
        let shape = [size(0), size(1)];
        let values = seeded::tensor(seed, &name, shape[0] * shape[1], SCALE);
        (name, Tensor::from_slice(&shape, &values).unwrap())
    };
    let tensors: Vec<(String, Tensor)> =
        expected["tensors"].as_array().unwrap().iter().map(tensor).collect();
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let dir = tempfile::tempdir().unwrap();
    import::safetensors::write(dir.path().join("adapter_model.safetensors"), &[], &named).unwrap();
    fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    let numbers = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let ids: Vec<f64> = numbers(&expected["ids"]);
    let last: Vec<f64> = numbers(expected["logits"].as_array().unwrap().last().unwrap());
    Case {
        base: expected["base"].as_str().unwrap().to_owned(),
        adapter: PeftAdapter::open(dir.path()).unwrap(),
        ids: ids.into_iter().map(|id| id as u32).collect(),
        logits: last.into_iter().map(|x| x as f32).collect(),
    }
}

fn adapters(model: &Model, cases: &[(&str, &Case)]) -> Adapters {
    let fitted =
        cases.iter().map(|(name, c)| ((*name).to_owned(), model.adapter(&c.adapter).unwrap()));
    Adapters::new(fitted.collect()).unwrap()
}

fn slots(adapters: &Adapters) -> Vec<AdapterSlot> {
    let slot =
        |(weight, rank): &(String, usize)| AdapterSlot { weight: weight.clone(), rank: *rank };
    adapters.slots().iter().map(slot).collect()
}

fn by_weight(adapters: &Adapters, name: Option<&str>) -> BTreeMap<String, (Tensor, Tensor)> {
    let factors = adapters.slots().iter().zip(adapters.factors(name).unwrap());
    factors.map(|((weight, _), f)| (weight.clone(), (f.a.clone(), f.b.clone()))).collect()
}

fn as_inputs(factors: &[Factors]) -> Tensors {
    let both = factors.iter().enumerate().flat_map(|(slot, f)| {
        let [a, b] = input_names(slot);
        [(a, f.a.clone()), (b, f.b.clone())]
    });
    both.collect()
}

/// The largest difference from PEFT's logits, as a part of the largest of those.
fn error(found: &[f32], wanted: &[f32]) -> f32 {
    largest_difference(found, wanted) / wanted.iter().fold(0.0f32, |m, x| m.max(x.abs()))
}

const TOLERANCE: f32 = 1.5e-2;

#[test]
fn logits_are_those_of_peft() {
    for name in ["gemma3", "gpt2", "llama", "llama_head", "qwen2", "qwen3"] {
        let case = case(name, |_| {});
        let (model, _) = golden(&case.base);
        let context = CONTEXT.min(model.config().max_context);
        let (program, vocab) = (model.specialize(context).unwrap(), model.config().vocab);
        let set = adapters(&model, &[("it", &case)]);
        for arithmetic in [Arithmetic::Exact, Arithmetic::Fp16] {
            let mut setup = Setup::new("m4", arithmetic);
            setup.variable.adapters = slots(&set);
            let rig = setup.rig();
            rig.backend.use_adapter(Some(by_weight(&set, Some("it")))).unwrap();
            let mut session = prepared(&rig.backend, &program, vocab);
            let found = error(&session.logits_after(&case.ids).unwrap(), &case.logits);
            println!("{name} {arithmetic:?}: {found:.2e} of the largest logit");
            assert!(found < TOLERANCE, "{name} {arithmetic:?}: {found}");
        }
    }
}

/// Two adapters of different ranks and layers and none, in turn, each on the engine as it was and with
/// decoding on the host; a forgotten alpha shows.
#[test]
fn adapters_take_turns_without_compiling() {
    let (first, second) = (case("llama", |_| {}), case("llama_head", |_| {}));
    let wrong = case("llama", |config| config["alpha_pattern"] = json!({}));
    let (model, _) = golden("llama");
    let context = CONTEXT.min(model.config().max_context);
    let vocab = model.config().vocab;
    let set = adapters(&model, &[("first", &first), ("second", &second), ("wrong", &wrong)]);
    for on_engine in [&["prefill", "decode"][..], &["prefill"]] {
        let mut program = model.specialize(context).unwrap();
        low_rank_inputs(&mut program, &slots(&set), 1.0, &|f| !on_engine.contains(&f)).unwrap();
        let mut setup = Setup::new("m4", Arithmetic::Fp16);
        setup.functions = Some(on_engine.iter().map(|&f| f.to_owned()).collect());
        setup.variable.adapters = slots(&set);
        let rig = setup.rig();
        let mut session = prepared(&rig.backend, &program, vocab);
        let mut compiled = 0;
        let turns = [
            ("first", &first.logits, true),
            ("second", &second.logits, true),
            ("wrong", &first.logits, false),
            ("first", &first.logits, true),
        ];
        for (turn, (name, wanted, right)) in turns.into_iter().enumerate() {
            rig.backend.use_adapter(Some(by_weight(&set, Some(name)))).unwrap();
            let inputs = as_inputs(set.factors(Some(name)).unwrap());
            let host =
                ["prefill", "decode", "score"].into_iter().filter(|f| !on_engine.contains(f));
            session.set_further_inputs(host.map(|f| (f.to_owned(), inputs.clone())).collect());
            // The last token by decoding.
            let (before, _) = first.ids.split_at(first.ids.len() - 1);
            session.logits_after(before).unwrap();
            let found = error(&session.logits_after(&first.ids).unwrap(), wanted);
            assert_eq!(found < TOLERANCE, right, "{name}: {found}");
            if turn == 0 {
                compiled = rig.backend.stats().compilations;
            }
        }
        assert!(compiled > 0 && rig.backend.stats().compilations == compiled);
    }
}

#[test]
fn a_host_without_inputs_for_adapters_is_refused() {
    let case = case("llama", |_| {});
    let (model, _) = golden("llama");
    let program = model.specialize(64).unwrap();
    let set = adapters(&model, &[("it", &case)]);
    let mut setup = Setup::new("m4", Arithmetic::Fp16);
    setup.functions = Some(vec!["prefill".to_owned()]);
    setup.variable.adapters = slots(&set);
    let rig = setup.rig();
    rig.backend.use_adapter(Some(by_weight(&set, Some("it")))).unwrap();
    let mut session = prepared(&rig.backend, &program, model.config().vocab);
    let e = session.logits_after(&[5]).unwrap_err().to_string();
    assert!(e.contains("function decode runs on the host, which an adapter does not reach"), "{e}");
}
