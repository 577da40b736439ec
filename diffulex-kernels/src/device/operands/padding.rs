//! Numbers of rows, rounded up so that steps of about the same size have the same list of launches.

/// No row, no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The number of rows that `n` are padded to. A step's time depends on tiles of 8 rows at best, so little is lost; above some
/// hundreds, rows come in larger tiles.
pub(crate) fn bucket(n: usize) -> usize {
    match n {
        0..=4 => n.next_power_of_two() * usize::from(n > 0),
        5..=64 => n.next_multiple_of(8),
        65..=256 => n.next_multiple_of(32),
        _ => n.next_multiple_of(128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_by_a_quarter_at_most_above_a_tile() {
        assert_eq!([0, 1, 2, 3, 4, 5, 9, 65, 257].map(bucket), [0, 1, 2, 4, 4, 8, 16, 96, 384]);
        for n in 25..5000 {
            assert!(bucket(n) >= n && bucket(n) as f64 <= 1.5 * n as f64, "{n}");
        }
    }
}
