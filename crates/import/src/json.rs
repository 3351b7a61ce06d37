//! JSON files and headers: errors with byte offsets, and objects that refuse a repeated key.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};

use crate::error::quoted;
use crate::source::map_file;
use crate::{ImportError, Result};

/// Reads a JSON file.
///
/// # Errors
/// When it cannot be read, is no JSON, or is not of the form that `T` has.
pub fn read_json<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T> {
    let path = path.as_ref();
    parse(path, &map_file(path)?, 0)
}

/// Reads `json`, which lies at `offset` of `file`.
pub(crate) fn parse<'a, T: Deserialize<'a>>(
    file: &Path,
    json: &'a [u8],
    offset: usize,
) -> Result<T> {
    serde_json::from_slice(json).map_err(|e| {
        let at = offset + offset_of(json, e.line(), e.column());
        ImportError::invalid(file, format!("JSON: {}", reason(&e))).at(at)
    })
}

/// What a JSON error says, without the line and column that serde puts behind it.
pub(crate) fn reason(e: &impl fmt::Display) -> String {
    let mut text = e.to_string();
    if let Some(cut) = text.rfind(" at line ") {
        text.truncate(cut);
    }
    text
}

/// The byte offset of a one-based line and column of `json`, as serde counts them.
fn offset_of(json: &[u8], line: usize, column: usize) -> usize {
    let lines = json.split_inclusive(|&b| b == b'\n');
    let before: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)).min(json.len())
}

/// A JSON object in file order, in which no key occurs twice.
pub(crate) struct UniqueMap<V>(pub(crate) IndexMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut entries = IndexMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if entries.contains_key(&key) {
                        return Err(A::Error::custom(format!("{} occurs twice", quoted(&key))));
                    }
                    let value = map.next_value().map_err(|e| {
                        A::Error::custom(format!("{}: {}", quoted(&key), reason(&e)))
                    })?;
                    entries.insert(key, value);
                }
                Ok(UniqueMap(entries))
            }
        }
        d.deserialize_map(Entries(PhantomData))
    }
}
