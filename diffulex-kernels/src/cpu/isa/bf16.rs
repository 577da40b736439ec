//! bfloat16 as bits, alone and in pairs.

/// The bits of the nearest bfloat16, to even.
#[inline(always)]
pub(crate) fn bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could carry a NaN into a number.
    if value.is_nan() { 0x7fc0 } else { rounded as u16 }
}

/// The value that has these bits.
#[inline(always)]
pub(crate) fn unbf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Two values as bfloat16; the first goes to the lower half.
#[inline(always)]
pub(crate) fn pair_bf16(low: f32, high: f32) -> u32 {
    u32::from(bf16(low)) | u32::from(bf16(high)) << 16
}

/// The two values of a word.
#[inline(always)]
pub(crate) fn unpair_bf16(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloat16_rounding_is_to_nearest_even() {
        let values = [0.0, -0.0, 1.0, 1.003_906_2, 1.011_718_8, -1.234_567_9, f32::INFINITY, 1e-40, 65_504.0];
        for low in values {
            for high in values {
                let want = [low, high].map(|value| half::bf16::from_f32(value).to_f32());
                assert_eq!(unpair_bf16(pair_bf16(low, high)), want);
            }
        }
        assert!(unpair_bf16(pair_bf16(f32::from_bits(0x7fff_ffff), 1.0))[0].is_nan());
    }
}
