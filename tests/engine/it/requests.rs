//! Life of a request: limits, ends, refusals, streams, aborts.

use diffulex_engine::{Engine, EngineOptions, ModelFiles, ServingEngine, TextModel};
use diffulex_protocol::{
    ErrorCode, FinishReason, SamplingParams, ServingCommand, ServingEvent, ServingGenerate, SnapshotSpan, StreamMode,
};
use diffulex_strategies::Layout;
use proptest::prelude::*;
use serde_json::json;

use crate::harness::{
    Told, deciding, decoding, engine, golden, greedy, options, prompt, request, run, run_with, subjects,
};

fn streaming(mut request: ServingGenerate, mode: StreamMode) -> ServingGenerate {
    request.stream = true;
    request.stream_mode = mode;
    request
}

/// Checks everything a client may rely on of one request's events.
pub(crate) fn check_stream(told: &Told, rid: &str, mask: Option<u32>) {
    let reply = told.reply(rid);
    let (mut text, mut ids, mut last_seq) = (String::new(), Vec::new(), None);
    let mut n_committed = 0;
    let mut buffer: Vec<u32> = Vec::new();
    for event in &told.0[rid] {
        match event {
            ServingEvent::Delta(delta) => {
                assert_eq!(delta.seq, last_seq.map_or(0, |seq: u32| seq + 1));
                last_seq = Some(delta.seq);
                assert_eq!(delta.token_offset as usize, ids.len());
                ids.extend(&delta.token_ids);
                text.push_str(&delta.text);
                assert!(!delta.token_ids.iter().any(|id| Some(*id) == mask));
            }
            ServingEvent::BufferSnapshot(snapshot) => {
                assert_eq!(snapshot.seq, last_seq.map_or(0, |seq: u32| seq + 1));
                last_seq = Some(snapshot.seq);
                let n = snapshot.token_ids.len();
                assert_eq!((snapshot.absolute_end - snapshot.absolute_start) as usize, n);
                assert_eq!((snapshot.pieces.len(), snapshot.confidences.len()), (n, n));
                // Final tokens do not change.
                let offset = snapshot.token_offset as usize;
                assert!(offset <= buffer.len(), "a hole before the window");
                buffer.truncate(offset);
                buffer.extend(&snapshot.token_ids);
                assert!((n_committed..=reply.token_ids.len() as u32).contains(&snapshot.committed_len));
                n_committed = snapshot.committed_len;
                let committed = &buffer[..snapshot.committed_len as usize];
                assert!(committed.iter().zip(&reply.token_ids).all(|(told, end)| told == end), "final ids changed");
                text.push_str(&snapshot.committed_text);
                for (index, piece) in snapshot.pieces.iter().enumerate() {
                    assert_eq!(piece.is_none(), snapshot.mask_positions.contains(&(index as u32)));
                }
                if snapshot.finished {
                    ids = buffer.clone();
                }
            }
            ServingEvent::Reply(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text, reply.text);
    assert_eq!(ids, reply.token_ids);
}

#[test]
fn an_answer_has_exactly_as_many_tokens_as_asked_for() {
    let mut engine = engine(&options());
    let sent: Vec<_> = (1..40).map(|n| request(&format!("{n}"), &prompt(n, n as usize), greedy(n))).collect();
    let told = run(&mut engine, sent);
    for n in 1..40u32 {
        let reply = told.reply(&format!("{n}"));
        assert_eq!((reply.token_ids.len(), reply.finish_reason), (n as usize, FinishReason::MaxNewTokensReached));
        assert_eq!(reply.prompt_tokens, n);
    }
}

#[test]
fn the_models_length_ends_an_answer() {
    let mut engine = engine(&EngineOptions { max_model_len: 30, ..options() });
    let told = run(
        &mut engine,
        vec![
            request("fits", &prompt(1, 20), greedy(100)),
            request("last", &prompt(1, 29), greedy(5)),
            request("full", &prompt(1, 30), greedy(5)),
            request("empty", &[], greedy(5)),
        ],
    );
    assert_eq!(told.reply("fits").token_ids.len(), 10);
    assert_eq!(told.reply("fits").finish_reason, FinishReason::MaxModelLenReached);
    assert_eq!(told.reply("last").token_ids.len(), 1);
    assert_eq!(told.error("full").code, ErrorCode::ContextLengthExceeded);
    assert!(told.error("full").message.contains("30"));
    assert_eq!(told.error("empty").param.as_deref(), Some("prompt"));
}

#[test]
fn wrong_requests_are_refused_by_name_and_disturb_nobody() {
    let mut engine = engine(&options());
    let good = request("good", &prompt(2, 10), greedy(12));
    let wrong = |rid: &str, params: SamplingParams| request(rid, &prompt(1, 5), params);
    let deciding = |settings| SamplingParams { decoding: decoding(settings), ..greedy(5) };
    let told = run(
        &mut engine,
        vec![
            wrong("temperature", SamplingParams { temperature: -1.0, ..greedy(5) }),
            wrong("min_tokens", SamplingParams { min_tokens: 6, ..greedy(5) }),
            wrong("decoding.accept_rule", deciding(json!({ "accept_rule": "x" }))),
            wrong("decoding.denoising_steps", deciding(json!({ "denoising_steps": 99 }))),
            request("prompt", &[1, 2, 600], greedy(5)),
            good,
        ],
    );
    for field in ["temperature", "min_tokens", "decoding.accept_rule", "decoding.denoising_steps", "prompt"] {
        assert_eq!(told.error(field).param.as_deref(), Some(field));
    }
    assert_eq!(told.reply("good").token_ids.len(), 12);
}

#[test]
fn a_request_id_in_flight_is_refused_without_touching_the_first() {
    let mut engine = engine(&options());
    let first = engine.tick(vec![
        ServingCommand::Generate(request("same", &prompt(1, 5), greedy(9))),
        ServingCommand::Generate(request("same", &prompt(2, 5), greedy(9))),
    ]);
    assert!(matches!(&first[..], [ServingEvent::Error(error)] if error.message.contains("in flight")));
    let mut events = Vec::new();
    while engine.has_work() {
        events.extend(engine.tick(Vec::new()));
    }
    assert!(matches!(&events[..], [ServingEvent::Reply(reply)] if reply.token_ids.len() == 9));
}

#[test]
fn a_mask_id_in_the_prompt_is_an_ordinary_token() {
    let mut engine = engine(&options());
    let mut prompt = prompt(1, 16);
    for position in [2, 7, 15] {
        prompt[position] = engine.card().mask_token_id.unwrap();
    }
    let told = run(&mut engine, vec![request("masked", &prompt, greedy(13))]);
    let reply = told.reply("masked");
    assert_eq!(reply.token_ids.len(), 13);
    assert!(!reply.token_ids.contains(&engine.card().mask_token_id.unwrap()));
    // Four blocks of 4; the last one's hidden rows may take steps too.
    assert!(reply.nfe_counts.prefill == 1 && reply.nfe_counts.denoise <= 16);
}

#[test]
fn stop_ids_end_an_answer_and_are_not_part_of_it() {
    let mut engine = engine(&options());
    let free = run(&mut engine, vec![request("free", &prompt(6, 9), greedy(24))]);
    let ids = free.reply("free").token_ids.clone();
    let stop = ids[11];
    let first = ids.iter().position(|id| *id == stop).unwrap();
    let params = SamplingParams { stop_token_ids: vec![stop], ..greedy(24) };
    let told = run(&mut engine, vec![request("stopped", &prompt(6, 9), params)]);
    let reply = told.reply("stopped");
    assert_eq!(reply.token_ids, ids[..first]);
    assert_eq!(reply.finish_reason, FinishReason::StopString);
    assert!(reply.nfe <= free.reply("free").nfe);
}

#[test]
fn stop_strings_cut_the_text_in_every_mode() {
    let mut engine = engine(&options());
    let free = run(&mut engine, vec![request("free", &prompt(8, 7), greedy(32))]);
    let text = free.reply("free").text.clone();
    let characters: Vec<char> = text.chars().collect();
    for (start, len) in [(3, 2), (10, 4), (5, 1), (14, 3)] {
        let stop: String = characters.iter().skip(start).take(len).collect();
        if stop.is_empty() {
            continue;
        }
        let params = SamplingParams { stop: vec!["\u{1F4A5}never".to_owned(), stop.clone()], ..greedy(32) };
        let told = run(
            &mut engine,
            vec![
                request("plain", &prompt(8, 7), params.clone()),
                streaming(request("append", &prompt(8, 7), params.clone()), StreamMode::BlockAppend),
                streaming(request("denoise", &prompt(8, 7), params), StreamMode::Denoise),
            ],
        );
        let want = &text[..text.find(&stop).unwrap()];
        for rid in ["plain", "append", "denoise"] {
            assert_eq!(told.reply(rid).text, want, "{rid} at {stop:?}");
            assert_eq!(told.reply(rid).finish_reason, FinishReason::StopString);
        }
        check_stream(&told, "append", engine.card().mask_token_id);
        check_stream(&told, "denoise", engine.card().mask_token_id);
    }
}

#[test]
fn a_token_that_begins_with_a_stop_string_is_not_part_of_the_answer() {
    let text = TextModel::load(&ModelFiles::folder(golden("sdar")).unwrap()).unwrap();
    let mut engine = engine(&options());
    let ids = run(&mut engine, vec![request("free", &prompt(8, 7), greedy(32))]).reply("free").token_ids.clone();
    let mut n_stops = 0;
    for (index, id) in ids.iter().enumerate() {
        let (before, stop) = (text.decode(&ids[..index]), text.decode(&[*id]));
        // An incomplete character is written with the token behind it.
        let is_apart = text.decode(&ids[..=index]) == format!("{before}{stop}") && !before.ends_with('\u{FFFD}');
        if stop.is_empty() || !is_apart || format!("{before}{stop}").find(&stop) != Some(before.len()) {
            continue;
        }
        let params = SamplingParams { stop: vec![stop], ..greedy(32) };
        let told = run(&mut engine, vec![request("stopped", &prompt(8, 7), params)]);
        assert_eq!(told.reply("stopped").token_ids, ids[..index]);
        n_stops += 1;
    }
    assert!(n_stops > 3, "{n_stops}");
}

#[test]
fn deltas_end_where_blocks_do() {
    for subject in subjects() {
        let mut engine = subject.engine(&subject.options);
        let n_prompt = 7;
        let told =
            run(&mut engine, vec![streaming(request("r", &prompt(3, n_prompt), greedy(22)), StreamMode::BlockAppend)]);
        let block_size = engine.card().block_size;
        let origin =
            if engine.config().strategy.requirements().layout == Layout::BlockCausal { 0 } else { n_prompt as u32 };
        for event in &told.0["r"] {
            let ServingEvent::Delta(delta) = event else { continue };
            let end = n_prompt as u32 + delta.token_offset + delta.token_ids.len() as u32;
            let is_edge = (end - origin).is_multiple_of(block_size);
            assert!(delta.finished || is_edge, "{}: {end}, blocks of {block_size}", subject.strategy);
        }
    }
}

#[test]
fn a_stop_string_takes_back_nothing_that_was_streamed() {
    let mut engine = engine(&options());
    let whole = run(&mut engine, vec![request("whole", &prompt(1, 6), greedy(32))]).reply("whole").text.clone();
    let characters: Vec<char> = whole.chars().collect();
    for stop in characters.windows(3) {
        let stop: String = stop.iter().collect();
        for mode in [StreamMode::BlockAppend, StreamMode::Denoise] {
            let params = SamplingParams { stop: vec![stop.clone()], ..greedy(32) };
            let told = run(&mut engine, vec![streaming(request("r", &prompt(1, 6), params), mode)]);
            check_stream(&told, "r", engine.card().mask_token_id);
            assert!(!told.reply("r").text.contains(&stop) && whole.starts_with(&told.reply("r").text));
        }
    }
}

#[test]
fn a_prompt_of_any_length_begins() {
    // As long, too, as what is encoded of prompts in a step and what the first step behind them takes along.
    let mut engine = engine(&EngineOptions { block_size: Some(64), buffer_size: Some(8), ..options() });
    for len in (20..700).step_by(40) {
        let told = run(&mut engine, vec![request("r", &prompt(1, len), greedy(4))]);
        assert_eq!(told.reply("r").token_ids.len(), 4, "{len}");
    }
}

#[test]
fn max_nfe_does_not_count_in_how_many_parts_a_prompt_is_encoded() {
    let cut = |max_num_batched_tokens, prefix| {
        let mut engine = engine(&EngineOptions { max_num_batched_tokens, buffer_size: Some(1), ..options() });
        let sent = |rid: &str, n| request(rid, &prompt(1, 400), SamplingParams { max_nfe: Some(n), ..greedy(24) });
        if prefix {
            run(&mut engine, vec![sent("before", 1)]);
        }
        run(&mut engine, vec![sent("r", 6)]).reply("r").clone()
    };
    let [whole, in_parts, found] = [cut(4096, false), cut(64, false), cut(4096, true)];
    assert!(in_parts.nfe_counts.prefill > whole.nfe_counts.prefill && found.cached_tokens > 0);
    assert_eq!((whole.nfe_counts.decoding(), whole.finish_reason), (6, FinishReason::MaxNfeReached));
    assert_eq!((&in_parts.token_ids, &found.token_ids), (&whole.token_ids, &whole.token_ids));
}

#[test]
fn max_nfe_ends_an_answer_at_what_is_final() {
    let mut engine = engine(&options());
    let whole = run(&mut engine, vec![request("whole", &prompt(1, 8), greedy(24))]);
    let params = SamplingParams { max_nfe: Some(6), ..greedy(24) };
    let told = run(&mut engine, vec![streaming(request("cut", &prompt(1, 8), params), StreamMode::BlockAppend)]);
    let reply = told.reply("cut");
    assert_eq!((reply.nfe_counts.decoding(), reply.finish_reason), (6, FinishReason::MaxNfeReached));
    assert_eq!(reply.token_ids, whole.reply("whole").token_ids[..reply.token_ids.len()]);
    check_stream(&told, "cut", engine.card().mask_token_id);
}

/// Checks that answers with `max_repetition_run` are those without, up to the last token of the first run of that length.
fn check_repetition_runs(engine: &mut Engine, prompt: &[u32], params: &SamplingParams) {
    for stream in [None, Some(StreamMode::BlockAppend), Some(StreamMode::Denoise)] {
        let asked = |rid: &str, params: SamplingParams| {
            let request = request(rid, prompt, params);
            vec![match stream {
                Some(mode) => streaming(request, mode),
                None => request,
            }]
        };
        let whole = run(engine, asked("whole", params.clone())).reply("whole").token_ids.clone();
        for max in [1, 2, 3, 4, 9] {
            let limited = SamplingParams { max_repetition_run: Some(max), ..params.clone() };
            let told = run(engine, asked("cut", limited));
            let reply = told.reply("cut");
            let max = max as usize;
            let end = (max..=whole.len()).find(|end| whole[end - max..*end].iter().all(|id| *id == whole[end - 1]));
            let expected = &whole[..end.unwrap_or(whole.len())];
            assert_eq!(reply.token_ids, expected, "{max} in {whole:?}");
            // The limit of tokens comes first where both are reached at once.
            let is_cut = end.is_some_and(|end| end < whole.len());
            assert_eq!(reply.finish_reason == FinishReason::MaxRepetitionRunReached, is_cut, "{max} in {whole:?}");
            if stream.is_some() {
                check_stream(&told, "cut", engine.card().mask_token_id);
            }
        }
    }
}

#[test]
fn a_repetition_run_ends_the_answer_at_its_last_token() {
    for subject in subjects() {
        let mut engine = subject.engine(&subject.options);
        // One token is made so likely that runs of it are everywhere, and begin and end inside of blocks.
        for (seed, bias) in (0..6).zip([2.0, 3.0, 4.0, 5.0, 6.0, 100.0]) {
            let params = SamplingParams {
                temperature: 1.0,
                seed: Some(seed),
                logit_bias: vec![(77, bias)].into_iter().collect(),
                ignore_eos: true,
                ..greedy(30)
            };
            check_repetition_runs(&mut engine, &prompt(seed as u32, 9), &params);
        }
        check_repetition_runs(&mut engine, &[338, 42, 450, 431, 138, 244], &greedy(24));
    }
}

#[test]
fn an_abort_frees_every_page_within_one_tick() {
    let mut engine = engine(&options());
    let commands = (0..6).map(|n| ServingCommand::Generate(request(&format!("{n}"), &prompt(n, 30), greedy(200))));
    let mut told = Told::default();
    told.take(engine.tick(commands.collect()));
    for _ in 0..5 {
        told.take(engine.tick(Vec::new()));
    }
    assert!(engine.stats().kv_pages_free < engine.stats().kv_pages_total);
    let aborts = (0..6).map(|n| ServingCommand::Abort { rid: format!("{n}") });
    told.take(engine.tick(aborts.chain([ServingCommand::Abort { rid: "unknown".to_owned() }]).collect()));
    for n in 0..6 {
        assert_eq!(told.reply(&format!("{n}")).finish_reason, FinishReason::Aborted);
    }
    assert_eq!(engine.stats().kv_pages_free, engine.stats().kv_pages_total);
    assert!(!engine.has_work());
}

#[test]
fn a_request_that_could_never_fit_is_refused_at_once() {
    let mut engine = engine(&EngineOptions { kv_cache_bytes: Some(3 * 12_288), ..options() });
    let told = run(
        &mut engine,
        vec![request("large", &prompt(1, 20), greedy(20)), request("small", &prompt(1, 10), greedy(10))],
    );
    assert_eq!(told.error("large").code, ErrorCode::TooLarge);
    assert_eq!(told.reply("small").token_ids.len(), 10);
}

#[test]
fn fail_all_gives_every_request_its_error() {
    let mut engine = engine(&options());
    let mut told = Told::default();
    told.take(
        engine.tick(
            (0..3).map(|n| ServingCommand::Generate(request(&format!("{n}"), &prompt(n, 9), greedy(50)))).collect(),
        ),
    );
    told.take(engine.fail_all(ErrorCode::ShuttingDown, "going down"));
    for n in 0..3 {
        assert_eq!(told.error(&format!("{n}")).code, ErrorCode::ShuttingDown);
    }
    assert_eq!(engine.stats().kv_pages_free, engine.stats().kv_pages_total);
}

#[test]
fn logprobs_come_with_every_token() {
    let mut engine = engine(&options());
    let params = SamplingParams { logprobs: true, ..greedy(15) };
    let told = run(&mut engine, vec![request("r", &prompt(1, 6), params)]);
    let reply = told.reply("r");
    assert_eq!(reply.confidences.len(), 15);
    assert!(reply.confidences.iter().all(|confidence| *confidence > 0.0 && *confidence <= 1.0));
}

#[test]
fn streams_of_every_strategy_add_up() {
    for subject in subjects() {
        let mut engine = subject.engine(&subject.options);
        let sent = (1..13).map(|n| {
            let mut params = greedy(3 * n);
            params.ignore_eos = n % 3 == 0;
            (params.temperature, params.seed) = (if n % 2 == 0 { 0.0 } else { 1.5 }, Some(u64::from(n)));
            let mode = if n % 4 < 2 { StreamMode::Denoise } else { StreamMode::BlockAppend };
            let mut request = streaming(request(&format!("{n}"), &prompt(n, 2 * n as usize), params), mode);
            request.snapshot = if n % 5 == 0 { SnapshotSpan::Full } else { SnapshotSpan::Window };
            request
        });
        let told = run(&mut engine, sent.collect());
        for n in 1..13 {
            check_stream(&told, &format!("{n}"), engine.card().mask_token_id);
            let reply = told.reply(&format!("{n}"));
            if reply.finish_reason == FinishReason::MaxNewTokensReached {
                assert_eq!(reply.token_ids.len(), 3 * n as usize, "{}", subject.strategy);
            }
            if n > 4 && n % 4 < 2 {
                assert!(told.0[&format!("{n}")].len() > 2, "{} shows nothing before the end", subject.strategy);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any mixture of requests, modes and rules: everybody gets one end, text adds up, and no page is lost.
    #[test]
    fn every_stream_adds_up(
        seeds in proptest::collection::vec((0u32..1000, 1usize..40, 1u32..40, 0u8..5, proptest::bool::ANY), 1..7),
        buffer_size in 1u32..4,
        add_block_threshold in prop_oneof![Just(1.0f32), Just(0.3)],
        block_size in prop_oneof![Just(4u32), Just(8), Just(16)],
        page_size in prop_oneof![Just(4u32), Just(8), Just(32)],
        kv_pages in 10u64..40,
    ) {
        let mut engine = engine(&deciding(
            EngineOptions {
                block_size: Some(block_size),
                buffer_size: Some(buffer_size),
                page_size,
                kv_cache_bytes: Some(kv_pages * 32 * 1536),
                ..options()
            },
            json!({ "add_block_threshold": add_block_threshold }),
        ));
        let rules = ["threshold", "gated_threshold", "static", "dynamic", "sequential"];
        let sent: Vec<_> = seeds
            .iter()
            .enumerate()
            .map(|(index, (seed, len, max_tokens, rule, denoise))| {
                let mut params = greedy(*max_tokens);
                params.decoding = decoding(json!({ "accept_rule": rules[*rule as usize] }));
                params.temperature = if seed % 2 == 0 { 0.0 } else { 1.5 };
                params.seed = Some(u64::from(*seed));
                params.ignore_eos = seed % 3 == 0;
                let mode = if *denoise { StreamMode::Denoise } else { StreamMode::BlockAppend };
                let mut request = streaming(request(&format!("{index}"), &prompt(*seed, *len), params), mode);
                request.snapshot = if seed % 5 == 0 { SnapshotSpan::Full } else { SnapshotSpan::Window };
                request
            })
            .collect();
        let told = run(&mut engine, sent.clone());
        for request in sent {
            check_stream(&told, &request.rid, engine.card().mask_token_id);
            let reply = told.reply(&request.rid);
            if reply.finish_reason == FinishReason::MaxNewTokensReached {
                prop_assert_eq!(reply.token_ids.len(), request.sampling_params.max_tokens as usize);
            }
            prop_assert!(!reply.text.contains("<|"), "a special token in {:?}", reply.text);
        }
    }
}

#[test]
fn a_long_prompt_holds_up_nobody_who_has_begun() {
    let options = EngineOptions { max_model_len: 2048, prefix_caching: false, ..options() };
    let mut engine = engine(&options);
    let short = request("short", &prompt(1, 9), SamplingParams { ignore_eos: true, ..greedy(40) });
    let long = request("long", &prompt(2, 1700), greedy(4));
    let mut most_rows = 0;
    let mut rows = 0;
    let told = run_with(&mut engine, vec![short.clone(), long.clone()], |engine, _| {
        most_rows = most_rows.max(engine.stats().rows - rows);
        rows = engine.stats().rows;
    });
    // 512 rows of the long prompt, and a window of the short one's.
    assert!(most_rows <= 512 + 4 * 8, "{most_rows} rows in one step");
    for alone in [short, long] {
        let rid = alone.rid.clone();
        let want = run(&mut engine, vec![alone]);
        assert_eq!(told.reply(&rid).token_ids, want.reply(&rid).token_ids);
    }
}
