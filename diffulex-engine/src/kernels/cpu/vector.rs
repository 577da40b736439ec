//! Sixteen lanes of f32 as the kernels see them, one implementation per instruction set.
//!
//! A kernel is written once, generic over [`Vector`], marked `inline(always)`, and instantiated inside one function per
//! instruction set (see [`for_each_instruction_set`]), where the compiler knows the instructions.

/// Lanes of a vector: one AVX-512 register.
pub(super) const LANES: usize = 16;

/// Sixteen lanes.
///
/// # Safety
/// Of every method: the machine has the implementation's instructions.
pub(super) trait Vector: Copy {
    /// `value` in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// The values.
    unsafe fn load(values: &[f32; LANES]) -> Self;
    /// bfloat16 values, widened.
    unsafe fn load_bf16(values: &[u16; LANES]) -> Self;
    /// Writes the lanes.
    unsafe fn store(self, values: &mut [f32; LANES]);
    /// `self * factor + sum`, rounded once where the machine can.
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self;
    /// The same for one lane, with the same rounding.
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32;
}

/// What every processor has.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Vector for Portable {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        Self(*values)
    }
    #[inline(always)]
    unsafe fn load_bf16(values: &[u16; LANES]) -> Self {
        Self(values.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }
    #[inline(always)]
    unsafe fn store(self, values: &mut [f32; LANES]) {
        *values = self.0;
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|lane| super::simd::mul_add(self.0[lane], factor.0[lane], sum.0[lane])))
    }
    #[inline(always)]
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
        super::simd::mul_add(value, factor, sum)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Vector};

    /// One register of AVX-512.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    // SAFETY of every block below: the caller vouches for avx512f, and references to arrays of 16 are valid for 16 values.
    impl Vector for Avx512 {
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_loadu_ps(values.as_ptr()) })
        }
        #[inline(always)]
        unsafe fn load_bf16(values: &[u16; LANES]) -> Self {
            // SAFETY: see above.
            Self(unsafe {
                let half = _mm256_loadu_si256(values.as_ptr().cast());
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
            })
        }
        #[inline(always)]
        unsafe fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self.0) };
        }
        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, sum.0) })
        }
        #[inline(always)]
        unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
            value.mul_add(factor, sum)
        }
    }

    /// Two registers of AVX2.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256, __m256);

    // SAFETY of every block below: the caller vouches for avx2 and fma, and references to arrays of 16 are valid for 16
    // values.
    impl Vector for Avx2 {
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            let both = unsafe { _mm256_set1_ps(value) };
            Self(both, both)
        }
        #[inline(always)]
        unsafe fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))) }
        }
        #[inline(always)]
        unsafe fn load_bf16(values: &[u16; LANES]) -> Self {
            // SAFETY: see above.
            unsafe {
                let widen = |half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)));
                Self(
                    widen(_mm_loadu_si128(values.as_ptr().cast())),
                    widen(_mm_loadu_si128(values.as_ptr().add(8).cast())),
                )
            }
        }
        #[inline(always)]
        unsafe fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(values.as_mut_ptr(), self.0);
                _mm256_storeu_ps(values.as_mut_ptr().add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_fmadd_ps(self.0, factor.0, sum.0), _mm256_fmadd_ps(self.1, factor.1, sum.1)) }
        }
        #[inline(always)]
        unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
            value.mul_add(factor, sum)
        }
    }
}

/// Declares `$name(simd, args...)`, which calls `$body::<V>(args...)` compiled for the instructions of `simd`.
macro_rules! for_each_instruction_set {
    ($(#[$doc:meta])* fn $name:ident => $body:ident($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        fn $name(simd: Simd, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            fn avx512($($arg: $type),*) {
                // SAFETY: this function has the instructions.
                unsafe { $body::<$crate::kernels::cpu::vector::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) {
                // SAFETY: this function has the instructions.
                unsafe { $body::<$crate::kernels::cpu::vector::Avx2>($($arg),*) }
            }
            match simd {
                // SAFETY: `Simd::Avx512` and `Simd::Avx2` exist only where their instructions were found.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: every machine has what `Portable` needs.
                Simd::Portable => unsafe { $body::<$crate::kernels::cpu::vector::Portable>($($arg),*) },
            }
        }
    };
}
pub(super) use for_each_instruction_set;
