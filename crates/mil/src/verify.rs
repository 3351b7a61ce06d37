//! The verifier: what every program must fulfil, checked after each pass.

use std::collections::HashMap;

use cranelift_entity::EntitySet;

use crate::ops::Domain;
use crate::{
    Arg, Block, Error, Function, Literal, OpError, OpId, OpKind, OpView, Operation, Param, Program,
    Result, Type, ValueDef, ValueId,
};

/// Checks a whole program. Its invariants:
///
/// 1. Ids of values, operations and weights exist.
/// 2. Each value is defined once: it is one parameter, or that result of that operation which its
///    [`ValueDef`] names; an operation stands in one place.
/// 3. A value is used behind its definition, in the same block or one inside of it.
/// 4. Names of values are identifiers, and no two values visible in one place share one.
/// 5. An operation has a slot for each parameter of its kind; required arguments are given, of a
///    type that the parameter accepts, constant where that is asked; only variadic parameters take
///    lists.
/// 6. An operation belongs to the function's operation set.
/// 7. The number of results is what inference gives, and no result's type contradicts it. Where
///    one of two sizes is unknown there is no contradiction; a symbol contradicts a fixed size and
///    every other symbol.
/// 8. A state is an input of a function, and an argument where a state is asked; nothing else.
/// 9. A literal's value has its type; weights exist and have the type that refers to them.
/// 10. A function's body has no parameters of its own, and its outputs have different names.
///
/// # Errors
/// The first invariant that is broken, with function and operation.
pub fn verify(program: &Program) -> Result<()> {
    check_literals(program.attributes.values(), program)
        .map_err(|e| Error::new(e.kind, e.message))?;
    program.functions.iter().try_for_each(|(name, f)| verify_function(name, f, program))
}

/// Checks one function; see [`verify`].
///
/// # Errors
/// The first invariant that is broken.
pub fn verify_function(name: &str, function: &Function, program: &Program) -> Result<()> {
    let mut verifier = Verifier {
        name,
        function,
        program,
        visible: HashMap::new(),
        defined: EntitySet::new(),
        placed: EntitySet::new(),
    };
    verifier.run()
}

struct Verifier<'p> {
    name: &'p str,
    function: &'p Function,
    program: &'p Program,
    /// Values that can be used at this place, by name.
    visible: HashMap<&'p str, ValueId>,
    /// Values defined so far, those no longer visible included.
    defined: EntitySet<ValueId>,
    /// Operations that have been met.
    placed: EntitySet<OpId>,
}

impl<'p> Verifier<'p> {
    fn run(&mut self) -> Result<()> {
        let f = self.function;
        check_literals(f.attributes.values(), self.program).map_err(|e| self.error(e))?;
        for (v, data) in &f.values {
            if let ValueDef::Result(op, i) = data.def
                && f.ops.get(op).and_then(|o| o.outputs.get(i as usize)) != Some(&v)
            {
                let message = format!("value {} is not result {i} of {op}", data.name);
                return Err(self.error(OpError::invalid(message)));
            }
        }
        for &v in &f.inputs {
            self.define(v, ValueDef::Param).map_err(|e| self.error(e))?;
        }
        if !f.body.params.is_empty() {
            let message = "the body has parameters of its own";
            return Err(self.error(OpError::invalid(message)));
        }
        self.ops(&f.body)?;
        let mut names = Vec::new();
        for &v in &f.body.outputs {
            let name = self.output(v).map_err(|e| self.error(e))?;
            if names.contains(&name) {
                return Err(self.error(OpError::invalid(format!("output {name} is given twice"))));
            }
            names.push(name);
        }
        Ok(())
    }

    fn error(&self, e: OpError) -> Error {
        Error::new(e.kind, e.message).in_function(self.name)
    }

    /// Makes `v`, which must be defined by `def`, visible.
    fn define(&mut self, v: ValueId, def: ValueDef) -> Result<(), OpError> {
        let data = self
            .function
            .values
            .get(v)
            .ok_or_else(|| OpError::invalid(format!("there is no value {v}")))?;
        let name = data.name.as_str();
        if data.def != def || !self.defined.insert(v) {
            return Err(OpError::invalid(format!("value {name} is defined in two places")));
        }
        if !is_identifier(name) {
            return Err(OpError::invalid(format!("{name:?} is not an identifier")));
        }
        if self.visible.insert(name, v).is_some() {
            return Err(OpError::invalid(format!("two values are called {name}")));
        }
        Ok(())
    }

    /// Checks that `v` may be used here.
    fn used(&self, v: ValueId) -> Result<(), OpError> {
        let data = self.function.values.get(v);
        let data = data.ok_or_else(|| OpError::invalid(format!("there is no value {v}")))?;
        match self.visible.get(data.name.as_str()) {
            Some(&seen) if seen == v => Ok(()),
            _ => {
                let name = &data.name;
                Err(OpError::invalid(format!("value {name} is used where it is not defined")))
            }
        }
    }

    /// The name of a value that a block or function hands out.
    fn output(&self, v: ValueId) -> Result<&'p str, OpError> {
        self.used(v)?;
        let data = &self.function.values[v];
        if has_state(&data.ty) {
            return Err(OpError::invalid(format!("output {} is a state", data.name)));
        }
        Ok(&data.name)
    }

    fn ops(&mut self, block: &'p Block) -> Result<()> {
        for &id in &block.ops {
            let Some(op) = self.function.ops.get(id) else {
                return Err(self.error(OpError::invalid(format!("there is no operation {id}"))));
            };
            let place = |e| Error::at_op(e, self.name, self.function.describe(id));
            if !self.placed.insert(id) {
                return Err(place(OpError::invalid("it stands in two places")));
            }
            self.operation(op).map_err(place)?;
            for block in &op.blocks {
                self.nested(id, block)?;
            }
            // The types of results may follow from the blocks, which are known to be sound now.
            self.results(id, op).map_err(place)?;
        }
        Ok(())
    }

    fn nested(&mut self, id: OpId, block: &'p Block) -> Result<()> {
        let place = |e, v: &Self| Error::at_op(e, v.name, v.function.describe(id));
        let outside = self.visible.clone();
        for &v in &block.params {
            self.define(v, ValueDef::Param).map_err(|e| place(e, self))?;
            if has_state(self.function.ty(v)) {
                let message =
                    format!("block parameter {} is a state", self.function.values[v].name);
                return Err(place(OpError::invalid(message), self));
            }
        }
        self.ops(block)?;
        for &v in &block.outputs {
            self.output(v).map_err(|e| place(e, self))?;
        }
        self.visible = outside;
        Ok(())
    }

    /// Checks an operation but for its results.
    fn operation(&self, op: &'p Operation) -> Result<(), OpError> {
        let (def, function) = (op.kind.def(), self.function);
        if def.opset() > function.opset {
            return Err(OpError::invalid(format!(
                "it belongs to {}, the function to {}",
                def.opset(),
                function.opset
            )));
        }
        let params = def.params();
        if op.args.len() != params.len() {
            return Err(OpError::invalid(format!(
                "{} argument slots for {} parameters",
                op.args.len(),
                params.len()
            )));
        }
        let mut used = Ok(());
        op.for_each_arg_value(|v| {
            if used.is_ok() {
                used = self.used(v);
            }
        });
        used?;
        for arg in op.args.iter().flatten() {
            let mut literals = Vec::new();
            arg.for_each_literal(&mut |l| literals.push(l));
            check_literals(literals, self.program)?;
        }
        check_literals(op.attributes.values(), self.program)?;
        check_args(&OpView::new(function, &self.program.weights, op))
    }

    fn results(&mut self, id: OpId, op: &'p Operation) -> Result<(), OpError> {
        let types = op.kind.def().infer(&OpView::new(self.function, &self.program.weights, op))?;
        if types.len() != op.outputs.len() {
            return Err(OpError::invalid(format!(
                "{} results where there must be {}",
                op.outputs.len(),
                types.len()
            )));
        }
        for (i, (&v, ty)) in op.outputs.iter().zip(&types).enumerate() {
            self.define(v, ValueDef::Result(id, i as u32))?;
            let data = &self.function.values[v];
            if has_state(&data.ty) {
                return Err(OpError::invalid(format!("result {} is a state", data.name)));
            }
            if data.ty.refined(ty).is_none() {
                let (name, own) = (&data.name, &data.ty);
                return Err(OpError::invalid(format!("result {name} is {own}, must be {ty}")));
            }
        }
        Ok(())
    }
}

fn check_literals<'l>(
    literals: impl IntoIterator<Item = &'l Literal>,
    program: &Program,
) -> Result<(), OpError> {
    literals.into_iter().try_for_each(|l| l.check(&program.weights))
}

/// Whether `name` can stand in MIL text as the name of a value.
fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '@'))
}

/// Whether a value of this type is or holds a state.
fn has_state(ty: &Type) -> bool {
    match ty {
        Type::Tensor(_) => false,
        Type::State(_) => true,
        Type::List(item, _) => has_state(item),
        Type::Tuple(items) => items.iter().any(has_state),
        Type::Dict(key, value) => has_state(key) || has_state(value),
    }
}

/// Checks arguments against the parameters: given where required, of an accepted type, constant
/// where needed, lists only where variadic.
pub(crate) fn check_args(op: &OpView<'_>) -> Result<(), OpError> {
    for (param, arg) in op.kind.def().params().iter().zip(op.args) {
        match arg {
            Some(Arg::List(items)) if param.variadic => {
                items.iter().try_for_each(|item| check_arg(op, param, item))?;
            }
            Some(arg) => check_arg(op, param, arg)?,
            None if param.required => {
                return Err(OpError::invalid(format!("argument \"{}\" is missing", param.name)));
            }
            None => {}
        }
    }
    Ok(())
}

fn check_arg(op: &OpView<'_>, param: &Param, arg: &Arg) -> Result<(), OpError> {
    let name = param.name;
    let Some(ty) = op.arg_type(arg) else {
        return Err(OpError::invalid(format!("argument \"{name}\" may not be a list")));
    };
    if !param.domain.accepts(ty) || (has_state(ty) && param.domain != Domain::State) {
        return Err(OpError::invalid(format!("argument \"{name}\" may not be {ty}")));
    }
    if param.constant && op.function.const_arg(arg).is_none() && !is_compressed(op, arg) {
        return Err(OpError::invalid(format!("argument \"{name}\" must be a constant")));
    }
    Ok(())
}

/// Whether an argument is made by an operation that decompresses a constant.
fn is_compressed(op: &OpView<'_>, arg: &Arg) -> bool {
    let Arg::Value(v) = arg else { return false };
    let ValueDef::Result(id, _) = op.function.values[*v].def else { return false };
    use OpKind::*;
    matches!(
        op.function.ops[id].kind,
        ConstexprBlockwiseShiftScale
            | ConstexprLutToDense
            | ConstexprSparseToDense
            | ConstexprLutToSparse
            | ConstexprSparseBlockwiseShiftScale
            | ConstexprAffineDequantize
            | ConstexprCast
    )
}
