//! Sums of products whose magnitudes no float has.

/// The base of exponents, as a power of two: products of two mantissas and their sums remain far from the ends of `f64`.
const STEP: i32 = 256;

/// 2^256 and its inverse; as literals, since powers are no constants.
const UP: f64 = f64::from_bits((1023 + STEP as u64) << 52);
const DOWN: f64 = f64::from_bits((1023 - STEP as u64) << 52);

/// The square root of [`UP`], and of [`DOWN`].
const HALF_UP: f64 = f64::from_bits((1023 + STEP as u64 / 2) << 52);
const HALF_DOWN: f64 = f64::from_bits((1023 - STEP as u64 / 2) << 52);

/// A number that is not negative: mantissa · 2^(256 · exponent). Unlike a logarithm, a sum needs no exponential function, and a
/// number that is not zero never becomes zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scaled {
    /// Between 2^-128 and 2^128 after [`Self::normalised`]; or 0.
    mantissa: f64,
    exponent: i32,
}

impl Scaled {
    pub(super) const ZERO: Self = Self { mantissa: 0.0, exponent: i32::MIN / 2 };
    pub(super) const ONE: Self = Self { mantissa: 1.0, exponent: 0 };

    /// The exponential function of a number whose absolute value is below a million.
    pub(super) fn exp(x: f64) -> Self {
        let bits = x * std::f64::consts::LOG2_E;
        let exponent = (bits / f64::from(STEP)).round();
        Self { mantissa: (bits - exponent * f64::from(STEP)).exp2(), exponent: exponent as i32 }
    }

    pub(super) fn is_zero(self) -> bool {
        self.mantissa == 0.0
    }

    /// Adds the product of two normalised numbers that are not zero.
    pub(super) fn add_product(&mut self, a: Self, b: Self) {
        let (mantissa, exponent) = (a.mantissa * b.mantissa, a.exponent + b.exponent);
        match exponent - self.exponent {
            0 => self.mantissa += mantissa,
            -1 => self.mantissa += mantissa * DOWN,
            -2 => self.mantissa += mantissa * DOWN * DOWN,
            // At most 2^(512 - 768) of the sum.
            ..=-3 => {}
            1 => *self = Self { mantissa: self.mantissa * DOWN + mantissa, exponent },
            2 => *self = Self { mantissa: self.mantissa * DOWN * DOWN + mantissa, exponent },
            3.. => *self = Self { mantissa, exponent },
        }
    }

    /// The same number with a mantissa that products may take. The sum has less than 2^100 products.
    pub(super) fn normalised(self) -> Self {
        let Self { mantissa, exponent } = self;
        if mantissa >= HALF_UP {
            Self { mantissa: mantissa * DOWN, exponent: exponent + 1 }
        } else if mantissa < HALF_DOWN && !self.is_zero() {
            Self { mantissa: mantissa * UP, exponent: exponent - 1 }
        } else {
            self
        }
    }

    /// The product with `tail`, as a share of a `total` that has it as a part: in [0, 1]. `total` is not zero.
    pub(super) fn share(self, tail: Self, total: Self) -> f64 {
        if tail.is_zero() {
            return 0.0;
        }
        let share = self.mantissa * tail.mantissa / total.mantissa;
        let share = match self.exponent + tail.exponent - total.exponent {
            0 => share,
            1 => share * UP,
            -1 => share * DOWN,
            -2 => share * DOWN * DOWN,
            _ => 0.0,
        };
        share.min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Scaled;

    #[test]
    fn shares_of_long_products_are_those_of_their_logarithms() {
        for step in [-170.0, -85.0, 85.0, 170.0] {
            for difference in [-300.0, -200.0, -3.0, 0.0, 3.0, 200.0, 300.0_f64] {
                // Two products of 41 numbers, of which the last differ, and their sum.
                let (mut tail, one) = (Scaled::ONE, Scaled::exp(step));
                for _ in 0..40 {
                    let mut product = Scaled::ZERO;
                    product.add_product(one, tail);
                    tail = product.normalised();
                }
                let other = Scaled::exp(step + difference);
                let mut total = Scaled::ZERO;
                total.add_product(one, tail);
                total.add_product(other, tail);
                let total = total.normalised();
                let expected = 1.0 / (1.0 + difference.exp());
                let share = one.share(tail, total);
                assert!((share - expected).abs() < 1e-9, "{step} {difference}: {share}, not {expected}");
                assert!((other.share(tail, total) - (1.0 - expected)).abs() < 1e-9);
            }
        }
    }
}
