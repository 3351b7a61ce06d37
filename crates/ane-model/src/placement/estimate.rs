//! Estimated time of an operation on each backend, as a fit to Apple's published estimates.

use std::collections::BTreeMap;

use mil::{OpKind, Type};

use super::PlacementError;
use crate::chip::{Chip, Fact, Unit};
use crate::rules::OpCx;
use crate::rules::elementwise;

/// Estimated time of one operation on each backend. Not what it takes: what the segmenter compares.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimates {
    /// On the Neural Engine.
    pub ane_ms: f64,
    /// On the CPU by BNNS.
    pub bnns_ms: f64,
    /// On the CPU by the older kernels.
    pub classic_ms: f64,
}

/// A backend's speed: the slower of arithmetic and memory counts.
#[derive(Clone, Copy)]
struct Roofline {
    gflops: f64,
    gbps: f64,
}

impl Roofline {
    fn ms(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.gflops).max(bytes / self.gbps) / 1e6
    }
}

/// What estimates are made with.
pub(super) struct Rates<'c> {
    ane: Roofline,
    bnns: Roofline,
    classic: Roofline,
    ane_ops: &'c BTreeMap<String, Fact<f64>>,
    cpu_ops: &'c BTreeMap<String, Fact<f64>>,
}

impl<'c> Rates<'c> {
    pub(super) fn of(chip: &'c Chip) -> Result<Self, PlacementError> {
        let c = &chip.coreml;
        let get = |fact: &Option<Fact<f64>>, field| {
            let unknown = || PlacementError::Unknown { chip: chip.name.clone(), field };
            fact.as_ref().map(|f| f.value).ok_or_else(unknown)
        };
        Ok(Rates {
            ane: Roofline {
                gflops: get(&c.ane_tflops, "ane_tflops")? * 1e3,
                gbps: get(&c.ane_gbps, "ane_gbps")?,
            },
            bnns: Roofline {
                gflops: get(&c.bnns_gflops, "bnns_gflops")?,
                gbps: get(&c.bnns_gbps, "bnns_gbps")?,
            },
            classic: Roofline {
                gflops: get(&c.classic_gflops, "classic_gflops")?,
                gbps: get(&c.classic_gbps, "classic_gbps")?,
            },
            ane_ops: &chip.estimates_ane,
            cpu_ops: &chip.estimates_cpu,
        })
    }

    pub(super) fn estimate(&self, op: &OpCx<'_>) -> Estimates {
        let function = op.cx.function;
        let results: Vec<Type> = op.op.outputs.iter().map(|&v| function.ty(v).clone()).collect();
        let cost = op.kind().def().cost(&op.view(), &results);
        let key = key(op);
        let own = |ops: &BTreeMap<String, Fact<f64>>| own_ms(ops.get(key)?, cost.flops, cost.bytes);
        let cpu = own(self.cpu_ops);
        Estimates {
            ane_ms: own(self.ane_ops).unwrap_or_else(|| self.ane.ms(cost.flops, cost.bytes)),
            bnns_ms: cpu.unwrap_or_else(|| self.bnns.ms(cost.flops, cost.bytes)),
            classic_ms: cpu
                .map(|ms| ms * self.bnns.gflops / self.classic.gflops)
                .unwrap_or_else(|| self.classic.ms(cost.flops, cost.bytes)),
        }
    }
}

/// Time at a rate of its own, whose unit says what it is a rate of.
fn own_ms(rate: &Fact<f64>, flops: f64, bytes: f64) -> Option<f64> {
    match rate.unit {
        Unit::GigabytesPerSecond => Some(bytes / rate.value / 1e6),
        Unit::GigaOps => Some(flops / rate.value / 1e6),
        _ => None,
    }
}

/// The name under which a chip file has an operation's own rate.
fn key(op: &OpCx<'_>) -> &'static str {
    let kind = op.kind();
    if kind == OpKind::Conv {
        let taps = op.shape("weight").and_then(|w| Some(w.get(2..)?.iter().product::<u64>()));
        return if taps == Some(1) { "conv_1x1" } else { "conv" };
    }
    if elementwise(kind) { "relu" } else { kind.name() }
}
