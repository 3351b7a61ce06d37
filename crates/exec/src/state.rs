//! State: memory that outlives a run, such as a key-value cache.

use std::collections::BTreeMap;

use mil::{Program, TensorType};
use tensor::{AlignedBuf, DType};

use crate::{ExecError, Result};

/// The states of a program by name; functions with a state of the same name share it.
pub struct State {
    buffers: BTreeMap<String, StateBuffer>,
}

/// The memory of one state.
pub struct StateBuffer {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Row-major elements. Zero pages cost nothing until written.
    pub data: AlignedBuf,
}

impl State {
    /// Zeroed memory for every state in the inputs of `program`'s functions.
    ///
    /// # Errors
    /// When a size is not fixed, does not fit in memory, or functions disagree about it.
    pub fn new(program: &Program) -> Result<Self> {
        let mut types: BTreeMap<&str, &TensorType> = BTreeMap::new();
        for function in program.functions.values() {
            for &v in &function.inputs {
                let data = &function.values[v];
                let Some(ty) = data.ty.as_state() else { continue };
                let seen = types.entry(&data.name).or_insert(ty);
                if *seen != ty {
                    let message = format!("functions disagree about its type: {seen} and {ty}");
                    return Err(ExecError::State { state: data.name.clone(), message });
                }
            }
        }
        let buffers = types
            .into_iter()
            .map(|(name, ty)| {
                let error = |message| ExecError::State { state: name.to_owned(), message };
                let shape =
                    ty.fixed_shape().ok_or_else(|| error(format!("size is not fixed: {ty}")))?;
                let len = tensor::element_count(&shape)
                    .and_then(|n| ty.dtype.byte_len(n))
                    .ok_or_else(|| error(format!("{ty} does not fit in memory")))?;
                let data = AlignedBuf::zeroed(len);
                Ok((name.to_owned(), StateBuffer { dtype: ty.dtype, shape, data }))
            })
            .collect::<Result<_>>()?;
        Ok(State { buffers })
    }

    /// The memory of state `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<&StateBuffer> {
        self.buffers.get(name).ok_or_else(|| missing(name))
    }

    /// The memory of state `name`, to change.
    ///
    /// # Errors
    /// When there is none.
    pub fn get_mut(&mut self, name: &str) -> Result<&mut StateBuffer> {
        self.buffers.get_mut(name).ok_or_else(|| missing(name))
    }

    /// Two different states' memory, to change together.
    ///
    /// # Errors
    /// When one is missing or both names are the same.
    pub fn get_two_mut(
        &mut self,
        a: &str,
        b: &str,
    ) -> Result<(&mut StateBuffer, &mut StateBuffer)> {
        let (mut first, mut second) = (None, None);
        for (name, buffer) in &mut self.buffers {
            if name == a {
                first = Some(buffer);
            } else if name == b {
                second = Some(buffer);
            }
        }
        Ok((first.ok_or_else(|| missing(a))?, second.ok_or_else(|| missing(b))?))
    }

    /// Names and memory of all states.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &StateBuffer)> {
        self.buffers.iter().map(|(name, buffer)| (name.as_str(), buffer))
    }

    /// Bytes of all states.
    pub fn byte_len(&self) -> usize {
        self.buffers.values().map(|b| b.data.len()).sum()
    }
}

fn missing(name: &str) -> ExecError {
    ExecError::State { state: name.to_owned(), message: "does not exist".into() }
}
