//! Fixing symbolic sizes: a program is specialised before it reaches a device with fixed shapes.

use std::collections::BTreeMap;

use tensor::WeightStore;

use crate::{Block, Dim, Error, ErrorKind, Function, OpError, OpView, Program, Result};

/// Sizes of symbols by name.
type Sizes = BTreeMap<String, usize>;

impl Program {
    /// Replaces each symbol in `sizes` by its size in all functions and recomputes the types that
    /// follow. Symbols not named stay.
    ///
    /// # Errors
    /// When an operation does not allow a size, or a type that follows contradicts the one it has;
    /// the error names function and operation.
    pub fn specialize(&self, sizes: &Sizes) -> Result<Program> {
        let mut program = self.clone();
        for (name, function) in &mut program.functions {
            *function = function.specialize(name, sizes, &self.weights)?;
        }
        Ok(program)
    }

    /// As [`Program::specialize`], of function `name` alone.
    ///
    /// # Errors
    /// As there, and when the function is missing.
    pub fn specialize_function(&self, name: &str, sizes: &Sizes) -> Result<Program> {
        let function = self
            .functions
            .get(name)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("no function {name}")))?;
        let function = function.specialize(name, sizes, &self.weights)?;
        Ok(Program {
            functions: [(name.to_owned(), function)].into(),
            attributes: self.attributes.clone(),
            weights: self.weights.clone(),
            blobs: self.blobs.clone(),
        })
    }
}

impl Function {
    /// As [`Program::specialize`], for a function called `name` over `weights`.
    fn specialize(&self, name: &str, sizes: &Sizes, weights: &WeightStore) -> Result<Function> {
        let mut function = self.clone();
        for value in function.values.values_mut() {
            value.ty.for_each_tensor_mut(&mut |t| {
                for dim in &mut t.shape {
                    if let Dim::Symbol(name) = dim
                        && let Some(&n) = sizes.get(&**name)
                    {
                        *dim = Dim::Fixed(n);
                    }
                }
            });
        }
        infer_block(name, &mut function, &self.body, weights)?;
        Ok(function)
    }

    /// Names of the symbols in the inputs' types, states included, in order of appearance.
    pub fn symbols(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for &v in &self.inputs {
            self.values[v].ty.for_each_tensor(&mut |t| {
                for dim in &t.shape {
                    if let Dim::Symbol(name) = dim
                        && !found.iter().any(|f| **f == **name)
                    {
                        found.push(name.to_string());
                    }
                }
            });
        }
        found
    }
}

/// Computes the types of the results of all operations in `block`, in order.
fn infer_block(
    name: &str,
    function: &mut Function,
    block: &Block,
    weights: &WeightStore,
) -> Result<()> {
    for &id in &block.ops {
        let nested = function.ops[id].blocks.clone();
        for block in &nested {
            infer_block(name, function, block, weights)?;
        }
        let place = |e, f: &Function| Error::at_op(e, name, f.describe(id));
        let op = &function.ops[id];
        let types = op.kind.def().infer(&OpView::new(function, weights, op));
        let types = types.map_err(|e| place(e, function))?;
        for (&v, ty) in function.ops[id].outputs.clone().iter().zip(types) {
            let known = function.ty(v);
            let refined = known.refined(&ty).ok_or_else(|| {
                let result = &function.values[v].name;
                let e = OpError::invalid(format!("result {result} is {known}, which must be {ty}"));
                place(e, function)
            })?;
            function.values[v].ty = refined;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FunctionBuilder, OpKind, Opset, TensorType};
    use tensor::DType;

    /// `x [seq, n] + y [m, n]`, and a state of `context` slots.
    fn program() -> Program {
        let mut program = Program::default();
        let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut program.weights);
        let float = |dims: [&str; 2]| TensorType::new(DType::F32, dims.map(Dim::symbol));
        let x = b.input("x", float(["seq", "n"]));
        let y = b.input("y", float(["m", "n"]));
        b.input("cache", crate::Type::State(float(["context", "n"])));
        let sum = b.op(OpKind::Add).arg("x", x).arg("y", y).name("sum").result().unwrap();
        let f = b.finish(vec![sum]);
        program.functions.insert("main".into(), f);
        program
    }

    fn sizes(given: &[(&str, usize)]) -> Sizes {
        given.iter().map(|&(n, s)| (n.to_owned(), s)).collect()
    }

    #[test]
    fn symbols_are_listed_once() {
        assert_eq!(program().functions["main"].symbols(), ["seq", "n", "m", "context"]);
    }

    #[test]
    fn unknown_sizes_become_known() {
        let program = program();
        let ty = |p: &Program| {
            let f = &p.functions["main"];
            f.ty(f.body.outputs[0]).to_string()
        };
        assert_eq!(ty(&program), "tensor<fp32, [?, n]>");
        let partly = program.specialize(&sizes(&[("seq", 4)])).unwrap();
        assert_eq!(ty(&partly), "tensor<fp32, [4, n]>");
        assert_eq!(partly.functions["main"].symbols(), ["n", "m", "context"]);
        let all = partly.specialize_function("main", &sizes(&[("m", 1), ("n", 3)])).unwrap();
        assert_eq!(ty(&all), "tensor<fp32, [4, 3]>");
        crate::verify(&all).unwrap();
    }

    #[test]
    fn a_contradiction_names_the_operation() {
        let error = program().specialize(&sizes(&[("seq", 4), ("m", 3)])).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("function main: op add \"sum\": "), "{message}");
        let error = program().specialize_function("other", &Sizes::new()).unwrap_err();
        assert_eq!(error.to_string(), "no function other");
    }
}
