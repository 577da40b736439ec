//! The same forwards by candle-transformers' quantized Qwen3: `peer-candle FILE.gguf`.
//!
//! Speaks as `peers.py` does: a line when the weights are loaded, then the milliseconds of forwards for each line
//! `BATCH BLOCK CONTEXT` of standard input. Two things differ from the other programs, both to candle's advantage: its
//! model computes the logits of the last row only, and rows see no row after them. It takes one sequence.

use std::error::Error;
use std::fs::File;
use std::io::BufRead;
use std::time::Instant;

use candle_core::quantized::gguf_file::Content;
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::quantized_qwen3::ModelWeights;

/// Forwards of one answer, after one that warms.
const N_RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: peer-candle FILE.gguf")?;
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    println!(r#"{{"loaded": true}}"#);
    for line in std::io::stdin().lock().lines() {
        let numbers = line?.split_whitespace().map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        let [1, block, context] = numbers[..] else {
            return Err("expected BATCH BLOCK CONTEXT, and one sequence".into());
        };
        model.clear_kv_cache();
        if context > 0 {
            model.forward(&Tensor::zeros((1, context), DType::U32, &Device::Cpu)?, 0)?;
        }
        let ids = Tensor::arange(0u32, block as u32, &Device::Cpu)?.unsqueeze(0)?;
        let mut times = Vec::with_capacity(N_RUNS);
        for run in 0..=N_RUNS {
            // Its cache only grows: every forward gets one of its own. Weights are shared.
            let mut model = model.clone();
            let started = Instant::now();
            model.forward(&ids, context)?;
            if run > 0 {
                times.push(format!("{:.3}", 1e3 * started.elapsed().as_secs_f64()));
            }
        }
        println!(r#"{{"ms": [{}]}}"#, times.join(", "));
    }
    Ok(())
}
