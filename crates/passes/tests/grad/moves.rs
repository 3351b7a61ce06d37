//! Cases of operations that move, choose and combine elements.

use mil::{Arg, Literal, OpKind};

use crate::harness::{Made, made};

fn int(x: i32) -> Arg {
    Literal::scalar(x).into()
}

fn ints(x: &[i32]) -> Arg {
    Literal::vector(x).into()
}

fn truths(x: &[bool]) -> Arg {
    Literal::bool_vector(x).into()
}

pub(crate) fn cases(seed: u64) -> Vec<Made> {
    let mut cases = shapes(seed);
    cases.extend(joints(seed));
    cases.extend(slices(seed));
    cases.extend(indices(seed));
    cases
}

fn shapes(seed: u64) -> Vec<Made> {
    use OpKind::*;
    let moved = |kind: OpKind, args: fn([usize; 3]) -> Vec<(&'static str, Arg)>| {
        made(kind.name(), seed, |m| {
            let shape = [m.size(3), m.size(3), m.size(4)];
            let x = m.float(&shape);
            m.op(kind, [vec![("x", x.into())], args(shape)].concat())
        })
    };
    vec![
        moved(Reshape, |[a, b, c]| vec![("shape", ints(&[c as i32, -1, (a * b) as i32]))]),
        moved(Transpose, |_| vec![("perm", ints(&[2, 0, 1]))]),
        moved(ExpandDims, |_| vec![("axes", ints(&[1, -1]))]),
        moved(Flatten2d, |_| vec![("axis", int(2))]),
        moved(Tile, |_| vec![("reps", ints(&[2, 1, 3]))]),
        moved(Pad, |_| {
            vec![("pad", ints(&[1, 2, 0, 3])), ("constant_val", Literal::scalar(0.5f32).into())]
        }),
        moved(Reverse, |_| vec![("axes", ints(&[0, 2]))]),
        moved(BandPart, |_| vec![("lower", int(1)), ("upper", int(0))]),
        made("squeeze", seed, |m| {
            let x = m.float(&[1, 3, 1, 2]);
            m.op(Squeeze, vec![("x", x.into()), ("axes", ints(&[2]))])
        }),
        made("reshape_like", seed, |m| {
            let (a, b) = (m.size(3), m.size(4));
            let (x, like) = (m.float(&[a, b]), m.float(&[b, a]));
            let args = vec![("x", x.into()), ("ref_tensors", Arg::from(vec![like]))];
            let one = |arg| Arg::List(vec![arg]);
            let sizes = [
                ("begins", one(int(0))),
                ("ends", one(int(2))),
                ("end_masks", one(Literal::bool(false).into())),
            ];
            m.op(ReshapeLike, [args, sizes.into()].concat())
        }),
    ]
}

fn joints(seed: u64) -> Vec<Made> {
    vec![
        made("concat", seed, |m| {
            let (a, b, c) = (m.size(3), m.size(3), m.size(3));
            let (x, y) = (m.float(&[2, a, 3]), m.float(&[2, b, 3]));
            let z = m.float(&[2, c, 3]);
            let values = Arg::from(vec![x, y, z, x]);
            m.op(OpKind::Concat, vec![("values", values), ("axis", int(-2))])
        }),
        made("concat in turn", seed, |m| {
            let a = m.size(3);
            let (x, y) = (m.float(&[2, a]), m.float(&[2, a]));
            let args = vec![("values", Arg::from(vec![x, y])), ("axis", int(-1))];
            m.op(OpKind::Concat, [args, vec![("interleave", Literal::bool(true).into())]].concat())
        }),
        made("stack", seed, |m| {
            let shape = [m.size(3), m.size(3)];
            let values = Arg::from(vec![m.float(&shape), m.float(&shape)]);
            m.op(OpKind::Stack, vec![("values", values), ("axis", int(1))])
        }),
        made("split", seed, |m| {
            let shape = [m.size(3), 6];
            let x = m.float(&shape);
            let args = vec![("x", x.into()), ("split_sizes", ints(&[1, 3, 2])), ("axis", int(1))];
            let parts = m.op(OpKind::Split, args);
            vec![parts[2], parts[0]]
        }),
    ]
}

fn slices(seed: u64) -> Vec<Made> {
    let args = |x: Arg| {
        vec![
            ("x", x),
            ("begin", ints(&[0, -4, 1, -1])),
            ("end", ints(&[0, 0, 6, 0])),
            ("stride", ints(&[1, 1, 2, 1])),
            ("begin_mask", truths(&[true, false, false, false])),
            ("end_mask", truths(&[true, true, false, false])),
            ("squeeze_mask", truths(&[false, false, false, true])),
        ]
    };
    vec![
        made("slice_by_index", seed, |m| {
            let shape = [m.size(3), 5, 7, 1 + m.size(2)];
            let x = m.float(&shape);
            let whole = m.op(OpKind::SliceByIndex, args(x.into()));
            let one = vec![
                ("x", x.into()),
                ("begin", ints(&[0, 2, 3, -1])),
                ("end", ints(&[0, 0, 0, 0])),
                ("squeeze_mask", truths(&[true; 4])),
            ];
            [whole, m.op(OpKind::SliceByIndex, one)].concat()
        }),
        made("slice_by_index backwards", seed, |m| {
            let x = m.float(&[5]);
            let args = vec![("x", x.into()), ("begin", ints(&[4])), ("end", ints(&[0]))];
            m.op(OpKind::SliceByIndex, [args, vec![("stride", ints(&[-2]))]].concat())
        }),
        made("slice_by_size", seed, |m| {
            let x = m.float(&[4, 5]);
            let args = vec![("x", x.into()), ("begin", ints(&[1, -3])), ("size", ints(&[-1, 2]))];
            m.op(OpKind::SliceBySize, args)
        }),
        made("slice_update", seed, |m| {
            let (a, d) = (m.size(3), 1 + m.size(2));
            let (x, update) = (m.float(&[a, 5, 7, d]), m.float(&[a, 4, 3]));
            m.op(OpKind::SliceUpdate, [args(x.into()), vec![("update", update.into())]].concat())
        }),
    ]
}

fn indices(seed: u64) -> Vec<Made> {
    use OpKind::*;
    vec![
        made("gather", seed, |m| {
            let (a, n, c) = (m.size(2), 1 + m.size(4), m.size(3));
            let x = m.float(&[a, n, c]);
            let at = m.ints_in(&[2, 3], 0, n as i32);
            m.op(Gather, vec![("x", x.into()), ("indices", at.into()), ("axis", int(1))])
        }),
        made("gather_along_axis", seed, |m| {
            let (a, n) = (m.size(3), 1 + m.size(4));
            let x = m.float(&[a, n]);
            let at = m.ints_in(&[a, 3], 0, n as i32);
            m.op(GatherAlongAxis, vec![("x", x.into()), ("indices", at.into()), ("axis", int(1))])
        }),
        made("gather_nd", seed, |m| {
            let (a, c) = (m.size(3), m.size(3));
            let (x, at) = (m.float(&[a, 2, c]), m.ints_in(&[4, 2], 0, 1));
            m.op(GatherNd, vec![("x", x.into()), ("indices", at.into())])
        }),
        made("scatter", seed, |m| {
            let (n, c) = (1 + m.size(3), m.size(3));
            let (data, at) = (m.float(&[2, n, c]), m.ints_in(&[3], 0, n as i32));
            let updates = m.float(&[2, 3, c]);
            let args = vec![("data", data.into()), ("indices", at.into()), ("axis", int(1))];
            m.op(Scatter, [args, vec![("updates", updates.into())]].concat())
        }),
        made("scatter_along_axis", seed, |m| {
            let n = 1 + m.size(3);
            let (data, at) = (m.float(&[2, n]), m.ints_in(&[2, 3], 0, n as i32));
            let updates = m.float(&[2, 3]);
            let args = vec![("data", data.into()), ("indices", at.into()), ("axis", int(1))];
            m.op(ScatterAlongAxis, [args, vec![("updates", updates.into())]].concat())
        }),
        made("scatter_nd", seed, |m| {
            let n = 1 + m.size(3);
            let (data, at) = (m.float(&[n, 2]), m.ints_in(&[3, 1], 0, n as i32));
            let updates = m.float(&[3, 2]);
            let args = vec![("data", data.into()), ("indices", at.into())];
            m.op(ScatterNd, [args, vec![("updates", updates.into())]].concat())
        }),
        made("topk", seed, |m| {
            let shape = [m.size(3), 2 + m.size(3)];
            let x = m.float(&shape);
            m.op(Topk, vec![("x", x.into()), ("k", int(2)), ("axis", int(-1))])
        }),
    ]
}
