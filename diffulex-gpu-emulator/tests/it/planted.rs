//! States of the driver that the environment plants, each in a process of its own.
#![expect(unsafe_code, reason = "the driver's functions, of which cudarc has no safe form")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use cudarc::driver::result::{self, device, init};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DriverError};
use cudarc::nvrtc::Ptx;

use crate::device::{Arg, Device, Shape};

const PRIMS: &str = include_str!("../../../diffulex-kernels/gpu/ptx/prims.ptx");
/// Set in the processes that the tests start.
const IS_CHILD: &str = "DIFFULEX_TEST_IS_CHILD";

/// Whether this is the process with the variable; where it is not, runs the test in one and asserts that it passes.
fn is_child(test: &str, variable: &str, value: &str) -> bool {
    if std::env::var_os(IS_CHILD).is_some() {
        return true;
    }
    if is_emulated() {
        let output = child(test, variable, value);
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    false
}

fn is_emulated() -> bool {
    diffulex_gpu_emulator::is_available() && !diffulex_gpu_emulator::is_real()
}

fn child(test: &str, variable: &str, value: &str) -> Output {
    let test = format!("planted::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test, "--test-threads", "1"]).env(IS_CHILD, "1").env(variable, value);
    command.output().unwrap()
}

fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |error| error.0)
}

/// A kernel that adds to a buffer.
fn arithmetic(device: &Device, x: u64, results: u64) -> Result<(), DriverError> {
    let shape = Shape { grid: 1, block: 128, shared: 0 };
    device.launch("prim_arithmetic", shape, &[Arg::Pointer(x), Arg::Pointer(results), Arg::I32(4)])
}

#[test]
fn cuinit_fails_as_told() {
    if !is_child("cuinit_fails_as_told", "DIFFULEX_EMULATOR_FAIL_INIT", "803") {
        return;
    }
    assert!(diffulex_gpu_emulator::install());
    assert_eq!(code(init()), CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    assert_eq!(code(device::get_count()), CUresult::CUDA_ERROR_NOT_INITIALIZED);
}

#[test]
fn an_older_driver_refuses_the_text() {
    if !is_child("an_older_driver_refuses_the_text", "DIFFULEX_EMULATOR_PTX_VERSION", "7.8") {
        return;
    }
    assert!(diffulex_gpu_emulator::install());
    let loaded = CudaContext::new(0).unwrap().load_module(Ptx::from_src(PRIMS));
    assert_eq!(code(loaded), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

#[test]
fn a_sticky_error_ends_cuda_for_every_thread() {
    if !is_child("a_sticky_error_ends_cuda_for_every_thread", "DIFFULEX_EMULATOR_STICKY", "1") {
        return;
    }
    let device = Device::open(PRIMS).unwrap();
    diffulex_gpu_emulator::fail_launch(1);
    arithmetic(&device, device.put(&[0f32; 4]), device.put(&[0f32; 48])).unwrap();
    assert_eq!(code(device.stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let other = std::thread::spawn(|| code(CudaContext::new(0))).join().unwrap();
    assert_eq!(other, CUresult::CUDA_ERROR_LAUNCH_FAILED);
}

#[test]
fn an_instantiation_runs_out_of_memory_as_told() {
    let test = "an_instantiation_runs_out_of_memory_as_told";
    if !is_child(test, "DIFFULEX_EMULATOR_FAIL_INSTANTIATE", "2") {
        return;
    }
    let device = Device::open(PRIMS).unwrap();
    let (x, results) = (device.put(&[0f32; 4]), device.put(&[0f32; 48]));
    for expected in [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_SUCCESS] {
        device.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        arithmetic(&device, x, results).unwrap();
        assert_eq!(code(device.stream.end_capture(CUgraphInstantiate_flags(0))), expected);
    }
}

#[test]
fn eager_work_has_run_when_its_call_returns() {
    if !is_child("eager_work_has_run_when_its_call_returns", "DIFFULEX_EMULATOR_EAGER", "1") {
        return;
    }
    let device = Device::open(PRIMS).unwrap();
    let (x, results) = (device.put(&[6f32; 4]), device.put(&[0f32; 48]));
    arithmetic(&device, x, results).unwrap();
    // SAFETY: reads what the emulator has in the process's own memory; a device's cannot be read so.
    let got = unsafe { *((results + 9 * 4) as *const f32) };
    assert!((got - 2.0).abs() < 1e-6, "{got}");
}

#[test]
fn the_host_cannot_read_protected_device_memory() {
    if std::env::var_os(IS_CHILD).is_none() {
        if is_emulated() {
            let output = child("the_host_cannot_read_protected_device_memory", "DIFFULEX_EMULATOR_PROTECT", "1");
            // The signal of a bad address, and no panic before.
            assert_eq!(output.status.signal(), Some(11), "{}", String::from_utf8_lossy(&output.stdout));
        }
        return;
    }
    let device = Device::open(PRIMS).unwrap();
    let (x, results) = (device.put(&[6f32; 4]), device.put(&[0f32; 48]));
    arithmetic(&device, x, results).unwrap();
    // Kernels and copies may.
    let got: Vec<f32> = device.get(results, 48).unwrap();
    assert!((got[9] - 2.0).abs() < 1e-6);
    // SAFETY: ends the process, which is what the test wants to see.
    let value = unsafe { std::ptr::read_volatile(results as *const f32) };
    unreachable!("the host has read {value}");
}
