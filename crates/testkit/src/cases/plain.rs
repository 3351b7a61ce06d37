//! Cases of plain MIL operations.

use mil::OpKind;

use crate::{Case, case};

pub(super) fn cases() -> Vec<Case> {
    vec![case("add_broadcast", |c| {
        let (x, y) = (c.float("x", &[2, 3, 4]), c.float("y", &[3, 1]));
        Ok(vec![c.f.op(OpKind::Add).arg("x", x).arg("y", y).name("sum").result()?])
    })]
}
