"""Instrumented copies of a tree, whose functions record that they ran: scripts/mutants and scripts/path make them."""

import json
import os
import subprocess

# Added to each instrumented crate. DIFFULEX_REACHED names the file to which a function's number is appended when it first runs. With
# DIFFULEX_REACHED_WHILE, calls count only while the file of that name exists.
RECORDER = """
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod instrument {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static MUTANT: LazyLock<usize> = LazyLock::new(|| {
        std::env::var("DIFFULEX_MUTANT").ok().and_then(|mutant| mutant.parse().ok()).unwrap_or(0)
    });
    static RECORDS: AtomicBool = AtomicBool::new(false);
    static RECORD: LazyLock<Option<std::path::PathBuf>> = LazyLock::new(|| {
        let path = std::env::var_os("DIFFULEX_REACHED")?;
        match std::env::var_os("DIFFULEX_REACHED_WHILE") {
            None => RECORDS.store(true, Ordering::Relaxed),
            Some(marker) => drop(std::thread::spawn(move || loop {
                RECORDS.store(std::path::Path::new(&marker).exists(), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(5));
            })),
        }
        Some(path.into())
    });
    static REACHED: [AtomicBool; N_FUNCTIONS] = [const { AtomicBool::new(false) }; N_FUNCTIONS];
    /// Notes a function's first call. Returns the number of the mutant that runs, 0 without one.
    pub fn enter(function: usize) -> usize {
        if let Some(path) = &*RECORD {
            if RECORDS.load(Ordering::Relaxed) && !REACHED[function].swap(true, Ordering::Relaxed) {
                use std::io::Write;
                let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
                file.write_all(format!("{function}\\n").as_bytes()).unwrap();
            }
        }
        *MUTANT
    }
}
"""


def recorder(n_functions):
    """The text to append to the root of an instrumented crate. Functions call `crate::instrument::enter(number)`."""
    return RECORDER.replace("N_FUNCTIONS", str(n_functions))


def crate_root(path):
    """The `lib.rs` of the crate that a source file is in."""
    return path[: path.index("src/")] + "src/lib.rs"


def output_of(*command, cwd):
    """Standard output of a command that succeeds."""
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


class Copy:
    """A copy of the files of `root` that git does not ignore, and a folder for what cargo makes of it."""

    def __init__(self, root, folder):
        self.root, self.tree, self.target = root, folder / "tree", folder / "target"

    def update(self, changed):
        """Writes the copy. `changed` are texts of files, by path, that differ from the original's."""
        listed = output_of("git", "ls-files", "-coz", "--exclude-standard", cwd=self.root).split("\0")
        paths = {path for path in listed if (self.root / path).is_file()}
        for path in self.tree.rglob("*.rs"):
            if str(path.relative_to(self.tree)) not in paths:
                path.unlink()
        for path in paths:
            content = changed[path].encode() if path in changed else (self.root / path).read_bytes()
            target = self.tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            # Cargo builds again what is newer.
            if not target.exists() or target.read_bytes() != content:
                target.write_bytes(content)

    def cargo(self, *arguments):
        """Runs cargo in the copy. Returns whether it succeeds, its messages and its errors."""
        # Not the repository's own target: cargo would take the copy's crates for the repository's.
        env = os.environ | {"CARGO_TARGET_DIR": str(self.target)}
        command = ["cargo", *arguments, "--message-format=json"]
        ran = subprocess.run(command, cwd=self.tree, env=env, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
        return ran.returncode == 0, [json.loads(line) for line in ran.stdout.splitlines()], ran.stderr
