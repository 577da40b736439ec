//! A plan laid out as the rows of one forward.

use std::collections::BTreeMap;

use crate::kernels::SequenceRows;
use crate::models::ModelBatch;
use crate::scheduler::{Scheduled, Span, Ticket};
use crate::sequence::BlockStatus;

/// Where the logits of one masked position stand.
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
        let block_size = sequence.block_size();
        let first_row = batch.ids.len();
        let mut visible = Vec::with_capacity(span.blocks.len() * block_size);
        for block in span.blocks.clone() {
            let range = sequence.block_range(block);
            for position in range.clone() {
                batch.ids.push(sequence.tokens()[position]);
                batch.positions.push(position as u32);
                let page = request.pages[position / page_size];
                batch.slots.push(page * page_size as u32 + (position % page_size) as u32);
                // Block-causal: everything up to the end of its own block.
                visible.push(range.end as u32);
            }
            if sequence.blocks()[block].status == BlockStatus::Active {
                for position in sequence.masked(block) {
                    let row = position - range.start;
                    wanted.push(Wanted { ticket: span.ticket, block, row });
                    batch.logit_rows.push((first_row + position - span.blocks.start * block_size) as u32);
                }
            }
        }
        let rows = first_row..batch.ids.len();
        batch.sequences.push(SequenceRows { rows, pages: request.pages.clone(), visible });
    }
    (batch, wanted)
}
