//! Cases of the language-model dialect.

use mil::{Arg, Literal, OpKind, ValueId};

use crate::harness::{Made, Maker, made};

fn scalar(x: f32) -> Arg {
    Literal::scalar(x).into()
}

fn text(x: &str) -> Arg {
    Literal::string(x).into()
}

pub(crate) fn cases(seed: u64) -> Vec<Made> {
    let mut cases = layers(seed);
    cases.extend(attentions(seed));
    cases.extend(losses(seed));
    cases
}

fn layers(seed: u64) -> Vec<Made> {
    let mut cases = vec![
        made("llm.rms_norm", seed, |m| {
            let shape = [m.size(2), m.size(3), 1 + m.size(5)];
            let (x, w) = (m.float(&shape), m.float(&shape[2..]));
            let args = vec![("x", x.into()), ("weight", w.into()), ("epsilon", scalar(1e-3))];
            m.op(OpKind::LlmRmsNorm, args)
        }),
        made("llm.rms_norm of a row", seed, |m| {
            let n = 1 + m.size(5);
            let (x, w) = (m.float(&[n]), m.float(&[n]));
            let args = vec![("x", x.into()), ("weight", w.into()), ("epsilon", scalar(1e-3))];
            m.op(OpKind::LlmRmsNorm, args)
        }),
        made("llm.linear", seed, |m| {
            let (b, t, inner, out) = (m.size(2), m.size(3), m.size(5), m.size(4));
            let (x, w) = (m.float(&[b, t, inner]), m.float(&[out, inner]));
            let bias = m.float(&[out]);
            let args = vec![("x", x.into()), ("weight", w.into()), ("bias", bias.into())];
            m.op(OpKind::LlmLinear, args)
        }),
        made("llm.linear of a block-quantised weight", seed, |m| {
            let x = m.float(&[1, 2, 256]);
            let w = testkit::seeded_tensor(tensor::DType::Q4K, "w", &[3, 256]);
            let w = m.f.new_weight("w", w).unwrap();
            m.op(OpKind::LlmLinear, vec![("x", x.into()), ("weight", w.into())])
        }),
        made("llm.embedding", seed, |m| {
            let (vocab, d) = (2 + m.size(4), m.size(4));
            let (table, ids) = (m.float(&[vocab, d]), m.ints_in(&[2, 3], 0, vocab as i32));
            m.op(OpKind::LlmEmbedding, vec![("ids", ids.into()), ("weight", table.into())])
        }),
        made("llm.embedding of a table used twice", seed, |m| {
            let (vocab, d) = (2 + m.size(4), m.size(4));
            let (table, ids) = (m.float(&[vocab, d]), m.ints_in(&[1, 3], 0, vocab as i32));
            let rows =
                m.op(OpKind::LlmEmbedding, vec![("ids", ids.into()), ("weight", table.into())]);
            m.op(OpKind::LlmLinear, vec![("x", rows[0].into()), ("weight", table.into())])
        }),
        made("llm.dequantize", seed, |m| {
            let x = m.float(&[2, 3]);
            m.op(OpKind::LlmDequantize, vec![("x", x.into())])
        }),
    ];
    for activation in ["silu", "gelu_tanh", "gelu"] {
        cases.push(made("llm.gated_mlp", seed, |m| {
            let (t, d, f) = (m.size(3), m.size(4), m.size(4));
            let x = m.float(&[1, t, d]);
            let (gate, up) = (m.float(&[f, d]), m.float(&[f, d]));
            let down = m.float(&[d, f]);
            let args = vec![("x", x.into()), ("gate", gate.into()), ("up", up.into())];
            let rest = vec![("down", down.into()), ("activation", text(activation))];
            m.op(OpKind::LlmGatedMlp, [args, rest].concat())
        }));
    }
    for (name, interleaved) in [("llm.rope of halves", false), ("llm.rope of pairs", true)] {
        cases.push(made(name, seed, |m| {
            let (b, t, h, pairs, rest) =
                (m.size(2), m.size(3), m.size(2), m.size(3), m.size(3) - 1);
            let x = m.float(&[b, t, h, 2 * pairs + rest]);
            let positions = m.ints_in(&[t], 0, 50);
            let frequencies: Vec<f32> = (0..pairs).map(|i| 0.3f32.powi(i as i32)).collect();
            let args = vec![("x", x.into()), ("positions", positions.into())];
            let constants = vec![
                ("inv_freq", Literal::vector(&frequencies).into()),
                ("interleaved", Literal::bool(interleaved).into()),
            ];
            m.op(OpKind::LlmRope, [args, constants].concat())
        }));
    }
    cases
}

/// Options of an attention: name, heads for each key head, window, cap, segments.
type Form = (&'static str, usize, Option<i32>, Option<f32>, bool);

fn attentions(seed: u64) -> Vec<Made> {
    let forms: [Form; 6] = [
        ("llm.attention", 1, None, None, false),
        ("llm.attention with grouped heads", 3, None, None, false),
        ("llm.attention within a window", 2, Some(2), None, false),
        ("llm.attention with capped scores", 2, None, Some(0.8), false),
        ("llm.attention within documents", 2, None, None, true),
        ("llm.attention with all", 2, Some(3), Some(1.1), true),
    ];
    forms.map(|form| made(form.0, seed, |m| attention(m, form))).into()
}

fn attention(m: &mut Maker<'_>, (_, repeats, window, softcap, segments): Form) -> Vec<ValueId> {
    let (b, t, g, d) = (m.size(2), 1 + m.size(4), m.size(2), m.size(4));
    let query = m.float(&[b, t, g * repeats, d]);
    let (key, value) = (m.float(&[b, t, g, d]), m.float(&[b, t, g, d]));
    let positions: Vec<i32> = (0..t as i32).map(|p| p + 7).collect();
    let positions = m.ints(&[t], &positions);
    let mut args: Vec<(&str, Arg)> = vec![
        ("query", query.into()),
        ("key", key.into()),
        ("value", value.into()),
        ("positions", positions.into()),
        ("scale", scalar(0.9)),
    ];
    args.extend(window.map(|w| ("window", Arg::from(Literal::scalar(w)))));
    args.extend(softcap.map(|c| ("softcap", scalar(c))));
    if segments {
        args.push(("segments", m.ints_in(&[b, t], 0, 2).into()));
    }
    m.op(OpKind::LlmAttention, args)
}

fn losses(seed: u64) -> Vec<Made> {
    let loss = |name, bias: bool, softcap: Option<f32>, chunk: i32, lowest: i32| {
        made(name, seed, |m| {
            let (b, t, d, vocab) = (m.size(2), 1 + m.size(3), m.size(4), 2 + m.size(5));
            let (x, w) = (m.float(&[b, t, d]), m.float(&[vocab, d]));
            let targets = m.ints_in(&[b, t], lowest, vocab as i32);
            let mut args: Vec<(&str, Arg)> = vec![
                ("x", x.into()),
                ("weight", w.into()),
                ("targets", targets.into()),
                ("chunk", Literal::scalar(chunk).into()),
            ];
            if bias {
                args.push(("bias", m.float(&[vocab]).into()));
            }
            args.extend(softcap.map(|c| ("softcap", scalar(c))));
            m.op(OpKind::LlmHeadLoss, args)
        })
    };
    let mut cases = vec![
        loss("llm.head_loss", false, None, 256, 0),
        loss("llm.head_loss with rows that do not count", true, None, 2, -2),
        loss("llm.head_loss of capped logits", true, Some(1.5), 3, -1),
        made("llm.head_loss of a fixed output layer", seed, |m| {
            let x = m.float(&[1, 3, 256]);
            let w = testkit::seeded_tensor(tensor::DType::Q8_0, "head", &[7, 256]);
            let w = m.f.new_weight("head", w).unwrap();
            let targets = m.ints_in(&[1, 3], 0, 7);
            let args = vec![("x", x.into()), ("weight", w.into()), ("targets", targets.into())];
            m.op(OpKind::LlmHeadLoss, args)
        }),
    ];
    cases.push(made("llm.head_loss where nothing counts", seed, |m| {
        let (x, w) = (m.float(&[1, 2, 3]), m.float(&[4, 3]));
        let targets = m.ints(&[1, 2], &[-1, -1]);
        let args = vec![("x", x.into()), ("weight", w.into()), ("targets", targets.into())];
        m.op(OpKind::LlmHeadLoss, args)
    }));
    cases
}
