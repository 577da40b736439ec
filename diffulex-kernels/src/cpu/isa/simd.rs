//! Small vector operations, compiled for the instructions the machine has.
//!
//! Each body is written once as plain loops over lanes and inlined into one function per instruction set, where the
//! compiler vectorises it. Sums run over fixed lanes and are folded in a fixed order, so that a result does not depend
//! on the instruction set beyond fused rounding.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::ops::Range;
use std::sync::OnceLock;

use crate::Activation;

/// Lanes a sum is spread over: one AVX-512 register of f32.
const LANES: usize = 16;

/// The instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {
    /// AVX-512 with products of bfloat16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// AVX-512: foundation, bytes and words, products of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with FMA and products of bytes.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX2 with FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with products of bfloat16, and of unsigned with signed bytes.
    #[cfg(target_arch = "aarch64")]
    NeonBf16,
    /// NEON with products of signed bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    /// The baseline of the target.
    Portable,
}

/// Calls the body compiled for `self`.
macro_rules! dispatch {
    ($self:expr, $body:ident, $avx512:ident, $avx2:ident, ($($arg:expr),*)) => {
        match $self {
            // SAFETY: these exist only where `is_present` found avx512f, and those below where it found avx2 and fma.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 | Simd::Avx512Bf16 => unsafe { $avx512($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Simd::AvxVnni | Simd::Avx2 => unsafe { $avx2($($arg),*) },
            // Every processor of the target has NEON, and the compiler uses it.
            #[cfg(target_arch = "aarch64")]
            Simd::NeonBf16 | Simd::NeonDotprod => $body($($arg),*),
            Simd::Portable => $body($($arg),*),
        }
    };
}

/// Declares the per-instruction-set copies of a body.
macro_rules! compile {
    ($body:ident, $avx512:ident, $avx2:ident, ($($arg:ident: $type:ty),*) -> $result:ty) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        fn $avx512($($arg: $type),*) -> $result {
            $body($($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $avx2($($arg: $type),*) -> $result {
            $body($($arg),*)
        }
    };
}

/// Intel's processors begin a vector of bfloat16 products every second cycle and two vectors of f32 products in each, so
/// there it is faster to widen the weights: 149 instead of 81 GFLOP/s on one core of an Emerald Rapids. (What they are
/// fast at is AMX.) AMD's Zen 4 and 5 are faster with bfloat16.
#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}

impl Simd {
    /// The fastest set this machine has. Found once: a virtual machine takes microseconds to say who made its processor,
    /// and every row that is sampled asks.
    pub(crate) fn detect() -> Self {
        static FOUND: OnceLock<Simd> = OnceLock::new();
        *FOUND.get_or_init(Self::find)
    }

    fn find() -> Self {
        let mut sets = Self::all();
        #[cfg(target_arch = "x86_64")]
        if is_intel() {
            sets.retain(|simd| *simd != Self::Avx512Bf16);
        }
        sets.pop().unwrap_or(Self::Portable)
    }

    /// All sets of this machine, the slowest first, except for bfloat16 on Intel (see `is_intel`).
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Portable,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod,
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16,
        ];
        all.retain(|simd| simd.is_present());
        all
    }

    /// This machine has the set.
    fn is_present(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => Self::Avx512.is_present() && is_x86_feature_detected!("avx512bf16"),
            // Cascade Lake, Zen 4 and newer; older processors with AVX-512 use AVX2.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_present() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16 => is_aarch64_feature_detected!("bf16") && is_aarch64_feature_detected!("i8mm"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => is_aarch64_feature_detected!("dotprod"),
            Self::Portable => true,
        }
    }

    /// [`super::vector::Vector::PAIR_WORDS`] of the set's vectors.
    pub(crate) fn pair_words(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::AvxVnni | Self::Avx2 => 2,
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16 => 1,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => 2,
            Self::Portable => 2,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "AVX-512, bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "AVX-512",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "AVX2, VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16 => "NEON, bf16",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => "NEON, dotprod",
            Self::Portable => "portable",
        }
    }

    /// `x * rsqrt(mean(x^2) + eps) * weight`, in place.
    pub(crate) fn rms_norm(self, x: &mut [f32], weight: &[f32], eps: f32) {
        dispatch!(self, rms_norm, rms_norm_avx512, rms_norm_avx2, (x, weight, eps))
    }

    /// `activation(gate) * up`, in place of the gate.
    pub(crate) fn activate(self, gate: &mut [f32], up: &[f32], activation: Activation) {
        match activation {
            Activation::Silu => self.silu_mul(gate, up),
            Activation::GeluTanh => self.gelu_mul(gate, up),
        }
    }

    /// `silu(x) * y`, in place.
    pub(crate) fn silu_mul(self, x: &mut [f32], y: &[f32]) {
        dispatch!(self, silu_mul, silu_mul_avx512, silu_mul_avx2, (x, y))
    }

    /// `gelu(x) * y` by tanh, in place.
    pub(crate) fn gelu_mul(self, x: &mut [f32], y: &[f32]) {
        dispatch!(self, gelu_mul, gelu_mul_avx512, gelu_mul_avx2, (x, y))
    }

    /// `cap tanh(x / cap)`, in place.
    pub(crate) fn soft_cap(self, x: &mut [f32], cap: f32) {
        dispatch!(self, soft_cap, soft_cap_avx512, soft_cap_avx2, (x, cap))
    }

    /// The largest value, minus infinity where there is none. Where there is a NaN, any.
    pub(crate) fn max(self, x: &[f32]) -> f32 {
        dispatch!(self, max, max_avx512, max_avx2, (x))
    }

    /// The last place of a value.
    pub(crate) fn last_place(self, x: &[f32], value: f32) -> Option<usize> {
        dispatch!(self, last_place, last_place_avx512, last_place_avx2, (x, value))
    }

    /// `exp(x - top)` in place, and their sum.
    pub(crate) fn exp_sub_sum(self, x: &mut [f32], top: f32) -> f32 {
        dispatch!(self, exp_sub_sum, exp_sub_sum_avx512, exp_sub_sum_avx2, (x, top))
    }

    /// `sum(exp((x - top) factor))`.
    pub(crate) fn sum_exp(self, x: &[f32], top: f32, factor: f32) -> f32 {
        dispatch!(self, sum_exp, sum_exp_avx512, sum_exp_avx2, (x, top, factor))
    }

    /// `sum(exp(d))` and `sum(exp(d) d)`, where `d` is `(x - top) factor`, at least -87.
    pub(crate) fn sum_exp_log(self, x: &[f32], top: f32, factor: f32) -> [f32; 2] {
        dispatch!(self, sum_exp_log, sum_exp_log_avx512, sum_exp_log_avx2, (x, top, factor))
    }

    /// `weights = exp((x - top) factor)`, and 0 where that is below `exp(-87)`.
    pub(crate) fn exp_into(self, x: &[f32], top: f32, factor: f32, weights: &mut [f32]) {
        dispatch!(self, exp_into, exp_into_avx512, exp_into_avx2, (x, top, factor, weights))
    }

    /// Sum of the values above `floor`.
    pub(crate) fn sum_above(self, x: &[f32], floor: f32) -> f32 {
        dispatch!(self, sum_above, sum_above_avx512, sum_above_avx2, (x, floor))
    }

    /// Number of the values above `floor`, exact up to 2^24.
    pub(crate) fn count_above(self, x: &[f32], floor: f32) -> f32 {
        dispatch!(self, count_above, count_above_avx512, count_above_avx2, (x, floor))
    }
}

compile!(rms_norm, rms_norm_avx512, rms_norm_avx2, (x: &mut [f32], weight: &[f32], eps: f32) -> ());
compile!(silu_mul, silu_mul_avx512, silu_mul_avx2, (x: &mut [f32], y: &[f32]) -> ());
compile!(gelu_mul, gelu_mul_avx512, gelu_mul_avx2, (x: &mut [f32], y: &[f32]) -> ());
compile!(soft_cap, soft_cap_avx512, soft_cap_avx2, (x: &mut [f32], cap: f32) -> ());
compile!(max, max_avx512, max_avx2, (x: &[f32]) -> f32);
compile!(last_place, last_place_avx512, last_place_avx2, (x: &[f32], value: f32) -> Option<usize>);
compile!(exp_sub_sum, exp_sub_sum_avx512, exp_sub_sum_avx2, (x: &mut [f32], top: f32) -> f32);
compile!(sum_exp, sum_exp_avx512, sum_exp_avx2, (x: &[f32], top: f32, factor: f32) -> f32);
compile!(sum_exp_log, sum_exp_log_avx512, sum_exp_log_avx2, (x: &[f32], top: f32, factor: f32) -> [f32; 2]);
compile!(exp_into, exp_into_avx512, exp_into_avx2, (x: &[f32], top: f32, factor: f32, weights: &mut [f32]) -> ());
compile!(sum_above, sum_above_avx512, sum_above_avx2, (x: &[f32], floor: f32) -> f32);
compile!(count_above, count_above_avx512, count_above_avx2, (x: &[f32], floor: f32) -> f32);

/// `a * b + c`; fused wherever that is one instruction.
#[inline(always)]
pub(crate) fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction a fused product is a library call of a hundred cycles.
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn fold(lanes: [f32; LANES]) -> f32 {
    let mut width = LANES;
    let mut lanes = lanes;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        for lane in 0..LANES {
            lanes[lane] = mul_add(x[lane], y[lane], lanes[lane]);
        }
    }
    for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
        lanes[lane] = mul_add(*x, *y, lanes[lane]);
    }
    fold(lanes)
}

#[inline(always)]
fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = (dot(x, x) / x.len() as f32 + eps).sqrt().recip();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[inline(always)]
fn silu_mul(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x = *x / (1.0 + exp(-*x)) * y;
    }
}

/// `(1 + tanh(u)) / 2` is `1 / (1 + e^-2u)`.
#[inline(always)]
fn gelu_mul(x: &mut [f32], y: &[f32]) {
    // sqrt(2 / pi), doubled.
    const SLOPE: f32 = 1.595_769;
    for (x, y) in x.iter_mut().zip(y) {
        *x = *x / (1.0 + exp(-SLOPE * (*x + 0.044_715 * *x * *x * *x))) * y;
    }
}

/// `tanh(u)` is `1 - 2 / (1 + e^2u)`.
#[inline(always)]
fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * (1.0 - 2.0 / (1.0 + exp(2.0 * *x / cap)));
    }
}

#[inline(always)]
fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(chunk[lane], lanes[lane]);
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        lanes[lane] = larger(*x, lanes[lane]);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, larger)
}

#[inline(always)]
fn last_place(x: &[f32], value: f32) -> Option<usize> {
    let (chunks, _) = x.as_chunks::<LANES>();
    // The chunks' part is looked through a vector at a time, forwards, which is a loop without an exit.
    let mut end = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        let mut has_it = false;
        for other in chunk {
            has_it |= *other == value;
        }
        end = if has_it { (index + 1) * LANES } else { end };
    }
    let find = |places: Range<usize>| places.rev().find(|place| x[*place] == value);
    find(chunks.len() * LANES..x.len()).or_else(|| find(end.saturating_sub(LANES)..end))
}

#[inline(always)]
fn exp_sub_sum(x: &mut [f32], top: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - top);
            lanes[lane] += chunk[lane];
        }
    }
    if !rest.is_empty() {
        let mut last = padded(rest, top);
        for lane in 0..LANES {
            last[lane] = exp(last[lane] - top);
            lanes[lane] += if lane < rest.len() { last[lane] } else { 0.0 };
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
    fold(lanes)
}

#[inline(always)]
fn sum_exp(x: &[f32], top: f32, factor: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] += exp((chunk[lane] - top) * factor);
        }
    }
    if !rest.is_empty() {
        let last = padded(rest, top);
        for lane in 0..LANES {
            let weight = exp((last[lane] - top) * factor);
            lanes[lane] += if lane < rest.len() { weight } else { 0.0 };
        }
    }
    fold(lanes)
}

#[inline(always)]
fn sum_exp_log(x: &[f32], top: f32, factor: f32) -> [f32; 2] {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
    for chunk in chunks {
        for lane in 0..LANES {
            let d = at_least((chunk[lane] - top) * factor);
            let weight = exp(d);
            sums[lane] += weight;
            products[lane] += weight * d;
        }
    }
    if !rest.is_empty() {
        let last = padded(rest, top);
        for lane in 0..LANES {
            let d = at_least((last[lane] - top) * factor);
            let weight = if lane < rest.len() { exp(d) } else { 0.0 };
            sums[lane] += weight;
            products[lane] += weight * d;
        }
    }
    [fold(sums), fold(products)]
}

#[inline(always)]
fn exp_into(x: &[f32], top: f32, factor: f32, weights: &mut [f32]) {
    let weight = |x: f32| {
        let d = (x - top) * factor;
        if d < LEAST_EXPONENT { 0.0 } else { exp(d) }
    };
    for (weight_of, x) in weights.iter_mut().zip(x) {
        *weight_of = weight(*x);
    }
}

#[inline(always)]
fn sum_above(x: &[f32], floor: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<WIDE>();
    let mut lanes = [0.0; WIDE];
    for chunk in chunks {
        for lane in 0..WIDE {
            lanes[lane] += if chunk[lane] > floor { chunk[lane] } else { 0.0 };
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        lanes[lane] += if *x > floor { *x } else { 0.0 };
    }
    fold_wide(lanes)
}

#[inline(always)]
fn count_above(x: &[f32], floor: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<WIDE>();
    let mut lanes = [0.0; WIDE];
    for chunk in chunks {
        for lane in 0..WIDE {
            lanes[lane] += if chunk[lane] > floor { 1.0 } else { 0.0 };
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        lanes[lane] += if *x > floor { 1.0 } else { 0.0 };
    }
    fold_wide(lanes)
}

/// Lanes of sums that take one addition a value: with fewer, each would wait for the one before.
const WIDE: usize = 4 * LANES;

#[inline(always)]
fn fold_wide(lanes: [f32; WIDE]) -> f32 {
    let mut sums = [0.0; LANES];
    for lane in 0..LANES {
        let pairs = [lanes[lane] + lanes[lane + LANES], lanes[lane + 2 * LANES] + lanes[lane + 3 * LANES]];
        sums[lane] = pairs[0] + pairs[1];
    }
    fold(sums)
}

/// Below this, `exp` underflows in 32 bits, or nearly.
const LEAST_EXPONENT: f32 = -87.0;

/// `d`, but no less than [`LEAST_EXPONENT`]; a NaN stays a NaN.
#[inline(always)]
fn at_least(d: f32) -> f32 {
    if d < LEAST_EXPONENT { LEAST_EXPONENT } else { d }
}

/// Less than a vector, and `fill` behind it: all lanes are computed at once, because one takes as long alone.
#[inline(always)]
fn padded(rest: &[f32], fill: f32) -> [f32; LANES] {
    let mut last = [fill; LANES];
    last[..rest.len()].copy_from_slice(rest);
    last
}

/// `e^x` to 2 units in the last place, without branches so that it vectorises.
///
/// `x = n ln2 + r` with |r| <= ln2/2, and a polynomial of degree 6 for `e^r` (the coefficients of Cephes' expf). Below
/// -87 the result is 0 or nearly so; a NaN stays a NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to the nearest integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.3);
    let shifted = mul_add(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, so that the product with n is exact.
    let r = mul_add(n, -0.693_359_4, clamped);
    let r = mul_add(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    p = mul_add(p, r, 1.398_199_9e-3);
    p = mul_add(p, r, 8.333_452e-3);
    p = mul_add(p, r, 4.166_579_6e-2);
    p = mul_add(p, r, 1.666_666_5e-1);
    p = mul_add(p, r, 0.5);
    let e_r = mul_add(p, r * r, r + 1.0);
    let exponent = (shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits());
    e_r * f32::from_bits(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_library() {
        // Relative; 2 ulp of f32 and the library's own rounding.
        const TOLERANCE: f64 = 3e-7;
        for step in -8700..8800 {
            let x = step as f32 / 100.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= TOLERANCE * want, "exp({x}) = {got}, expected {want}");
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(f32::NAN).is_nan());
    }

    #[test]
    fn every_instruction_set_agrees() {
        // Fused and unfused products round differently; sums are over at most 77 terms of size 1.
        const TOLERANCE: f32 = 2e-5;
        for n in [1, 15, 16, 17, 64, 77] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 19) as f32 - 9.0) / 9.0).collect();
            let y: Vec<f32> = (0..n).map(|i| ((i * 53 % 23) as f32 - 11.0) / 11.0).collect();
            for simd in Simd::all() {
                let mut z = x.clone();
                simd.silu_mul(&mut z, &y);
                for ((z, x), y) in z.iter().zip(&x).zip(&y) {
                    assert!((z - x / (1.0 + (-x).exp()) * y).abs() < TOLERANCE);
                }
                let want: f32 = x.iter().map(|x| (x - 1.0).exp()).sum();
                assert!((simd.sum_exp(&x, 1.0, 1.0) - want).abs() < TOLERANCE * n as f32);
            }
        }
    }
}
