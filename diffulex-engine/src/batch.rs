//! A plan laid out as the rows of one forward.

use std::collections::BTreeMap;
use std::ops::Range;

use diffulex_strategies::Input;

use crate::kernels::{Blend, Guidance, ModelBatch, SampleableTokens, ScoreSpec, SequenceRows};
use crate::logit_changes::LogitChanges;
use crate::randomness::Randomness;
use crate::sampler::{self, Wanted, draw_key};
use crate::scheduler::{Scheduled, Span, Ticket};
use crate::sequence::PositionState;

/// Facts about the model that laying out a plan needs.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// Positions of a page.
    pub page_size: usize,
    /// Tokens that noise is drawn from.
    pub vocab_size: usize,
    /// Tokens that may be written.
    pub vocabulary: SampleableTokens,
    /// Source of the noise and of draws.
    pub randomness: &'a dyn Randomness,
}

/// The rows of one forward.
#[derive(Debug, Default, PartialEq)]
pub struct Forward {
    /// Everything but canvases.
    pub text: ModelBatch,
    /// Canvases, which attend to the K/V that the rows of `text` write.
    pub canvases: ModelBatch,
    /// The position of each recipe, those of `text` first.
    pub owners: Vec<Wanted>,
    /// Positions of the state rows of `text`, in order.
    pub read: Vec<(Ticket, Range<usize>)>,
}

/// Lays `plan` out.
pub fn lay_out(plan: &[Span], requests: &BTreeMap<Ticket, Scheduled>, frame: Frame<'_>) -> Forward {
    let mut forward = Forward::default();
    let mut owners_of_canvases = Vec::new();
    for span in plan {
        // Every planned request has a slot.
        let Some((request, slot)) = requests.get(&span.ticket).and_then(|request| Some((request, request.slot?)))
        else {
            continue;
        };
        let sequence = &request.sequence;
        // There is one canvas at a time, after all decided blocks.
        let first_canvas = span.blocks.clone().find(|block| sequence.is_canvas(*block)).unwrap_or(span.blocks.end);
        let text = span.blocks.start..first_canvas;
        if !text.is_empty() {
            if let Some(pooled) = &request.pooled {
                let rows = sequence.rows_of(&text);
                let wanted = pooled.wanted(rows.clone());
                let first_row = forward.text.ids.len();
                let row_of = |position: usize| (first_row + position - rows.start) as u32;
                forward.text.state_rows.extend(wanted.clone().map(row_of));
                forward.read.push((span.ticket, wanted));
            }
            for copy in 0..sequence.n_copies() {
                add_rows(&mut forward.text, &mut forward.owners, span.ticket, request, text.clone(), copy, frame);
            }
        }
        for canvas in first_canvas..span.blocks.end {
            let batch = &mut forward.canvases;
            let rows = batch.ids.len() as u32..(batch.ids.len() + sequence.block_range(canvas).len()) as u32;
            let first_recipe = batch.specs.len();
            add_rows(batch, &mut owners_of_canvases, span.ticket, request, canvas..canvas + 1, 0, frame);
            let first_condition = slot * sequence.block_size() as u32;
            for recipe in &mut batch.specs[first_recipe..] {
                recipe.conditions = Some(first_condition + recipe.row - rows.start);
            }
            if sequence.blocks()[canvas].steps > 0 {
                batch.conditioning.extend(first_condition..first_condition + rows.len() as u32);
                batch.conditioned.extend(rows);
            }
        }
    }
    forward.owners.append(&mut owners_of_canvases);
    forward
}

fn add_rows(
    batch: &mut ModelBatch,
    owners: &mut Vec<Wanted>,
    ticket: Ticket,
    request: &Scheduled,
    blocks: Range<usize>,
    copy: usize,
    frame: Frame<'_>,
) {
    let Frame { page_size, .. } = frame;
    let sequence = &request.sequence;
    let is_unguided = copy > 0;
    let pages = request.pages.chunks(request.pages.len() / sequence.n_copies()).nth(copy).unwrap_or_default();
    let first_row = batch.ids.len();
    let positions = sequence.rows_of(&blocks);
    let mut visible = Vec::with_capacity(positions.len());
    for (position, input) in positions.clone().zip(sequence.inputs(&blocks)) {
        batch.ids.push(match input {
            Input::Token(_) if is_unguided && sequence.states()[position] == PositionState::Prompt => {
                sequence.mask_token_id()
            }
            Input::Token(token) => token,
            Input::Noise => frame.randomness.noise(draw_key(sequence, position), frame.vocab_size),
            Input::Blend(blend) => {
                let row = batch.ids.len() as u32;
                let parts = blend.tokens.into_iter().chain([(sequence.mask_token_id(), blend.mask)]);
                let parts = parts.filter(|(_, weight)| *weight > 0.0).collect();
                batch.blends.push(Blend { row, parts, keeps_length: blend.keeps_length });
                // A placeholder: the blend replaces its embedding.
                sequence.mask_token_id()
            }
        });
        batch.positions.push(position as u32);
        let page = pages[position / page_size];
        batch.slots.push(page * page_size as u32 + (position % page_size) as u32);
        visible.push(sequence.visible_from(position) as u32);
    }
    // The rows without the prompt follow those with it, in the same order.
    let unguided = sequence.guidance().map(|scale| (scale, positions.len()));
    let denoised = if is_unguided { 0..0 } else { sequence.denoised(&blocks) };
    let changes = (!denoised.is_empty()).then(|| LogitChanges::of(sequence, frame.vocabulary));
    for (block, changes) in denoised.flat_map(|block| Some((block, changes.as_ref()?))) {
        let start = sequence.block_range(block).start;
        for position in sequence.undecided(block) {
            let row = first_row + sequence.predicting_position(position) - positions.start;
            let guidance = unguided.map(|(scale, n_rows)| Guidance { unguided_row: (row + n_rows) as u32, scale });
            owners.push(Wanted { ticket, block, row: position - start });
            let recipe = sampler::recipe(sequence, position, row as u32, changes, frame.vocabulary, frame.randomness);
            batch.specs.push(ScoreSpec { guidance, ..recipe });
        }
    }
    let rows = first_row..batch.ids.len();
    if let Some(adapter) = request.adapter {
        batch.adapted.entry(adapter).or_default().extend(rows.clone().map(|row| row as u32));
    }
    batch.sequences.push(SequenceRows { rows, pages: pages.to_vec(), visible });
}
