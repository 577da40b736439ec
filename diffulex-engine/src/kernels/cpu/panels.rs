//! Panels: the order in which products read weights.

use bytemuck::Pod;

use super::aligned::Aligned;
use super::threads::Pool;
use super::vector::LANES;

/// Outputs of a panel: one vector.
pub(super) const PANEL: usize = LANES;

/// Bytes of a vector of integers.
pub(super) const BYTES: usize = 4 * PANEL;

/// Inputs to a word of int8 weights.
pub(super) const QUAD: usize = 4;

/// Panels of `n_words` vectors, whose bytes are 0 at first. `write` sets one output's lane of the vectors of its panel.
pub(super) fn pack_rows<W: Pod + Send + Sync>(
    pool: &Pool,
    n_out: usize,
    n_words: usize,
    write: impl Fn(usize, usize, &mut [W]) + Sync,
) -> Aligned<W> {
    let mut panels = Aligned::<W>::zeroed(n_out.div_ceil(PANEL) * n_words);
    pool.chunks(&mut panels, n_words, |panel, vectors| {
        let first = panel * PANEL;
        for (lane, out) in (first..n_out.min(first + PANEL)).enumerate() {
            write(out, lane, vectors);
        }
    });
    panels
}
