//! Reading numpy's `.npz` archives of uncompressed arrays.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mil::eval::{Array, Data};
use tensor::{Bytes, DType, Tensor};

/// The arrays of an archive by name. `int64` becomes `int32`, which is what MIL has.
pub(crate) fn read(path: &Path) -> BTreeMap<String, Array> {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut arrays = BTreeMap::new();
    let mut rest = &bytes[..];
    let short = |b: &[u8], at: usize| usize::from(u16::from_le_bytes([b[at], b[at + 1]]));
    // Local headers follow each other: signature, method, lengths of name and extra field.
    while rest.starts_with(b"PK\x03\x04") {
        assert_eq!(short(rest, 8), 0, "{} is compressed", path.display());
        let (name, extra) = (short(rest, 26), short(rest, 28));
        let file = std::str::from_utf8(&rest[30..30 + name]).unwrap();
        let (array, used) = npy(&rest[30 + name + extra..]);
        arrays.insert(file.trim_end_matches(".npy").to_owned(), array);
        rest = &rest[30 + name + extra + used..];
    }
    arrays
}

/// One array, and the bytes that it takes.
fn npy(bytes: &[u8]) -> (Array, usize) {
    assert!(bytes.starts_with(b"\x93NUMPY\x01"), "version 1 of the format");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    let field = |key: &str, open: char, close: char| {
        let at = header.find(key).unwrap() + key.len();
        let from = at + header[at..].find(open).unwrap() + 1;
        &header[from..from + header[from..].find(close).unwrap()]
    };
    let columns_first = header.contains("'fortran_order': True");
    let shape: Vec<usize> =
        field("'shape':", '(', ')').split(',').filter_map(|d| d.trim().parse().ok()).collect();
    let dtype = match field("'descr':", '\'', '\'') {
        "<f4" => DType::F32,
        "<f2" => DType::F16,
        "<f8" => DType::F64,
        "<i4" => DType::I32,
        "<i8" => DType::I64,
        "|b1" => DType::Bool,
        other => panic!("element type {other}"),
    };
    let len = dtype.byte_len(shape.iter().product()).unwrap();
    let data = Bytes::copy_from(&bytes[start..start + len]);
    let mut array = Array::from_tensor(&Tensor::new(dtype, &shape, data).unwrap()).unwrap();
    if dtype == DType::I64 {
        array.dtype = DType::I32;
    }
    if columns_first {
        array = rows_first(&array);
    }
    (array, start + len)
}

/// The array whose elements were written with the first index running fastest.
fn rows_first(array: &Array) -> Array {
    let n = array.len();
    let place = |mut i: usize| {
        let (mut place, mut fast, mut slow) = (0, 1, n);
        for &size in &array.shape {
            slow /= size;
            place += i / slow * fast;
            i %= slow;
            fast *= size;
        }
        place
    };
    let data = match &array.data {
        Data::Float(v) => Data::Float((0..n).map(|i| v[place(i)]).collect()),
        Data::Int(v) => Data::Int((0..n).map(|i| v[place(i)]).collect()),
        other => panic!("{other:?} in another order"),
    };
    Array { data, ..array.clone() }
}
