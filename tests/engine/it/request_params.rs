//! Penalties, bias, `min_tokens` and alternatives: what they do to an answer, and what they may not depend on.

use diffulex_engine::{EngineOptions, ServingEngine};
use diffulex_protocol::{SamplingParams, ServingCommand, ServingEvent, StreamMode};
use serde_json::json;

use crate::harness::{Subject, decoding, engine, greedy, options, prompt, request, run, run_with, subjects};

/// Requests that use every penalty, greedy and drawn.
fn penalised() -> Vec<(String, Vec<u32>, SamplingParams)> {
    (0..4u32)
        .map(|index| {
            let mut params = SamplingParams {
                presence_penalty: 0.5,
                frequency_penalty: 1.5,
                repetition_penalty: Some(1.3),
                logit_bias: vec![(7, -3.0), (40 + index, 2.0)],
                min_tokens: 4,
                logprobs: true,
                top_logprobs: 3,
                ignore_eos: false,
                ..greedy(9 + index * 3)
            };
            if index % 3 == 2 {
                params.temperature = 0.8;
                params.seed = Some(u64::from(index));
            }
            (format!("r{index}"), prompt(index, 1 + (index as usize * 7) % 29), params)
        })
        .collect()
}

/// The ids, confidences and alternatives of each request.
fn answers(
    subject: &Subject,
    options: &EngineOptions,
    groups: &[&[(String, Vec<u32>, SamplingParams)]],
    preempted: Option<usize>,
) -> Vec<serde_json::Value> {
    let mut engine = subject.engine(options);
    let mut answers = Vec::new();
    for group in groups {
        let sent = group.iter().map(|(rid, prompt, params)| request(rid, prompt, params.clone())).collect();
        let told = run_with(&mut engine, sent, |engine, tick| {
            if preempted.is_some_and(|when| tick == when || tick == when + 3) {
                engine.preempt("r1");
            }
        });
        answers.extend(group.iter().map(|(rid, ..)| {
            let reply = told.reply(rid);
            serde_json::json!([reply.token_ids, reply.confidences, reply.alternatives])
        }));
        engine.tick(vec![ServingCommand::FlushCache]);
    }
    answers
}

#[test]
fn penalties_depend_on_the_request_alone() {
    let requests = penalised();
    let each: Vec<_> = requests.chunks(1).collect();
    for subject in subjects() {
        let options = EngineOptions { prefix_caching: false, ..subject.options.clone() };
        let alone = answers(&subject, &options, &each, None);
        let plain: Vec<_> = requests
            .iter()
            .map(|(rid, prompt, params)| {
                let plain = SamplingParams { top_logprobs: 3, logprobs: true, ..greedy(params.max_tokens) };
                (rid.clone(), prompt.clone(), plain)
            })
            .collect();
        assert_ne!(answers(&subject, &options, &[&plain], None), alone, "{}: they act", subject.strategy);
        assert_eq!(answers(&subject, &options, &[&requests], None), alone, "{}: in company", subject.strategy);
        let pages = EngineOptions { page_size: 4, threads: Some(1), ..subject.options.clone() };
        assert_eq!(answers(&subject, &pages, &[&requests], None), alone, "{}: other pages", subject.strategy);
        let preempted = answers(&subject, &options, &[&requests], Some(2));
        assert_eq!(preempted, alone, "{}: preempted", subject.strategy);
    }
}

#[test]
fn alternatives_change_no_greedy_answer_and_begin_with_its_token() {
    for subject in subjects() {
        let mut engine = subject.engine(&EngineOptions { prefix_caching: false, ..subject.options.clone() });
        let plain =
            run(&mut engine, vec![request("r", &prompt(3, 11), SamplingParams { logprobs: true, ..greedy(20) })]);
        let params = SamplingParams { logprobs: true, top_logprobs: 20, ..greedy(20) };
        let told = run(&mut engine, vec![request("r", &prompt(3, 11), params)]);
        let (plain, reply) = (plain.reply("r"), told.reply("r"));
        assert_eq!(
            (&plain.token_ids, &plain.confidences),
            (&reply.token_ids, &reply.confidences),
            "{}",
            subject.strategy
        );
        assert!(plain.alternatives.is_empty());
        assert_eq!(reply.alternatives.len(), reply.token_ids.len());
        for ((id, confidence), likeliest) in reply.token_ids.iter().zip(&reply.confidences).zip(&reply.alternatives) {
            assert!(likeliest.len() == 20 && likeliest.is_sorted_by(|a, b| a.1 >= b.1), "{}", subject.strategy);
            assert_eq!(likeliest[0], (*id, *confidence), "{}", subject.strategy);
        }
    }
}

#[test]
fn alternatives_are_told_in_progress_as_in_the_reply() {
    for mode in [StreamMode::BlockAppend, StreamMode::Denoise] {
        let params = SamplingParams { logprobs: true, top_logprobs: 2, ..greedy(21) };
        let mut sent = request("r", &prompt(2, 6), params);
        (sent.stream, sent.stream_mode) = (true, mode);
        let told = run(&mut engine(&options()), vec![sent]);
        let mut streamed = Vec::new();
        for event in &told.0["r"] {
            match event {
                ServingEvent::Delta(delta) => streamed.extend(delta.alternatives.clone()),
                ServingEvent::BufferSnapshot(snapshot) => {
                    assert_eq!(snapshot.alternatives.len(), snapshot.token_ids.len());
                    streamed.truncate(snapshot.token_offset as usize);
                    streamed.extend(snapshot.alternatives.clone());
                }
                _ => {}
            }
        }
        assert_eq!(streamed, told.reply("r").alternatives, "{mode:?}");
    }
}

#[test]
fn a_bias_forbids_a_token_or_forces_it() {
    let mut engine = engine(&options());
    let answer = run(&mut engine, vec![request("r", &prompt(1, 9), greedy(24))]).reply("r").token_ids.clone();
    let mut banned: Vec<(u32, f32)> = answer.iter().map(|id| (*id, -100.0)).collect();
    banned.sort_unstable_by_key(|(id, _)| *id);
    banned.dedup();
    let without = SamplingParams { logit_bias: banned, ..greedy(24) };
    let only = SamplingParams { logit_bias: vec![(77, 100.0)], ..greedy(24) };
    let sent = vec![request("without", &prompt(1, 9), without), request("only", &prompt(1, 9), only)];
    let told = run(&mut engine, sent);
    assert!(told.reply("without").token_ids.iter().all(|id| !answer.contains(id)));
    assert_eq!(told.reply("only").token_ids, [77; 24]);
}

#[test]
fn penalties_make_an_answer_repeat_less() {
    let n_distinct = |params: SamplingParams| {
        let told = run(&mut engine(&options()), vec![request("r", &prompt(1, 9), params)]);
        let mut ids = told.reply("r").token_ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    };
    // A bias makes four tokens far likelier than all others.
    let few = SamplingParams { logit_bias: (20..24).map(|id| (id, 6.0)).collect(), ..greedy(40) };
    let plain = n_distinct(few.clone());
    for stronger in [
        SamplingParams { frequency_penalty: 2.0, ..few.clone() },
        SamplingParams { presence_penalty: 2.0, frequency_penalty: 1.0, ..few.clone() },
        SamplingParams { repetition_penalty: Some(3.0), ..few.clone() },
    ] {
        assert!(n_distinct(stronger.clone()) > plain, "{stronger:?}");
    }
}

#[test]
fn tokens_of_one_step_do_not_count_for_each_other() {
    let ids = |denoising_steps: u32| {
        let params = SamplingParams {
            logit_bias: vec![(77, 30.0)],
            presence_penalty: 2.0,
            frequency_penalty: 2.0,
            repetition_penalty: Some(100.0),
            decoding: decoding(json!({"accept_rule": "static", "denoising_steps": denoising_steps})),
            ..greedy(4)
        };
        run(&mut engine(&options()), vec![request("r", &prompt(1, 8), params)]).reply("r").token_ids.clone()
    };
    assert_eq!(ids(1), [77; 4]);
    assert_eq!(ids(4).iter().filter(|id| **id == 77).count(), 1, "in later steps it is penalised");
}

#[test]
fn a_low_temperature_and_one_candidate_take_fewer_forwards_than_greedy_decoding() {
    let answer = |params: SamplingParams| {
        let told = run(&mut engine(&options()), vec![request("r", &prompt(1, 8), params)]);
        (told.reply("r").nfe_counts.denoise, told.reply("r").token_ids.clone())
    };
    let drawn = |temperature, top_k| SamplingParams { temperature, top_k, seed: Some(1), ..greedy(32) };
    let ((greedy, greedy_ids), (cold, _), (one, ids)) =
        (answer(greedy(32)), answer(drawn(0.01, None)), answer(drawn(1.0, Some(1))));
    assert!(2 * cold < greedy, "{cold} {greedy}");
    assert!(one <= cold && one <= 32 / 4, "{one} {cold}");
    assert_ne!(ids, greedy_ids, "which it is not");
}

#[test]
fn no_end_comes_before_min_tokens() {
    for subject in subjects() {
        let mut engine = subject.engine(&EngineOptions { prefix_caching: false, ..subject.options.clone() });
        let answer = run(&mut engine, vec![request("r", &prompt(1, 9), greedy(24))]).reply("r").token_ids.clone();
        let stop = answer[3];
        let stopping = |min_tokens| SamplingParams { stop_token_ids: vec![stop], min_tokens, ..greedy(24) };
        let told = run(&mut engine, vec![request("early", &prompt(1, 9), stopping(0))]);
        assert!(told.reply("early").token_ids.len() <= 3, "{}", subject.strategy);
        for min_tokens in [4, 13, 24] {
            let told = run(&mut engine, vec![request("late", &prompt(1, 9), stopping(min_tokens))]);
            let ids = &told.reply("late").token_ids;
            assert!(ids.len() >= min_tokens as usize, "{}: {}", subject.strategy, ids.len());
            assert!(!ids[..min_tokens as usize].contains(&stop), "{}", subject.strategy);
        }
    }
}

#[test]
fn no_stop_string_counts_before_min_tokens() {
    let mut engine = engine(&options());
    let whole = run(&mut engine, vec![request("r", &prompt(1, 9), greedy(32))]);
    let text = whole.reply("r").text.clone();
    // A character that comes more than once.
    let stop = text.chars().find(|c| text.matches(*c).count() > 1).unwrap().to_string();
    let first = text.find(&stop).unwrap();
    for mode in [StreamMode::BlockAppend, StreamMode::Denoise] {
        for min_tokens in [0, 5, 20, 32] {
            let params = SamplingParams { stop: vec![stop.clone()], min_tokens, ..greedy(32) };
            let mut sent = request("r", &prompt(1, 9), params);
            (sent.stream, sent.stream_mode) = (true, mode);
            let told = run(&mut engine, vec![sent]);
            let reply = told.reply("r");
            assert!(reply.token_ids.len() >= min_tokens as usize, "{min_tokens}: {}", reply.token_ids.len());
            assert!(text.starts_with(&reply.text));
            assert!(min_tokens > 0 || reply.text.len() == first);
            let streamed: String = told.0["r"]
                .iter()
                .filter_map(|event| match event {
                    ServingEvent::Delta(delta) => Some(delta.text.as_str()),
                    ServingEvent::BufferSnapshot(snapshot) => Some(snapshot.committed_text.as_str()),
                    _ => None,
                })
                .collect();
            assert_eq!(streamed, reply.text, "{mode:?} {min_tokens}");
        }
    }
}

#[test]
fn ids_outside_the_vocabulary_are_refused_by_name() {
    let told = run(
        &mut engine(&options()),
        vec![
            request("bias", &prompt(1, 9), SamplingParams { logit_bias: vec![(99_999, 1.0)], ..greedy(4) }),
            request("stop", &prompt(1, 9), SamplingParams { stop_token_ids: vec![99_999], ..greedy(4) }),
        ],
    );
    assert_eq!(told.error("bias").param.as_deref(), Some("logit_bias"));
    assert_eq!(told.error("stop").param.as_deref(), Some("stop_token_ids"));
}

#[test]
fn a_salt_keeps_prefixes_apart() {
    let mut engine = engine(&options());
    let mut cached = |rid: &str, salt: Option<&str>| {
        let mut sent = request(rid, &prompt(3, 24), greedy(4));
        sent.cache_salt = salt.map(str::to_owned);
        run(&mut engine, vec![sent]).reply(rid).cached_tokens
    };
    assert_eq!(cached("plain", None), 0);
    assert_eq!(cached("salted", Some("a")), 0);
    assert_eq!(cached("other", Some("b")), 0);
    assert_eq!([cached("plain", None), cached("salted", Some("a")), cached("other", Some("b"))], [24; 3]);
}
