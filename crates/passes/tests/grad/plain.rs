//! Cases of arithmetic, functions, reductions, norms and products of matrices.

use mil::{Arg, Literal, OpKind, ValueId};

use crate::harness::{Made, Maker, made};

fn scalar(x: f32) -> Arg {
    Literal::scalar(x).into()
}

fn int(x: i32) -> Arg {
    Literal::scalar(x).into()
}

fn ints(x: &[i32]) -> Arg {
    Literal::vector(x).into()
}

fn text(x: &str) -> Arg {
    Literal::string(x).into()
}

fn truth(x: bool) -> Arg {
    Literal::bool(x).into()
}

pub(crate) fn cases(seed: u64) -> Vec<Made> {
    let mut cases = functions(seed);
    cases.extend(arithmetic(seed));
    cases.extend(reductions(seed));
    cases.extend(norms(seed));
    cases.extend(products(seed));
    cases
}

/// A function of one argument with values in a range where it is smooth.
fn function(kind: OpKind, seed: u64, range: (f32, f32), args: Vec<(&'static str, Arg)>) -> Made {
    made(kind.name(), seed, |m| {
        let shape = [m.size(3), m.size(4)];
        let x = m.float_in(&shape, range.0, range.1);
        let mut all = vec![("x", x.into())];
        all.extend(args);
        m.op(kind, all)
    })
}

fn functions(seed: u64) -> Vec<Made> {
    use OpKind::*;
    let wide = [
        Cos, Cosh, Erf, Exp, Exp2, Sigmoid, Silu, Sin, Sinh, Softplus, Softsign, Square, Tanh,
        Identity, Atan, Tan,
    ];
    let mut cases: Vec<Made> = wide.map(|k| function(k, seed, (-1.5, 1.5), vec![])).into();
    cases.extend([Acos, Asin, Atanh].map(|k| function(k, seed, (-0.9, 0.9), vec![])));
    cases.extend([Sqrt, Log, Rsqrt, Inverse, Abs].map(|k| function(k, seed, (0.3, 2.0), vec![])));
    cases.extend(
        [Log, Rsqrt, Inverse]
            .map(|k| function(k, seed, (0.1, 2.0), vec![("epsilon", scalar(0.25))])),
    );
    cases.extend([Abs, Relu].map(|k| function(k, seed, (-2.0, -0.1), vec![])));
    cases.extend([
        function(Relu, seed, (0.1, 2.0), vec![]),
        function(Relu6, seed, (4.0, 7.5), vec![]),
        function(Clip, seed, (-1.0, 1.0), vec![("alpha", scalar(-0.5)), ("beta", scalar(0.7))]),
        function(Cast, seed, (-1.0, 1.0), vec![("dtype", text("fp16"))]),
    ]);
    cases.extend(
        ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"]
            .map(|mode| function(Gelu, seed, (-3.0, 3.0), vec![("mode", text(mode))])),
    );
    cases
}

/// Two shapes that broadcast to one another.
fn pair(m: &mut Maker<'_>) -> ([Vec<usize>; 2], usize) {
    let (a, b, c) = (m.size(3), m.size(3), m.size(4));
    let shapes = [
        [vec![a, b, c], vec![a, b, c]],
        [vec![a, 1, c], vec![b, c]],
        [vec![c], vec![a, b, 1]],
        [vec![], vec![a, c]],
        [vec![a, b], vec![1, 1, b]],
    ];
    let which = m.size(shapes.len()) - 1;
    (shapes[which].clone(), which)
}

fn binary(kind: OpKind, seed: u64, x: (f32, f32), y: (f32, f32)) -> Made {
    made(kind.name(), seed, |m| {
        let ([a, b], _) = pair(m);
        let (x, y) = (m.float_in(&a, x.0, x.1), m.float_in(&b, y.0, y.1));
        m.op(kind, vec![("x", x.into()), ("y", y.into())])
    })
}

fn arithmetic(seed: u64) -> Vec<Made> {
    use OpKind::*;
    let all = (-1.5, 1.5);
    let mut cases: Vec<Made> =
        [Add, Sub, Mul, Maximum, Minimum].map(|k| binary(k, seed, all, all)).into();
    cases.extend([
        binary(RealDiv, seed, all, (0.5, 2.0)),
        binary(Pow, seed, (0.3, 2.0), all),
        binary(Mod, seed, (0.2, 0.9), (1.0, 1.5)),
        binary(Mod, seed, (3.1, 3.9), (1.0, 1.02)),
        made("select", seed, |m| {
            let ([a, b], _) = pair(m);
            let (x, y) = (m.float(&a), m.float(&b));
            let cond = m.op(OpKind::Greater, vec![("x", x.into()), ("y", scalar(0.1))])[0];
            m.op(OpKind::Select, vec![("cond", cond.into()), ("a", x.into()), ("b", y.into())])
        }),
        made("fan-out", seed, |m| {
            let shape = [m.size(3), m.size(4)];
            let x = m.float(&shape);
            let y = m.op(OpKind::Mul, vec![("x", x.into()), ("y", x.into())])[0];
            let z = m.op(OpKind::Tanh, vec![("x", y.into())])[0];
            let w = m.op(OpKind::Sub, vec![("x", z.into()), ("y", y.into())])[0];
            let v = m.op(OpKind::Mul, vec![("x", w.into()), ("y", x.into())])[0];
            vec![v, y, w, x]
        }),
        made("integers on the way", seed, |m| {
            let x = m.float(&[2, 3]);
            let up = m.op(OpKind::Floor, vec![("x", x.into())])[0];
            let best = m.op(OpKind::ReduceArgmax, vec![("x", x.into()), ("axis", int(0))])[0];
            let at = m.op(OpKind::Cast, vec![("x", best.into()), ("dtype", text("fp32"))])[0];
            let sum = m.op(OpKind::Add, vec![("x", up.into()), ("y", at.into())])[0];
            m.op(OpKind::Mul, vec![("x", sum.into()), ("y", x.into())])
        }),
    ]);
    cases
}

fn reductions(seed: u64) -> Vec<Made> {
    use OpKind::*;
    let reduction = |kind: OpKind, low: f32| {
        made(kind.name(), seed, |m| {
            let shape = [m.size(3), m.size(3), m.size(4)];
            let x = m.float_in(&shape, low, 1.5);
            let axes =
                [vec![0], vec![-1], vec![0, 2], vec![0, 1, 2], vec![1]][m.size(5) - 1].clone();
            let keep = truth(m.size(2) == 1);
            let whole = m.op(kind, vec![("x", x.into())]);
            let args = vec![("x", x.into()), ("axes", ints(&axes)), ("keep_dims", keep)];
            [m.op(kind, args), whole].concat()
        })
    };
    let mut cases: Vec<Made> =
        [ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceSumSquare, ReduceLogSumExp]
            .map(|k| reduction(k, -1.5))
            .into();
    cases.extend([ReduceL1Norm, ReduceL2Norm, ReduceLogSum].map(|k| reduction(k, 0.2)));
    cases.push(made("softmax", seed, |m| {
        let shape = [m.size(3), m.size(3), 1 + m.size(4)];
        let x = m.float(&shape);
        let axis = int(m.size(3) as i32 - 2);
        m.op(Softmax, vec![("x", x.into()), ("axis", axis)])
    }));
    cases.push(made("cumsum", seed, |m| {
        let shape = [m.size(3), m.size(4)];
        let x = m.float(&shape);
        let (exclusive, reverse) = (truth(m.size(2) == 1), truth(m.size(2) == 1));
        let args = vec![("x", x.into()), ("axis", int(1)), ("exclusive", exclusive)];
        m.op(Cumsum, [args, vec![("reverse", reverse)]].concat())
    }));
    cases
}

fn norms(seed: u64) -> Vec<Made> {
    let layer = |name, axes: &'static [i32], affine: bool| {
        made(name, seed, |m| {
            let shape = [1 + m.size(2), 1 + m.size(3), 2 + m.size(4)];
            let x = m.float(&shape);
            let mut args = vec![("x", x.into()), ("axes", ints(axes)), ("epsilon", scalar(1e-3))];
            if affine {
                let sizes: Vec<usize> = axes.iter().map(|&a| shape[(a + 3) as usize % 3]).collect();
                let (gamma, beta) = (m.float(&sizes), m.float(&sizes));
                args.extend([("gamma", gamma.into()), ("beta", beta.into())]);
            }
            m.op(OpKind::LayerNorm, args)
        })
    };
    vec![
        layer("layer_norm over the last axis", &[-1], true),
        layer("layer_norm over two", &[-2, -1], true),
        layer("layer_norm over the middle", &[1], true),
        layer("layer_norm without factors", &[-1], false),
    ]
}

fn products(seed: u64) -> Vec<Made> {
    let mut cases = vec![
        made("linear", seed, |m| {
            let (rows, inner, out) = (m.size(3), m.size(5), m.size(4));
            let batch = m.size(2);
            let (x, w) = (m.float(&[batch, rows, inner]), m.float(&[out, inner]));
            let bias = m.float(&[out]);
            let args = vec![("x", x.into()), ("weight", w.into()), ("bias", bias.into())];
            m.op(OpKind::Linear, args)
        }),
        made("conv of one element", seed, |m| {
            let (n, inner, out, h, w) = (m.size(2), m.size(3), m.size(3), m.size(3), m.size(3));
            let (x, weight) = (m.float(&[n, inner, h, w]), m.float(&[out, inner, 1, 1]));
            let bias = m.float(&[out]);
            let args = vec![("x", x.into()), ("weight", weight.into()), ("bias", bias.into())];
            m.op(OpKind::Conv, args)
        }),
        made("einsum", seed, |m| {
            let (b, h, i, j, k) = (m.size(2), m.size(2), m.size(3), m.size(3), m.size(3));
            let (x, y) = (m.float(&[b, i, h, k]), m.float(&[b, k, h, j]));
            let values = Arg::from(vec![x, y]);
            m.op(OpKind::Einsum, vec![("values", values), ("equation", text("nchw,nwhu->nchu"))])
        }),
        made("scaled_dot_product_attention", seed, |m| {
            let (b, l, s, e, v) = (m.size(2), m.size(3), m.size(3), m.size(4), m.size(3));
            let (q, k) = (m.float(&[b, 2, l, e]), m.float(&[b, 2, s, e]));
            let (v, mask) = (m.float(&[b, 2, s, v]), m.float(&[l, s]));
            let args = vec![("query", q.into()), ("key", k.into()), ("value", v.into())];
            m.op(
                OpKind::ScaledDotProductAttention,
                [args, vec![("attn_mask", mask.into())]].concat(),
            )
        }),
    ];
    for (name, tx, ty) in [
        ("matmul", false, false),
        ("matmul, first transposed", true, false),
        ("matmul, second transposed", false, true),
        ("matmul, both transposed", true, true),
    ] {
        cases.push(made(name, seed, |m| {
            let (i, j, k) = (m.size(3), m.size(3), m.size(4));
            let (a, b) = (m.size(2), m.size(3));
            let x = if tx { [k, i] } else { [i, k] };
            let y = if ty { [j, k] } else { [k, j] };
            let before: [(&[usize], &[usize]); 4] =
                [(&[], &[]), (&[a, b], &[a, b]), (&[a, 1], &[b]), (&[], &[a, b])];
            let (x_batch, y_batch) = before[m.size(4) - 1];
            let x = m.float(&[x_batch, &x].concat());
            let y = m.float(&[y_batch, &y].concat());
            multiply(m, x, y, [tx, ty])
        }));
    }
    cases.push(made("matmul of vectors", seed, |m| {
        let (a, i, k) = (m.size(2), m.size(3), m.size(4));
        let (x, y) = (m.float(&[k]), m.float(&[a, i, k]));
        let first = multiply(m, y, x, [false, false]);
        let z = m.float(&[a, k, i]);
        [first, multiply(m, x, z, [false, false])].concat()
    }));
    cases
}

fn multiply(m: &mut Maker<'_>, x: ValueId, y: ValueId, [tx, ty]: [bool; 2]) -> Vec<ValueId> {
    let args = vec![("x", x.into()), ("y", y.into())];
    let flags = vec![("transpose_x", truth(tx)), ("transpose_y", truth(ty))];
    m.op(OpKind::Matmul, [args, flags].concat())
}
