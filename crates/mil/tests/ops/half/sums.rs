//! Sums of products, and what else of fractions is exact: against rational numbers.

use half::f16;
use mil::eval::{Array, Data};
use mil::{Literal, OpKind};
use tensor::DType;

use super::case::{Args, Case, NUMBERS, Numbers, check, element, fixed, places};
use super::rational::{Exact, exact, magnitude, ratio, rounded, rounded_root, zero};
use super::{halves, run, scalar};
use crate::common::ints;
use crate::plain::{int, int_list, str, with, yes};

fn linear(numbers: Numbers) -> Case {
    let [x, weight, bias] = [("x", &[2, 3, 40][..]), ("weight", &[5, 40]), ("bias", &[5])]
        .map(|(name, shape)| numbers.array(name, shape));
    let cell = |p: Vec<usize>| {
        let products =
            (0..40).map(|k| element(&x, &[p[0], p[1], k]) * element(&weight, &[p[2], k]));
        rounded(&products.fold(element(&bias, &p[2..]), |a, b| a + b))
    };
    let expected = places(&[2, 3, 5]).into_iter().map(cell).collect();
    let args = vec![("x", x.clone().into()), ("weight", fixed(&weight)), ("bias", fixed(&bias))];
    Case { kind: OpKind::Linear, label: format!("{numbers:?}"), args, expected }
}

/// The shapes of both matrices and of the result, and whether each is transposed.
type Product = (&'static [usize], &'static [usize], &'static [usize], [bool; 2]);

const PRODUCTS: [Product; 5] = [
    (&[2, 1, 3, 6], &[4, 6, 5], &[2, 4, 3, 5], [false, false]),
    (&[6, 3], &[2, 5, 6], &[2, 3, 5], [true, true]),
    (&[3, 9], &[9, 2], &[3, 2], [false, false]),
    (&[6], &[6, 2], &[2], [false, false]),
    (&[3, 6], &[6], &[3], [false, false]),
];

fn matmul((x, y, result, [swap_x, swap_y]): Product, numbers: Numbers) -> Case {
    let label = format!("{x:?} {y:?} {numbers:?}");
    let (x, y) = (numbers.array("x", x), numbers.array("y", y));
    // The index of element `row`, `column` of the matrix at the result's place `p`.
    let index = |a: &Array, p: &[usize], swap: bool, [row, column]: [usize; 2]| -> Vec<usize> {
        let matrix = if swap { [column, row] } else { [row, column] };
        let batch = a.shape.len() - 2;
        let own = &p[p.len() - 2 - batch..p.len() - 2];
        let own = own.iter().zip(&a.shape).map(|(&i, &size)| if size == 1 { 0 } else { i });
        own.chain(matrix).collect()
    };
    let cell = |p: Vec<usize>| {
        let inner = x.shape[x.shape.len() - if swap_x { 2 } else { 1 }];
        let product = |k: usize| {
            let a = match x.shape.len() {
                1 => vec![k],
                _ if y.shape.len() == 1 => vec![p[0], k],
                _ => index(&x, &p, swap_x, [p[p.len() - 2], k]),
            };
            let b = match y.shape.len() {
                1 => vec![k],
                _ if x.shape.len() == 1 => vec![k, p[0]],
                _ => index(&y, &p, swap_y, [k, p[p.len() - 1]]),
            };
            element(&x, &a) * element(&y, &b)
        };
        rounded(&(0..inner).map(product).sum())
    };
    let expected = places(result).into_iter().map(cell).collect();
    let swap = |yes: bool| Literal::bool(yes).into();
    let args = vec![
        ("x", x.clone().into()),
        ("y", y.clone().into()),
        ("transpose_x", swap(swap_x)),
        ("transpose_y", swap(swap_y)),
    ];
    Case { kind: OpKind::Matmul, label, args, expected }
}

fn einsum(numbers: Numbers) -> Vec<Case> {
    let case = |equation: &str, x: Array, y: Array, shape: &[usize]| {
        let letters = |part: &str| part.chars().collect::<Vec<char>>();
        let (operands, result) = equation.split_once("->").unwrap();
        let (a, b) = operands.split_once(',').unwrap();
        let (a, b, result) = (letters(a), letters(b), letters(result));
        let summed = a.iter().position(|c| !result.contains(c)).unwrap();
        let cell = |p: Vec<usize>| {
            let at = |operand: &[char], k: usize| -> Vec<usize> {
                let place = |c: &char| result.iter().position(|r| r == c).map_or(k, |i| p[i]);
                operand.iter().map(place).collect()
            };
            let product = |k| element(&x, &at(&a, k)) * element(&y, &at(&b, k));
            rounded(&(0..x.shape[summed]).map(product).sum())
        };
        let expected = places(shape).into_iter().map(cell).collect();
        let args = vec![("values", vec![x.clone(), y.clone()].into()), ("equation", str(equation))];
        Case { kind: OpKind::Einsum, label: format!("{equation} {numbers:?}"), args, expected }
    };
    let array = |name, shape: &[usize]| numbers.array(name, shape);
    vec![
        case(
            "nchw,nwhu->nchu",
            array("x", &[2, 3, 2, 9]),
            array("y", &[2, 9, 2, 4]),
            &[2, 3, 2, 4],
        ),
        case("chw,whr->chr", array("x", &[3, 2, 9]), array("y", &[9, 2, 4]), &[3, 2, 4]),
    ]
}

/// What is made of the numbers that are reduced to one.
type Reduction = (OpKind, fn(Vec<Exact>) -> u16);

fn sum(row: Vec<Exact>) -> Exact {
    row.into_iter().sum()
}

fn square_sum(row: Vec<Exact>) -> Exact {
    row.into_iter().map(|v| &v * &v).sum()
}

const REDUCTIONS: [Reduction; 8] = [
    (OpKind::ReduceSum, |row| rounded(&sum(row))),
    (OpKind::ReduceMean, |row| {
        let count = row.len() as i64;
        rounded(&(sum(row) / ratio(count, 1)))
    }),
    (OpKind::ReduceSumSquare, |row| rounded(&square_sum(row))),
    (OpKind::ReduceL1Norm, |row| rounded(&row.iter().map(magnitude).sum())),
    (OpKind::ReduceL2Norm, |row| rounded_root(&square_sum(row))),
    (OpKind::ReduceProd, |row| rounded(&row.into_iter().product())),
    (OpKind::ReduceMax, |row| rounded(&row.into_iter().max().unwrap())),
    (OpKind::ReduceMin, |row| rounded(&row.into_iter().min().unwrap())),
];

/// The axes as they are given, without negative ones, and whether they are kept.
type Axes = (Option<&'static [i32]>, &'static [usize], bool);

fn reductions(numbers: Numbers) -> Vec<Case> {
    let x = numbers.array("x", &[4, 3, 50]);
    let axes: [Axes; 5] = [
        (Some(&[-1]), &[2], false),
        (Some(&[1]), &[1], true),
        (Some(&[0, -2]), &[0, 1], false),
        (Some(&[0, 2]), &[0, 2], true),
        (None, &[0, 1, 2], false),
    ];
    let mut cases = Vec::new();
    for (kind, reduce) in REDUCTIONS {
        for (given, reduced, keep) in axes {
            let sizes = |of: bool| -> Vec<usize> {
                (0..3).map(|a| if reduced.contains(&a) == of { x.shape[a] } else { 1 }).collect()
            };
            let row = |p: Vec<usize>| {
                let at =
                    |q: Vec<usize>| -> Vec<usize> { p.iter().zip(q).map(|(a, b)| a + b).collect() };
                places(&sizes(true)).into_iter().map(|q| element(&x, &at(q))).collect()
            };
            let expected = places(&sizes(false)).into_iter().map(|p| reduce(row(p))).collect();
            let mut args: Args = vec![("x", x.clone().into())];
            args.extend(given.map(|axes| ("axes", int_list(axes))));
            args.push(("keep_dims", Literal::bool(keep).into()));
            let label = format!("over {given:?} {numbers:?}");
            cases.push(Case { kind, label, args, expected });
        }
    }
    cases
}

fn running_sums(numbers: Numbers) -> Vec<Case> {
    let x = numbers.array("x", &[3, 7, 2]);
    let case = |(axis, exclusive, reverse): (usize, bool, bool)| {
        let size = x.shape[axis];
        let cell = |p: Vec<usize>| {
            let at = p[axis];
            let own = move |i: &usize| match (exclusive, reverse) {
                (false, false) => *i <= at,
                (true, false) => *i < at,
                (false, true) => *i >= at,
                (true, true) => *i > at,
            };
            let mut index = p;
            let number = |i| {
                index[axis] = i;
                element(&x, &index)
            };
            rounded(&(0..size).filter(own).map(number).sum())
        };
        let flag = |yes: bool| Literal::bool(yes).into();
        let args = vec![
            ("x", x.clone().into()),
            ("axis", int(axis as i32)),
            ("exclusive", flag(exclusive)),
            ("reverse", flag(reverse)),
        ];
        let label = format!("{axis} {exclusive} {reverse} {numbers:?}");
        let expected = places(&x.shape).into_iter().map(cell).collect();
        Case { kind: OpKind::Cumsum, label, args, expected }
    };
    let options = [(0, false, false), (1, true, false), (1, false, true), (2, true, true)];
    options.map(case).into()
}

/// Indices twice, so that a number is combined more than once.
fn scattering(numbers: Numbers) -> Vec<Case> {
    type Combine = fn(&Exact, &Exact) -> Exact;
    let modes: [(&str, Combine); 6] = [
        ("add", |a, b| a + b),
        ("sub", |a, b| a - b),
        ("mul", |a, b| a * b),
        ("max", |a, b| a.max(b).clone()),
        ("min", |a, b| a.min(b).clone()),
        ("update", |_, b| b.clone()),
    ];
    let data = numbers.array("data", &[4, 3]);
    let updates = numbers.array("updates", &[3, 3]);
    let rows = [2usize, 0, 2];
    let mut cases = Vec::new();
    for (mode, combine) in modes {
        let mut result: Vec<Exact> = places(&[4, 3]).iter().map(|p| element(&data, p)).collect();
        for p in places(&[3, 3]) {
            let at = rows[p[0]] * 3 + p[1];
            result[at] = combine(&result[at], &element(&updates, &p));
        }
        let expected: Vec<u16> = result.iter().map(rounded).collect();
        // The same rows: named once, for each element, and as index vectors of length one.
        let uses: [(OpKind, Array); 3] = [
            (OpKind::Scatter, ints(&[3], rows.map(|r| r as i64))),
            (OpKind::ScatterAlongAxis, ints(&[3, 3], rows.iter().flat_map(|&r| [r as i64; 3]))),
            (OpKind::ScatterNd, ints(&[3, 1], rows.map(|r| r as i64))),
        ];
        for (kind, indices) in uses {
            let args = vec![
                ("data", data.clone().into()),
                ("indices", indices.into()),
                ("updates", updates.clone().into()),
                ("mode", str(mode)),
            ];
            let label = format!("{mode} {numbers:?}");
            cases.push(Case { kind, label, args, expected: expected.clone() });
        }
    }
    cases
}

/// All 8-bit integers with scales of all sizes.
fn dequantisation(numbers: Numbers) -> Vec<Case> {
    let scale = numbers.array("scale", &[4]);
    let given = [0i8, -128, 127, 5];
    let axis = |zeros: bool| {
        let input: Vec<i64> = (-128..128).collect();
        let value = |(i, q): (usize, &i64)| {
            let zero = if zeros { i64::from(given[i / 64]) } else { 0 };
            rounded(&(ratio(q - zero, 1) * element(&scale, &[i / 64])))
        };
        let expected = input.iter().enumerate().map(value).collect();
        let input = Array { dtype: DType::I8, shape: vec![4, 64], data: Data::Int(input) };
        let mut args: Args =
            vec![("input", input.into()), ("scale", fixed(&scale)), ("axis", int(0))];
        if zeros {
            args.push(("zero_point", Literal::vector(&given).into()));
        }
        Case { kind: OpKind::Dequantize, label: format!("{zeros} {numbers:?}"), args, expected }
    };
    vec![axis(false), axis(true)]
}

/// Variances that are squares, by some of which a division is not exact.
fn batch_norm(numbers: Numbers) -> Case {
    let roots = [3.0, 1.0, 0.5, 7.0];
    let x = numbers.array("x", &[2, 4, 30]);
    let [mean, gamma, beta] = ["mean", "gamma", "beta"].map(|name| numbers.array(name, &[4]));
    let cell = |p: Vec<usize>| {
        let own = |a: &Array| element(a, &[p[1]]);
        let normal = (element(&x, &p) - own(&mean)) / exact(roots[p[1]]);
        rounded(&(normal * own(&gamma) + own(&beta)))
    };
    let expected = places(&x.shape).into_iter().map(cell).collect();
    let variance = halves(&[4], roots.map(|r| f16::from_f64(r * r)));
    let args = vec![
        ("x", x.clone().into()),
        ("mean", fixed(&mean)),
        ("variance", fixed(&variance)),
        ("gamma", fixed(&gamma)),
        ("beta", fixed(&beta)),
        ("epsilon", scalar(0.0)),
    ];
    Case { kind: OpKind::BatchNorm, label: format!("{numbers:?}"), args, expected }
}

fn ranges() -> Vec<Case> {
    let case = |(start, end, step, count): (f64, f64, f64, i64)| {
        let half = |v: f64| f16::from_f64(v).to_f64();
        let value = |i: i64| rounded(&(exact(half(start)) + ratio(i, 1) * exact(half(step))));
        let args = vec![("start", scalar(start)), ("end", scalar(end)), ("step", scalar(step))];
        let label = format!("{start} {end} {step}");
        let expected = (0..count).map(value).collect();
        Case { kind: OpKind::Range1d, label, args, expected }
    };
    let least = 2f64.powi(-24);
    [
        (0.1, 2.0, 0.3, 7),
        (2048.0, 2056.0, 1.0, 8),
        (1.0, 0.0, -0.1, 11),
        (0.0, 9.0 * least, least, 9),
    ]
    .map(case)
    .into()
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = ranges();
    for numbers in NUMBERS {
        all.push(linear(numbers));
        all.extend(PRODUCTS.map(|product| matmul(product, numbers)));
        all.extend(einsum(numbers));
        all.extend(reductions(numbers));
        all.extend(running_sums(numbers));
        all.extend(scattering(numbers));
        all.extend(dequantisation(numbers));
        all.push(batch_norm(numbers));
    }
    all
}

#[test]
fn exact_results() {
    let compared = check(cases());
    assert!(compared >= 8000, "only {compared} numbers");
}

/// The product leaves even the range of double precision on the way.
#[test]
fn long_products() {
    let large = std::iter::repeat_n(f16::MAX, 70);
    let small = std::iter::repeat_n(f16::from_bits(0x0010), 70);
    for values in
        [large.clone().chain(small.clone()).collect::<Vec<_>>(), small.chain(large).collect()]
    {
        let product = values.iter().map(|v| exact(v.to_f64())).product();
        let x = halves(&[values.len()], values);
        let args = with(vec![("x", x.into())], vec![("keep_dims", yes())]);
        assert_eq!(run(OpKind::ReduceProd, args), [rounded(&product)]);
    }
    assert_eq!(rounded(&zero()), 0);
}
