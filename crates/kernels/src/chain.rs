//! Elementwise functions one after another, some elements at a time: what lies between stays in the cache.

use crate::Pool;
use crate::activation::{Activation, Apply};
use crate::arch::{Kernel, Simd};
use crate::scratch::Scratch;
use crate::share::{Shared, chunks};

/// Elements taken at a time.
const PIECE: usize = 512;

/// A function of one or two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChainFunction {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// A function of `a`.
    Of(Activation),
}

/// What a function is applied to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ChainOperand {
    /// The input of this number.
    Input(usize),
    /// The result of the step of this number.
    Step(usize),
    /// The number of this place in [`Chain::numbers`], for all elements.
    Number(usize),
}

/// A step of a chain; functions of one number ignore the second operand.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChainStep {
    /// What is computed.
    pub function: ChainFunction,
    /// From what.
    pub operands: [ChainOperand; 2],
}

/// Steps, each of which uses inputs and earlier steps.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Chain {
    /// In order.
    pub steps: Vec<ChainStep>,
    /// Numbers that steps use.
    pub numbers: Vec<f32>,
    /// The steps whose results are written, in the order of the outputs.
    pub outputs: Vec<usize>,
}

/// Runs `chain` over inputs and outputs of one length. Input `in_place` is the first output's memory, and
/// its slice is not used.
///
/// # Panics
/// When lengths differ, or a step uses what is not there.
pub fn chain(
    pool: &Pool,
    chain: &Chain,
    inputs: &[&[f32]],
    in_place: Option<usize>,
    outputs: &mut [&mut [f32]],
) {
    let len = outputs.first().map_or(0, |o| o.len());
    let others = inputs.iter().enumerate().filter(|&(i, _)| in_place != Some(i));
    assert!(others.clone().all(|(_, x)| x.len() == len), "lengths differ");
    assert!(outputs.len() == chain.outputs.len() && outputs.iter().all(|o| o.len() == len));
    let outputs: Vec<Shared<'_, f32>> = outputs.iter_mut().map(|o| Shared::new(o)).collect();
    chunks(pool, len, |range| {
        // SAFETY: the ranges of different tasks do not overlap.
        let mut outputs: Vec<&mut [f32]> =
            outputs.iter().map(|o| unsafe { o.slice(range.clone()) }).collect();
        let inputs: Vec<&[f32]> =
            inputs.iter().map(|x| x.get(range.clone()).unwrap_or_default()).collect();
        pool.isa().run(Steps { chain, inputs: &inputs, in_place, outputs: &mut outputs });
    });
}

struct Steps<'a, 'o> {
    chain: &'a Chain,
    inputs: &'a [&'a [f32]],
    in_place: Option<usize>,
    outputs: &'a mut [&'o mut [f32]],
}

impl Kernel for Steps<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Chain { steps, numbers, outputs } = self.chain;
        let len = self.outputs.first().map_or(0, |o| o.len());
        let mut scratch = Scratch::new((steps.len() + numbers.len()) * PIECE);
        let (results, constants) = scratch.split_at_mut(steps.len() * PIECE);
        for (out, x) in constants.chunks_exact_mut(PIECE).zip(numbers) {
            out.fill(*x);
        }
        for first in (0..len).step_by(PIECE) {
            let piece = first..len.min(first + PIECE);
            for (i, step) in steps.iter().enumerate() {
                let (before, now) = results.split_at_mut(i * PIECE);
                let out = &mut now[..piece.len()];
                let operands = step.operands.map(|operand| match operand {
                    ChainOperand::Input(i) if self.in_place == Some(i) => {
                        &self.outputs[0][piece.clone()]
                    }
                    ChainOperand::Input(i) => &self.inputs[i][piece.clone()],
                    ChainOperand::Step(i) => &before[i * PIECE..][..piece.len()],
                    ChainOperand::Number(i) => &constants[i * PIECE..][..piece.len()],
                });
                apply(s, step.function, operands, out);
            }
            for (out, step) in self.outputs.iter_mut().zip(outputs) {
                out[piece.clone()].copy_from_slice(&results[step * PIECE..][..piece.len()]);
            }
        }
    }
}

/// One step; the compiler turns the loops into vector instructions.
#[inline(always)]
fn apply<S: Simd>(s: S, function: ChainFunction, [a, b]: [&[f32]; 2], out: &mut [f32]) {
    let pairs = out.iter_mut().zip(a.iter().zip(b));
    match function {
        ChainFunction::Add => pairs.for_each(|(o, (a, b))| *o = a + b),
        ChainFunction::Sub => pairs.for_each(|(o, (a, b))| *o = a - b),
        ChainFunction::Mul => pairs.for_each(|(o, (a, b))| *o = a * b),
        ChainFunction::Div => pairs.for_each(|(o, (a, b))| *o = a / b),
        ChainFunction::Of(act) => {
            out.copy_from_slice(a);
            Apply { act, x: out, up: None }.run(s);
        }
    }
}
