//! Panels: the order in which products read weights.

use std::iter::StepBy;
use std::slice::{Iter, IterMut};

use bytemuck::Pod;

use crate::cpu::isa::vector::LANES;
use crate::cpu::packing::aligned::Aligned;
use crate::cpu::pool::threads::Pool;

/// Outputs of a panel: one vector.
pub(crate) const PANEL: usize = LANES;

/// Panels with interleaved vectors.
pub(crate) const PAIR: usize = 2;

/// Bytes of a vector of integers.
pub(crate) const BYTES: usize = 4 * PANEL;

/// Inputs to a word of int8 weights.
pub(crate) const QUAD: usize = 4;

/// Panels of `n_words` vectors, one after another, initially zero. `write` sets one output's lane of the vectors of its
/// panel.
pub(crate) fn pack_rows<W: Pod + Send + Sync>(
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

/// Panels that are stored together from `first` on, the first of a pair, of `n_panels` in all.
#[inline(always)]
fn n_together(first: usize, n_panels: usize) -> usize {
    PAIR.min(n_panels - first)
}

/// The weights of a matrix. The vectors of two neighbouring panels alternate in memory, so that a tile of both panels reads it in order. A
/// last panel without a neighbour is stored by itself.
pub(crate) struct Weights<W> {
    vectors: Aligned<W>,
    n_panels: usize,
    /// Vectors of a panel.
    n_vectors: usize,
}

impl<W: Pod + Send + Sync> Weights<W> {
    /// Packs `n_out` outputs in panels of `n_vectors` vectors, initially zero. `write` sets one output's lane of the vectors
    /// of its panel.
    pub(crate) fn pack(
        pool: &Pool,
        n_out: usize,
        n_vectors: usize,
        write: impl Fn(usize, usize, StepBy<IterMut<'_, W>>) + Sync,
    ) -> Self {
        let n_panels = n_out.div_ceil(PANEL);
        let mut vectors = Aligned::zeroed(n_panels * n_vectors);
        pool.chunks(&mut vectors, PAIR * n_vectors, |pair, vectors| {
            let n_together = n_together(pair * PAIR, n_panels);
            let first = pair * PAIR * PANEL;
            for out in first..n_out.min(first + n_together * PANEL) {
                write(out, out % PANEL, vectors[(out - first) / PANEL..].iter_mut().step_by(n_together));
            }
        });
        Self { vectors, n_panels, n_vectors }
    }
}

impl<W: Pod> Weights<W> {
    #[cfg(test)]
    pub(crate) fn n_bytes(&self) -> usize {
        size_of_val(&*self.vectors)
    }

    /// Vectors of a panel.
    #[inline(always)]
    pub(crate) fn n_vectors(&self) -> usize {
        self.n_vectors
    }

    /// The place of a panel's first vector, and the places from one of its vectors to the next.
    #[inline(always)]
    fn walk(&self, panel: usize) -> (usize, usize) {
        let first = panel / PAIR * PAIR;
        (first * self.n_vectors + panel - first, n_together(first, self.n_panels))
    }

    /// The vectors of a panel.
    pub(crate) fn panel(&self, panel: usize) -> StepBy<Iter<'_, W>> {
        let (first, stride) = self.walk(panel);
        self.vectors[first..].iter().step_by(stride)
    }

    /// A panel, or both of a pair.
    #[inline(always)]
    pub(crate) fn tile<const P: usize>(&self, panel: usize) -> TileWeights<'_, W, P> {
        let (first, stride) = self.walk(panel);
        assert!(P == 1 || (P == stride && panel.is_multiple_of(P)));
        TileWeights { vectors: &self.vectors[first..][..(self.n_vectors - 1) * stride + P], stride }
    }
}

/// The weights of a tile's panels.
#[derive(Clone, Copy)]
pub(crate) struct TileWeights<'a, W, const P: usize> {
    vectors: &'a [W],
    stride: usize,
}

impl<W, const P: usize> TileWeights<'_, W, P> {
    /// Vector `vector` of each panel.
    ///
    /// # Safety
    /// The panels have that many.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, vector: usize) -> &[W; P] {
        // A number that the compiler knows, where it can.
        let stride = if P == PAIR { PAIR } else { self.stride };
        // SAFETY: `tile` made the slice as long as the panels' last vectors need.
        unsafe { &*self.vectors.as_ptr().add(vector * stride).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_is_where_it_is_looked_for() {
        let pool = Pool::new(2).expect("threads");
        for (n_out, n_vectors) in [(5, 1), (16, 3), (17, 3), (33, 2), (64, 5), (75, 4)] {
            let number = |out: usize, vector: usize| (1000 * vector + out) as u32;
            let weights = Weights::pack(&pool, n_out, n_vectors, |out, lane, vectors| {
                vectors
                    .enumerate()
                    .for_each(|(vector, lanes): (usize, &mut [u32; PANEL])| lanes[lane] = number(out, vector));
            });
            for out in 0..n_out {
                let (panel, lane) = (out / PANEL, out % PANEL);
                let found: Vec<u32> = weights.panel(panel).take(n_vectors).map(|lanes| lanes[lane]).collect();
                assert_eq!(found, (0..n_vectors).map(|vector| number(out, vector)).collect::<Vec<_>>());
                let tile = weights.tile::<1>(panel);
                // SAFETY: there are that many vectors.
                let found: Vec<u32> = (0..n_vectors).map(|vector| unsafe { tile.at(vector) }[0][lane]).collect();
                assert_eq!(found, (0..n_vectors).map(|vector| number(out, vector)).collect::<Vec<_>>());
            }
            for panel in (0..n_out / PANEL / PAIR * PAIR).step_by(PAIR) {
                let tile = weights.tile::<PAIR>(panel);
                for vector in 0..n_vectors {
                    // SAFETY: there are that many vectors.
                    let both = unsafe { tile.at(vector) };
                    assert_eq!(
                        both.map(|lanes| lanes[3]),
                        [number(panel * PANEL + 3, vector), number((panel + 1) * PANEL + 3, vector)]
                    );
                }
            }
        }
    }
}
