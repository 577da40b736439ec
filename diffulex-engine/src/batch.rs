//! A plan laid out as the rows of one forward.

use std::collections::BTreeMap;

use crate::kernels::SequenceRows;
use crate::models::ModelBatch;
use crate::scheduler::{Scheduled, Span, Ticket};

/// Where the logits of one position that is not decided stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which request.
    pub ticket: Ticket,
    /// Which of its blocks.
    pub block: usize,
    /// Index into the block.
    pub row: usize,
}

/// Lays `plan` out. The second part tells, for each row of logits, whose it is.
pub fn lay_out(plan: &[Span], requests: &BTreeMap<Ticket, Scheduled>, page_size: usize) -> (ModelBatch, Vec<Wanted>) {
    let mut batch = ModelBatch::default();
    let mut wanted = Vec::new();
    for span in plan {
        let Some(request) = requests.get(&span.ticket) else { continue };
        let sequence = &request.sequence;
        let first_row = batch.ids.len();
        let positions = sequence.rows_of(&span.blocks);
        let mut visible = Vec::with_capacity(positions.len());
        for position in positions.clone() {
            batch.ids.push(sequence.tokens()[position]);
            batch.positions.push(position as u32);
            let page = request.pages[position / page_size];
            batch.slots.push(page * page_size as u32 + (position % page_size) as u32);
            visible.push(sequence.visible_from(position) as u32);
        }
        for block in sequence.denoised(&span.blocks) {
            let start = sequence.block_range(block).start;
            for position in sequence.undecided(block) {
                wanted.push(Wanted { ticket: span.ticket, block, row: position - start });
                batch.logit_rows.push((first_row + sequence.speaker(position) - positions.start) as u32);
            }
        }
        let rows = first_row..batch.ids.len();
        batch.sequences.push(SequenceRows { rows, pages: request.pages.clone(), visible });
    }
    (batch, wanted)
}
