//! Classes of tokens: scoring reduces a row to a few numbers for each, which a dynamic programme over rows reads.
//!
//! A class's own token is drawn by inverting sums, as the row's is, with a uniform number of its own. Noise for each token (the
//! exponential race) would ask for a logarithm and a hash of each, which is about what the exponential costs; here the sums are
//! needed anyway, and only a part of a class is read again. Bodies read the tokens of a class one after the other
//! ([`Classes::tokens`]), so that large classes take vectors on a CPU and a block of threads on a GPU.

use std::ops::Range;

/// A partition of the vocabulary, shared by the rows of many steps.
///
/// Class 0 has the tokens that no one asks about, which may not be sampled or are in no answer. It is not scored
/// ([`ClassScore::NOTHING`]). Tokens of other classes may be sampled, in each row that names these classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    /// All tokens of the classes from 1 on, class by class, each in the order of ids.
    tokens: Vec<u32>,
    /// Where each class ends in `tokens`; 0 for class 0.
    ends: Vec<u32>,
}

impl Classes {
    /// Classes of the tokens: `class_of` has one for each row of the head, below `n_classes`.
    pub fn new(class_of: &[u32], n_classes: usize) -> Self {
        // Where the next token of each class goes; behind the last, its end.
        let mut ends = vec![0; n_classes];
        let scored = || (0..).zip(class_of).filter(|(_, class)| **class > 0);
        scored().for_each(|(_, class): (u32, _)| ends[*class as usize] += 1);
        let mut n_before = 0;
        for end in &mut ends {
            n_before += std::mem::replace(end, n_before);
        }
        let mut tokens = vec![0; n_before as usize];
        for (token, class) in scored() {
            let place = &mut ends[*class as usize];
            tokens[*place as usize] = token;
            *place += 1;
        }
        Self { tokens, ends }
    }

    /// Number of classes, class 0 included.
    pub fn n_classes(&self) -> usize {
        self.ends.len()
    }

    /// Memory in bytes.
    pub fn n_bytes(&self) -> usize {
        size_of_val(self.tokens.as_slice()) + size_of_val(self.ends.as_slice())
    }

    /// The tokens of a class, ascending; none of class 0.
    pub fn tokens(&self, class: usize) -> &[u32] {
        &self.tokens[self.range(class)]
    }

    /// Tokens of all classes, one class after the other.
    pub(crate) fn all_tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The place of a class's tokens in [`Classes::all_tokens`].
    pub(crate) fn range(&self, class: usize) -> Range<usize> {
        let start = class.checked_sub(1).map_or(0, |before| self.ends[before]);
        start as usize..self.ends[class] as usize
    }

    /// Where each class ends in [`Classes::all_tokens`].
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }
}

/// What a row has for a class of tokens.
///
/// If top-k, top-p or min-p cut the row, everything is over the kept tokens of the class. If none of them is kept, everything is
/// over all of them, and `is_cut` is true. Logarithms are those of the softmax of `x / temperature` (`x`, where greedy) over the whole
/// vocabulary, before anything is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassScore {
    /// Likeliest token, ties to the highest id; 0 in a class without tokens.
    pub token: u32,
    /// That token's log-probability; minus infinity in a class without tokens.
    pub log_max: f32,
    /// Logarithm of the sum of probabilities; finite where `log_max` is.
    pub log_sum: f32,
    /// A token drawn in proportion to the probabilities, by the class's own uniform number. It is `token` in greedy rows and where
    /// the row's token is given.
    pub drawn: u32,
    /// That token's log-probability.
    pub log_drawn: f32,
    /// Whether the cuts keep no token of the class. Always false in a class without tokens, and either where `log_max` is
    /// minus infinity.
    pub is_cut: bool,
}

impl ClassScore {
    /// That of a class without tokens.
    pub const NOTHING: Self = Self {
        token: 0,
        log_max: f32::NEG_INFINITY,
        log_sum: f32::NEG_INFINITY,
        drawn: 0,
        log_drawn: f32::NEG_INFINITY,
        is_cut: false,
    };
}

/// The uniform number in [0, 1) by which a class draws its token: the first, by id, at which the sum of probabilities exceeds this
/// share of the class's. `uniform` is the row's; numbers of different classes and the row's own are independent, so that whoever
/// chooses among classes by `uniform` does not choose among their tokens.
///
/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014), of a sequence that begins at the row's 64 bits. gpu/score.cu has the same.
pub(crate) fn uniform_of_class(uniform: f64, class: usize) -> f64 {
    // Exact: a multiplication by a power of two.
    let bits = (uniform * 2f64.powi(64)) as u64;
    let mut word = bits.wrapping_add((class as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^= word >> 31;
    // The highest 53 bits, which a 64-bit float has.
    (word >> 11) as f64 * 2f64.powi(-53)
}
