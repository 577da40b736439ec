//! Each kernel of `faults/faults.cu` breaks one rule, and the emulator says which.

use crate::device::{Arg, Device, Shape};

/// Kernel, blocks, and words of what is found.
const FAULTS: &[(&str, u32, &str)] = &[
    ("fault_no_barrier", 1, "shared byte"),
    ("fault_barrier_of_a_warp_for_a_block", 1, "shared byte"),
    ("fault_written_while_others_read", 1, "with no barrier between"),
    ("fault_unwritten_shared", 1, "is read, and nobody wrote it"),
    ("fault_beyond_shared", 1, "of 1024 bytes of shared memory"),
    ("fault_early_use_of_a_copy", 1, "copies to it"),
    ("fault_copy_of_another_thread", 1, "shared byte"),
    ("fault_unaligned_copy", 1, "source of an asynchronous copy is not aligned"),
    ("fault_end_before_a_copy", 1, "ends with asynchronous copies on their way"),
    ("fault_read_behind_the_end", 1, "is read out of bounds"),
    ("fault_written_before_the_start", 1, "device memory is written"),
    ("fault_wide_read_not_aligned", 1, "aligned"),
    ("fault_null", 1, "is read, which is neither device memory"),
    ("fault_unwritten_device_memory", 1, "is read, and nobody wrote it"),
    ("fault_no_barrier_around_device_memory", 1, "with no barrier between"),
    ("fault_blocks_write_the_same", 3, "race between blocks"),
    ("fault_blocks_read_what_others_write", 3, "between blocks"),
    ("fault_plain_beside_atomic", 2, "race between blocks"),
    ("fault_barrier_in_a_branch", 1, "barrier"),
    ("fault_different_barriers", 1, "barriers of lines"),
    ("fault_shuffle_in_a_branch", 1, "__shfl_xor_sync"),
    ("fault_lanes_at_different_shuffles", 1, "lanes of a warp meet at"),
    ("fault_index_of_a_local_array", 1, "outside of the array"),
    ("fault_matrix_row_not_aligned", 1, "not aligned"),
];

/// PTX of these kernels, as far as the emulator reads it.
fn ptx() -> String {
    let names = FAULTS.iter().map(|(name, ..)| *name).chain(["fault_none", "fault_order_of_float_sums"]);
    let entry =
        |name| format!(".visible .entry {name}(\n.param .u64 a,\n.param .u64 b,\n.param .u32 c\n)\n{{\nret;\n}}\n");
    names.fold(".version 8.0\n.target sm_80\n.address_size 64\n".to_owned(), |text, name| text + &entry(name))
}

/// The result of a kernel on three blocks' numbers, or what it did wrong.
fn run(kernel: &str, grid: u32) -> Option<Result<Vec<f32>, String>> {
    if diffulex_gpu_emulator::is_real() {
        eprintln!("left out: only the emulator finds these faults");
        return None;
    }
    let device = Device::open(&ptx())?;
    let n = 64 * grid as usize;
    let x = device.put(&(0..n).map(|i| (i as f32).sqrt() * 1e3).collect::<Vec<f32>>());
    let y = device.allocate(n * 4).unwrap();
    let args = [Arg::Pointer(x), Arg::Pointer(y), Arg::I32(n as i32)];
    let result = device
        .launch(kernel, Shape { grid, block: 64, shared: 1024 }, &args)
        .and_then(|()| device.get(y, n))
        .map_err(|error| format!("{error:?} {}", diffulex_gpu_emulator::failure().unwrap_or_default()));
    diffulex_gpu_emulator::heal();
    Some(result)
}

#[test]
fn every_fault_is_found_for_any_order() {
    for (kernel, grid, words) in FAULTS {
        diffulex_gpu_emulator::set_quiet(true);
        for seed in 0..20 {
            diffulex_gpu_emulator::set_seed(seed);
            let Some(result) = run(kernel, *grid) else { return };
            let found = result.expect_err(kernel);
            assert!(found.contains("CUDA_ERROR_LAUNCH_FAILED") && found.contains(words), "{kernel}: {found}");
        }
    }
}

#[test]
fn a_kernel_without_faults_passes() {
    let Some(result) = run("fault_none", 3) else { return };
    let expected: Vec<f32> = (0..192).map(|i| ((i ^ 1) as f32).sqrt() * 1e3 + 192.0).collect();
    assert_eq!(result, Ok(expected));
}

/// What no check of an access can find: seeds do.
#[test]
fn a_result_that_depends_on_the_order_differs_between_seeds() {
    let mut results = Vec::new();
    for seed in 0..20 {
        diffulex_gpu_emulator::set_seed(seed);
        let Some(result) = run("fault_order_of_float_sums", 1) else { return };
        results.push(result.unwrap());
    }
    assert!(results.iter().any(|result| *result != results[0]));
}
