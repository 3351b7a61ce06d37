//! Elementwise operations beyond single precision: comparisons, logic, choice, integers, casts.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use kernels::Pool;
use mil::OpError;
use tensor::DType;

use super::for_each_chunk;
use super::strided::{collapse, strides_in};
use crate::kernel::{Binding, Kernel, Native, Operand, RunCx, f32s, numbers, numbers_mut};
use crate::op_cx::{Bind, OpCx};

/// Elements of a piece of work.
const PIECE: usize = 1 << 12;

/// Walks `N` operands that are repeated along some axes, a row of the result at a time.
struct Walks<const N: usize> {
    shape: Vec<usize>,
    strides: [Vec<usize>; N],
}

impl<const N: usize> Walks<N> {
    fn new(operands: [&Operand; N], out: &[usize]) -> Self {
        let (shape, strides) = collapse(out, operands.map(|o| strides_in(&o.shape, out)));
        Walks { shape, strides }
    }

    /// Calls `f` with each row of `out`, where it begins in every operand and the steps there.
    fn run<T: Send>(
        &self,
        pool: &Pool,
        out: &mut [T],
        f: impl Fn(&mut [T], [usize; N], [usize; N]) + Sync,
    ) {
        if out.is_empty() {
            return;
        }
        let Some(last) = self.shape.len().checked_sub(1) else {
            return f(out, [0; N], [0; N]);
        };
        let steps = std::array::from_fn(|i| self.strides[i][last]);
        for_each_chunk(pool, out, self.shape[last], |mut row, out| {
            let mut starts = [0; N];
            for axis in (0..last).rev() {
                let at = row % self.shape[axis];
                row /= self.shape[axis];
                starts.iter_mut().zip(&self.strides).for_each(|(s, by)| *s += at * by[axis]);
            }
            f(out, starts, steps);
        });
    }

    /// `out[i] = f(x[i], y[i])`.
    fn zip<A: Copy + Sync, B: Copy + Sync, O: Send>(
        &self,
        pool: &Pool,
        (x, y): (&[A], &[B]),
        out: &mut [O],
        (a, b): (usize, usize),
        f: impl Fn(A, B) -> O + Sync,
    ) {
        self.run(pool, out, |out, starts, steps| {
            for (k, o) in out.iter_mut().enumerate() {
                *o = f(x[starts[a] + k * steps[a]], y[starts[b] + k * steps[b]]);
            }
        });
    }
}

/// Which of two numbers is wanted greater.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Comparison {
    /// `x = y`.
    Equal,
    /// `x` and `y` differ.
    NotEqual,
    /// `x < y`.
    Less,
    /// `x <= y`.
    LessEqual,
    /// `x > y`.
    Greater,
    /// `x >= y`.
    GreaterEqual,
}

impl Comparison {
    fn holds<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            Comparison::Equal => a == b,
            Comparison::NotEqual => a != b,
            Comparison::Less => a < b,
            Comparison::LessEqual => a <= b,
            Comparison::Greater => a > b,
            Comparison::GreaterEqual => a >= b,
        }
    }
}

/// Calls `$run` with `$T` as the integer type `$dtype`.
macro_rules! with_int {
    ($dtype:expr, $T:ident => $run:expr, else $other:expr) => {
        match $dtype {
            DType::I8 => {
                type $T = i8;
                $run
            }
            DType::I16 => {
                type $T = i16;
                $run
            }
            DType::I32 => {
                type $T = i32;
                $run
            }
            DType::I64 => {
                type $T = i64;
                $run
            }
            DType::U8 => {
                type $T = u8;
                $run
            }
            DType::U16 => {
                type $T = u16;
                $run
            }
            DType::U32 => {
                type $T = u32;
                $run
            }
            DType::U64 => {
                type $T = u64;
                $run
            }
            _ => $other,
        }
    };
}

/// The integers of a type that 64 bits with a sign hold; none of any other.
#[expect(clippy::unnecessary_cast, reason = "one code for all integer types, i64 among them")]
pub(crate) fn integers_of(dtype: DType, bytes: &[u8]) -> Vec<i64> {
    with_int!(dtype, T => numbers::<T>(bytes).iter().map(|&v| v as i64).collect(), else Vec::new())
}

/// Whether values of `dtype` are read as they lie.
pub(super) fn is_native_int(dtype: DType) -> bool {
    with_int!(dtype, T => size_of::<T>() > 0, else false)
}

/// The operands `x` and `y` as single precision if they are floats, or as the integers they are.
fn pair(cx: &mut OpCx<'_>) -> Bind<(Operand, Operand)> {
    let (x, y) = (cx.get("x")?, cx.get("y")?);
    if is_native_int(x.dtype) && x.dtype == y.dtype {
        return Ok((cx.aligned(x)?, cx.aligned(y)?));
    }
    Ok((cx.as_float(x, "x")?, cx.as_float(y, "y")?))
}

/// Binds a comparison.
pub(crate) fn compare(cx: &mut OpCx<'_>, comparison: Comparison) -> Bind<Native> {
    let (x, y) = pair(cx)?;
    let (_, out) = cx.result(0)?;
    let walks = Walks::new([&x, &y], &out);
    Ok(Native::moves(Compare { comparison, dtype: x.dtype, walks }, vec![x, y]))
}

struct Compare {
    comparison: Comparison,
    dtype: DType,
    walks: Walks<2>,
}

impl Kernel for Compare {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (by, out) = (self.comparison, &mut *outs[0]);
        if self.dtype == DType::F32 {
            let pair = (f32s(ins[0]), f32s(ins[1]));
            self.walks.zip(cx.pool, pair, out, (0, 1), |a, b| by.holds(&a, &b).into());
            return Ok(());
        }
        with_int!(self.dtype, T => {
            let pair = (numbers::<T>(ins[0]), numbers::<T>(ins[1]));
            self.walks.zip(cx.pool, pair, out, (0, 1), |a, b| by.holds(&a, &b).into());
        }, else {});
        Ok(())
    }
}

/// A function of two truth values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Logic {
    /// Both.
    And,
    /// At least one.
    Or,
    /// Exactly one.
    Xor,
}

/// Binds a logical operation of two arguments.
pub(crate) fn logic(cx: &mut OpCx<'_>, logic: Logic) -> Bind<Native> {
    let (x, y) = (cx.get("x")?, cx.get("y")?);
    let (_, out) = cx.result(0)?;
    let walks = Walks::new([&x, &y], &out);
    Ok(Native::moves(Logical { logic, walks }, vec![x, y]))
}

struct Logical {
    logic: Logic,
    walks: Walks<2>,
}

impl Kernel for Logical {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let pair = (ins[0], ins[1]);
        let f: fn(u8, u8) -> u8 = match self.logic {
            Logic::And => |a, b| u8::from(a != 0 && b != 0),
            Logic::Or => |a, b| u8::from(a != 0 || b != 0),
            Logic::Xor => |a, b| u8::from((a != 0) != (b != 0)),
        };
        self.walks.zip(cx.pool, pair, &mut *outs[0], (0, 1), f);
        Ok(())
    }
}

/// Binds `logical_not`.
pub(crate) fn logical_not(cx: &mut OpCx<'_>) -> Bind<Native> {
    Ok(Native::moves(Not, vec![cx.get("x")?]))
}

struct Not;

impl Kernel for Not {
    fn run(&self, _: &mut RunCx<'_>, ins: &[&[u8]], outs: &mut [&mut [u8]]) -> Result<(), OpError> {
        outs[0].iter_mut().zip(ins[0]).for_each(|(o, &x)| *o = u8::from(x == 0));
        Ok(())
    }
}

/// Binds `select`, for elements of any whole-byte type.
pub(crate) fn select(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (cond, a, b) = (cx.get("cond")?, cx.get("a")?, cx.get("b")?);
    let (dtype, out) = cx.result(0)?;
    let walks = Walks::new([&cond, &a, &b], &out);
    let (a, b) = (cx.aligned(a)?, cx.aligned(b)?);
    let inputs = vec![cond, a, b];
    match dtype.block_bytes() {
        1 => Ok(Native::moves(Select::<u8> { walks, element: PhantomData }, inputs)),
        2 => Ok(Native::moves(Select::<u16> { walks, element: PhantomData }, inputs)),
        4 => Ok(Native::moves(Select::<u32> { walks, element: PhantomData }, inputs)),
        8 => Ok(Native::moves(Select::<u64> { walks, element: PhantomData }, inputs)),
        n => Err(format!("elements of {n} bytes").into()),
    }
}

/// A choice between elements of the size of `T`.
struct Select<T> {
    walks: Walks<3>,
    element: PhantomData<T>,
}

impl<T: bytemuck::Pod + Send + Sync> Kernel for Select<T> {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (cond, a, b) = (ins[0], numbers::<T>(ins[1]), numbers::<T>(ins[2]));
        self.walks.run(cx.pool, numbers_mut::<T>(outs[0]), |out, [i, j, k], [c, p, q]| {
            for (n, o) in out.iter_mut().enumerate() {
                let chosen = if cond[i + n * c] != 0 { a[j + n * p] } else { b[k + n * q] };
                *o = chosen;
            }
        });
        Ok(())
    }
}

/// A function of two integers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum IntFunction {
    /// `a + b`, wrapping.
    Add,
    /// `a - b`, wrapping.
    Sub,
    /// `a * b`, wrapping.
    Mul,
    /// `a / b` rounded toward zero.
    Div,
    /// `a / b` rounded down.
    FloorDiv,
    /// What `FloorDiv` leaves.
    Mod,
    /// The greater one.
    Max,
    /// The lesser one.
    Min,
}

impl IntFunction {
    /// The result before it wraps around; `None` of a division by zero.
    fn of(self, a: i64, b: i64) -> Option<i64> {
        let down = || {
            let q = a.checked_div(b)?;
            Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
        };
        match self {
            IntFunction::Add => Some(a.wrapping_add(b)),
            IntFunction::Sub => Some(a.wrapping_sub(b)),
            IntFunction::Mul => Some(a.wrapping_mul(b)),
            IntFunction::Div => a.checked_div(b),
            IntFunction::FloorDiv => down(),
            IntFunction::Mod => down().map(|q| a - q * b),
            IntFunction::Max => Some(a.max(b)),
            IntFunction::Min => Some(a.min(b)),
        }
    }
}

/// Binds an operation of two integers of a type that 64 bits with a sign hold.
pub(crate) fn integers(cx: &mut OpCx<'_>, function: IntFunction) -> Bind<Native> {
    let (x, y) = (cx.get("x")?, cx.get("y")?);
    if !is_native_int(x.dtype) || x.dtype == DType::U64 || x.dtype != y.dtype {
        return Err(format!("of {} and {}", x.dtype, y.dtype).into());
    }
    let (dtype, out) = cx.result(0)?;
    let walks = Walks::new([&x, &y], &out);
    let inputs = vec![cx.aligned(x)?, cx.aligned(y)?];
    Ok(Native::moves(Integers { function, dtype, walks }, inputs))
}

struct Integers {
    function: IntFunction,
    dtype: DType,
    walks: Walks<2>,
}

impl Kernel for Integers {
    #[expect(clippy::unnecessary_cast, reason = "one code for all integer types, i64 among them")]
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let failed = AtomicBool::new(false);
        with_int!(self.dtype, T => {
            let pair = (numbers::<T>(ins[0]), numbers::<T>(ins[1]));
            self.walks.zip(cx.pool, pair, numbers_mut::<T>(outs[0]), (0, 1), |a, b| {
                match self.function.of(a as i64, b as i64) {
                    Some(r) => r as T,
                    None => {
                        failed.store(true, Ordering::Relaxed);
                        T::default()
                    }
                }
            });
        }, else {});
        match failed.into_inner() {
            true => Err(OpError::invalid("an integer is divided by zero")),
            false => Ok(()),
        }
    }
}

/// Binds `cast` between types of which at least one is of integers or truth values.
pub(crate) fn cast(cx: &mut OpCx<'_>) -> Bind<Binding> {
    let x = cx.get("x")?;
    let (to, _) = cx.result(0)?;
    let known = |d: DType| is_native_int(d) || d == DType::Bool;
    let from_float = matches!(x.dtype, DType::F32 | DType::F16);
    if !(known(to) || matches!(to, DType::F32 | DType::F16)) || !(known(x.dtype) || from_float) {
        return Err(format!("from {} to {to}", x.dtype).into());
    }
    let x = if from_float { cx.as_float(x, "x")? } else { cx.aligned(x)? };
    let kernel = Cast { from: x.dtype, to: if known(to) { to } else { DType::F32 } };
    Ok(if known(to) { Native::moves(kernel, vec![x]) } else { Native::floats(kernel, vec![x]) }
        .into())
}

struct Cast {
    /// `fp32`, an integer type or truth values.
    from: DType,
    /// As `from`.
    to: DType,
}

impl Kernel for Cast {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let (x, out) = (ins[0], &mut *outs[0]);
        match (self.from, self.to) {
            (DType::F32, DType::Bool) => each(cx.pool, f32s(x), out, |v| u8::from(v != 0.0)),
            // Rounded toward zero and confined, as the language's own conversion is; NaN is 0.
            (DType::F32, to) => with_int!(to, T => {
                each(cx.pool, f32s(x), numbers_mut::<T>(out), |v| v as T);
            }, else {}),
            (DType::Bool, DType::Bool) => out.copy_from_slice(x),
            (DType::Bool, DType::F32) => {
                each(cx.pool, x, numbers_mut::<f32>(out), |v| f32::from(u8::from(v != 0)));
            }
            (DType::Bool, to) => with_int!(to, T => {
                each(cx.pool, x, numbers_mut::<T>(out), |v| T::from(v != 0));
            }, else {}),
            (from, DType::Bool) => with_int!(from, F => {
                each(cx.pool, numbers::<F>(x), out, |v| u8::from(v != 0));
            }, else {}),
            (from, DType::F32) => with_int!(from, F => {
                each(cx.pool, numbers::<F>(x), numbers_mut::<f32>(out), |v| v as f32);
            }, else {}),
            // Wrapping around.
            (from, to) => with_int!(from, F => with_int!(to, T => {
                each(cx.pool, numbers::<F>(x), numbers_mut::<T>(out), |v| v as T);
            }, else {}), else {}),
        }
        Ok(())
    }
}

fn each<A: Copy + Sync, O: Send>(pool: &Pool, x: &[A], out: &mut [O], f: impl Fn(A) -> O + Sync) {
    for_each_chunk(pool, out, PIECE, |i, out| {
        out.iter_mut().zip(&x[i * PIECE..]).for_each(|(o, x)| *o = f(*x));
    });
}
