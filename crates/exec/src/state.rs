//! State: memory that outlives a run, such as a key-value cache.

use std::any::Any;
use std::collections::BTreeMap;

use mil::{Function, Program, TensorType};
use tensor::{AlignedBuf, DType};

use crate::{ExecError, Result};

/// The states of a program by name; functions with a state of the same name share it.
pub struct State {
    index: BTreeMap<String, usize>,
    buffers: Vec<StateBuffer>,
    /// What a device keeps of it, which may be newer than the buffers.
    device: Option<Box<dyn Any + Send>>,
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
        let index = types.keys().enumerate().map(|(i, name)| (String::from(*name), i)).collect();
        let buffers = types
            .into_iter()
            .map(|(name, ty)| {
                let error = |message| ExecError::State { state: name.to_owned(), message };
                let shape =
                    ty.fixed_shape().ok_or_else(|| error(format!("size is not fixed: {ty}")))?;
                let data = tensor::element_count(&shape)
                    .and_then(|n| ty.dtype.byte_len(n))
                    .and_then(AlignedBuf::try_sparse)
                    .ok_or_else(|| error(format!("{ty} does not fit in memory")))?;
                Ok(StateBuffer { dtype: ty.dtype, shape, data })
            })
            .collect::<Result<_>>()?;
        Ok(State { index, buffers, device: None })
    }

    /// Takes what a device left here with [`State::put_device`].
    pub fn take_device(&mut self) -> Option<Box<dyn Any + Send>> {
        self.device.take()
    }

    /// Leaves a device's own memory of these states for its next run.
    pub fn put_device(&mut self, memory: Box<dyn Any + Send>) {
        self.device = Some(memory);
    }

    /// Checks that there is memory for every state of `function`.
    ///
    /// # Errors
    /// When one is missing or of another type.
    pub fn check(&self, function: &Function) -> Result<()> {
        for &v in &function.inputs {
            let data = &function.values[v];
            let Some(ty) = data.ty.as_state() else { continue };
            let StateBuffer { dtype, shape, .. } = self.get(&data.name)?;
            let fits = *dtype == ty.dtype
                && shape.len() == ty.rank()
                && shape.iter().zip(&ty.shape).all(|(&n, d)| d.fixed().is_none_or(|m| n == m));
            if !fits {
                let message = format!("is {dtype} {shape:?}, where the function has {ty}");
                return Err(ExecError::State { state: data.name.clone(), message });
            }
        }
        Ok(())
    }

    /// The memory of state `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn get(&self, name: &str) -> Result<&StateBuffer> {
        self.find(name).map(|i| &self.buffers[i])
    }

    /// The memory of state `name`, to change.
    ///
    /// # Errors
    /// When there is none.
    pub fn get_mut(&mut self, name: &str) -> Result<&mut StateBuffer> {
        self.find(name).map(|i| &mut self.buffers[i])
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
        let indices = [self.find(a)?, self.find(b)?];
        match self.buffers.get_disjoint_mut(indices) {
            Ok([first, second]) => Ok((first, second)),
            Err(_) => Err(ExecError::State {
                state: a.to_owned(),
                message: "is asked for twice at once".into(),
            }),
        }
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.index.get(name).copied().ok_or_else(|| missing(name))
    }

    /// Names and memory of all states.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &StateBuffer)> {
        self.index.iter().map(|(name, &i)| (name.as_str(), &self.buffers[i]))
    }

    /// Bytes of all states.
    pub fn byte_len(&self) -> usize {
        self.buffers.iter().map(|b| b.data.len()).sum()
    }
}

fn missing(name: &str) -> ExecError {
    ExecError::State { state: name.to_owned(), message: "does not exist".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mil::{FunctionBuilder, Opset, Type};

    #[test]
    fn a_state_that_no_memory_holds() {
        for slots in [1usize << 50, usize::MAX] {
            let mut program = Program::default();
            let mut f = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
            f.input("cache", Type::State(TensorType::new(DType::F16, [slots, 2])));
            let function = f.finish(Vec::new());
            program.functions.insert("main".to_owned(), function);
            let Err(e) = State::new(&program) else { panic!("{slots} slots") };
            assert!(
                e.to_string().starts_with("state cache: ") && e.to_string().ends_with("memory")
            );
        }
    }
}
