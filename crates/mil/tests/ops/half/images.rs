//! Interpolation: places and weights are fractions, and so are the results.

use mil::eval::Array;
use mil::{Literal, OpKind};
use num_bigint::BigInt;

use super::case::{Args, Case, NUMBERS, Numbers, check, element, places};
use super::rational::{Exact, exact, ratio, rounded, zero};
use super::{halves, scalar};
use crate::common::ints;
use crate::plain::{int, int_list, str};
use half::f16;

const GRIDS: [&str; 5] =
    ["DEFAULT", "STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "UNALIGN_CORNERS", "OFFSET_CORNERS"];

/// Where `grid` places sample `i` of `count` over `size` elements, which may be a fraction.
fn sample(grid: &str, size: &Exact, i: usize, count: usize) -> Exact {
    let (i, n) = (ratio(i as i64, 1), ratio(count as i64, 1));
    let (one, half) = (ratio(1, 1), ratio(1, 2));
    let last = size - &one;
    let at = match grid {
        "DEFAULT" => i * size / n,
        "STRICT_ALIGN_CORNERS" if count == 1 => zero(),
        "ALIGN_CORNERS" if count == 1 => &last / ratio(2, 1),
        "STRICT_ALIGN_CORNERS" | "ALIGN_CORNERS" => i * &last / (n - one),
        "UNALIGN_CORNERS" => (i + &half) * size / n - half,
        "OFFSET_CORNERS" => (i + half) * last.clone().max(one) / n,
        other => panic!("{other}"),
    };
    at.max(zero()).min(last)
}

fn integer(value: &Exact) -> i64 {
    i64::try_from(value.to_integer()).unwrap()
}

/// The value at row `y` and column `x`, between four that `value` gives; what has no part in it may be
/// anywhere.
fn between(y: &Exact, x: &Exact, value: impl Fn(i64, i64) -> Exact) -> Exact {
    let cell = |v: &Exact| {
        let low = v.floor();
        let part = v - &low;
        [(integer(&low), ratio(1, 1) - &part), (integer(&low) + 1, part)]
    };
    let mut sum = zero();
    for (row, own) in cell(y) {
        for (column, other) in cell(x) {
            let weight = &own * other;
            if weight != zero() {
                sum += value(row, column) * weight;
            }
        }
    }
    sum
}

/// `x` with its last two axes sampled at rows `ys` and columns `xs`.
fn resampled(x: &Array, ys: &[Exact], xs: &[Exact]) -> Vec<u16> {
    let outer = &x.shape[..x.shape.len() - 2];
    let mut results = Vec::new();
    for p in places(outer) {
        let value = |i: i64, j: i64| element(x, &[&p[..], &[i as usize, j as usize]].concat());
        for y in ys {
            results.extend(xs.iter().map(|x| rounded(&between(y, x, value))));
        }
    }
    results
}

fn points(grid: &str, size: usize, count: usize) -> Vec<Exact> {
    let size = ratio(size as i64, 1);
    (0..count).map(|i| sample(grid, &size, i, count)).collect()
}

/// Element `i * size / count`, rounded down.
fn nearest(size: usize, count: usize) -> Vec<Exact> {
    (0..count).map(|i| ratio((i * size / count) as i64, 1)).collect()
}

/// Rows and columns before and after: up by thirds and fifths, down, to one, and none.
const SIZES: [[usize; 4]; 5] =
    [[3, 4, 8, 12], [4, 3, 11, 9], [7, 5, 3, 2], [5, 6, 1, 1], [1, 2, 3, 2]];

fn resizing(numbers: Numbers) -> Vec<Case> {
    let mut cases = Vec::new();
    for [h, w, rows, columns] in SIZES {
        let x = numbers.array("x", &[2, 2, h, w]);
        let mut add = |kind, label: &str, more: Args, ys: Vec<Exact>, xs: Vec<Exact>| {
            let mut args: Args = vec![("x", x.clone().into())];
            args.extend(more);
            let label = format!("{h} {w} to {rows} {columns} {label} {numbers:?}");
            cases.push(Case { kind, label, args, expected: resampled(&x, &ys, &xs) });
        };
        let target = || {
            let sizes = [("target_size_height", rows), ("target_size_width", columns)];
            sizes.map(|(name, size)| (name, int(size as i32)))
        };
        for grid in GRIDS {
            let (ys, xs) = (points(grid, h, rows), points(grid, w, columns));
            let mode = || ("sampling_mode", str(grid));
            let args = target().into_iter().chain([mode()]).collect();
            add(OpKind::ResizeBilinear, grid, args, ys.clone(), xs.clone());
            let shape = int_list(&[rows as i32, columns as i32]);
            let args = vec![("shape", shape), ("resized_dims", int(2)), mode()];
            // One axis after the other, nothing rounded in between.
            add(OpKind::Resize, grid, args, ys, xs);
        }
        let (ys, xs) = (nearest(h, rows), nearest(w, columns));
        add(OpKind::ResizeNearestNeighbor, "", target().into(), ys.clone(), xs.clone());
        let args = vec![
            ("shape", int_list(&[rows as i32, columns as i32])),
            ("resized_dims", int(2)),
            ("interpolation_mode", str("NEAREST_NEIGHBOR")),
        ];
        add(OpKind::Resize, "nearest", args, ys, xs);
    }
    cases
}

/// Sizes, factors, and the sizes that come of them.
const FACTORS: [([usize; 2], [f64; 2], [usize; 2]); 3] =
    [([3, 4], [2.0, 3.0], [6, 12]), ([4, 3], [1.5, 2.5], [6, 7]), ([5, 4], [1.0, 3.25], [5, 13])];

fn upsampling(numbers: Numbers) -> Vec<Case> {
    let mut cases = Vec::new();
    for ([h, w], factors, [rows, columns]) in FACTORS {
        let x = numbers.array("x", &[2, 2, h, w]);
        let mut add = |kind, label: &str, more: Args, ys: Vec<Exact>, xs: Vec<Exact>| {
            let mut args: Args = vec![("x", x.clone().into())];
            let factor = |v: f64| Literal::scalar(v as f32).into();
            args.push(("scale_factor_height", factor(factors[0])));
            args.push(("scale_factor_width", factor(factors[1])));
            args.extend(more);
            let label = format!("{h} {w} to {rows} {columns} {label} {numbers:?}");
            cases.push(Case { kind, label, args, expected: resampled(&x, &ys, &xs) });
        };
        let flags = |align: bool, middle: bool| {
            let flag = |yes: bool| Literal::bool(yes).into();
            vec![("align_corners", flag(align)), ("half_pixel_centers", flag(middle))]
        };
        for (grid, args) in [
            ("STRICT_ALIGN_CORNERS", vec![]),
            ("STRICT_ALIGN_CORNERS", flags(true, false)),
            ("UNALIGN_CORNERS", flags(false, true)),
            ("DEFAULT", flags(false, false)),
        ] {
            let (ys, xs) = (points(grid, h, rows), points(grid, w, columns));
            add(OpKind::UpsampleBilinear, grid, args, ys, xs);
        }
        add(OpKind::UpsampleNearestNeighbor, "", vec![], nearest(h, rows), nearest(w, columns));
    }
    cases
}

/// The element of plane `p` of `x` at row `y` and column `x`, or `outside`.
fn or_outside(image: &Array, p: &[usize], at: [i64; 2], outside: &Exact) -> Exact {
    let inside =
        |axis: usize| usize::try_from(at[axis]).ok().filter(|&i| i < image.shape[p.len() + axis]);
    match (inside(0), inside(1)) {
        (Some(y), Some(x)) => element(image, &[p, &[y, x]].concat()),
        _ => outside.clone(),
    }
}

fn f16_exact(value: f64) -> Exact {
    exact(f16::from_f64(value).to_f64())
}

/// Boxes that lie inside, reach out, and are upside down.
fn cropping(numbers: Numbers) -> Vec<Case> {
    const BOXES: [[f64; 4]; 4] =
        [[0.0, 0.0, 3.0, 4.0], [0.5, 1.25, 2.75, 3.0], [-1.5, 2.0, 1.0, 5.5], [2.0, 1.0, 1.0, 0.5]];
    let (h, w, outside) = (4usize, 5usize, f16_exact(0.3));
    let x = numbers.array("x", &[2, 2, h, w]);
    let images = [1usize, 0, 0, 1];
    let mut cases = Vec::new();
    for (n, grid) in GRIDS.into_iter().enumerate() {
        let modes = [
            "CORNERS_HEIGHT_FIRST",
            "CORNERS_WIDTH_FIRST",
            "CENTER_SIZE_HEIGHT_FIRST",
            "CENTER_SIZE_WIDTH_FIRST",
        ];
        let (mode, normalized) = (modes[n % 4], n % 2 == 1);
        let scale = if normalized { 0.25 } else { 1.5 };
        let [rows, columns] = if n == 2 { [1, 1] } else { [3, 7] };
        let mut expected = Vec::new();
        for (given, image) in BOXES.iter().zip(images) {
            let given = given.map(|v| f16_exact(v) * exact(scale));
            let ends = |first: usize, size: usize| {
                let unit = ratio(if normalized { size as i64 - 1 } else { 1 }, 1);
                let (a, b) = (&given[first] * &unit, &given[first + 2] * &unit);
                let half = &b / ratio(2, 1);
                if mode.starts_with("CORNERS") { (a, b) } else { (&a - &half, &a + half) }
            };
            let (row, column) = if mode.ends_with("HEIGHT_FIRST") { (0, 1) } else { (1, 0) };
            let along = |(start, end): (Exact, Exact), count: usize| -> Vec<Exact> {
                let size = end - &start + ratio(1, 1);
                (0..count).map(|i| &start + sample(grid, &size, i, count)).collect()
            };
            let (ys, xs) = (along(ends(row, h), rows), along(ends(column, w), columns));
            for channel in 0..2 {
                let value = |i, j| or_outside(&x, &[image, channel], [i, j], &outside);
                for y in &ys {
                    expected.extend(xs.iter().map(|x| rounded(&between(y, x, value))));
                }
            }
        }
        let boxes = halves(&[4, 4], BOXES.into_iter().flatten().map(f16::from_f64));
        let args = vec![
            ("x", x.clone().into()),
            ("boxes", boxes.into()),
            ("box_indices", ints(&[4], images.map(|i| i as i64)).into()),
            ("target_height", int(rows as i32)),
            ("target_width", int(columns as i32)),
            ("normalized_coordinates", Literal::bool(normalized).into()),
            ("spatial_scale", scalar(scale)),
            ("box_coordinate_mode", str(mode)),
            ("sampling_mode", str(grid)),
            ("pad_value", scalar(0.3)),
        ];
        let label = format!("{grid} {mode} {numbers:?}");
        cases.push(Case { kind: OpKind::CropResize, label, args, expected });
    }
    cases
}

/// The units of coordinates: of `mode`, the place of `at` along `size` elements.
fn unnormalised(mode: &str, align: bool, at: &Exact, size: usize) -> Exact {
    let size = ratio(size as i64, 1);
    let way = match mode {
        "unnormalized" => return at.clone(),
        "normalized_minus_one_to_one" => (at + ratio(1, 1)) / ratio(2, 1),
        _ => at.clone(),
    };
    if align { way * (size - ratio(1, 1)) } else { way * size - ratio(1, 2) }
}

/// The coordinate, in units of `mode`, of element `i` of `size`.
fn coordinate(mode: &str, align: bool, i: usize, size: usize) -> Exact {
    let (i, n) = (i as i64, size as i64);
    let way = if align { ratio(i, n - 1) } else { ratio(2 * i + 1, 2 * n) };
    match mode {
        "unnormalized" => ratio(i, 1),
        "normalized_minus_one_to_one" => way * ratio(2, 1) - ratio(1, 1),
        _ => way,
    }
}

const UNITS: [&str; 3] = ["unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one"];

/// The element that stands for `at` outside of `size`; `None` for a constant.
fn padded(mode: &str, at: i64, size: i64) -> Option<i64> {
    let reflected = |period: i64, last: i64| {
        let at = at.rem_euclid(period);
        at.min(last - at)
    };
    match mode {
        _ if (0..size).contains(&at) => Some(at),
        "constant" => None,
        "border" => Some(at.clamp(0, size - 1)),
        "reflection" => Some(reflected(2 * (size - 1), 2 * (size - 1))),
        "symmetric" => Some(reflected(2 * size, 2 * size - 1)),
        other => panic!("{other}"),
    }
}

fn options(units: &'static str, align: bool, sampling: &str, padding: &str) -> Args {
    vec![
        ("sampling_mode", str(sampling)),
        ("padding_mode", str(padding)),
        ("padding_value", scalar(0.3)),
        ("coordinates_mode", str(units)),
        ("align_corners", Literal::bool(align).into()),
    ]
}

/// The element of plane `p`, outside as `padding` says.
fn value_at(image: &Array, p: &[usize], padding: &str, [y, x]: [i64; 2]) -> Exact {
    let [.., h, w] = image.shape[..] else { panic!() };
    match (padded(padding, y, h as i64), padded(padding, x, w as i64)) {
        (Some(y), Some(x)) => element(image, &[p, &[y as usize, x as usize]].concat()),
        _ => f16_exact(0.3),
    }
}

/// The nearest integer, ties to even.
fn to_even(value: &Exact) -> i64 {
    let doubled: BigInt = (value * ratio(2, 1)).floor().to_integer();
    let (low, half) = (integer(&value.floor()), Exact::from(doubled) == value * ratio(2, 1));
    let part = value - value.floor();
    match part.cmp(&ratio(1, 2)) {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => low + 1,
        std::cmp::Ordering::Equal => {
            assert!(half);
            low + low.rem_euclid(2)
        }
    }
}

fn resampling(numbers: Numbers) -> Vec<Case> {
    let x = numbers.array("x", &[2, 2, 4, 5]);
    let mut cases = Vec::new();
    for units in UNITS {
        for (n, padding) in
            ["constant", "border", "reflection", "symmetric"].into_iter().enumerate()
        {
            for sampling in ["bilinear", "nearest"] {
                let align = n % 2 == 0;
                // In units of elements up to twice their extent, of quarters for ties.
                let spread = if units == "unnormalized" { 2.0 } else { 0.5 };
                let given = Numbers::Plain.array("coordinates", &[2, 3, 6, 2]);
                let given = given.floats().unwrap().iter().enumerate().map(|(i, v)| {
                    f16::from_f64(if i % 3 == 0 { (v * 4.0).round() / 4.0 } else { v * spread })
                });
                let given = halves(&[2, 3, 6, 2], given);
                let cell = |p: Vec<usize>| {
                    let at = |axis: usize, size: usize| {
                        let at = element(&given, &[p[0], p[2], p[3], axis]);
                        unnormalised(units, align, &at, size)
                    };
                    let (row, column) = (at(1, 4), at(0, 5));
                    let value = |i, j| value_at(&x, &p[..2], padding, [i, j]);
                    rounded(&match sampling {
                        "nearest" => value(to_even(&row), to_even(&column)),
                        _ => between(&row, &column, value),
                    })
                };
                let expected = places(&[2, 2, 3, 6]).into_iter().map(cell).collect();
                let mut args: Args =
                    vec![("x", x.clone().into()), ("coordinates", given.clone().into())];
                args.extend(options(units, align, sampling, padding));
                let label = format!("{units} {padding} {sampling} {numbers:?}");
                cases.push(Case { kind: OpKind::Resample, label, args, expected });
            }
        }
    }
    cases
}

fn affine_maps(numbers: Numbers) -> Vec<Case> {
    let (rows, columns) = (4usize, 7usize);
    let x = numbers.array("x", &[2, 2, 4, 5]);
    let maps = [[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], [0.7, -0.3, 0.1, 0.25, 0.9, -0.2]];
    let mut cases = Vec::new();
    for units in UNITS {
        for (align, padding) in [(true, "constant"), (false, "border")] {
            let cell = |p: Vec<usize>| {
                let map = maps[p[0]].map(f16_exact);
                let v = coordinate(units, align, p[2], rows);
                let u = coordinate(units, align, p[3], columns);
                let mapped = |k: usize| &map[k] * &u + &map[k + 1] * &v + &map[k + 2];
                let column = unnormalised(units, align, &mapped(0), 5);
                let row = unnormalised(units, align, &mapped(3), 4);
                let value = |i, j| value_at(&x, &p[..2], padding, [i, j]);
                rounded(&between(&row, &column, value))
            };
            let expected = places(&[2, 2, rows, columns]).into_iter().map(cell).collect();
            let given = halves(&[2, 6], maps.into_iter().flatten().map(f16::from_f64));
            let mut args: Args = vec![
                ("x", x.clone().into()),
                ("transform_matrix", given.into()),
                ("output_height", int(rows as i32)),
                ("output_width", int(columns as i32)),
            ];
            args.extend(options(units, align, "bilinear", padding));
            let label = format!("{units} {padding} {numbers:?}");
            cases.push(Case { kind: OpKind::Affine, label, args, expected });
        }
    }
    cases
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for numbers in NUMBERS {
        all.extend(resizing(numbers));
        all.extend(upsampling(numbers));
        all.extend(cropping(numbers));
        all.extend(resampling(numbers));
        all.extend(affine_maps(numbers));
    }
    all
}

#[test]
fn exact_results() {
    let compared = check(cases());
    assert!(compared >= 20000, "only {compared} numbers");
}
