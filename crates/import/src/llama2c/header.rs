//! The header of a llama2.c checkpoint: version, dimensions, and how weights are grouped.

use std::path::Path;

use super::Config;
use crate::reader::Reader;
use crate::{ImportError, Result};

/// First bytes of versions 1 and 2: `ak42` as a big-endian number, stored little-endian.
pub(super) const MAGIC: [u8; 4] = 0x616b_3432u32.to_le_bytes();
/// Where the weights of versions 1 and 2 begin.
const PADDED_LEN: usize = 256;
/// Far beyond every Llama; keeps the table of tensors small when the file is hostile.
const MAX_LAYERS: usize = 4096;

pub(super) struct Header {
    pub(super) version: u32,
    pub(super) config: Config,
    pub(super) group_size: Option<usize>,
    /// Where the weights begin.
    pub(super) len: usize,
}

impl Header {
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(path, bytes);
        if !bytes.starts_with(&MAGIC) {
            let config = read_config(&mut r, 0)?;
            return Ok(Header { version: 0, config, group_size: None, len: r.pos() });
        }
        r.take(MAGIC.len() as u64, "the magic")?;
        let version = r.u32("the version")?;
        if !(1..=2).contains(&version) {
            let why = format!("llama2.c checkpoint version {version}");
            return Err(ImportError::unsupported(path, why).at(MAGIC.len()));
        }
        let config = read_config(&mut r, version)?;
        let group_size =
            if version == 2 { Some(read_positive(&mut r, "the group size")?) } else { None };
        r.take((PADDED_LEN - r.pos()) as u64, "the header's padding")?;
        Ok(Header { version, config, group_size, len: PADDED_LEN })
    }
}

/// The dimensions, and whether the output matrix is the embedding: version 0 says so by the sign
/// of the vocabulary's size, later ones by a flag.
fn read_config(r: &mut Reader<'_>, version: u32) -> Result<Config> {
    let start = r.pos();
    let mut config = Config {
        dim: read_positive(r, "the width")?,
        hidden_dim: read_positive(r, "the feed-forward width")?,
        n_layers: read_positive(r, "the number of layers")?,
        n_heads: read_positive(r, "the number of heads")?,
        n_kv_heads: read_positive(r, "the number of key-value heads")?,
        vocab_size: 0,
        seq_len: 0,
        shared_classifier: true,
    };
    if version == 0 {
        let at = r.pos();
        let vocab_size = r.i32("the vocabulary's size")?;
        if vocab_size == 0 {
            return Err(ImportError::invalid(r.file, "the vocabulary's size is 0").at(at));
        }
        config.vocab_size = vocab_size.unsigned_abs() as usize;
        config.shared_classifier = vocab_size > 0;
    } else {
        config.vocab_size = read_positive(r, "the vocabulary's size")?;
    }
    config.seq_len = read_positive(r, "the sequence length")?;
    if version > 0 {
        let at = r.pos();
        config.shared_classifier = match r.u8("the shared-classifier flag")? {
            flag @ 0..=1 => flag == 1,
            flag => {
                let why = format!("the shared-classifier flag is {flag}");
                return Err(ImportError::invalid(r.file, why).at(at));
            }
        };
    }
    check(r.file, &config).map_err(|e| e.at(start))?;
    Ok(config)
}

fn read_positive(r: &mut Reader<'_>, what: &str) -> Result<usize> {
    let at = r.pos();
    let v = r.i32(what)?;
    match usize::try_from(v) {
        Ok(v @ 1..) => Ok(v),
        _ => Err(ImportError::invalid(r.file, format!("{what} is {v}")).at(at)),
    }
}

fn check(file: &Path, c: &Config) -> Result<()> {
    if c.n_layers > MAX_LAYERS {
        let why = format!("{} layers, at most {MAX_LAYERS}", c.n_layers);
        return Err(ImportError::limit(file, why));
    }
    // Rotary embedding turns pairs, so that a head has an even width.
    let whole = c.dim.is_multiple_of(c.n_heads)
        && c.head_dim().is_multiple_of(2)
        && c.n_heads.is_multiple_of(c.n_kv_heads);
    if !whole {
        let why = format!(
            "width {}, {} heads and {} key-value heads do not divide evenly",
            c.dim, c.n_heads, c.n_kv_heads
        );
        return Err(ImportError::invalid(file, why));
    }
    Ok(())
}
