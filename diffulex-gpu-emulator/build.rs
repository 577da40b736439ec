//! Compiles the emulator and every CUDA kernel into two libraries called `libcuda.so`: `checked`, whose kernels report
//! each load and store, and `fast`, whose kernels do not.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const KERNELS: &str = "../diffulex-kernels/gpu";
const HEADERS: &str = "../diffulex-kernels/gpu/include";
const EMULATOR: &str = "emulator";
/// The engine that runs the kernels' PTX.
const PTX_ENGINE: &str = "emulator/ptx";
const EXPORTS: &str = "-Wl,--version-script=emulator/exports.map";
/// Kernels with faults, which this crate's tests want to see found.
const FAULTS: &str = "faults";

/// For every source. `-U_FORTIFY_SOURCE`: its checks of jumps and stacks know nothing of fibers. No contraction, as in the PTX.
const COMMON: &[&str] =
    &["-std=c++17", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-w", "-x", "c++"];

/// The compiler calls a function of `hooks.cpp` for each load and store, and for each bad index or pointer that it sees.
const CHECKS: &[&str] =
    &["-fsanitize=thread", "-fsanitize=alignment,bounds", "--param=tsan-instrument-func-entry-exit=0"];

/// Its loops over the lanes of a warp become vectors: no result depends on flags of floating point, and lanes of a register are
/// read as other types than they were written.
const LANES: &[&str] = &["-O3", "-fno-strict-aliasing", "-fno-trapping-math", "-fno-math-errno"];

/// Only these of the emulator's files know of the checks.
const CHECKED: &[&str] = &["shadow.cpp", "lanes_memory.cpp"];

/// One call of the compiler.
struct Job {
    source: PathBuf,
    object: PathBuf,
    flags: Vec<&'static str>,
}

fn main() -> Outcome<()> {
    for folder in [KERNELS, EMULATOR, FAULTS] {
        println!("cargo:rerun-if-changed={folder}");
    }
    let is_supported = variable("CARGO_CFG_TARGET_OS")? == "linux" && variable("CARGO_CFG_TARGET_ARCH")? == "x86_64";
    let out = PathBuf::from(variable("OUT_DIR")?);
    println!("cargo:rustc-env=EMULATED_CUDA={}", if is_supported { out.display().to_string() } else { String::new() });
    if !is_supported {
        return Ok(());
    }
    let mut kernels = sources(KERNELS, "cu")?;
    // The driver finds a kernel by its PTX. A file that has none yet is not ready.
    let ptx = Path::new(KERNELS).join("ptx");
    kernels.retain(|kernel| ptx.join(kernel.file_name().unwrap_or_default()).with_extension("ptx").exists());
    kernels.extend(sources(FAULTS, "cu")?);
    let mut jobs = Vec::new();
    let mut libraries = Vec::new();
    let mut add = |folder: &str, source: &Path, flags: Vec<&'static str>| -> Outcome<PathBuf> {
        let folder = out.join(folder);
        fs::create_dir_all(&folder)?;
        let object = folder.join(source.file_name().unwrap_or_default()).with_extension("o");
        jobs.push(Job { source: source.to_path_buf(), object: object.clone(), flags });
        Ok(object)
    };
    for (name, kernel_flags, emulator_flag) in
        [("checked", CHECKS, "-DEMULATOR_WITH_CHECKS=1"), ("fast", &[], "-DEMULATOR_WITH_CHECKS=0")]
    {
        let mut objects = Vec::new();
        for source in &kernels {
            objects.push(add(name, source, [&["-O1"], kernel_flags].concat())?);
        }
        for (files, flags) in [(EMULATOR, &["-O2"][..]), (PTX_ENGINE, LANES)] {
            for source in sources(files, "cpp")? {
                if CHECKED.iter().any(|name| source.ends_with(name)) {
                    objects.push(add(name, &source, [flags, &[emulator_flag]].concat())?);
                } else {
                    objects.push(add("common", &source, flags.to_vec())?);
                }
            }
        }
        libraries.push((out.join(name).join("libcuda.so"), objects));
    }
    jobs.sort_by(|a, b| a.object.cmp(&b.object));
    jobs.dedup_by(|a, b| a.object == b.object);
    // The longest first: then the last ones end together.
    jobs.sort_by_key(|job| std::cmp::Reverse(fs::metadata(&job.source).map_or(0, |source| source.len())));
    let compiler = cc::Build::new().cpp(true).get_compiler();
    compile_all(&compiler, &jobs)?;
    for (library, objects) in libraries {
        // Not over a library that a test is running with.
        let new = library.with_extension("new");
        let mut link = Command::new(compiler.path());
        link.args(["-shared", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so", EXPORTS, "-o"]).arg(&new).args(&objects);
        run(&mut link)?;
        fs::rename(new, library)?;
    }
    Ok(())
}

fn variable(name: &str) -> Outcome<String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}").into())
}

/// Files of a folder with this extension, in order.
fn sources(folder: &str, extension: &str) -> Outcome<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.retain(|file| file.extension() == Some(OsStr::new(extension)));
    files.sort();
    Ok(files)
}

/// Compiles what has changed, on all cores.
fn compile_all(compiler: &cc::Tool, jobs: &[Job]) -> Outcome<()> {
    // The emulator multiplies matrices; half as slow with the vectors of any recent processor.
    let has_vectors = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
    let vectors: &[&str] = if has_vectors { &["-mavx2", "-mfma"] } else { &[] };
    let next = AtomicUsize::new(0);
    let worker = || -> Outcome<()> {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut command = Command::new(compiler.path());
            command.args(COMMON).args(vectors).args(&job.flags).args(["-I", HEADERS, "-I", EMULATOR, "-MMD", "-c"]);
            command.arg(&job.source).arg("-o").arg(&job.object);
            compile(command, job)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        running.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".into())))
    })
}

/// Runs the command unless its object is newer than all that it was made of, and was made by the same command.
fn compile(mut command: Command, job: &Job) -> Outcome<()> {
    let words = format!("{command:?}");
    let record = job.object.with_extension("command");
    if fs::read_to_string(&record).is_ok_and(|before| before == words) && is_newer(&job.object).unwrap_or(false) {
        return Ok(());
    }
    run(&mut command)?;
    fs::write(record, words)?;
    Ok(())
}

/// Whether an object is newer than the files that the compiler has listed beside it.
fn is_newer(object: &Path) -> Outcome<bool> {
    let made = fs::metadata(object)?.modified()?;
    let list = fs::read_to_string(object.with_extension("d"))?;
    let files = list.split_once(':').map_or("", |(_, files)| files);
    for file in files.split_whitespace().filter(|word| *word != "\\") {
        if fs::metadata(file)?.modified()? >= made {
            return Ok(false);
        }
    }
    Ok(true)
}

fn run(command: &mut Command) -> Outcome<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{status}: {command:?}").into()) }
}
