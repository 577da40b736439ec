//! Memory available to this process, and the size of the KV pool.
//!
//! Containers and services have limits below the machine's free memory, one per control group. Linux only: on other systems
//! the available memory is unknown, and the default size has no such limit.
//!
//! Never here: pages, requests.

use std::path::{Path, PathBuf};

/// Memory of a device and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Available bytes.
    pub free: u64,
    /// Bytes in all, used ones included.
    pub total: u64,
    /// Name of the tightest limit, for messages.
    pub source: String,
    /// Nothing but this process grows in it, so that the KV pool may take all of it.
    pub is_dedicated: bool,
}

impl Room {
    /// Host memory available to this process, or `None` if it is unknown.
    pub fn left() -> Option<Self> {
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
        let groups = groups.lines().flat_map(|line| groups_of(root, line));
        groups.chain(machine).min_by_key(|room| room.free)
    }
}

/// Available memory of each group in one line of `/proc/self/cgroup`, `ID:CONTROLLERS:PATH` (cgroups(7)), from the top down.
fn groups_of(root: &Path, line: &str) -> Vec<Room> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let is_v2 = controllers.is_empty();
    if !is_v2 && !controllers.split(',').any(|controller| controller == "memory") {
        return Vec::new();
    }
    let mount = if is_v2 { "sys/fs/cgroup" } else { "sys/fs/cgroup/memory" };
    let mut folder = root.join(mount);
    let mut rooms: Vec<Room> = room_of(root, &folder, is_v2).into_iter().collect();
    // In a cgroup namespace the process sees its group as the root; otherwise invisible folders yield nothing.
    for name in path.split('/').filter(|name| !name.is_empty() && *name != "..") {
        folder.push(name);
        rooms.extend(room_of(root, &folder, is_v2));
    }
    rooms
}

/// Available memory of one group, if it has a limit.
fn room_of(root: &Path, group: &Path, is_v2: bool) -> Option<Room> {
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
    Some(Room { free, total: most, source: shown.display().to_string(), is_dedicated: false })
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Inputs to the size of the KV pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSizing {
    pub(crate) page_bytes: u64,
    /// Pages of one request at full length.
    pub(crate) pages_per_request: usize,
    pub(crate) max_num_reqs: usize,
    /// The value of `--kv-cache-bytes`.
    pub(crate) kv_cache_bytes: Option<u64>,
}

/// Maximum of the default size of the KV pool. Chosen by us: pages are committed on first use.
const DEFAULT_KV_CACHE_BYTES: u64 = 1 << 30;

impl PoolSizing {
    /// Number of pages of the pool. Logs the reason. Fails if `--kv-cache-bytes` or one request does not fit.
    pub(crate) fn n_pages(self, room: Option<&Room>) -> Result<usize, String> {
        let Self { page_bytes, pages_per_request, max_num_reqs, kv_cache_bytes } = self;
        let left = room.map_or(u64::MAX, |room| room.free);
        let source = room.map_or("unknown", |room| room.source.as_str());
        let is_dedicated = room.is_some_and(|room| room.is_dedicated);
        // At least one request at full length.
        let least = pages_per_request as u64 * page_bytes;
        let (n_bytes, why) = if let Some(n_bytes) = kv_cache_bytes {
            if n_bytes > left {
                return Err(format!("--kv-cache-bytes: {n_bytes} bytes are asked for and {left} are left ({source})"));
            }
            if n_bytes < page_bytes {
                return Err(format!("--kv-cache-bytes: must be at least {page_bytes}, one page, got {n_bytes}"));
            }
            (n_bytes, "--kv-cache-bytes")
        } else {
            if least > left {
                return Err(format!(
                    "the KV cache of one request of --max-model-len takes {least} bytes and {left} are left ({source}): \
                     lower --max-model-len"
                ));
            }
            // The other half is for activations, adapters and other processes of the group. Chosen by us.
            let [all, half] = [least.saturating_mul(max_num_reqs as u64), left / 2];
            let bounds = [
                (all, "a full batch at full length"),
                (DEFAULT_KV_CACHE_BYTES, "the default's limit"),
                (half, "half of the memory that is left"),
            ];
            let smallest = bounds.into_iter().min_by_key(|(n_bytes, _)| *n_bytes).unwrap_or_default();
            let (n_bytes, why) = if is_dedicated { (left, "the device's memory that is left") } else { smallest };
            if n_bytes < least { (least, "one request at full length") } else { (n_bytes, why) }
        };
        let n_pages = n_bytes / page_bytes;
        let bytes = n_pages * page_bytes;
        tracing::info!(bytes, pages = n_pages, why, left, source, "size of the KV cache");
        usize::try_from(n_pages)
            .map_err(|_| format!("--kv-cache-bytes: {n_bytes} bytes are more than can be addressed"))
    }
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

    fn room(files: &[(&str, &str)]) -> Option<(u64, u64, String)> {
        Room::under(root(files).path()).map(|room| (room.free, room.total, room.source))
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\n");

    #[test]
    fn the_machines_free_memory_counts_where_no_group_has_a_limit() {
        let free = Some((8000 * 1024, 9000 * 1024, "MemAvailable of /proc/meminfo".to_owned()));
        assert_eq!(room(&[MEMINFO]), free);
        let files = [MEMINFO, ("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")];
        assert_eq!(room(&files), free);
        assert_eq!(room(&[]), None);
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
        assert_eq!(room(&files), Some((750_000, 5_000_000, "/sys/fs/cgroup/slice/memory.max".to_owned())));
    }

    #[test]
    fn groups_of_the_first_version_count_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n"),
            ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(
            room(&files),
            Some((2_100_000, 3_000_000, "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned()))
        );
    }

    #[test]
    fn the_pool_is_what_memory_lets_it_be() {
        let wish = PoolSizing { page_bytes: 1000, pages_per_request: 10, max_num_reqs: 8, kv_cache_bytes: None };
        let room = |free| Room { free, total: u64::MAX, source: "S".to_owned(), is_dedicated: false };
        let pages = |wish: PoolSizing, n_bytes: u64| wish.n_pages(Some(&room(n_bytes)));
        assert_eq!(wish.n_pages(None), Ok(80), "a full batch");
        assert_eq!(pages(wish, 1 << 40), Ok(80));
        assert_eq!(
            pages(PoolSizing { page_bytes: 1 << 20, max_num_reqs: 1 << 20, ..wish }, 1 << 40),
            Ok(1024),
            "1 GiB"
        );
        assert_eq!(pages(wish, 100_000), Ok(50), "half of what is left");
        assert_eq!(pages(wish, 10_000), Ok(10), "one request");
        let message = pages(wish, 9_999).unwrap_err();
        assert!(message.contains("takes 10000 bytes and 9999 are left (S)"), "{message}");
        let told = |n_bytes| PoolSizing { kv_cache_bytes: Some(n_bytes), ..wish };
        assert_eq!(pages(told(4_500), 5_000), Ok(4));
        assert_eq!(
            pages(told(5_001), 5_000),
            Err("--kv-cache-bytes: 5001 bytes are asked for and 5000 are left (S)".to_owned())
        );
        let too_small = Err("--kv-cache-bytes: must be at least 1000, one page, got 999".to_owned());
        assert_eq!(pages(told(999), 5_000), too_small);
    }
}
