//! Random numbers. Each is keyed, so that a request gets the same numbers in any batch.

use crate::kernels::Draw;

/// A source of random numbers.
pub trait Randomness: Send {
    /// The number that draws the token of a position.
    fn draw(&self, key: DrawKey) -> Draw;

    /// A token below `n_tokens` for noise, uniformly distributed and independent of the draw.
    fn noise(&self, key: DrawKey, n_tokens: usize) -> u32;

    /// A number in [0, 1) for rules that choose positions at random, independent of both.
    fn chance(&self, key: DrawKey) -> f32 {
        DrawKey { seed: key.seed.wrapping_add(CHANCE), ..key }.uniform() as f32
    }
}

/// The source of a server: numbers mixed from the key.
#[derive(Clone, Copy, Debug)]
pub struct Seeded;

/// Added to the seed where noise is drawn; any number does.
const NOISE: u64 = 0x6E6F_6973_6521;

/// Added to the seed for [`Randomness::chance`].
const CHANCE: u64 = 0x6368_616E_6365;

impl Randomness for Seeded {
    fn draw(&self, key: DrawKey) -> Draw {
        Draw::Uniform(key.uniform())
    }

    fn noise(&self, key: DrawKey, n_tokens: usize) -> u32 {
        let key = DrawKey { seed: key.seed.wrapping_add(NOISE), ..key };
        (key.uniform() * n_tokens as f64) as u32
    }
}

/// Everything a draw depends on beside the logits: nothing that a batch, a schedule or a preemption could change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawKey {
    /// The request's seed.
    pub seed: u64,
    /// Absolute position.
    pub position: usize,
    /// Denoise steps the block took before.
    pub step: usize,
}

impl DrawKey {
    /// A number in [0, 1) with 53 random bits.
    fn uniform(self) -> f64 {
        // SplitMix64's finaliser (Steele, Lea, Flood 2014) over a counter, once per part of the key.
        fn mix(mut z: u64) -> u64 {
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        }
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let z = mix(self.seed.wrapping_add(GOLDEN));
        let z = mix(z.wrapping_add((self.position as u64 + 1).wrapping_mul(GOLDEN)));
        let z = mix(z.wrapping_add((self.step as u64 + 1).wrapping_mul(GOLDEN)));
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}
