//! The loop of a product over rows, panels and inputs, in tiles with sums that fit the registers.
//!
//! In every tile, a sum adds its inputs in ascending order.

use std::array::from_fn;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::cpu::isa::vector::Vector;
use crate::cpu::packing::panels::PAIR;
use crate::cpu::product::lines::ROWS;

/// Panels of two pairs, which read rows once. Parts of a product begin at multiples of it.
pub(crate) const PANELS: usize = 2 * PAIR;

/// Vectors of each panel of a pair in a chunk, 64 KiB. The first tile of [`ROWS`] prefetches as many while it works, which is early
/// enough for main memory, and the other tiles have them from the second cache, whose speed suffices. Unfinished sums of a chunk
/// go to memory and come back, which costs more than that.
const CHUNK: usize = 512;

/// With fewer rows than this, reading them costs nothing beside the weights, and pairs follow each other in the order of memory.
const FEW_ROWS: usize = 8;

/// A product of rows and panels of weights.
pub(crate) trait Tiles<V: Vector> {
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
pub(crate) unsafe fn product<V: Vector, T: Tiles<V>>(
    tiles: &T,
    n_rows: usize,
    n_vectors: usize,
    start: usize,
    end: usize,
) {
    let mut panel = start;
    while panel < end {
        let n_panels = match end - panel {
            PANELS.. if V::HAS_32_REGISTERS && n_rows >= FEW_ROWS => PANELS,
            PAIR.. => PAIR,
            _ => 1,
        };
        for first in (0..n_rows).step_by(ROWS) {
            let rows = first..n_rows.min(first + ROWS);
            // SAFETY: passed on from the caller.
            unsafe {
                if V::HAS_32_REGISTERS && n_panels > 1 {
                    block::<V, T, PAIR>(tiles, n_vectors, rows, panel, n_panels);
                } else {
                    block::<V, T, 1>(tiles, n_vectors, rows, panel, n_panels);
                }
            }
        }
        panel += n_panels;
    }
}

/// Up to [`ROWS`] rows times one pair of panels, two pairs, or a panel without a neighbour, in tiles of `P` panels, a chunk at a time.
/// Unfinished sums are in memory while other rows use the chunk.
#[inline(always)]
unsafe fn block<V: Vector, T: Tiles<V>, const P: usize>(
    tiles: &T,
    n_vectors: usize,
    rows: Range<usize>,
    panel: usize,
    n_panels: usize,
) {
    // Two pairs in tiles of a pair, or a pair in tiles of a panel.
    let mut waiting = [[[MaybeUninit::uninit(); P]; ROWS]; 2];
    for start in (0..n_vectors).step_by(CHUNK) {
        let chunk = start..n_vectors.min(start + CHUNK);
        for (first, waiting) in (0..n_panels).step_by(P).zip(&mut waiting) {
            let panel = panel + first;
            // Only the first reader of a chunk prefetches the next.
            let mut ahead = ahead(first, n_panels, &chunk, n_vectors);
            let mut row = rows.start;
            while row < rows.end {
                let waiting = &mut waiting[row - rows.start..];
                // Each tile shape is compiled for every format and instruction set, so only those that pay off exist.
                let is_wide = V::HAS_32_REGISTERS && P == PAIR;
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

/// Places from a chunk of the panels from `first` on, of `n_panels`, to the chunk that is read next: of the other of two pairs, or
/// behind this one, where the next pair follows the last chunk.
fn ahead(first: usize, n_panels: usize, chunk: &Range<usize>, n_vectors: usize) -> isize {
    let behind = chunk.len() * n_panels.min(PAIR);
    let places = match (n_panels, first) {
        (PANELS, 0) => PAIR * n_vectors,
        (PANELS, _) if chunk.end < n_vectors => behind.wrapping_sub(PAIR * n_vectors),
        _ => behind,
    };
    places as isize
}
