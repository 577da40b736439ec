//! What is known about rows, and what a row adds to the score of each class.

use super::scaled::Scaled;
use crate::Automaton;

/// Scores are clamped to this, as natural logarithms. Chosen by us: no float of 32 bits has a probability below e^-104, so only
/// what was forbidden is clamped, and sums over thousands of rows remain exact enough.
const LOG_LIMIT: f32 = 1e4;

/// By how much a draft is likelier than each other token, as a natural logarithm. Chosen by us: all other tokens of a large
/// vocabulary together have 0.05 %, yet any scored row can override it.
const DRAFT_PREFERENCE: f64 = 20.0;

/// Scores of one class of tokens in one row, as natural logarithms. Any constant may be added to all scores of a row; minus infinity
/// and NaN count as -10,000, so that what else is impossible remains possible.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassWeight {
    /// The likeliest token of the class.
    pub token: u32,
    /// The score of `token`.
    pub log_max: f32,
    /// Of all tokens of the class together.
    pub log_sum: f32,
    /// A token drawn inside the class, each with its share of `log_sum`.
    pub drawn: u32,
    /// The score of `drawn`.
    pub log_drawn: f32,
}

/// What is known about a row.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// Its token.
    Decided(u32),
    /// The scores of each class; index: class. Classes that are left out at the end count as minus infinity.
    Scored(&'a [ClassWeight]),
    /// Nothing: all tokens are equally likely.
    Unscored,
    /// A draft without scores: e^20 times as likely as each other token.
    Draft(u32),
}

/// The weights of one row, by class.
pub(super) struct Weights<'a> {
    automaton: &'a Automaton,
    /// Of the likeliest token, as a natural logarithm.
    pub(super) bests: Vec<f64>,
    /// Of all tokens together.
    pub(super) sums: Vec<Scaled>,
    /// The natural logarithm of each class's size.
    log_sizes: Vec<f64>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(automaton: &'a Automaton) -> Self {
        let n_classes = automaton.n_classes();
        let sizes = (0..n_classes as u32).map(|class| automaton.class_size(class).max(1) as f64);
        let log_sizes = sizes.map(f64::ln).collect();
        Self { automaton, bests: vec![0.0; n_classes], sums: vec![Scaled::ONE; n_classes], log_sizes }
    }

    /// Takes the weights of a row.
    pub(super) fn load(&mut self, row: &Row<'_>) {
        match *row {
            Row::Decided(_) => {
                self.bests.fill(0.0);
                self.sums.fill(Scaled::ONE);
            }
            Row::Scored(scores) => {
                for (class, (best, sum)) in self.bests.iter_mut().zip(&mut self.sums).enumerate() {
                    let score = scores.get(class);
                    let (log_max, log_sum) = score.map_or((f32::NAN, f32::NAN), |score| (score.log_max, score.log_sum));
                    *best = clamped(log_max);
                    *sum = Scaled::exp(clamped_sum(log_sum, self.log_sizes[class]));
                }
            }
            Row::Unscored => self.load_flat(None),
            Row::Draft(token) => self.load_flat(Some(self.automaton.class(token))),
        }
    }

    /// Equal weights, apart from one token of one class.
    fn load_flat(&mut self, preferred: Option<u32>) {
        for (class, (best, sum)) in (0..).zip(self.bests.iter_mut().zip(&mut self.sums)) {
            *best = if preferred == Some(class) { DRAFT_PREFERENCE } else { 0.0 };
            *sum = Scaled::exp(flat_sum(self.automaton.class_size(class), preferred == Some(class)).ln());
        }
    }

    /// The likeliest token of a class, and its share of the class.
    pub(super) fn likeliest(&self, row: &Row<'_>, class: u32) -> (u32, f32) {
        self.token(row, class, |score| (score.token, score.log_max))
    }

    /// The token that was drawn inside a class, and its share of the class.
    pub(super) fn drawn(&self, row: &Row<'_>, class: u32) -> (u32, f32) {
        self.token(row, class, |score| (score.drawn, score.log_drawn))
    }

    fn token(&self, row: &Row<'_>, class: u32, scored: impl Fn(&ClassWeight) -> (u32, f32)) -> (u32, f32) {
        let size = self.automaton.class_size(class);
        let any = (self.automaton.representative(class), 1.0 / size.max(1) as f32);
        match *row {
            Row::Decided(token) => (token, 1.0),
            Row::Scored(scores) => {
                let Some(score) = scores.get(class as usize) else { return any };
                let (token, log) = scored(score);
                let log_sum = clamped_sum(score.log_sum, self.log_sizes[class as usize]);
                let share = (clamped(log) - log_sum).exp().min(1.0) as f32;
                // Where every token is forbidden, none is the likeliest.
                let is_own = self.automaton.class(token) == class;
                if is_own { (token, share) } else { any }
            }
            Row::Draft(token) if self.automaton.class(token) == class => {
                (token, (DRAFT_PREFERENCE.exp() / flat_sum(size, true)) as f32)
            }
            Row::Unscored | Row::Draft(_) => any,
        }
    }
}

/// The weight of a class whose tokens have weight 1, apart from a draft.
fn flat_sum(size: usize, has_draft: bool) -> f64 {
    if has_draft { DRAFT_PREFERENCE.exp() + size.saturating_sub(1) as f64 } else { size.max(1) as f64 }
}

fn clamped(score: f32) -> f64 {
    f64::from(if score.is_nan() { -LOG_LIMIT } else { score.clamp(-LOG_LIMIT, LOG_LIMIT) })
}

/// The sum over a class, of whose tokens each is clamped.
fn clamped_sum(log_sum: f32, log_size: f64) -> f64 {
    clamped(log_sum).max(log_size - f64::from(LOG_LIMIT))
}
