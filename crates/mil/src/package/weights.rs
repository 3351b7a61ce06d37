//! The weights of a program under construction: each place in a weight file is read once.

use std::sync::Arc;

use cranelift_entity::SecondaryMap;
use foldhash::HashMap;
use tensor::{WeightId, WeightStore};

use crate::text::BlobSource;
use crate::{BlobRef, OpError, TensorType};

/// Weights found so far, and where they lie.
#[derive(Default)]
pub(crate) struct WeightTable {
    pub(crate) weights: WeightStore,
    pub(crate) refs: SecondaryMap<WeightId, Option<BlobRef>>,
    /// Weights by place and type: one that is named twice is one weight.
    known: HashMap<(BlobRef, TensorType), WeightId>,
    last_path: Option<Arc<str>>,
}

impl WeightTable {
    /// The weight of type `ty` at a place in a weight file; read from `blobs` when first named, and
    /// then called as `name` displays.
    ///
    /// # Errors
    /// Those of `blobs`.
    pub(crate) fn weight(
        &mut self,
        blobs: &dyn BlobSource,
        place: BlobRef,
        ty: &TensorType,
        name: impl std::fmt::Display,
    ) -> Result<WeightId, OpError> {
        let key = (place, ty.clone());
        if let Some(&id) = self.known.get(&key) {
            return Ok(id);
        }
        let tensor = blobs.tensor(&key.0.path, key.0.offset, ty)?;
        let id = self.weights.insert(name.to_string(), tensor);
        self.refs[id] = Some(key.0.clone());
        self.known.insert(key, id);
        Ok(id)
    }

    /// A path of a weight file as [`BlobRef`] holds it; one that is asked for again and again shares
    /// its memory.
    pub(crate) fn path(&mut self, path: &str) -> Arc<str> {
        match &self.last_path {
            Some(last) if **last == *path => last.clone(),
            _ => self.last_path.insert(Arc::from(path)).clone(),
        }
    }
}
