//! Tokenizer files made by hand, and broken ones.

use rigel_import::tokenizer_files::{Llama2cVocab, ModelType, PieceType, SentencePiece};
use tensor::Bytes;

use crate::common::{message, sample_sentencepiece, sample_vocab};

fn vocab(bytes: &[u8]) -> Result<Llama2cVocab, String> {
    Llama2cVocab::from_bytes("t.bin", Bytes::copy_from(bytes)).map_err(|e| message(&e))
}

fn model(bytes: &[u8]) -> Result<SentencePiece, String> {
    SentencePiece::from_bytes("t.model", bytes).map_err(|e| message(&e))
}

#[test]
fn llama2c_vocabularies() {
    let v = vocab(&sample_vocab()).unwrap();
    let pieces: Vec<_> = v.pieces().collect();
    assert_eq!(pieces, [(&b"<unk>"[..], 0.0), (b" a", -1.0), ("é".as_bytes(), -2.5)]);
    let with = |at: usize, value: i32| {
        let mut bytes = sample_vocab();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        vocab(&bytes).unwrap_err()
    };
    assert_eq!(with(0, -1), "t.bin: offset 0: invalid: the longest piece's length is -1");
    assert_eq!(with(0, 4), "t.bin: offset 8: invalid: piece 0 of 5 bytes, the file says at most 4");
    assert_eq!(with(8, -9), "t.bin: offset 8: invalid: a piece's length is -9");
    let mut long = sample_vocab();
    long[0..4].copy_from_slice(&i32::MAX.to_le_bytes());
    long[8..12].copy_from_slice(&i32::MAX.to_le_bytes());
    assert!(
        vocab(&long)
            .unwrap_err()
            .starts_with("t.bin: offset 12: invalid: file ends inside a piece")
    );
}

#[test]
fn sentencepiece_models() {
    let m = model(&sample_sentencepiece()).unwrap();
    assert_eq!((m.pieces.len(), m.model_type, m.byte_fallback), (2, ModelType::Bpe, true));
    assert_eq!(
        (m.pieces[0].piece_type, m.pieces[1].piece_type),
        (PieceType::Unknown, PieceType::Normal)
    );
    assert_eq!((m.pieces[1].text.as_str(), m.pieces[1].score), ("a", -1.0));
    assert_eq!((m.unk_id, m.bos_id, m.eos_id, m.pad_id), (Some(0), None, Some(1), None));
    assert_eq!((m.normalizer.as_str(), m.add_dummy_prefix), ("identity", false));
    // Not in the file: the defaults of the format.
    assert!(m.remove_extra_whitespaces && m.escape_whitespaces && !m.treat_whitespace_as_suffix);
}

#[test]
fn broken_sentencepiece_models() {
    assert_eq!(model(b"").unwrap_err(), "t.model: invalid: a SentencePiece model without pieces");
    assert!(model(b"\x0a\xff\xff\xff\xff\x7f").unwrap_err().contains("not a SentencePiece model"));
    let not_text = b"\x0a\x03\x0a\x01\xff";
    assert!(model(not_text).unwrap_err().contains("Piece.text: Model.pieces: invalid string"));
    let piece_type = b"\x0a\x05\x0a\x01a\x18\x09";
    assert_eq!(model(piece_type).unwrap_err(), "t.model: invalid: piece 0 is of type 9");
    let piece = b"\x0a\x03\x0a\x01a";
    let with = |trainer: &[u8]| model(&[&piece[..], trainer].concat()).unwrap_err();
    // The format's defaults put begin at 1 and end at 2.
    assert_eq!(
        with(b""),
        r#"t.model: key "trainer_spec.bos_id": invalid: id 1 in a vocabulary of 1"#
    );
    assert_eq!(
        with(b"\x12\x02\x18\x07"),
        r#"t.model: key "trainer_spec.model_type": invalid: model type 7"#
    );
}
