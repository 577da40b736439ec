//! Vectors of NEON.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use crate::cpu::isa::vector::LANES;
use crate::cpu::isa::vector::Vector;
use crate::cpu::isa::vector::widened_pairs;

/// NEON with products of signed bytes.
pub(crate) type NeonDotprod = Neon<Dotprod>;
/// NEON with products of bfloat16, and of unsigned with signed bytes.
pub(crate) type NeonBf16 = Neon<Bf16>;

/// Registers of a vector.
const N_REGISTERS: usize = 4;

/// The value for each register.
macro_rules! each {
    ($place:ident => $value:expr) => {
        [
            {
                const $place: usize = 0;
                $value
            },
            {
                const $place: usize = 1;
                $value
            },
            {
                const $place: usize = 2;
                $value
            },
            {
                const $place: usize = 3;
                $value
            },
        ]
    };
}

/// Four registers of NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon<P>([float32x4_t; N_REGISTERS], PhantomData<P>);

/// Declares a function of one instruction that adds products to `sum`. (The standard library has these in nightly only.)
macro_rules! instruction {
    ($name:ident, $feature:literal, $instruction:literal, ($sum:ty, $left:ty, $right:ty)) => {
        #[inline]
        #[target_feature(enable = $feature)]
        fn $name(mut sum: $sum, left: $left, right: $right) -> $sum {
            // SAFETY: this function has the instruction, which touches these registers only.
            unsafe {
                asm!(
                    $instruction,
                    sum = inout(vreg) sum,
                    left = in(vreg) left,
                    right = in(vreg) right,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            sum
        }
    };
}

instruction!(sdot, "dotprod", "sdot {sum:v}.4s, {left:v}.16b, {right:v}.16b", (int32x4_t, uint8x16_t, int8x16_t));
instruction!(usdot, "i8mm", "usdot {sum:v}.4s, {left:v}.16b, {right:v}.16b", (int32x4_t, uint8x16_t, int8x16_t));
instruction!(bfdot, "bf16", "bfdot {sum:v}.4s, {left:v}.8h, {right:v}.8h", (float32x4_t, uint32x4_t, uint32x4_t));

/// Multiplication of quads of bytes and of pairs of bfloat16.
///
/// # Safety
/// For every method: the machine has the implementation's instructions.
pub(crate) trait Products: Copy {
    /// A quad's bytes are taken as signed.
    const ARE_SIGNED: bool;
    type Pairs: Copy;
    const PAIR_WORDS: usize;
    /// `sum` and the four products of each quad with a quad of signed bytes.
    unsafe fn add_quads(sum: int32x4_t, quads: uint8x16_t, input: int8x16_t) -> int32x4_t;
    /// Pairs of bfloat16, the first of each in a word's lower half.
    unsafe fn pairs(words: [uint32x4_t; N_REGISTERS]) -> Self::Pairs;
    /// `sum` and both products of a pair of inputs with each pair.
    unsafe fn add_pairs(sum: Neon<Self>, words: &[f32], pairs: Self::Pairs) -> Neon<Self>;
}

/// Armv8.2 with `dotprod`, without bfloat16 products.
#[derive(Clone, Copy)]
pub(crate) struct Dotprod;

impl Products for Dotprod {
    const ARE_SIGNED: bool = true;
    type Pairs = (Neon<Self>, Neon<Self>);
    const PAIR_WORDS: usize = 2;
    #[inline(always)]
    unsafe fn add_quads(sum: int32x4_t, quads: uint8x16_t, input: int8x16_t) -> int32x4_t {
        // SAFETY: the caller vouches for dotprod.
        unsafe { sdot(sum, quads, input) }
    }
    #[inline(always)]
    unsafe fn pairs(words: [uint32x4_t; N_REGISTERS]) -> Self::Pairs {
        // SAFETY: every processor of the target has NEON.
        unsafe {
            let low = each!(I => vreinterpretq_f32_u32(vshlq_n_u32::<16>(words[I])));
            let high = each!(I => vreinterpretq_f32_u32(vandq_u32(words[I], vdupq_n_u32(0xffff_0000))));
            (Neon(low, PhantomData), Neon(high, PhantomData))
        }
    }
    #[inline(always)]
    unsafe fn add_pairs(sum: Neon<Self>, words: &[f32], (low, high): Self::Pairs) -> Neon<Self> {
        // SAFETY: passed on from the caller.
        unsafe { widened_pairs(sum, words, low, high) }
    }
}

/// Armv8.6: `bf16` and `i8mm`.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Products for Bf16 {
    const ARE_SIGNED: bool = false;
    type Pairs = [uint32x4_t; N_REGISTERS];
    const PAIR_WORDS: usize = 1;
    #[inline(always)]
    unsafe fn add_quads(sum: int32x4_t, quads: uint8x16_t, input: int8x16_t) -> int32x4_t {
        // SAFETY: the caller vouches for i8mm.
        unsafe { usdot(sum, quads, input) }
    }
    #[inline(always)]
    unsafe fn pairs(words: [uint32x4_t; N_REGISTERS]) -> Self::Pairs {
        words
    }
    #[inline(always)]
    unsafe fn add_pairs(sum: Neon<Self>, words: &[f32], pairs: Self::Pairs) -> Neon<Self> {
        // SAFETY: the caller vouches for bf16; there is one word, which is two bfloat16.
        unsafe {
            let input = vdupq_n_u32(words.get_unchecked(0).to_bits());
            Neon(each!(I => bfdot(sum.0[I], pairs[I], input)), PhantomData)
        }
    }
}

/// Sixteen integers, less 128 times the inputs so far where bytes had to be made signed by subtracting 128.
#[derive(Clone, Copy)]
pub(crate) struct Ints {
    sums: [int32x4_t; N_REGISTERS],
    inputs: int32x4_t,
}

/// Four registers full of 64 bytes.
#[inline(always)]
unsafe fn registers(bytes: &[u8; 4 * LANES]) -> [uint8x16_t; N_REGISTERS] {
    // SAFETY: every processor of the target has NEON, and 64 bytes are as large as four registers.
    unsafe { each!(I => vld1q_u8(bytes.as_ptr().add(16 * I))) }
}

/// Quads as `P` takes them.
#[inline(always)]
unsafe fn quads<P: Products>(bytes: [uint8x16_t; N_REGISTERS]) -> [uint8x16_t; N_REGISTERS] {
    if !P::ARE_SIGNED {
        return bytes;
    }
    // Unsigned bytes with 128 subtracted are signed ones.
    // SAFETY: every processor of the target has NEON.
    unsafe { each!(I => veorq_u8(bytes[I], vdupq_n_u8(0x80))) }
}

// SAFETY of every block below: every processor of the target has NEON, references to arrays of 16 are valid for 16 values,
// and the caller vouches for the instructions of `P`.
impl<P: Products> Vector for Neon<P> {
    // They hold a quarter of a vector each.
    const HAS_32_REGISTERS: bool = false;
    type Pairs = P::Pairs;
    const PAIR_WORDS: usize = P::PAIR_WORDS;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self([unsafe { vdupq_n_f32(value) }; N_REGISTERS], PhantomData)
    }
    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: see above.
        Self(unsafe { each!(I => vld1q_f32(values.as_ptr().add(4 * I))) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load_bf16(bits: &[u16; LANES]) -> Self {
        // SAFETY: see above.
        unsafe {
            let words = each!(I => vmovl_u16(vld1_u16(bits.as_ptr().add(4 * I))));
            Self(each!(I => vreinterpretq_f32_u32(vshlq_n_u32::<16>(words[I]))), PhantomData)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> P::Pairs {
        // SAFETY: see above.
        unsafe { P::pairs(each!(I => vld1q_u32(pairs.as_ptr().add(4 * I)))) }
    }
    #[inline(always)]
    unsafe fn add_pairs(self, words: &[f32], pairs: P::Pairs) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { P::add_pairs(self, words, pairs) }
    }
    #[inline(always)]
    unsafe fn store(self, values: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe { each!(I => vst1q_f32(values.as_mut_ptr().add(4 * I), self.0[I])) };
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { each!(I => vfmaq_f32(sum.0[I], self.0[I], factor.0[I])) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
        value.mul_add(factor, sum)
    }
    type Ints = Ints;
    type Quads = [uint8x16_t; N_REGISTERS];
    #[inline(always)]
    unsafe fn ints(value: i32) -> Ints {
        // SAFETY: see above.
        unsafe { Ints { sums: [vdupq_n_s32(value); N_REGISTERS], inputs: vdupq_n_s32(0) } }
    }
    #[inline(always)]
    unsafe fn from_ints(ints: Ints) -> Self {
        // SAFETY: see above.
        unsafe {
            let missing = vshlq_n_s32::<7>(ints.inputs);
            Self(each!(I => vcvtq_f32_s32(vaddq_s32(ints.sums[I], missing))), PhantomData)
        }
    }
    #[inline(always)]
    unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> Self::Quads {
        // SAFETY: see above.
        unsafe { quads::<P>(registers(bytes)) }
    }
    #[inline(always)]
    unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [Self::Quads; 2] {
        // SAFETY: see above.
        unsafe {
            let both = registers(bytes);
            let low = each!(I => vandq_u8(both[I], vdupq_n_u8(0xf)));
            [quads::<P>(low), quads::<P>(each!(I => vshrq_n_u8::<4>(both[I])))]
        }
    }
    #[inline(always)]
    unsafe fn add_quads(ints: Ints, quads: Self::Quads, input: f32) -> Ints {
        // SAFETY: see above.
        unsafe {
            let input = vreinterpretq_s8_u32(vdupq_n_u32(input.to_bits()));
            Ints {
                sums: each!(I => P::add_quads(ints.sums[I], quads[I], input)),
                inputs: if P::ARE_SIGNED { P::add_quads(ints.inputs, vdupq_n_u8(1), input) } else { ints.inputs },
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch(place: *const u8) {
        // SAFETY: prefetching unmapped memory does nothing.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) place, options(readonly, nostack, preserves_flags)) };
    }
}
