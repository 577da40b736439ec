//! Quantization of weights and activations: the single definition for all bodies.
//!
//! Weights are symmetric: int8 with one scale per output, int4 with one per output and [`GROUP`] inputs. Activations are
//! int8 with one scale per row, computed for each product. Integer sums are exact, so a result depends only on its own row, not
//! on the batch, the threads or the instruction set.

/// Inputs that share a scale in int4. A multiple of 8, the size of a packed vector. With 32-bit scales a weight
/// takes 4.5 bits, as in GGUF's Q4_0.
pub const GROUP: usize = 64;

/// Largest magnitude of an int8; -128 is not used, so that the range is symmetric.
pub const MAX_INT8: f32 = 127.0;

/// Maximum inputs of a 32-bit sum without overflow: each product is at most 255 x 127.
pub const MAX_INPUTS: usize = (i32::MAX / (255 * 127)) as usize;

/// 1.5 * 2^23: adding it rounds to the nearest integer, ties to even, in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Rounds to the nearest integer, ties to even, for magnitudes below 2^22. (The library's function is a call on many processors.)
#[inline(always)]
pub fn nearest(value: f32) -> i32 {
    (value + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
}

/// The int8 scale of `values`: 0 if all are 0, not finite if one of them is not.
#[inline(always)]
pub fn scale_int8(values: &[f32]) -> f32 {
    // The order of magnitudes is that of their bits, in which infinity and NaN come last.
    scale_of_magnitudes(values.iter().map(|value| value.abs().to_bits()))
}

/// The int8 scale of values, given the bits of their magnitudes.
#[inline(always)]
pub fn scale_of_magnitudes(bits: impl Iterator<Item = u32>) -> f32 {
    f32::from_bits(bits.fold(0, u32::max)) / MAX_INT8
}

/// The reciprocal of `scale`; 0 if all values are 0.
#[inline(always)]
pub fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// `values / scale`, rounded to int8.
pub fn quantize_int8<'a>(values: &'a [f32], scale: f32) -> impl Iterator<Item = i8> + 'a {
    let inverse = inverse(scale);
    values.iter().map(move |value| nearest(value * inverse).clamp(-127, 127) as i8)
}

/// The int4 scale of a group. It is negative if the value of largest magnitude is positive, so that this value becomes -8: four
/// bits reach further below zero (as in GGUF's Q4_0).
pub fn scale_int4(values: &[f32]) -> f32 {
    let extreme =
        values.iter().fold(0.0f32, |extreme, value| if value.abs() > extreme.abs() { *value } else { extreme });
    extreme / -8.0
}

/// `values / scale`, rounded to -8 to 7.
pub fn quantize_int4<'a>(values: &'a [f32], scale: f32) -> impl Iterator<Item = i8> + 'a {
    let inverse = inverse(scale);
    values.iter().map(move |value| nearest(value * inverse).clamp(-8, 7) as i8)
}

/// `values` rounded to int8 and back, as a product rounds a row of activations.
pub fn round_int8(values: &[f32]) -> Vec<f32> {
    let scale = scale_int8(values);
    quantize_int8(values, scale).map(|value| f32::from(value) * scale).collect()
}

/// A row of weights rounded to int4 and back.
pub fn round_int4(values: &[f32]) -> Vec<f32> {
    let group = |values: &[f32]| {
        let scale = scale_int4(values);
        quantize_int4(values, scale).map(move |value| f32::from(value) * scale).collect::<Vec<_>>()
    };
    values.chunks(GROUP).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_representable_stays() {
        let int8: Vec<f32> = (-127..=127).map(|value| value as f32 * 0.5).collect();
        assert_eq!(round_int8(&int8), int8);
        let int4: Vec<f32> = (-8..8).map(|value| value as f32 * 0.25).collect();
        assert_eq!(round_int4(&int4), int4);
        let turned: Vec<f32> = int4.iter().map(|value| -value).collect();
        assert_eq!(round_int4(&turned), turned);
        assert_eq!(round_int8(&[0.0; 3]), [0.0; 3]);
        assert_eq!(round_int4(&[0.0; 3]), [0.0; 3]);
    }

    #[test]
    fn what_is_no_number_does_not_become_one() {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!scale_int8(&[1.0, strange, 2.0]).is_finite());
            assert!(round_int8(&[1.0, strange, 2.0]).iter().all(|value| !value.is_finite()));
        }
    }

    #[test]
    fn errors_are_within_half_a_step() {
        let values: Vec<f32> = (0..1000).map(|index| ((index * 7919) % 2003) as f32 / 1000.0 - 1.0).collect();
        let step = scale_int8(&values);
        for (value, rounded) in values.iter().zip(round_int8(&values)) {
            assert!((value - rounded).abs() <= 0.501 * step);
        }
        for (values, rounded) in values.chunks(GROUP).zip(round_int4(&values).chunks(GROUP)) {
            // The end of the range that four bits cut off is one step.
            let step = scale_int4(values).abs();
            for (value, rounded) in values.iter().zip(rounded) {
                assert!((value - rounded).abs() <= 1.001 * step);
            }
        }
    }
}
