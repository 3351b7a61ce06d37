//! Convolutions and pooling: each window's sum, product by product, in rational numbers.

use mil::eval::Array;
use mil::{Literal, OpKind};

use super::case::{Args, Case, NUMBERS, Numbers, check, element, fixed, places};
use super::rational::{Exact, ratio, rounded, rounded_root};
use crate::plain::{int, int_list, str, yes};

/// Windows over spatial axes, and what follows from their options: the padding before and behind each
/// axis, and how many there are.
#[derive(Clone, Copy)]
struct Windows {
    sizes: &'static [usize],
    kernels: &'static [usize],
    strides: &'static [usize],
    dilations: &'static [usize],
    pad_type: &'static str,
    before: &'static [usize],
    behind: &'static [usize],
    out: &'static [usize],
}

impl Windows {
    fn args(&self) -> Args {
        let list = |sizes: &[usize]| int_list(&sizes.iter().map(|&n| n as i32).collect::<Vec<_>>());
        let mut args = vec![("strides", list(self.strides)), ("pad_type", str(self.pad_type))];
        if self.pad_type == "custom" {
            let pads = self.before.iter().zip(self.behind);
            args.push(("pad", list(&pads.flat_map(|(&a, &b)| [a, b]).collect::<Vec<_>>())));
        }
        if self.dilations.iter().any(|&d| d != 1) {
            args.push(("dilations", list(self.dilations)));
        }
        args
    }

    /// The element at place `k` of window `o`, if it is not padding.
    fn tap(&self, o: &[usize], k: &[usize]) -> Option<Vec<usize>> {
        let along = |axis: usize| {
            let at = o[axis] * self.strides[axis] + k[axis] * self.dilations[axis];
            at.checked_sub(self.before[axis]).filter(|&at| at < self.sizes[axis])
        };
        (0..o.len()).map(along).collect()
    }

    /// How many places of window `o` are elements or padding.
    fn places(&self, o: &[usize]) -> usize {
        let along = |axis: usize| {
            let start = o[axis] * self.strides[axis];
            let end = self.sizes[axis] + self.before[axis] + self.behind[axis];
            end.min(start + self.kernels[axis]) - start
        };
        (0..o.len()).map(along).product()
    }
}

const ONES: &[usize] = &[1, 1, 1];
const NONE: &[usize] = &[0, 0, 0];

const ROW: Windows = Windows {
    sizes: &[9],
    kernels: &[3],
    strides: &[2],
    dilations: &[1],
    pad_type: "custom",
    before: &[1],
    behind: &[2],
    out: &[5],
};

const SAME: Windows = Windows {
    sizes: &[5, 6],
    kernels: &[3, 3],
    strides: &[2, 2],
    dilations: &[1, 1],
    pad_type: "same",
    before: &[1, 0],
    behind: &[1, 1],
    out: &[3, 3],
};

const SAME_LOWER: Windows =
    Windows { pad_type: "same_lower", before: &[1, 1], behind: &[1, 0], ..SAME };

const DILATED: Windows = Windows {
    sizes: &[5, 6],
    kernels: &[3, 2],
    strides: &[1, 2],
    dilations: &[2, 3],
    pad_type: "valid",
    before: NONE,
    behind: NONE,
    out: &[1, 2],
};

const SOLID: Windows = Windows {
    sizes: &[3, 4, 3],
    kernels: &[2, 2, 2],
    strides: ONES,
    dilations: ONES,
    pad_type: "valid",
    before: NONE,
    behind: NONE,
    out: &[2, 3, 2],
};

/// Windows, groups, and input and output channels of each group.
type Convolution = (Windows, usize, [usize; 2]);

const CONVOLUTIONS: [Convolution; 6] = [
    (ROW, 2, [2, 3]),
    (SAME, 1, [3, 2]),
    (SAME_LOWER, 4, [1, 1]),
    (DILATED, 3, [1, 2]),
    (SOLID, 1, [2, 2]),
    (
        Windows { pad_type: "custom", before: &[3, 0], behind: &[0, 4], out: &[4, 4], ..DILATED },
        1,
        [2, 2],
    ),
];

fn convolution((windows, groups, [inner, outer]): Convolution, numbers: Numbers) -> Case {
    let shape = |first: usize, second: usize, sizes: &[usize]| [&[first, second], sizes].concat();
    let x = numbers.array("x", &shape(2, groups * inner, windows.sizes));
    let weight = numbers.array("weight", &shape(groups * outer, inner, windows.kernels));
    let bias = numbers.array("bias", &[groups * outer]);
    let cell = |p: Vec<usize>| {
        let (n, channel, o) = (p[0], p[1], &p[2..]);
        let mut sum = element(&bias, &[channel]);
        for c in 0..inner {
            for k in places(windows.kernels) {
                let Some(at) = windows.tap(o, &k) else { continue };
                let from = shape(n, channel / outer * inner + c, &at);
                sum += element(&x, &from) * element(&weight, &shape(channel, c, &k));
            }
        }
        rounded(&sum)
    };
    let expected = places(&shape(2, groups * outer, windows.out)).into_iter().map(cell).collect();
    let mut args: Args =
        vec![("x", x.clone().into()), ("weight", fixed(&weight)), ("bias", fixed(&bias))];
    args.extend(windows.args());
    args.push(("groups", int(groups as i32)));
    let label = format!("of {:?} {numbers:?}", windows.sizes);
    Case { kind: OpKind::Conv, label, args, expected }
}

/// Here `sizes` are the result's and `out` those of `x`.
const TRANSPOSED: [(Convolution, bool); 6] = [
    ((Windows { sizes: &[9], behind: &[1], ..ROW }, 2, [2, 3]), false),
    ((Windows { sizes: &[6, 6], out: &[3, 3], before: &[0, 0], ..SAME }, 1, [3, 2]), false),
    ((Windows { strides: &[1, 1], sizes: &[5, 5], out: &[1, 2], ..DILATED }, 3, [1, 2]), false),
    ((SOLID, 1, [2, 2]), false),
    ((Windows { strides: &[2, 2, 2], sizes: &[4, 6, 4], ..SOLID }, 2, [1, 2]), false),
    // Of two sizes that convolve to that of x, the greater one.
    (
        (
            Windows {
                sizes: &[10],
                pad_type: "valid",
                before: NONE,
                behind: NONE,
                out: &[4],
                ..ROW
            },
            1,
            [2, 1],
        ),
        true,
    ),
];

fn transposed(
    ((windows, groups, [inner, outer]), stated): (Convolution, bool),
    numbers: Numbers,
) -> Case {
    let shape = |first: usize, second: usize, sizes: &[usize]| [&[first, second], sizes].concat();
    let x = numbers.array("x", &shape(2, groups * inner, windows.out));
    let weight = numbers.array("weight", &shape(groups * inner, outer, windows.kernels));
    let bias = numbers.array("bias", &[groups * outer]);
    let cell = |p: Vec<usize>| {
        let (n, channel, to) = (p[0], p[1], &p[2..]);
        let mut sum = element(&bias, &[channel]);
        for c in channel / outer * inner..(channel / outer + 1) * inner {
            for o in places(windows.out) {
                for k in places(windows.kernels) {
                    if windows.tap(&o, &k).as_deref() == Some(to) {
                        let own = shape(c, channel % outer, &k);
                        sum += element(&x, &shape(n, c, &o)) * element(&weight, &own);
                    }
                }
            }
        }
        rounded(&sum)
    };
    let result = shape(2, groups * outer, windows.sizes);
    let expected = places(&result).into_iter().map(cell).collect();
    let mut args: Args =
        vec![("x", x.clone().into()), ("weight", fixed(&weight)), ("bias", fixed(&bias))];
    args.extend(windows.args());
    args.push(("groups", int(groups as i32)));
    if stated {
        let sizes: Vec<i32> = result.iter().map(|&n| n as i32).collect();
        args.push(("output_shape", int_list(&sizes)));
    }
    let label = format!("to {:?} {numbers:?}", windows.sizes);
    Case { kind: OpKind::ConvTranspose, label, args, expected }
}

/// Windows without dilation, with or without a last one that is not full.
const POOLS: [(Windows, bool); 7] = [
    (ROW, false),
    (SAME, false),
    (SAME_LOWER, false),
    (SOLID, false),
    (
        Windows {
            pad_type: "valid",
            before: NONE,
            behind: NONE,
            strides: &[2, 3],
            out: &[2, 2],
            ..SAME
        },
        true,
    ),
    (
        Windows {
            pad_type: "custom",
            before: &[1, 1],
            behind: &[1, 1],
            sizes: &[6, 7],
            out: &[4, 4],
            ..SAME
        },
        true,
    ),
    // A last window that would begin in the padding does not count.
    (Windows { sizes: &[4], kernels: &[2], behind: &[1], out: &[3], ..ROW }, true),
];

fn pooling((windows, ceil): (Windows, bool), numbers: Numbers) -> Vec<Case> {
    let axes = windows.sizes.len();
    let (windows, shape) = (windows, [&[2, 3], windows.sizes].concat());
    let x = numbers.array("x", &shape);
    let row = |p: &[usize]| -> Vec<Exact> {
        let taps = places(windows.kernels).into_iter().filter_map(|k| windows.tap(&p[2..], &k));
        taps.map(|at| element(&x, &[&p[..2], &at].concat())).collect()
    };
    let mut cases = Vec::new();
    let mut add = |kind, more: Args, reduce: &dyn Fn(&Array, Vec<usize>) -> u16| {
        let all = places(&[&[2, 3], windows.out].concat());
        let expected = all.into_iter().map(|p| reduce(&x, p)).collect();
        let kernels: Vec<i32> = windows.kernels.iter().map(|&n| n as i32).collect();
        let mut args: Args = vec![("x", x.clone().into()), ("kernel_sizes", int_list(&kernels))];
        args.extend(windows.args());
        args.push(("ceil_mode", Literal::bool(ceil).into()));
        args.extend(more);
        let label = format!("of {:?} {} {numbers:?}", windows.sizes, windows.pad_type);
        cases.push(Case { kind, label, args, expected });
    };
    let mean = |row: Vec<Exact>, count: usize| {
        rounded(&(row.into_iter().sum::<Exact>() / ratio(count as i64, 1)))
    };
    add(OpKind::AvgPool, vec![], &|_, p| mean(row(&p), windows.places(&p[2..])));
    let exclude = vec![("exclude_padding_from_average", yes())];
    add(OpKind::AvgPool, exclude, &|_, p| mean(row(&p), row(&p).len()));
    add(OpKind::MaxPool, vec![], &|_, p| rounded(&row(&p).into_iter().max().unwrap()));
    if axes < 3 {
        let squares = |row: Vec<Exact>| row.iter().map(|v| v * v).sum();
        add(OpKind::L2Pool, vec![], &|_, p| rounded_root(&squares(row(&p))));
    }
    cases
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for numbers in NUMBERS {
        all.extend(CONVOLUTIONS.map(|c| convolution(c, numbers)));
        all.extend(TRANSPOSED.map(|c| transposed(c, numbers)));
        POOLS.into_iter().for_each(|p| all.extend(pooling(p, numbers)));
    }
    all
}

#[test]
fn exact_results() {
    let compared = check(cases());
    assert!(compared >= 5000, "only {compared} numbers");
}
