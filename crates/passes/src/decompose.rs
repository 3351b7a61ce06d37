//! Replaces composite operations by simpler ones.

use mil::{ErrorKind, OpKind, Program};

use crate::rebuild::{Site, rebuild};
use crate::{Pass, Property};

/// Replaces every operation of the language-model dialect, until none is left.
pub(crate) struct Decompose;

impl Pass for Decompose {
    fn name(&self) -> &'static str {
        "decompose"
    }

    fn doc(&self) -> &'static str {
        "Replaces operations of the language-model dialect by plain MIL with the same meaning, until \
         none is left.\n\
         before: y = llm.rms_norm(x = x, weight = w, epsilon = e) -> (y)\n\
         after:  s = mul(x = x, y = x); m = reduce_mean(x = s, ...); ... y = mul(x = n, y = w) -> (y)"
    }

    fn establishes(&self) -> &'static [Property] {
        &[Property::PlainMil]
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::NoDeadCode, Property::UniqueConstants]
    }

    fn exact(&self) -> bool {
        false
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        decompose_all(program, name, &|kind| !kind.is_core_ml())
    }
}

/// Replaces Core ML's own composite operations where they have a simpler form.
pub(crate) struct DecomposeComposites;

impl Pass for DecomposeComposites {
    fn name(&self) -> &'static str {
        "decompose_composites"
    }

    fn doc(&self) -> &'static str {
        "Replaces Core ML's composite operations by ones that every operation set and the Neural Engine's \
         compiler have: scaled_dot_product_attention (iOS 18) by products of matrices and softmax, \
         einsum by transposes and matmul, gelu by erf, tanh or sigmoid.\n\
         before: y = scaled_dot_product_attention(query = q, key = k, value = v, attn_mask = m) -> (y)\n\
         after:  s = mul(x = q, y = 1 / sqrt(E)); p = matmul(x = s, y = k, transpose_y = true); \
         a = add(x = p, y = m); w = softmax(x = a, axis = -1); y = matmul(x = w, y = v) -> (y)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::NoDeadCode, Property::UniqueConstants]
    }

    fn exact(&self) -> bool {
        false
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        decompose_all(program, name, &OpKind::is_core_ml)
    }
}

/// Replaces scaled dot-product attention alone.
pub(crate) struct DecomposeAttention;

impl Pass for DecomposeAttention {
    fn name(&self) -> &'static str {
        "decompose_attention"
    }

    fn doc(&self) -> &'static str {
        "Replaces scaled_dot_product_attention, which Core ML has from iOS 18 on, by products of matrices \
         and softmax. A mask of truth values selects, any other is added.\n\
         before: y = scaled_dot_product_attention(query = q, key = k, value = v, attn_mask = m) -> (y)\n\
         after:  s = mul(x = q, y = 1 / sqrt(E)); p = matmul(x = s, y = k, transpose_y = true); \
         a = add(x = p, y = m); w = softmax(x = a, axis = -1); y = matmul(x = w, y = v) -> (y)"
    }

    fn breaks(&self) -> &'static [Property] {
        &[Property::NoDeadCode, Property::UniqueConstants]
    }

    fn exact(&self) -> bool {
        false
    }

    fn run(&self, program: &mut Program, name: &str) -> mil::Result<usize> {
        decompose_all(program, name, &|kind| kind == OpKind::ScaledDotProductAttention)
    }
}

/// Decomposes every composite operation of the `wanted` kinds, nested blocks' included. A decomposition may use
/// composite operations that are simpler than its own.
pub(crate) fn decompose_all(
    program: &mut Program,
    name: &str,
    wanted: &dyn Fn(OpKind) -> bool,
) -> mil::Result<usize> {
    let mut total = 0;
    loop {
        let changed = rebuild(program, name, &mut |site: &mut Site<'_, '_>| {
            let view = site.view();
            let def = view.kind.def();
            if !wanted(view.kind) || !def.is_composite() {
                return Ok(None);
            }
            let results = match def.decompose(&view, site.b) {
                // Core ML's own can stay as it is; the dialect cannot.
                Err(e) if view.kind.is_core_ml() && e.kind == ErrorKind::Unsupported => {
                    return Ok(None);
                }
                made => made?,
            };
            Ok(Some(results.into_iter().map(Some).collect()))
        })?;
        if changed == 0 {
            return Ok(total);
        }
        total += changed;
    }
}
