//! Fixing symbolic sizes: a program is specialised before it reaches a device with fixed shapes.

use std::collections::BTreeMap;

use crate::{Dim, Function, Result};

impl Function {
    /// Replaces each symbol in `sizes` by its size everywhere. Symbols not named stay.
    ///
    /// # Errors
    /// When a type that follows from the sizes contradicts an operation's rules.
    pub fn specialize(&self, sizes: &BTreeMap<String, usize>) -> Result<Function> {
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
        Ok(function)
    }

    /// Names of the symbols in the inputs' types.
    pub fn symbols(&self) -> Vec<String> {
        let mut found = Vec::new();
        for &v in &self.inputs {
            self.values[v].ty.clone().for_each_tensor_mut(&mut |t| {
                for dim in &t.shape {
                    if let Dim::Symbol(name) = dim
                        && !found.iter().any(|f| f == &**name)
                    {
                        found.push(name.to_string());
                    }
                }
            });
        }
        found
    }
}
