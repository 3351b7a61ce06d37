//! Safetensors: written and read back, checked against the format's own library, and broken headers.

use ::safetensors::SafeTensors as Reference;
use ::safetensors::tensor::{Dtype, TensorView};
use rigel_import::{ErrorKind, SafeTensors, safetensors};
use tensor::{Bytes, DType, Tensor};

use crate::common::{message, noise, sample_safetensors};

fn read(bytes: &[u8]) -> rigel_import::Result<SafeTensors> {
    SafeTensors::from_bytes("m.safetensors", Bytes::copy_from(bytes))
}

/// A file with this header and `data` bytes behind it.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(noise(data));
    bytes
}

#[test]
fn the_reference_reads_what_is_written() {
    let bytes = sample_safetensors();
    let reference = Reference::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), 2);
    let a = reference.tensor("a").unwrap();
    let values: Vec<u8> = (1..7).flat_map(|i| (i as f32).to_le_bytes()).collect();
    assert_eq!((a.dtype(), a.shape(), a.data()), (Dtype::F32, &[2, 3][..], &values[..]));
    let b = reference.tensor("b").unwrap();
    assert_eq!((b.dtype(), b.shape(), b.data()), (Dtype::BF16, &[4][..], &noise(8)[..]));
    let (_, header) = Reference::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
}

#[test]
fn what_the_reference_writes_is_read() {
    let data = noise(64);
    let views = [
        ("half", TensorView::new(Dtype::F16, vec![2, 2], &data[..8]).unwrap()),
        ("scalar", TensorView::new(Dtype::I64, vec![], &data[..8]).unwrap()),
        ("empty", TensorView::new(Dtype::F32, vec![0, 7], &[]).unwrap()),
        ("small", TensorView::new(Dtype::F8_E4M3, vec![3], &data[..3]).unwrap()),
    ];
    let file = read(&::safetensors::serialize(views, None).unwrap()).unwrap();
    assert_eq!(file.tensors().len(), 4);
    let expect = |name: &str, dtype, shape: &[usize], len: usize| {
        let t = file.tensor(name).unwrap();
        assert_eq!((t.dtype(), t.shape(), &**t.bytes()), (dtype, shape, &data[..len]));
    };
    expect("half", DType::F16, &[2, 2], 8);
    expect("scalar", DType::I64, &[], 8);
    expect("empty", DType::F32, &[0, 7], 0);
    expect("small", DType::F8E4M3, &[3], 3);
}

#[test]
fn mapped_data_is_not_copied_and_misaligned_data_can_be_viewed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    std::fs::write(&path, sample_safetensors()).unwrap();
    let open = SafeTensors::open(&path).unwrap();
    assert!(open.tensor("a").unwrap().bytes().is_mapped());
    assert_eq!(open.metadata()["format"], "pt");
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_ne!((8 + header.len()) % 4, 0);
    assert!(read(&file(header, 4)).unwrap().tensor("a").unwrap().as_slice::<f32>().is_ok());
}

#[test]
fn unknown_types_are_listed_and_refused_when_asked_for() {
    let header = r#"{"x":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}"#;
    let f = read(&file(header, 2)).unwrap();
    assert_eq!(f.tensors().len(), 1);
    let e = f.tensor("x").unwrap_err();
    assert_eq!(
        (e.kind, message(&e).as_str()),
        (ErrorKind::Unsupported, r#"m.safetensors: tensor "x": unsupported: data is of "F4""#)
    );
}

#[test]
fn broken_headers() {
    let t = |name: &str, dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let cases = [
        ("{".to_owned(), 0, "offset 8: invalid: JSON: EOF while parsing an object"),
        (
            "[1]".to_owned(),
            0,
            "offset 8: invalid: JSON: invalid type: sequence, expected an object of tensors",
        ),
        (
            format!("{{{},{}}}", t("a", "U8", "[1]", 0, 1), t("a", "U8", "[1]", 1, 2)),
            2,
            r#"JSON: "a": tensor occurs twice"#,
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[1]}}"#.into(),
            0,
            r#"JSON: "a": missing field `data_offsets`"#,
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#.into(),
            1,
            r#"JSON: "a": invalid value"#,
        ),
        (
            r#"{"__metadata__":{"k":1}}"#.into(),
            0,
            r#"JSON: "k": invalid type: integer `1`, expected a string"#,
        ),
        (r#"{"__metadata__":{"k":"1","k":"2"}}"#.into(), 0, r#"JSON: "k" occurs twice"#),
        (
            format!("{{{}}}", t("a", "F32", "[2]", 0, 4)),
            4,
            r#"tensor "a": invalid: shape [2] of F32 needs 8 bytes, its data is 4 bytes"#,
        ),
        (
            format!("{{{}}}", t("a", "F32", "[18446744073709551615,2]", 0, 4)),
            4,
            r#"tensor "a": invalid: shape [18446744073709551615, 2] of F32 needs more than memory"#,
        ),
        (
            format!("{{{}}}", t("a", "F4", "[18446744073709551615,2]", 0, 4)),
            4,
            r#"tensor "a": invalid: shape [18446744073709551615, 2] is too large"#,
        ),
        (
            format!("{{{}}}", t("a", "U8", "[4]", 4, 0)),
            4,
            r#"tensor "a": invalid: data offsets 4 to 0 run backwards"#,
        ),
        (
            format!("{{{}}}", t("a", "U8", "[4]", 1, 5)),
            4,
            r#"tensor "a": invalid: data ends at byte 5 of the data section, the section at 4"#,
        ),
        (
            format!("{{{}}}", t("a", "U8", "[4]", 1, 5)),
            5,
            r#"tensor "a": invalid: data leaves a hole before byte 1 of the data section"#,
        ),
        (
            format!("{{{},{}}}", t("a", "U8", "[4]", 0, 4), t("b", "U8", "[4]", 2, 6)),
            6,
            r#"tensor "b": invalid: data overlaps other data"#,
        ),
        (
            format!("{{{}}}", t("a", "U8", "[4]", 0, 4)),
            5,
            "invalid: 1 bytes after the last tensor belong to none",
        ),
    ];
    for (header, data, expected) in cases {
        let e = read(&file(&header, data)).unwrap_err();
        assert!(message(&e).contains(expected), "{header}: {e}");
        assert_eq!(e.kind, ErrorKind::Invalid);
    }
    let many = format!("[{}1]", "1,".repeat(16));
    let e = read(&file(&format!("{{{}}}", t("a", "U8", &many, 0, 1)), 1)).unwrap_err();
    assert!(message(&e).ends_with("17 dimensions, at most 16"), "{e}");
    let huge = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
    assert_eq!(read(&huge).unwrap_err().kind, ErrorKind::Limit);
    let beyond = [50u64.to_le_bytes().as_slice(), b"{}"].concat();
    assert!(
        message(&read(&beyond).unwrap_err())
            .contains("file ends inside the header: 50 bytes needed, 2 left")
    );
}

#[test]
fn writing_refuses_what_has_no_form_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let q = Tensor::new(DType::Q4_1, &[32], Bytes::copy_from(&noise(20))).unwrap();
    let f = Tensor::from_slice(&[1], &[1f32]).unwrap();
    let e = safetensors::write(&path, &[], &[("f", &f), ("q", &q)]).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Unsupported);
    for names in [["f", "f"], ["f", "__metadata__"]] {
        let e = safetensors::write(&path, &[], &names.map(|n| (n, &f))).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Invalid);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let e = safetensors::write(dir.path().join("none/m"), &[], &[]).unwrap_err();
    assert_eq!(e.kind, ErrorKind::Io);
}
