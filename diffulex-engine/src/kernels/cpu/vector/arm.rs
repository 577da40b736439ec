//! Vectors of NEON.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::{LANES, Vector, widened_pairs};

/// NEON with products of signed bytes.
pub(in crate::kernels::cpu) type NeonDotprod = Neon<Sdot>;
/// NEON with products of unsigned and signed bytes.
pub(in crate::kernels::cpu) type NeonI8mm = Neon<Usdot>;

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
pub(in crate::kernels::cpu) struct Neon<D>([float32x4_t; N_REGISTERS], PhantomData<D>);

/// The instruction that multiplies quads of bytes. (Of both, the standard library has the functions in nightly only.)
///
/// # Safety
/// Of every method: the machine has the implementation's instruction.
pub(in crate::kernels::cpu) trait Dot: Copy {
    /// The instruction takes a quad's bytes as signed.
    const IS_SIGNED: bool;
    /// `sum` and the four products of each quad with a quad of signed bytes.
    unsafe fn dot(sum: int32x4_t, quads: uint8x16_t, input: int8x16_t) -> int32x4_t;
}

/// Declares a [`Dot`] of one instruction.
macro_rules! dot {
    ($name:ident, $feature:literal, $instruction:literal, $is_signed:literal) => {
        #[derive(Clone, Copy)]
        pub(in crate::kernels::cpu) struct $name;

        impl Dot for $name {
            const IS_SIGNED: bool = $is_signed;
            #[inline]
            #[target_feature(enable = $feature)]
            unsafe fn dot(mut sum: int32x4_t, quads: uint8x16_t, input: int8x16_t) -> int32x4_t {
                // SAFETY: this function has the instruction, which touches these registers only.
                unsafe {
                    asm!(
                        concat!($instruction, " {sum:v}.4s, {quads:v}.16b, {input:v}.16b"),
                        sum = inout(vreg) sum,
                        quads = in(vreg) quads,
                        input = in(vreg) input,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                sum
            }
        }
    };
}

dot!(Sdot, "dotprod", "sdot", true);
dot!(Usdot, "i8mm", "usdot", false);

/// Sixteen integers, less 128 times the inputs so far where bytes had to be made signed by subtracting 128.
#[derive(Clone, Copy)]
pub(in crate::kernels::cpu) struct Ints {
    sums: [int32x4_t; N_REGISTERS],
    inputs: int32x4_t,
}

/// Four registers full of 64 bytes.
#[inline(always)]
unsafe fn registers(bytes: &[u8; 4 * LANES]) -> [uint8x16_t; N_REGISTERS] {
    // SAFETY: every processor of the target has NEON, and 64 bytes are as large as four registers.
    unsafe { each!(I => vld1q_u8(bytes.as_ptr().add(16 * I))) }
}

/// Quads as `D` takes them.
#[inline(always)]
unsafe fn quads<D: Dot>(bytes: [uint8x16_t; N_REGISTERS]) -> [uint8x16_t; N_REGISTERS] {
    if !D::IS_SIGNED {
        return bytes;
    }
    // Unsigned bytes with 128 subtracted are signed ones.
    // SAFETY: every processor of the target has NEON.
    unsafe { each!(I => veorq_u8(bytes[I], vdupq_n_u8(0x80))) }
}

// SAFETY of every block below: every processor of the target has NEON, references to arrays of 16 are valid for 16 values,
// and the caller vouches for the instruction of `D`.
impl<D: Dot> Vector for Neon<D> {
    // They hold a quarter of a vector each.
    const HAS_32_REGISTERS: bool = false;
    type Pairs = (Self, Self);
    const PAIR_WORDS: usize = 2;
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
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs {
        // SAFETY: see above.
        unsafe {
            let words = each!(I => vld1q_u32(pairs.as_ptr().add(4 * I)));
            let low = each!(I => vreinterpretq_f32_u32(vshlq_n_u32::<16>(words[I])));
            let high = each!(I => vreinterpretq_f32_u32(vandq_u32(words[I], vdupq_n_u32(0xffff_0000))));
            (Self(low, PhantomData), Self(high, PhantomData))
        }
    }
    #[inline(always)]
    unsafe fn add_pairs(self, words: &[f32], (low, high): Self::Pairs) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { widened_pairs(self, words, low, high) }
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
        unsafe { quads::<D>(registers(bytes)) }
    }
    #[inline(always)]
    unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [Self::Quads; 2] {
        // SAFETY: see above.
        unsafe {
            let both = registers(bytes);
            let low = each!(I => vandq_u8(both[I], vdupq_n_u8(0xf)));
            [quads::<D>(low), quads::<D>(each!(I => vshrq_n_u8::<4>(both[I])))]
        }
    }
    #[inline(always)]
    unsafe fn add_quads(ints: Ints, quads: Self::Quads, input: f32) -> Ints {
        // SAFETY: see above.
        unsafe {
            let input = vreinterpretq_s8_u32(vdupq_n_u32(input.to_bits()));
            Ints {
                sums: each!(I => D::dot(ints.sums[I], quads[I], input)),
                inputs: if D::IS_SIGNED { D::dot(ints.inputs, vdupq_n_u8(1), input) } else { ints.inputs },
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch(place: *const u8) {
        // SAFETY: asking for memory that is nobody's does nothing.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) place, options(readonly, nostack, preserves_flags)) };
    }
}
