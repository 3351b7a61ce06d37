//! Values and refusals of operations on images: pooling, transposed convolution.

use mil::OpKind;
use mil::eval::Array;

use crate::common::{In, f32s};
use crate::plain::{Case, Refusal, float, int, int_list, str, with, yes};

/// One image of one channel.
pub(crate) fn image(rows: usize, values: &[f64]) -> Array {
    f32s(&[1, 1, rows, values.len() / rows], values.iter().copied())
}

/// One line of one channel.
fn line(values: &[f64]) -> Array {
    f32s(&[1, 1, values.len()], values.iter().copied())
}

fn pool(x: Array, kernels: &[i32], pad_type: &str) -> Vec<(&'static str, In)> {
    let options = [("kernel_sizes", int_list(kernels)), ("pad_type", str(pad_type))];
    with(vec![("x", x.into())], options.into())
}

fn pooling() -> Vec<Case> {
    use OpKind::*;
    let x = || line(&[1.0, -2.0, 3.0, 4.0, 5.0]);
    let two = || ("strides", int_list(&[2]));
    let padded = || ("pad", int_list(&[1, 1]));
    vec![
        (MaxPool, pool(x(), &[2], "valid"), vec![line(&[1.0, 3.0, 4.0, 5.0])]),
        (MaxPool, with(pool(x(), &[3], "same"), vec![two()]), vec![line(&[1.0, 4.0, 5.0])]),
        (
            MaxPool,
            with(
                pool(line(&[1.0, 2.0, 3.0, 4.0]), &[3], "valid"),
                vec![two(), ("ceil_mode", yes())],
            ),
            vec![line(&[3.0, 4.0])],
        ),
        (
            MaxPool,
            pool(image(2, &[1.0, 2.0, 3.0, 4.0, 9.0, 6.0]), &[2, 2], "valid"),
            vec![image(1, &[9.0, 9.0])],
        ),
        (
            AvgPool,
            with(pool(x(), &[2], "custom"), vec![two(), padded()]),
            vec![line(&[0.5, 0.5, 4.5])],
        ),
        (
            AvgPool,
            with(
                pool(x(), &[2], "custom"),
                vec![two(), padded(), ("exclude_padding_from_average", yes())],
            ),
            vec![line(&[1.0, 0.5, 4.5])],
        ),
        (L2Pool, pool(line(&[3.0, 4.0, 0.0]), &[2], "valid"), vec![line(&[5.0, 4.0])]),
    ]
}

fn transposed_convolution() -> Vec<Case> {
    use OpKind::*;
    let args = |more| {
        with(
            vec![("x", line(&[1.0, 2.0]).into()), ("weight", line(&[10.0, 1.0, 5.0]).into())],
            more,
        )
    };
    let two = || ("strides", int_list(&[2]));
    let kind = |s| ("pad_type", str(s));
    let full = [10.0, 1.0, 25.0, 2.0, 10.0];
    vec![
        (ConvTranspose, args(vec![]), vec![line(&[10.0, 21.0, 7.0, 10.0])]),
        (ConvTranspose, args(vec![two()]), vec![line(&full)]),
        (ConvTranspose, args(vec![two(), kind("same")]), vec![line(&full[..4])]),
        (
            ConvTranspose,
            args(vec![two(), kind("custom"), ("pad", int_list(&[1, 1]))]),
            vec![line(&full[1..4])],
        ),
        (
            ConvTranspose,
            args(vec![
                two(),
                kind("custom"),
                ("pad", int_list(&[1, 0])),
                ("output_shape", int_list(&[1, 1, 4])),
                ("bias", f32s(&[1], [0.5]).into()),
            ]),
            vec![line(&[1.5, 25.5, 2.5, 10.5])],
        ),
        // Two groups, each of one channel.
        (
            ConvTranspose,
            vec![
                ("x", f32s(&[1, 2, 1], [1.0, 2.0]).into()),
                ("weight", f32s(&[2, 1, 2], [1.0, 2.0, 3.0, 4.0]).into()),
                ("groups", int(2)),
            ],
            vec![f32s(&[1, 2, 2], [1.0, 2.0, 6.0, 8.0])],
        ),
    ]
}

pub(crate) fn values() -> Vec<Case> {
    let mut all = pooling();
    all.extend(transposed_convolution());
    all
}

pub(crate) fn refusals() -> Vec<Refusal> {
    use OpKind::*;
    let x = || line(&[1.0, 2.0]);
    vec![
        (MaxPool, pool(x(), &[3], "valid"), "[3]"),
        (AvgPool, pool(x(), &[1, 1], "valid"), "kernel_sizes"),
        (AvgPool, pool(x(), &[1], "middle"), "middle"),
        (MaxPool, with(pool(x(), &[2], "same"), vec![("ceil_mode", yes())]), "ceil_mode"),
        (L2Pool, pool(f32s(&[1, 1, 1, 1, 1], [1.0]), &[1, 1, 1], "valid"), "[1, 1, 1, 1, 1]"),
        (
            ConvTranspose,
            vec![("x", x().into()), ("weight", f32s(&[2, 1, 1], [1.0, 1.0]).into())],
            "[2, 1, 1]",
        ),
        (
            ConvTranspose,
            vec![
                ("x", x().into()),
                ("weight", line(&[1.0]).into()),
                ("output_shape", int_list(&[1, 1, 7])),
            ],
            "convolve to [2]",
        ),
        (ClampedRelu, vec![("x", x().into()), ("alpha", float(1.0))], "\"beta\" is missing"),
    ]
}
