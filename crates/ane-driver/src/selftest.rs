//! What the machine at hand does where sources disagree: tried out before anything relies on it.

use std::sync::Arc;

use ane_model::Chip;
use exec::Result;
use exec::port::Port;
use half::f16;
use mil::{FunctionBuilder, Literal, OpKind, Opset, Program, TensorType};
use tensor::{DType, Tensor, WeightStore};

use crate::error::{bug, failed, unsupported};
use crate::programs::{Programs, Update};

/// What a self-test found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelfTest {
    /// Whether a reloaded program computes with the new weights, as one compiled afresh does.
    pub delta_reload: bool,
    /// What to tell the user where that is not so.
    pub note: Option<String>,
}

impl SelfTest {
    /// The cheapest way to change weights that was seen to work.
    pub fn update(&self) -> Update {
        if self.delta_reload { Update::Delta } else { Update::Recompile }
    }
}

/// Channels and columns whose fp16 tensor has the 49,152 bytes that surfaces need.
const SHAPE: [usize; 4] = [1, 768, 1, 32];

/// Changes a weight in place, reloads, and compares with a fresh compilation. Takes two compilations.
///
/// # Errors
/// When the port cannot compile, load or evaluate a convolution at all.
pub fn self_test<P: Port>(port: &Arc<P>, chip: &Chip) -> Result<SelfTest> {
    let programs = Programs::new(port.clone(), chip.clone(), None);
    let (before, after) = (program(1.5)?, program(-0.75)?);
    let fresh = programs.compile(&after, "self-test")?;
    let reloaded = programs.compiled(&before, "self-test")?;
    let first = result(&programs, &reloaded)?;
    let reloaded = programs.updated(&reloaded, &after, Some(Update::Delta), 1);
    let second = reloaded.and_then(|reloaded| result(&programs, &reloaded));
    let wanted = result(&programs, &fresh)?;
    if first == wanted {
        return Err(unsupported("self-test: two programs of different weights compute the same"));
    }
    let delta_reload = second.as_ref().is_ok_and(|second| *second == wanted);
    let note = (!delta_reload).then(|| {
        let what = match second {
            Ok(second) if second == first => "the old weights are still used".to_owned(),
            Ok(_) => "results are wrong".to_owned(),
            Err(e) => e.to_string(),
        };
        format!("weights cannot be changed by reloading here ({what}): programs are compiled again")
    });
    Ok(SelfTest { delta_reload, note })
}

/// A convolution by a diagonal of `factor`s.
fn program(factor: f32) -> Result<Program> {
    let channels = SHAPE[1];
    let mut weights = vec![f16::ZERO; channels * channels];
    weights.iter_mut().step_by(channels + 1).for_each(|w| *w = f16::from_f32(factor));
    let kernel = Tensor::from_slice(&[channels, channels, 1, 1], &weights);
    let kernel = kernel.map_err(|e| bug(e.to_string()))?;
    let mut store = WeightStore::new();
    let mut b = FunctionBuilder::new("main", Opset::Ios16, &mut store);
    let x = b.input("x", TensorType::new(DType::F16, SHAPE.map(mil::Dim::Fixed)));
    let weight = b.new_weight("w", kernel)?;
    let ones = b.constant("ones", Literal::vector(&[1i32, 1]));
    let zeros = b.constant("zeros", Literal::vector(&[0i32; 4]));
    let groups = b.constant("groups", Literal::scalar(1i32));
    let valid = b.constant("valid", Literal::string("valid"));
    let op = b.op(OpKind::Conv).arg("x", x).arg("weight", weight).arg("strides", ones);
    let op = op.arg("pad_type", valid).arg("pad", zeros).arg("dilations", ones);
    let y = op.arg("groups", groups).name("y").result()?;
    let function = b.finish(vec![y]);
    Ok(Program {
        functions: [("main".to_owned(), function)].into(),
        weights: store,
        ..Program::default()
    })
}

/// The bytes that a program makes of ones.
fn result<P: Port>(programs: &Programs<P>, entry: &crate::programs::Entry<P>) -> Result<Vec<u8>> {
    let port = programs.port();
    let place = |e| failed("self-test", &e);
    let bytes = SHAPE.iter().product::<usize>() * 2;
    let (x, y) = (port.surface(bytes).map_err(place)?, port.surface(bytes).map_err(place)?);
    port.access(&x, &mut |data| {
        data.as_chunks_mut::<2>().0.iter_mut().for_each(|half| *half = f16::ONE.to_le_bytes());
    })
    .map_err(place)?;
    let request = port.request(&[&x], &[&y]).map_err(place)?;
    programs.evaluate(entry, &request)?;
    let mut result = Vec::new();
    port.access(&y, &mut |data| result.extend_from_slice(data)).map_err(place)?;
    Ok(result)
}
