//! The loop of a product over rows, panels and inputs, in tiles whose sums fit the registers.
//!
//! In every tile, a sum adds its inputs in ascending order.

use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::lines::ROWS;
use super::vector::Vector;

/// Panels of one set. Parts of a product begin at multiples of it.
pub(super) const PANELS: usize = 4;

/// Vectors of weights in a chunk, 16 KiB. A tile prefetches as many while it works, which is early enough for main memory, and they
/// stay in the nearest cache until every tile of [`ROWS`] has used them.
const CHUNK: usize = 256;

/// With fewer rows than this, a tile covers all panels of a set.
const FEW_ROWS: usize = 8;

/// A product of rows and panels of weights.
pub(super) trait Tiles<V: Vector> {
    /// A vector of unfinished sums.
    type Sum: Copy;

    /// The initial sums of a row.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn start(&self, row: usize) -> Self::Sum;

    /// Adds a range of vectors of `P` panels to the sums of `R` rows, and prefetches the vectors `ahead` of each. The range
    /// begins at a multiple of 64 and ends at one or at the panel's end.
    ///
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn add<const R: usize, const P: usize>(
        &self,
        row: usize,
        panel: usize,
        vectors: Range<usize>,
        ahead: isize,
        sums: [[Self::Sum; P]; R],
    ) -> [[Self::Sum; P]; R];

    /// Writes a finished vector of sums.
    ///
    /// # Safety
    /// The machine has the instructions of `V`, and the panel is the caller's to write.
    unsafe fn finish(&self, row: usize, panel: usize, sum: Self::Sum);
}

/// `n_rows` rows times the panels `start..end` of `n_vectors` stored vectors each.
///
/// # Safety
/// The machine has the instructions of `V`, and the panels are the caller's to write.
#[inline(always)]
pub(super) unsafe fn product<V: Vector, T: Tiles<V>>(
    tiles: &T,
    n_rows: usize,
    n_vectors: usize,
    start: usize,
    end: usize,
) {
    let mut panel = start;
    while panel < end {
        let n_panels = if V::HAS_32_REGISTERS && end - panel >= PANELS { PANELS } else { 1 };
        for first in (0..n_rows).step_by(ROWS) {
            let rows = first..n_rows.min(first + ROWS);
            // SAFETY: passed on from the caller.
            unsafe {
                match n_panels {
                    1 => block::<V, T, 1, 1>(tiles, n_vectors, rows, panel),
                    _ if n_rows < FEW_ROWS => block::<V, T, PANELS, 1>(tiles, n_vectors, rows, panel),
                    _ => block::<V, T, 2, { PANELS / 2 }>(tiles, n_vectors, rows, panel),
                }
            }
        }
        panel += n_panels;
    }
}

/// Up to [`ROWS`] rows times `S` sets of `P` panels, a chunk at a time. Unfinished sums are in memory while other rows use the chunk.
#[inline(always)]
unsafe fn block<V: Vector, T: Tiles<V>, const P: usize, const S: usize>(
    tiles: &T,
    n_vectors: usize,
    rows: Range<usize>,
    panel: usize,
) {
    let mut waiting = [[[MaybeUninit::uninit(); P]; ROWS]; S];
    for start in (0..n_vectors).step_by(CHUNK / P) {
        let chunk = start..n_vectors.min(start + CHUNK / P);
        for (set, waiting) in waiting.iter_mut().enumerate() {
            let panel = panel + set * P;
            // Only the first reader of a chunk prefetches the next.
            let mut ahead = ahead::<P, S>(set, &chunk, n_vectors);
            let mut row = rows.start;
            while row < rows.end {
                let waiting = &mut waiting[row - rows.start..];
                // Each tile shape is compiled for every format and instruction set, so only those that pay off exist.
                let is_wide = V::HAS_32_REGISTERS && P == 2;
                // SAFETY: passed on from the caller, and every tile has processed the previous chunks.
                row += unsafe {
                    match rows.end - row {
                        12.. if is_wide => tile::<V, T, 12, P>(tiles, n_vectors, row, panel, &chunk, ahead, waiting),
                        8.. if is_wide => tile::<V, T, 8, P>(tiles, n_vectors, row, panel, &chunk, ahead, waiting),
                        4.. => tile::<V, T, 4, P>(tiles, n_vectors, row, panel, &chunk, ahead, waiting),
                        2.. => tile::<V, T, 2, P>(tiles, n_vectors, row, panel, &chunk, ahead, waiting),
                        _ => tile::<V, T, 1, P>(tiles, n_vectors, row, panel, &chunk, ahead, waiting),
                    }
                };
                ahead = 0;
            }
        }
    }
}

/// `R` rows and `P` panels of a chunk; returns `R`.
///
/// # Safety
/// As for [`Tiles::finish`]; the sums wait unless the chunk is the first.
#[inline(always)]
unsafe fn tile<V: Vector, T: Tiles<V>, const R: usize, const P: usize>(
    tiles: &T,
    n_vectors: usize,
    row: usize,
    panel: usize,
    chunk: &Range<usize>,
    ahead: isize,
    waiting: &mut [[MaybeUninit<T::Sum>; P]],
) -> usize {
    let waiting = &mut waiting[..R];
    // SAFETY: passed on from the caller.
    unsafe {
        let sums = if chunk.start == 0 {
            from_fn(|r| [tiles.start(row + r); P])
        } else {
            from_fn(|r| waiting[r].map(|sum| sum.assume_init()))
        };
        let sums = tiles.add::<R, P>(row, panel, chunk.clone(), ahead, sums);
        for (r, (sums, waiting)) in sums.iter().zip(waiting).enumerate() {
            for (p, (sum, waiting)) in sums.iter().zip(waiting).enumerate() {
                if chunk.end == n_vectors {
                    tiles.finish(row + r, panel + p, *sum);
                } else {
                    waiting.write(*sum);
                }
            }
        }
    }
    R
}

/// Distance from a chunk of a set of `P` panels to the chunk that is read next, with `S` sets.
fn ahead<const P: usize, const S: usize>(set: usize, chunk: &Range<usize>, n_vectors: usize) -> isize {
    let here = set * P * n_vectors + chunk.start;
    let next = if set + 1 < S {
        here + P * n_vectors
    } else if chunk.end < n_vectors {
        chunk.end
    } else {
        S * P * n_vectors
    };
    next.wrapping_sub(here) as isize
}
