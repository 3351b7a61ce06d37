//! Convolution and pooling over up to three spatial axes.

use kernels::{Axis, Conv, Matrix, Pooling};
use mil::{ErrorKind, OpError, OpKind, WindowAxis, Windows};
use tensor::DType;

use crate::kernel::{Kernel, Native, RunCx, f32s, f32s_mut};
use crate::op_cx::{Bind, OpCx};

/// The spatial axes of `x` `[n, C, d...]` under kernels of these sizes, as MIL counts them.
fn windows(cx: &OpCx<'_>, sizes: &[usize], kernels: &[usize]) -> Bind<[WindowAxis; 3]> {
    let windows = Windows::of(&cx.view, sizes.len())?;
    let (mut axes, _) = windows.spatial(sizes, kernels).ok_or("windows that do not fit")?;
    // An axis of one element is no axis: loops are to run along a long one.
    let single = |a: &WindowAxis| [a.size, a.kernel, a.out] == [1; 3];
    while single(&axes[2]) && !axes[..2].iter().all(single) {
        axes.rotate_right(1);
    }
    Ok(axes)
}

fn axis(a: WindowAxis) -> Axis {
    let WindowAxis { size, kernel, out, before, stride, dilation, .. } = a;
    Axis { size, kernel, out, before, stride, dilation }
}

/// Binds `conv`.
pub(crate) fn conv(cx: &mut OpCx<'_>) -> Bind<Native> {
    let (x, weight) = (cx.float("x")?, cx.get("weight")?);
    let bias = cx.opt_float("bias")?;
    if !matches!(weight.dtype, DType::F32 | DType::F16 | DType::Bf16) {
        return Err(format!("a weight of {}", weight.dtype).into());
    }
    let (&[batch, channels, ref sizes @ ..], &[rows, inputs, ref kernel @ ..]) =
        (&x.shape[..], &weight.shape[..])
    else {
        return Err("x or weight has too few axes".into());
    };
    if inputs == 0 || rows == 0 || channels % inputs != 0 {
        return Err("no channels".into());
    }
    let groups = channels / inputs;
    let axes = windows(cx, sizes, kernel)?.map(axis);
    let args = Conv { batch, groups, inputs, outputs: rows / groups, axes };
    let columns = weight.len() / rows;
    let dtype = weight.dtype;
    let kernel = Convolution { args, dtype, rows, columns, bias: bias.is_some() };
    Ok(Native::floats(kernel, [x, weight].into_iter().chain(bias).collect()))
}

struct Convolution {
    args: Conv,
    /// Of the weight `[rows, columns]`.
    dtype: DType,
    rows: usize,
    columns: usize,
    bias: bool,
}

impl Kernel for Convolution {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let weight = Matrix::new(self.dtype, self.rows, self.columns, ins[1])
            .map_err(|e| OpError { kind: ErrorKind::Bug, message: e.to_string() })?;
        let bias = self.bias.then(|| f32s(ins[2]));
        kernels::conv(cx.pool, &self.args, f32s(ins[0]), weight, bias, f32s_mut(outs[0]));
        Ok(())
    }
}

/// Binds `avg_pool`, `l2_pool` and `max_pool`.
pub(crate) fn pool(cx: &mut OpCx<'_>) -> Bind<Native> {
    let x = cx.float("x")?;
    let sizes = x.shape.get(2..).unwrap_or_default();
    let given = cx.view.ints("kernel_sizes")?.unwrap_or_default();
    let kernel: Option<Vec<usize>> = given.iter().map(|&k| usize::try_from(k).ok()).collect();
    let axes = windows(cx, sizes, &kernel.ok_or("kernels of negative size")?)?;
    let exclude = cx.view.bool_or("exclude_padding_from_average", false)?;
    let (pooling, after) = match cx.op.kind {
        OpKind::MaxPool => (Pooling::Max, After::Nothing),
        OpKind::L2Pool => (Pooling::SumSquare, After::Root),
        _ => (Pooling::Sum, After::Divide(divisors(&axes, exclude))),
    };
    Ok(Native::floats(Pool { pooling, axes: axes.map(axis), after }, vec![x]))
}

/// The number of places that each window's mean is taken over: its elements, or with the padding.
fn divisors(axes: &[WindowAxis; 3], exclude: bool) -> Vec<f32> {
    let counts = axes.map(|a| {
        let count = |o| {
            let (elements, places) = a.window(o);
            if exclude { elements.len() } else { places }
        };
        (0..a.out).map(count).collect::<Vec<usize>>()
    });
    let [d, h, w] = &counts;
    let rows = d.iter().flat_map(|d| h.iter().map(move |h| d * h));
    rows.flat_map(|row| w.iter().map(move |w| (row * w) as f32)).collect()
}

/// What follows the reduction of the windows.
enum After {
    Nothing,
    Root,
    /// By a number for each output of a plane.
    Divide(Vec<f32>),
}

struct Pool {
    pooling: Pooling,
    axes: [Axis; 3],
    after: After,
}

impl Kernel for Pool {
    fn run(
        &self,
        cx: &mut RunCx<'_>,
        ins: &[&[u8]],
        outs: &mut [&mut [u8]],
    ) -> Result<(), OpError> {
        let out = f32s_mut(outs[0]);
        kernels::pool_windows(cx.pool, self.pooling, &self.axes, f32s(ins[0]), out);
        match &self.after {
            After::Nothing => {}
            After::Root => out.iter_mut().for_each(|v| *v = v.sqrt()),
            After::Divide(by) => {
                for plane in out.chunks_exact_mut(by.len().max(1)) {
                    plane.iter_mut().zip(by).for_each(|(v, by)| *v /= by);
                }
            }
        }
        Ok(())
    }
}
