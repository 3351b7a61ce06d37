//! Models written again with other weights, and models with first values.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rigel_llm::{Model, initialise, interface};
use tensor::{DType, Tensor};

use crate::common::{GOLDENS, Golden, Run, golden_dir, write_hf};

/// What follows from the configuration and is stored in no file.
const COMPUTED: &str = "rope_inverse_frequencies";

fn floats(tensor: &Tensor) -> Vec<f32> {
    mil::eval::tensor_floats(tensor).unwrap().into_iter().map(|x| x as f32).collect()
}

/// The weights that a file holds, by name in the program.
fn weights(model: &Model) -> BTreeMap<String, Tensor> {
    let all = model.program().weights.iter().map(|(_, w)| (w.name.clone(), w.tensor.clone()));
    all.filter(|(name, _)| !name.contains(COMPUTED)).collect()
}

fn golden(name: &str, dir: &Path) -> Model {
    let config = fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
    write_hf(dir, &config, &Golden::open(name).weights());
    fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    Model::load(dir).unwrap()
}

/// All families, of which one holds matrices transposed and three in one, and another its norms less 1.
#[test]
fn changed_weights_come_back() {
    for name in GOLDENS {
        let dir = tempfile::tempdir().unwrap();
        let model = golden(name, dir.path());
        let double = |(name, t): (String, Tensor)| {
            let values: Vec<f32> = floats(&t).into_iter().map(|x| 2.0 * x).collect();
            (name, Tensor::from_slice(t.shape(), &values).unwrap())
        };
        let changed: BTreeMap<String, Tensor> = weights(&model).into_iter().map(double).collect();
        let to = tempfile::tempdir().unwrap();
        let to = to.path().join("model");
        model.write_with(&to, &changed).unwrap();
        let again = weights(&Model::load(&to).unwrap());
        assert_eq!(again.keys().collect::<Vec<_>>(), changed.keys().collect::<Vec<_>>(), "{name}");
        for (weight, wanted) in &changed {
            let found = floats(&again[weight]);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
            assert!(found.iter().zip(&floats(wanted)).all(close), "{name}: {weight}");
        }
        assert!(to.join("tokenizer.json").is_file());
        // What is there already stays.
        let error = model.write_with(&to, &changed).unwrap_err().to_string();
        assert!(error.contains("is there already"), "{error}");
    }
}

#[test]
fn unchanged_weights_are_copied() {
    for name in GOLDENS {
        let dir = tempfile::tempdir().unwrap();
        let model = golden(name, dir.path());
        let to = dir.path().join("copy");
        model.write_with(&to, &BTreeMap::new()).unwrap();
        let copy = Model::load(&to).unwrap();
        for entry in copy.file().tensors() {
            let [a, b] = [copy.file(), model.file()].map(|f| f.tensor(entry.name).unwrap());
            assert_eq!(a.bytes()[..], b.bytes()[..], "{name}: {}", entry.name);
        }
    }
}

#[test]
fn strange_weights_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let model = golden("llama", dir.path());
    let to = dir.path().join("copy");
    for (name, shape) in [("nothing", [2, 2]), ("model.embed_tokens.weight", [2, 2])] {
        let changed = [(name.to_owned(), Tensor::from_slice(&shape, &[0f32; 4]).unwrap())].into();
        let error = model.write_with(&to, &changed).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    // What no file holds, and what half precision does not.
    let frequencies = model.program().weights.iter().find(|(_, w)| w.name.contains(COMPUTED));
    let frequencies = frequencies.unwrap().1.clone();
    let changed = [(frequencies.name.clone(), frequencies.tensor.clone())].into();
    let error = model.write_with(&to, &changed).unwrap_err().to_string();
    assert!(error.contains(COMPUTED), "{error}");
    assert!(!to.exists());
}

/// A checkpoint in half precision stays one: what is changed is rounded, what it cannot hold is refused.
#[test]
fn types_stay() {
    for dtype in [DType::F16, DType::Bf16] {
        let golden = Golden::open("gpt2");
        let narrow = |(name, t): (String, Tensor)| {
            let values = floats(&t);
            let tensor = match dtype {
                DType::F16 => Tensor::from_slice(
                    t.shape(),
                    &values.iter().map(|&x| half::f16::from_f32(x)).collect::<Vec<_>>(),
                ),
                _ => Tensor::from_slice(
                    t.shape(),
                    &values.iter().map(|&x| half::bf16::from_f32(x)).collect::<Vec<_>>(),
                ),
            };
            (name, tensor.unwrap())
        };
        let dir = tempfile::tempdir().unwrap();
        let config = fs::read_to_string(golden_dir("gpt2").join("config.json")).unwrap();
        write_hf(dir.path(), &config, &golden.weights().into_iter().map(narrow).collect());
        let model = Model::load(dir.path()).unwrap();
        let name = "transformer.h.0.attn.c_attn.weight";
        let part = format!("{name}.1");
        let own = floats(&weights(&model)[&part]);
        let mut values: Vec<f32> = own.iter().map(|x| x * 1.001).collect();
        let shape = weights(&model)[&part].shape().to_vec();
        let tensor = |values: &[f32]| Tensor::from_slice(&shape, values).unwrap();
        let to = dir.path().join("copy");
        model.write_with(&to, &[(part.clone(), tensor(&values))].into()).unwrap();
        let again = Model::load(&to).unwrap();
        assert_eq!(again.file().tensor(name).unwrap().dtype(), dtype);
        let round = |x: &f32| match dtype {
            DType::F16 => half::f16::from_f32(*x).to_f32(),
            _ => half::bf16::from_f32(*x).to_f32(),
        };
        assert_eq!(floats(&weights(&again)[&part]), values.iter().map(round).collect::<Vec<_>>());
        values[0] = f32::MAX;
        let other = dir.path().join("other");
        let error = model.write_with(&other, &[(part, tensor(&values))].into()).unwrap_err();
        assert!(error.to_string().contains("does not hold"), "{error}");
        assert!(!other.exists());
    }
}

/// A new model's matrices have the deviation that they should have, its norms and biases do nothing, and
/// it knows nothing: its loss is the logarithm of the vocabulary's size.
#[test]
fn first_values() {
    for name in GOLDENS {
        let config = golden_dir(name);
        let dir = tempfile::tempdir().unwrap();
        let new = |seed: u64, at: &str| {
            let to = dir.path().join(at);
            initialise(&config, seed, &to).unwrap();
            Model::load(&to).unwrap()
        };
        let model = new(1, "one");
        let [same, other] = [new(1, "same"), new(2, "other")];
        let layers = model.config().layers as f64;
        for (weight, value) in weights(&model) {
            let values = floats(&value);
            if value.shape().len() == 1 {
                let constant = if weight.contains("bias") { 0.0 } else { 1.0 };
                assert!(values.iter().all(|&x| x == constant), "{name}: {weight}");
                continue;
            }
            let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            let deviation = (variance / values.len() as f64).sqrt();
            let residual = ["o_proj", "down_proj", "c_proj"].iter().any(|p| weight.contains(p));
            let wanted = if residual { 0.02 / (2.0 * layers).sqrt() } else { 0.02 };
            assert!((deviation / wanted - 1.0).abs() < 0.1, "{name}: {weight}: {deviation}");
            assert_eq!(floats(&weights(&same)[&weight]), values);
            assert_ne!(floats(&weights(&other)[&weight]), values);
        }
        let golden = Golden::open(name);
        let logits = Run::new(&model, golden.ids.len()).logits(interface::SCORE, &golden.ids, 0);
        let vocab = model.config().vocab;
        let mut loss = 0.0;
        let rows = logits.as_slice::<f32>().unwrap().chunks(vocab);
        for (row, &next) in rows.zip(&golden.ids[1..]) {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            loss += (sum.ln() - f64::from(row[next as usize])) / (golden.ids.len() - 1) as f64;
        }
        assert!((loss - (vocab as f64).ln()).abs() < 0.1, "{name}: {loss}");
    }
}
