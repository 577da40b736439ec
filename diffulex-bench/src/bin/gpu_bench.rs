//! Bytes and operations a second of the products on a GPU, beside its own copy.
//!
//! `cargo run --release -p diffulex-workbench --bin gpu_bench -- [N_OUT N_IN]`. A figure is the least of five rounds of many launches.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::time::Instant;

use diffulex_kernels::device::DeviceOps;
use diffulex_kernels::{BlockType, Ops, WeightData, WeightType, cuda};

/// Launches of a round: as a list of that length comes again, it is a graph.
const N_LAUNCHES: usize = 50;
const N_ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let sizes = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let (n_out, n_in) = match sizes[..] {
        [n_out, n_in] => (n_out, n_in),
        _ => (6144, 2048),
    };
    let ops = cuda::open(0)?;
    println!("{}", ops.describe()?);
    let large = ops.zeros(1 << 16, 1 << 10)?;
    let copy = seconds(&ops, 8, || ops.copy(&large).map(drop))?;
    println!("copy of 256 MiB: {:.0} GB/s read and written", 2.0 * (256 << 20) as f64 / copy / 1e9);
    println!("\n| weights of {n_out} x {n_in} | rows | us | GB/s of weights | TFLOP/s |\n|---|---|---|---|---|");
    let floats: Vec<u8> =
        (0..n_out * n_in).flat_map(|index| (((index * 37) % 101) as f32 * 0.01).to_le_bytes()).collect();
    let blocks: Vec<u8> = (0..2 * n_out * n_in).map(|index| (index * 37 % 101) as u8).collect();
    let plain = [(WeightType::F32, 32.0), (WeightType::Bf16, 16.0), (WeightType::Int8, 8.0), (WeightType::Int4, 4.5)];
    let stored =
        BlockType::ALL.map(|kind| (WeightType::Blocks(kind), 8.0 * kind.n_bytes() as f64 / kind.n_values() as f64));
    for (weight_type, bits) in plain.into_iter().chain(stored) {
        let data = match weight_type {
            WeightType::Blocks(kind) => {
                WeightData::Blocks(kind, &blocks[..n_out * n_in / kind.n_values() * kind.n_bytes()])
            }
            _ => WeightData::F32(&floats),
        };
        let weight = ops.matrix(data, n_out, n_in, weight_type)?;
        for n_rows in [1, 4, 16, 64, 256, 512] {
            let values: Vec<f32> = (0..n_rows * n_in).map(|index| ((index * 53) % 97) as f32 * 0.01).collect();
            let x = ops.tensor(&values, n_in)?;
            let time = seconds(&ops, N_LAUNCHES, || ops.linear(&x, &weight, None).map(drop))?;
            let (bytes, operations) = (bits / 8.0 * (n_out * n_in) as f64, 2.0 * (n_rows * n_out * n_in) as f64);
            let [us, gigabytes, teraflops] = [time * 1e6, bytes / time / 1e9, operations / time / 1e12];
            println!("| {} | {n_rows} | {us:.1} | {gigabytes:.0} | {teraflops:.1} |", weight_type.name());
        }
    }
    Ok(())
}

/// Seconds of one of `n` operations.
fn seconds(
    ops: &DeviceOps,
    n: usize,
    operation: impl Fn() -> Result<(), diffulex_engine::StepError>,
) -> Result<f64, Box<dyn Error>> {
    let end = ops.zeros(1, 1)?;
    let mut least = f64::INFINITY;
    for _ in 0..N_ROUNDS + 2 {
        let started = Instant::now();
        for _ in 0..n {
            operation()?;
        }
        ops.host(&end)?;
        least = least.min(started.elapsed().as_secs_f64());
    }
    Ok(least / n as f64)
}
