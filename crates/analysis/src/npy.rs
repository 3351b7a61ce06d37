//! Arrays in numpy's files: `.npy` (one array, format versions 1 to 3) and `.npz` (a ZIP archive of such files).

use std::fs::File;
use std::io::{Cursor, Read, Seek, Write};
use std::path::Path;

use mil::eval::{Arithmetic, Array, Data};
use tensor::{Bytes, DType, Tensor, element_count};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::error::{Context, Result, bail, ensure};
use crate::files;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Largest array read, in bytes: what an archive claims to hold is not believed beyond.
const LARGEST: u64 = 8 << 30;

/// Element types: ours and numpy's (little-endian).
const DTYPES: [(DType, &str); 12] = [
    (DType::Bool, "|b1"),
    (DType::F16, "<f2"),
    (DType::F32, "<f4"),
    (DType::F64, "<f8"),
    (DType::I8, "|i1"),
    (DType::I16, "<i2"),
    (DType::I32, "<i4"),
    (DType::I64, "<i8"),
    (DType::U8, "|u1"),
    (DType::U16, "<u2"),
    (DType::U32, "<u4"),
    (DType::U64, "<u8"),
];

/// Reads the array that `place` names: `FILE.npy`, `FILE.npz:NAME`, or `FILE.npz` if it holds one array.
///
/// # Errors
/// When the file or the array in it is missing, damaged, or of a type that Rigel does not have. They name
/// the file.
pub fn read(place: &str) -> Result<Array> {
    let (path, member) = match place.rsplit_once(':') {
        Some((path, member)) if path.ends_with(".npz") => (path, Some(member)),
        _ => (place, None),
    };
    let read = || -> Result<Array> {
        // Before opening it: a pipe would wait for its writer.
        ensure!(std::fs::metadata(path)?.is_file(), "is no file");
        let file = File::open(path)?;
        if path.ends_with(".npz") { read_member(file, member) } else { parse(&contents(file)?) }
    };
    read().with_context(|| place.to_owned())
}

fn contents(source: impl Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(LARGEST + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= LARGEST, "an array of more than {LARGEST} bytes");
    Ok(bytes)
}

fn read_member(file: impl Read + Seek, member: Option<&str>) -> Result<Array> {
    let mut archive = ZipArchive::new(file)?;
    let mut names = Vec::new();
    for name in archive.file_names() {
        let name = name?;
        names.push(name.strip_suffix(".npy").unwrap_or(&name).to_owned());
    }
    let listed = names.join(", ");
    let wanted = match (member, names.as_slice()) {
        (Some(member), _) => member,
        (None, [only]) => only,
        (None, _) => bail!("holds several arrays ({listed}): name one as FILE.npz:NAME"),
    };
    let index = names.iter().position(|n| n == wanted);
    let index = index.with_context(|| format!("no array \"{wanted}\" (it has {listed})"))?;
    parse(&contents(archive.by_index(index)?)?)
}

/// The array of a `.npy` file's bytes.
///
/// # Errors
/// When they are none, or of a type that Rigel does not have.
pub fn parse(bytes: &[u8]) -> Result<Array> {
    let rest = bytes.strip_prefix(MAGIC).context("not a numpy array")?;
    let (&[major, _minor], rest) = rest.split_first_chunk().context("cut short")?;
    let (len, rest) = match major {
        1 => {
            let (&len, rest) = rest.split_first_chunk().context("cut short")?;
            (usize::from(u16::from_le_bytes(len)), rest)
        }
        2 | 3 => {
            let (&len, rest) = rest.split_first_chunk().context("cut short")?;
            (u32::from_le_bytes(len) as usize, rest)
        }
        _ => bail!("version {major} of numpy's format"),
    };
    let (header, data) = rest.split_at_checked(len).context("cut short")?;
    let header = std::str::from_utf8(header).ok().context("the header is no text")?;
    let descr = field(header, "descr", '\'', '\'')?;
    let dtype = DTYPES.iter().find(|(_, d)| *d == descr).map(|&(d, _)| d);
    let dtype = dtype.with_context(|| format!("elements of type {descr}"))?;
    let size = |d: &str| d.parse::<usize>().ok().with_context(|| format!("\"{d}\" is no size"));
    let shape: Vec<usize> = field(header, "shape", '(', ')')?
        .split(',')
        .map(str::trim)
        .filter(|d| !d.is_empty())
        .map(size)
        .collect::<Result<_>>()?;
    let expected = element_count(&shape).and_then(|n| dtype.byte_len(n));
    ensure!(expected == Some(data.len()), "{} bytes do not make {dtype} {shape:?}", data.len());
    let columns_first = field(header, "fortran_order", ':', ',')?.trim() == "True";
    let stored = if columns_first { shape.iter().rev().copied().collect() } else { shape };
    let tensor = Tensor::new(dtype, &stored, Bytes::copy_from(data))?;
    let array = Array::from_tensor(&tensor)?;
    Ok(if columns_first { transposed(&array) } else { array })
}

/// What stands between `open` and `close` after `'key':` in a header.
fn field<'a>(header: &'a str, key: &str, open: char, close: char) -> Result<&'a str> {
    let find = || {
        let (_, rest) = header.split_once(&format!("'{key}'"))?;
        let (_, rest) = rest.split_once(open)?;
        Some(rest.split_once(close)?.0)
    };
    find().with_context(|| format!("no {key} in the header"))
}

/// The array with its axes in reverse order.
fn transposed(array: &Array) -> Array {
    let shape: Vec<usize> = array.shape.iter().rev().copied().collect();
    // Where the element at row-major place `i` of the result lies: its last axis is the first here.
    let place = |mut i: usize| {
        let (mut place, mut stride) = (0, array.len());
        for (&size, &own) in shape.iter().rev().zip(&array.shape) {
            stride /= own;
            place += i % size * stride;
            i /= size;
        }
        place
    };
    let places = (0..array.len()).map(place);
    let data = match &array.data {
        Data::Float(v) => Data::Float(places.map(|p| v[p]).collect()),
        Data::Int(v) => Data::Int(places.map(|p| v[p]).collect()),
        Data::Bool(v) => Data::Bool(places.map(|p| v[p]).collect()),
        Data::Str(v) => Data::Str(places.map(|p| v[p].clone()).collect()),
    };
    Array { dtype: array.dtype, shape, data }
}

/// The bytes of a `.npy` file of `array`. Floats are written as wide as `arithmetic` holds them, and integers
/// of types that numpy does not have as `int64`.
///
/// # Errors
/// When the elements are strings.
pub fn to_bytes(array: &Array, arithmetic: Arithmetic) -> Result<Vec<u8>> {
    let dtype = match (&array.data, arithmetic) {
        (Data::Float(_), Arithmetic::Exact) => DType::F64,
        (Data::Float(_), Arithmetic::Fp16) if array.dtype == DType::F16 => DType::F16,
        (Data::Float(_), Arithmetic::F32 | Arithmetic::Fp16) => DType::F32,
        (Data::Int(_), _) if DTYPES.iter().any(|(d, _)| *d == array.dtype) => array.dtype,
        (Data::Int(_), _) => DType::I64,
        (Data::Bool(_) | Data::Str(_), _) => array.dtype,
    };
    let descr = DTYPES.iter().find(|(d, _)| *d == dtype).map(|(_, descr)| *descr);
    let descr = descr.with_context(|| format!("numpy's files do not take {dtype}"))?;
    let tensor = Array { dtype, ..array.clone() }.to_tensor()?;
    let shape: Vec<String> = array.shape.iter().map(usize::to_string).collect();
    // As Python writes tuples: a comma after a single item.
    let shape = shape.join(", ") + if shape.len() == 1 { "," } else { "" };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Data begin at a multiple of 64 bytes; the header ends with a line's end.
    let start = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64);
    header.extend(std::iter::repeat_n(' ', start - MAGIC.len() - 4 - header.len() - 1));
    header.push('\n');
    let len = u16::try_from(header.len()).ok().context("too many dimensions")?;
    let bytes: &[u8] = tensor.bytes();
    Ok([MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes(), bytes].concat())
}

/// An archive of arrays in the making; its file appears whole or not at all.
pub struct Archive {
    zip: ZipWriter<Cursor<Vec<u8>>>,
    arithmetic: Arithmetic,
}

impl Archive {
    /// An empty archive of arrays that `arithmetic` makes.
    pub fn new(arithmetic: Arithmetic) -> Self {
        Archive { zip: ZipWriter::new(Cursor::default()), arithmetic }
    }

    /// Adds an array; strings, which numpy's files do not take, are left out.
    ///
    /// # Errors
    /// When there is one of that name, or the archive would be too large.
    pub fn add(&mut self, name: &str, array: &Array) -> Result<()> {
        if matches!(array.data, Data::Str(_)) {
            return Ok(());
        }
        let bytes = to_bytes(array, self.arithmetic)?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(bytes.len()).is_err());
        let mut write = || -> Result<()> {
            self.zip.start_file(format!("{name}.npy"), options)?;
            Ok(self.zip.write_all(&bytes)?)
        };
        write().with_context(|| format!("array {name}"))
    }

    /// Writes the archive to `path`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(self, path: &Path) -> Result<()> {
        files::write(path, &self.zip.finish()?.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dtype: DType, shape: &[usize], data: Data) -> Array {
        Array { dtype, shape: shape.to_vec(), data }
    }

    #[test]
    fn arrays_come_back() {
        let all = [
            array(DType::F16, &[2, 3], Data::Float((0..6).map(f64::from).collect())),
            array(DType::F32, &[], Data::Float(vec![0.5])),
            array(DType::I32, &[3], Data::Int(vec![-1, 0, i64::from(i32::MAX)])),
            array(DType::U8, &[0, 4], Data::Int(vec![])),
            array(DType::Bool, &[1, 2], Data::Bool(vec![true, false])),
        ];
        for a in all {
            let bytes = to_bytes(&a, Arithmetic::Fp16).unwrap();
            assert_eq!(parse(&bytes).unwrap(), a);
            assert_eq!((bytes.len() - a.to_tensor().unwrap().bytes().len()) % 64, 0);
        }
    }

    #[test]
    fn floats_are_as_wide_as_the_arithmetic() {
        let half = array(DType::F16, &[1], Data::Float(vec![1.0 / 3.0]));
        let stored = |arithmetic| parse(&to_bytes(&half, arithmetic).unwrap()).unwrap();
        assert_eq!(stored(Arithmetic::Exact).data, half.data);
        assert_eq!(stored(Arithmetic::F32).data, Data::Float(vec![f64::from(1.0f32 / 3.0)]));
        assert_eq!(stored(Arithmetic::Fp16).dtype, DType::F16);
    }

    #[test]
    fn columns_may_run_first() {
        let mut bytes = to_bytes(
            &array(DType::I32, &[2, 3], Data::Int(vec![1, 4, 2, 5, 3, 6])),
            Arithmetic::F32,
        )
        .unwrap();
        let at = bytes.windows(5).position(|w| w == b"False").unwrap();
        bytes[at..at + 5].copy_from_slice(b"True ");
        let read = parse(&bytes).unwrap();
        assert_eq!(read, array(DType::I32, &[2, 3], Data::Int(vec![1, 2, 3, 4, 5, 6])));
    }

    #[test]
    fn damage_is_refused() {
        let whole =
            to_bytes(&array(DType::F32, &[2], Data::Float(vec![1.0, 2.0])), Arithmetic::F32);
        let whole = whole.unwrap();
        for len in 0..whole.len() {
            parse(&whole[..len]).unwrap_err();
        }
        let changed = |from: &str, to: &str| {
            let at = whole.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
            let mut bytes = whole.clone();
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            parse(&bytes).unwrap_err().to_string()
        };
        assert_eq!(changed("<f4", ">f4"), "elements of type >f4");
        assert_eq!(changed("(2,)", "(-2)"), "\"-2\" is no size");
        assert!(changed("(2,)", "(3,)").contains("8 bytes do not make fp32 [3]"));
    }
}
