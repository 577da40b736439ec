//! Pages of the KV cache: what a flush forgets, whose names they have, and when they add up.

use diffulex_engine::kv::{PageHash, PageId, PagePool};

#[test]
fn a_flush_forgets_free_pages_only() {
    let mut pool = PagePool::new(3);
    assert_eq!((pool.n_pages(), pool.n_free()), (3, 3));
    let mut held: Vec<PageId> = std::iter::from_fn(|| pool.take()).collect();
    let [shared, other] = [[1, 2], [3, 4]].map(|ids| (pool.hash(PageHash::root(None), &ids), ids));
    // The first two have the same content, so that the first has the name.
    for (page, (hash, ids)) in held.iter().zip([shared, shared, other]) {
        pool.name(*page, hash, &ids);
    }
    pool.give_back(&mut held.split_off(1));
    pool.forget_free();
    assert_eq!(pool.find(shared.0, &shared.1), Some(held[0]), "it is held");
    assert_eq!(pool.find(other.0, &other.1), None);
}

#[test]
fn adapters_have_names_of_their_own() {
    let roots = [None, Some(0), Some(1)].map(PageHash::root);
    assert!(roots[0] != roots[1] && roots[1] != roots[2] && roots[0] != roots[2]);
    let pool = PagePool::new(1);
    assert_ne!(pool.hash(roots[0], &[1]), pool.hash(roots[1], &[1]));
}

#[test]
fn pages_that_do_not_add_up_are_noticed() {
    let mut pool = PagePool::new(2);
    let page = pool.take().expect("a page");
    let holdings: [&[PageId]; 1] = [&[page]];
    assert!(pool.is_consistent(holdings.into_iter()));
    assert!(!pool.is_consistent([].into_iter()), "nobody holds it");
    assert!(!pool.is_consistent(holdings.into_iter().chain(holdings)), "two hold it");
}
