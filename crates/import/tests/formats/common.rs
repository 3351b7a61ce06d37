//! What the tests of this crate share: deterministic bytes, and sample files.

use rigel_import::gguf::{self, Value};
use rigel_import::{ImportError, safetensors};
use tensor::{Bytes, DType, Tensor};

/// `len` bytes that look random and are the same every time (an xorshift generator).
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// The message without the directory of the file.
pub(crate) fn message(e: &ImportError) -> String {
    let dir = e.file.parent().map(|dir| format!("{}/", dir.display()));
    let text = e.to_string();
    dir.map_or(text.clone(), |dir| text.replace(&dir, ""))
}

/// The contents that `fill` writes to a file of its own.
pub(crate) fn written(fill: impl FnOnce(&std::path::Path)) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sample");
    fill(&path);
    std::fs::read(path).unwrap()
}

/// A GGUF file with metadata of every kind and tensors of three types.
pub(crate) fn sample_gguf() -> Vec<u8> {
    let f = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let q = Tensor::new(DType::Q4_1, &[2, 32], Bytes::copy_from(&noise(40))).unwrap();
    let h = Tensor::new(DType::F16, &[3], Bytes::copy_from(&noise(6))).unwrap();
    let (tokens, scores): (&[&str], &[f32]) = (&["<s>", "", "ä"], &[0.0, -1.5, 2.0]);
    let metadata: &[(&str, Value)] = &[
        ("general.architecture", "llama".into()),
        ("general.alignment", 32u32.into()),
        ("big", u64::MAX.into()),
        ("flag", true.into()),
        ("tokens", tokens.into()),
        ("scores", scores.into()),
    ];
    written(|path| gguf::write(path, metadata, &[("a", &f), ("b", &q), ("c", &h)]).unwrap())
}

/// A safetensors file with two tensors and metadata.
pub(crate) fn sample_safetensors() -> Vec<u8> {
    let f = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let b = Tensor::new(DType::Bf16, &[4], Bytes::copy_from(&noise(8))).unwrap();
    let metadata = [("format", "pt")];
    written(|path| safetensors::write(path, &metadata, &[("a", &f), ("b", &b)]).unwrap())
}

/// The configuration of [`sample_peft`].
pub(crate) const PEFT_CONFIG: &str = concat!(
    r#"{"peft_type":"LORA","r":2,"lora_alpha":4,"bias":"none","#,
    r#""rank_pattern":{"b.*":1},"target_modules":["a","b"]}"#
);

/// An adapter of two layers: its configuration, and behind it its factors.
pub(crate) fn sample_peft() -> Vec<u8> {
    let factor = |shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
        Tensor::from_slice(shape, &values).unwrap()
    };
    let tensors = [
        ("base_model.model.a.lora_A.weight", factor(&[2, 3])),
        ("base_model.model.a.lora_B.weight", factor(&[1, 2])),
        ("base_model.model.x.b.lora_A.weight", factor(&[1, 2])),
        ("base_model.model.x.b.lora_B.weight", factor(&[2, 1])),
    ];
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
    let weights = written(|path| safetensors::write(path, &[], &named).unwrap());
    [PEFT_CONFIG.as_bytes(), &weights].concat()
}

/// The dimensions that the llama2.c samples have, and the 4-byte numbers behind them.
pub(crate) const LLAMA2C_DIMS: [i32; 7] = [4, 6, 2, 2, 1, 5, 3];

/// A llama2.c checkpoint of version 0; `vocab` sets the sign of the vocabulary.
pub(crate) fn sample_llama2c(shared: bool) -> Vec<u8> {
    let [dim, hidden, layers, heads, kv_heads, vocab, seq] = LLAMA2C_DIMS;
    let mut header = LLAMA2C_DIMS;
    header[5] = if shared { vocab } else { -vocab };
    let kv = dim / heads * kv_heads;
    let layer = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * dim * hidden;
    let copies = if shared { 1 } else { 2 };
    let floats = copies * vocab * dim + layers * layer + dim + seq * (dim / heads);
    let mut bytes: Vec<u8> = header.iter().flat_map(|v| v.to_le_bytes()).collect();
    bytes.extend((0..floats).flat_map(|i| (i as f32).to_le_bytes()));
    bytes
}

/// llama2.c's `tokenizer.bin` with three pieces.
pub(crate) fn sample_vocab() -> Vec<u8> {
    let mut bytes = 5i32.to_le_bytes().to_vec();
    for (score, piece) in [(0f32, "<unk>"), (-1.0, " a"), (-2.5, "é")] {
        bytes.extend(score.to_le_bytes());
        bytes.extend((piece.len() as i32).to_le_bytes());
        bytes.extend(piece.as_bytes());
    }
    bytes
}

/// A SentencePiece model: two pieces, a trainer's and a normalizer's part.
pub(crate) fn sample_sentencepiece() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut field = |tag: u8, body: &[u8]| {
        bytes.extend([tag << 3 | 2, body.len() as u8]);
        bytes.extend(body);
    };
    // A piece: text, score (tag 2, four bytes), type (tag 3).
    field(1, b"\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02");
    field(1, b"\x0a\x01a\x15\x00\x00\x80\xbf");
    // model_type 2, byte_fallback (35), unk_id 0 (40), bos_id -1 (41), eos_id 1 (42).
    let minus_one = b"\xc8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    field(2, &[b"\x18\x02\x98\x02\x01\xc0\x02\x00", &minus_one[..], b"\xd0\x02\x01"].concat());
    // name, no dummy prefix (3).
    field(3, b"\x0a\x08identity\x18\x00");
    bytes
}
