//! Cases of the language-model dialect.

use mil::{Literal, OpKind};
use tensor::DType;

use crate::{Case, case};

pub(super) fn cases() -> Vec<Case> {
    vec![case("rms_norm", |c| {
        let (x, w) = (c.float("x", &[1, 3, 8]), c.weight("norm", DType::F32, &[8])?);
        let norm = c.f.op(OpKind::LlmRmsNorm).arg("x", x).arg("weight", w);
        Ok(vec![norm.arg("epsilon", Literal::scalar(1e-5f32)).name("y").result()?])
    })]
}
