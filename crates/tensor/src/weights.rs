//! The weight store: named tensors that programs refer to by id.

use std::sync::Arc;

use cranelift_entity::{PrimaryMap, entity_impl};

use crate::Tensor;

/// A weight of one [`WeightStore`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(u32);
entity_impl!(WeightId, "weight");

/// A named weight.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The name in the file it came from, or the one its maker gave it.
    pub name: String,
    /// Type, shape and bytes.
    pub tensor: Tensor,
}

/// Weights by id. Cloning copies a table of pointers, never bytes, so that programs which share
/// weights are cheap; replacing a weight in one store leaves its clones as they were.
#[derive(Clone, Debug, Default)]
pub struct WeightStore {
    weights: PrimaryMap<WeightId, Arc<Weight>>,
}

impl WeightStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a weight.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) -> WeightId {
        self.weights.push(Arc::new(Weight { name: name.into(), tensor }))
    }

    /// The weight `id`, if it is of this store.
    pub fn get(&self, id: WeightId) -> Option<&Arc<Weight>> {
        self.weights.get(id)
    }

    /// Puts another tensor in a weight's place and returns the old one; programs need no change.
    pub fn replace(&mut self, id: WeightId, tensor: Tensor) -> Option<Tensor> {
        let slot = self.weights.get_mut(id)?;
        let old = slot.tensor.clone();
        *slot = Arc::new(Weight { name: slot.name.clone(), tensor });
        Some(old)
    }

    /// The id of the first weight called `name`.
    pub fn find(&self, name: &str) -> Option<WeightId> {
        self.iter().find(|(_, w)| w.name == name).map(|(id, _)| id)
    }

    /// All weights in order of insertion.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (WeightId, &Arc<Weight>)> {
        self.weights.iter()
    }

    /// Total bytes of all weights.
    pub fn byte_len(&self) -> usize {
        self.weights.values().map(|w| w.tensor.bytes().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replace_leaves_clones() {
        let mut a = WeightStore::new();
        let id = a.insert("w", Tensor::from_slice(&[1], &[1f32]).unwrap());
        let b = a.clone();
        a.replace(id, Tensor::from_slice(&[1], &[2f32]).unwrap());
        let value = |s: &WeightStore| s.get(id).unwrap().tensor.as_slice::<f32>().unwrap()[0];
        assert_eq!((value(&a), value(&b)), (2.0, 1.0));
        assert_eq!(a.find("w"), Some(id));
    }
}
