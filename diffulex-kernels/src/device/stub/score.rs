//! Kernels of scoring: `score_finish` does it all, with the reference's arithmetic, from the settled logits.

use std::sync::Arc;

use crate::device::operands::padding::NONE;
use crate::device::stub::call::Call;
use crate::device::stub::memory::Memory;
use crate::reference::score::scored;
use crate::{Classes, Draw, LogitChange, MAX_LIKELIEST, SampleableTokens, Score, ScoreSpec};

/// Words of `Recipe` of score.h.
const WORDS: usize = 24;

pub(crate) fn run(call: &Call<'_>, memory: &mut Memory) -> bool {
    match call.kernel {
        "score_settle" => settle(call, memory),
        "score_change" => change(call, memory),
        "score_finish" => finish(call, memory),
        "score_condition" => condition(call, memory),
        "score_tiles" | "score_cut" | "score_classes" => {}
        _ => return false,
    }
    true
}

/// Words of each recipe that is there, and its place in the list.
fn recipes(call: &Call<'_>, memory: &Memory, n: usize) -> Vec<(usize, Vec<u32>)> {
    let words = memory.words(call.args[0], n * WORDS);
    words.chunks(WORDS).map(<[u32]>::to_vec).enumerate().filter(|(_, words)| words[4] != NONE).collect()
}

fn settle(call: &Call<'_>, memory: &mut Memory) {
    let (n_out, cap) = (call.int(2), call.float(3));
    for (row, words) in recipes(call, memory, call.grid[1]) {
        let [temperature, guidance] = [words[9], words[11]].map(f32::from_bits);
        let tempered = |row: usize| -> Vec<f32> {
            let logits = memory.floats(call.at(1, row, n_out), n_out).into_iter();
            logits.map(|x| if cap > 0.0 { cap * (x / cap).tanh() } else { x } / temperature).collect()
        };
        let mut logits = tempered(row);
        if words[10] != NONE {
            logits
                .iter_mut()
                .zip(tempered(words[10] as usize))
                .for_each(|(x, base)| *x = base + guidance * (*x - base));
        }
        memory.put(call.at(1, row, n_out), &logits);
    }
}

fn change(call: &Call<'_>, memory: &mut Memory) {
    for words in memory.words(call.args[0], 5 * call.int(1)).chunks(5).filter(|words| words[0] != NONE) {
        let [bias, repetition, penalty] = [words[2], words[3], words[4]].map(f32::from_bits);
        let change = LogitChange { token: words[1], bias, repetition, penalty };
        let at = call.at(2, words[0] as usize, call.int(3)) + 4 * u64::from(change.token);
        let logit = change.apply(memory.floats(at, 1)[0]);
        memory.put(at, &[logit]);
    }
}

/// A spec of settled logits.
fn spec(call: &Call<'_>, memory: &Memory, words: &[u32]) -> ScoreSpec {
    let vocabulary =
        SampleableTokens { n_sampleable: words[5] as usize, mask_token_id: (words[6] != NONE).then_some(words[6]) };
    let long = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
    let share = |at: usize, none: f32| Some(f32::from_bits(words[at])).filter(|share| *share != none);
    let classes = (long(0) != 0).then(|| classes(memory, long(0), words[22] as usize, call.int(2)));
    ScoreSpec {
        temperature: if words[7] == 1 { 0.0 } else { f32::from_bits(words[8]).recip() },
        top_k: (words[16] > 0).then_some(words[16]),
        top_p: share(17, 1.0),
        min_p: share(18, 0.0),
        draw: if words[19] == NONE { Draw::Uniform(long(2) as f64 / 2f64.powi(64)) } else { Draw::Token(words[19]) },
        score: [Score::Probability, Score::Margin, Score::NegativeEntropy][words[12] as usize],
        n_likeliest: words[14] as usize,
        asked: memory.words(call.at(10, words[20] as usize, 1), words[21] as usize),
        classes: classes.map(Arc::new),
        ..ScoreSpec::greedy(0, vocabulary)
    }
}

/// Classes of `n_out` tokens from their table.
fn classes(memory: &Memory, table: u64, n_classes: usize, n_out: usize) -> Classes {
    let ends = memory.words(table, n_classes);
    let n_tokens = ends.last().map_or(0, |end| *end as usize);
    let tokens = memory.words(table + 4 * n_classes as u64, n_tokens);
    let mut class_of = vec![0; n_out];
    let mut start = 0;
    for (class, end) in (0..).zip(&ends) {
        for token in &tokens[start..*end as usize] {
            class_of[*token as usize] = class;
        }
        start = *end as usize;
    }
    Classes::new(&class_of, n_classes)
}

fn finish(call: &Call<'_>, memory: &mut Memory) {
    let n_out = call.int(2);
    for (row, words) in recipes(call, memory, call.grid[0]) {
        let scored = scored(&memory.floats(call.at(1, row, n_out), n_out), &spec(call, memory, &words));
        let record = call.at(11, words[4] as usize, 4 + 2 * MAX_LIKELIEST);
        let Some(scored) = scored else {
            memory.put_words(record, &[0]);
            continue;
        };
        let mut likeliest = [[0; MAX_LIKELIEST]; 2];
        for (index, (token, p)) in [scored.likeliest].into_iter().chain(scored.runners_up).enumerate() {
            (likeliest[0][index], likeliest[1][index]) = (token, p.to_bits());
        }
        let head = [1, scored.token, scored.confidence.to_bits(), scored.score.to_bits()];
        memory.put_words(record, &[&head[..], &likeliest.concat()].concat());
        let classes = scored.classes.iter();
        let classes = classes.flat_map(|class| {
            let [log_max, log_sum, log_drawn] = [class.log_max, class.log_sum, class.log_drawn].map(f32::to_bits);
            [class.token, log_max, log_sum, class.drawn, log_drawn, class.is_cut.into()]
        });
        let asked = scored.log_probabilities.iter().map(|log| log.to_bits());
        memory.put_words(call.at(11, words[23] as usize, 1), &asked.chain(classes).collect::<Vec<u32>>());
    }
}

fn condition(call: &Call<'_>, memory: &mut Memory) {
    let width = call.int(4);
    for (index, row) in memory.words(call.args[0], call.grid[1]).into_iter().enumerate().filter(|(_, row)| *row != NONE)
    {
        let mixed = memory.floats(call.at(1, index, width), width).into_iter();
        memory.put(call.at(3, row as usize, width), &mixed.map(|x| x * call.float(2)).collect::<Vec<f32>>());
    }
}
