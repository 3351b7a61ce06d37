//! Processes that train together, here as two threads: they must do what one does with the batches of both.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use cpu::CpuBackend;
use exec::{Backend, Fallback, Runnable, State, Tensors};
use llm::{Batch as Sizes, Model, interface};
use mil::Program;
use mil::eval::Arithmetic;
use passes::grad::Gradients;
use rigel_train::data::{Dataset, Loader, Packing, Position, TokenWriter};
use rigel_train::{
    Batch, BatchSource, Checkpoints, Config, EarlyStop, End, Evaluation, Exchange, LossScaling,
    Observer, OptimizerConfig, Result, Silent, Step, TrainError, Trainer, checkpoint,
};
use tensor::{DType, Tensor};
use testkit::InterpreterBackend;

use crate::common::{
    ADAMW, Cycle, SGD, as_type, by_weights, config, linear, model, names, slope, weights,
};

/// One way there and one back.
struct Line<T>(Sender<Vec<T>>, Mutex<Receiver<Vec<T>>>);

impl<T> Line<T> {
    fn ends() -> [Self; 2] {
        let (there, back) = (mpsc::channel(), mpsc::channel());
        [Line(there.0, Mutex::new(back.1)), Line(back.0, Mutex::new(there.1))]
    }

    fn send(&self, values: Vec<T>) -> Result<()> {
        self.0.send(values).map_err(|_| gone())
    }

    fn receive(&self) -> Result<Vec<T>> {
        self.1.lock().unwrap().recv().map_err(|_| gone())
    }
}

fn gone() -> TrainError {
    TrainError::Exchange("the other is gone".to_owned())
}

/// What connects two threads.
struct Pair {
    rank: usize,
    numbers: Line<f64>,
    buckets: Line<f32>,
    own: Mutex<VecDeque<Vec<f32>>>,
    /// Whether the program runs, and how many buckets were started while it did and while it did not.
    running: AtomicBool,
    started: [AtomicUsize; 2],
}

/// A CPU that tells when it runs.
struct Watched(CpuBackend, Arc<Pair>);

struct WatchedRun(Box<dyn Runnable>, Arc<Pair>);

impl Backend for Watched {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn check(&self, program: &Program) -> Vec<Fallback> {
        self.0.check(program)
    }

    fn prepare(&self, program: &Program) -> exec::Result<Box<dyn Runnable>> {
        Ok(Box::new(WatchedRun(self.0.prepare(program)?, self.1.clone())))
    }
}

impl Runnable for WatchedRun {
    fn new_state(&self) -> exec::Result<State> {
        self.0.new_state()
    }

    fn run(&mut self, name: &str, inputs: &Tensors, state: &mut State) -> exec::Result<Tensors> {
        self.0.run(name, inputs, state)
    }

    fn run_giving(
        &mut self,
        name: &str,
        inputs: &Tensors,
        state: &mut State,
        take: &mut dyn FnMut(String, Tensor),
    ) -> exec::Result<()> {
        self.1.running.store(true, Ordering::Relaxed);
        let done = self.0.run_giving(name, inputs, state, take);
        self.1.running.store(false, Ordering::Relaxed);
        done
    }

    fn fallbacks(&self) -> &[Fallback] {
        self.0.fallbacks()
    }
}

impl Exchange for Pair {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        2
    }

    fn bucket_len(&self) -> usize {
        1000
    }

    fn start(&self, bucket: Vec<f32>) -> Result<()> {
        let running = self.running.load(Ordering::Relaxed);
        self.started[usize::from(running)].fetch_add(1, Ordering::Relaxed);
        self.buckets.send(bucket.clone())?;
        self.own.lock().unwrap().push_back(bucket);
        Ok(())
    }

    fn finish(&self) -> Result<Vec<f32>> {
        let mut sum = self.own.lock().unwrap().pop_front().unwrap();
        let other = self.buckets.receive()?;
        assert_eq!(sum.len(), other.len());
        sum.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        Ok(sum)
    }

    fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        self.numbers.send(numbers.to_vec())?;
        let other = self.numbers.receive()?;
        assert_eq!(numbers.len(), other.len());
        numbers.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        Ok(())
    }
}

/// Does `work` in two threads.
fn together<T: Send>(work: impl Fn(usize, Arc<Pair>) -> T + Sync) -> [T; 2] {
    let (numbers, buckets) = (Line::ends(), Line::ends());
    let lines = numbers.into_iter().zip(buckets).zip(0..);
    thread::scope(|scope| {
        let threads = lines.map(|((numbers, buckets), rank)| {
            let (own, running, started) = Default::default();
            let pair = Arc::new(Pair { rank, numbers, buckets, own, running, started });
            let work = &work;
            scope.spawn(move || work(rank, pair))
        });
        let threads: Vec<_> = threads.collect();
        let results: Vec<T> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        results.try_into().unwrap_or_else(|_| unreachable!())
    })
}

/// Documents of which a random part is to be predicted.
fn answers(dir: &Path) -> Dataset {
    let path = dir.join("answers.bin");
    let mut random = fastrand::Rng::with_seed(5);
    let mut writer = TokenWriter::new(&path, 96, None).unwrap();
    for _ in 0..60 {
        let ids: Vec<u32> = (0..random.usize(2..30)).map(|_| random.u32(0..96)).collect();
        let share = random.f32();
        let counts: Vec<bool> = ids.iter().map(|_| random.f32() < share).collect();
        writer.document(&ids, Some(&counts)).unwrap();
    }
    writer.finish().unwrap();
    Dataset::open(&[path], 96).unwrap()
}

/// Everything that a run tells.
#[derive(Default)]
struct Record {
    steps: Vec<Step>,
    evaluations: Vec<Evaluation>,
    saved: Vec<u64>,
    stop_at: Option<u64>,
}

impl Observer for Record {
    fn step(&mut self, step: &Step) -> Result<ControlFlow<()>> {
        self.steps.push(step.clone());
        let stop = self.stop_at == Some(step.step);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluated(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.evaluations.push(*evaluation);
        Ok(())
    }

    fn saved(&mut self, step: u64, _: &Path) -> Result<()> {
        self.saved.push(step);
        Ok(())
    }
}

const TOKENS: usize = 12;

fn gradients(model: &Model, sequences: usize) -> Gradients {
    let sizes = Sizes { sequences, tokens: TOKENS, documents: true };
    by_weights(&model.loss_program(sizes).unwrap(), interface::LOSS, false)
}

fn checkpoints(dir: &Path) -> Checkpoints {
    let settings = serde_json::Value::Null;
    Checkpoints { dir: dir.to_owned(), every: Some(10), keep: 9, settings }
}

/// A run of 20 steps on `sequences` of this process; its records, weights and where its data is.
fn run(
    dir: &Path,
    sequences: usize,
    rank: (usize, usize),
    exchange: Option<Arc<Pair>>,
) -> (Record, Vec<f32>, Position) {
    let optimizer = OptimizerConfig { clip: Some(0.5), ..OptimizerConfig::default() };
    let config = Config {
        optimizer,
        accumulation: 2,
        evaluate_every: Some(5),
        early_stop: Some(EarlyStop { patience: 3, min_improvement: 0.0 }),
        ..config(ADAMW, 0.0, 1e-3, 20)
    };
    let cpu = CpuBackend::new(1);
    let gradients = gradients(&model("llama"), sequences);
    let mut trainer = match exchange.clone() {
        None => Trainer::new(&cpu, gradients, config, 1).unwrap(),
        Some(pair) => Trainer::new(&Watched(cpu, pair.clone()), gradients, config, 1)
            .unwrap()
            .with_exchange(pair),
    };
    let packing = Packing { sequences, tokens: TOKENS, seed: Some(7), rank, names: names(true) };
    let (data, held_out) = answers(dir).split(0.2).unwrap();
    let mut data = Loader::new(data, packing.clone()).unwrap();
    let mut held_out = Loader::held_out(held_out, Packing { seed: None, ..packing }).unwrap();
    let mut record = Record::default();
    let checkpoints = checkpoints(&dir.join("checkpoints"));
    // As all do that go on with a run.
    if let Some(last) = checkpoint::latest(&checkpoints.dir).unwrap() {
        trainer.restore(&last, &mut data).unwrap();
    }
    trainer.run(&mut data, Some(&mut held_out), Some(&checkpoints), &mut record).unwrap();
    if let Some(exchange) = exchange {
        let started = [0, 1].map(|i| exchange.started[i].load(Ordering::Relaxed));
        let steps = record.steps.len();
        // All but the last of a step, of which there are several.
        assert!(
            started[0] <= steps && started[1] > 2 * steps,
            "{started:?} buckets, {steps} steps"
        );
    }
    (record, weights(&trainer), data.position())
}

#[track_caller]
fn close(a: impl IntoIterator<Item = f64>, b: impl IntoIterator<Item = f64>, what: &str) {
    let (a, b): (Vec<f64>, Vec<f64>) = (a.into_iter().collect(), b.into_iter().collect());
    assert_eq!(a.len(), b.len(), "{what}");
    let largest = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{what}: largest difference {largest:e}");
    assert!(largest < 1e-5, "{what}: {largest:e}");
}

#[test]
fn two_equal_one_with_twice_the_batch() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (alone, alone_weights, position) = run(one.path(), 4, (0, 1), None);
    let losses = |steps: &[Step]| steps.iter().map(|s| s.loss).collect::<Vec<_>>();
    let norms = |steps: &[Step]| steps.iter().map(|s| s.gradient_norm).collect::<Vec<_>>();
    assert!(norms(&alone.steps).iter().filter(|&&n| n > 0.5).count() > 10, "some are clipped");
    let compare = |ends: [(Record, Vec<f32>, Position); 2], from: usize| {
        for (record, weights, end) in &ends {
            let steps = &alone.steps[from..];
            close(losses(&record.steps), losses(steps), "losses");
            close(norms(&record.steps), norms(steps), "norms");
            let tokens = |steps: &[Step]| steps.iter().map(|s| s.total_tokens).collect::<Vec<_>>();
            assert_eq!(tokens(&record.steps), tokens(steps));
            let held_out = |record: &Record| {
                let all = record.evaluations.iter().filter(|e| e.step > from as u64);
                all.map(|e| (e.loss, e.targets)).unzip::<f64, u64, Vec<_>, Vec<_>>()
            };
            let (loss, targets) = held_out(record);
            let (alone_loss, alone_targets) = held_out(&alone);
            close(loss, alone_loss, "held-out losses");
            assert_eq!(targets, alone_targets);
            let floats = |w: &[f32]| w.iter().map(|&w| f64::from(w)).collect::<Vec<_>>();
            close(floats(weights), floats(&alone_weights), "weights");
            assert_eq!(*end, position);
        }
        let [first, second] = ends;
        assert!(losses(&first.0.steps) == losses(&second.0.steps) && first.1 == second.1);
        assert_eq!((first.0.saved.last(), second.0.saved.len()), (Some(&20), 0), "one saves");
    };
    compare(together(|rank, pair| run(two.path(), 2, (rank, 2), Some(pair))), 0);
    // Taken up in the middle by both.
    let saved = checkpoint::list(&two.path().join("checkpoints")).unwrap();
    let later = saved.iter().filter(|(step, _)| *step > 10);
    later.for_each(|(_, path)| std::fs::remove_dir_all(path).unwrap());
    compare(together(|rank, pair| run(two.path(), 2, (rank, 2), Some(pair))), 10);
}

/// A trainer of [`linear`] on the interpreter.
fn small(scaling: Option<LossScaling>, pair: Arc<Pair>) -> Trainer {
    let (dtype, arithmetic) = match scaling {
        Some(_) => (DType::F16, Arithmetic::Fp16),
        None => (DType::F32, Arithmetic::F32),
    };
    let config = Config { loss_scaling: scaling, ..config(SGD, 0.0, 0.1, 9) };
    let gradients = linear(dtype, scaling.is_some());
    let backend = InterpreterBackend::new(arithmetic);
    Trainer::new(&backend, gradients, config, 1).unwrap().with_exchange(pair)
}

/// Gives a batch so many times, and fails then.
struct Broken(Batch, usize);

impl BatchSource for Broken {
    fn next_batch(&mut self) -> Result<Option<Batch>> {
        let damaged = || TrainError::Invalid("the file is damaged".to_owned());
        self.1 = self.1.checked_sub(1).ok_or_else(damaged)?;
        Ok(Some(self.0.clone()))
    }

    fn is_endless(&self) -> bool {
        true
    }

    fn position(&self) -> Position {
        Position::default()
    }

    fn seek(&mut self, _: &Position) -> Result<()> {
        Ok(())
    }
}

#[test]
fn one_that_fails_ends_the_other() {
    let good = slope(&[0.5; 1000]);
    let errors = together(|rank, pair| {
        // The second fails a step before the first would.
        let mut data = Broken(good.clone(), 2 - rank);
        small(None, pair).run(&mut data, None, None, &mut Silent).unwrap_err().to_string()
    });
    let lost = "no connection with the other processes: the other is gone";
    assert_eq!(errors, [lost, "the file is damaged"]);
}

/// The error comes from where the number was made, which knows the operation; if none does, from the first.
#[test]
fn one_with_an_infinity_tells_and_ends_the_other() {
    let sums = ["step 3: the loss is ", "; first made by "];
    let given = ["step 3: the loss is NaN", ""];
    for (value, guilty, tells, parts) in
        [(3e38, 0, 0, sums), (3e38, 1, 1, sums), (f32::NAN, 1, 0, given)]
    {
        let errors = together(|rank, pair| {
            let good = slope(&[0.5; 1000]);
            let last = if rank == guilty { slope(&[value; 1000]) } else { good.clone() };
            let mut data = Cycle::new(vec![good.clone(), good, last]);
            let mut trainer = small(None, pair);
            let error = trainer.run(&mut data, None, None, &mut Silent).unwrap_err();
            (error.to_string(), trainer.progress().step, weights(&trainer))
        });
        let [told, other] = [&errors[tells], &errors[1 - tells]];
        assert!(parts.iter().all(|part| told.0.contains(part)), "{}", told.0);
        assert!(other.0.starts_with("no connection with the other processes"), "{}", other.0);
        assert!(told.1 == 2 && other.1 == 2 && told.2 == other.2, "both stand where they stood");
    }
}

/// What overflows on one is taken again by both, with one scale.
#[test]
fn both_lower_the_scale() {
    let scaling = LossScaling { initial: 65536.0, ..LossScaling::default() };
    let runs = together(|rank, pair| {
        let mut batch = slope(&[0.0; 1000]);
        batch.inputs.insert("slope".to_owned(), as_type(DType::F16, &[rank as f32 * 2.0; 1000]));
        let mut data = Cycle::new(vec![batch]);
        let mut trainer = small(Some(scaling), pair);
        let step = trainer.step(&mut data).unwrap();
        (step.loss_scale, step.loss.to_bits(), weights(&trainer))
    });
    assert_eq!(runs[0].0, Some(16384.0));
    assert!(runs[0] == runs[1]);
}

#[test]
fn one_that_stops_stops_both() {
    let dir = tempfile::tempdir().unwrap();
    let ends = together(|rank, pair| {
        let mut data = Cycle::new(vec![slope(&[0.5; 1000])]);
        let stop_at = (rank == 1).then_some(3);
        let mut record = Record { stop_at, ..Record::default() };
        let checkpoints = checkpoints(dir.path());
        let end = small(None, pair).run(&mut data, None, Some(&checkpoints), &mut record);
        (end.unwrap(), record.steps.len(), record.saved)
    });
    assert_eq!(ends, [(End::Stopped, 3, vec![3]), (End::Stopped, 3, vec![])]);
}

#[test]
fn both_must_begin_alike() {
    let errors = together(|rank, pair| {
        let mut data = Cycle::new(vec![slope(&[0.5; 1000])]);
        data.next = rank;
        small(None, pair).run(&mut data, None, None, &mut Silent).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|e| e.starts_with("the processes do not begin alike")), "{errors:?}");
}
