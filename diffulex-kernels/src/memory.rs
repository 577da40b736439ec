//! Memory available to this process.
//!
//! Containers and services have limits below the machine's free memory, one per control group. Linux only: on other systems
//! the available memory is unknown.

use std::path::{Path, PathBuf};

/// Memory of a device and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// Available bytes.
    pub free: u64,
    /// Bytes in all, used ones included.
    pub total: u64,
    /// Name of the tightest limit, for messages.
    pub source: String,
    /// Nothing but this process grows in it, so that the KV pool may take all of it.
    pub is_dedicated: bool,
}

impl AvailableMemory {
    /// Host memory available to this process, or `None` if it is unknown.
    pub fn of_host() -> Option<Self> {
        Self::under(Path::new("/"))
    }

    /// The minimum of MemAvailable and the limits of all control groups of the process, with files below `root`.
    fn under(root: &Path) -> Option<Self> {
        let machine = read(&root.join("proc/meminfo")).and_then(|text| {
            let [free, total] = ["MemAvailable:", "MemTotal:"].map(|name| field(&text, name).map(|kib| kib * 1024));
            Some(Self {
                free: free?,
                total: total?,
                source: "MemAvailable of /proc/meminfo".to_owned(),
                is_dedicated: false,
            })
        });
        let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
        let groups = groups.lines().flat_map(|line| limits_of_groups(root, line));
        groups.chain(machine).min_by_key(|memory| memory.free)
    }
}

/// Available memory of each group in one line of `/proc/self/cgroup`, `ID:CONTROLLERS:PATH` (cgroups(7)), from the top down.
fn limits_of_groups(root: &Path, line: &str) -> Vec<AvailableMemory> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let is_v2 = controllers.is_empty();
    if !is_v2 && !controllers.split(',').any(|controller| controller == "memory") {
        return Vec::new();
    }
    let mount = if is_v2 { "sys/fs/cgroup" } else { "sys/fs/cgroup/memory" };
    let mut folder = root.join(mount);
    let mut limits: Vec<AvailableMemory> = limit_of_group(root, &folder, is_v2).into_iter().collect();
    // In a cgroup namespace the process sees its group as the root; otherwise invisible folders yield nothing.
    for name in path.split('/').filter(|name| !name.is_empty() && *name != "..") {
        folder.push(name);
        limits.extend(limit_of_group(root, &folder, is_v2));
    }
    limits
}

/// Available memory of one group, if it has a limit.
fn limit_of_group(root: &Path, group: &Path, is_v2: bool) -> Option<AvailableMemory> {
    let (limit, usage, cached) = if is_v2 {
        ("memory.max", "memory.current", ["inactive_file ", "active_file "])
    } else {
        ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file ", "total_active_file "])
    };
    // No limit is "max" in v2 and a huge number in v1, which is never the minimum.
    let most: u64 = read(&group.join(limit))?.trim().parse().ok()?;
    let used: u64 = read(&group.join(usage)).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    // Page cache counts as used, but the kernel reclaims it when memory is short.
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let reclaimable: u64 = cached.iter().filter_map(|name| field(&stat, name)).sum();
    let shown = PathBuf::from("/").join(group.strip_prefix(root).unwrap_or(group)).join(limit);
    let free = most.saturating_sub(used.saturating_sub(reclaimable));
    Some(AvailableMemory { free, total: most, source: shown.display().to_string(), is_dedicated: false })
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root folder with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn available(files: &[(&str, &str)]) -> Option<(u64, u64, String)> {
        AvailableMemory::under(root(files).path()).map(|memory| (memory.free, memory.total, memory.source))
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n");

    #[test]
    fn the_machines_free_memory_counts_where_no_group_has_a_limit() {
        let free = Some((8000 * 1024, 9000 * 1024, "MemAvailable of /proc/meminfo".to_owned()));
        assert_eq!(available(&[MEMINFO]), free);
        let files = [MEMINFO, ("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")];
        assert_eq!(available(&files), free);
        assert_eq!(available(&[]), None);
    }

    #[test]
    fn the_tightest_group_of_all_above_a_process_counts() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/slice/service/worker\n"),
            ("sys/fs/cgroup/slice/memory.max", "5000000\n"),
            ("sys/fs/cgroup/slice/memory.current", "4500000\n"),
            ("sys/fs/cgroup/slice/memory.stat", "anon 1\nfile 250000\nactive_file 50000\ninactive_file 200000\n"),
            ("sys/fs/cgroup/slice/service/memory.max", "2000000\n"),
            ("sys/fs/cgroup/slice/service/memory.current", "1\n"),
            ("sys/fs/cgroup/slice/service/worker/memory.max", "max\n"),
        ];
        assert_eq!(available(&files), Some((750_000, 5_000_000, "/sys/fs/cgroup/slice/memory.max".to_owned())));
    }

    #[test]
    fn limits_of_groups_the_first_version_count_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n"),
            ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(
            available(&files),
            Some((2_100_000, 3_000_000, "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned()))
        );
    }
}
