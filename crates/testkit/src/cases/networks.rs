//! Cases of plain MIL operations that imported networks are made of: windows, choices, integers, states.

use mil::{Arg, Literal, OpKind, TensorType, Type, ValueId};
use tensor::{Bytes, DType, Tensor};

use crate::{Case, CaseBuilder, Tolerance, case};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = CONVOLUTIONS.iter().map(convolution).collect();
    cases.extend(POOLS.iter().map(pool));
    cases.extend(PADS.iter().map(|&(mode, pad)| padding(mode, pad)));
    cases.extend(COMPARISONS.iter().map(|&kind| comparison(kind)));
    cases.extend(INTEGERS.iter().map(|&kind| integers(kind)));
    cases.extend(casts());
    cases.extend(reductions());
    cases.extend(products());
    cases.extend(attentions());
    cases.extend(norms());
    cases.extend(moves());
    cases.extend(states());
    cases
}

struct Convolution {
    name: &'static str,
    x: &'static [usize],
    weight: &'static [usize],
    strides: &'static [i32],
    dilations: &'static [i32],
    groups: i32,
    pad_type: &'static str,
    pad: &'static [i32],
    dtype: DType,
}

const CONV: Convolution = Convolution {
    name: "conv_plain",
    x: &[1, 3, 9, 10],
    weight: &[16, 3, 3, 3],
    strides: &[1, 1],
    dilations: &[1, 1],
    groups: 1,
    pad_type: "valid",
    pad: &[0, 0, 0, 0],
    dtype: DType::F32,
};

const CONVOLUTIONS: &[Convolution] = &[
    CONV,
    Convolution { name: "conv_same_strided", strides: &[2, 3], pad_type: "same", ..CONV },
    Convolution { name: "conv_same_lower", strides: &[2, 2], pad_type: "same_lower", ..CONV },
    Convolution {
        name: "conv_custom",
        x: &[2, 3, 9, 10],
        dilations: &[2, 1],
        pad_type: "custom",
        pad: &[2, 1, 0, 3],
        ..CONV
    },
    Convolution {
        name: "conv_grouped",
        x: &[1, 6, 9, 10],
        weight: &[18, 3, 3, 2],
        groups: 2,
        pad_type: "same",
        ..CONV
    },
    Convolution {
        name: "conv_depthwise",
        x: &[2, 6, 9, 10],
        weight: &[12, 1, 3, 3],
        groups: 6,
        strides: &[2, 1],
        pad_type: "same",
        ..CONV
    },
    Convolution { name: "conv_pointwise", x: &[1, 40, 9, 10], weight: &[50, 40, 1, 1], ..CONV },
    Convolution { name: "conv_of_one_place", x: &[1, 40, 1, 1], weight: &[50, 40, 1, 1], ..CONV },
    Convolution {
        name: "conv_half",
        x: &[1, 4, 8, 8],
        weight: &[9, 4, 3, 3],
        pad_type: "same",
        dtype: DType::F16,
        ..CONV
    },
    Convolution {
        name: "conv_line",
        x: &[2, 5, 30],
        weight: &[9, 5, 4],
        strides: &[3],
        dilations: &[2],
        pad_type: "custom",
        pad: &[1, 4],
        ..CONV
    },
    Convolution {
        name: "conv_volume",
        x: &[1, 2, 4, 5, 6],
        weight: &[8, 2, 2, 3, 2],
        strides: &[1, 2, 1],
        dilations: &[1, 1, 2],
        pad_type: "custom",
        pad: &[1, 0, 0, 1, 1, 1],
        ..CONV
    },
];

fn convolution(of: &Convolution) -> Case {
    case(of.name, |c| {
        let x = c.float("x", of.x);
        let x = as_half(c, x, of.dtype)?;
        let (w, b) =
            (c.weight("w", of.dtype, of.weight)?, c.weight("b", of.dtype, &of.weight[..1])?);
        let op = c.f.op(OpKind::Conv).arg("x", x).arg("weight", w).arg("bias", b);
        let op = op.arg("strides", Literal::vector(of.strides));
        let op = op.arg("dilations", Literal::vector(of.dilations));
        let op = op.arg("groups", Literal::scalar(of.groups));
        let op =
            op.arg("pad_type", Literal::string(of.pad_type)).arg("pad", Literal::vector(of.pad));
        Ok(vec![op.name("y").result()?])
    })
}

/// `x` as half precision, if that is asked for; results are then as precise as that.
fn as_half(c: &mut CaseBuilder<'_>, x: ValueId, dtype: DType) -> mil::Result<ValueId> {
    if dtype != DType::F16 {
        return Ok(x);
    }
    c.tolerance(Tolerance { abs: 1e-2, rel: 1e-2 });
    c.f.op(OpKind::Cast).arg("x", x).arg("dtype", Literal::string("fp16")).name("half").result()
}

type Pool =
    (OpKind, &'static [usize], &'static [i32], &'static [i32], &'static str, &'static [i32], bool);

const POOLS: &[Pool] = &[
    (OpKind::MaxPool, &[2, 3, 9, 10], &[3, 2], &[2, 2], "valid", &[0, 0, 0, 0], false),
    (OpKind::MaxPool, &[1, 2, 9, 10], &[3, 3], &[2, 2], "custom", &[1, 1, 1, 1], true),
    (OpKind::MaxPool, &[1, 2, 11], &[3], &[1], "same", &[0, 0], false),
    (OpKind::AvgPool, &[1, 2, 9, 10], &[3, 3], &[2, 2], "custom", &[1, 1, 1, 1], true),
    (OpKind::AvgPool, &[1, 2, 5, 6, 7], &[2, 3, 2], &[1, 2, 2], "same", &[0; 6], false),
    (OpKind::L2Pool, &[1, 2, 9, 10], &[2, 3], &[2, 1], "valid", &[0, 0, 0, 0], false),
];

fn pool(&(kind, shape, kernels, strides, pad_type, pad, ceil): &Pool) -> Case {
    case(&format!("{}_{pad_type}_{}", kind.name(), shape.len()), |c| {
        let x = c.float("x", shape);
        let all = |c: &mut CaseBuilder<'_>, name: &str, exclude: bool| {
            let op = c.f.op(kind).arg("x", x).arg("kernel_sizes", Literal::vector(kernels));
            let op = op.arg("strides", Literal::vector(strides)).arg("pad", Literal::vector(pad));
            let op = op.arg("pad_type", Literal::string(pad_type));
            let op = op.arg("ceil_mode", Literal::bool(ceil)).name(name);
            match kind {
                OpKind::AvgPool => {
                    op.arg("exclude_padding_from_average", Literal::bool(exclude)).result()
                }
                _ => op.result(),
            }
        };
        Ok(vec![all(c, "with", false)?, all(c, "without", true)?])
    })
}

const PADS: &[(&str, &[i32])] = &[
    ("constant", &[1, 2, 0, 3]),
    ("constant", &[1, 0, 0, 0, 2, 1]),
    ("reflect", &[0, 0, 2, 1, 3, 0]),
    ("replicate", &[2, 2, 0, 1]),
];

fn padding(mode: &'static str, pad: &'static [i32]) -> Case {
    case(&format!("pad_{mode}_{}", pad.len()), |c| {
        let x = c.float("x", &[2, 3, 4]);
        let op = c.f.op(OpKind::Pad).arg("x", x).arg("pad", Literal::vector(pad));
        let op = op.arg("mode", Literal::string(mode));
        Ok(vec![op.arg("constant_val", Literal::scalar(0.5f32)).name("y").result()?])
    })
}

const COMPARISONS: &[OpKind] = &[
    OpKind::Equal,
    OpKind::NotEqual,
    OpKind::Less,
    OpKind::LessEqual,
    OpKind::Greater,
    OpKind::GreaterEqual,
];

fn comparison(kind: OpKind) -> Case {
    case(kind.name(), |c| {
        let (x, y) = (c.float("x", &[2, 3, 4]), c.float("y", &[3, 1]));
        let floats = c.f.op(kind).arg("x", x).arg("y", y).name("floats").result()?;
        let same = c.f.op(kind).arg("x", x).arg("y", x).name("same").result()?;
        let (a, b) = (c.ints("a", &[4], &[-3, 0, 7, 2]), c.ints("b", &[2, 1], &[0, 2]));
        let ints = c.f.op(kind).arg("x", a).arg("y", b).name("ints").result()?;
        let mut outputs = vec![floats, ints];
        for logic in [OpKind::LogicalAnd, OpKind::LogicalOr, OpKind::LogicalXor] {
            let op = c.f.op(logic).arg("x", floats).arg("y", same);
            outputs.push(op.name(logic.name()).result()?);
        }
        let not = c.f.op(OpKind::LogicalNot).arg("x", floats).name("not").result()?;
        let op = c.f.op(OpKind::Select).arg("cond", ints).arg("a", a).arg("b", b);
        outputs.extend([not, op.name("chosen").result()?]);
        let op = c.f.op(OpKind::Select).arg("cond", not).arg("a", x).arg("b", y);
        outputs.push(op.name("of_floats").result()?);
        Ok(outputs)
    })
}

const INTEGERS: &[OpKind] = &[
    OpKind::Add,
    OpKind::Sub,
    OpKind::Mul,
    OpKind::RealDiv,
    OpKind::FloorDiv,
    OpKind::Mod,
    OpKind::Maximum,
    OpKind::Minimum,
];

fn integers(kind: OpKind) -> Case {
    case(&format!("{}_of_integers", kind.name()), |c| {
        let a = c.ints("a", &[2, 4], &[-7, 7, i32::MAX, 5, 0, -8, i32::MIN, 1]);
        let b = c.ints("b", &[2, 1], &[2, -3]);
        let wide = c.f.op(kind).arg("x", a).arg("y", b).name("wide").result()?;
        let cast = |c: &mut CaseBuilder<'_>, v: ValueId| {
            c.f.op(OpKind::Cast).arg("x", v).arg("dtype", Literal::string("int16")).result()
        };
        let (a, b) = (cast(c, a)?, cast(c, b)?);
        Ok(vec![wide, c.f.op(kind).arg("x", a).arg("y", b).name("narrow").result()?])
    })
}

fn casts() -> Vec<Case> {
    let to = |name: &'static str| {
        case(&format!("cast_to_{name}"), |c| {
            let x = c.float_in("x", &[3, 5], -300.0, 70_000.0);
            let y = c.ints("y", &[6], &[-1, 0, 1, 255, 70_000, i32::MIN]);
            let b = c.f.op(OpKind::Greater).arg("x", x).arg("y", Literal::scalar(9f32)).result()?;
            let mut outputs = Vec::new();
            for (i, v) in [x, y, b].into_iter().enumerate() {
                let op = c.f.op(OpKind::Cast).arg("x", v).arg("dtype", Literal::string(name));
                outputs.push(op.name(format!("cast_{i}")).result()?);
            }
            Ok(outputs)
        })
    };
    ["int32", "int16", "uint16", "int8", "uint8", "bool", "fp32"].map(to).into()
}

fn reductions() -> Vec<Case> {
    let kinds = [
        OpKind::ReduceL1Norm,
        OpKind::ReduceL2Norm,
        OpKind::ReduceLogSum,
        OpKind::ReduceLogSumExp,
        OpKind::ReduceProd,
        OpKind::ReduceSumSquare,
    ];
    let plain = kinds.map(|kind| {
        case(kind.name(), |c| {
            let x = c.float_in("x", &[2, 3, 128], 0.9, 1.1);
            let over = |c: &mut CaseBuilder<'_>, name: &str, axes: &[i32]| {
                let op = c.f.op(kind).arg("x", x).arg("axes", Literal::vector(axes));
                op.arg("keep_dims", Literal::bool(true)).name(name).result()
            };
            Ok(vec![over(c, "middle", &[1])?, over(c, "ends", &[0, 2])?, over(c, "last", &[-1])?])
        })
    });
    let extremes = [OpKind::ReduceArgmax, OpKind::ReduceArgmin].map(|kind| {
        case(kind.name(), |c| {
            let x = c.float("x", &[2, 5, 4]);
            let along = |c: &mut CaseBuilder<'_>, name: &str, axis: i32, dtype: &str| {
                let op = c.f.op(kind).arg("x", x).arg("axis", Literal::scalar(axis));
                op.arg("output_dtype", Literal::string(dtype)).name(name).result()
            };
            Ok(vec![along(c, "middle", 1, "int32")?, along(c, "last", -1, "uint16")?])
        })
    });
    plain.into_iter().chain(extremes).collect()
}

fn products() -> Vec<Case> {
    let einsum =
        |name: &'static str, x: &'static [usize], y: &'static [usize], equation: &'static str| {
            case(name, |c| {
                let (x, y) = (c.float("x", x), c.float("y", y));
                let op = c.f.op(OpKind::Einsum).arg("values", Arg::from(vec![x, y]));
                Ok(vec![op.arg("equation", Literal::string(equation)).name("y").result()?])
            })
        };
    let product =
        |name: &'static str, x: &'static [usize], y: &'static [usize], turn: [bool; 2]| {
            case(name, |c| {
                let (x, y) = (c.float("x", x), c.float("y", y));
                let op = c.f.op(OpKind::Matmul).arg("x", x).arg("y", y);
                let op = op.arg("transpose_x", Literal::bool(turn[0]));
                Ok(vec![op.arg("transpose_y", Literal::bool(turn[1])).name("z").result()?])
            })
        };
    vec![
        einsum("einsum_4", &[2, 3, 4, 5], &[2, 5, 4, 6], "nchw,nwhu->nchu"),
        einsum("einsum_3", &[3, 4, 5], &[5, 4, 6], "chw,whr->chr"),
        product("matmul_columns", &[2, 3, 8], &[2, 8, 70], [false, false]),
        product("matmul_many_columns", &[20, 33], &[33, 70], [false, false]),
        product("matmul_turned", &[2, 1, 8, 3], &[4, 8, 5], [true, false]),
        product("matmul_both_turned", &[8, 3], &[3, 5, 8], [true, true]),
        case("matmul_repeated_heads", |c| {
            let q = c.float("q", &[1, 6, 2, 8]);
            let k = c.float("k", &[1, 2, 5, 8]);
            let op = c.f.op(OpKind::ExpandDims).arg("x", k).arg("axes", Literal::vector(&[2i32]));
            let k = op.result()?;
            let reps = Literal::vector(&[1i32, 1, 3, 1, 1]);
            let k = c.f.op(OpKind::Tile).arg("x", k).arg("reps", reps).result()?;
            let shape = Literal::vector(&[1i32, 6, -1, 8]);
            let k = c.f.op(OpKind::Reshape).arg("x", k).arg("shape", shape).result()?;
            let op = c.f.op(OpKind::Matmul).arg("x", q).arg("y", k);
            Ok(vec![op.arg("transpose_y", Literal::bool(true)).name("scores").result()?])
        }),
    ]
}

fn attentions() -> Vec<Case> {
    let with = |name: &'static str, mask: Option<(&'static [usize], bool)>| {
        case(name, |c| {
            let q = c.float("q", &[2, 3, 40, 8]);
            let (k, v) = (c.float("k", &[2, 3, 5, 8]), c.float("v", &[2, 3, 5, 6]));
            let mask = mask.map(|(shape, bools)| {
                let m = c.float("m", shape);
                if !bools {
                    return Ok(m);
                }
                c.f.op(OpKind::Greater).arg("x", m).arg("y", Literal::scalar(-1.5f32)).result()
            });
            let op = c.f.op(OpKind::ScaledDotProductAttention).arg("query", q).arg("key", k);
            let op = op.arg("value", v).name("out");
            Ok(vec![match mask.transpose()? {
                Some(mask) => op.arg("attn_mask", mask).result()?,
                None => op.result()?,
            }])
        })
    };
    vec![
        with("attention_unmasked", None),
        with("attention_of_floats", Some((&[1, 1, 40, 5], false))),
        with("attention_of_bools", Some((&[2, 1, 40, 5], true))),
    ]
}

fn norms() -> Vec<Case> {
    let channels = |kind: OpKind| {
        case(kind.name(), |c| {
            let x = c.float("x", &[2, 5, 3, 4]);
            let mut op_args = vec![("gamma", c.weight("gamma", DType::F32, &[5])?)];
            op_args.push(("beta", c.weight("beta", DType::F32, &[5])?));
            if kind == OpKind::BatchNorm {
                op_args.push(("mean", c.weight("mean", DType::F32, &[5])?));
                let variance = Tensor::from_slice(&[5], &[0.5f32, 1.0, 2.0, 0.1, 3.0]);
                let variance = variance.expect("as many values");
                op_args.push(("variance", c.f.new_weight("variance", variance)?));
            }
            let op = c.f.op(kind).arg("x", x).name("y");
            Ok(vec![op_args.into_iter().fold(op, |op, (name, v)| op.arg(name, v)).result()?])
        })
    };
    vec![
        channels(OpKind::BatchNorm),
        channels(OpKind::InstanceNorm),
        case("layer_norm_of_channels", |c| {
            let x = c.float("x", &[2, 6, 1, 5]);
            let (g, b) = (c.weight("g", DType::F32, &[6])?, c.weight("b", DType::F32, &[6])?);
            let op = c.f.op(OpKind::LayerNorm).arg("x", x).arg("axes", Literal::vector(&[1i32]));
            Ok(vec![op.arg("gamma", g).arg("beta", b).name("y").result()?])
        }),
        case("prelu", |c| {
            let (x, alpha) = (c.float("x", &[2, 5, 3]), c.weight("alpha", DType::F32, &[5])?);
            Ok(vec![c.f.op(OpKind::Prelu).arg("x", x).arg("alpha", alpha).name("y").result()?])
        }),
    ]
}

fn moves() -> Vec<Case> {
    vec![
        case("tile_all", |c| {
            let x = c.float("x", &[2, 1, 3]);
            let op = c.f.op(OpKind::Tile).arg("x", x).arg("reps", Literal::vector(&[2i32, 3, 2]));
            Ok(vec![op.name("y").result()?])
        }),
        case("reverse", |c| {
            let x = c.float("x", &[2, 3, 4]);
            let op = c.f.op(OpKind::Reverse).arg("x", x).arg("axes", Literal::vector(&[0i32, 2]));
            Ok(vec![op.name("y").result()?])
        }),
        case("slice_backwards", |c| {
            let x = c.float("x", &[3, 8]);
            let op = c.f.op(OpKind::SliceByIndex).arg("x", x);
            let op = op.arg("begin", Literal::vector(&[-1i32, 6]));
            let op = op.arg("end", Literal::vector(&[0i32, 1]));
            let op = op.arg("stride", Literal::vector(&[-1i32, -2]));
            let op = op.arg("end_mask", Literal::bool_vector(&[true, false]));
            Ok(vec![op.name("y").result()?])
        }),
        case("gather_in_batches", |c| {
            let x = c.float("x", &[2, 3, 4, 2]);
            let at = c.ints("at", &[2, 3], &[3, 0, 1, 1, 2, 3]);
            let op = c.f.op(OpKind::Gather).arg("x", x).arg("indices", at);
            let op = op.arg("axis", Literal::scalar(2i32)).arg("batch_dims", Literal::scalar(1i32));
            Ok(vec![op.name("y").result()?])
        }),
        case("gather_by_short_indices", |c| {
            let x = c.float("x", &[5, 3]);
            let bytes: Vec<u8> = [4u16, 0, 2].iter().flat_map(|v| v.to_le_bytes()).collect();
            let at = Tensor::new(DType::U16, &[3], Bytes::copy_from(&bytes)).expect("three");
            let at = c.given("at", at);
            let op = c.f.op(OpKind::Gather).arg("x", x).arg("indices", at);
            Ok(vec![op.arg("axis", Literal::scalar(0i32)).name("y").result()?])
        }),
        case("slice_update", |c| {
            let (x, update) = (c.float("x", &[4, 5]), c.float("update", &[2, 5]));
            let begin = c.ints("begin", &[2], &[1, 0]);
            let end = c.ints("end", &[2], &[3, 5]);
            let op = c.f.op(OpKind::SliceUpdate).arg("x", x).arg("update", update);
            let moved = op.arg("begin", begin).arg("end", end).name("moved").result();
            let column = c.float("column", &[2]);
            let op = c.f.op(OpKind::SliceUpdate).arg("x", x).arg("update", column);
            let op = op.arg("begin", Literal::vector(&[0i32, -2]));
            let op = op
                .arg("end", Literal::vector(&[0i32, 0]))
                .arg("stride", Literal::vector(&[2i32, 1]));
            let op = op.arg("end_mask", Literal::bool_vector(&[true, false]));
            let op = op.arg("squeeze_mask", Literal::bool_vector(&[false, true]));
            let fixed = op.name("fixed").result()?;
            Ok(moved.map_or(vec![fixed], |moved| vec![fixed, moved]))
        }),
        case("scatter_update", |c| {
            let (x, rows) = (c.float("x", &[2, 4, 3]), c.float("rows", &[2, 2, 3]));
            let at = c.ints("at", &[2], &[3, 0]);
            let op = c.f.op(OpKind::Scatter).arg("data", x).arg("indices", at).arg("updates", rows);
            let op = op.arg("axis", Literal::scalar(1i32)).arg("mode", Literal::string("update"));
            Ok(vec![op.name("y").result()?])
        }),
    ]
}

/// A cache `[2, 4, 3]` of which each call replaces an entry.
fn states() -> Vec<Case> {
    let read = |c: &mut CaseBuilder<'_>, cache: ValueId, name: &str| {
        c.f.op(OpKind::ReadState).arg("input", cache).name(name).result()
    };
    let build = |name: &'static str, keep_old: bool| {
        case(name, |c| {
            let content = TensorType::new(DType::F16, [2usize, 4, 3]);
            let cache = c.f.input("cache", Type::State(content));
            let rows = c.float("rows", &[2, 1, 3]);
            let rows = as_half(c, rows, DType::F16)?;
            let at = c.ints("at", &[1], &[2]);
            let old = read(c, cache, "old")?;
            let op = c.f.op(OpKind::Scatter).arg("data", old).arg("indices", at);
            let op = op.arg("updates", rows).arg("axis", Literal::scalar(1i32));
            let new = op.arg("mode", Literal::string("update")).name("new").result()?;
            c.f.op(OpKind::WriteState).arg("input", cache).arg("data", new).results()?;
            let now = read(c, cache, "now")?;
            let twice = c.f.op(OpKind::Add).arg("x", now).arg("y", now).name("twice").result()?;
            // What was read before the write must be what it was.
            let difference = match keep_old {
                true => {
                    c.f.op(OpKind::Sub).arg("x", now).arg("y", old).name("new_only").result()?
                }
                false => now,
            };
            c.f.op(OpKind::WriteState).arg("input", cache).arg("data", twice).results()?;
            Ok(vec![difference, twice, new])
        })
    };
    let mut cases = vec![build("state_updated", false), build("state_kept", true)];
    for case in &mut cases {
        case.steps = vec![case.steps[0].clone(); 3];
    }
    cases
}
