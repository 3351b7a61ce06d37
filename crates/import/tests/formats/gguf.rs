//! GGUF: files written and read back, and typed metadata.

use rigel_import::gguf::{self, GgmlType, Gguf, Value};
use tensor::{DType, Tensor};

use crate::common;

#[test]
fn written_files_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let f = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let q =
        Tensor::new(DType::Q4_1, &[2, 32], tensor::Bytes::copy_from(&common::noise(40))).unwrap();
    let tokens: &[&str] = &["<s>", "", "ä"];
    let scores: &[f32] = &[0.0, -1.5, 2.0];
    gguf::write(
        &path,
        &[
            ("general.architecture", "llama".into()),
            ("llama.block_count", 2u32.into()),
            ("big", u64::MAX.into()),
            ("negative", (-3i32).into()),
            ("eps", 1e-5f32.into()),
            ("flag", true.into()),
            ("tokens", tokens.into()),
            ("scores", scores.into()),
        ],
        &[("a", &f), ("b", &q)],
    )
    .unwrap();

    let m = Gguf::open(&path).unwrap();
    let meta = m.metadata();
    assert_eq!((m.version(), meta.iter().len(), m.tensors().len()), (3, 8, 2));
    assert_eq!(meta.get::<&str>("general.architecture").unwrap(), "llama");
    assert_eq!(meta.get::<usize>("llama.block_count").unwrap(), 2);
    assert_eq!(meta.get::<u64>("big").unwrap(), u64::MAX);
    assert_eq!(meta.get::<i32>("negative").unwrap(), -3);
    assert_eq!(meta.get::<f32>("eps").unwrap(), 1e-5);
    assert!(meta.get::<bool>("flag").unwrap());
    assert_eq!(meta.get::<Vec<&str>>("tokens").unwrap(), tokens);
    assert_eq!(meta.get::<Vec<f32>>("scores").unwrap(), scores);
    assert_eq!(meta.find::<u32>("absent").unwrap(), None);

    let a = m.tensor("a").unwrap();
    assert_eq!(
        (a.shape(), a.as_slice::<f32>().unwrap()),
        (&[2, 3][..], f.as_slice::<f32>().unwrap())
    );
    assert!(a.bytes().is_mapped());
    let b = m.tensor("b").unwrap();
    assert_eq!((b.dtype(), b.shape(), &**b.bytes()), (DType::Q4_1, &[2, 32][..], &**q.bytes()));
    assert_eq!(m.info("b").unwrap().ggml_type, GgmlType(3));
}

#[test]
fn getters_name_file_key_and_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let ints: &[i32] = &[1, -2];
    let values: &[(&str, Value)] =
        &[("s", "text".into()), ("n", (-1i32).into()), ("v", ints.into())];
    gguf::write(&path, values, &[]).unwrap();
    let m = Gguf::open(&path).unwrap();
    let message = |e: rigel_import::ImportError| e.to_string().replace(path.to_str().unwrap(), "m");
    let m = m.metadata();
    assert_eq!(message(m.get::<u32>("x").unwrap_err()), r#"m: key "x": invalid: no such key"#);
    assert_eq!(
        message(m.get::<u32>("s").unwrap_err()),
        r#"m: key "s": invalid: holds string, not u32"#
    );
    assert_eq!(
        message(m.get::<u32>("n").unwrap_err()),
        r#"m: key "n": invalid: holds -1, which is out of range for u32"#
    );
    assert_eq!(
        message(m.get::<Vec<u32>>("v").unwrap_err()),
        r#"m: key "v": invalid: element 1 holds -2, which is out of range for u32"#
    );
    assert_eq!(
        message(m.get::<Vec<&str>>("v").unwrap_err()),
        r#"m: key "v": invalid: holds an array of i32, not an array of string"#
    );
}
