//! Writes token files; the format is in `token_file`.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::token_file::{HEADER, MAGIC, VERSION};
use crate::{Result, TrainError};

/// Ids of which two bytes hold every one.
const SHORT: usize = 1 << 16;

/// Writes documents to a token file, or to several of bounded size.
pub struct TokenWriter {
    path: PathBuf,
    vocab: usize,
    /// Tokens after which the next document begins a new file.
    shard: Option<usize>,
    open: Option<Open>,
    written: Vec<PathBuf>,
    documents: usize,
}

/// The file being written.
struct Open {
    out: BufWriter<NamedTempFile>,
    ends: Vec<u64>,
    mask: Vec<u8>,
    masked: bool,
    tokens: usize,
}

impl TokenWriter {
    /// A writer of the file `path`, which appears when it is finished. With `shard`, a file takes documents
    /// until it has so many tokens, and the files are `path` with `-00000`, `-00001` … before the extension.
    ///
    /// # Errors
    /// When there are no ids or more than 2^31.
    pub fn new(path: &Path, vocab: usize, shard: Option<usize>) -> Result<Self> {
        if vocab == 0 || vocab > 1 << 31 {
            return Err(TrainError::file(path, format!("a vocabulary of {vocab} ids")));
        }
        let path = path.to_owned();
        Ok(TokenWriter { path, vocab, shard, open: None, written: Vec::new(), documents: 0 })
    }

    /// Adds a document. `counts` says of each token whether it is to be predicted; by default all are.
    /// A document without tokens is left out.
    ///
    /// # Errors
    /// When an id is not in the vocabulary or the system refuses.
    ///
    /// # Panics
    /// When `counts` is of another length.
    pub fn document(&mut self, ids: &[u32], counts: Option<&[bool]>) -> Result<()> {
        assert!(counts.is_none_or(|c| c.len() == ids.len()), "a flag for each token");
        let number = self.documents;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocab) {
            let why = format!("document {number}: id {id}, the vocabulary has {} ids", self.vocab);
            return Err(TrainError::file(&self.path, why));
        }
        if ids.is_empty() {
            return Ok(());
        }
        self.documents += 1;
        let failed = TrainError::io(&self.path, "write");
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(Open::create(&self.path)?),
        };
        let put = |open: &mut Open| match self.vocab <= SHORT {
            true => ids.iter().try_for_each(|&id| open.out.write_all(&(id as u16).to_le_bytes())),
            false => ids.iter().try_for_each(|&id| open.out.write_all(&id.to_le_bytes())),
        };
        put(open).map_err(failed)?;
        for i in 0..ids.len() {
            let at = open.tokens + i;
            let counts = counts.is_none_or(|c| c[i]);
            if at.is_multiple_of(8) {
                open.mask.push(0);
            }
            open.mask[at / 8] |= u8::from(counts) << (at % 8);
            open.masked |= !counts;
        }
        open.tokens += ids.len();
        open.ends.push(open.tokens as u64);
        let full = self.shard.is_some_and(|n| open.tokens >= n);
        if full { self.close() } else { Ok(()) }
    }

    /// Ends the last file and returns the paths of all.
    ///
    /// # Errors
    /// When there was no document, or the system refuses.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        self.close()?;
        if self.written.is_empty() {
            return Err(TrainError::file(&self.path, "there is no document to write"));
        }
        Ok(self.written)
    }

    fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let path = match self.shard {
            None => self.path.clone(),
            Some(_) => {
                let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
                let end = self.path.extension().unwrap_or("bin".as_ref()).to_string_lossy();
                self.path.with_file_name(format!("{stem}-{:05}.{end}", self.written.len()))
            }
        };
        if self.shard.is_some() && path.symlink_metadata().is_ok() {
            // Of a longer set the last would stay, and be read with this one.
            return Err(TrainError::file(&path, "is there already; remove the shards of before"));
        }
        let out = open.finish(self.vocab).map_err(TrainError::io(&path, "write"))?;
        import::end_file(out, &path)?;
        self.written.push(path);
        Ok(())
    }
}

impl Open {
    fn create(path: &Path) -> Result<Self> {
        let mut out = import::begin_file(path)?;
        out.write_all(&[0; HEADER]).map_err(TrainError::io(path, "write"))?;
        Ok(Open { out, ends: Vec::new(), mask: Vec::new(), masked: false, tokens: 0 })
    }

    fn finish(mut self, vocab: usize) -> std::io::Result<BufWriter<NamedTempFile>> {
        let width = if vocab <= SHORT { 2 } else { 4 };
        let bytes = HEADER + self.tokens * width;
        self.out.write_all(&[0; 8][..bytes.next_multiple_of(8) - bytes])?;
        self.ends.iter().try_for_each(|end| self.out.write_all(&end.to_le_bytes()))?;
        if self.masked {
            self.out.write_all(&self.mask)?;
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(MAGIC)?;
        self.out.write_all(&VERSION.to_le_bytes())?;
        self.out.write_all(&(width as u32).to_le_bytes())?;
        for number in [vocab, self.tokens, self.ends.len(), usize::from(self.masked)] {
            self.out.write_all(&(number as u64).to_le_bytes())?;
        }
        Ok(self.out)
    }
}
