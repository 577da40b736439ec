//! Requests at the edges of what they may ask for: each is answered, or refused by the name of the field.

use diffulex_engine::{Engine, EngineOptions};
use diffulex_protocol::{ErrorCode, SamplingParams, ServingGenerate};
use diffulex_strategies::{AcceptRule, StrategyKind, Values};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::harness::{Files, Subject, decoding, greedy, options, prompt, request, run, subjects};

fn asking(rid: &str, prompt_len: usize, max_tokens: u32, settings: Value) -> ServingGenerate {
    let params = SamplingParams { decoding: decoding(settings), ..greedy(max_tokens) };
    request(rid, &prompt(3, prompt_len), params)
}

fn engine_of(checkpoint: &str, options: &EngineOptions) -> Engine {
    Engine::load(&Files::golden(checkpoint).leak(), options, &mut |_| {}).unwrap()
}

#[test]
fn settings_that_would_make_numbers_overflow_are_refused_by_name() {
    let told = |checkpoint: &str, settings: Value| {
        let options = EngineOptions { max_model_len: 64, ..options() };
        let told = run(&mut engine_of(checkpoint, &options), vec![asking("r", 9, 8, settings)]);
        let error = told.error("r").clone();
        (error.code, error.param.unwrap_or_default(), error.message)
    };
    for (checkpoint, settings, message) in [
        ("llada", json!({"cfg_scale": 3.4e38}), "decoding.cfg_scale must be in [0, 100], got 3.4e38"),
        ("diffusion_gemma", json!({"t_max": 1e-20}), "decoding.t_max must be in [0.01, 2], got 1e-20"),
        ("diffusion_gemma", json!({"t_min": 1e-45, "t_max": 0.5}), "decoding.t_min must be in [0.01, 2], got 1e-45"),
    ] {
        let (code, param, text) = told(checkpoint, settings);
        assert_eq!((code, text.as_str()), (ErrorCode::InvalidRequest, message));
        assert!(message.starts_with(&param), "{param}");
    }
}

/// Dream, one position to fill, and more steps than that: each forward writes something.
#[test]
fn steps_that_have_nothing_to_write_take_no_forward() {
    let options = EngineOptions { max_model_len: 640, ..options() };
    let mut dream = engine_of("dream", &options);
    for rule in ["entropy", "maskgit_plus", "topk_margin", "origin"] {
        for max_tokens in [1, 3, 7] {
            let ask = |steps: u32| asking("r", 100, max_tokens, json!({"accept_rule": rule, "denoising_steps": steps}));
            let told = run(&mut dream, vec![ask(512)]);
            let reply = told.reply("r");
            assert_eq!(reply.token_ids.len(), max_tokens as usize);
            assert!(reply.nfe <= max_tokens, "{rule}: {} forwards for {max_tokens} tokens", reply.nfe);
        }
    }
}

/// Settings of accept rules and of the strategy itself, each with its extremes and values out of range.
fn settings_of(strategy: &str) -> Vec<(&'static str, Vec<Value>)> {
    let values_of = |values: Values| -> Vec<Value> {
        match values {
            Values::Number { .. } => [0.0, 1e-45, 1e-38, 1e-7, 0.01, 0.5, 0.999_999_9, 1.0, 2.0, 100.0, 1e30, 3.4e38]
                .iter()
                .map(|number| json!(number))
                .collect(),
            Values::Count { .. } => [0u32, 1, 2, 7, 8, 32, 1024, u32::MAX].iter().map(|n| json!(n)).collect(),
            Values::Choice(names) => names.iter().map(|name| json!(name)).collect(),
            Values::Flag => vec![json!(true), json!(false)],
        }
    };
    let own = StrategyKind::of_name(strategy).unwrap().settings();
    let all = AcceptRule::all_settings().chain(own.iter().copied());
    all.map(|setting| (setting.name, values_of(setting.values))).collect()
}

/// Draws number `n` of one run of the test.
fn pick<T: Clone>(draws: &[usize], n: usize, from: &[T]) -> T {
    from[draws[n % draws.len()].wrapping_mul(n + 1) % from.len()].clone()
}

fn extreme(subject: &Subject, draws: &[usize]) -> ServingGenerate {
    let known = settings_of(subject.strategy);
    let mut settings = serde_json::Map::new();
    for n in 0..draws[0] % 4 {
        let (name, values) = pick(draws, n + 1, &known);
        settings.insert(name.to_owned(), pick(draws, n + 5, &values));
    }
    let params = SamplingParams {
        temperature: pick(draws, 9, &[0.0, 1e-45, 1e-7, 0.5, 1.0, 2.0]),
        max_tokens: pick(draws, 10, &[1, 2, 7, 8, 9, 33]),
        top_p: pick(draws, 11, &[None, Some(1e-45), Some(0.5), Some(1.0)]),
        top_k: pick(draws, 12, &[None, Some(1), Some(512), Some(u32::MAX)]),
        min_p: pick(draws, 13, &[None, Some(0.0), Some(1e-45), Some(1.0)]),
        seed: pick(draws, 14, &[None, Some(0), Some(u64::MAX)]),
        max_nfe: pick(draws, 15, &[None, Some(1), Some(u32::MAX)]),
        ignore_eos: true,
        decoding: decoding(settings.into()),
        ..SamplingParams::default()
    };
    request("r", &prompt(draws[1] as u32 % 7, pick(draws, 16, &[1, 2, 8, 31, 60])), params)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]
    /// Every strategy, whatever is asked of it: an answer, or an error that names the field.
    #[test]
    fn no_client_can_make_a_step_fail(draws in proptest::collection::vec(proptest::collection::vec(any::<usize>(), 8), 12)) {
        for subject in subjects() {
            let mut engine = subject.engine(&subject.options);
            for draws in &draws {
                let asked = extreme(&subject, draws);
                let told = run(&mut engine, vec![asked.clone()]);
                if let Some(diffulex_protocol::ServingEvent::Error(error)) = told.0["r"].last() {
                    let is_theirs = matches!(error.code, ErrorCode::InvalidRequest | ErrorCode::TooLarge);
                    prop_assert!(is_theirs && error.param.is_some(), "{}: {error:?} for {asked:?}", subject.strategy);
                }
            }
        }
    }
}
