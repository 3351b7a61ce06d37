//! The functions' interface: where a run of tokens starts, instead of the position of each.

use mil::{Dim, Error, ErrorKind, FunctionBuilder, Literal, OpKind, Program, Result, TensorType};
use tensor::DType;

/// Input: the position of the first token, int32 `[1]`, from 0; the others follow it.
pub const POSITION: &str = "position";

/// Gives function `name` the input [`POSITION`] in place of the positions of all tokens. That they
/// follow each other lets the cache be updated in place.
///
/// # Errors
/// When the function does not take positions of a fixed number.
pub(crate) fn start_from_position(program: &mut Program, name: &str) -> Result<()> {
    let missing = || {
        let message = format!("no input {} of fixed size", llm::interface::POSITIONS);
        Error::new(ErrorKind::Bug, message).in_function(name)
    };
    let old = program.functions.get(name).ok_or_else(missing)?.clone();
    let positions = old.input(llm::interface::POSITIONS).ok_or_else(missing)?;
    let tokens = match old.tensor_ty(positions).map(|t| t.shape.as_slice()) {
        Some(&[Dim::Fixed(n)]) => n,
        _ => return Err(missing()),
    };
    let mut b = FunctionBuilder::reopen(name, old.clone(), &mut program.weights);
    let position = b.input(POSITION, TensorType::new(DType::I32, [1usize]));
    let all = match tokens {
        1 => position,
        n => {
            let offsets: Vec<i32> = (0..n as i32).collect();
            let offsets = b.constant("position_offsets", Literal::vector(&offsets));
            b.op(OpKind::Add)
                .arg("x", position)
                .arg("y", offsets)
                .name("token_positions")
                .result()?
        }
    };
    old.body.ops.iter().for_each(|&op| b.keep(op));
    let mut function = b.finish(old.body.outputs.clone());
    for op in function.ops.values_mut() {
        for arg in op.args.iter_mut().flatten() {
            arg.for_each_value_mut(&mut |v| {
                if *v == positions {
                    *v = all;
                }
            });
        }
    }
    let start = |&v| if v == positions { position } else { v };
    function.inputs = old.inputs.iter().map(start).collect();
    program.functions.insert(name.to_owned(), function);
    Ok(())
}
