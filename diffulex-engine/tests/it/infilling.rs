//! What stands between a prompt and a suffix, written by models that see both.

use diffulex_engine::kernels::reference::ReferenceOps;
use diffulex_engine::kernels::{Ops, SequenceRows, WeightType};
use diffulex_engine::models::{self, Adapters, ModelBatch};
use diffulex_engine::{Engine, EngineOptions, ModelFiles};
use diffulex_protocol::{Prompt, SamplingParams, ServingGenerate};

use crate::harness::{Files, engine, golden, greedy, options, prompt, request, run};

const MASK: u32 = 500;

/// LLaDA's loop with one block over a gap of `n`, one position at a step, the surest first: forwards of all of it.
fn slowly(prompt: &[u32], n: usize, suffix: &[u32]) -> Vec<u32> {
    let ops = ReferenceOps;
    let files = ModelFiles::folder(golden("llada")).unwrap();
    let network = models::load(&files, None, &ops, Some(WeightType::F32), 64, &mut |_, _| {}).unwrap();
    let gap = prompt.len()..prompt.len() + n;
    let mut ids = [prompt, &vec![MASK; n], suffix].concat();
    let len = ids.len() as u32;
    let mut open: Vec<usize> = gap.clone().collect();
    while !open.is_empty() {
        let pages: Vec<u32> = (0..len.div_ceil(8)).collect();
        let batch = ModelBatch {
            ids: ids.clone(),
            positions: (0..len).collect(),
            slots: (0..len).collect(),
            sequences: vec![SequenceRows { rows: 0..ids.len(), pages, visible: vec![len; ids.len()] }],
            logit_rows: open.iter().map(|position| *position as u32).collect(),
            ..ModelBatch::default()
        };
        let mut cache = ops.cache(&network.spec().cache_shapes(8, 8)).unwrap();
        let logits = network.forward(&ops, &batch, &Adapters::none(), &mut cache).unwrap();
        let width = network.spec().vocab_size;
        let guesses = logits.chunks(width).map(|logits| {
            let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
            let (id, logit) = logits
                .iter()
                .enumerate()
                .filter(|(id, _)| *id as u32 != MASK && *id < 511)
                .max_by(|a, b| a.1.total_cmp(b.1))
                .unwrap();
            (id as u32, logit.exp() / total)
        });
        let (place, (id, _)) = guesses.enumerate().max_by(|a, b| a.1.1.total_cmp(&b.1.1)).unwrap();
        ids[open.remove(place)] = id;
    }
    ids[gap].to_vec()
}

fn of(files: &str, options: &EngineOptions) -> Engine {
    Engine::load(&Files::golden(files).leak(), options, &mut |_| {}).unwrap()
}

fn gap(rid: &str, params: SamplingParams, suffix: &[u32]) -> ServingGenerate {
    ServingGenerate { suffix: Some(Prompt::Ids(suffix.to_vec())), ..request(rid, &prompt(3, 9), params) }
}

#[test]
fn a_gap_is_filled_as_the_slow_loop_fills_it() {
    let options =
        EngineOptions { accept_rule: Some("static".to_owned()), block_size: Some(10), max_model_len: 64, ..options() };
    let mut engine = of("llada", &options);
    let suffixes = [prompt(7, 5), prompt(8, 13)];
    let requests = suffixes.iter().zip(["a", "b"]).map(|(suffix, rid)| gap(rid, greedy(10), suffix)).collect();
    let told = run(&mut engine, requests);
    for (suffix, rid) in suffixes.iter().zip(["a", "b"]) {
        assert_eq!(told.reply(rid).token_ids, slowly(&prompt(3, 9), 10, suffix));
    }
    assert_ne!(told.reply("a").token_ids, told.reply("b").token_ids);
    assert_ne!(told.reply("a").token_ids, slowly(&prompt(3, 9), 10, &[]));
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
