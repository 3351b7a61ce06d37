//! Tokenizer files: llama2.c's `tokenizer.bin` and SentencePiece's `.model`, from the same bytes.
#![no_main]

use import::tokenizer_files::{Llama2cVocab, SentencePiece};
use libfuzzer_sys::fuzz_target;
use tensor::Bytes;

fuzz_target!(|data: &[u8]| {
    if let Ok(vocab) = Llama2cVocab::from_bytes("fuzz.bin", Bytes::copy_from(data)) {
        for (piece, _) in vocab.pieces() {
            assert!(piece.len() <= vocab.max_piece_len());
        }
    }
    if let Ok(model) = SentencePiece::from_bytes("fuzz.model", data) {
        let ids = [model.unk_id, model.bos_id, model.eos_id, model.pad_id];
        assert!(ids.iter().flatten().all(|&id| (id as usize) < model.pieces.len()));
    }
});
