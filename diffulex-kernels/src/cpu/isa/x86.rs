//! Vectors of AVX-512 and AVX2.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use crate::cpu::isa::vector::LANES;
use crate::cpu::isa::vector::Vector;
use crate::cpu::isa::vector::widened_pairs;

/// AVX-512 that widens bfloat16.
pub(crate) type Avx512 = Zmm<Widened>;
/// AVX-512 that multiplies bfloat16.
pub(crate) type Avx512Bf16 = Zmm<Vdpbf16ps>;
/// AVX2 that widens bytes.
pub(crate) type Avx2 = Ymm<Vpmaddwd>;
/// AVX2 that multiplies bytes.
pub(crate) type AvxVnni = Ymm<Vpdpbusd>;

/// One register of AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Zmm<P>(__m512, PhantomData<P>);

/// Multiplication of pairs of bfloat16 in a [`Zmm`].
///
/// # Safety
/// For every method: the machine has what `Avx512` needs, and the implementation's instruction.
pub(crate) trait PairProducts: Copy {
    type Pairs: Copy;
    const WORDS: usize;
    unsafe fn pairs(words: __m512i) -> Self::Pairs;
    unsafe fn add(sum: Zmm<Self>, words: &[f32], pairs: Self::Pairs) -> Zmm<Self>;
}

#[derive(Clone, Copy)]
pub(crate) struct Widened;

impl PairProducts for Widened {
    type Pairs = (Zmm<Self>, Zmm<Self>);
    const WORDS: usize = 2;
    #[inline(always)]
    unsafe fn pairs(words: __m512i) -> Self::Pairs {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            let high = _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            let low = _mm512_slli_epi32::<16>(words);
            (Zmm(_mm512_castsi512_ps(low), PhantomData), Zmm(_mm512_castsi512_ps(high), PhantomData))
        }
    }
    #[inline(always)]
    unsafe fn add(sum: Zmm<Self>, words: &[f32], (low, high): Self::Pairs) -> Zmm<Self> {
        // SAFETY: passed on from the caller.
        unsafe { widened_pairs(sum, words, low, high) }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Vdpbf16ps;

impl PairProducts for Vdpbf16ps {
    type Pairs = __m512bh;
    const WORDS: usize = 1;
    #[inline(always)]
    unsafe fn pairs(words: __m512i) -> __m512bh {
        // SAFETY: registers of one size, and every bit pattern is a value of both.
        unsafe { std::mem::transmute(words) }
    }
    #[inline(always)]
    unsafe fn add(sum: Zmm<Self>, words: &[f32], pairs: __m512bh) -> Zmm<Self> {
        // SAFETY: the caller vouches for avx512bf16; there is one word, which is two bfloat16.
        unsafe {
            let input: __m512bh = std::mem::transmute(_mm512_set1_ps(*words.get_unchecked(0)));
            Zmm(_mm512_dpbf16_ps(sum.0, input, pairs), PhantomData)
        }
    }
}

// SAFETY of every block below: the caller vouches for avx512f, avx512bw and avx512vnni, and references to arrays of 16
// are valid for 16 values.
impl<P: PairProducts> Vector for Zmm<P> {
    const HAS_32_REGISTERS: bool = true;
    type Pairs = P::Pairs;
    const PAIR_WORDS: usize = P::WORDS;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(value) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_ps(values.as_ptr()) }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load_bf16(bits: &[u16; LANES]) -> Self {
        // SAFETY: see above; the 32 bytes are as large as the register.
        unsafe {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bits.as_ptr().cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)), PhantomData)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> P::Pairs {
        // SAFETY: see above; the rest is passed on from the caller.
        unsafe { P::pairs(_mm512_loadu_si512(pairs.as_ptr().cast())) }
    }
    #[inline(always)]
    unsafe fn add_pairs(self, words: &[f32], pairs: P::Pairs) -> Self {
        // SAFETY: passed on from the caller.
        unsafe { P::add(self, words, pairs) }
    }
    #[inline(always)]
    unsafe fn store(self, values: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self.0) };
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, sum.0) }, PhantomData)
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
        Self(unsafe { _mm512_cvtepi32_ps(ints) }, PhantomData)
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
        // SAFETY: see above; prefetching unmapped memory does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
    }
    #[inline(always)]
    unsafe fn magnitudes(values: &[f32; LANES], largest: &mut [u32; LANES]) {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_and_si512(_mm512_loadu_si512(values.as_ptr().cast()), _mm512_set1_epi32(i32::MAX));
            let place = largest.as_mut_ptr().cast();
            _mm512_storeu_si512(place, _mm512_max_epu32(_mm512_loadu_si512(place), bits));
        }
    }
    #[inline(always)]
    unsafe fn quantize(values: &[f32; LANES], factor: f32, sums: &mut [i32; LANES]) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        // SAFETY: see above; 16 bytes are as large as the register.
        unsafe {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(values.as_ptr()), _mm512_set1_ps(factor));
            // To nearest, ties to even, unless somebody has changed the processor's mode.
            let ints = _mm512_cvtps_epi32(scaled);
            let place = sums.as_mut_ptr().cast();
            _mm512_storeu_si512(place, _mm512_add_epi32(_mm512_loadu_si512(place), ints));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(ints));
        }
        bytes
    }
}

/// Two registers of AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Ymm<Q>([__m256; 2], PhantomData<Q>);

/// Multiplication of bytes in each register of a [`Ymm`].
///
/// # Safety
/// For every method: the machine has avx2, and the implementation's instruction.
pub(crate) trait QuadProducts: Copy {
    /// Eight quads of unsigned bytes, ready to multiply.
    type Quads: Copy;
    unsafe fn quads(bytes: __m256i) -> Self::Quads;
    unsafe fn add(sum: __m256i, quads: Self::Quads, input: __m256i) -> __m256i;
}

#[derive(Clone, Copy)]
pub(crate) struct Vpmaddwd;

impl QuadProducts for Vpmaddwd {
    /// Bytes 0 and 2 of each quad as 16-bit numbers, and bytes 1 and 3: their products add up in 32 bits exactly,
    /// where AVX2's instruction for bytes would stop at 16.
    type Quads = [__m256i; 2];
    #[inline(always)]
    unsafe fn quads(bytes: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller vouches for avx2.
        unsafe { [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)] }
    }
    #[inline(always)]
    unsafe fn add(sum: __m256i, quads: [__m256i; 2], input: __m256i) -> __m256i {
        // SAFETY: the caller vouches for avx2.
        unsafe {
            let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(input));
            let odd = _mm256_srai_epi16::<8>(input);
            let products = _mm256_madd_epi16(quads[0], even);
            _mm256_add_epi32(sum, _mm256_add_epi32(products, _mm256_madd_epi16(quads[1], odd)))
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Vpdpbusd;

impl QuadProducts for Vpdpbusd {
    type Quads = __m256i;
    #[inline(always)]
    unsafe fn quads(bytes: __m256i) -> __m256i {
        bytes
    }
    #[inline(always)]
    unsafe fn add(sum: __m256i, quads: __m256i, input: __m256i) -> __m256i {
        // SAFETY: the caller vouches for avxvnni.
        unsafe { _mm256_dpbusd_avx_epi32(sum, quads, input) }
    }
}

/// The same bits.
#[inline(always)]
unsafe fn floats(words: [__m256i; 2]) -> [__m256; 2] {
    // SAFETY: the caller vouches for avx2.
    unsafe { [_mm256_castsi256_ps(words[0]), _mm256_castsi256_ps(words[1])] }
}

/// Two registers full of 64 bytes.
#[inline(always)]
unsafe fn registers<T>(start: *const T) -> [__m256i; 2] {
    // SAFETY: the caller vouches for avx2, and for the bytes.
    unsafe { [_mm256_loadu_si256(start.cast()), _mm256_loadu_si256(start.cast::<__m256i>().add(1))] }
}

// SAFETY of every block below: the caller vouches for avx2 and fma, and references to arrays of 16 are valid for 16 values.
impl<Q: QuadProducts> Vector for Ymm<Q> {
    const HAS_32_REGISTERS: bool = false;
    type Pairs = (Self, Self);
    const PAIR_WORDS: usize = 2;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self([unsafe { _mm256_set1_ps(value) }; 2], PhantomData)
    }
    #[inline(always)]
    unsafe fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: see above.
        Self(unsafe { [_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))] }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load_bf16(bits: &[u16; LANES]) -> Self {
        // SAFETY: see above; each half is as large as the register it is read into.
        unsafe {
            let (x, y) = (_mm_loadu_si128(bits.as_ptr().cast()), _mm_loadu_si128(bits.as_ptr().add(8).cast()));
            let words = [_mm256_cvtepu16_epi32(x), _mm256_cvtepu16_epi32(y)];
            Self(floats([_mm256_slli_epi32::<16>(words[0]), _mm256_slli_epi32::<16>(words[1])]), PhantomData)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> Self::Pairs {
        // SAFETY: see above.
        unsafe {
            let words = registers(pairs.as_ptr());
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let low = [_mm256_slli_epi32::<16>(words[0]), _mm256_slli_epi32::<16>(words[1])];
            let high = [_mm256_and_si256(words[0], mask), _mm256_and_si256(words[1], mask)];
            (Self(floats(low), PhantomData), Self(floats(high), PhantomData))
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
            _mm256_storeu_ps(values.as_mut_ptr(), self.0[0]);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        let ([x, y], [x_factor, y_factor], [x_sum, y_sum]) = (self.0, factor.0, sum.0);
        // SAFETY: see above.
        Self(unsafe { [_mm256_fmadd_ps(x, x_factor, x_sum), _mm256_fmadd_ps(y, y_factor, y_sum)] }, PhantomData)
    }
    #[inline(always)]
    unsafe fn mul_add_lane(value: f32, factor: f32, sum: f32) -> f32 {
        value.mul_add(factor, sum)
    }
    type Ints = [__m256i; 2];
    type Quads = [Q::Quads; 2];
    #[inline(always)]
    unsafe fn ints(value: i32) -> [__m256i; 2] {
        // SAFETY: see above.
        [unsafe { _mm256_set1_epi32(value) }; 2]
    }
    #[inline(always)]
    unsafe fn from_ints(ints: [__m256i; 2]) -> Self {
        // SAFETY: see above.
        Self(unsafe { [_mm256_cvtepi32_ps(ints[0]), _mm256_cvtepi32_ps(ints[1])] }, PhantomData)
    }
    #[inline(always)]
    unsafe fn load_quads(bytes: &[u8; 4 * LANES]) -> [Q::Quads; 2] {
        // SAFETY: see above; the rest is passed on from the caller.
        unsafe {
            let [x, y] = registers(bytes.as_ptr());
            [Q::quads(x), Q::quads(y)]
        }
    }
    #[inline(always)]
    unsafe fn load_halves(bytes: &[u8; 4 * LANES]) -> [[Q::Quads; 2]; 2] {
        // SAFETY: see above; the rest is passed on from the caller.
        unsafe {
            let ([x, y], mask) = (registers(bytes.as_ptr()), _mm256_set1_epi8(0xf));
            let low = [_mm256_and_si256(x, mask), _mm256_and_si256(y, mask)];
            let [x, y] = [_mm256_srli_epi16::<4>(x), _mm256_srli_epi16::<4>(y)];
            let high = [_mm256_and_si256(x, mask), _mm256_and_si256(y, mask)];
            [[Q::quads(low[0]), Q::quads(low[1])], [Q::quads(high[0]), Q::quads(high[1])]]
        }
    }
    #[inline(always)]
    unsafe fn add_quads(sum: [__m256i; 2], quads: [Q::Quads; 2], input: f32) -> [__m256i; 2] {
        // SAFETY: see above; the rest is passed on from the caller.
        unsafe {
            let input = _mm256_set1_epi32(input.to_bits() as i32);
            [Q::add(sum[0], quads[0], input), Q::add(sum[1], quads[1], input)]
        }
    }
    #[inline(always)]
    unsafe fn prefetch(place: *const u8) {
        // SAFETY: see above; prefetching unmapped memory does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
    }
    #[inline(always)]
    unsafe fn magnitudes(values: &[f32; LANES], largest: &mut [u32; LANES]) {
        // SAFETY: see above.
        unsafe {
            let ([x, y], [x_largest, y_largest]) = (registers(values.as_ptr()), registers(largest.as_ptr()));
            let mask = _mm256_set1_epi32(i32::MAX);
            let place = largest.as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(place, _mm256_max_epu32(x_largest, _mm256_and_si256(x, mask)));
            _mm256_storeu_si256(place.add(1), _mm256_max_epu32(y_largest, _mm256_and_si256(y, mask)));
        }
    }
    #[inline(always)]
    unsafe fn quantize(values: &[f32; LANES], factor: f32, sums: &mut [i32; LANES]) -> [u8; LANES] {
        let mut bytes = [0; LANES];
        // SAFETY: see above; 16 bytes are as large as the register.
        unsafe {
            let ([x, y], factor) = (Self::load(values).0, _mm256_set1_ps(factor));
            // To nearest, ties to even, unless somebody has changed the processor's mode.
            let (x, y) = (_mm256_cvtps_epi32(_mm256_mul_ps(x, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(y, factor)));
            let [x_sums, y_sums] = registers(sums.as_ptr());
            let place = sums.as_mut_ptr().cast::<__m256i>();
            _mm256_storeu_si256(place, _mm256_add_epi32(x_sums, x));
            _mm256_storeu_si256(place.add(1), _mm256_add_epi32(y_sums, y));
            // Packing takes halves of both in turn; the permutation puts them in order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(x, y));
            let packed = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), packed);
        }
        bytes
    }
}
