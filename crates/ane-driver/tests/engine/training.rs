//! Training on emulated machines against the CPU: gradients, and losses of fifty steps by each way in which
//! weights reach the engine.

use std::fs;
use std::sync::Arc;

use ane_emu::Arithmetic;
use ane_model::Chip;
use ane_model::chip::Reload;
use cpu::CpuBackend;
use exec::{Backend, Runnable, State, Tensors};
use llm::{Batch, Model, interface};
use passes::grad::{By, Gradients, LOSS_SCALE, Request, differentiate};
use rigel_ane_driver::{ConstantInputs, Stats, Update};
use tensor::Tensor;

use crate::common::{Rig, Setup, switch};

const TOKENS: usize = 32;
const SCALE: f32 = 64.0;

/// A Llama of two layers with first values.
fn small() -> Model {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96,
        "vocab_size": 64, "max_position_embeddings": TOKENS, "tie_word_embeddings": true,
        "rms_norm_eps": 1e-5,
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    llm::initialise(dir.path(), 1, dir.path().join("model")).unwrap();
    Model::load(dir.path().join("model")).unwrap()
}

fn gradients(model: &Model) -> Gradients {
    let batch = Batch { sequences: 1, tokens: TOKENS, documents: false };
    let request = Request {
        function: interface::LOSS,
        loss: interface::LOSS,
        by: By::Weights(&|_| true),
        checkpoints: &[],
        scaled: true,
    };
    differentiate(&model.loss_program(batch).unwrap(), &request).unwrap()
}

/// A batch: a pattern that can be learned.
fn batch(step: usize) -> Tensors {
    let ids: Vec<i32> = (0..=TOKENS).map(|i| ((i + step) * (i + step + 3) % 17) as i32).collect();
    let row = |ids: &[i32]| Tensor::from_slice(&[1, TOKENS], ids).unwrap();
    let positions: Vec<i32> = (0..TOKENS as i32).collect();
    Tensors::from([
        (interface::IDS.to_owned(), row(&ids[..TOKENS])),
        (interface::TARGETS.to_owned(), row(&ids[1..])),
        (interface::POSITIONS.to_owned(), Tensor::from_slice(&[TOKENS], &positions).unwrap()),
        (LOSS_SCALE.to_owned(), Tensor::from_slice(&[], &[SCALE]).unwrap()),
    ])
}

/// Gradient descent by hand.
struct Descent {
    gradients: Gradients,
    runnable: Box<dyn Runnable>,
    state: State,
    weights: Tensors,
}

impl Descent {
    fn new(gradients: &Gradients, runnable: Box<dyn Runnable>) -> Self {
        let weight = |p: &passes::grad::Parameter| {
            let weight = gradients.program.weights.get(p.weight.unwrap()).unwrap();
            (p.input.clone(), weight.tensor.clone())
        };
        let weights = gradients.parameters.iter().map(weight).collect();
        let state = runnable.new_state().unwrap();
        Descent { gradients: gradients.clone(), runnable, state, weights }
    }

    fn outputs(&mut self, step: usize) -> Tensors {
        let mut inputs = batch(step);
        inputs.extend(self.weights.clone());
        self.runnable.run(&self.gradients.function, &inputs, &mut self.state).unwrap()
    }

    fn step(&mut self, step: usize) -> f32 {
        let outputs = self.outputs(step);
        for p in &self.gradients.parameters {
            let weight = self.weights.get_mut(&p.input).unwrap();
            let gradient = outputs[&p.gradient].as_slice::<f32>().unwrap();
            let values = weight.as_slice::<f32>().unwrap().iter().zip(gradient);
            let values: Vec<f32> = values.map(|(w, g)| w - 0.5 * g / SCALE).collect();
            *weight = Tensor::from_slice(weight.shape(), &values).unwrap();
        }
        outputs[interface::LOSS].as_slice::<f32>().unwrap()[0]
    }

    fn losses(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|step| self.step(step)).collect()
    }
}

/// How weights reach the engine.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Inputs,
    /// As constants; the self-test decides if nothing is said.
    Constants(Option<Update>),
}

const RECOMPILED: Way = Way::Constants(Some(Update::Recompile));
const RELOADED: Way = Way::Constants(Some(Update::Delta));

fn setup(arithmetic: Arithmetic) -> Setup {
    let mut setup = Setup::new("m4", arithmetic).with(|c| {
        // Fifty steps that compile are more than one process can; starting again is not this test's.
        c.runtime.compiles = None;
    });
    setup.functions = None;
    setup
}

fn on_engine(gradients: &Gradients, mut setup: Setup, way: Way, count: usize) -> (Vec<f32>, Stats) {
    if let Way::Constants(update) = way {
        setup.update = update;
    }
    let Rig { backend, directory, port } = setup.rig();
    let backend = Arc::new(backend);
    let program = &gradients.program;
    let runnable = match way {
        Way::Inputs => backend.prepare(program).unwrap(),
        Way::Constants(_) => {
            let inputs = gradients.parameters.iter().map(|p| p.input.clone()).collect();
            ConstantInputs::new(backend.clone(), inputs).prepare(program).unwrap()
        }
    };
    let losses = Descent::new(gradients, runnable).losses(count);
    let stats = backend.stats();
    drop(backend);
    let usage = exec::port::Port::usage(port.as_ref());
    assert_eq!((usage.models, usage.loaded, usage.surfaces), (0, 0, 0));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    (losses, stats)
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x - y).abs() / y.abs()).fold(0.0, f32::max)
}

#[test]
fn gradients_are_the_cpu_s() {
    let gradients = gradients(&small());
    let cpu = CpuBackend::new(1).prepare(&gradients.program).unwrap();
    let wanted = Descent::new(&gradients, cpu).outputs(0);
    let rig = setup(Arithmetic::Exact).rig();
    let engine = rig.backend.prepare(&gradients.program).unwrap();
    let found = Descent::new(&gradients, engine).outputs(0);
    for (name, wanted) in &wanted {
        let [a, b] = [&found[name], wanted].map(|t| t.as_slice::<f32>().unwrap());
        let most = b.iter().fold(0f32, |m, x| m.max(x.abs()));
        let worst = a.iter().zip(b).fold(0f32, |m, (x, y)| m.max((x - y).abs()));
        assert!(worst <= 0.01 * most, "{name}: {worst} of {most}");
    }
}

/// The machine on which reloading a weight file has an effect or none.
fn reloading(effect: Reload) -> impl Fn(&mut Chip) {
    move |c| switch!(c, delta_reload, effect)
}

/// Losses follow the CPU's by every way, in exact and in half-precision arithmetic.
#[test]
fn losses_follow_the_cpu() {
    let gradients = gradients(&small());
    let cpu = CpuBackend::new(1).prepare(&gradients.program).unwrap();
    let wanted = Descent::new(&gradients, cpu).losses(50);
    assert!(wanted[49] < 0.7 * wanted[0], "{wanted:?}");
    for way in
        [Way::Inputs, Way::Constants(Some(Update::Recompile)), Way::Constants(Some(Update::Delta))]
    {
        for arithmetic in [Arithmetic::Exact, Arithmetic::Fp16] {
            let setup = setup(arithmetic).with(reloading(Reload::Applied));
            let (losses, stats) = on_engine(&gradients, setup, way, 50);
            let worst = apart(&losses, &wanted);
            assert!(worst < 0.01, "{way:?} {arithmetic:?}: {worst}");
            // Once, at every step, or once and then by reloading.
            let programs = stats.dispatches / 50;
            let compiles = if way == RECOMPILED { 50 * programs } else { programs };
            let reloads = if way == RELOADED { 49 * programs } else { 0 };
            assert_eq!((stats.compilations, stats.reloads), (compiles, reloads), "{way:?}");
        }
    }
}

/// A step whose programs cannot be compiled fails, and so does the next: no loss is of old weights.
#[test]
fn a_failed_update_leaves_nothing_old() {
    let gradients = gradients(&small());
    let mut setup = Setup::new("m4", Arithmetic::Fp16).with(|c| {
        c.runtime.compiles = c.runtime.compiles.take().map(|fact| fact.with(15));
    });
    setup.functions = None;
    setup.update = Some(Update::Recompile);
    let rig = setup.rig();
    let backend = Arc::new(rig.backend);
    let inputs = gradients.parameters.iter().map(|p| p.input.clone()).collect();
    let runnable = ConstantInputs::new(backend, inputs).prepare(&gradients.program).unwrap();
    let mut descent = Descent::new(&gradients, runnable);
    descent.step(0);
    for _ in 0..2 {
        let mut inputs = batch(1);
        inputs.extend(descent.weights.clone());
        let Descent { gradients, runnable, state, .. } = &mut descent;
        let error = runnable.run(&gradients.function, &inputs, state).unwrap_err().to_string();
        assert!(error.contains("start it again"), "{error}");
    }
}

#[test]
fn the_engines_arithmetic_learns_too() {
    let gradients = gradients(&small());
    let (losses, _) = on_engine(&gradients, setup(Arithmetic::Engine), Way::Inputs, 50);
    assert!(losses.iter().all(|l| l.is_finite()));
    assert!(losses[49] < 0.7 * losses[0], "{losses:?}");
}

/// The self-test takes reloading where it has an effect. Where it has none, it finds out, and weights are
/// compiled in: with reloading trusted, losses would not follow.
#[test]
fn reloading_that_does_nothing_is_found_out() {
    let gradients = gradients(&small());
    let with = |effect, update| {
        let setup = setup(Arithmetic::Fp16).with(reloading(effect));
        on_engine(&gradients, setup, Way::Constants(update), 12)
    };
    let (wanted, _) = on_engine(&gradients, setup(Arithmetic::Fp16), Way::Inputs, 12);
    for (effect, reloads) in
        [(Reload::Applied, true), (Reload::Ignored, false), (Reload::Refused, false)]
    {
        let (losses, stats) = with(effect, None);
        assert!(apart(&losses, &wanted) < 0.01, "{effect:?}: {losses:?} {wanted:?}");
        assert_eq!(stats.reloads > 0, reloads, "{effect:?}");
    }
    let (losses, _) = with(Reload::Ignored, Some(Update::Delta));
    assert!(apart(&losses, &wanted) > 0.05, "{losses:?} {wanted:?}");
}
