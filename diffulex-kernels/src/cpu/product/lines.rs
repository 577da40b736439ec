//! Inputs of a product, in the order in which its tiles read them.
//!
//! Rows are stored in blocks of [`ROWS`]: a line of the first row, a line of the second and so on, then the next
//! line of each. So a tile reads neighbouring lines at distances known to the compiler, and walks through memory in order.

use crate::cpu::pool::shared::Shared;
use crate::cpu::pool::threads::Pool;
use crate::cpu::rows::Rows;

/// Words of a line: a line of the caches.
pub(crate) const LINE: usize = 16;

/// Rows of a block, which share a chunk of weights: their lines for the chunk fit the nearest cache together with it.
pub(crate) const ROWS: usize = 36;

/// Lines of some rows. Words are integers, or bfloat16, in the bits of f32, so that their memory is used again.
pub(crate) struct Lines {
    words: Rows,
    places: Places,
}

/// Positions of lines.
#[derive(Clone, Copy)]
struct Places {
    n_rows: usize,
    n_lines: usize,
}

impl Places {
    /// The first line of a row, and the lines from one of its lines to the next.
    #[inline(always)]
    fn of(self, row: usize) -> (usize, usize) {
        let first = row / ROWS * ROWS;
        (first * self.n_lines + row - first, ROWS.min(self.n_rows - first))
    }
}

/// The lines of one row, to be written.
pub(crate) struct RowLines<'a> {
    lines: &'a Shared<'a, [f32; LINE]>,
    first: usize,
    stride: usize,
    n_lines: usize,
}

impl RowLines<'_> {
    /// Writes line `line`.
    #[inline(always)]
    pub(crate) fn set(&mut self, line: usize, words: [f32; LINE]) {
        assert!(line < self.n_lines);
        // SAFETY: the line is of this row, and there is one of these for each row (`Lines::of`).
        unsafe { self.lines.write_array(self.first + line * self.stride, [words]) };
    }
}

impl Lines {
    /// `n_lines` lines for each row of `x`, written by `fill(row)`.
    pub(crate) fn of(pool: &Pool, x: &Rows, n_lines: usize, fill: impl Fn(&[f32], RowLines<'_>) + Sync) -> Self {
        let n_rows = x.n_rows();
        let places = Places { n_rows, n_lines };
        let mut words = x.scratch(n_rows, n_lines * LINE);
        let lines = Shared::new(words.values_mut().as_chunks_mut().0);
        let work = |row: usize| {
            let (first, stride) = places.of(row);
            fill(x.row(row), RowLines { lines: &lines, first, stride, n_lines });
        };
        if x.are_many() {
            let n_tasks = pool.n_tasks(n_rows);
            pool.run(n_tasks, &|task| {
                (task * n_rows / n_tasks..(task + 1) * n_rows / n_tasks).for_each(work);
            });
        } else {
            (0..n_rows).for_each(work);
        }
        Self { words, places }
    }

    /// Rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.places.n_rows
    }

    /// `R` rows of one block, from `row` on.
    #[inline(always)]
    pub(crate) fn tile<const R: usize>(&self, row: usize) -> TileLines<'_, R> {
        let (first, stride) = self.places.of(row);
        TileLines { lines: &self.words.values().as_chunks().0[first..], stride }
    }

    /// Word `word` of a row.
    pub(crate) fn word(&self, row: usize, word: usize) -> f32 {
        self.tile::<1>(row).line(word / LINE)[0][word % LINE]
    }
}

/// The lines of a tile's rows.
#[derive(Clone, Copy)]
pub(crate) struct TileLines<'a, const R: usize> {
    lines: &'a [[f32; LINE]],
    stride: usize,
}

impl<'a, const R: usize> TileLines<'a, R> {
    /// Line `line` of each row.
    #[inline(always)]
    pub(crate) fn line(self, line: usize) -> &'a [[f32; LINE]] {
        &self.lines[line * self.stride..][..R]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::rows::Buffers;

    #[test]
    fn every_word_is_where_it_is_looked_for() {
        const WIDTH: usize = 3 * LINE;
        let pool = Pool::new(2).expect("threads");
        for n_rows in [1, 2, 35, 36, 37, 100, 400] {
            let mut x = Rows::new(&Buffers::default(), n_rows, WIDTH);
            x.values_mut().iter_mut().enumerate().for_each(|(index, value)| *value = index as f32);
            let lines = Lines::of(&pool, &x, WIDTH / LINE, |row, mut lines| {
                row.as_chunks().0.iter().enumerate().for_each(|(line, words)| lines.set(line, *words));
            });
            for row in 0..n_rows {
                for word in 0..WIDTH {
                    assert_eq!(lines.word(row, word), (row * WIDTH + word) as f32);
                }
            }
        }
    }
}
