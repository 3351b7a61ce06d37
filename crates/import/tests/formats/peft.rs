//! PEFT adapters: what PEFT saved, written and read back, and what is refused.

use std::fs;
use std::path::Path;

use rigel_import::peft::{LowRank, write};
use rigel_import::{ErrorKind, PeftAdapter, Result, safetensors};
use serde_json::{Value, json};
use tensor::{Bytes, DType, Tensor};

use crate::common::message;

fn factor(shape: [usize; 2], first: f32) -> Tensor {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| first + i as f32).collect();
    Tensor::from_slice(&shape, &values).unwrap()
}

fn layer(module: &str, [out, inner, rank]: [usize; 3], scale: f64) -> LowRank {
    let (a, b) = (factor([rank, inner], 1.0), factor([out, rank], 0.5));
    LowRank { module: module.to_owned(), a, b, scale }
}

/// An adapter of this configuration and these tensors, whose names lack `base_model.model.`.
fn read(config: &Value, tensors: &[(&str, Tensor)]) -> Result<PeftAdapter> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let names: Vec<String> = tensors.iter().map(|(n, _)| format!("base_model.model.{n}")).collect();
    let named: Vec<_> =
        names.iter().map(String::as_str).zip(tensors.iter().map(|t| &t.1)).collect();
    safetensors::write(&path, &[], &named).unwrap();
    let weights = Bytes::copy_from(&fs::read(&path).unwrap());
    PeftAdapter::from_bytes("m", config.to_string().as_bytes(), weights)
}

fn plain() -> Value {
    json!({"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none"})
}

fn good() -> Vec<(&'static str, Tensor)> {
    vec![
        ("l.0.q.lora_A.weight", factor([2, 3], 0.0)),
        ("l.0.q.lora_B.weight", factor([4, 2], 0.0)),
        ("l.1.q.lora_A.weight", factor([2, 3], 1.0)),
        ("l.1.q.lora_B.weight", factor([4, 2], 1.0)),
    ]
}

#[test]
fn factors_are_divided_by_rank_or_its_root() {
    let scales = |change: Value| {
        let mut config = plain();
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let adapter = read(&config, &good()).unwrap();
        assert_eq!(adapter.layers().iter().map(|l| l.rank()).collect::<Vec<_>>(), [2, 2]);
        adapter.layers().iter().map(|l| l.scale).collect::<Vec<_>>()
    };
    assert_eq!(scales(json!({})), [4.0, 4.0]);
    assert_eq!(scales(json!({"use_rslora": true})), [8.0 / 2f64.sqrt(); 2]);
    // The end of a path from a dot on, and the first pattern that fits.
    let patterns = |p: Value| scales(json!({ "alpha_pattern": p }));
    assert_eq!(patterns(json!({"1.q": 2})), [4.0, 1.0]);
    assert_eq!(patterns(json!({"0": 2, "l.1": 2, "n": 2})), [4.0, 4.0]);
    assert_eq!(patterns(json!({"^l.0.q": 6, "q": 2})), [3.0, 1.0]);
    let first_fits =
        br#"{"peft_type":"LORA","r":2,"lora_alpha":8,"alpha_pattern":{"q":2,"1.q":6}}"#;
    let dir = tempfile::tempdir().unwrap();
    write(dir.path().join("a"), None, &[layer("l.1.q", [4, 3, 2], 1.0)]).unwrap();
    let weights = fs::read(dir.path().join("a/adapter_model.safetensors")).unwrap();
    let adapter = PeftAdapter::from_bytes("m", first_fits, Bytes::copy_from(&weights)).unwrap();
    assert_eq!(adapter.layers()[0].scale, 1.0);
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adapter");
    let layers = [
        layer("model.layers.0.self_attn.q_proj", [4, 3, 2], 1.5),
        layer("model.layers.10.self_attn.q_proj", [4, 3, 2], 1.5),
        layer("model.layers.0.mlp.up_proj", [5, 3, 1], 0.25),
        layer("lm_head", [5, 3, 4], 1.5),
    ];
    write(&path, Some("org/model"), &layers).unwrap();
    let found = PeftAdapter::open(&path).unwrap();
    assert_eq!(found.base_model(), Some("org/model"));
    assert_eq!(found.layers().len(), layers.len());
    for layer in &layers {
        let same = found.layers().iter().find(|l| l.module == layer.module).unwrap();
        assert_eq!(same.scale, layer.scale, "{}", layer.module);
        assert!(same.a.bytes().is_mapped());
        for (a, b) in [(&same.a, &layer.a), (&same.b, &layer.b)] {
            assert_eq!((a.shape(), a.as_slice::<f32>()), (b.shape(), b.as_slice::<f32>()));
        }
    }
    // Over nothing, and nothing half written.
    let e = write(&path, None, &layers).unwrap_err();
    assert!(e.to_string().ends_with("adapter: invalid: is there already"), "{e}");
    for wrong in [vec![], vec![layers[0].clone(), layers[0].clone()]] {
        assert_eq!(write(dir.path().join("b"), None, &wrong).unwrap_err().kind, ErrorKind::Invalid);
    }
    let mut crooked = layers[0].clone();
    crooked.b = factor([4, 3], 0.0);
    let e = write(dir.path().join("b"), None, &[crooked]).unwrap_err();
    assert!(e.to_string().ends_with("A [2, 3] and B [4, 3] are of no one rank"), "{e}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// What PEFT saved for the golden adapters: their tensors are made by the tests of `llm`.
#[test]
fn configurations_that_peft_saved_are_read() {
    let golden = testkit::workspace_dir().join("tests/golden/adapters");
    for entry in fs::read_dir(golden).unwrap() {
        let dir = entry.unwrap().path();
        let expected: Value =
            serde_json::from_slice(&fs::read(dir.join("expected.json")).unwrap()).unwrap();
        let tensors = expected["tensors"].as_array().unwrap().iter().map(|t| {
            let size = |i: usize| t[1][i].as_u64().unwrap() as usize;
            (t[0].as_str().unwrap(), factor([size(0), size(1)], 0.0))
        });
        let tensors: Vec<(String, Tensor)> = tensors.map(|(n, t)| (n.to_owned(), t)).collect();
        let path = tempfile::tempdir().unwrap();
        let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        safetensors::write(path.path().join("adapter_model.safetensors"), &[], &named).unwrap();
        fs::copy(dir.join("adapter_config.json"), path.path().join("adapter_config.json")).unwrap();
        let adapter = PeftAdapter::open(path.path()).unwrap();
        assert_eq!(2 * adapter.layers().len(), tensors.len(), "{}", dir.display());
    }
}

#[test]
fn refused_configurations() {
    use ErrorKind::{Invalid, Unsupported};
    let cases: &[(&str, Value, ErrorKind, &str)] = &[
        ("peft_type", json!("IA3"), Unsupported, r#"key "peft_type": unsupported: is "IA3""#),
        ("peft_type", json!(null), Unsupported, r#"is "", not "LORA""#),
        (
            "use_dora",
            json!(true),
            Unsupported,
            r#"key "use_dora": unsupported: is not implemented"#,
        ),
        ("modules_to_save", json!(["lm_head"]), Unsupported, r#"key "modules_to_save""#),
        ("trainable_token_indices", json!([1]), Unsupported, "trainable_token_indices"),
        ("layer_replication", json!([[0, 1]]), Unsupported, "layer_replication"),
        ("bias", json!("all"), Unsupported, r#"key "bias": unsupported: is "all""#),
        ("lora_bias", json!(true), Unsupported, "lora_bias"),
        ("init_lora_weights", json!("pissa"), Unsupported, "changes the base model's weights"),
        ("r", json!(null), Invalid, r#"key "r": invalid: no such key"#),
        ("r", json!(-1), Invalid, "invalid value: integer `-1`"),
        ("r", json!(4), Invalid, "has rank 2, and adapter_config.json says 4"),
        ("lora_alpha", json!("x"), Invalid, "invalid type: string"),
        ("rank_pattern", json!({"1.q": 3}), Invalid, "has rank 2, and adapter_config.json says 3"),
        ("rank_pattern", json!({"(?=q)": 3}), Unsupported, r#"key "rank_pattern": unsupported"#),
        (
            "target_modules",
            json!(["0.q"]),
            Invalid,
            "target_modules of adapter_config.json leaves this layer out",
        ),
        ("target_modules", json!("q"), Invalid, r#""base_model.model.l.0.q.lora_A.weight""#),
        ("target_modules", json!([]), Invalid, "leaves this layer out"),
        (
            "exclude_modules",
            json!("(?!v).*q"),
            Unsupported,
            r#"key "exclude_modules": unsupported"#,
        ),
    ];
    for (key, value, kind, expected) in cases {
        let mut config = plain();
        config[key] = value.clone();
        let e = read(&config, &good()).unwrap_err();
        assert!(e.kind == *kind && message(&e).contains(expected), "{key}: {e}");
    }
    for (key, value) in [
        ("modules_to_save", json!(null)),
        ("modules_to_save", json!([])),
        ("use_dora", json!(false)),
        ("init_lora_weights", json!(true)),
        ("init_lora_weights", json!("gaussian")),
        ("something_new", json!(3)),
        ("target_modules", json!(null)),
        ("target_modules", json!(["l.0.q", "1.q", "v"])),
        ("target_modules", json!("all-linear")),
        ("target_modules", json!(r".*\.\d\.q")),
        ("target_modules", json!("(?!v).*q")),
    ] {
        let mut config = plain();
        config[key] = value;
        read(&config, &good()).unwrap();
    }
    let many: serde_json::Map<String, Value> =
        (0..2000).map(|i| (format!("{i}"), json!(2))).collect();
    let mut config = plain();
    config["rank_pattern"] = many.into();
    let e = read(&config, &good()).unwrap_err();
    assert!(e.kind == ErrorKind::Limit && message(&e).contains("2000 patterns"), "{e}");
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(2 << 20));
    let e = PeftAdapter::from_bytes("m", long.as_bytes(), Bytes::copy_from(&[])).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Limit);
}

/// What PEFT 0.21.2 does with the same settings on a model of these two layers.
#[test]
fn layers_that_a_configuration_leaves_out() {
    let left_out = |settings: Value| {
        let mut config = plain();
        config.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let error = read(&config, &good()).err()?;
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        Some(message(&error))
    };
    let all = |settings: Value| assert_eq!(left_out(settings), None);
    let without = |layer: usize, key: &str, settings: Value| {
        let why =
            format!("l.{layer}.q.lora_A.weight\": invalid: {key} of adapter_config.json leaves");
        let error = left_out(settings).unwrap();
        assert!(error.contains(&why), "{error} lacks {why}");
    };
    all(json!({"exclude_modules": ["0", "k", "0.q.v"]}));
    all(json!({"exclude_modules": "l.0"}));
    all(json!({"exclude_modules": []}));
    without(1, "exclude_modules", json!({"exclude_modules": ["1.q"]}));
    without(
        1,
        "exclude_modules",
        json!({"exclude_modules": ["l.1.q", "k"], "target_modules": ["q"]}),
    );
    without(1, "exclude_modules", json!({"exclude_modules": r".*\.1\..*"}));
    all(json!({"layers_to_transform": [], "target_modules": ["q"]}));
    for pattern in [json!("l"), json!(["h", "l"]), json!("[a-z]")] {
        let key = "layers_to_transform";
        let with =
            |layers: Value| json!({"layers_to_transform": layers, "layers_pattern": pattern});
        all(with(json!([1, 0, 7])));
        without(1, key, with(json!([0])));
        without(1, key, with(json!(0)));
        without(0, key, with(json!([1])));
        without(0, key, with(json!([10])));
    }
    // Without a pattern, two names stand before the number; of other stacks, none has factors.
    let key = "layers_to_transform";
    without(0, key, json!({"layers_to_transform": [0, 1]}));
    without(0, key, json!({"layers_to_transform": [0, 1], "layers_pattern": "h"}));
    let error = left_out(json!({"layers_to_transform": 0, "target_modules": ".*q"})).unwrap();
    assert!(error.contains("goes with a list of target_modules"), "{error}");
}

#[test]
fn refused_tensors() {
    use ErrorKind::{Invalid, Unsupported};
    let one = |name: &'static str, tensor: Tensor| {
        let mut all = good();
        all.retain(|(n, _)| *n != name);
        all.push((name, tensor));
        read(&plain(), &all).unwrap_err()
    };
    let without = |name: &str| {
        let mut all = good();
        all.retain(|(n, _)| *n != name);
        read(&plain(), &all).unwrap_err()
    };
    let small = || factor([2, 2], 0.0);
    let integers = Tensor::from_slice(&[2, 3], &[0i32; 6]).unwrap();
    let kernel = Tensor::zeros(DType::F32, &[2, 3, 1, 1]).unwrap();
    let cases = [
        (one("l.0.q.lora_magnitude_vector", small()), Unsupported, "is magnitudes, of DoRA"),
        (one("wte.lora_embedding_A", small()), Unsupported, "is factors of an embedding"),
        (one("l.0.q.lora_B.bias", small()), Unsupported, "is a bias"),
        (one("l.0.q.bias", small()), Unsupported, "is a bias"),
        (one("lm_head.base_layer.weight", small()), Unsupported, "save_embedding_layers=False"),
        (one("lm_head.weight", small()), Unsupported, "of modules_to_save"),
        (one("l.0.q.lora_A.weight", integers), Unsupported, "is of int32"),
        (one("l.0.q.lora_A.weight", kernel), Unsupported, "are not matrices"),
        (
            without("l.0.q.lora_B.weight"),
            Invalid,
            r#"tensor "base_model.model.l.0.q.lora_A.weight": invalid: has no counterpart"#,
        ),
        (without("l.0.q.lora_A.weight"), Invalid, r#""base_model.model.l.0.q.lora_A.weight""#),
        // A and B exchanged.
        (
            one("l.0.q.lora_A.weight", factor([4, 2], 0.0)),
            Invalid,
            "[4, 2] and B [4, 2] differ in rank",
        ),
        (read(&plain(), &[]).unwrap_err(), Invalid, "holds no factors"),
    ];
    for (e, kind, expected) in cases {
        assert!(e.kind == kind && message(&e).contains(expected), "{expected}: {e}");
    }
}

#[test]
fn directories_without_an_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let open = |dir: &Path| message(&PeftAdapter::open(dir).unwrap_err());
    assert!(open(dir.path()).starts_with("adapter_config.json: cannot open"));
    fs::write(dir.path().join("adapter_config.json"), plain().to_string()).unwrap();
    assert!(open(dir.path()).starts_with("adapter_model.safetensors: cannot open"));
    fs::write(dir.path().join("adapter_model.bin"), "x").unwrap();
    assert!(
        open(dir.path())
            .ends_with("adapter_model.bin holds pickled weights; convert them to safetensors")
    );
}

#[cfg(unix)]
#[test]
fn what_is_written_has_the_permissions_of_any_folder() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (adapter, other) = (dir.path().join("adapter"), dir.path().join("other"));
    write(&adapter, None, &[layer("l.0.q", [4, 3, 2], 1.0)]).unwrap();
    fs::create_dir(&other).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&adapter), mode(&other));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}
