//! Models that see all of the answer at every step: K/V that are used again, and gaps before a suffix.

use diffulex_engine::kernels::reference::ReferenceOps;
use diffulex_engine::kernels::{Ops, SequenceRows, WeightType};
use diffulex_engine::models::{self, Adapters, ModelBatch};
use diffulex_engine::{Engine, EngineOptions, ModelFiles};
use diffulex_protocol::{Prompt, SamplingParams, ServingGenerate};
use serde_json::json;

use crate::harness::{Files, deciding, engine, golden, greedy, options, prompt, request, run};

const MASK: u32 = 500;

/// LLaDA's loop and Fast-dLLM's, over a gap of `n`. At a step all guesses are written that are at least as sure as the
/// threshold, and the surest; after the first step of a block only the rows are forwarded that `reuse` says. `cfg_scale` moves
/// logits on from those with nothing but masks around the gap.
fn slowly(
    prompt: &[u32],
    n: usize,
    suffix: &[u32],
    block_size: usize,
    threshold: f32,
    reuse: &str,
    cfg_scale: f32,
) -> Vec<u32> {
    let ops = ReferenceOps;
    let files = ModelFiles::folder(golden("llada")).unwrap();
    let network = models::load(&files, None, &ops, Some(WeightType::F32), 64, &mut |_, _| {}).unwrap();
    let cache = || ops.cache(&network.spec().cache_shapes(8, 8)).unwrap();
    let (mut cache, mut unguided_cache) = (cache(), cache());
    let gap = prompt.len()..prompt.len() + n;
    let mut ids = [prompt, &vec![MASK; n], suffix].concat();
    let len = ids.len() as u32;
    for start in gap.clone().step_by(block_size) {
        let block = start..(start + block_size).min(gap.end);
        let mut open: Vec<usize> = block.clone().collect();
        let mut is_first = true;
        while !open.is_empty() {
            let rows = match reuse {
                _ if is_first => 0..ids.len(),
                "none" => 0..ids.len(),
                "prefix" => start..ids.len(),
                "dual" => block.clone(),
                other => panic!("{other}"),
            };
            is_first = false;
            let pages: Vec<u32> = (0..len.div_ceil(8)).collect();
            let batch = ModelBatch {
                ids: ids[rows.clone()].to_vec(),
                positions: (rows.start as u32..rows.end as u32).collect(),
                slots: (rows.start as u32..rows.end as u32).collect(),
                sequences: vec![SequenceRows { rows: 0..rows.len(), pages, visible: vec![len; rows.len()] }],
                logit_rows: open.iter().map(|position| (position - rows.start) as u32).collect(),
                ..ModelBatch::default()
            };
            let hidden = rows.clone().zip(&batch.ids);
            let unguided = ModelBatch {
                ids: hidden.map(|(position, id)| if gap.contains(&position) { *id } else { MASK }).collect(),
                ..batch.clone()
            };
            let unguided = network.forward(&ops, &unguided, &Adapters::none(), &mut unguided_cache).unwrap();
            let mut logits = network.forward(&ops, &batch, &Adapters::none(), &mut cache).unwrap();
            for (logit, base) in logits.iter_mut().zip(unguided) {
                *logit = base + (cfg_scale + 1.0) * (*logit - base);
            }
            let guesses: Vec<(u32, f32)> = logits.chunks(network.spec().vocab_size).map(guess).collect();
            let best = guesses.iter().map(|(_, confidence)| *confidence).fold(0.0, f32::max);
            for (position, (id, confidence)) in open.iter().zip(&guesses) {
                if *confidence >= threshold || *confidence == best {
                    ids[*position] = *id;
                }
            }
            open.retain(|position| ids[*position] == MASK);
        }
    }
    ids[gap].to_vec()
}

/// The likeliest token that is no mask, and its probability.
fn guess(logits: &[f32]) -> (u32, f32) {
    let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
    let tokens = logits.iter().enumerate().filter(|(id, _)| *id as u32 != MASK && *id < 511);
    let (id, logit) = tokens.max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    (id as u32, logit.exp() / total)
}

fn of(files: &str, options: &EngineOptions) -> Engine {
    Engine::load(&Files::golden(files).leak(), options, &mut |_| {}).unwrap()
}

fn gap(rid: &str, params: SamplingParams, suffix: &[u32]) -> ServingGenerate {
    ServingGenerate { suffix: Some(Prompt::Ids(suffix.to_vec())), ..request(rid, &prompt(3, 9), params) }
}

#[test]
fn a_gap_is_filled_as_the_slow_loop_fills_it() {
    let options = deciding(
        EngineOptions { block_size: Some(10), max_model_len: 64, ..options() },
        json!({ "accept_rule": "static" }),
    );
    let mut engine = of("llada", &options);
    let suffixes = [prompt(7, 5), prompt(8, 13)];
    let requests = suffixes.iter().zip(["a", "b"]).map(|(suffix, rid)| gap(rid, greedy(10), suffix)).collect();
    let told = run(&mut engine, requests);
    for (suffix, rid) in suffixes.iter().zip(["a", "b"]) {
        assert_eq!(told.reply(rid).token_ids, slowly(&prompt(3, 9), 10, suffix, 10, 2.0, "none", 0.0));
    }
    assert_ne!(told.reply("a").token_ids, told.reply("b").token_ids);
    assert_ne!(told.reply("a").token_ids, slowly(&prompt(3, 9), 10, &[], 10, 2.0, "none", 0.0));
}

#[test]
fn kv_are_used_again_as_the_slow_loop_uses_them() {
    let mut differ = [false; 2];
    for index in 0..6 {
        let (given, suffix) = (prompt(index, 7 + index as usize), prompt(index + 20, 2 * index as usize));
        let answers = ["none", "prefix", "dual"].map(|reuse| {
            let options = deciding(
                EngineOptions { block_size: Some(6), max_model_len: 64, ..options() },
                json!({ "kv_reuse": reuse, "accept_threshold": 0.6 }),
            );
            let ask = ServingGenerate { suffix: Some(Prompt::Ids(suffix.clone())), ..request("r", &given, greedy(21)) };
            let ids = run(&mut of("llada", &options), vec![ask]).reply("r").token_ids.clone();
            assert_eq!(ids, slowly(&given, 21, &suffix, 6, 0.6, reuse, 0.0), "{reuse}, prompt {index}");
            ids
        });
        differ[0] |= answers[0] != answers[1];
        differ[1] |= answers[1] != answers[2];
    }
    assert_eq!(differ, [true, true], "K/V that are stale leave no trace");
}

#[test]
fn models_that_do_not_see_what_follows_say_so() {
    let told = run(&mut engine(&options()), vec![gap("r", greedy(8), &[1, 2])]);
    let error = told.error("r");
    assert_eq!(error.param.as_deref(), Some("suffix"));
    assert!(error.message.contains("multi_bd"), "{}", error.message);
    // Nothing is nothing.
    assert_eq!(run(&mut engine(&options()), vec![gap("r", greedy(8), &[])]).reply("r").token_ids.len(), 8);
}

#[test]
fn a_suffix_counts_against_the_models_length() {
    let options = EngineOptions { max_model_len: 32, ..options() };
    let mut engine = of("dream", &options);
    // 9 and 20 leave 3.
    let told = run(&mut engine, vec![gap("r", greedy(20), &prompt(1, 20)), gap("s", greedy(2), &prompt(1, 23))]);
    assert_eq!(told.reply("r").token_ids.len(), 3);
    assert_eq!(told.error("s").param.as_deref(), Some("suffix"));
    let told = run(&mut engine, vec![gap("r", greedy(2), &[512])]);
    assert_eq!(told.error("r").param.as_deref(), Some("suffix"));
}

#[test]
fn guidance_moves_logits_as_the_slow_loop_moves_them() {
    let mut differs = false;
    for index in 0..4 {
        let (given, suffix) = (prompt(index, 9), prompt(index + 20, index as usize));
        let scales = [0.0, 1.5].map(|cfg_scale| {
            let reuse = ["none", "dual"][index as usize % 2];
            let options = deciding(
                EngineOptions { block_size: Some(6), max_model_len: 64, ..options() },
                json!({ "kv_reuse": reuse, "cfg_scale": cfg_scale, "accept_threshold": 0.6 }),
            );
            let ask = ServingGenerate { suffix: Some(Prompt::Ids(suffix.clone())), ..request("r", &given, greedy(15)) };
            let ids = run(&mut of("llada", &options), vec![ask]).reply("r").token_ids.clone();
            assert_eq!(ids, slowly(&given, 15, &suffix, 6, 0.6, reuse, cfg_scale), "{cfg_scale}, prompt {index}");
            ids
        });
        differs |= scales[0] != scales[1];
    }
    assert!(differs, "guidance changes nothing");
}

#[test]
fn guidance_that_does_not_fit_is_refused() {
    let options = EngineOptions { max_model_len: 64, max_num_batched_tokens: 64, ..options() };
    let guided = |max_tokens| {
        let mut params = greedy(max_tokens);
        params.decoding.cfg_scale = Some(1.0);
        request("r", &prompt(1, 9), params)
    };
    let mut engine = of("llada", &options);
    assert_eq!(run(&mut engine, vec![guided(40)]).error("r").param.as_deref(), Some("decoding.cfg_scale"));
    assert_eq!(run(&mut engine, vec![guided(20)]).reply("r").token_ids.len(), 20);
    let told = run(&mut crate::harness::engine(&crate::harness::options()), vec![guided(8)]);
    assert!(told.error("r").message.contains("cfg_scale is no setting of multi_bd"));
}
