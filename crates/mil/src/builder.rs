//! Building functions: every operation is type-checked as it is added.

use std::collections::{BTreeMap, HashSet};

use tensor::{Tensor, WeightId, WeightStore};

use crate::{
    Arg, Attributes, Block, Error, ErrorKind, Function, Literal, OpError, OpId, OpKind, OpView,
    Operation, Opset, Result, Type, ValueData, ValueDef, ValueId,
};

/// Builds one function over a program's weights.
pub struct FunctionBuilder<'w> {
    name: String,
    function: Function,
    weights: &'w mut WeightStore,
    names: HashSet<String>,
    /// Blocks under construction, innermost last; the function's body first.
    blocks: Vec<Block>,
    weight_values: BTreeMap<WeightId, ValueId>,
}

impl<'w> FunctionBuilder<'w> {
    /// An empty function `name`.
    pub fn new(name: &str, opset: Opset, weights: &'w mut WeightStore) -> Self {
        FunctionBuilder {
            name: name.to_owned(),
            function: Function::new(opset),
            weights,
            names: HashSet::new(),
            blocks: vec![Block::default()],
            weight_values: BTreeMap::new(),
        }
    }

    /// Reopens `function` with an empty body: its values and operations keep their ids, and
    /// [`FunctionBuilder::keep`] puts operations back. This is how a pass replaces an operation by
    /// several.
    pub fn reopen(name: &str, mut function: Function, weights: &'w mut WeightStore) -> Self {
        function.body = Block::default();
        FunctionBuilder {
            name: name.to_owned(),
            names: function.values.values().map(|v| v.name.clone()).collect(),
            function,
            weights,
            blocks: vec![Block::default()],
            weight_values: BTreeMap::new(),
        }
    }

    /// Appends an operation that a reopened function already has.
    pub fn keep(&mut self, op: OpId) {
        self.current_block().ops.push(op);
    }

    /// As [`FunctionBuilder::keep`], and `body` puts back, or replaces, the operations of each of its
    /// nested blocks. Their parameters and outputs stay.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn keep_blocks(
        &mut self,
        op: OpId,
        body: &mut dyn FnMut(&mut Self, &Block) -> Result<()>,
    ) -> Result<()> {
        let blocks = std::mem::take(&mut self.function.ops[op].blocks);
        for block in &blocks {
            self.blocks.push(Block { ops: Vec::new(), ..block.clone() });
            let done = body(self, block);
            let rebuilt = self.blocks.pop().expect("pushed above");
            self.function.ops[op].blocks.push(rebuilt);
            done?;
        }
        self.keep(op);
        Ok(())
    }

    /// The function so far.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The program's weights.
    pub fn weights(&self) -> &WeightStore {
        self.weights
    }

    /// The program's weights, to add some.
    pub fn weights_mut(&mut self) -> &mut WeightStore {
        self.weights
    }

    /// The type of a value.
    pub fn ty(&self, v: ValueId) -> &Type {
        self.function.ty(v)
    }

    /// Adds a parameter of the function.
    pub fn input(&mut self, name: &str, ty: impl Into<Type>) -> ValueId {
        let v = self.new_value(name, ty.into(), ValueDef::Param);
        self.function.inputs.push(v);
        v
    }

    /// A const of `literal`.
    pub fn constant(&mut self, name: &str, literal: Literal) -> ValueId {
        let ty = literal.ty.clone();
        let op = self.function.ops.next_key();
        let v = self.new_value(name, ty, ValueDef::Result(op, 0));
        let name = Literal::string(self.function.values[v].name.clone());
        let attributes = [("name", name), ("val", literal)].into();
        let operation = Operation {
            kind: OpKind::Const,
            args: Vec::new(),
            outputs: vec![v],
            blocks: Vec::new(),
            opset: None,
            attributes,
        };
        self.function.ops.push(operation);
        self.current_block().ops.push(op);
        v
    }

    /// The const that refers to weight `id`; the same value each time.
    ///
    /// # Errors
    /// When the id is not of the program's store.
    pub fn weight(&mut self, id: WeightId) -> Result<ValueId> {
        if let Some(&v) = self.weight_values.get(&id) {
            return Ok(v);
        }
        let literal =
            Literal::weight(self.weights, id).map_err(|e| self.error(e, OpKind::Const, ""))?;
        let name = self.weights.get(id).map(|w| w.name.clone()).unwrap_or_default();
        let v = self.constant(&name, literal);
        // A weight first used inside a nested block is not visible outside of it.
        if self.blocks.len() == 1 {
            self.weight_values.insert(id, v);
        }
        Ok(v)
    }

    /// Stores `tensor` as a weight and returns the const that refers to it.
    ///
    /// # Errors
    /// Never for a fresh weight; the signature is that of [`FunctionBuilder::weight`].
    pub fn new_weight(&mut self, name: &str, tensor: Tensor) -> Result<ValueId> {
        let id = self.weights.insert(name, tensor);
        self.weight(id)
    }

    /// Starts an operation; see [`OpBuilder`].
    pub fn op(&mut self, kind: OpKind) -> OpBuilder<'_, 'w> {
        let args = vec![None; kind.def().params().len()];
        OpBuilder {
            builder: self,
            kind,
            args,
            name: None,
            attributes: Attributes::new(),
            blocks: Vec::new(),
            error: None,
        }
    }

    /// Builds a nested block with parameters of the given names and types; `body` returns its
    /// outputs.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn block(
        &mut self,
        params: &[(&str, Type)],
        body: impl FnOnce(&mut Self, &[ValueId]) -> Result<Vec<ValueId>>,
    ) -> Result<Block> {
        let params: Vec<ValueId> = params
            .iter()
            .map(|(name, ty)| self.new_value(name, ty.clone(), ValueDef::Param))
            .collect();
        self.blocks.push(Block { params: params.clone(), ..Block::default() });
        let outputs = body(self, &params);
        let mut block = self.blocks.pop().expect("pushed above");
        block.outputs = outputs?;
        Ok(block)
    }

    /// Ends the function with its outputs.
    pub fn finish(mut self, outputs: Vec<ValueId>) -> Function {
        let mut body = self.blocks.pop().expect("the body is never popped before");
        body.outputs = outputs;
        self.function.body = body;
        self.function
    }

    /// Gives value `v` the name `name` (made unique), such as an output's public name.
    pub fn rename(&mut self, v: ValueId, name: &str) {
        self.names.remove(&self.function.values[v].name);
        self.function.values[v].name = self.unique(name);
    }

    fn current_block(&mut self) -> &mut Block {
        self.blocks.last_mut().expect("the body is always there")
    }

    fn unique(&mut self, wanted: &str) -> String {
        let base: String = wanted
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' })
            .collect();
        let base = match base.chars().next() {
            None => "v".to_owned(),
            Some(c) if c.is_ascii_digit() => format!("_{base}"),
            Some(_) => base,
        };
        let mut name = base.clone();
        let mut n = 1;
        while self.names.contains(&name) {
            name = format!("{base}_{n}");
            n += 1;
        }
        self.names.insert(name.clone());
        name
    }

    fn new_value(&mut self, name: &str, ty: Type, def: ValueDef) -> ValueId {
        let name = self.unique(name);
        self.function.values.push(ValueData { name, ty, def })
    }

    fn error(&self, e: OpError, kind: OpKind, name: &str) -> Error {
        Error::at_op(e, &self.name, format!("{} \"{name}\"", kind.name()))
    }
}

/// One operation under construction.
pub struct OpBuilder<'b, 'w> {
    builder: &'b mut FunctionBuilder<'w>,
    kind: OpKind,
    args: Vec<Option<Arg>>,
    name: Option<String>,
    attributes: Attributes,
    blocks: Vec<Block>,
    error: Option<OpError>,
}

impl OpBuilder<'_, '_> {
    /// Gives parameter `name` an argument.
    #[must_use]
    pub fn arg(mut self, name: &str, arg: impl Into<Arg>) -> Self {
        match self.kind.param_index(name) {
            Some(index) => self.args[index] = Some(arg.into()),
            None => {
                let message = format!("{} has no parameter \"{name}\"", self.kind.name());
                self.error.get_or_insert(OpError::invalid(message));
            }
        }
        self
    }

    /// Gives parameter `name` an argument if there is one.
    #[must_use]
    pub fn opt_arg(self, name: &str, arg: Option<impl Into<Arg>>) -> Self {
        match arg {
            Some(arg) => self.arg(name, arg),
            None => self,
        }
    }

    /// Names the operation and its results.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attribute(mut self, name: &str, value: Literal) -> Self {
        self.attributes.insert(name.to_owned(), value);
        self
    }

    /// Adds a nested block.
    #[must_use]
    pub fn block(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// Adds the operation and returns its results.
    ///
    /// # Errors
    /// When the arguments do not fit the operation; the error names both.
    pub fn results(self) -> Result<Vec<ValueId>> {
        let OpBuilder { builder, kind, args, name, mut attributes, blocks, error } = self;
        let name = name.unwrap_or_else(|| kind.name().replace('.', "_"));
        if let Some(e) = error {
            return Err(builder.error(e, kind, &name));
        }
        let view = OpView {
            kind,
            function: &builder.function,
            weights: builder.weights,
            args: &args,
            attributes: &attributes,
            blocks: &blocks,
        };
        let types = crate::verify::check_args(&view)
            .and_then(|()| kind.def().infer(&view))
            .map_err(|e| builder.error(e, kind, &name))?;
        let op = builder.function.ops.next_key();
        let single = types.len() == 1;
        let outputs: Vec<ValueId> = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let value_name = if single { name.clone() } else { format!("{name}_{i}") };
                builder.new_value(&value_name, ty, ValueDef::Result(op, i as u32))
            })
            .collect();
        if !attributes.contains_key("name") {
            attributes.insert("name", Literal::string(name));
        }
        builder.function.ops.push(Operation {
            kind,
            args,
            outputs: outputs.clone(),
            blocks,
            opset: None,
            attributes,
        });
        builder.current_block().ops.push(op);
        Ok(outputs)
    }

    /// Adds an operation that has one result and returns it.
    ///
    /// # Errors
    /// As [`OpBuilder::results`].
    pub fn result(self) -> Result<ValueId> {
        let name = self.builder.name.clone();
        let kind = self.kind;
        match self.results()?[..] {
            [v] => Ok(v),
            ref other => Err(Error::new(
                ErrorKind::Bug,
                format!("{} has {} results where one is used", kind.name(), other.len()),
            )
            .in_function(&name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorType;
    use tensor::DType;

    #[test]
    fn names_are_kept_unique() {
        let mut weights = WeightStore::new();
        let mut b = FunctionBuilder::new("main", Opset::Ios18, &mut weights);
        let x = b.input("x", TensorType::new(DType::F32, [1]));
        let y = b.op(OpKind::Abs).arg("x", x).name("y").result().unwrap();
        let name = |b: &FunctionBuilder<'_>, v| b.function().values[v].name.clone();
        // A value keeps the name it has, takes a free one, and not that of another.
        for (wanted, given) in [("y", "y"), ("out", "out"), ("y", "y"), ("x", "x_1")] {
            b.rename(y, wanted);
            assert_eq!(name(&b, y), given);
        }
    }
}
