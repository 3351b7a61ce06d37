//! Real files of the folder `shared`, beside the repository.

use rigel_import::tokenizer_files::{Llama2cVocab, ModelType, Piece, PieceType, SentencePiece};
use rigel_import::{ModelFile, open};
use testkit::shared_dir;

#[test]
fn stories260k() {
    let path = shared_dir().join("models/stories260K.bin");
    let model = open(&path).unwrap();
    assert_eq!((model.path(), model.format_name().as_str()), (path.as_path(), "llama2.c v0"));
    let ModelFile::Llama2c(stories) = &model else { panic!("{model:?}") };
    let c = stories.config();
    assert_eq!((c.dim, c.hidden_dim, c.n_layers, c.n_heads, c.n_kv_heads), (64, 172, 5, 8, 4));
    assert_eq!((c.vocab_size, c.seq_len, c.shared_classifier), (512, 512, true));

    let tensors = model.tensors();
    assert_eq!(tensors.len(), 2 + 5 * 9);
    let embedding = model.tensor("model.embed_tokens.weight").unwrap();
    assert_eq!(embedding.shape(), [512, 64]);
    assert!(embedding.bytes().is_mapped());
    let k = model.tensor("model.layers.4.self_attn.k_proj.weight").unwrap();
    assert_eq!(k.shape(), [32, 64]);
    // Norm weights are near one, so that a tensor read at a wrong offset shows.
    let norm = model.tensor("model.norm.weight").unwrap();
    assert!(norm.as_slice::<f32>().unwrap().iter().all(|w| (0.1..30.0).contains(w)));
    assert!(!model.contains("lm_head.weight"));
}

#[test]
fn llama2c_vocabulary() {
    let vocab = Llama2cVocab::open(shared_dir().join("models/tok512.bin")).unwrap();
    assert_eq!((vocab.len(), vocab.max_piece_len()), (512, 7));
    let pieces: Vec<_> = vocab.pieces().collect();
    assert_eq!(pieces[0].0, b"<unk>");
    assert_eq!(pieces[3].0, b"<0x00>");
}

#[test]
fn llama2_sentencepiece() {
    let model = SentencePiece::open(shared_dir().join("models/llama2_tokenizer.model")).unwrap();
    assert_eq!((model.pieces.len(), model.model_type), (32000, ModelType::Bpe));
    assert!(model.byte_fallback && model.add_dummy_prefix && !model.remove_extra_whitespaces);
    assert_eq!((model.unk_id, model.bos_id, model.eos_id), (Some(0), Some(1), Some(2)));
    assert_eq!((model.pad_id, model.normalizer.as_str()), (None, "identity"));
    let piece = |id: usize| model.pieces[id].clone();
    let expected = |text: &str, score, piece_type| Piece { text: text.into(), score, piece_type };
    assert_eq!(piece(0), expected("<unk>", 0.0, PieceType::Unknown));
    assert_eq!(piece(1), expected("<s>", 0.0, PieceType::Control));
    assert_eq!(piece(3), expected("<0x00>", 0.0, PieceType::Byte));
    assert_eq!(piece(259), expected("▁▁", -1e9, PieceType::Normal));
    assert_eq!(piece(260), expected("▁t", -1.0, PieceType::Normal));
}
