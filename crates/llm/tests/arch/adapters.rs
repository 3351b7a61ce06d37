//! Adapters against PEFT's own results, on each family and across formats, and adapters that do not fit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use exec::{Backend, Tensors};
use import::{PeftAdapter, peft};
use mil::eval::Arithmetic;
use passes::ane::AdapterSlot;
use passes::low_rank::{input_names, low_rank_inputs};
use rigel_llm::adapter::{Adapter, Adapters, Factors};
use rigel_llm::generate::Session;
use rigel_llm::{LoadOptions, Model};
use serde::Deserialize;
use serde_json::{Value, json};
use tensor::{DType, Tensor};
use testkit::{InterpreterBackend, Tolerance, compare, seeded};

use crate::common::{Golden, Run, golden_dir, write_hf};
use crate::gguf::write_golden;

const GOLDENS: &[&str] = &["gemma3", "gpt2", "llama", "llama_head", "qwen2", "qwen3"];

/// `expected.json` of an adapter, made by `tests/golden/adapters.py`.
#[derive(Deserialize)]
struct Expected {
    base: String,
    seed: u64,
    tensors: Vec<(String, Vec<usize>)>,
    ids: Vec<u32>,
    /// After each of the last ids.
    logits: Vec<Vec<f32>>,
}

/// Values of PEFT's tensors, in the units of the seeded ones.
const SCALE: f32 = 0.2;

impl Expected {
    fn open(name: &str) -> Self {
        let path = testkit::workspace_dir().join("tests/golden/adapters").join(name);
        serde_json::from_slice(&fs::read(path.join("expected.json")).unwrap()).unwrap()
    }

    /// The adapter as PEFT saves it, its configuration and its tensors changed.
    fn adapter(
        &self,
        name: &str,
        change: impl Fn(&mut Value, &mut BTreeMap<String, Tensor>),
    ) -> PeftAdapter {
        let from = testkit::workspace_dir().join("tests/golden/adapters").join(name);
        let config = fs::read(from.join("adapter_config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        let tensor = |(name, shape): &(String, Vec<usize>)| {
            let values = seeded::tensor(self.seed, name, shape.iter().product(), SCALE);
            (name.clone(), Tensor::from_slice(shape, &values).unwrap())
        };
        let mut tensors: BTreeMap<String, Tensor> = self.tensors.iter().map(tensor).collect();
        change(&mut config, &mut tensors);
        let dir = tempfile::tempdir().unwrap();
        let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        import::safetensors::write(dir.path().join("adapter_model.safetensors"), &[], &named)
            .unwrap();
        fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
        PeftAdapter::open(dir.path()).unwrap()
    }

    fn logits(&self) -> Tensor {
        let shape = [1, self.logits.len(), self.logits[0].len()];
        Tensor::from_slice(&shape, &self.logits.concat()).unwrap()
    }
}

fn exact(path: &Path) -> Model {
    Model::load_with(path, LoadOptions { cache_dtype: DType::F32 }).unwrap()
}

/// A golden model in Hugging Face's form.
fn base(name: &str) -> Model {
    let golden = Golden::open(name);
    let config = fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_hf(dir.path(), &config, &golden.weights());
    exact(dir.path())
}

/// `model` with slots for `adapters`.
fn session(model: &Model, adapters: &Adapters) -> Session {
    let context = model.config().max_context;
    let mut program = model.specialize(context).unwrap();
    let slots: Vec<AdapterSlot> = adapters
        .slots()
        .iter()
        .map(|(weight, rank)| AdapterSlot { weight: weight.clone(), rank: *rank })
        .collect();
    low_rank_inputs(&mut program, &slots, 1.0, &|_| true).unwrap();
    mil::verify(&program).unwrap();
    let runnable = InterpreterBackend::new(Arithmetic::F32).prepare(&program).unwrap();
    Session::new(runnable, context, model.config().vocab).unwrap()
}

fn inputs(factors: &[Factors]) -> BTreeMap<String, Tensors> {
    let pairs = factors.iter().enumerate().flat_map(|(slot, f)| {
        let [a, b] = input_names(slot);
        [(a, f.a.clone()), (b, f.b.clone())]
    });
    let inputs: Tensors = pairs.collect();
    ["score", "prefill", "decode"].map(|f| (f.to_owned(), inputs.clone())).into()
}

fn one(adapter: Adapter) -> Adapters {
    Adapters::new(vec![("it".to_owned(), adapter)]).unwrap()
}

/// Logits of every token under an adapter.
fn score(model: &Model, adapter: Adapter, ids: &[u32]) -> Tensor {
    let adapters = one(adapter);
    let mut session = session(model, &adapters);
    session.set_further_inputs(inputs(adapters.factors(Some("it")).unwrap()));
    session.score(ids).unwrap()
}

/// Compares the last rows of `found`, as many as are expected.
fn agrees(found: &Tensor, expected: &Expected) -> Result<(), String> {
    let wanted = expected.logits();
    let (values, len) = (found.as_slice::<f32>().unwrap(), wanted.len());
    let last = Tensor::from_slice(wanted.shape(), &values[values.len() - len..]).unwrap();
    compare(&last, &wanted, CLOSE).map_err(|e| e.to_string())
}

const CLOSE: Tolerance = Tolerance { abs: 1e-4, rel: 0.0 };

#[test]
fn logits_are_those_of_peft() {
    for name in GOLDENS {
        let expected = Expected::open(name);
        let model = base(&expected.base);
        let adapter = model.adapter(&expected.adapter(name, |_, _| {})).unwrap();
        let found = score(&model, adapter, &expected.ids);
        agrees(&found, &expected).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// GGUF files hold Llama's queries and keys in another order of rows, and GPT-2's matrices transposed.
#[test]
fn the_same_adapter_on_a_gguf_file() {
    for name in ["llama", "llama_head", "gpt2"] {
        let expected = Expected::open(name);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        write_golden(&expected.base, &path);
        let model = exact(&path);
        let adapter = model.adapter(&expected.adapter(name, |_, _| {})).unwrap();
        let found = score(&model, adapter, &expected.ids);
        agrees(&found, &expected).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// `[rows, ..]` whose heads of `dim` rows are rotated by neighbours, with rows as if they were rotated by halves.
fn by_halves(tensor: &Tensor, dim: usize) -> Tensor {
    let (rows, width) = (tensor.shape()[0], tensor.shape()[1]);
    let values = tensor.as_slice::<f32>().unwrap();
    let from = |row: usize| row - row % dim + row % (dim / 2) * 2 + row % dim / (dim / 2);
    let turned: Vec<f32> =
        (0..rows).flat_map(|row| values[from(row) * width..][..width].iter().copied()).collect();
    Tensor::from_slice(tensor.shape(), &turned).unwrap()
}

/// llama2.c files have the rows of queries and keys in the order of GGUF's.
#[test]
fn the_same_adapter_on_a_llama2c_file() {
    let path = testkit::shared_dir().join("models/stories260K.bin");
    let file = import::open(&path).unwrap();
    let turned = |name: &str| name.contains("q_proj") || name.contains("k_proj");
    let weights = file.tensors().into_iter().map(|t| {
        let tensor = file.tensor(t.name).unwrap();
        let tensor = if turned(t.name) { by_halves(&tensor, 8) } else { tensor };
        (t.name.to_owned(), tensor)
    });
    let config = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 172,
        "max_position_embeddings": 512,
        "num_attention_heads": 8,
        "num_hidden_layers": 5,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "vocab_size": 512,
    });
    let dir = tempfile::tempdir().unwrap();
    write_hf(dir.path(), &config.to_string(), &weights.collect());
    let layer = |module: &str, out: usize| {
        let factor = |name: &str, shape: [usize; 2]| {
            let values = seeded::tensor(3, &format!("{module}{name}"), shape[0] * shape[1], SCALE);
            Tensor::from_slice(&shape, &values).unwrap()
        };
        let (a, b) = (factor("a", [4, 64]), factor("b", [out, 4]));
        peft::LowRank { module: format!("model.layers.2.self_attn.{module}"), a, b, scale: 2.0 }
    };
    let layers = [layer("q_proj", 64), layer("k_proj", 32), layer("v_proj", 32)];
    peft::write(dir.path().join("it"), None, &layers).unwrap();
    let adapter = PeftAdapter::open(dir.path().join("it")).unwrap();
    let ids = [1, 403, 407, 261, 378];
    let logits =
        |model: Model, adapter: &PeftAdapter| score(&model, model.adapter(adapter).unwrap(), &ids);
    let (ours, theirs) = (logits(exact(&path), &adapter), logits(exact(dir.path()), &adapter));
    compare(&ours, &theirs, CLOSE).unwrap();
    let zero = |l: &peft::LowRank| peft::LowRank {
        b: Tensor::zeros(DType::F32, l.b.shape()).unwrap(),
        ..l.clone()
    };
    peft::write(dir.path().join("none"), None, &layers.each_ref().map(zero)).unwrap();
    let none = PeftAdapter::open(dir.path().join("none")).unwrap();
    assert!(compare(&logits(exact(&path), &none), &theirs, CLOSE).is_err());
}

#[test]
fn adapters_take_turns_and_caches_are_forgotten() {
    let expected = Expected::open("llama");
    let model = base("llama");
    let (first, second) = (expected.adapter("llama", |_, _| {}), Expected::open("llama_head"));
    let second = second.adapter("llama_head", |_, _| {});
    let set = Adapters::new(vec![
        ("first".to_owned(), model.adapter(&first).unwrap()),
        ("second".to_owned(), model.adapter(&second).unwrap()),
    ])
    .unwrap();
    let mut session = session(&model, &set);
    let plain = Golden::open("llama").logits;
    let other = Expected::open("llama_head").logits;
    let orders = [
        (Some("first"), &expected.logits),
        (Some("second"), &other),
        (None, &plain),
        (Some("first"), &expected.logits),
    ];
    for (name, wanted) in orders {
        session.set_further_inputs(inputs(set.factors(name).unwrap()));
        assert!(session.cached().is_empty());
        let last = wanted.last().unwrap();
        let found = session.logits_after(&expected.ids).unwrap();
        let worst = found.iter().zip(last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{name:?}: {worst}");
    }
}

/// What would be silently wrong must show in the comparison above, or be refused.
#[test]
fn planted_faults_are_caught() {
    let expected = Expected::open("llama");
    let model = base("llama");
    let wrong = |change: &dyn Fn(&mut Value, &mut BTreeMap<String, Tensor>)| {
        let adapter = model.adapter(&expected.adapter("llama", change)).unwrap();
        agrees(&score(&model, adapter, &expected.ids), &expected).is_err()
    };
    assert!(!wrong(&|_, _| {}));
    assert!(wrong(&|config, _| config["alpha_pattern"] = json!({})), "pattern of alpha");
    assert!(wrong(&|config, _| config["lora_alpha"] = json!(1)), "alpha");
    assert!(wrong(&|config, _| config["use_rslora"] = json!(true)), "root of the rank");
    // Row-major data taken for column-major.
    let turned = |t: &Tensor| {
        let (&[rows, columns], values) = (t.shape(), t.as_slice::<f32>().unwrap()) else {
            panic!()
        };
        let moved: Vec<f32> =
            (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect();
        Tensor::from_slice(&[rows, columns], &moved).unwrap()
    };
    let turn = |tensors: &mut BTreeMap<String, Tensor>, end: &str| {
        tensors.iter_mut().filter(|(n, _)| n.ends_with(end)).for_each(|(_, t)| *t = turned(t));
    };
    assert!(wrong(&|_, tensors| turn(tensors, "lora_A.weight")), "order of A");
    assert!(wrong(&|_, tensors| turn(tensors, "lora_B.weight")), "order of B");
    // A square layer in which A and B are exchanged and transposed fits, and is not the same.
    let a = "base_model.model.model.layers.0.mlp.gate_proj.lora_A.weight";
    assert!(wrong(&|_, tensors| {
        tensors.remove(a).map(|t| tensors.insert(a.into(), turned(&t)));
    }));
    // One layer's factors for another's.
    assert!(wrong(&|_, tensors| {
        let [from, to] = [0, 1].map(|n| a.replace("layers.0", &format!("layers.{n}")));
        let t = tensors[&from].clone();
        tensors.insert(to, t);
    }));
}

#[test]
fn adapters_of_other_models_are_refused() {
    let model = base("llama");
    let factor = |shape: [usize; 2], value: f32| {
        Tensor::from_slice(&shape, &vec![value; shape[0] * shape[1]]).unwrap()
    };
    let layer = |module: &str, [out, inner]: [usize; 2], value: f32| peft::LowRank {
        module: module.to_owned(),
        a: factor([2, inner], value),
        b: factor([out, 2], 1.0),
        scale: 1.0,
    };
    let refused = |layers: &[peft::LowRank]| {
        let dir = tempfile::tempdir().unwrap();
        peft::write(dir.path().join("it"), None, layers).unwrap();
        let e = model.adapter(&PeftAdapter::open(dir.path().join("it")).unwrap()).unwrap_err();
        e.to_string().replace(&format!("{}/", dir.path().display()), "")
    };
    let q = "model.layers.0.self_attn.q_proj";
    assert_eq!(
        refused(&[layer(q, [64, 32], 1.0)]),
        format!("it: adapter of {q}: A [2, 32] and B [64, 2] do not fit a weight [64, 48]")
    );
    assert_eq!(
        refused(&[layer("transformer.h.0.attn.c_attn", [144, 48], 1.0), layer(q, [64, 48], 1.0)]),
        "it: unsupported: changes transformer.h.0.attn.c_attn: no linear layers of this llama model"
    );
    let many: Vec<_> = (0..5).map(|n| layer(&format!("x.{n}"), [4, 4], 1.0)).collect();
    assert!(refused(&many).contains("changes x.0, x.1, x.2 and 2 more: no linear layers"));
    assert!(refused(&[layer("model.embed_tokens", [96, 48], 1.0)]).contains("model.embed_tokens"));
    assert!(
        refused(&[layer("model.layers.9.self_attn.q_proj", [64, 48], 1.0)]).contains("no matrix")
    );
    assert!(refused(&[layer(q, [64, 48], f32::INFINITY)]).contains("is not finite"));
    // With and without the prefix that the causal model's class adds.
    let twice = [layer(q, [64, 48], 1.0), layer("layers.0.self_attn.q_proj", [64, 48], 1.0)];
    assert!(refused(&twice).contains("by two names"));
}

/// Factors in PEFT's form and back are the same, and merged weights give the logits of the adapter; also in
/// GGUF's and GPT-2's order of rows.
#[test]
fn own_adapters_are_peft_s_and_merge() {
    for name in ["gemma3", "gpt2", "llama", "qwen3"] {
        let golden = Golden::open(name);
        let dir = tempfile::tempdir().unwrap();
        let mut models = vec![base(name)];
        if matches!(name, "gpt2" | "llama") {
            let gguf = dir.path().join("model.gguf");
            write_golden(name, &gguf);
            models.push(exact(&gguf));
        }
        let ids: Vec<u32> = golden.ids.iter().map(|&i| i as u32).collect();
        for model in models {
            let targets: &[&str] =
                if name == "gpt2" { &["c_attn", "mlp.c_proj"] } else { &["q", "k", "down_proj"] };
            let new = model.new_adapter(targets, 2, 7).unwrap();
            let plain = score(&model, new.clone(), &ids);
            // What is trained: B is no longer 0.
            let trained = new.layers().iter().map(|(weight, f)| {
                let values = seeded::tensor(3, weight, f.b.len(), SCALE);
                let b = Tensor::from_slice(f.b.shape(), &values).unwrap();
                (weight.clone(), Factors { a: f.a.clone(), b })
            });
            let trained: BTreeMap<String, Factors> = trained.collect();
            let layers = model.low_rank(&trained, 2.0).unwrap();
            let to = dir.path().join("adapter");
            peft::write(&to, None, &layers).unwrap();
            let adapter = model.adapter(&PeftAdapter::open(&to).unwrap()).unwrap();
            let wanted = score(&model, adapter.clone(), &ids);
            assert!(compare(&plain, &wanted, CLOSE).is_err(), "{name}: the adapter does nothing");
            // Twice B, as the scale has it.
            if name != "gpt2" {
                for (weight, f) in adapter.layers() {
                    let own = trained[weight].b.as_slice::<f32>().unwrap();
                    let twice: Vec<f32> = own.iter().map(|b| 2.0 * b).collect();
                    assert_eq!(f.b.as_slice::<f32>().unwrap(), twice, "{name}: {weight}");
                    assert_eq!(f.a.as_slice::<f32>(), trained[weight].a.as_slice(), "{weight}");
                }
            }
            let merged = dir.path().join("merged");
            model.write_with(&merged, &model.merged(&adapter).unwrap()).unwrap();
            let found = Run::new(&exact(&merged), ids.len()).logits("score", &golden.ids, 0);
            compare(&found, &wanted, CLOSE).unwrap_or_else(|e| panic!("{name}: {e}"));
            fs::remove_dir_all(&to).unwrap();
            let _ = fs::remove_dir_all(&merged).or_else(|_| fs::remove_file(&merged));
        }
    }
}

#[test]
fn adapters_that_cannot_be_made() {
    let model = base("llama");
    // Names are alike, sizes are not.
    let mut config: Value =
        serde_json::from_str(&fs::read_to_string(golden_dir("llama").join("config.json")).unwrap())
            .unwrap();
    config["intermediate_size"] = 40.into();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    rigel_llm::initialise(dir.path(), 0, dir.path().join("model")).unwrap();
    let other = exact(&dir.path().join("model")).new_adapter(&["down"], 2, 0).unwrap();
    let error = model.merged(&other).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("for model.layers.0.") && error.contains("which is"), "{error}");
    for (targets, rank, words) in [
        (&["q", "nothing"][..], 2, "down_proj, gate_proj"),
        (&["q"][..], 0, "rank 0"),
        (&["q"][..], 1000, "rank 1000"),
    ] {
        let error = model.new_adapter(targets, rank, 0).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let strange = BTreeMap::from([(
        "w".to_owned(),
        model.new_adapter(&["q"], 2, 0).unwrap().layers().values().next().unwrap().clone(),
    )]);
    assert!(
        model.low_rank(&strange, 1.0).unwrap_err().to_string().contains("w is no linear layer")
    );
}
