//! The size of the KV pool.
//!
//! Never here: pages, requests.

use crate::kernels::AvailableMemory;

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
    pub(crate) fn n_pages(self, room: Option<&AvailableMemory>) -> Result<usize, String> {
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

    #[test]
    fn the_pool_is_what_memory_lets_it_be() {
        let wish = PoolSizing { page_bytes: 1000, pages_per_request: 10, max_num_reqs: 8, kv_cache_bytes: None };
        let room = |free| AvailableMemory { free, total: u64::MAX, source: "S".to_owned(), is_dedicated: false };
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
