//! Greedy and seeded answers do not depend on what else runs, nor on how memory is cut or lost.

use diffulex_engine::EngineOptions;
use diffulex_protocol::{DecodingOverrides, SamplingParams};

use crate::harness::{engine, greedy, options, prompt, request, run, run_with};

/// Requests of many lengths; every third one draws.
fn many(n: u32) -> Vec<(String, Vec<u32>, SamplingParams)> {
    (0..n)
        .map(|index| {
            let mut params = greedy(9 + index * 5 % 31);
            if index % 3 == 2 {
                params.temperature = 0.8;
                params.top_p = Some(0.95);
                params.seed = Some(u64::from(index));
            }
            (format!("r{index}"), prompt(index, 1 + (index as usize * 7) % 29), params)
        })
        .collect()
}

/// `(token_ids)` of each request, all at once.
fn together(options: &EngineOptions, requests: &[(String, Vec<u32>, SamplingParams)]) -> Vec<Vec<u32>> {
    let mut engine = engine(options);
    let sent = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
    let told = run(&mut engine, sent);
    requests.iter().map(|(rid, ..)| told.reply(rid).token_ids.clone()).collect()
}

/// The same, each on an engine of its own.
fn alone(options: &EngineOptions, requests: &[(String, Vec<u32>, SamplingParams)]) -> Vec<Vec<u32>> {
    let mut engine = engine(&EngineOptions { prefix_caching: false, ..options.clone() });
    requests
        .iter()
        .map(|(rid, prompt, params)| {
            let told = run(&mut engine, vec![request(rid, prompt, params.clone())]);
            told.reply(rid).token_ids.clone()
        })
        .collect()
}

#[test]
fn batch_and_page_size_change_nothing() {
    let requests = many(12);
    let want = alone(&options(), &requests);
    assert!(want.iter().zip(&requests).all(|(ids, (_, _, params))| ids.len() == params.max_tokens as usize));
    for page_size in [4, 8, 32] {
        let options = EngineOptions { page_size, ..options() };
        assert_eq!(together(&options, &requests), want, "page size {page_size}");
    }
}

#[test]
fn threads_and_budget_change_nothing() {
    let requests = many(9);
    let want = alone(&options(), &requests);
    let tight = EngineOptions { threads: Some(1), max_num_batched_tokens: 24, max_num_reqs: 3, ..options() };
    assert_eq!(together(&tight, &requests), want);
}

#[test]
fn commits_that_ride_along_change_nothing() {
    let requests = many(9);
    let one = alone(&EngineOptions { buffer_size: Some(1), ..options() }, &requests);
    let two = EngineOptions { buffer_size: Some(2), add_block_threshold: Some(1.0), ..options() };
    assert_eq!(alone(&two, &requests), one);
    assert_eq!(together(&two, &requests), one);
}

#[test]
fn blocks_in_flight_do_not_depend_on_the_batch() {
    let requests = many(9);
    let options = EngineOptions {
        buffer_size: Some(3),
        add_block_threshold: Some(0.25),
        accept_rule: Some("gated_threshold".to_owned()),
        ..options()
    };
    let want = alone(&options, &requests);
    assert_eq!(together(&options, &requests), want);
    assert_eq!(together(&EngineOptions { max_num_batched_tokens: 32, ..options }, &requests), want);
}

#[test]
fn a_prefix_hit_changes_nothing() {
    let mut engine = engine(&options());
    let shared = prompt(3, 21);
    let mut longer = shared.clone();
    longer.extend(prompt(4, 6));
    let cold = run(&mut engine, vec![request("cold", &shared, greedy(17))]);
    let warm = run(&mut engine, vec![request("warm", &shared, greedy(17)), request("longer", &longer, greedy(9))]);
    assert_eq!(warm.reply("warm").token_ids, cold.reply("cold").token_ids);
    // 21 tokens: two whole pages of 8.
    assert_eq!(cold.reply("cold").cached_tokens, 0);
    assert_eq!(warm.reply("warm").cached_tokens, 16);
    assert_eq!(warm.reply("longer").cached_tokens, 16);
    let want = alone(&options(), &[("longer".to_owned(), longer, greedy(9))]);
    assert_eq!(warm.reply("longer").token_ids, want[0]);
}

#[test]
fn an_answer_is_a_prefix_for_the_next_turn() {
    let mut engine = engine(&options());
    let first = prompt(5, 8);
    let told = run(&mut engine, vec![request("first", &first, greedy(16))]);
    let mut second = first;
    second.extend(&told.reply("first").token_ids);
    second.extend([1, 2, 3]);
    let told = run(&mut engine, vec![request("second", &second, greedy(8))]);
    // The last block of an answer is never written to the cache, so 20 of 24 tokens are, and two whole pages of those.
    assert_eq!(told.reply("second").cached_tokens, 16);
    let want = alone(&options(), &[("second".to_owned(), second, greedy(8))]);
    assert_eq!(told.reply("second").token_ids, want[0]);
}

#[test]
fn preemption_at_any_step_changes_nothing() {
    for (buffer_size, add_block_threshold) in [(1, 1.0), (2, 1.0), (3, 0.25)] {
        for prefix_caching in [false, true] {
            let options = EngineOptions {
                buffer_size: Some(buffer_size),
                add_block_threshold: Some(add_block_threshold),
                accept_rule: Some("gated_threshold".to_owned()),
                prefix_caching,
                ..options()
            };
            let requests = many(3);
            let want = alone(&options, &requests);
            for when in 0..14 {
                let mut engine = engine(&options);
                let sent = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
                let told = run_with(&mut engine, sent, |engine, tick| {
                    if tick == when || tick == when + 3 {
                        engine.preempt("r1");
                    }
                });
                for ((rid, ..), want) in requests.iter().zip(&want) {
                    assert_eq!(&told.reply(rid).token_ids, want, "{rid}, preempted at {when}, {buffer_size} blocks");
                }
            }
        }
    }
}

#[test]
fn a_pool_that_is_too_small_for_all_still_answers_all() {
    let requests = many(8);
    let want = alone(&options(), &requests);
    // Layers 3, K and V, 2 heads of 32, 8 positions of 4 bytes: 12288 bytes a page; the longest request takes 9.
    let small = EngineOptions { kv_cache_bytes: Some(10 * 12_288), ..options() };
    let mut engine = engine(&small);
    let sent = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
    let told = run(&mut engine, sent);
    for ((rid, ..), want) in requests.iter().zip(&want) {
        assert_eq!(&told.reply(rid).token_ids, want, "{rid}");
    }
}

#[test]
fn the_same_seed_is_the_same_text_and_another_seed_another() {
    let mut engine = engine(&options());
    let drawn = |seed| SamplingParams { temperature: 1.0, seed: Some(seed), ..greedy(24) };
    let told = run(
        &mut engine,
        vec![
            request("a", &prompt(1, 9), drawn(7)),
            request("b", &prompt(1, 9), drawn(7)),
            request("c", &prompt(1, 9), drawn(8)),
        ],
    );
    assert_eq!(told.reply("a").token_ids, told.reply("b").token_ids);
    assert_ne!(told.reply("a").token_ids, told.reply("c").token_ids);
    assert_eq!(told.reply("a").seed, Some(7));
}

#[test]
fn overrides_of_one_request_do_not_touch_another() {
    let requests = many(4);
    let want = alone(&options(), &requests);
    let mut engine = engine(&options());
    let mut sent: Vec<_> = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
    let mut other = request("other", &prompt(9, 11), greedy(20));
    other.sampling_params.decoding =
        DecodingOverrides { accept_rule: Some("static".to_owned()), denoising_steps: Some(2), ..Default::default() };
    sent.insert(0, other);
    let told = run(&mut engine, sent);
    for ((rid, ..), want) in requests.iter().zip(&want) {
        assert_eq!(&told.reply(rid).token_ids, want);
    }
}
