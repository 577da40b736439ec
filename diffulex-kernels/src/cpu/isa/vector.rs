//! Sixteen lanes of f32 as the kernels see them, one implementation per instruction set.
//!
//! A kernel is written once, generic over [`Vector`], marked `inline(always)`, and instantiated inside one function per
//! instruction set (see [`super::sets::for_each_instruction_set`]), where the compiler knows the instructions. An inner loop hands no
//! closure over vectors to `from_fn`, `map` of an array or the like: those are compiled without the instructions, which may
//! then be calls instead of being inlined.

use crate::cpu::isa::bf16::{unbf16, unpair_bf16};
use crate::cpu::isa::simd::mul_add;
use crate::quantization::nearest;

/// Lanes of a vector: one AVX-512 register.
pub(crate) const LANES: usize = 16;

/// Sixteen lanes.
///
/// # Safety
/// For every method: the machine has the implementation's instructions.
pub(crate) trait Vector: Copy {
    /// There are 32 registers of sixteen lanes each: enough for sixteen sums and their factors.
    const HAS_32_REGISTERS: bool;
    /// Sixteen pairs of bfloat16, ready to multiply.
    type Pairs: Copy;
    /// Words in which [`Vector::add_pairs`] takes a pair of inputs: one that holds two bfloat16, or one for each.
    const PAIR_WORDS: usize;
    /// Sixteen 32-bit integers.
    type Ints: Copy;
    /// Sixteen quads of unsigned bytes, ready to multiply.
    type Quads: Copy;
    /// `value` in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// The values.
    unsafe fn load(values: &[f32; LANES]) -> Self;
    /// The values that have these bits as bfloat16.
    unsafe fn load_bf16(bits: &[u16; LANES]) -> Self;
    /// Pairs of bfloat16, the first of each in the lower half.
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs;
    /// `self` and both products of a pair of inputs with each pair. There are [`Vector::PAIR_WORDS`] words.
    unsafe fn add_pairs(self, words: &[f32], pairs: Self::Pairs) -> Self;
    /// Writes the lanes.
    unsafe fn store(self, values: &mut [f32; LANES]);
    /// The lanes.
    #[inline(always)]
    unsafe fn lanes(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: passed on from the caller.
        unsafe { self.store(&mut lanes) };
        lanes
    }
    /// `self * factor + sum`, rounded once where the machine can.
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self;
    /// The same for one lane, with the same rounding.
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32;
    /// `value` in every lane.
    unsafe fn ints(value: i32) -> Self::Ints;
    /// The nearest floats.
    unsafe fn from_ints(ints: Self::Ints) -> Self;
    /// The quads.
    unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> Self::Quads;
    /// The quads in the lower halves of the bytes, and those in the upper halves.
    unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [Self::Quads; 2];
    /// `sum` and the four products of each quad with the signed bytes that `input` has in its bits.
    unsafe fn add_quads(sum: Self::Ints, quads: Self::Quads, input: f32) -> Self::Ints;
    /// Asks for the memory at `place`, which may be unmapped. On x86 it is fetched to the L2 cache only: the L1 cache can
    /// wait for few lines at a time, and the multiplies' own loads need them.
    unsafe fn prefetch(place: *const u8);
    /// The bits of the larger magnitudes: of `largest`, or of the values.
    #[inline(always)]
    unsafe fn magnitudes(values: &[f32; LANES], largest: &mut [u32; LANES]) {
        for (largest, value) in largest.iter_mut().zip(values) {
            *largest = (*largest).max(value.abs().to_bits());
        }
    }
    /// `values * factor` rounded to the nearest integers, which fit a signed byte, ties to even; they are added to `sums`.
    #[inline(always)]
    unsafe fn quantize(values: &[f32; LANES], factor: f32, sums: &mut [i32; LANES]) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        for (lane, byte) in bytes.iter_mut().enumerate() {
            let value = nearest(values[lane] * factor);
            sums[lane] += value;
            *byte = value as u8;
        }
        bytes
    }
}

/// `sum` and both products, for machines that multiply no bfloat16, or slowly.
#[inline(always)]
pub(crate) unsafe fn widened_pairs<V: Vector>(sum: V, words: &[f32], low: V, high: V) -> V {
    // SAFETY: there are two words; the rest is passed on from the caller.
    unsafe { V::splat(*words.get_unchecked(1)).mul_add(high, V::splat(*words.get_unchecked(0)).mul_add(low, sum)) }
}

/// The baseline.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

impl Vector for Portable {
    const HAS_32_REGISTERS: bool = false;
    type Pairs = (Self, Self);
    const PAIR_WORDS: usize = 2;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        Self(*values)
    }
    #[inline(always)]
    unsafe fn load_bf16(bits: &[u16; LANES]) -> Self {
        Self(bits.map(unbf16))
    }
    #[inline(always)]
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs {
        let widened = pairs.map(unpair_bf16);
        (Self(widened.map(|[low, _]| low)), Self(widened.map(|[_, high]| high)))
    }
    #[inline(always)]
    unsafe fn add_pairs(self, words: &[f32], (low, high): Self::Pairs) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { widened_pairs(self, words, low, high) }
    }
    #[inline(always)]
    unsafe fn store(self, values: &mut [f32; LANES]) {
        *values = self.0;
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|lane| mul_add(self.0[lane], factor.0[lane], sum.0[lane])))
    }
    #[inline(always)]
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
        mul_add(value, factor, sum)
    }
    type Ints = [i32; LANES];
    type Quads = [[u8; 4]; LANES];
    #[inline(always)]
    unsafe fn ints(value: i32) -> [i32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn from_ints(ints: [i32; LANES]) -> Self {
        Self(ints.map(|int| int as f32))
    }
    #[inline(always)]
    unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> [[u8; 4]; LANES] {
        std::array::from_fn(|lane| std::array::from_fn(|place| bytes[4 * lane + place]))
    }
    #[inline(always)]
    unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [[[u8; 4]; LANES]; 2] {
        // SAFETY: passed on from the caller.
        unsafe { [Self::load_quads(&bytes.map(|byte| byte & 0xf)), Self::load_quads(&bytes.map(|byte| byte >> 4))] }
    }
    #[inline(always)]
    unsafe fn add_quads(sum: [i32; LANES], quads: [[u8; 4]; LANES], input: f32) -> [i32; LANES] {
        let input = input.to_bits().to_le_bytes().map(|byte| i32::from(byte as i8));
        let product = |quad: [u8; 4]| quad.iter().zip(input).map(|(byte, input)| i32::from(*byte) * input).sum::<i32>();
        std::array::from_fn(|lane| sum[lane] + product(quads[lane]))
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}
