//! Contexts: an answer on one is that of the whole text, its pages are shared and accounted for, and what takes them costs time only.

use diffulex_engine::sequence::{ContextGrowth, LayoutRules};
use diffulex_engine::{Engine, EngineOptions, ServingEngine};
use diffulex_protocol::{
    ContextUse, ErrorCode, SamplingParams, ServingCommand, ServingEvent, ServingGenerate, ServingReply,
};

use crate::harness::{Subject, engine, greedy, options, prompt, request, subjects};

/// A request on context `id` for all of its tokens.
fn on_context(id: u64, fills: bool, tokens: &[u32], params: SamplingParams) -> ServingGenerate {
    ServingGenerate { context: Some(ContextUse { id, fills }), ..request("r", tokens, params) }
}

/// Runs `commands` to the end of their only request, which has a reply.
fn reply_of(engine: &mut Engine, commands: Vec<ServingCommand>) -> ServingReply {
    let mut events = engine.tick(commands);
    while engine.has_work() {
        assert!(engine.pages_are_consistent());
        events.extend(engine.tick(Vec::new()));
    }
    assert!(engine.pages_are_consistent());
    match events.pop() {
        Some(ServingEvent::Reply(reply)) => *reply,
        other => panic!("{other:?}"),
    }
}

fn fill(engine: &mut Engine, id: u64, tokens: &[u32]) -> ServingReply {
    let reply = reply_of(engine, vec![ServingCommand::Generate(on_context(id, true, tokens, greedy(1)))]);
    assert!(reply.token_ids.is_empty() && reply.nfe_counts.decoding() == 0, "{reply:?}");
    reply
}

fn generate(engine: &mut Engine, id: u64, tokens: &[u32], params: &SamplingParams) -> ServingReply {
    reply_of(engine, vec![ServingCommand::Generate(on_context(id, false, tokens, params.clone()))])
}

fn plain(engine: &mut Engine, tokens: &[u32], params: &SamplingParams) -> Vec<u32> {
    reply_of(engine, vec![ServingCommand::Generate(request("r", tokens, params.clone()))]).token_ids
}

fn growth(engine: &Engine) -> ContextGrowth {
    LayoutRules::of(engine.config().strategy.requirements().layout).context_growth()
}

fn seeded(max_tokens: u32, seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: Some(seed), ..greedy(max_tokens) }
}

fn without_prefixes(subject: &Subject) -> Engine {
    subject.engine(&EngineOptions { prefix_caching: false, ..subject.options.clone() })
}

#[test]
fn filling_in_two_pieces_and_generating_is_generating_from_the_whole() {
    for subject in subjects() {
        let mut held = subject.engine(&subject.options);
        if growth(&held) != ContextGrowth::Grows {
            continue;
        }
        let mut alone = without_prefixes(&subject);
        let block_size = held.config().strategy.requirements().block_size;
        let whole = prompt(7, 3 * block_size.max(8) + 3);
        for params in [greedy(11), seeded(11, 5)] {
            for split in block_size..2 * block_size {
                let id = split as u64;
                let pieces = [&whole[..split], &whole[..]];
                let filled = pieces.map(|piece| fill(&mut held, id, piece).context.unwrap());
                let reply = generate(&mut held, id, &whole, &params);
                assert_eq!(
                    reply.token_ids,
                    plain(&mut alone, &whole, &params),
                    "{}, split at {split}",
                    subject.strategy
                );
                assert_eq!(reply.cached_tokens, filled[1].held, "{}, split at {split}", subject.strategy);
                assert!(filled[1].held >= filled[0].held && filled[1].held >= 8 && filled[1].grows);
                held.tick(vec![ServingCommand::FreeContext { context: id }]);
            }
        }
        let stats = held.stats();
        assert_eq!((stats.contexts, stats.context_pages, stats.kv_pages_free), (0, 0, stats.kv_pages_total));
    }
}

#[test]
fn turn_after_turn_on_a_context_is_the_conversation_sent_whole() {
    for subject in subjects() {
        let mut held = subject.engine(&subject.options);
        if growth(&held) != ContextGrowth::Grows {
            continue;
        }
        let mut alone = without_prefixes(&subject);
        for first_len in [5, 8, 9] {
            let mut text = Vec::new();
            let mut last_held = 0;
            for (turn, n_written) in [(0, 13), (1, 8), (2, 5)] {
                text.extend(prompt(turn + 20, if turn == 0 { first_len } else { 3 }));
                let params = if turn == 1 { seeded(n_written, 3) } else { greedy(n_written) };
                let reply = generate(&mut held, 1, &text, &params);
                assert_eq!(reply.token_ids, plain(&mut alone, &text, &params), "{}, turn {turn}", subject.strategy);
                assert_eq!(reply.cached_tokens, last_held, "{}, turn {turn}", subject.strategy);
                text.extend(&reply.token_ids);
                last_held = reply.context.unwrap().held;
                assert!(last_held as usize <= text.len());
            }
            held.tick(vec![ServingCommand::FreeContext { context: 1 }, ServingCommand::FlushCache]);
        }
    }
}

#[test]
fn forks_forward_nothing_that_they_share() {
    for subject in subjects() {
        let mut held = subject.engine(&subject.options);
        let growth = growth(&held);
        if matches!(growth, ContextGrowth::Refused(_)) {
            continue;
        }
        let mut alone = without_prefixes(&subject);
        // Whole pages, and whole blocks of every strategy.
        let document = prompt(9, 32);
        let filled = fill(&mut held, 1, &document);
        assert_eq!(filled.context.unwrap().held, 32, "{}", subject.strategy);
        for child in 2..6 {
            let question = if growth == ContextGrowth::Grows { prompt(child + 50, 3) } else { Vec::new() };
            let asked = [document.clone(), question].concat();
            let fork = ServingCommand::ForkContext { parent: 1, child: child.into() };
            let asking = on_context(child.into(), false, &asked, greedy(4));
            let reply = reply_of(&mut held, vec![fork, ServingCommand::Generate(asking)]);
            assert_eq!(reply.token_ids, plain(&mut alone, &asked, &greedy(4)), "{}", subject.strategy);
            assert_eq!((reply.cached_tokens, reply.nfe_counts.prefill), (32, 0), "{}", subject.strategy);
            assert_eq!(reply.context.unwrap().grows, growth == ContextGrowth::Grows);
        }
        let again = fill(&mut held, 1, &document);
        assert_eq!((again.cached_tokens, again.nfe_counts.prefill), (32, 0), "{}", subject.strategy);
        assert_eq!(held.stats().contexts, 5);
    }
}

#[test]
fn a_fork_holds_the_pages_of_its_parent_before_it_is_used() {
    let mut engine = engine(&options());
    fill(&mut engine, 1, &prompt(1, 24));
    engine.tick(vec![ServingCommand::ForkContext { parent: 1, child: 2 }]);
    assert_eq!((engine.stats().contexts, engine.stats().context_pages), (2, 3));
    engine.tick(vec![ServingCommand::FreeContext { context: 1 }]);
    assert_eq!((engine.stats().contexts, engine.stats().context_pages), (1, 3));
    assert!(engine.pages_are_consistent());
}

#[test]
fn a_strategy_that_keeps_no_contexts_refuses_them_with_the_reason() {
    let mut n_refused = 0;
    for subject in subjects() {
        let mut engine = subject.engine(&subject.options);
        let ContextGrowth::Refused(why) = growth(&engine) else { continue };
        n_refused += 1;
        let events = engine.tick(vec![ServingCommand::Generate(on_context(1, true, &prompt(1, 9), greedy(1)))]);
        let [ServingEvent::Error(error)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(error.code, ErrorCode::ContextUnsupported);
        assert!(error.message.contains(subject.strategy) && error.message.contains(why), "{}", error.message);
    }
    assert!(n_refused > 0);
}

#[test]
fn a_request_takes_the_pages_of_idle_contexts_and_the_next_use_encodes_them_again() {
    // 16 pages of 8 positions.
    let small = EngineOptions { kv_cache_bytes: Some(16 * 12288), max_model_len: 128, ..options() };
    let mut engine = engine(&small);
    assert_eq!(engine.config().n_pages, 16);
    let document = prompt(1, 48);
    assert_eq!(fill(&mut engine, 1, &document).context.unwrap().held, 48);
    assert_eq!(engine.stats().context_pages, 6);
    let large = prompt(2, 96);
    assert_eq!(plain(&mut engine, &large, &greedy(28)).len(), 28);
    assert_eq!((engine.stats().contexts, engine.stats().preemptions), (0, 0));
    let again = fill(&mut engine, 1, &document);
    assert!(again.cached_tokens < 48 && again.context.unwrap().held == 48, "{again:?}");
}

#[test]
fn a_request_for_no_answer_leaves_its_context_held() {
    let mut engine = engine(&options());
    let document = prompt(1, 24);
    fill(&mut engine, 1, &document);
    let reply = generate(&mut engine, 1, &document, &SamplingParams { prompt_logprobs: Some(0), ..greedy(0) });
    assert_eq!((reply.token_ids.len(), reply.context.unwrap().held), (0, 24));
    assert_eq!(engine.stats().context_pages, 3);
}

/// A prompt that is a part of another one has other K/V there.
#[test]
fn a_prompt_that_is_encoded_whole_is_shared_only_as_a_whole() {
    let mut n_checked = 0;
    for subject in subjects() {
        let mut held = subject.engine(&subject.options);
        if growth(&held) != ContextGrowth::WholePrompt {
            continue;
        }
        n_checked += 1;
        let mut alone = without_prefixes(&subject);
        let long = prompt(9, 32);
        fill(&mut held, 1, &long);
        let short = &long[..16];
        let reply = generate(&mut held, 2, short, &greedy(8));
        assert_eq!((reply.cached_tokens, reply.token_ids), (0, plain(&mut alone, short, &greedy(8))));
        // One without a context finds nothing either.
        let reply = reply_of(&mut held, vec![ServingCommand::Generate(request("r", &long, greedy(8)))]);
        assert_eq!((reply.cached_tokens, reply.token_ids), (0, plain(&mut alone, &long, &greedy(8))));
        assert_eq!(generate(&mut held, 1, &long, &greedy(8)).cached_tokens, 32);
    }
    assert!(n_checked > 0);
}

#[test]
fn idle_contexts_make_room_before_a_request_waits_or_is_preempted() {
    // 16 pages of 8 positions.
    let small =
        EngineOptions { kv_cache_bytes: Some(16 * 12288), max_model_len: 128, context_memory_share: 1.0, ..options() };
    let mut engine = engine(&small);
    let finish = |engine: &mut Engine| {
        while engine.has_work() {
            engine.tick(Vec::new());
            assert!(engine.pages_are_consistent());
        }
    };
    let asked = |rid: &str, seed: u32, len: usize, max_tokens: u32| {
        ServingCommand::Generate(request(rid, &prompt(seed, len), greedy(max_tokens)))
    };
    // Two that together need nearly all pages, beside a context that has most of them.
    assert_eq!(fill(&mut engine, 1, &prompt(1, 96)).context.unwrap().held, 96);
    engine.tick(vec![asked("a", 2, 8, 60), asked("b", 3, 24, 20)]);
    assert_eq!((engine.stats().running, engine.stats().contexts), (2, 0));
    finish(&mut engine);
    // Two that grow, beside a context that was filled meanwhile.
    engine.tick(vec![asked("a", 4, 8, 60), asked("b", 5, 8, 36)]);
    engine.tick(vec![ServingCommand::Generate(on_context(2, true, &prompt(6, 64), greedy(1)))]);
    for _ in 0..3 {
        engine.tick(Vec::new());
    }
    assert_eq!((engine.stats().running, engine.stats().context_pages), (2, 8));
    finish(&mut engine);
    assert_eq!((engine.stats().preemptions, engine.stats().contexts), (0, 0));
}
