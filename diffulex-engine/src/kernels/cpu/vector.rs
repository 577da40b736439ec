//! Sixteen lanes of f32 as the kernels see them, one implementation per instruction set.
//!
//! A kernel is written once, generic over [`Vector`], marked `inline(always)`, and instantiated inside one function per
//! instruction set (see [`for_each_instruction_set`]), where the compiler knows the instructions.

use super::packed::unpair_bf16;

/// Lanes of a vector: one AVX-512 register.
pub(super) const LANES: usize = 16;

/// Sixteen lanes.
///
/// # Safety
/// Of every method: the machine has the implementation's instructions.
pub(super) trait Vector: Copy {
    /// There are registers for sixteen sums and what they are made of.
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
    /// Pairs of bfloat16, the first of each in the lower half.
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs;
    /// `self` and both products of a pair of inputs with each pair. There are [`Vector::PAIR_WORDS`] words.
    unsafe fn add_pairs(self, words: &[f32], pairs: Self::Pairs) -> Self;
    /// Writes the lanes.
    unsafe fn store(self, values: &mut [f32; LANES]);
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
    /// Asks for the memory at `place`, which need not be anybody's.
    unsafe fn prefetch(place: *const u8);
}

/// Forwards the methods for integers to another implementation.
macro_rules! integers_of {
    ($inner:ty) => {
        type Ints = <$inner as Vector>::Ints;
        type Quads = <$inner as Vector>::Quads;
        #[inline(always)]
        unsafe fn ints(value: i32) -> Self::Ints {
            // SAFETY: passed on from the caller.
            unsafe { <$inner>::ints(value) }
        }
        #[inline(always)]
        unsafe fn from_ints(ints: Self::Ints) -> Self {
            // SAFETY: passed on from the caller.
            Self(unsafe { <$inner>::from_ints(ints) })
        }
        #[inline(always)]
        unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> Self::Quads {
            // SAFETY: passed on from the caller.
            unsafe { <$inner>::load_quads(bytes) }
        }
        #[inline(always)]
        unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [Self::Quads; 2] {
            // SAFETY: passed on from the caller.
            unsafe { <$inner>::load_halves(bytes) }
        }
        #[inline(always)]
        unsafe fn add_quads(sum: Self::Ints, quads: Self::Quads, input: f32) -> Self::Ints {
            // SAFETY: passed on from the caller.
            unsafe { <$inner>::add_quads(sum, quads, input) }
        }
        #[inline(always)]
        unsafe fn prefetch(place: *const u8) {
            // SAFETY: passed on from the caller.
            unsafe { <$inner>::prefetch(place) }
        }
    };
}

/// `sum` and both products, for machines that multiply no bfloat16, or slowly.
#[inline(always)]
unsafe fn widened_pairs<V: Vector>(sum: V, words: &[f32], low: V, high: V) -> V {
    // SAFETY: there are two words; the rest is passed on from the caller.
    unsafe { V::splat(*words.get_unchecked(1)).mul_add(high, V::splat(*words.get_unchecked(0)).mul_add(low, sum)) }
}

/// What every processor has.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Vector for Portable {
    const HAS_32_REGISTERS: bool = cfg!(target_arch = "aarch64");
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
        Self(std::array::from_fn(|lane| super::simd::mul_add(self.0[lane], factor.0[lane], sum.0[lane])))
    }
    #[inline(always)]
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
        super::simd::mul_add(value, factor, sum)
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

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Avx512Bf16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Vector, widened_pairs};

    /// One register of AVX-512.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    // SAFETY of every block below: the caller vouches for avx512f, avx512bw and avx512vnni, and references to arrays of 16 are valid for 16 values.
    impl Vector for Avx512 {
        const HAS_32_REGISTERS: bool = true;
        type Pairs = (Self, Self);
        const PAIR_WORDS: usize = 2;
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
        unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs {
            // SAFETY: see above.
            unsafe {
                let words = _mm512_loadu_si512(pairs.as_ptr().cast());
                let high = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
                (Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))), Self(_mm512_castsi512_ps(high)))
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
        type Ints = __m512i;
        type Quads = __m512i;
        #[inline(always)]
        unsafe fn ints(value: i32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn from_ints(ints: __m512i) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_cvtepi32_ps(ints) })
        }
        #[inline(always)]
        unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> __m512i {
            // SAFETY: see above; 64 bytes are as large as the register.
            unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
        }
        #[inline(always)]
        unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [__m512i; 2] {
            // SAFETY: see above.
            unsafe {
                let (both, mask) = (Self::load_quads(bytes), _mm512_set1_epi8(0xf));
                [_mm512_and_si512(both, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask)]
            }
        }
        #[inline(always)]
        unsafe fn add_quads(sum: __m512i, quads: __m512i, input: f32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_dpbusd_epi32(sum, quads, _mm512_set1_epi32(input.to_bits() as i32)) }
        }
        #[inline(always)]
        unsafe fn prefetch(place: *const u8) {
            // SAFETY: see above; asking for memory that is nobody's does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        }
    }

    /// One register of AVX-512 on a machine that multiplies bfloat16.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512Bf16(Avx512);

    // SAFETY of every block below: the caller vouches for what `Avx512` needs, and avx512bf16.
    impl Vector for Avx512Bf16 {
        const HAS_32_REGISTERS: bool = true;
        type Pairs = __m512bh;
        const PAIR_WORDS: usize = 1;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { Avx512::splat(value) })
        }
        #[inline(always)]
        unsafe fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: see above.
            Self(unsafe { Avx512::load(values) })
        }
        #[inline(always)]
        unsafe fn load_pairs(pairs: &[u32; LANES]) -> __m512bh {
            // SAFETY: an array of 16 words is as large as the register, and every bit pattern is a value of both.
            unsafe { std::mem::transmute(_mm512_loadu_si512(pairs.as_ptr().cast())) }
        }
        #[inline(always)]
        unsafe fn add_pairs(self, words: &[f32], pairs: __m512bh) -> Self {
            // SAFETY: see above; there is one word, the broadcast word is two bfloat16, and registers of one size are
            // transmuted.
            unsafe {
                let input: __m512bh = std::mem::transmute(_mm512_set1_ps(*words.get_unchecked(0)));
                Self(Avx512(_mm512_dpbf16_ps(self.0.0, input, pairs)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe { self.0.store(values) };
        }
        #[inline(always)]
        unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { self.0.mul_add(factor.0, sum.0) })
        }
        #[inline(always)]
        unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
            value.mul_add(factor, sum)
        }
        integers_of!(Avx512);
    }

    /// Two registers of AVX2.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256, __m256);

    // SAFETY of every block below: the caller vouches for avx2 and fma, and references to arrays of 16 are valid for 16
    // values.
    impl Vector for Avx2 {
        const HAS_32_REGISTERS: bool = false;
        type Pairs = (Self, Self);
        const PAIR_WORDS: usize = 2;
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
        unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs {
            // SAFETY: see above.
            unsafe {
                let words =
                    [_mm256_loadu_si256(pairs.as_ptr().cast()), _mm256_loadu_si256(pairs.as_ptr().add(8).cast())];
                let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                let low = words.map(|words| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)));
                let high = words.map(|words| _mm256_castsi256_ps(_mm256_and_si256(words, mask)));
                (Self(low[0], low[1]), Self(high[0], high[1]))
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
        type Ints = [__m256i; 2];
        /// Bytes 0 and 2 of each quad as 16-bit numbers, and bytes 1 and 3: their products add up in 32 bits exactly,
        /// where the instruction for bytes would stop at 16.
        type Quads = [[__m256i; 2]; 2];
        #[inline(always)]
        unsafe fn ints(value: i32) -> [__m256i; 2] {
            // SAFETY: see above.
            [unsafe { _mm256_set1_epi32(value) }; 2]
        }
        #[inline(always)]
        unsafe fn from_ints(ints: [__m256i; 2]) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_cvtepi32_ps(ints[0]), _mm256_cvtepi32_ps(ints[1])) }
        }
        #[inline(always)]
        unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> [[__m256i; 2]; 2] {
            // SAFETY: see above; 64 bytes are as large as two registers.
            unsafe {
                let mask = _mm256_set1_epi16(0xff);
                let halves = [bytes.as_ptr(), bytes.as_ptr().add(32)].map(|half| _mm256_loadu_si256(half.cast()));
                halves.map(|half| [_mm256_and_si256(half, mask), _mm256_srli_epi16::<8>(half)])
            }
        }
        #[inline(always)]
        unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [[[__m256i; 2]; 2]; 2] {
            // SAFETY: see above.
            unsafe {
                let mask = _mm256_set1_epi16(0xf);
                let both = Self::load_quads(bytes);
                [
                    both.map(|pairs| pairs.map(|pair| _mm256_and_si256(pair, mask))),
                    both.map(|pairs| pairs.map(|pair| _mm256_srli_epi16::<4>(pair))),
                ]
            }
        }
        #[inline(always)]
        unsafe fn add_quads(sum: [__m256i; 2], quads: [[__m256i; 2]; 2], input: f32) -> [__m256i; 2] {
            // SAFETY: see above.
            unsafe {
                let input = _mm256_set1_epi32(input.to_bits() as i32);
                let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(input));
                let odd = _mm256_srai_epi16::<8>(input);
                std::array::from_fn(|half| {
                    let products = _mm256_madd_epi16(quads[half][0], even);
                    let products = _mm256_add_epi32(products, _mm256_madd_epi16(quads[half][1], odd));
                    _mm256_add_epi32(sum[half], products)
                })
            }
        }
        #[inline(always)]
        unsafe fn prefetch(place: *const u8) {
            // SAFETY: see above; asking for memory that is nobody's does nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        }
    }
}

/// Declares `$name(simd, args...)`, which calls `$body::<V>(args...)` compiled for the instructions of `simd`.
macro_rules! for_each_instruction_set {
    ($(#[$doc:meta])* $vis:vis fn $name:ident => $body:ident($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis fn $name(simd: Simd, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
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
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx512bf16")]
            fn avx512_bf16($($arg: $type),*) {
                // SAFETY: this function has the instructions.
                unsafe { $body::<$crate::kernels::cpu::vector::Avx512Bf16>($($arg),*) }
            }
            match simd {
                // SAFETY: as below.
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512Bf16 => unsafe { avx512_bf16($($arg),*) },
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
