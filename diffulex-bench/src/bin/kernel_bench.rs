//! Speed of one product `x W^T` for the shapes of a model, on one thread and on all.
//!
//! `cargo run --release -p diffulex-workbench --bin kernel_bench -- [N_OUT N_IN]`, where N_IN is a multiple of 256; the least of many short
//! runs, so that a busy machine does not count.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use diffulex_kernels::cpu::CpuOps;
use diffulex_kernels::{BlockType, Ops, WeightData, WeightType};

const N_RUNS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let sizes = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let (n_out, n_in) = match sizes[..] {
        [n_out, n_in] => (n_out, n_in),
        _ => (576, 256),
    };
    println!("{n_out} x {n_in}, GFLOP/s");
    println!("rows  threads  float32  bfloat16  int8  int4  Q8_0  Q4_K  Q6_K");
    let bytes: Vec<u8> =
        (0..n_out * n_in).flat_map(|index| (((index * 37) % 101) as f32 * 0.01).to_le_bytes()).collect();
    let blocks: Vec<u8> = (0..2 * n_out * n_in).map(|index| (index * 37 % 101) as u8).collect();
    let blocks = |kind: BlockType| WeightData::Blocks(kind, &blocks[..n_out * n_in / kind.n_values() * kind.n_bytes()]);
    let all = std::thread::available_parallelism()?.get();
    for n_threads in [1, all] {
        let ops = CpuOps::new(n_threads)?;
        for n_rows in [1, 4, 8, 16, 64, 256] {
            let values: Vec<f32> = (0..n_rows * n_in).map(|index| ((index * 53) % 97) as f32 * 0.01).collect();
            let x = ops.tensor(&values, n_in)?;
            let mut speeds = Vec::new();
            let values = [WeightType::F32, WeightType::Bf16, WeightType::Int8, WeightType::Int4];
            let values = values.map(|weight_type| (WeightData::F32(&bytes), weight_type));
            let blocks = BlockType::ALL.map(|kind| (blocks(kind), WeightType::Blocks(kind)));
            for (data, weight_type) in values.into_iter().chain(blocks) {
                let weight = ops.matrix(data, n_out, n_in, weight_type)?;
                let mut least = f64::INFINITY;
                for _ in 0..N_RUNS {
                    let started = Instant::now();
                    ops.linear(&x, &weight, None)?;
                    least = least.min(started.elapsed().as_secs_f64());
                }
                speeds.push(2.0 * (n_rows * n_in * n_out) as f64 / least / 1e9);
            }
            let [f32, bf16, int8, int4, q8, q4, q6] = speeds[..] else { return Err("a speed is missing".into()) };
            println!(
                "{n_rows:4}  {n_threads:7}  {f32:7.0}  {bf16:8.0}  {int8:4.0}  {int4:4.0}  {q8:4.0}  {q4:4.0}  {q6:4.0}"
            );
        }
    }
    Ok(())
}
