//! Values and refusals of operations on images: pooling, transposed convolution, moves between axes,
//! resizing, sampling, boxes.

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

/// An image of channels, each of a row of columns.
fn rows(channels: usize, values: &[f64]) -> Array {
    f32s(&[1, channels, 1, values.len() / channels], values.iter().copied())
}

fn moves() -> Vec<Case> {
    use OpKind::*;
    let deep = || f32s(&[1, 8, 1, 1], (0..8).map(f64::from));
    let flat = |values: [f64; 8]| f32s(&[1, 2, 2, 2], values);
    let by = |name, x: Array, value| vec![("x", x.into()), (name, int(value))];
    // Places of a block first, or channels first.
    let (places, channels) =
        ([0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    let batch = |name, x: Array, sides: [i32; 4]| {
        let sides = tensor::Tensor::from_slice(&[2, 2], &sides).unwrap();
        vec![
            ("x", x.into()),
            ("block_shape", int_list(&[1, 2])),
            (name, mil::Literal::tensor(sides).into()),
        ]
    };
    let images = || f32s(&[4, 1, 1, 1], [1.0, 3.0, 2.0, 4.0]);
    let image = |values: &[f64]| f32s(&[2, 1, 1, values.len() / 2], values.iter().copied());
    vec![
        (DepthToSpace, by("block_size", deep(), 2), vec![flat(places)]),
        (SpaceToDepth, by("block_size", flat(places), 2), vec![deep()]),
        (PixelShuffle, by("upscale_factor", deep(), 2), vec![flat(channels)]),
        (PixelUnshuffle, by("downscale_factor", flat(channels), 2), vec![deep()]),
        (
            SpaceToBatch,
            batch("paddings", image(&[1.0, 3.0]), [0, 0, 0, 1]),
            vec![f32s(&[4, 1, 1, 1], [1.0, 3.0, 0.0, 0.0])],
        ),
        (BatchToSpace, batch("crops", images(), [0, 0, 0, 0]), vec![image(&[1.0, 2.0, 3.0, 4.0])]),
        (BatchToSpace, batch("crops", images(), [0, 0, 1, 0]), vec![image(&[2.0, 4.0])]),
    ]
}

fn resizing() -> Vec<Case> {
    use OpKind::*;
    let pair = || rows(1, &[0.0, 1.0]);
    let scale = |more| with(vec![("x", pair().into()), ("scale_factor_width", float(2.5))], more);
    let target = |width, mode: &str| {
        let args = vec![("target_size_width", int(width)), ("sampling_mode", str(mode))];
        with(vec![("x", pair().into())], args)
    };
    let no = || mil::Literal::bool(false).into();
    vec![
        (
            UpsampleNearestNeighbor,
            vec![
                ("x", rows(1, &[1.0, 2.0]).into()),
                ("scale_factor_height", int(2)),
                ("scale_factor_width", int(2)),
            ],
            vec![image(2, &[1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0])],
        ),
        (UpsampleBilinear, scale(vec![]), vec![rows(1, &[0.0, 0.25, 0.5, 0.75, 1.0])]),
        (
            UpsampleBilinear,
            scale(vec![("align_corners", no())]),
            vec![rows(1, &[0.0, 0.1, 0.5, 0.9, 1.0])],
        ),
        (
            UpsampleBilinear,
            scale(vec![("align_corners", no()), ("half_pixel_centers", no())]),
            vec![rows(1, &[0.0, 0.4, 0.8, 1.0, 1.0])],
        ),
        (
            ResizeNearestNeighbor,
            vec![
                ("x", rows(1, &[1.0, 2.0]).into()),
                ("target_size_height", int(1)),
                ("target_size_width", int(3)),
            ],
            vec![rows(1, &[1.0, 1.0, 2.0])],
        ),
        (ResizeBilinear, target(5, "DEFAULT"), vec![rows(1, &[0.0, 0.4, 0.8, 1.0, 1.0])]),
        (ResizeBilinear, target(5, "OFFSET_CORNERS"), vec![rows(1, &[0.1, 0.3, 0.5, 0.7, 0.9])]),
        (ResizeBilinear, target(5, "UNALIGN_CORNERS"), vec![rows(1, &[0.0, 0.1, 0.5, 0.9, 1.0])]),
        (ResizeBilinear, target(1, "STRICT_ALIGN_CORNERS"), vec![rows(1, &[0.0])]),
        (ResizeBilinear, target(1, "ALIGN_CORNERS"), vec![rows(1, &[0.5])]),
        (
            Resize,
            vec![
                ("x", image(2, &[0.0, 1.0, 2.0, 3.0]).into()),
                ("shape", int_list(&[9, 1, 3])),
                ("resized_dims", int(2)),
                ("sampling_mode", str("ALIGN_CORNERS")),
            ],
            vec![rows(1, &[1.0, 1.5, 2.0])],
        ),
        (
            Resize,
            vec![
                ("x", crate::common::ints(&[1, 2], [4, 5]).into()),
                ("shape", crate::common::ints(&[2], [0, 4]).into()),
                ("resized_dims", int(2)),
                ("interpolation_mode", str("NEAREST_NEIGHBOR")),
            ],
            vec![crate::common::ints(&[1, 4], [4, 4, 5, 5])],
        ),
        (
            Crop,
            vec![
                ("x", image(2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).into()),
                ("crop_height", int_list(&[1, 0])),
                ("crop_width", int_list(&[1, 1])),
            ],
            vec![image(1, &[5.0])],
        ),
    ]
}

/// The constants of sampling.
fn sampling(mode: &str, padding: &str, coordinates: &str) -> Vec<(&'static str, In)> {
    vec![
        ("sampling_mode", str(mode)),
        ("padding_mode", str(padding)),
        ("padding_value", float(9.0)),
        ("coordinates_mode", str(coordinates)),
        ("align_corners", yes()),
    ]
}

fn samples() -> Vec<Case> {
    use OpKind::*;
    let x = || ("x", rows(1, &[1.0, 2.0, 4.0]).into());
    // Columns at row 0.
    let at = |columns: &[f64]| {
        let pairs = columns.iter().flat_map(|&c| [c, 0.0]);
        ("coordinates", f32s(&[1, 1, columns.len(), 2], pairs).into())
    };
    let points = [-1.0, 0.5, 2.5, 4.0];
    let resample =
        |padding| with(vec![x(), at(&points)], sampling("bilinear", padding, "unnormalized"));
    let affine = |map: [f64; 6], width| {
        let map = ("transform_matrix", f32s(&[1, 6], map).into());
        let size = vec![("output_height", int(1)), ("output_width", int(width))];
        let options = sampling("bilinear", "constant", "normalized_minus_one_to_one");
        with(with(vec![x(), map], size), options)
    };
    let boxes = |mode: &str| {
        vec![
            x(),
            ("boxes", f32s(&[2, 4], [0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 3.0]).into()),
            ("box_indices", crate::common::ints(&[2], [0, 0]).into()),
            ("target_width", int(2)),
            ("sampling_mode", str(mode)),
            ("pad_value", float(8.0)),
        ]
    };
    let found = |values: [f64; 4]| f32s(&[2, 1, 1, 2], values);
    vec![
        (Resample, resample("constant"), vec![rows(1, &[9.0, 1.5, 6.5, 9.0])]),
        (Resample, resample("border"), vec![rows(1, &[1.0, 1.5, 4.0, 4.0])]),
        (Resample, resample("reflection"), vec![rows(1, &[2.0, 1.5, 3.0, 1.0])]),
        (Resample, resample("symmetric"), vec![rows(1, &[1.0, 1.5, 4.0, 2.0])]),
        (
            Resample,
            with(
                vec![x(), at(&[0.2, 0.5, 1.0])],
                sampling("nearest", "border", "normalized_zero_to_one"),
            ),
            vec![rows(1, &[1.0, 2.0, 4.0])],
        ),
        (
            Affine,
            affine([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], 5),
            vec![rows(1, &[1.0, 1.5, 2.0, 3.0, 4.0])],
        ),
        (Affine, affine([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 3), vec![rows(1, &[2.0, 4.0, 9.0])]),
        (CropResize, boxes("STRICT_ALIGN_CORNERS"), vec![found([1.0, 4.0, 2.0, 8.0])]),
        (CropResize, boxes("OFFSET_CORNERS"), vec![found([1.5, 3.0, 3.0, 6.0])]),
        (
            NonMaximumSuppression,
            // Middles and sizes in columns: two that overlap by 3/5, one apart.
            vec![
                (
                    "boxes",
                    f32s(&[1, 4, 3], [2.0, 3.0, 9.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0])
                        .into(),
                ),
                ("scores", f32s(&[1, 1, 3], [0.5, 0.75, 0.25]).into()),
                ("iou_threshold", float(0.5)),
                ("max_boxes", int(3)),
            ],
            vec![
                f32s(&[1, 4, 3], [3.0, 9.0, 0.0, 2.0, 2.0, 0.0, 4.0, 4.0, 0.0, 4.0, 4.0, 0.0]),
                f32s(&[1, 1, 3], [0.75, 0.25, 0.0]),
                crate::common::ints(&[1, 3], [1, 2, -1]),
            ],
        ),
    ]
}

pub(crate) fn values() -> Vec<Case> {
    let mut all = pooling();
    all.extend(transposed_convolution());
    all.extend(moves());
    all.extend(resizing());
    all.extend(samples());
    all
}

pub(crate) fn refusals() -> Vec<Refusal> {
    use OpKind::*;
    let x = || line(&[1.0, 2.0]);
    let plane = || rows(1, &[1.0, 2.0]);
    let with_plane = |more| with(vec![("x", plane().into())], more);
    let mut all: Vec<Refusal> = Vec::new();
    for (kind, name) in [
        (DepthToSpace, "block_size"),
        (SpaceToDepth, "block_size"),
        (PixelShuffle, "upscale_factor"),
        (PixelUnshuffle, "downscale_factor"),
    ] {
        all.push((kind, with_plane(vec![(name, int(2))]), "blocks of [2, 2]"));
    }
    for (kind, name) in [(SpaceToBatch, "paddings"), (BatchToSpace, "crops")] {
        let args = vec![("block_shape", int_list(&[1, 2])), (name, int_list(&[0; 4]))];
        all.push((kind, with_plane(args), name));
    }
    for kind in [UpsampleNearestNeighbor, UpsampleBilinear] {
        all.push((kind, with_plane(vec![("scale_factor_width", float(0.25))]), "makes 0 of 2"));
    }
    all.extend([
        (UpsampleBilinear, with_plane(vec![("half_pixel_centers", yes())]), "half_pixel_centers"),
        (ResizeBilinear, with_plane(vec![("sampling_mode", str("ALIGN"))]), "ALIGN"),
        (
            Resize,
            with_plane(vec![("shape", int_list(&[1])), ("resized_dims", int(2))]),
            "2 of 1 sizes",
        ),
        (
            ResizeNearestNeighbor,
            with_plane(vec![("target_size_height", int(0)), ("target_size_width", int(1))]),
            "target_size_height",
        ),
        (
            Crop,
            with_plane(vec![("crop_height", int_list(&[0, 0])), ("crop_width", int_list(&[1, 1]))]),
            "too small",
        ),
        (
            Resample,
            with(
                with_plane(vec![("coordinates", f32s(&[2, 1, 1, 2], [0.0; 4]).into())]),
                sampling("bilinear", "border", "unnormalized"),
            ),
            "[2, 1, 1, 2]",
        ),
        (
            Affine,
            with(
                with_plane(vec![
                    ("transform_matrix", f32s(&[1, 4], [0.0; 4]).into()),
                    ("output_height", int(1)),
                    ("output_width", int(1)),
                ]),
                sampling("bilinear", "border", "unnormalized"),
            ),
            "[1, 4]",
        ),
        (
            CropResize,
            with_plane(vec![("roi", f32s(&[1, 1, 4, 1, 1], [0.0; 4]).into())]),
            "form of ios18",
        ),
        (CropResize, with_plane(vec![("boxes", f32s(&[2, 4], [0.0; 8]).into())]), "image 1 of 1"),
        (
            NonMaximumSuppression,
            vec![
                ("boxes", f32s(&[1, 2, 4], [0.0; 8]).into()),
                ("scores", f32s(&[1, 2, 1], [0.0; 2]).into()),
                ("iou_threshold", float(0.5)),
                ("score_threshold", float(0.5)),
                ("max_boxes", int(1)),
            ],
            "score_threshold",
        ),
    ]);
    all.extend([
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
    ]);
    all
}
