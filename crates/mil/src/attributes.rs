//! Literals by name: the attributes of programs, functions and operations.

use std::borrow::Cow;

use crate::Literal;

type Entry = (Cow<'static, str>, Literal);

/// Names and literals, by name.
type Iter<'a> =
    std::iter::Map<std::slice::Iter<'a, Entry>, fn(&'a Entry) -> (&'a str, &'a Literal)>;

/// Literals by name, in alphabetical order.
///
/// It has the interface of a map. An operation has two of them at most times, and a program has
/// many operations, so that they lie in one small block of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    /// Sorted by name; no name twice.
    entries: Vec<Entry>,
}

impl Attributes {
    /// No attributes.
    pub const fn new() -> Self {
        Attributes { entries: Vec::new() }
    }

    /// No attributes, with room for `n`.
    pub(crate) fn with_capacity(n: usize) -> Self {
        Attributes { entries: Vec::with_capacity(n) }
    }

    /// Where `name` is, or would have to be.
    fn find(&self, name: &str) -> Result<usize, usize> {
        // Readers add them in order.
        if self.entries.last().is_none_or(|(last, _)| **last < *name) {
            return Err(self.entries.len());
        }
        self.entries.binary_search_by(|(key, _)| (**key).cmp(name))
    }

    /// Number of attributes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The attribute `name`.
    pub fn get(&self, name: &str) -> Option<&Literal> {
        self.entries.iter().find(|(key, _)| key == name).map(|(_, literal)| literal)
    }

    /// The attribute `name`, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Literal> {
        self.entries.iter_mut().find(|(key, _)| key == name).map(|(_, literal)| literal)
    }

    /// Whether there is an attribute `name`.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets an attribute and returns the one that had its name.
    pub fn insert(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        literal: Literal,
    ) -> Option<Literal> {
        let name = name.into();
        match self.find(&name) {
            Ok(i) => Some(std::mem::replace(&mut self.entries[i].1, literal)),
            Err(i) => {
                self.entries.insert(i, (name, literal));
                None
            }
        }
    }

    /// Removes an attribute and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Literal> {
        self.find(name).ok().map(|i| self.entries.remove(i).1)
    }

    /// Removes the attributes for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Literal) -> bool) {
        self.entries.retain_mut(|(name, literal)| keep(name, literal));
    }

    /// Names and literals, by name.
    pub fn iter(&self) -> Iter<'_> {
        self.entries.iter().map(|(name, literal)| (&**name, literal))
    }

    /// The names in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| &**name)
    }

    /// The literals, by name.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &Literal> {
        self.entries.iter().map(|(_, literal)| literal)
    }

    /// The literals by name, to be changed.
    pub fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Literal> {
        self.entries.iter_mut().map(|(_, literal)| literal)
    }
}

/// Of two of the same name the last counts.
impl<N: Into<Cow<'static, str>>> FromIterator<(N, Literal)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (N, Literal)>>(items: I) -> Self {
        let items = items.into_iter();
        let mut attributes = Attributes::with_capacity(items.size_hint().0);
        for (name, literal) in items {
            attributes.insert(name, literal);
        }
        attributes
    }
}

impl<N: Into<Cow<'static, str>>, const C: usize> From<[(N, Literal); C]> for Attributes {
    fn from(items: [(N, Literal); C]) -> Self {
        items.into_iter().collect()
    }
}

impl IntoIterator for Attributes {
    type Item = Entry;
    type IntoIter = std::vec::IntoIter<Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<'a> IntoIterator for &'a Attributes {
    type Item = (&'a str, &'a Literal);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        let mut a =
            Attributes::from([("val", Literal::bool(true)), ("name", Literal::string("x"))]);
        assert_eq!(a.insert("axis".to_owned(), Literal::scalar(1i32)), None);
        assert_eq!(a.keys().collect::<Vec<_>>(), ["axis", "name", "val"]);
        assert_eq!(a.insert("val", Literal::bool(false)), Some(Literal::bool(true)));
        assert_eq!(a.get("val"), Some(&Literal::bool(false)));
        assert_eq!(a.remove("name"), Some(Literal::string("x")));
        a.retain(|name, _| name != "axis");
        assert_eq!(a.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["val"]);
    }
}
