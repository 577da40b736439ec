//! Inputs of a product, in the order in which its tiles read them.
//!
//! Rows stand in blocks of [`ROWS`]. Of a block there is a line of its first row, one of its second and so on, then the next
//! line of each. So a tile reads neighbouring lines at distances known to the compiler, and walks through memory in order.

use super::Rows;
use super::threads::Pool;

/// Words of a line: a line of the caches.
pub(super) const LINE: usize = 16;

/// Rows of a block, which share a chunk of weights: their lines for the chunk fit the nearest cache together with it.
pub(super) const ROWS: usize = 36;

/// Lines of some rows. Words are integers, or bfloat16, in the bits of f32, so that their memory is used again.
pub(super) struct Lines {
    words: Rows,
    n_rows: usize,
    n_lines: usize,
}

/// The lines of one row, to be written.
pub(super) struct RowLines {
    first: *mut [f32; LINE],
    /// Lines from one of this row to its next.
    stride: usize,
    n_lines: usize,
}

impl RowLines {
    /// Writes line `line`.
    #[inline(always)]
    pub(super) fn set(&mut self, line: usize, words: [f32; LINE]) {
        assert!(line < self.n_lines);
        // SAFETY: a row has `n_lines` lines, `stride` apart, that nobody else has (`Lines::of`).
        unsafe { self.first.add(line * self.stride).write(words) };
    }
}

/// A pointer that tasks share, each for its own rows.
struct Shared(*mut [f32; LINE]);

// SAFETY: written through at lines that belong to one row, and a row to one task, while the owner waits.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut [f32; LINE] {
        self.0
    }
}

impl Lines {
    /// `n_lines` lines for each row of `x`, written by `fill`, which is told the row.
    pub(super) fn of(pool: &Pool, x: &Rows, n_lines: usize, fill: impl Fn(&[f32], RowLines) + Sync) -> Self {
        let n_rows = x.n_rows();
        let mut words = x.scratch(n_rows, n_lines * LINE);
        let shared = Shared(words.values_mut().as_mut_ptr().cast());
        let lines = Self { words, n_rows, n_lines };
        let work = |row: usize| {
            let (place, stride) = lines.place(row);
            // SAFETY: the place is in the memory, and so are the row's other lines.
            let first = unsafe { shared.get().add(place) };
            fill(x.row(row), RowLines { first, stride, n_lines });
        };
        if x.are_many() {
            let n_tasks = pool.n_tasks(n_rows);
            pool.run(n_tasks, &|task| {
                (task * n_rows / n_tasks..(task + 1) * n_rows / n_tasks).for_each(work);
            });
        } else {
            (0..n_rows).for_each(work);
        }
        lines
    }

    /// Rows.
    pub(super) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The first line of a row, and the lines from one of its lines to the next.
    #[inline(always)]
    fn place(&self, row: usize) -> (usize, usize) {
        let first = row / ROWS * ROWS;
        (first * self.n_lines + row - first, ROWS.min(self.n_rows - first))
    }

    /// Line `line` of `n` rows from `row` on, which are of one block.
    #[inline(always)]
    pub(super) fn line(&self, row: usize, n: usize, line: usize) -> &[[f32; LINE]] {
        let (first, stride) = self.place(row);
        let lines = self.words.values().as_chunks().0;
        &lines[first + line * stride..][..n]
    }

    /// Word `word` of a row.
    #[inline(always)]
    pub(super) fn word(&self, row: usize, word: usize) -> f32 {
        self.line(row, 1, word / LINE)[0][word % LINE]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Buffers;
    use super::*;

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
