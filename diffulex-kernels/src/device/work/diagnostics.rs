//! Ways to run a device that find faults. All of them are slow, and none changes a result.

use std::env;

/// Ways to find faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Diagnostics {
    /// The device is waited for after each transfer and launch, and there are no graphs: an error names the kernel that failed.
    pub(crate) is_synchronous: bool,
    /// Each block of the arena is an allocation of its own, its place is used once, and a launch that names a block that was dropped
    /// is refused.
    pub(crate) is_apart: bool,
}

impl Diagnostics {
    /// Those that `DIFFULEX_GPU_SYNC=1` and `DIFFULEX_GPU_APART=1` ask for.
    pub(crate) fn from_environment() -> Self {
        let is_set = |name| env::var_os(name).is_some_and(|value| value == "1");
        Self { is_synchronous: is_set("DIFFULEX_GPU_SYNC"), is_apart: is_set("DIFFULEX_GPU_APART") }
    }
}
