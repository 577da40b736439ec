//! Scores of classes of tokens: every body against a plain computation in 64 bits.

use std::sync::Arc;

use super::classes::uniform_of_class;
use super::cpu::{CpuOps, Simd};
use super::score_tests::{Case, N_ROWS, TOLERANCE, check, scored};
use super::tests::accelerators;
use super::*;

/// Classes of a vocabulary: one of them without tokens, and class 0 of the tokens that may not be sampled, among others.
pub(crate) fn classes_of(vocabulary: SampleableTokens, n_out: usize, seed: u64) -> Arc<Classes> {
    let kinds: &[u32] = if seed.is_multiple_of(2) { &[0, 1, 3] } else { &[1, 1, 1, 1, 1, 4, 0, 1, 5, 1, 3] };
    let class_of = |token: usize| kinds[(token * 7 + seed as usize % 5) % kinds.len()];
    let class_of: Vec<u32> = (0..n_out).map(|token| if vocabulary.has(token) { class_of(token) } else { 0 }).collect();
    Arc::new(Classes::new(&class_of, 6))
}

/// `got` is what the contract says of the classes of a row with these changed logits, of which the cuts leave `probabilities`.
pub(crate) fn check_classes(spec: &ScoreSpec, logits: &[f64], probabilities: &[f64], got: &[ClassScore]) {
    let classes = spec.classes.clone().unwrap_or_else(|| Arc::new(Classes::new(&[], 0)));
    assert_eq!(got.len(), classes.n_classes());
    let temperature = if spec.is_greedy() { 1.0 } else { f64::from(spec.temperature) };
    let log_sum = |logits: &mut dyn Iterator<Item = f64>| {
        let logits: Vec<f64> = logits.collect();
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY { top } else { top + logits.iter().map(|x| (x - top).exp()).sum::<f64>().ln() }
    };
    let log_total = log_sum(&mut logits.iter().map(|x| x / temperature));
    let logs: Vec<f64> = logits.iter().map(|x| x / temperature - log_total).collect();
    // Top-k keeps any number of tokens whose weights are 0 in 32 bits, if it reaches them at all.
    let top = (0..logits.len()).filter(|id| spec.vocabulary.has(*id)).map(|id| logs[id]).fold(f64::MIN, f64::max);
    let n_weighty = (0..logits.len()).filter(|id| spec.vocabulary.has(*id) && logs[*id] > top - 69.0).count();
    let share_cuts = spec.top_p.is_some_and(|top_p| top_p < 1.0) || spec.min_p.is_some_and(|min_p| min_p > 0.0);
    let is_doubtful = !share_cuts && spec.top_k.is_some_and(|top_k| top_k as usize > n_weighty);
    let is_kept = |token: &usize| !spec.is_cut() || probabilities[*token] > 1e-30;
    for (class, got) in got.iter().enumerate() {
        let all: Vec<usize> = classes.tokens(class).iter().map(|token| *token as usize).collect();
        let mut tokens: Vec<usize> = all.iter().copied().filter(is_kept).collect();
        let is_cut = tokens.is_empty() && !all.is_empty();
        if is_cut {
            if is_doubtful {
                continue;
            }
            tokens = all;
        }
        let Some(&likeliest) = tokens.iter().max_by(|a, b| logits[**a].total_cmp(&logits[**b])) else {
            assert_eq!(*got, ClassScore::NOTHING, "{class}: {spec:?}");
            continue;
        };
        let close = |got: f32, want: f64, what: &str| {
            let is_close = (f64::from(got) - want).abs() <= 1e-4 * (1.0 + want.abs()) || f64::from(got) == want;
            assert!(is_close, "{what} of class {class}: {got}, not {want}: {spec:?}");
        };
        assert_eq!(got.token as usize, likeliest, "{class}: {spec:?}");
        close(got.log_max, logs[likeliest], "maximum");
        let sum = log_sum(&mut tokens.iter().map(|token| logs[*token]));
        close(got.log_sum, sum, "sum");
        close(got.log_drawn, logs[got.drawn as usize], "drawn");
        if logs[likeliest] == f64::NEG_INFINITY {
            assert_eq!(got.drawn, got.token);
            continue;
        }
        assert_eq!(got.is_cut, is_cut, "{class}: {spec:?}");
        match spec.draw {
            Draw::Uniform(uniform) if !spec.is_greedy() => {
                let share = |token: &usize| (logs[*token] - sum).exp();
                let drawn = got.drawn as usize;
                let place = tokens.iter().position(|token| *token == drawn);
                let place = place.unwrap_or_else(|| panic!("{drawn} does not count in class {class}: {spec:?}"));
                let before: f64 = tokens[..place].iter().map(share).sum();
                let (uniform, p) = (uniform_of_class(uniform, class), share(&drawn));
                assert!(p > 0.0, "{drawn} cannot be drawn: {spec:?}");
                assert!(before <= uniform + TOLERANCE && uniform <= before + p + TOLERANCE, "{class}: {before}, {p}");
            }
            _ => assert_eq!(got.drawn, got.token),
        }
    }
}

#[test]
fn tokens_of_classes_are_ascending_and_class_0_has_none() {
    let classes = Classes::new(&[3, 1, 0, 1, 3, 3, 0], 5);
    let tokens: Vec<&[u32]> = (0..classes.n_classes()).map(|class| classes.tokens(class)).collect();
    assert_eq!(tokens, [&[][..], &[1, 3], &[], &[0, 4, 5], &[]]);
    assert_eq!(Classes::new(&[], 0).n_classes(), 0);
}

#[test]
fn numbers_of_classes_are_in_range_and_differ() {
    let mut numbers: Vec<f64> = (0..100).map(|class| uniform_of_class(0.25, class)).collect();
    numbers.push(uniform_of_class(0.25f64.next_up(), 0));
    assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    assert_eq!(numbers.len(), 101);
    assert!(uniform_of_class(1.0f64.next_down(), 7) < 1.0);
}

/// Classes of several runs, of which the last tokens are as likely as the first.
#[test]
fn a_large_class_is_scored_as_the_contract_says() {
    const N_OUT: usize = 12_000;
    let logit = |row: usize, token: usize| ((token * 7919 + row * 31) % 2003) as f32 / 250.0 - 4.0;
    let logits = (0..N_ROWS).map(|row| (0..N_OUT).map(|token| logit(row, token)).collect()).collect();
    let vocabulary = SampleableTokens { n_sampleable: N_OUT - 3, mask_token_id: Some(17) };
    let base = ScoreSpec { classes: Some(classes_of(vocabulary, N_OUT, 1)), ..ScoreSpec::greedy(0, vocabulary) };
    let drawn = |index: usize| ScoreSpec {
        row: (index % N_ROWS) as u32,
        temperature: [1.0, 3.0][index % 2],
        draw: Draw::Uniform((index as f64 + 0.5) / 12.0),
        top_k: (index.is_multiple_of(3)).then_some(5000),
        ..base.clone()
    };
    let specs: Vec<ScoreSpec> = [base.clone()].into_iter().chain((0..12).map(drawn)).collect();
    let case = Case { logits, soft_cap: None, specs };
    let agrees = |scored: Vec<Option<RowScore>>| {
        for (row, scored) in scored.iter().enumerate() {
            assert!(check(&case, row, scored.as_ref()));
        }
    };
    agrees(scored(&reference::ReferenceOps, &case).0);
    for simd in Simd::all() {
        agrees(scored(&CpuOps::with_simd(simd), &case).0);
    }
    for ops in accelerators() {
        agrees(scored(&*ops, &case).0);
    }
}

#[test]
fn a_class_far_below_the_likeliest_token_has_a_sum_and_a_draw() {
    fn has<O: Ops>(ops: &O) {
        // Two tokens 40 below the top at a temperature of 0.1: e^-400 of its probability.
        let logits = vec![vec![30.0f32, 0.0, -10.0, -10.0]; N_ROWS];
        let vocabulary = SampleableTokens { n_sampleable: 4, mask_token_id: None };
        let classes = Some(Arc::new(Classes::new(&[1, 1, 2, 2], 3)));
        let draw = Draw::Uniform(0.5);
        let spec = ScoreSpec { temperature: 0.1, draw, classes, ..ScoreSpec::greedy(0, vocabulary) };
        let cut = ScoreSpec { min_p: Some(0.5), ..spec.clone() };
        let (scored, _) = scored(ops, &Case { logits, soft_cap: None, specs: vec![spec, cut] });
        for (scored, is_cut) in scored.iter().zip([false, true]) {
            let class = scored.as_ref().unwrap().classes[2];
            assert!((class.log_sum - (2f32.ln() - 400.0)).abs() < 1e-2, "{class:?}");
            assert!((class.log_max + 400.0).abs() < 1e-2 && (class.log_drawn + 400.0).abs() < 1e-2, "{class:?}");
            assert_eq!((class.token, class.is_cut), (3, is_cut));
            assert_eq!(class.drawn, if uniform_of_class(0.5, 2) < 0.5 { 2 } else { 3 });
        }
    }
    has(&reference::ReferenceOps);
    Simd::all().into_iter().for_each(|simd| has(&CpuOps::with_simd(simd)));
    accelerators().for_each(|ops| has(&*ops));
}

/// Tokens are drawn as often as their probabilities say, in each class by itself and in two classes at once.
#[test]
fn draws_in_classes_follow_the_distribution_and_are_independent() {
    fn follow<O: Ops>(ops: &O, n: usize) {
        let weights = [0.0f32, 1.0, 0.5, 2.0, -1.0, 1.5, 0.2, -2.0];
        let class_of = [1u32, 2, 1, 2, 1, 2, 2, 1];
        let logits = vec![weights.to_vec(); N_ROWS];
        let vocabulary = SampleableTokens { n_sampleable: 8, mask_token_id: None };
        let classes = Some(Arc::new(Classes::new(&class_of, 3)));
        let base = ScoreSpec { temperature: 0.8, classes, ..ScoreSpec::greedy(0, vocabulary) };
        let draw = |index| Draw::Uniform((index as f64 + 0.5) / n as f64);
        // The two likeliest tokens of all, 3 and 5, are what the cut keeps: nothing of class 1.
        for top_k in [None, Some(2)] {
            let specs = (0..n).map(|index| ScoreSpec { draw: draw(index), top_k, ..base.clone() }).collect();
            let (scored, _) = scored(ops, &Case { logits: logits.clone(), soft_cap: None, specs });
            let mut counts = [[0usize; 8]; 8];
            for scored in &scored {
                let classes = &scored.as_ref().unwrap().classes;
                counts[classes[1].drawn as usize][classes[2].drawn as usize] += 1;
            }
            let counts_in = |class: u32, token: usize| {
                class_of[token] == class && (class == 1 || top_k.is_none() || token == 3 || token == 5)
            };
            let share = |class: u32, token: usize| {
                let weight = |token: usize| if counts_in(class, token) { (weights[token] / 0.8).exp() } else { 0.0 };
                f64::from(weight(token) / (0..8).map(weight).sum::<f32>())
            };
            for (a, counts) in counts.iter().enumerate() {
                for (b, count) in counts.iter().enumerate() {
                    let p = share(1, a) * share(2, b);
                    // Five standard deviations.
                    let limit = 5.0 * (n as f64 * p * (1.0 - p)).sqrt();
                    assert!((*count as f64 - n as f64 * p).abs() <= limit, "{a} and {b}: {count} of {n}, p = {p}");
                }
            }
        }
    }
    follow(&CpuOps::new(1).unwrap(), 20_000);
    accelerators().for_each(|ops| follow(&*ops, 300));
}
