//! Attention over the paged cache, a query row and head at a time.
//!
//! Scores of one row are `[visible]`, never a matrix. Each row runs over its positions in ascending order, so its
//! result does not depend on the rows beside it.

use rayon::prelude::*;

use super::{Rows, Simd};
use crate::kernels::{AttentionBatch, CacheShape, SequenceRows};

/// Below this many score and value products the batch stays on one thread; see the same constant of `linear`.
const PARALLEL_MULTIPLY_ADDS: usize = 1 << 20;

pub(super) fn attend(simd: Simd, q: &Rows, k: &[f32], v: &[f32], shape: CacheShape, batch: AttentionBatch<'_>) -> Rows {
    let width = batch.n_heads * shape.head_dim;
    let mut out = Rows::zeros(q.n_rows(), width);
    // (sequence, visible, query row, output row) of every row.
    let mut rows: Vec<(&SequenceRows, usize, &[f32], &mut [f32])> = Vec::with_capacity(q.n_rows());
    let mut outputs = out.values_mut().chunks_exact_mut(width);
    for sequence in batch.sequences {
        for (row, visible) in sequence.rows.clone().zip(&sequence.visible) {
            if let Some(output) = outputs.next() {
                rows.push((sequence, *visible as usize, q.row(row), output));
            }
        }
    }
    let one_row = |scores: &mut Vec<f32>,
                   (sequence, visible, query, output): (&SequenceRows, usize, &[f32], &mut [f32])| {
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        let group = batch.n_heads / shape.n_kv_heads;
        for (head, (query, output)) in
            query.chunks_exact(shape.head_dim).zip(output.chunks_exact_mut(shape.head_dim)).enumerate()
        {
            let at = |values, position: usize| -> &[f32] {
                let slot =
                    sequence.pages[position / batch.page_size] as usize * batch.page_size + position % batch.page_size;
                let start = (slot * shape.n_kv_heads + head / group) * shape.head_dim;
                let values: &[f32] = values;
                &values[start..start + shape.head_dim]
            };
            scores.clear();
            scores.extend((0..visible).map(|position| simd.dot(query, at(k, position)) * scale));
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum = simd.exp_sub_sum(scores, top);
            for (position, weight) in scores.iter().enumerate() {
                simd.add_scaled(output, *weight / sum, at(v, position));
            }
        }
    };
    let multiply_adds: usize = rows.iter().map(|(_, visible, ..)| 2 * visible * width).sum();
    if multiply_adds < PARALLEL_MULTIPLY_ADDS {
        let mut scores = Vec::new();
        rows.into_iter().for_each(|row| one_row(&mut scores, row));
    } else {
        rows.into_par_iter().for_each_init(Vec::new, one_row);
    }
    out
}
