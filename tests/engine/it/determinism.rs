//! Greedy and seeded answers do not depend on what else runs, nor on how memory is cut or lost.

use diffulex_engine::sequence::LayoutRules;
use diffulex_engine::{DtypeChoice, Engine, EngineOptions, Quantization, ServingEngine};
use diffulex_protocol::{DecodingSettings, SamplingParams, ServingCommand};
use diffulex_strategies::{AcceptRule, Layout};
use serde_json::json;

use crate::harness::{
    Subject, deciding, decoding, engine, greedy, options, prompt, request, run, run_with, subject, subjects,
};

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

/// The tokens of each request, all at once.
fn together(engine: &mut Engine, requests: &[(String, Vec<u32>, SamplingParams)]) -> Vec<Vec<u32>> {
    let sent = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
    let told = run(engine, sent);
    requests.iter().map(|(rid, ..)| told.reply(rid).token_ids.clone()).collect()
}

/// The same, one after the other; `engine` finds no prefixes.
fn one_by_one(engine: &mut Engine, requests: &[(String, Vec<u32>, SamplingParams)]) -> Vec<Vec<u32>> {
    assert!(!engine.config().prefix_caching);
    requests.iter().flat_map(|request| together(engine, std::slice::from_ref(request))).collect()
}

fn without_prefixes(options: &EngineOptions) -> EngineOptions {
    EngineOptions { prefix_caching: false, ..options.clone() }
}

fn alone(options: &EngineOptions, requests: &[(String, Vec<u32>, SamplingParams)]) -> Vec<Vec<u32>> {
    one_by_one(&mut engine(&without_prefixes(options)), requests)
}

#[test]
fn batch_page_size_threads_and_budget_change_nothing() {
    let requests = many(9);
    for subject in subjects() {
        let options = &subject.options;
        let want = one_by_one(&mut subject.engine(&without_prefixes(options)), &requests);
        assert!(want.iter().zip(&requests).all(|(ids, (_, _, params))| ids.len() == params.max_tokens as usize));
        let tight = EngineOptions {
            threads: Some(1),
            max_num_batched_tokens: subject.least_rows,
            max_num_reqs: 3,
            ..options.clone()
        };
        let others =
            [4, 8, 32].map(|page_size| EngineOptions { page_size, ..options.clone() }).into_iter().chain([tight]);
        for options in others {
            let got = together(&mut subject.engine(&options), &requests);
            assert_eq!(got, want, "{}, {options:?}", subject.strategy);
        }
        let too_tight = EngineOptions { max_num_batched_tokens: subject.least_rows - 1, ..options.clone() };
        assert!(Engine::load(&subject.files, &too_tight, &mut |_| {}).is_err(), "{}", subject.strategy);
    }
}

#[test]
fn however_weights_are_held_batch_page_size_and_threads_change_nothing() {
    let requests = many(9);
    let bfloat16 = |options: EngineOptions| EngineOptions { dtype: DtypeChoice::Bfloat16, ..options };
    let int8 = |options: EngineOptions| EngineOptions { quantization: Quantization::Int8, ..options };
    let int4 = |options: EngineOptions| EngineOptions { quantization: Quantization::Int4, ..options };
    let holds: [&dyn Fn(EngineOptions) -> EngineOptions; 3] = [&bfloat16, &int8, &int4];
    let mut answers = Vec::new();
    for subject in subjects()
        .into_iter()
        .filter(|subject| ["multi_bd", "dmax", "diffusion_gemma", "d2f"].contains(&subject.strategy))
    {
        for hold in holds {
            let options = hold(subject.options.clone());
            let want = one_by_one(&mut subject.engine(&without_prefixes(&options)), &requests);
            for others in [
                EngineOptions { page_size: 4, threads: Some(1), ..options.clone() },
                EngineOptions { page_size: 32, threads: Some(3), ..options.clone() },
            ] {
                assert_eq!(together(&mut subject.engine(&others), &requests), want, "{}, {others:?}", subject.strategy);
            }
            answers.push(want);
        }
    }
    // Each way of holding them is a way of its own.
    answers.dedup();
    assert!(answers.len() > holds.len());
}

#[test]
fn commits_that_ride_along_change_nothing() {
    let requests = many(9);
    for subject in
        subjects().into_iter().filter(|subject| ["multi_bd", "block_edit", "dmax"].contains(&subject.strategy))
    {
        let in_flight = |n| {
            let options = deciding(
                EngineOptions { buffer_size: Some(n), ..subject.options.clone() },
                json!({ "add_block_threshold": 1.0 }),
            );
            subject.engine(&without_prefixes(&options))
        };
        let one = one_by_one(&mut in_flight(1), &requests);
        assert_eq!(one_by_one(&mut in_flight(2), &requests), one, "{}", subject.strategy);
        assert_eq!(together(&mut in_flight(2), &requests), one, "{}", subject.strategy);
    }
}

#[test]
fn blocks_in_flight_do_not_depend_on_the_batch() {
    let requests = many(9);
    let options = deciding(
        EngineOptions { buffer_size: Some(3), ..options() },
        json!({ "add_block_threshold": 0.25, "accept_rule": "gated_threshold" }),
    );
    let want = alone(&options, &requests);
    assert_eq!(together(&mut engine(&options), &requests), want);
    let tight = EngineOptions { max_num_batched_tokens: 32, ..options };
    assert_eq!(together(&mut engine(&tight), &requests), want);
}

#[test]
fn a_prefix_hit_changes_nothing() {
    for subject in subjects() {
        let mut engine = subject.engine(&subject.options);
        let mut plain = subject.engine(&without_prefixes(&subject.options));
        let requests = |shared_len: usize| {
            let shared = prompt(3, shared_len);
            let longer = [shared.clone(), prompt(4, 6)].concat();
            [("shared", shared, 17), ("longer", longer, 9)]
                .map(|(rid, prompt, max_tokens)| (rid.to_owned(), prompt, greedy(max_tokens)))
        };
        // 21 tokens: two whole pages of 8. 24: three, and nothing of the prompt is left to encode.
        for (shared_len, cached) in [(21, 16), (24, 24)] {
            let requests = requests(shared_len);
            let want = one_by_one(&mut plain, &requests);
            let told = together(&mut engine, &requests[..1]);
            assert_eq!(told, want[..1], "{}", subject.strategy);
            let sent = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
            let told = run(&mut engine, sent);
            let cached = if LayoutRules::of(engine.config().strategy.requirements().layout).shares_prefixes() {
                cached
            } else {
                0
            };
            for ((rid, ..), want) in requests.iter().zip(&want) {
                assert_eq!(&told.reply(rid).token_ids, want, "{}, {rid}", subject.strategy);
                assert_eq!(told.reply(rid).cached_tokens, cached, "{}, {rid}", subject.strategy);
            }
        }
    }
}

/// Where blocks are longer than pages, tokens of the next page shape the K/V of this one.
#[test]
fn a_page_inside_a_block_is_found_only_with_all_of_the_block() {
    for (block_size, seed) in [(32, 0), (32, 1), (12, 2), (12, 3)] {
        let options = EngineOptions { block_size: Some(block_size), page_size: 8, ..options() };
        let [first, second] = [10, 20].map(|other| [prompt(seed, 8), prompt(other + seed, 24)].concat());
        let third = [second.clone(), prompt(30 + seed, 5)].concat();
        let requests = [("first", first), ("second", second), ("third", third)]
            .map(|(rid, prompt)| (rid.to_owned(), prompt, greedy(20)));
        let want = alone(&options, &requests);
        let mut engine = engine(&options);
        for (request, want) in requests.iter().zip(&want) {
            assert_eq!(together(&mut engine, std::slice::from_ref(request))[0], *want, "{}", request.0);
        }
        assert!(engine.stats().prefix_hits > 0, "the third begins as the second");
    }
}

#[test]
fn an_answer_is_a_prefix_for_the_next_turn() {
    for subject in subjects() {
        let mut engine = subject.engine(&subject.options);
        if !LayoutRules::of(engine.config().strategy.requirements().layout).shares_prefixes() {
            continue;
        }
        let first = prompt(5, 8);
        let told = run(&mut engine, vec![request("first", &first, greedy(16))]);
        let mut second = first;
        second.extend(&told.reply("first").token_ids);
        second.extend([1, 2, 3]);
        let told = run(&mut engine, vec![request("second", &second, greedy(8))]);
        // The last block of an answer need not be written to the cache; then two whole pages of the others are.
        assert!([16, 24].contains(&told.reply("second").cached_tokens), "{}", subject.strategy);
        let want = one_by_one(
            &mut subject.engine(&without_prefixes(&subject.options)),
            &[("second".to_owned(), second, greedy(8))],
        );
        assert_eq!(told.reply("second").token_ids, want[0], "{}", subject.strategy);
    }
}

/// Preempts the second of three requests at every step.
fn preemption_changes_nothing(what: &str, engine: impl Fn(bool) -> Engine) {
    let requests = many(3);
    let want = one_by_one(&mut engine(false), &requests);
    for prefix_caching in [false, true] {
        let mut engine = engine(prefix_caching);
        for when in 0..14 {
            let sent = requests.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
            let told = run_with(&mut engine, sent, |engine, tick| {
                if tick == when || tick == when + 3 {
                    engine.preempt("r1");
                }
            });
            for ((rid, ..), want) in requests.iter().zip(&want) {
                assert_eq!(&told.reply(rid).token_ids, want, "{what}: {rid}, preempted at {when}");
            }
            // Each run finds what it wrote itself, and nothing of the one before.
            engine.tick(vec![ServingCommand::FlushCache]);
        }
    }
}

#[test]
fn preemption_at_any_step_changes_nothing() {
    for subject in subjects() {
        preemption_changes_nothing(subject.strategy, |prefix_caching| {
            subject.engine(&EngineOptions { prefix_caching, ..subject.options.clone() })
        });
    }
    for (buffer_size, add_block_threshold) in [(1, 1.0), (3, 0.25)] {
        preemption_changes_nothing(&format!("{buffer_size} blocks"), |prefix_caching| {
            engine(&deciding(
                EngineOptions { buffer_size: Some(buffer_size), prefix_caching, ..options() },
                json!({ "add_block_threshold": add_block_threshold, "accept_rule": "gated_threshold" }),
            ))
        });
    }
}

#[test]
fn a_pool_that_is_too_small_for_all_still_answers_all() {
    let requests = many(8);
    for subject in subjects() {
        let want = one_by_one(&mut subject.engine(&without_prefixes(&subject.options)), &requests);
        // The longest request takes 9 pages.
        let small = EngineOptions { kv_cache_bytes: Some(10 * subject.page_bytes), ..subject.options.clone() };
        let mut engine = subject.engine(&small);
        assert_eq!(together(&mut engine, &requests), want, "{}", subject.strategy);
        // A whole answer takes its pages at once, and waits until there are enough.
        let takes_all = engine.config().strategy.requirements().layout == Layout::WholeAnswer;
        assert_ne!(engine.stats().preemptions > 0, takes_all, "{}", subject.strategy);
    }
}

#[test]
fn a_request_may_set_what_the_server_may() {
    let requests = many(4);
    for subject in subjects() {
        let decoding = &subject.options.decoding;
        let want = one_by_one(&mut subject.engine(&without_prefixes(&subject.options)), &requests);
        let ask = |(rid, prompt, params): &(String, Vec<u32>, SamplingParams)| {
            (rid.clone(), prompt.clone(), SamplingParams { decoding: decoding.clone(), ..params.clone() })
        };
        let asked: Vec<_> = requests.iter().map(ask).collect();
        let bare = EngineOptions { decoding: DecodingSettings::default(), ..subject.options.clone() };
        assert_eq!(together(&mut subject.engine(&bare), &asked), want, "{}, {decoding:?}", subject.strategy);
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
    other.sampling_params.decoding = decoding(json!({ "accept_rule": "static", "denoising_steps": 2 }));
    sent.insert(0, other);
    let told = run(&mut engine, sent);
    for ((rid, ..), want) in requests.iter().zip(&want) {
        assert_eq!(&told.reply(rid).token_ids, want);
    }
}

/// Strategies that take every accept rule.
const RULED: [&str; 3] = ["multi_bd", "semi_ar", "diffusion_generate"];

#[test]
fn every_accept_rule_comes_to_an_end_and_is_the_same_in_company() {
    let requests = &many(6)[..];
    let is_plain = |subject: &&Subject| {
        let is_set = |name| subject.options.decoding.get(name).is_some();
        RULED.contains(&subject.strategy) && !is_set("kv_reuse") && !is_set("accept_rule")
    };
    for subject in subjects().iter().filter(is_plain) {
        // Requests name the rule: what a request may set, the server may, too.
        let options = without_prefixes(&subject.options);
        let [mut for_one, mut for_all] = [(); 2].map(|()| subject.engine(&options));
        for rule in AcceptRule::NAMES {
            let mut requests = requests.to_vec();
            for (.., params) in &mut requests {
                params.decoding = decoding(json!({ "accept_rule": rule }));
            }
            let alone = one_by_one(&mut for_one, &requests);
            assert_eq!(together(&mut for_all, &requests), alone, "{rule} of {}", subject.strategy);
        }
    }
}

#[test]
fn the_seed_decides_what_is_left_to_chance() {
    let alg_temp = decoding(json!({ "alg_temp": 1.0 }));
    let rule = |name: &str| decoding(json!({ "accept_rule": name }));
    for (strategy, decoding) in
        [("semi_ar", rule("random")), ("diffusion_generate", rule("origin")), ("diffusion_generate", alg_temp)]
    {
        let subject = subject(strategy);
        let answer = |seed| {
            let params = SamplingParams { seed: Some(seed), decoding: decoding.clone(), ..greedy(24) };
            let told = run(&mut subject.engine(&subject.options), vec![request("r", &prompt(1, 9), params)]);
            told.reply("r").token_ids.clone()
        };
        assert_eq!(answer(1), answer(1), "{decoding:?}");
        assert!((2..6).any(|seed| answer(seed) != answer(1)), "{decoding:?}");
    }
}
