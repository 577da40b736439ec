//! Output of a product, written by many tasks.

use std::ops::Range;

use crate::cpu::packing::panels::PANEL;
use crate::cpu::pool::shared::Shared;

/// Output buffer: row `r`, output `o` is at `r * outs.len() + o - outs.start`.
pub(crate) struct Output<'a> {
    pub(crate) values: Shared<'a, f32>,
    pub(crate) n_rows: usize,
    /// Outputs, from a panel's first on.
    pub(crate) outs: Range<usize>,
    pub(crate) bias: Option<&'a [f32]>,
}

impl Output<'_> {
    /// Adds the bias and writes one row of one panel.
    ///
    /// # Safety
    /// No other task has this panel.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, row: usize, panel: usize, mut sums: [f32; PANEL]) {
        let first = panel * PANEL;
        assert!(row < self.n_rows && (self.outs.start..self.outs.end).contains(&first));
        let n_lanes = PANEL.min(self.outs.end - first);
        if let Some(bias) = self.bias {
            for (sum, bias) in sums.iter_mut().zip(&bias[first..first + n_lanes]) {
                *sum += bias;
            }
        }
        let place = row * self.outs.len() + first - self.outs.start;
        // SAFETY: in the task's columns.
        unsafe {
            // Nearly always a whole panel, which is one vector and not sixteen numbers.
            if n_lanes == PANEL {
                self.values.write_array(place, sums);
            } else {
                self.values.write(place, &sums[..n_lanes]);
            }
        }
    }
}
