//! Pins and holes: tokens of an answer that the client decides, and parts with a language of their own.

use diffulex_engine::{DeviceChoice, Engine, EngineOptions, ServingEngine};
use diffulex_protocol::{
    Constraint, FinishReason, Hole, Pin, SamplingParams, ServingEvent, ServingGenerate, ServingReply, StreamMode,
};

use crate::harness::{Files, Subject, options, prompt, request, run, run_with, subjects};

/// Tokens of the answers below.
const N_TOKENS: u32 = 30;

fn params(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, max_tokens: N_TOKENS, seed: Some(5), ..SamplingParams::default() }
}

/// The first token, some in a block, whole blocks of every size that is used here, and the last token.
fn pins() -> Vec<Pin> {
    let pin = |position, ids: std::ops::Range<u32>| Pin { position, ids: ids.collect() };
    vec![pin(12, 100..114), pin(0, 50..51), pin(3, 60..62), pin(N_TOKENS - 1, 70..71)]
}

fn pinned(rid: &str, seed: u32, len: usize, temperature: f32) -> ServingGenerate {
    ServingGenerate { pins: pins(), ..request(rid, &prompt(seed, len), params(temperature)) }
}

fn check_pins(reply: &ServingReply, where_it_is: &str) {
    assert_eq!(reply.token_ids.len(), N_TOKENS as usize, "{where_it_is}");
    for Pin { position, ids } in pins() {
        let start = position as usize;
        assert_eq!(reply.token_ids[start..start + ids.len()], ids, "{where_it_is}");
    }
    let n_pinned: usize = pins().iter().map(|pin| pin.ids.len()).sum();
    assert_eq!(reply.given_tokens as usize, n_pinned, "{where_it_is}");
    assert_eq!(reply.finish_reason, FinishReason::MaxNewTokensReached, "{where_it_is}");
}

#[test]
fn pinned_tokens_stay_whatever_decodes_the_rest_and_whatever_else_runs() {
    let mut n_preemptions = 0;
    for subject in &subjects() {
        let Subject { strategy, options, .. } = subject;
        let all = || {
            [(0.0, 9), (1.0, 1)].map(|(temperature, len)| ServingGenerate {
                stream: true,
                stream_mode: if len == 1 { StreamMode::BlockAppend } else { StreamMode::Denoise },
                ..pinned(&format!("{temperature}"), len as u32, len, temperature)
            })
        };
        let mut engine = subject.engine(options);
        let alone: Vec<ServingReply> = all()
            .into_iter()
            .map(|request| {
                let rid = request.rid.clone();
                let told = run(&mut engine, vec![request]);
                let reply = told.reply(&rid).clone();
                check_pins(&reply, &format!("{strategy}, {rid}"));
                let sent = told.0[&rid].iter().flat_map(|event| match event {
                    ServingEvent::Delta(delta) => delta.token_ids.clone(),
                    _ => Vec::new(),
                });
                let sent: Vec<u32> = sent.collect();
                assert!(sent.is_empty() || sent == reply.token_ids, "{strategy}, {rid}");
                reply
            })
            .collect();
        let free = (0..6).map(|nth| request(&format!("free {nth}"), &prompt(40 + nth, 9), params(1.0)));
        for (page_size, threads, prefix_caching) in [(8, 2, true), (16, 1, false)] {
            let options = EngineOptions { page_size, threads: Some(threads), prefix_caching, ..options.clone() };
            let told = run(&mut subject.engine(&options), all().into_iter().chain(free.clone()).collect());
            for reply in &alone {
                assert_eq!(told.reply(&reply.rid).token_ids, reply.token_ids, "{strategy}, {}", reply.rid);
            }
        }
        let few = EngineOptions { max_num_batched_tokens: subject.least_rows, ..options.clone() };
        let told = run_with(&mut subject.engine(&few), all().to_vec(), |engine, tick| {
            if tick % 3 == 0 {
                engine.preempt("0");
            }
        });
        for reply in &alone {
            assert_eq!(told.reply(&reply.rid).token_ids, reply.token_ids, "{strategy}, {}", reply.rid);
            n_preemptions += told.reply(&reply.rid).preemptions;
        }
        let mut reference = subject.engine(&EngineOptions { device: DeviceChoice::Reference, ..options.clone() });
        let told = run(&mut reference, all()[..1].to_vec());
        assert_eq!(told.reply("0").token_ids, alone[0].token_ids, "{strategy}, on the reference");
    }
    assert!(n_preemptions > 0);
}

#[test]
fn a_pinned_answer_of_a_family_that_infills_is_that_of_a_prompt_with_masks() {
    for Subject { strategy, files, options, .. } in &subjects() {
        let mut engine = Engine::load(files, options, &mut |_| {}).unwrap();
        if !engine.card().infills {
            continue;
        }
        let mask = engine.card().mask_token_id.unwrap();
        let text = prompt(3, 6);
        let with_masks = [text.clone(), vec![mask, mask, 41, mask]].concat();
        let params = SamplingParams { max_tokens: 4, ..params(0.0) };
        let requests = vec![
            ServingGenerate { masked: vec![6, 7, 9], ..request("masked", &with_masks, params.clone()) },
            ServingGenerate { pins: vec![Pin { position: 2, ids: vec![41] }], ..request("pinned", &text, params) },
        ];
        let told = run(&mut engine, requests);
        assert_eq!(told.reply("pinned").token_ids, told.reply("masked").token_ids, "{strategy}");
    }
}

#[test]
fn an_answer_that_is_pinned_whole_is_not_denoised_step_by_step() {
    for Subject { strategy, files, options, .. } in &subjects() {
        let mut engine = Engine::load(files, options, &mut |_| {}).unwrap();
        let ids: Vec<u32> = (100..120).collect();
        let params = SamplingParams { max_tokens: 20, ..params(0.0) };
        let whole = vec![Pin { position: 0, ids: ids.clone() }];
        let told = run(&mut engine, vec![ServingGenerate { pins: whole, ..request("whole", &prompt(3, 9), params) }]);
        let reply = told.reply("whole");
        // The block behind its last token may be opened before the end is seen.
        assert!(reply.token_ids == ids && reply.nfe_counts.denoise <= 1, "{strategy}: {:?}", reply.nfe_counts);
    }
}

#[test]
fn pins_are_rows_of_a_constraint() {
    for Subject { strategy, files, options, .. } in &subjects() {
        let mut engine = Engine::load(files, options, &mut |_| {}).unwrap();
        let seven = (0..500).find(|id| engine.text().bytes(*id) == b"7").unwrap();
        // The second is in a block that opens late.
        let pins: Vec<Pin> = [2, 38].map(|position| Pin { position, ids: vec![seven] }).to_vec();
        let held = |rid: &str, language: &str| ServingGenerate {
            constraint: Some(Constraint::Regex(language.to_owned())),
            pins: pins.clone(),
            ..request(rid, &prompt(3, 6), SamplingParams { max_tokens: 40, ..params(0.0) })
        };
        // Only the pin in the late block says that the digits go on until then.
        let told = run(&mut engine, vec![held("digits", "[0-9]{2,40}"), held("none", "[0-9]{2,8}[a-z]{0,32}")]);
        let text = &told.reply("digits").text;
        assert!(text.len() >= 39 && text.bytes().all(|byte| byte.is_ascii_digit()), "{strategy}: {text:?}");
        assert_eq!([text.as_bytes()[2], text.as_bytes()[38]], *b"77", "{strategy}");
        let message = &told.error("none").message;
        assert!(message.contains("together with what else the request gives"), "{message}");
    }
}

#[test]
fn each_hole_has_text_of_its_own_language() {
    for Subject { strategy, files, options, .. } in &subjects() {
        let mut engine = Engine::load(files, options, &mut |_| {}).unwrap();
        let ids = |text: &str| -> Vec<u32> {
            text.bytes().map(|byte| (0..500).find(|id| engine.text().bytes(*id) == [byte]).unwrap()).collect()
        };
        let choice = Constraint::Choice(vec!["yes".to_owned(), "no".to_owned()]);
        let hole = |position, len, constraint| Hole { position, len, constraint };
        let requests: Vec<ServingGenerate> = [0.0, 1.0]
            .map(|temperature| ServingGenerate {
                pins: vec![Pin { position: 0, ids: ids("a: ") }, Pin { position: 9, ids: ids("; b: ") }],
                holes: vec![hole(3, 6, choice.clone()), hole(14, 4, Constraint::Regex("[0-9]{1,3}".to_owned()))],
                ..request(
                    &format!("{temperature}"),
                    &prompt(3, 6),
                    SamplingParams { max_tokens: 18, ..params(temperature) },
                )
            })
            .to_vec();
        let told = run(&mut engine, requests);
        for rid in ["0", "1"] {
            let reply = told.reply(rid);
            let bytes: Vec<u8> = reply.token_ids.iter().flat_map(|id| engine.text().bytes(*id).to_vec()).collect();
            let ends: Vec<u8> =
                engine.config().eos_token_ids.iter().flat_map(|id| engine.text().bytes(*id).to_vec()).collect();
            let text = String::from_utf8_lossy(&bytes).replace(&*String::from_utf8_lossy(&ends), "");
            let parts = text.strip_prefix("a: ").and_then(|rest| rest.split_once("; b: "));
            let (first, second) = parts.unwrap_or_else(|| panic!("{strategy}, {rid}: {text:?}"));
            assert!(["yes", "no"].contains(&first), "{strategy}, {rid}: {text:?}");
            assert!((1..=3).contains(&second.len()) && second.parse::<u32>().is_ok(), "{strategy}, {rid}: {text:?}");
            let report = reply.constraint.as_ref().unwrap();
            assert!(report.states > 4 && report.forced.iter().all(|at| (3..9).contains(at) || *at >= 14), "{report:?}");
        }
    }
}

#[test]
fn what_cannot_be_pinned_is_refused_by_name() {
    let mut engine = Engine::load(&Files::golden("sdar").leak(), &options(), &mut |_| {}).unwrap();
    let with = |rid: &str, pins: Vec<(u32, Vec<u32>)>, holes: Vec<(u32, u32)>| ServingGenerate {
        pins: pins.into_iter().map(|(position, ids)| Pin { position, ids }).collect(),
        holes: holes
            .into_iter()
            .map(|(position, len)| Hole { position, len, constraint: Constraint::Choice(vec!["yes".to_owned()]) })
            .collect(),
        ..request(rid, &[1, 2], SamplingParams { max_tokens: 20, ..params(0.0) })
    };
    let both = ServingGenerate { constraint: Some(Constraint::JsonObject), ..with("both", vec![], vec![(0, 4)]) };
    let told = run(
        &mut engine,
        vec![
            with("twice", vec![(0, vec![5, 6]), (1, vec![7])], vec![]),
            with("far", vec![(19, vec![5, 6])], vec![]),
            with("huge", vec![(u32::MAX, vec![5, 6])], vec![]),
            with("id", vec![(0, vec![1 << 20])], vec![]),
            with("long", vec![], vec![(18, 3)]),
            with("apart", vec![], vec![(0, 4), (3, 4)]),
            with("small", vec![], vec![(0, 0)]),
            both,
        ],
    );
    let said = |rid: &str| (told.error(rid).param.clone().unwrap(), told.error(rid).message.clone());
    assert_eq!(said("twice"), ("pins".to_owned(), "two pins take the same position of the answer".to_owned()));
    assert_eq!(said("far").1, "a pin ends at position 21 of the answer, which has at most 20");
    assert_eq!(said("huge").0, "pins");
    assert_eq!(said("id").1, "pins holds token id 1048576, which is outside the vocabulary of 512");
    assert_eq!(said("long").1, "a hole ends at position 21 of the answer, which has 20");
    assert_eq!(said("apart").1, "two holes take the same position of the answer");
    let message = said("small").1;
    assert!(message.contains("of up to 0 tokens") && message.contains("the hole at position 0"), "{message}");
    assert_eq!(said("both").0, "holes");
}
