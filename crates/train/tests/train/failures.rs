//! Numbers that are not finite, loss scaling, and runs that end early.

use std::ops::ControlFlow;

use cpu::CpuBackend;
use exec::Tensors;
use mil::eval::Arithmetic;
use rigel_train::{
    BatchSource, Checkpoints, Config, EarlyStop, End, Evaluation, LossScaling, Observer, Result,
    Schedule, Step, TrainError, Trainer, checkpoint,
};
use tensor::DType;
use testkit::InterpreterBackend;

use crate::common::{
    ADAMW, Cycle, SGD, as_type, config, gradients, linear, loader, model, slope, weights,
};

fn interpreter() -> InterpreterBackend {
    InterpreterBackend::new(Arithmetic::F32)
}

/// A step that would make weights infinite leaves them, and the last checkpoint, as they are.
#[test]
fn nan_stops_the_run_and_keeps_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints {
        dir: dir.path().join("checkpoints"),
        every: Some(1),
        keep: 2,
        settings: serde_json::Value::Null,
    };
    let good = slope(&[0.5; 1000]);
    let mut bad = vec![0.5; 1000];
    bad[17] = f32::NAN;
    let mut data = Cycle::new(vec![good.clone(), good.clone(), slope(&bad)]);
    let config = config(ADAMW, 0.0, 0.1, 10);
    let mut trainer = Trainer::new(&interpreter(), linear(DType::F32, false), config, 1).unwrap();
    let error = trainer.run(&mut data, None, Some(&checkpoints), &mut rigel_train::Silent);
    let error = error.unwrap_err();
    let TrainError::NotFinite { step, what, .. } = &error else { panic!("{error}") };
    assert_eq!((*step, what.as_str()), (3, "the loss is NaN"));
    assert_eq!(trainer.progress().step, 2);
    let last = checkpoint::latest(&checkpoints.dir).unwrap().unwrap();
    assert_eq!(last.saved.progress.step, 2);
    assert_eq!(last.weights["weight"].as_slice::<f32>().unwrap(), weights(&trainer));
}

/// So does a held-out loss that is no number, which a checkpoint could not hold.
#[test]
fn an_infinite_evaluation_stops_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints {
        dir: dir.path().join("checkpoints"),
        every: Some(1),
        keep: 2,
        settings: serde_json::Value::Null,
    };
    let config =
        Config { evaluate_every: Some(2), evaluate_batches: Some(2), ..config(SGD, 0.0, 1e-3, 10) };
    let mut data = Cycle::new(vec![slope(&[0.5; 1000])]);
    let mut nothing = slope(&[f32::NAN; 1000]);
    nothing.targets = 0;
    let mut held_out = Cycle::new(vec![nothing, slope(&[3e38; 1000])]);
    let mut trainer = Trainer::new(&interpreter(), linear(DType::F32, false), config, 1).unwrap();
    let mut watcher = Watcher::default();
    // One that begins is evaluated before anything else.
    let run = trainer.run(&mut data, Some(&mut held_out), Some(&checkpoints), &mut watcher);
    assert!(matches!(run.unwrap_err(), TrainError::NotFinite { step: 0, .. }));
    trainer.step(&mut data).unwrap();
    trainer.save(&checkpoints, &data).unwrap();
    let run = trainer.run(&mut data, Some(&mut held_out), Some(&checkpoints), &mut watcher);
    let error = run.unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 2, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("the held-out loss is ") && text.contains("first made by"), "{text}");
    assert!(watcher.evaluations.is_empty() && trainer.progress().best.is_none());
    let last = checkpoint::latest(&checkpoints.dir).unwrap().unwrap();
    assert_eq!(last.saved.progress.step, 1);
}

/// The operation is named: here a product of finite numbers that is too large.
#[test]
fn the_operation_is_named() {
    let mut data = Cycle::new(vec![slope(&[3e38; 1000])]);
    let config = config(SGD, 0.0, 1.0, 10);
    let mut trainer =
        Trainer::new(&interpreter(), linear(DType::F32, false), config.clone(), 1).unwrap();
    let before = weights(&trainer);
    let error = trainer.step(&mut data).unwrap_err().to_string();
    assert!(error.starts_with("step 1: the loss is "), "{error}");
    assert!(error.contains("first made by") && error.contains("reduce_sum"), "{error}");
    assert_eq!(weights(&trainer), before);

    // Finite gradients whose squares are not.
    let mut data = Cycle::new(vec![slope(&[1e30; 1000])]);
    let mut trainer = Trainer::new(&interpreter(), linear(DType::F32, false), config, 1).unwrap();
    let error = trainer.step(&mut data).unwrap_err().to_string();
    assert_eq!(error, "step 1: the gradient of weight is not finite");
}

/// Weights that a step made infinite are not saved.
#[test]
fn infinite_weights_are_not_saved() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints {
        dir: dir.path().to_owned(),
        every: Some(1),
        keep: 2,
        settings: serde_json::Value::Null,
    };
    let mut data = Cycle::new(vec![slope(&[1e10; 1000])]);
    let config = config(SGD, 0.0, 1e30, 10);
    let mut trainer = Trainer::new(&interpreter(), linear(DType::F32, false), config, 1).unwrap();
    let error = trainer.run(&mut data, None, Some(&checkpoints), &mut rigel_train::Silent);
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "step 1: weight is not finite; it is not saved");
    assert!(checkpoint::latest(dir.path()).unwrap().is_none());
}

/// Where they are so already, that is said, and no operation is sought.
#[test]
fn infinite_weights_are_named() {
    let mut data = Cycle::new(vec![slope(&[1e10; 1000])]);
    let config = config(SGD, 0.0, 1e30, 10);
    let mut trainer = Trainer::new(&interpreter(), linear(DType::F32, false), config, 1).unwrap();
    trainer.step(&mut data).unwrap();
    let error = trainer.step(&mut data).unwrap_err().to_string();
    assert!(error.starts_with("step 2: the loss is "), "{error}");
    assert!(error.ends_with(", as weight itself is not finite"), "{error}");
}

/// The scale falls until gradients in half precision are finite, and rises again; it changes nothing else.
#[test]
fn loss_scaling() {
    let scaling = LossScaling { initial: 65536.0, interval: 2, ..LossScaling::default() };
    let scaled = |scaling| Config { loss_scaling: Some(scaling), ..config(SGD, 0.0, 0.1, 10) };
    let mut batch = slope(&[2.0; 1000]);
    batch.inputs.insert("slope".to_owned(), as_type(DType::F16, &[2.0; 1000]));
    let fp16 = InterpreterBackend::new(Arithmetic::Fp16);
    let run = |config: Config, with: bool| {
        let gradients = linear(DType::F16, with);
        let mut trainer = Trainer::new(&fp16, gradients, config, 1).unwrap();
        let mut data = Cycle::new(vec![batch.clone()]);
        let steps: Vec<Step> = (0..5).map(|_| trainer.step(&mut data).unwrap()).collect();
        (steps, weights(&trainer), data.next)
    };
    let (steps, with, batches) = run(scaled(scaling), true);
    let scales: Vec<f32> = steps.iter().map(|s| s.loss_scale.unwrap()).collect();
    // 2 * 32768 is infinite in half precision.
    assert_eq!(scales, [16384.0, 16384.0, 16384.0, 16384.0, 16384.0]);
    assert_eq!(batches, 5, "no batch is lost");
    assert_eq!(with, run(config(SGD, 0.0, 0.1, 10), false).1);

    let hopeless = LossScaling { min: 32768.0, ..scaling };
    let gradients = linear(DType::F16, true);
    let mut trainer = Trainer::new(&fp16, gradients, scaled(hopeless), 1).unwrap();
    let error = trainer.step(&mut Cycle::new(vec![batch])).unwrap_err().to_string();
    assert!(error.starts_with("step 1: the gradient of weight is not finite"), "{error}");
}

/// Several batches count by their targets, as one batch of all of them would.
#[test]
fn accumulation_weighs_by_targets() {
    let mut batches = [slope(&[1.0; 1000]), slope(&[4.0; 1000])];
    batches[1].targets = 2;
    let accumulate = Config { accumulation: 2, ..config(SGD, 0.0, 1.0, 10) };
    let gradients = || linear(DType::F32, false);
    let mut two = Trainer::new(&interpreter(), gradients(), accumulate, 1).unwrap();
    two.step(&mut Cycle::new(batches.to_vec())).unwrap();
    let one = config(SGD, 0.0, 1.0, 10);
    let mut one = Trainer::new(&interpreter(), gradients(), one, 1).unwrap();
    one.step(&mut Cycle::new(vec![slope(&[3.0; 1000])])).unwrap();
    assert_eq!(weights(&two), weights(&one));
    assert_eq!(two.progress().tokens, 2);
}

#[derive(Default)]
struct Watcher {
    evaluations: Vec<Evaluation>,
    steps: u64,
    stop_at: Option<u64>,
}

impl Observer for Watcher {
    fn step(&mut self, step: &Step) -> Result<ControlFlow<()>> {
        self.steps = step.step;
        let stop = self.stop_at == Some(step.step);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.evaluations.push(*evaluation);
        Ok(())
    }
}

/// On random ids there is nothing to learn but the ids of the training part.
#[test]
fn evaluation_and_early_stop() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        evaluate_every: Some(2),
        early_stop: Some(EarlyStop { patience: 1, min_improvement: 0.0 }),
        ..config(ADAMW, 0.0, 0.02, 400)
    };
    let gradients = gradients(&model("llama"), true);
    let backend = CpuBackend::new(2);
    let (data, held_out) = crate::common::dataset(dir.path(), 40).split(0.2).unwrap();
    let packing = crate::common::packing(1);
    let mut data = rigel_train::data::Loader::new(data, packing.clone()).unwrap();
    let packing = rigel_train::data::Packing { seed: None, ..packing };
    let mut held_out = rigel_train::data::Loader::held_out(held_out, packing).unwrap();
    let mut trainer = Trainer::new(&backend, gradients, config, 2).unwrap();
    let first = trainer.evaluate(&mut held_out).unwrap();
    let second = trainer.evaluate(&mut held_out).unwrap();
    assert_eq!((first.loss, first.targets), (second.loss, second.targets));
    let mut watcher = Watcher::default();
    let at = dir.path().join("checkpoints");
    let checkpoints =
        Checkpoints { dir: at.clone(), every: Some(1), keep: 1, settings: serde_json::Value::Null };
    let all = Some(&checkpoints);
    let end = trainer.run(&mut data, Some(&mut held_out), all, &mut watcher).unwrap();
    assert_eq!(end, End::NoImprovement);
    let losses: Vec<f64> = watcher.evaluations.iter().map(|e| e.loss).collect();
    assert_eq!((watcher.evaluations[0].step, losses[0]), (0, first.loss));
    let (best, last) = losses.split_at(losses.len() - 1);
    let least = best.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(last.iter().all(|&l| l >= least) && best.last() == Some(&least), "{losses:?}");
    let (step, loss) = trainer.progress().best.unwrap();
    assert_eq!(loss, least);
    // The last one is kept, and that of the best evaluation, from which its loss comes again.
    let last = trainer.progress().step;
    let kept: Vec<u64> = checkpoint::list(&at).unwrap().into_iter().map(|(step, _)| step).collect();
    assert_eq!((kept, last), (vec![step, step + 2], step + 2));
    let best = checkpoint::of_step(&at, step).unwrap().unwrap();
    trainer.restore(&best, &mut data).unwrap();
    assert_eq!(trainer.evaluate(&mut held_out).unwrap().loss, least);
    assert!(checkpoint::of_step(&at, step + 1).unwrap().is_none());
}

/// Ctrl-C in other words: the run ends with a checkpoint.
#[test]
fn an_observer_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let gradients = gradients(&model("llama"), true);
    let config = config(ADAMW, 0.0, 0.01, 10);
    let mut trainer = Trainer::new(&CpuBackend::new(1), gradients, config, 1).unwrap();
    let mut watcher = Watcher { stop_at: Some(3), ..Watcher::default() };
    let checkpoints = Checkpoints {
        dir: dir.path().join("checkpoints"),
        every: None,
        keep: 1,
        settings: serde_json::Value::Null,
    };
    let mut data = loader(dir.path());
    let end = trainer.run(&mut data, None, Some(&checkpoints), &mut watcher).unwrap();
    assert_eq!((end, watcher.steps), (End::Stopped, 3));
    let last = checkpoint::latest(&checkpoints.dir).unwrap().unwrap();
    assert_eq!(last.saved.position, data.position());
}

/// Leaves the evaluation after step `at` before its second batch.
struct Leaver {
    at: u64,
    now: u64,
    asked: u32,
    evaluated: Vec<u64>,
}

impl Observer for Leaver {
    fn step(&mut self, step: &Step) -> Result<ControlFlow<()>> {
        self.now = step.step;
        Ok(ControlFlow::Continue(()))
    }

    fn is_ending(&mut self) -> bool {
        self.asked += u32::from(self.now == self.at);
        self.asked > 1
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.evaluated.push(evaluation.step);
        Ok(())
    }
}

/// An evaluation that was left is made up for when the run goes on, which then is as one that was not broken off.
#[test]
fn an_evaluation_that_was_left_is_made_up_for() {
    let run = |at: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints {
            dir: dir.path().join("checkpoints"),
            every: None,
            keep: 1,
            settings: serde_json::Value::Null,
        };
        let all = Some(&checkpoints);
        let config = Config { evaluate_every: Some(2), ..config(SGD, 0.0, 1e-3, 4) };
        let config = Config { evaluate_batches: Some(3), ..config };
        let new =
            || Trainer::new(&interpreter(), linear(DType::F32, false), config.clone(), 1).unwrap();
        let source = || Cycle::new(vec![slope(&[0.5; 1000]), slope(&[0.25; 1000])]);
        let (mut trainer, mut data, mut held_out) = (new(), source(), source());
        let at = at.unwrap_or(u64::MAX);
        let mut leaver = Leaver { at, now: 0, asked: 0, evaluated: Vec::new() };
        let mut end = trainer.run(&mut data, Some(&mut held_out), all, &mut leaver).unwrap();
        if at != u64::MAX {
            assert_eq!((end, trainer.progress().step), (End::Stopped, at));
            (trainer, data, held_out) = (new(), source(), source());
            if let Some(last) = checkpoint::latest(&checkpoints.dir).unwrap() {
                assert!(last.saved.progress.unevaluated);
                trainer.restore(&last, &mut data).unwrap();
            }
            leaver.at = u64::MAX;
            leaver.asked = 0;
            end = trainer.run(&mut data, Some(&mut held_out), all, &mut leaver).unwrap();
        }
        assert_eq!(end, End::Finished);
        let last = checkpoint::latest(&checkpoints.dir).unwrap().unwrap();
        (leaver.evaluated, last.saved, weights(&trainer))
    };
    let whole = run(None);
    assert_eq!(whole.0, [0, 2, 4]);
    for at in [0, 2, 4] {
        assert_eq!(run(Some(at)), whole, "left at {at}");
    }
}

/// What cannot be trained is said before anything runs.
#[test]
fn configurations_that_do_not_fit() {
    let new = |config: Config, scaled| {
        let trainer = Trainer::new(&interpreter(), linear(DType::F32, scaled), config, 1);
        trainer.err().map_or_else(String::new, |e| e.to_string())
    };
    let good = config(ADAMW, 0.0, 0.1, 1);
    assert_eq!(new(good.clone(), false), "");
    assert!(new(good.clone(), true).contains("loss scaling"));
    let scaled = Config { loss_scaling: Some(LossScaling::default()), ..good.clone() };
    assert!(new(scaled, false).contains("loss scaling"));
    assert!(new(Config { accumulation: 0, ..good.clone() }, false).contains("at least one batch"));
    assert!(new(config(ADAMW, -1.0, 0.1, 1), false).contains("out of range"));
    for schedule in [
        Schedule { peak: f64::NAN, ..good.schedule },
        Schedule { peak: -1e-3, ..good.schedule },
        Schedule { peak: f64::INFINITY, ..good.schedule },
        Schedule { floor: f64::NAN, ..good.schedule },
        Schedule { floor: -0.1, ..good.schedule },
        Schedule { floor: 1.1, ..good.schedule },
        Schedule { warmup: 2, ..good.schedule },
    ] {
        let error = new(Config { schedule, ..good.clone() }, false);
        assert!(error.starts_with("a number of the schedule is out of range"), "{error}");
    }
    let scaling = LossScaling::default();
    for scaling in [
        LossScaling { initial: f32::NAN, ..scaling },
        LossScaling { initial: f32::INFINITY, ..scaling },
        LossScaling { initial: 0.5, ..scaling },
        LossScaling { growth: 0.5, ..scaling },
        LossScaling { growth: f32::NAN, ..scaling },
        LossScaling { backoff: 1.0, ..scaling },
        LossScaling { backoff: 0.0, ..scaling },
        LossScaling { interval: 0, ..scaling },
        LossScaling { min: 0.0, ..scaling },
        LossScaling { max: f32::INFINITY, ..scaling },
    ] {
        let error = new(Config { loss_scaling: Some(scaling), ..good.clone() }, true);
        assert!(error.starts_with("a number of the loss scaling is out of range"), "{error}");
    }
    for min_improvement in [f64::NAN, -1.0] {
        let early_stop = Some(EarlyStop { patience: 1, min_improvement });
        let error = new(Config { early_stop, ..good.clone() }, false);
        assert!(error.starts_with("the least improvement is"), "{error}");
    }
    let early_stop = Some(EarlyStop { patience: 0, min_improvement: 0.0 });
    let error = new(Config { early_stop, ..good.clone() }, false);
    assert!(error.contains("the patience of early stop is 0"), "{error}");
    let none = Config { evaluate_batches: Some(0), ..good.clone() };
    assert!(new(none, false).contains("an evaluation takes at least one batch"));
    let mut trainer = Trainer::new(&interpreter(), linear(DType::F32, false), good, 1).unwrap();
    let mut batch = slope(&[1.0; 1000]);
    batch.inputs = Tensors::new();
    let error = trainer.step(&mut Cycle::new(vec![batch])).unwrap_err().to_string();
    assert!(error.contains("slope"), "{error}");
    let endless = &mut Cycle::new(vec![slope(&[1.0; 1000])]);
    let error = trainer.evaluate(endless).unwrap_err().to_string();
    assert!(error.contains("no end"), "{error}");
}
