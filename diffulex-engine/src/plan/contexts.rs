//! Contexts: pages of the prefix cache that are held between requests.
//!
//! A context is a number, given by the front end, which owns its tokens; here it has the pages of their whole blocks. A page is
//! held as requests hold theirs, by a count in the [`PagePool`], so pages are accounted for once and forks share them. A context
//! that loses its pages loses only time: its next request encodes its tokens again.
//!
//! Never here: tokens, requests, tensors.

use std::collections::{BTreeMap, HashMap};

use crate::AdapterId;
use crate::plan::kv::{PageId, PagePool};

/// Number of a context.
pub type ContextId = u64;

/// Pages of one context.
#[derive(Clone, Debug, Default)]
struct Held {
    /// In order of position.
    pages: Vec<PageId>,
    adapter: Option<AdapterId>,
    /// Requests in flight that extend it.
    n_users: u32,
    /// When it was last used, by a count of uses.
    last_use: u64,
}

/// The contexts that hold pages or are used.
#[derive(Debug, Default)]
pub struct Contexts {
    held: BTreeMap<ContextId, Held>,
    /// Number of contexts that hold each page, for pages that any holds.
    n_holders: HashMap<PageId, u32>,
    /// Most pages that contexts may hold, each counted once.
    max_pages: usize,
    n_uses: u64,
}

impl Contexts {
    /// No contexts, which may hold `max_pages` in all.
    pub fn new(max_pages: usize) -> Self {
        Self { max_pages, ..Self::default() }
    }

    /// Number of contexts that hold pages.
    pub fn n_contexts(&self) -> usize {
        self.held.values().filter(|held| !held.pages.is_empty()).count()
    }

    /// Number of pages that contexts hold, each counted once.
    pub fn n_pages(&self) -> usize {
        self.n_holders.len()
    }

    /// The pages of each context.
    pub fn holdings(&self) -> impl Iterator<Item = &[PageId]> {
        self.held.values().map(|held| held.pages.as_slice())
    }

    /// Notes that a request uses `id` until [`Self::end_use`].
    pub fn begin_use(&mut self, id: ContextId) {
        let last_use = self.next_use();
        let held = self.held.entry(id).or_default();
        held.n_users += 1;
        held.last_use = last_use;
    }

    /// Notes that a request that used `id` has ended.
    pub fn end_use(&mut self, id: ContextId) {
        let last_use = self.next_use();
        if let Some(held) = self.held.get_mut(&id) {
            held.n_users = held.n_users.saturating_sub(1);
            held.last_use = last_use;
            self.drop_if_empty(id);
        }
    }

    /// Makes `pages`, of which the caller has a hold each, the pages of `id`, instead of those it has. Returns how many of them
    /// fit, from the front; the rest is released.
    pub fn hold(
        &mut self,
        id: ContextId,
        adapter: Option<AdapterId>,
        mut pages: Vec<PageId>,
        pool: &mut PagePool,
    ) -> usize {
        self.release(id, pool);
        let n_new =
            |this: &Self, pages: &[PageId]| pages.iter().filter(|page| !this.n_holders.contains_key(page)).count();
        while self.n_pages() + n_new(self, &pages) > self.max_pages {
            if self.take_idle(pool) {
                continue;
            }
            // The others are in use: the end of this one goes.
            let Some(last) = pages.pop() else { break };
            pool.give_back(&mut vec![last]);
        }
        let n_held = pages.len();
        if n_held > 0 {
            for page in &pages {
                *self.n_holders.entry(*page).or_default() += 1;
            }
            let last_use = self.next_use();
            let held = self.held.entry(id).or_default();
            *held = Held { pages, adapter, last_use, n_users: held.n_users };
        }
        n_held
    }

    /// Lets `child` hold the pages of `parent`, too.
    pub fn fork(&mut self, parent: ContextId, child: ContextId, pool: &mut PagePool) {
        let Some(Held { pages, adapter, .. }) = self.held.get(&parent).cloned() else { return };
        pages.iter().for_each(|page| pool.share(*page));
        self.hold(child, adapter, pages, pool);
    }

    /// Releases the pages of `id`.
    pub fn release(&mut self, id: ContextId, pool: &mut PagePool) {
        let Some(held) = self.held.get_mut(&id) else { return };
        let mut pages = std::mem::take(&mut held.pages);
        for page in &pages {
            if let Some(n_holders) = self.n_holders.get_mut(page) {
                *n_holders -= 1;
                if *n_holders == 0 {
                    self.n_holders.remove(page);
                }
            }
        }
        pool.give_back(&mut pages);
        self.drop_if_empty(id);
    }

    /// Releases the pages of all contexts with `adapter`.
    pub fn release_adapter(&mut self, adapter: AdapterId, pool: &mut PagePool) {
        let of_adapter = |(id, held): (&ContextId, &Held)| (held.adapter == Some(adapter)).then_some(*id);
        for id in self.held.iter().filter_map(of_adapter).collect::<Vec<_>>() {
            self.release(id, pool);
        }
    }

    /// Releases the pages of the context without a request that was used longest ago. False if there is none.
    pub fn take_idle(&mut self, pool: &mut PagePool) -> bool {
        self.take(|held| held.n_users == 0, pool)
    }

    /// Releases the pages of an idle context, or else of one in use. False if no context holds pages.
    pub fn take_any(&mut self, pool: &mut PagePool) -> bool {
        self.take_idle(pool) || self.take(|_| true, pool)
    }

    fn take(&mut self, may_lose: impl Fn(&Held) -> bool, pool: &mut PagePool) -> bool {
        let candidates = self.held.iter().filter(|(_, held)| !held.pages.is_empty() && may_lose(held));
        let Some(id) = candidates.min_by_key(|(_, held)| held.last_use).map(|(id, _)| *id) else { return false };
        self.release(id, pool);
        true
    }

    fn drop_if_empty(&mut self, id: ContextId) {
        if self.held.get(&id).is_some_and(|held| held.pages.is_empty() && held.n_users == 0) {
            self.held.remove(&id);
        }
    }

    fn next_use(&mut self) -> u64 {
        self.n_uses += 1;
        self.n_uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool and `n` pages of it, taken.
    fn taken(n: usize) -> (PagePool, Vec<PageId>) {
        let mut pool = PagePool::new(8);
        let pages = (0..n).map(|_| pool.take().unwrap()).collect();
        (pool, pages)
    }

    #[test]
    fn a_fork_shares_pages_and_either_may_be_freed_first() {
        let (mut pool, pages) = taken(2);
        let mut contexts = Contexts::new(8);
        assert_eq!(contexts.hold(1, None, pages, &mut pool), 2);
        contexts.fork(1, 2, &mut pool);
        assert_eq!((contexts.n_contexts(), contexts.n_pages(), pool.n_free()), (2, 2, 6));
        contexts.release(1, &mut pool);
        assert_eq!((contexts.n_contexts(), contexts.n_pages(), pool.n_free()), (1, 2, 6));
        contexts.release(2, &mut pool);
        assert_eq!((contexts.n_contexts(), contexts.n_pages(), pool.n_free()), (0, 0, 8));
        contexts.fork(1, 3, &mut pool);
        assert!(contexts.held.is_empty(), "a fork of nothing is nothing");
    }

    #[test]
    fn the_idle_context_used_longest_ago_loses_its_pages_first_and_one_in_use_last() {
        let (mut pool, pages) = taken(3);
        let mut contexts = Contexts::new(8);
        for (id, page) in (1..).zip(pages) {
            contexts.hold(id, None, vec![page], &mut pool);
        }
        contexts.begin_use(1);
        contexts.begin_use(2);
        contexts.end_use(2);
        let left = |contexts: &Contexts| contexts.held.keys().copied().collect::<Vec<_>>();
        assert!(contexts.take_idle(&mut pool));
        assert_eq!(left(&contexts), [1, 2]);
        assert!(contexts.take_idle(&mut pool) && !contexts.take_idle(&mut pool));
        assert!(contexts.take_any(&mut pool) && !contexts.take_any(&mut pool));
        assert_eq!((pool.n_free(), left(&contexts)), (8, vec![1]));
        contexts.end_use(1);
        assert!(contexts.held.is_empty());
    }

    #[test]
    fn contexts_hold_no_more_pages_than_they_may() {
        let (mut pool, pages) = taken(4);
        let mut contexts = Contexts::new(3);
        contexts.hold(1, None, pages[..2].to_vec(), &mut pool);
        assert_eq!(contexts.hold(2, None, pages[2..].to_vec(), &mut pool), 2, "the idle one goes");
        assert_eq!((contexts.n_contexts(), contexts.n_pages(), pool.n_free()), (1, 2, 6));
        contexts.begin_use(2);
        let more = vec![pool.take().unwrap(), pool.take().unwrap()];
        assert_eq!(contexts.hold(3, None, more, &mut pool), 1, "the end of the new one goes");
        assert_eq!((contexts.n_pages(), pool.n_free()), (3, 5));
    }

    #[test]
    fn the_contexts_of_an_adapter_go_with_it() {
        let (mut pool, pages) = taken(2);
        let mut contexts = Contexts::new(8);
        contexts.hold(1, Some(5), vec![pages[0]], &mut pool);
        contexts.hold(2, None, vec![pages[1]], &mut pool);
        contexts.release_adapter(5, &mut pool);
        assert_eq!((contexts.n_contexts(), pool.n_free()), (1, 7));
    }
}
