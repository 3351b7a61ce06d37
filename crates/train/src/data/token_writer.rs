//! Writes token files; the format is in `token_file`.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use super::token_file::{CHECKSUM, HAS_CHECKSUM, HEADER, MAGIC, VERSION};
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
    /// Files that are complete, under other names until all are, so that what fails leaves none. They are not kept
    /// open: there may be more than a process may have open.
    closed: Vec<TempPath>,
    documents: usize,
}

/// The file being written.
struct Open {
    out: BufWriter<NamedTempFile>,
    /// CRC32C of what is behind the header.
    checksum: u32,
    ends: Vec<u64>,
    mask: Vec<u8>,
    masked: bool,
    tokens: usize,
}

impl TokenWriter {
    /// A writer of the file `path`, which appears when it is finished. With `shard`, a file takes documents
    /// until it has so many tokens, and the files are `path` with `-00000`, `-00001` … before the extension; none of
    /// such a name may be there before.
    ///
    /// # Errors
    /// When there are no ids or more than 2^31, or a file is in the way.
    pub fn new(path: &Path, vocab: usize, shard: Option<usize>) -> Result<Self> {
        if vocab == 0 || vocab > 1 << 31 {
            return Err(TrainError::file(path, format!("a vocabulary of {vocab} ids")));
        }
        let path = path.to_owned();
        let writer =
            TokenWriter { path, vocab, shard, open: None, closed: Vec::new(), documents: 0 };
        match writer.shards()?.into_iter().min() {
            // Of a longer set the last would stay, and be read with this one.
            Some(name) => {
                let path = writer.path.with_file_name(name);
                Err(TrainError::file(&path, "is there already; remove the shards of before"))
            }
            None => Ok(writer),
        }
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
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(Open::create(&self.path)?),
        };
        let bytes: Vec<u8> = match self.vocab <= SHORT {
            true => ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect(),
            false => ids.iter().flat_map(|&id| id.to_le_bytes()).collect(),
        };
        open.put(&bytes).map_err(TrainError::io(&self.path, "write"))?;
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

    /// Ends the last file, gives all their names, and returns these.
    ///
    /// # Errors
    /// When there was no document, or the system refuses; there is then no file.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        self.close()?;
        if self.closed.is_empty() {
            return Err(TrainError::file(&self.path, "there is no document to write"));
        }
        let names: Vec<PathBuf> = (0..self.closed.len()).map(|i| self.name(i)).collect();
        for (i, file) in std::mem::take(&mut self.closed).into_iter().enumerate() {
            if let Err(e) = place(file, &names[i]) {
                // What cannot be removed either stays; the first error says why.
                names[..i].iter().for_each(|name| drop(fs::remove_file(name)));
                return Err(e);
            }
        }
        Ok(names)
    }

    /// The path of file `number`.
    fn name(&self, number: usize) -> PathBuf {
        if self.shard.is_none() {
            return self.path.clone();
        }
        let (begin, end) = self.around();
        self.path.with_file_name(format!("{begin}{number:05}{end}"))
    }

    /// What is before and behind the number in the name of a shard.
    fn around(&self) -> (String, String) {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let end = self.path.extension().unwrap_or("bin".as_ref()).to_string_lossy();
        (format!("{stem}-"), format!(".{end}"))
    }

    /// The names of the shards that are there.
    fn shards(&self) -> Result<Vec<String>> {
        if self.shard.is_none() {
            return Ok(Vec::new());
        }
        let (begin, end) = self.around();
        let is_shard = |name: &String| {
            let number = name.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(&end));
            number.is_some_and(|n| n.len() >= 5 && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        let dir = parent.unwrap_or(Path::new("."));
        let entries = fs::read_dir(dir).map_err(TrainError::io(dir, "read"))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(is_shard).collect())
    }

    fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let file = open.finish(self.vocab).map_err(TrainError::io(&self.path, "write"))?;
        self.closed.push(file);
        Ok(())
    }
}

/// Gives a complete file its name.
fn place(file: TempPath, name: &Path) -> Result<()> {
    // Writable, as some systems put only such on disk.
    let opened = OpenOptions::new().write(true).open(&file);
    let opened = opened.map_err(TrainError::io(name, "write"))?;
    Ok(import::end_file(BufWriter::new(NamedTempFile::from_parts(opened, file)), name)?)
}

impl Open {
    fn create(path: &Path) -> Result<Self> {
        let mut out = import::begin_file(path)?;
        out.write_all(&[0; HEADER]).map_err(TrainError::io(path, "write"))?;
        Ok(Open { out, checksum: 0, ends: Vec::new(), mask: Vec::new(), masked: false, tokens: 0 })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.out.write_all(bytes)
    }

    fn finish(mut self, vocab: usize) -> io::Result<TempPath> {
        let width = if vocab <= SHORT { 2 } else { 4 };
        let bytes = HEADER + self.tokens * width;
        self.put(&[0; 8][..bytes.next_multiple_of(8) - bytes])?;
        let ends: Vec<u8> = self.ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        self.put(&ends)?;
        if self.masked {
            let mask = std::mem::take(&mut self.mask);
            self.put(&mask)?;
        }
        let mut header =
            [&MAGIC[..], &VERSION.to_le_bytes(), &(width as u32).to_le_bytes()].concat();
        for number in [vocab, self.tokens, self.ends.len(), usize::from(self.masked)] {
            header.extend((number as u64).to_le_bytes());
        }
        debug_assert_eq!(header.len(), CHECKSUM);
        let checksum = crc32c::crc32c_append(self.checksum, &header);
        header.extend((HAS_CHECKSUM | u64::from(checksum)).to_le_bytes());
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        let file = self.out.into_inner().map_err(|e| e.into_error())?;
        Ok(file.into_temp_path())
    }
}
