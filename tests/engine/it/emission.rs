//! Deltas and snapshots of texts that are hard to cut, filled in every order and number per step.

use diffulex_engine::emit::{Emitter, Usage};
use diffulex_engine::models::LogitAlignment;
use diffulex_engine::sequence::{BlockStatus, Limits, Sequence};
use diffulex_engine::{ModelFiles, TextModel, snapshot_text};
use diffulex_protocol::{FinishReason, SamplingParams, ServingEvent, SnapshotSpan, StreamMode};
use diffulex_strategies::{
    AcceptRule, AnyStrategy as Decoding, BlockCandidates, BlockEdit, Candidate, EditRule, KvReuse, MultiBlock,
    MultiBlockConfig, SemiAutoregressive, Threshold,
};
use proptest::prelude::*;

use crate::harness::{golden, request};

const MASK: u32 = 500;

/// Emoji with joiners and skin tones, CJK, combining marks, right-to-left, controls, and a replacement character.
const HARD: [&str; 12] = [
    "plain text",
    "a😀b😀",
    "👩‍👩‍👧‍👦 family",
    "👍🏽👍🏿",
    "汉字漢字かな한글",
    "e\u{301}e\u{302}\u{323} o\u{308}",
    "ก็ไม่รู้",
    "שלום عليكم",
    "\t\r\n\n  x",
    "\u{fffd} kept",
    "🇩🇪🇫🇷",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
];

/// Streams `ids`, in each step filling of each live block the rows that `order` picks, and returns the joined text and ids.
fn stream(
    text: &TextModel,
    ids: &[u32],
    mode: StreamMode,
    buffer_size: usize,
    edit: Option<EditRule>,
    order: &[u8],
) -> (String, Vec<u32>, String, Vec<u32>) {
    let prompt = [1, 2, 3, 4, 5];
    let limits = Limits { end: prompt.len() + ids.len(), reason: FinishReason::MaxNewTokensReached };
    let blocks = MultiBlock::of(MultiBlockConfig {
        block_size: 4,
        buffer_size,
        add_block_threshold: 0.25,
        accept: AcceptRule::Threshold(Threshold { accept_threshold: 0.5 }),
        fuse_prefill: false,
    });
    let strategy = match edit {
        Some(edit) => Decoding::BlockEdit(BlockEdit { blocks, edit }),
        None => Decoding::MultiBlock(blocks),
    };
    let params = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    let mut asked = request("r", &prompt, params.clone());
    (asked.stream, asked.stream_mode) = (true, mode);
    let mut sequence = Sequence::new(&prompt, limits, MASK, &[], params, strategy, LogitAlignment::Same);
    let mut emitter = Emitter::new(&asked, prompt.len());
    let mut events = Vec::new();
    let mut picks = order.iter().cycle();
    loop {
        let blocks = sequence.step_blocks();
        let candidates: Vec<BlockCandidates> = blocks
            .clone()
            .filter(|block| sequence.blocks()[*block].status == BlockStatus::Active)
            .map(|block| BlockCandidates {
                block,
                candidates: sequence
                    .block(block)
                    .undecided()
                    .into_iter()
                    .map(|position| {
                        let confidence = f32::from(*picks.next().unwrap()) / 255.0;
                        Candidate {
                            row: position - sequence.geometry().block_range(block).start,
                            current: sequence.answer().draft(position),
                            // Positions after the limit are filled, too, but never reported.
                            // A network that is edited writes its neighbours' tokens, too.
                            token: ids
                                .get(position - prompt.len() + usize::from(edit.is_some() && confidence < 0.3))
                                .copied()
                                .unwrap_or(7),
                            confidence,
                            likeliest: (7, confidence),
                            runners_up: Default::default(),
                            score: confidence,
                            chance: 0.0,
                        }
                    })
                    .collect(),
            })
            .collect();
        let change = sequence.advance(blocks, &candidates).unwrap();
        assert!(!emitter.absorb(sequence.answer(), text), "no stop string was asked for");
        match sequence.finished() {
            Some(reason) => {
                events.extend(emitter.finish(&sequence, text, &Usage::default(), reason));
                break;
            }
            None => events.extend(emitter.step_event(&sequence, text, &Usage::default(), change.is_visible)),
        }
    }
    let (mut joined, mut told, mut reply, mut reply_ids) = (String::new(), Vec::new(), String::new(), Vec::new());
    for event in events {
        match event {
            ServingEvent::Delta(delta) => {
                joined.push_str(&delta.text);
                told.extend(delta.token_ids);
                assert!(delta.finished || (prompt.len() + told.len()).is_multiple_of(4), "a part of a block");
            }
            ServingEvent::BufferSnapshot(snapshot) => {
                joined.push_str(&snapshot.committed_text);
                told.truncate(snapshot.token_offset as usize);
                told.extend(snapshot.token_ids);
            }
            ServingEvent::Reply(whole) => (reply, reply_ids) = (whole.text, whole.token_ids),
            other => panic!("{other:?}"),
        }
    }
    (joined, told, reply, reply_ids)
}

fn edit_rules() -> impl Strategy<Value = Option<EditRule>> {
    proptest::sample::select(vec![
        None,
        Some(EditRule::Joint { edit_threshold: 0.1, max_post_edit_steps: 2, penalty_lambda: 0.0 }),
        Some(EditRule::Remask { remask_threshold: 0.3 }),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn joined_text_is_the_reply_whatever_the_steps(
        parts in proptest::collection::vec(proptest::sample::select(&HARD[..]), 1..5),
        buffer_size in 1usize..4,
        edit in edit_rules(),
        order in proptest::collection::vec(any::<u8>(), 1..60),
        denoise in any::<bool>(),
    ) {
        let text = TextModel::load(&ModelFiles::folder(golden("tokenizer")).unwrap()).unwrap();
        let source = parts.concat();
        let ids = text.encode(&source).unwrap();
        let mode = if denoise { StreamMode::Denoise } else { StreamMode::BlockAppend };
        let (joined, told, reply, reply_ids) = stream(&text, &ids, mode, buffer_size, edit, &order);
        prop_assert_eq!(&joined, &reply);
        prop_assert_eq!(&reply, &text.decode(&reply_ids));
        prop_assert_eq!(&told, &reply_ids);
        prop_assert!(edit.is_some() || told == ids);
    }
}

const PROMPT: [u32; 6] = [1, 2, 3, 4, 5, 6];

/// A request for 8 tokens behind [`PROMPT`], in blocks of 4.
fn for_8_tokens(params: &SamplingParams, strategy: Decoding) -> Sequence {
    let limits = Limits { end: PROMPT.len() + 8, reason: FinishReason::MaxNewTokensReached };
    Sequence::new(&PROMPT, limits, MASK, &[], params.clone(), strategy, LogitAlignment::Same)
}

/// A forward that writes `ids`, of which the first `n_sure` that are not decided yet are sure.
fn step(sequence: &mut Sequence, ids: &[u32], n_sure: usize) {
    let blocks = sequence.step_blocks();
    let candidates: Vec<BlockCandidates> = sequence
        .denoised(&blocks)
        .map(|block| {
            let start = sequence.geometry().block_range(block).start;
            let candidate = |(index, position): (usize, usize)| {
                let confidence = if index < n_sure { 0.75 } else { 0.25 };
                Candidate {
                    row: position - start,
                    current: None,
                    token: ids.get(position - PROMPT.len()).copied().unwrap_or_default(),
                    confidence,
                    likeliest: (0, confidence),
                    runners_up: Default::default(),
                    score: confidence,
                    chance: 0.0,
                }
            };
            let candidates = sequence.block(block).undecided().into_iter().enumerate().map(candidate).collect();
            BlockCandidates { block, candidates }
        })
        .collect();
    sequence.advance(blocks, &candidates).unwrap();
}

/// A request for 8 tokens, of which `n_steps` forwards of one sure block each are over.
fn after(n_steps: usize, ids: &[u32], params: &SamplingParams) -> Sequence {
    let strategy = Decoding::MultiBlock(MultiBlock::of(MultiBlockConfig {
        block_size: 4,
        buffer_size: 1,
        add_block_threshold: 1.0,
        accept: AcceptRule::Threshold(Threshold { accept_threshold: 0.5 }),
        fuse_prefill: false,
    }));
    let mut sequence = for_8_tokens(params, strategy);
    for _ in 0..n_steps {
        step(&mut sequence, ids, usize::MAX);
    }
    sequence
}

fn model() -> TextModel {
    TextModel::load(&ModelFiles::folder(golden("tokenizer")).unwrap()).unwrap()
}

#[test]
fn a_reply_has_the_requests_share_of_the_work() {
    let text = model();
    let ids = [11, 12, 13, 14, 15, 16, 17, 18];
    let params = SamplingParams { logprobs: true, seed: Some(3), ..SamplingParams::default() };
    let sequence = after(5, &ids, &params);
    let asked = request("r", &PROMPT, params);
    let mut emitter = Emitter::new(&asked, 6);
    assert!(!emitter.absorb(sequence.answer(), &text));
    let usage = Usage {
        cached_tokens: 4,
        queue_time_s: 0.25,
        decode_time_s: 2.0,
        decode_tokens: 10,
        preemptions: 1,
        embedding: None,
    };
    let events = emitter.finish(&sequence, &text, &usage, FinishReason::MaxNewTokensReached);
    let [ServingEvent::Reply(reply)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((reply.token_ids.as_slice(), reply.full_token_ids.as_slice()), (&ids[..], &ids[..]));
    assert_eq!((reply.text.as_str(), &reply.full_text), (text.decode(&ids).as_str(), &text.decode(&ids)));
    assert_eq!((reply.prompt_tokens, reply.given_tokens, reply.cached_tokens), (6, 0, 4));
    assert_eq!((reply.engine_decode_time_s, reply.engine_decode_tokens), (2.0, 10));
    assert_eq!((reply.engine_decode_tps, reply.queue_time_s, reply.preemptions), (Some(5.0), 0.25, 1));
    assert_eq!((reply.confidences.as_slice(), reply.seed), (&[0.75; 8][..], Some(3)));
    assert!(reply.alternatives.is_empty(), "they were not asked for");
    assert_eq!(reply.nfe, sequence.decoding().nfe().charged());
    let untimed = Emitter::new(&asked, 6).finish(&sequence, &text, &Usage::default(), FinishReason::Aborted);
    let [ServingEvent::Reply(reply)] = &untimed[..] else { panic!("{untimed:?}") };
    assert_eq!(reply.engine_decode_tps, None);
}

#[test]
fn a_delta_has_whole_blocks_and_a_snapshot_what_may_change() {
    let text = model();
    let ids = [11, 12, 13, 14, 15, 16, 17, 18];
    let params = SamplingParams::default();
    let sequence = after(1, &ids, &params);
    let mut asked = request("r", &PROMPT, params.clone());
    (asked.stream, asked.stream_mode) = (true, StreamMode::BlockAppend);
    let mut emitter = Emitter::new(&asked, 6);
    emitter.absorb(sequence.answer(), &text);
    let event = emitter.step_event(&sequence, &text, &Usage::default(), true);
    let Some(ServingEvent::Delta(delta)) = event else { panic!("{event:?}") };
    assert_eq!((delta.token_offset, delta.token_ids.as_slice(), delta.seq), (0, &ids[..2], 0));
    assert_eq!((delta.text, delta.finished), (text.decode(&ids[..2]), false));
    assert_eq!(emitter.step_event(&sequence, &text, &Usage::default(), true), None, "nothing new");

    for (span, start) in [(SnapshotSpan::Window, 8), (SnapshotSpan::Full, 6)] {
        (asked.stream_mode, asked.snapshot) = (StreamMode::Denoise, span);
        let mut emitter = Emitter::new(&asked, 6);
        let mut seen = Vec::new();
        for n_steps in 1..=5 {
            let sequence = after(n_steps, &ids, &params);
            emitter.absorb(sequence.answer(), &text);
            assert_eq!(emitter.step_event(&sequence, &text, &Usage::default(), false), None, "nothing changed");
            let event = emitter.step_event(&sequence, &text, &Usage::default(), true);
            let Some(ServingEvent::BufferSnapshot(snapshot)) = event else { panic!("{event:?}") };
            assert_eq!((snapshot.seq, snapshot.block_size, snapshot.finished), (n_steps as u32 - 1, 4, false));
            assert_eq!(snapshot.token_offset + 6, snapshot.absolute_start);
            assert_eq!(snapshot.token_ids.len() as u32, snapshot.absolute_end - snapshot.absolute_start);
            assert_eq!(
                (snapshot.pieces.len(), snapshot.confidences.len()),
                (snapshot.token_ids.len(), snapshot.token_ids.len())
            );
            seen.push(*snapshot);
        }
        let first = &seen[0];
        assert_eq!((first.absolute_start, first.absolute_end, first.committed_len), (6, 8, 2), "{span:?}");
        assert_eq!((first.mask_positions.len(), &first.text), (0, &text.decode(&ids[..2])));
        let next = seen.iter().find(|snapshot| snapshot.absolute_end > 8).expect("a second block");
        assert_eq!(next.absolute_start, start, "{span:?}");
        let last = seen.last().expect("a snapshot");
        assert_eq!((last.committed_len, last.absolute_end), (8, 14), "{span:?}");
        assert_eq!(seen.iter().map(|snapshot| snapshot.committed_text.as_str()).collect::<String>(), text.decode(&ids));
    }
}

#[test]
fn a_delta_holds_back_what_a_stop_string_may_take_back() {
    let text = model();
    let ids = [11, 12, 13, 14, 15, 16, 17, 18];
    let last = text.decode(&ids[1..2]);
    for (stop, n_told) in [("\u{1}".to_owned(), 2), (format!("{last}\u{1}"), 1)] {
        let params = SamplingParams { stop: vec![stop], ..SamplingParams::default() };
        let mut asked = request("r", &PROMPT, params.clone());
        (asked.stream, asked.stream_mode) = (true, StreamMode::BlockAppend);
        let mut emitter = Emitter::new(&asked, PROMPT.len());
        let sequence = after(1, &ids, &params);
        emitter.absorb(sequence.answer(), &text);
        let event = emitter.step_event(&sequence, &text, &Usage::default(), true);
        let Some(ServingEvent::Delta(delta)) = event else { panic!("{event:?}") };
        assert_eq!((delta.token_ids.as_slice(), delta.text), (&ids[..n_told], text.decode(&ids[..n_told])));
    }
}

#[test]
fn a_delta_has_whole_blocks_of_an_answer_that_begins_where_the_prompt_ends() {
    let text = model();
    let ids = [11, 12, 13, 14, 15, 16, 17, 18];
    let mut asked = request("r", &PROMPT, SamplingParams::default());
    (asked.stream, asked.stream_mode) = (true, StreamMode::BlockAppend);
    let mut emitter = Emitter::new(&asked, PROMPT.len());
    let strategy = SemiAutoregressive {
        block_size: 4,
        accept: AcceptRule::Threshold(Threshold { accept_threshold: 0.5 }),
        kv_reuse: KvReuse::None,
        is_shifted: false,
        cfg_scale: 0.0,
    };
    let mut sequence = for_8_tokens(&asked.sampling_params, Decoding::SemiAutoregressive(strategy));
    let mut told = Vec::new();
    for _ in 0..3 {
        step(&mut sequence, &ids, 2);
        emitter.absorb(sequence.answer(), &text);
        told.push(match emitter.step_event(&sequence, &text, &Usage::default(), true) {
            Some(ServingEvent::Delta(delta)) => delta.token_ids,
            None => Vec::new(),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(told, [&[][..], &ids[..4], &[]]);
}

#[test]
fn a_reply_has_the_end_token_if_that_ended_the_answer_and_confidences_are_asked_for() {
    let text = model();
    let ids = [11, 12, 13, 14, 15, 16, 17, 18];
    let end_token = |logprobs: bool, stop: &[String], reason: FinishReason| {
        let params =
            SamplingParams { logprobs, stop: stop.to_vec(), stop_token_ids: vec![13], ..SamplingParams::default() };
        let sequence = after(5, &ids, &params);
        let mut emitter = Emitter::new(&request("r", &PROMPT, params), PROMPT.len());
        emitter.absorb(sequence.answer(), &text);
        match emitter.finish(&sequence, &text, &Usage::default(), reason).pop() {
            Some(ServingEvent::Reply(reply)) => reply.end_token,
            other => panic!("{other:?}"),
        }
    };
    for reason in [FinishReason::EosTokenGenerated, FinishReason::StopString] {
        assert_eq!(end_token(true, &[], reason), Some((13, 0.75)));
        assert_eq!(end_token(false, &[], reason), None);
    }
    assert_eq!(end_token(true, &[], FinishReason::Aborted), None);
    let stop = text.decode(&ids[1..2]);
    assert_eq!(end_token(true, &[stop], FinishReason::StopString), None, "a stop string came before");
}

#[test]
fn masks_are_shades_between_decoded_runs() {
    let text = model();
    let ids = [11, 12, 13, 14, 15];
    let runs = |run: &[u32]| text.decode(run);
    assert_eq!(snapshot_text(&text, &ids, &[]), runs(&ids));
    assert_eq!(snapshot_text(&text, &ids, &[0, 4]), format!("░{}░", runs(&ids[1..4])));
    assert_eq!(snapshot_text(&text, &ids, &[1, 2]), format!("{}░░{}", runs(&ids[..1]), runs(&ids[3..])));
}
