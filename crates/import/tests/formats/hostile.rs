//! Every reader over damaged files: cut anywhere, with bytes changed, with absurd numbers put in.
//! None may panic, and each error is one line that begins with the file.

use proptest::prelude::*;
use rigel_import::gguf::{Array, Gguf, Value};
use rigel_import::tokenizer_files::{Llama2cVocab, SentencePiece};
use rigel_import::{Llama2c, PeftAdapter, Result, SafeTensors};
use tensor::Bytes;

use crate::common;

struct Format {
    sample: fn() -> Vec<u8>,
    /// Reads everything that the file holds.
    read: fn(&[u8]) -> Result<()>,
    /// Whether a file that is cut short can be a whole one.
    cut_may_be_whole: bool,
}

const FORMATS: &[Format] = &[
    // The padding behind the last tensor can be cut.
    Format { sample: common::sample_gguf, read: read_gguf, cut_may_be_whole: true },
    Format { sample: gguf_without_padding, read: read_gguf, cut_may_be_whole: false },
    Format { sample: common::sample_peft, read: read_peft, cut_may_be_whole: false },
    Format { sample: common::sample_safetensors, read: read_safetensors, cut_may_be_whole: false },
    Format { sample: || common::sample_llama2c(true), read: read_llama2c, cut_may_be_whole: false },
    Format { sample: llama2c_int8, read: read_llama2c, cut_may_be_whole: false },
    // Both are lists that may end after any piece.
    Format { sample: common::sample_vocab, read: read_vocab, cut_may_be_whole: true },
    Format {
        sample: common::sample_sentencepiece,
        read: read_sentencepiece,
        cut_may_be_whole: true,
    },
];

fn gguf_without_padding() -> Vec<u8> {
    let mut bytes = common::sample_gguf();
    // The last tensor has 6 bytes and 26 of padding.
    bytes.truncate(bytes.len() - 26);
    bytes
}

fn llama2c_int8() -> Vec<u8> {
    let mut bytes = b"24ka\x02\0\0\0".to_vec();
    // One layer of width 4, feed-forward 4, two heads, two key-value heads, 2 tokens.
    bytes.extend([4i32, 4, 1, 2, 2, 2, 8].iter().flat_map(|v| v.to_le_bytes()));
    bytes.extend([1, 2, 0, 0, 0]);
    bytes.resize(256, 0);
    let (norms, weights) = (3 * 4 * 4, 2 * 4 + 7 * 16);
    bytes.extend(common::noise(norms + weights + weights / 2 * 4));
    bytes
}

fn read_gguf(bytes: &[u8]) -> Result<()> {
    fn visit(array: &Array) {
        (0..array.len()).for_each(|i| {
            array.bytes_of(i);
            array.scalar_at(i);
        });
        array.arrays().iter().for_each(visit);
    }
    let model = Gguf::from_bytes("m", Bytes::copy_from(bytes))?;
    for (_, value) in model.metadata().iter() {
        if let Value::Array(array) = value {
            visit(array);
        }
    }
    model.tensors().try_for_each(|(name, _)| model.tensor(name).map(drop))
}

fn read_peft(bytes: &[u8]) -> Result<()> {
    let (config, weights) = bytes.split_at(common::PEFT_CONFIG.len().min(bytes.len()));
    let adapter = PeftAdapter::from_bytes("m", config, Bytes::copy_from(weights))?;
    assert!(adapter.layers().iter().all(|l| l.rank() == l.b.shape()[1]));
    Ok(())
}

fn read_safetensors(bytes: &[u8]) -> Result<()> {
    let file = SafeTensors::from_bytes("m", Bytes::copy_from(bytes))?;
    file.tensors().try_for_each(|(name, _)| file.tensor(name).map(drop))
}

fn read_llama2c(bytes: &[u8]) -> Result<()> {
    let model = Llama2c::from_bytes("m", Bytes::copy_from(bytes))?;
    model.tensors().try_for_each(|(name, _)| model.tensor(name).map(drop))
}

fn read_vocab(bytes: &[u8]) -> Result<()> {
    Llama2cVocab::from_bytes("m", Bytes::copy_from(bytes))
        .map(|v| assert_eq!(v.pieces().count(), v.len()))
}

fn read_sentencepiece(bytes: &[u8]) -> Result<()> {
    SentencePiece::from_bytes("m", bytes).map(drop)
}

/// The outcome, having checked the message of an error.
fn fails(format: &Format, bytes: &[u8]) -> bool {
    let Err(e) = (format.read)(bytes) else { return false };
    let text = e.to_string();
    assert!(
        (text.starts_with("m: ") || text.starts_with("m/adapter_"))
            && !text.contains('\n')
            && text.len() < 600,
        "{text}"
    );
    true
}

#[test]
fn samples_are_whole() {
    for format in FORMATS {
        (format.read)(&(format.sample)()).unwrap();
    }
}

#[test]
fn cut_anywhere() {
    for format in FORMATS {
        let sample = (format.sample)();
        for len in 0..sample.len() {
            let failed = fails(format, &sample[..len]);
            assert!(failed || format.cut_may_be_whole, "{len} of {} bytes pass", sample.len());
        }
    }
}

#[test]
fn each_bit_flipped() {
    for format in FORMATS {
        let mut bytes = (format.sample)();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            fails(format, &bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn absurd_numbers_anywhere() {
    const NUMBERS: [u64; 8] =
        [0, 1, u64::MAX, u64::MAX - 31, 1 << 63, 1 << 62, u32::MAX as u64, 1 << 31];
    for format in FORMATS {
        let sample = (format.sample)();
        for at in 0..sample.len() - 4 {
            for number in NUMBERS {
                for width in [4, 8] {
                    let mut bytes = sample.clone();
                    let end = (at + width).min(bytes.len());
                    bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                    fails(format, &bytes);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn bytes_changed_inserted_and_removed(
        format in 0..FORMATS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..12),
    ) {
        let format = &FORMATS[format];
        let mut bytes = (format.sample)();
        for (index, byte, change) in changes {
            let at = index.index(bytes.len());
            match change {
                0 => bytes.insert(at, byte),
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes[at] = byte,
            }
        }
        fails(format, &bytes);
    }

    #[test]
    fn noise_behind_a_good_beginning(
        format in 0..FORMATS.len(),
        keep in any::<prop::sample::Index>(),
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let format = &FORMATS[format];
        let mut bytes = (format.sample)();
        bytes.truncate(keep.index(bytes.len()));
        bytes.extend(tail);
        fails(format, &bytes);
    }
}
