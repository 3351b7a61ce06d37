//! GGUF files that break the format, each made by hand, and split models.

use rigel_import::gguf::{self, Gguf, Value};
use rigel_import::{ErrorKind, ImportError, open};
use tensor::{Bytes, Tensor};

use crate::common::{message, noise};

/// A GGUF file as written by someone who checks nothing.
#[derive(Clone, Default)]
struct Raw {
    values: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: usize,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Raw {
    fn value(mut self, key: &str, type_id: u32, bytes: &[u8]) -> Self {
        self.values.push([&string(key), &type_id.to_le_bytes()[..], bytes].concat());
        self
    }

    /// `dims` are fastest first, as in the file.
    fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let mut info = string(name);
        info.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| info.extend(d.to_le_bytes()));
        info.extend(type_id.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.tensors.push(info);
        self
    }

    fn data(mut self, len: usize) -> Self {
        self.data = len;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.values.len() as u64).to_le_bytes());
        bytes.extend(self.values.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(noise(self.data));
        bytes
    }

    fn read(&self) -> rigel_import::Result<Gguf> {
        read(&self.bytes())
    }

    fn error(&self) -> String {
        message(&self.read().unwrap_err())
    }
}

fn read(bytes: &[u8]) -> rigel_import::Result<Gguf> {
    Gguf::from_bytes("m.gguf", Bytes::copy_from(bytes))
}

#[test]
fn headers() {
    let bytes = Raw::default().bytes();
    let with = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        let e = read(&bytes).unwrap_err();
        (e.kind, message(&e))
    };
    let is = |kind, text: &str| (kind, text.to_owned());
    let invalid = r#"m.gguf: offset 0: invalid: not a GGUF file: it begins with "GGML""#;
    assert_eq!(with(0, b"GGML"), is(ErrorKind::Invalid, invalid));
    let version_1 = "m.gguf: offset 4: unsupported: GGUF version 1";
    assert_eq!(with(4, &1u32.to_le_bytes()), is(ErrorKind::Unsupported, version_1));
    let big_endian = "m.gguf: offset 4: unsupported: big-endian GGUF";
    assert_eq!(with(4, &3u32.to_be_bytes()), is(ErrorKind::Unsupported, big_endian));
    // Absurd counts end where the file does.
    for at in [8, 16] {
        let (kind, text) = with(at, &u64::MAX.to_le_bytes());
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(text.contains("file ends inside") || text.contains("twice"), "{text}");
    }
    let mut version_2 = bytes.clone();
    version_2[4] = 2;
    assert_eq!(read(&version_2).unwrap().version(), 2);
}

#[test]
fn metadata() {
    let raw = |type_id, bytes: &[u8]| Raw::default().value("k", type_id, bytes).error();
    assert!(raw(13, &[]).contains(r#"key "k": invalid: unknown metadata value type 13"#));
    assert!(raw(7, &[2]).contains(r#"key "k": invalid: a bool is 0 or 1, not 2"#));
    assert!(
        raw(8, b"\x01\0\0\0\0\0\0\0\xff")
            .contains(r#"key "k": invalid: a metadata string is not UTF-8"#)
    );
    assert!(raw(8, &u64::MAX.to_le_bytes()).contains("file ends inside a metadata string"));
    let array = |ty: u32, count: u64| [&ty.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert!(
        raw(9, &array(4, u64::MAX)).contains("limit: array of 18446744073709551615 u32 values")
    );
    assert!(raw(9, &array(0, u64::MAX)).contains("file ends inside a metadata array"));
    assert!(raw(9, &array(8, u64::MAX)).contains("file ends inside a string of a metadata array"));
    let nested = [array(9, 1).repeat(8), array(0, 0)].concat();
    assert!(raw(9, &nested).contains("limit: metadata arrays nested deeper than 8"));
    let twice = Raw::default().value("k", 0, &[1]).value("k", 0, &[1]);
    assert!(twice.error().contains(r#"key "k": invalid: key occurs twice"#));
    let alignment = |v: u32| Raw::default().value("general.alignment", 4, &v.to_le_bytes()).error();
    assert!(alignment(0).ends_with(r#"key "general.alignment": invalid: 0 is not a power of two"#));
    assert!(alignment(48).contains("48 is not a power of two"));
}

#[test]
fn tensors() {
    let raw = |dims: &[u64], type_id, offset| {
        Raw::default().tensor("t", dims, type_id, offset).data(64).error()
    };
    let starts = |text: String, expected: &str| assert!(text.contains(expected), "{text}");
    starts(
        raw(&[4], 0, 4),
        r#"tensor "t": invalid: data offset 4 is not a multiple of the alignment 32"#,
    );
    starts(raw(&[17], 0, 0), r#"tensor "t": invalid: data ends at byte"#);
    starts(raw(&[1], 0, u64::MAX - 31), "is too large");
    starts(raw(&[1 << 63, 2], 0, 0), "shape [2, 9223372036854775808] of type F32 is too large");
    starts(raw(&[u64::MAX], 0, 0), "is too large");
    starts(raw(&[1, 1, 1, 1, 1], 0, 0), r#"tensor "t": invalid: 5 dimensions, at most 4"#);
    starts(raw(&[48], 3, 0), "shape [48] of type Q4_1 cuts a block of 32");
    starts(raw(&[], 3, 0), "shape [] of type Q4_1 cuts a block of 32");
    let twice = Raw::default().tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(64);
    starts(twice.error(), r#"tensor "t": invalid: tensor occurs twice"#);
    let overlap = Raw::default().tensor("a", &[9], 0, 0).tensor("b", &[1], 0, 32).data(64);
    starts(overlap.error(), r#"tensor "b": invalid: data overlaps that of tensor "a""#);
}

#[test]
fn unsupported_types_are_listed_and_refused_when_asked_for() {
    let raw = Raw::default()
        .tensor("known", &[256], 23, 0)
        .tensor("unknown", &[8], 99, 160)
        .tensor("good", &[2], 0, 192)
        .data(224);
    let model = raw.read().unwrap();
    assert_eq!(model.info("known").unwrap().byte_len, Some(136));
    assert_eq!(model.info("unknown").unwrap().byte_len, None);
    let refusal = |name| {
        let e = model.tensor(name).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Unsupported);
        message(&e)
    };
    assert_eq!(refusal("known"), r#"m.gguf: tensor "known": unsupported: data is of IQ4_XS"#);
    assert_eq!(
        refusal("unknown"),
        r#"m.gguf: tensor "unknown": unsupported: data is of unknown type 99"#
    );
    assert_eq!(model.tensor("good").unwrap().shape(), [2]);
    let e = model.tensor("none").unwrap_err();
    assert_eq!(message(&e), r#"m.gguf: tensor "none": invalid: no such tensor"#);
}

/// Writes part `number` of `count` with a tensor of its own.
fn write_part(dir: &std::path::Path, number: u16, count: u16, names: (u16, u16), total: i32) {
    let metadata: &[(&str, Value)] = &[
        ("split.no", number.into()),
        ("split.count", count.into()),
        ("split.tensors.count", total.into()),
    ];
    let tensor = Tensor::from_slice(&[1], &[f32::from(number)]).unwrap();
    let path = dir.join(format!("m-{:05}-of-{:05}.gguf", names.0, names.1));
    gguf::write(path, metadata, &[(format!("t{number}").as_str(), &tensor)]).unwrap();
}

#[test]
fn split_models_open_by_any_part() {
    let dir = tempfile::tempdir().unwrap();
    (0..3).for_each(|n| write_part(dir.path(), n, 3, (n + 1, 3), 3));
    let parts = (1..4).map(|n| dir.path().join(format!("m-{n:05}-of-00003.gguf")));
    for path in parts.chain([dir.path().to_path_buf()]) {
        let model = open(&path).unwrap();
        assert!(model.path().ends_with("m-00001-of-00003.gguf"));
        let tensors = model.tensors();
        assert_eq!(tensors.iter().map(|t| t.name).collect::<Vec<_>>(), ["t0", "t1", "t2"]);
        assert!(tensors[2].file.ends_with("m-00003-of-00003.gguf"));
        assert_eq!(model.tensor("t2").unwrap().as_slice::<f32>().unwrap(), [2.0]);
    }
}

#[test]
fn broken_splits() {
    let error = |fill: &dyn Fn(&std::path::Path)| -> ImportError {
        let dir = tempfile::tempdir().unwrap();
        write_part(dir.path(), 0, 2, (1, 2), 2);
        fill(dir.path());
        Gguf::open(dir.path().join("m-00001-of-00002.gguf")).unwrap_err()
    };
    let missing = error(&|_| {});
    assert_eq!(missing.kind, ErrorKind::Io);
    assert!(message(&missing).starts_with("m-00002-of-00002.gguf: cannot open"), "{missing}");
    let wrong = error(&|dir| write_part(dir, 0, 2, (2, 2), 2));
    assert_eq!(
        message(&wrong),
        "m-00002-of-00002.gguf: invalid: is not file 2 of 2 of the model, as its name says"
    );
    let count = error(&|dir| {
        write_part(dir, 0, 2, (1, 2), 5);
        write_part(dir, 1, 2, (2, 2), 5);
    });
    assert!(
        message(&count)
            .ends_with(r#"key "split.tensors.count": invalid: says 5, the files hold 2 tensors"#)
    );
    let number = error(&|dir| write_part(dir, 7, 2, (1, 2), 2));
    assert!(message(&number).contains(r#"key "split.no": invalid: file number 7"#), "{number}");
    let same = error(&|dir| {
        let values: &[(&str, Value)] = &[("split.no", 1u16.into()), ("split.count", 2u16.into())];
        let t = Tensor::from_slice(&[1], &[0f32]).unwrap();
        gguf::write(dir.join("m-00002-of-00002.gguf"), values, &[("t0", &t)]).unwrap();
    });
    assert!(message(&same).contains(r#"tensor "t0": invalid: also in"#), "{same}");

    let dir = tempfile::tempdir().unwrap();
    write_part(dir.path(), 0, 2, (1, 2), 2);
    let renamed = dir.path().join("renamed.gguf");
    std::fs::rename(dir.path().join("m-00001-of-00002.gguf"), &renamed).unwrap();
    let e = Gguf::open(&renamed).unwrap_err();
    assert!(message(&e).ends_with("must be called NAME-00001-of-00002.gguf"), "{e}");
}

#[test]
fn writing_refuses_repeats_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let t = Tensor::from_slice(&[1], &[0f32]).unwrap();
    let five = Tensor::from_slice(&[1, 1, 1, 1, 1], &[0f32]).unwrap();
    let wide = Tensor::from_slice(&[1], &[0u64]).unwrap();
    let values: &[(&str, Value)] = &[("k", true.into()), ("k", false.into())];
    assert_eq!(gguf::write(&path, values, &[]).unwrap_err().kind, ErrorKind::Invalid);
    let twice = gguf::write(&path, &[], &[("t", &t), ("t", &t)]).unwrap_err();
    assert_eq!(message(&twice), r#"m.gguf: tensor "t": invalid: tensor occurs twice"#);
    for bad in [&five, &wide] {
        let e = gguf::write(&path, &[], &[("t", &t), ("bad", bad)]).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Unsupported);
    }
    let alignment: &[(&str, Value)] = &[("general.alignment", 3u32.into())];
    assert_eq!(gguf::write(&path, alignment, &[]).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
