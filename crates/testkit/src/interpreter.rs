//! The reference interpreter as a backend: the oracle that others are compared with.

use std::collections::BTreeMap;

use exec::{Backend, ExecError, Fallback, Result, Runnable, State, Tensors};
use mil::eval::{self, Arithmetic, Array, States, Value};
use mil::{Dim, ErrorKind, OpError, Program, Type};
use tensor::Tensor;

/// Runs programs on [`mil::eval`] with one [`Arithmetic`]. Symbolic sizes are taken from the
/// inputs of each run.
#[derive(Clone, Copy, Debug)]
pub struct InterpreterBackend {
    arithmetic: Arithmetic,
}

impl InterpreterBackend {
    /// The interpreter rounding as `arithmetic` says.
    pub fn new(arithmetic: Arithmetic) -> Self {
        InterpreterBackend { arithmetic }
    }
}

impl Backend for InterpreterBackend {
    fn name(&self) -> &str {
        match self.arithmetic {
            Arithmetic::Exact => "interpreter-exact",
            Arithmetic::F32 => "interpreter-f32",
            Arithmetic::Fp16 => "interpreter-fp16",
        }
    }

    fn check(&self, _program: &Program) -> Vec<Fallback> {
        Vec::new()
    }

    fn prepare(&self, program: &Program) -> Result<Box<dyn Runnable>> {
        mil::verify(program)?;
        Ok(Box::new(Interpreted {
            arithmetic: self.arithmetic,
            program: program.clone(),
            specialized: BTreeMap::new(),
        }))
    }
}

/// Sizes of symbols.
type Sizes = BTreeMap<String, usize>;

struct Interpreted {
    arithmetic: Arithmetic,
    program: Program,
    /// Programs with one function each, by function name and the sizes it is specialised for.
    specialized: BTreeMap<(String, Sizes), Program>,
}

impl Runnable for Interpreted {
    fn new_state(&self) -> Result<State> {
        State::new(&self.program)
    }

    fn run(&mut self, function: &str, inputs: &Tensors, state: &mut State) -> Result<Tensors> {
        let sizes = self.bind(function, inputs)?;
        let key = (function.to_owned(), sizes);
        if !self.specialized.contains_key(&key) {
            let program = self.program.specialize_function(function, &key.1)?;
            self.specialized.insert(key.clone(), program);
        }
        let program = &self.specialized[&key];
        let place = |e: OpError| mil::Error::new(e.kind, e.message).in_function(function);

        let mut values = BTreeMap::new();
        for (name, tensor) in inputs {
            let array = Array::from_tensor(tensor).map_err(place)?;
            values.insert(name.clone(), Value::from(array));
        }
        let mut states = States::new();
        for (name, buffer) in state.iter() {
            let bytes = tensor::Bytes::copy_from(&buffer.data);
            let tensor = Tensor::new(buffer.dtype, &buffer.shape, bytes)
                .map_err(|e| bug(function, format!("state {name}: {e}")))?;
            states.insert(name.to_owned(), Array::from_tensor(&tensor).map_err(place)?);
        }
        let results = eval::run(program, function, self.arithmetic, &values, &mut states)?;
        for (name, array) in &states {
            let tensor = array.to_tensor().map_err(place)?;
            state.get_mut(name)?.data.copy_from_slice(tensor.bytes());
        }
        let body = &program.functions[function];
        body.body
            .outputs
            .iter()
            .zip(&results)
            .map(|(&v, value)| {
                let tensor = value.array().and_then(|a| a.to_tensor()).map_err(place)?;
                Ok((body.values[v].name.clone(), tensor))
            })
            .collect()
    }

    fn fallbacks(&self) -> &[Fallback] {
        &[]
    }
}

impl Interpreted {
    /// The sizes that `inputs` give the symbols of `function`.
    ///
    /// # Errors
    /// When an input is missing, superfluous, or of a type or size that does not fit.
    fn bind(&self, function: &str, inputs: &Tensors) -> Result<Sizes> {
        let missing = || ExecError::NoFunction(function.to_owned());
        let f = self.program.functions.get(function).ok_or_else(missing)?;
        let error = |input: &str, message: String| ExecError::Input {
            function: function.to_owned(),
            input: input.to_owned(),
            message,
        };
        if let Some(name) = inputs.keys().find(|n| f.input(n).is_none()) {
            return Err(error(name, "the function has no such input".into()));
        }
        let mut sizes = Sizes::new();
        for &v in &f.inputs {
            let (name, ty) = (&f.values[v].name, f.ty(v));
            let Type::Tensor(ty) = ty else { continue };
            let tensor =
                inputs.get(name).ok_or_else(|| error(name, format!("{ty} is not given")))?;
            let wrong = || {
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                error(name, format!("{dtype} {shape:?} is given where {ty} is needed"))
            };
            if tensor.dtype() != ty.dtype || tensor.shape().len() != ty.rank() {
                return Err(wrong());
            }
            for (dim, &n) in ty.shape.iter().zip(tensor.shape()) {
                match dim {
                    Dim::Fixed(size) if *size != n => return Err(wrong()),
                    Dim::Symbol(s) if *sizes.entry(s.to_string()).or_insert(n) != n => {
                        let message =
                            format!("{s} is {} by another input, {n} by this", sizes[&**s]);
                        return Err(error(name, message));
                    }
                    _ => {}
                }
            }
        }
        Ok(sizes)
    }
}

fn bug(function: &str, message: String) -> ExecError {
    mil::Error::new(ErrorKind::Bug, message).in_function(function).into()
}
