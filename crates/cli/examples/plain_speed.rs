//! Compares decoding with the dialect's whole operations, with the same model decomposed to plain MIL,
//! and with the interpreter: tokens a second of the processor's own time, taken in turns.
//!
//! Arguments: model file, context, tokens, `interpreter` to time that too.

use std::time::Instant;

use cpu::CpuBackend;
use exec::{Backend, Runnable, Tensors};
use tensor::Tensor;

/// Rounds of measuring, the best of which counts.
const ROUNDS: usize = 5;

fn inputs(id: i32, at: usize) -> anyhow::Result<Tensors> {
    Ok(Tensors::from([
        ("ids".to_owned(), Tensor::from_slice(&[1, 1], &[id])?),
        ("positions".to_owned(), Tensor::from_slice(&[1], &[at as i32])?),
    ]))
}

/// Decodes some tokens; seconds for one, and the last logits.
fn decode(runnable: &mut dyn Runnable, tokens: usize) -> anyhow::Result<(f64, Vec<f32>)> {
    let mut state = runnable.new_state()?;
    let mut logits = Vec::new();
    let start = Instant::now();
    for at in 0..tokens {
        let outputs = runnable.run("decode", &inputs(3 + at as i32, at)?, &mut state)?;
        logits = outputs["logits"].as_slice::<f32>()?.to_vec();
    }
    Ok((start.elapsed().as_secs_f64() / tokens as f64, logits))
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, context, tokens, rest @ ..] = &arguments[..] else {
        anyhow::bail!("model file, context and tokens are needed");
    };
    let (context, tokens) = (context.parse()?, tokens.parse()?);
    let mut whole = llm::Model::load(path)?.specialize(context)?;
    whole.functions.retain(|name, _| name == "decode");
    let mut plain = whole.clone();
    passes::run(&mut plain, passes::pipelines::PLAIN).map_err(mil::Error::from)?;
    let backend = CpuBackend::new(1);
    let mut runnables = [backend.prepare(&whole)?, backend.prepare(&plain)?];
    println!("plain falls back on {:?}", runnables[1].fallbacks());
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        let mut logits = Vec::new();
        for (runnable, best) in runnables.iter_mut().zip(&mut best) {
            let (seconds, made) = decode(&mut **runnable, tokens)?;
            *best = best.min(seconds);
            logits.push(made);
        }
        let far = logits[0].iter().zip(&logits[1]).map(|(a, b)| (a - b).abs());
        println!("largest difference of logits {:e}", far.fold(0.0, f32::max));
    }
    let [whole, plain_seconds] = best;
    println!("whole {whole:.6} s, plain {plain_seconds:.6} s: {:.2} x", plain_seconds / whole);
    if rest.iter().any(|a| a == "interpreter") {
        let oracle = testkit::InterpreterBackend::new(mil::eval::Arithmetic::Fp16);
        let (seconds, _) = decode(&mut *oracle.prepare(&plain)?, tokens.min(4))?;
        println!("interpreter {seconds:.6} s: {:.0} x plain", seconds / plain_seconds);
    }
    Ok(())
}
