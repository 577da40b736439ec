//! Attention over the paged cache, for all rows of a block and all query heads of one K/V head at once.
//!
//! K lies transposed in groups of [`group_len`] positions, `[n_kv_heads][head_dim][group_len]`, so that one vector holds
//! the same component of neighbouring positions and a score is a sum over components in ascending order. V lies as it
//! comes, `[n_kv_heads][head_dim]` a position. Scores of one query are `[visible]`, never a matrix over the batch, and a
//! query's result does not depend on the queries beside it, nor on the page size.

use std::ops::Range;

use super::threads::Pool;
use super::vector::{LANES, Vector, for_each_instruction_set};
use super::{Rows, Simd};
use crate::kernels::{AttentionBatch, CacheShape, SequenceRows};

/// Below this many score and value products the batch stays on one thread; see the same constant of `linear`.
const PARALLEL_MULTIPLY_ADDS: usize = 1 << 17;

/// Queries of a tile: as many sums as fit the registers.
const MAX_TILE_QUERIES: usize = 8;

/// Positions whose keys are stored together: a vector of them, or a page where that is less.
pub(super) fn group_len(page_size: usize) -> usize {
    page_size.min(LANES)
}

/// K and V of one layer.
pub(super) struct LayerCache {
    shape: CacheShape,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl LayerCache {
    /// All zero. Zeroed memory comes from the system page by page as it is touched: an unused cache costs nothing.
    pub(super) fn new(shape: CacheShape) -> Self {
        let len = shape.n_slots * shape.n_kv_heads * shape.head_dim;
        Self { shape, k: vec![0.0; len], v: vec![0.0; len] }
    }

    /// Writes K and V of each row to its slot.
    pub(super) fn store(&mut self, k: &Rows, v: &Rows, slots: &[u32]) {
        let shape = self.shape;
        let width = shape.n_kv_heads * shape.head_dim;
        let group = group_len(shape.page_size);
        for (row, slot) in slots.iter().enumerate() {
            let slot = *slot as usize;
            let first = slot / group * group * width + slot % group;
            for (component, value) in k.row(row).iter().enumerate() {
                self.k[first + component * group] = *value;
            }
            self.v[slot * width..(slot + 1) * width].copy_from_slice(v.row(row));
        }
    }
}

/// Queries that share their keys: neighbouring rows that see equally far, all heads of one K/V head.
struct Task<'a> {
    sequence: &'a SequenceRows,
    rows: Range<usize>,
    visible: usize,
    kv_head: usize,
}

pub(super) fn attend(pool: &Pool, simd: Simd, q: &Rows, cache: &LayerCache, batch: AttentionBatch<'_>) -> Rows {
    let shape = cache.shape;
    let heads_per_kv = batch.n_heads / shape.n_kv_heads;
    let mut tasks = Vec::new();
    let mut multiply_adds = 0;
    for sequence in batch.sequences {
        let mut start = sequence.rows.start;
        for run in sequence.visible.chunk_by(|a, b| a == b) {
            let (rows, visible) = (start..start + run.len(), run[0] as usize);
            start = rows.end;
            multiply_adds += 2 * run.len() * visible * batch.n_heads * shape.head_dim;
            tasks.extend((0..shape.n_kv_heads).map(|kv_head| Task { sequence, rows: rows.clone(), visible, kv_head }));
        }
    }
    let run = |task: &Task<'_>| {
        let Task { sequence, ref rows, visible, kv_head } = *task;
        // [rows, heads_per_kv, head_dim]: the query heads of one K/V head are neighbours.
        let columns = kv_head * heads_per_kv * shape.head_dim..(kv_head + 1) * heads_per_kv * shape.head_dim;
        let queries: Vec<f32> =
            rows.clone().flat_map(|row| &q.row(row)[columns.clone()]).map(|value| value * batch.scale).collect();
        let mut output = vec![0.0; queries.len()];
        let mut scores = Vec::new();
        let tile_len = MAX_TILE_QUERIES * shape.head_dim;
        for (queries, output) in queries.chunks(tile_len).zip(output.chunks_mut(tile_len)) {
            let first = batch.first(visible);
            let context = Context { cache, kv_head, pages: &sequence.pages, first, visible, simd };
            tile(simd, &context, queries, &mut scores, output);
        }
        output
    };
    let outputs: Vec<Vec<f32>> = if multiply_adds < PARALLEL_MULTIPLY_ADDS {
        tasks.iter().map(run).collect()
    } else {
        pool.map(tasks.len(), |index| run(&tasks[index]))
    };
    let mut out = q.scratch(q.n_rows(), batch.n_heads * shape.head_dim);
    let width = heads_per_kv * shape.head_dim;
    for (task, output) in tasks.iter().zip(&outputs) {
        for (row, output) in task.rows.clone().zip(output.chunks_exact(width)) {
            out.row_mut(row)[task.kv_head * width..(task.kv_head + 1) * width].copy_from_slice(output);
        }
    }
    out
}

/// The keys and values a tile of queries sees.
struct Context<'a> {
    cache: &'a LayerCache,
    kv_head: usize,
    pages: &'a [u32],
    /// They see positions `first..visible`.
    first: usize,
    visible: usize,
    simd: Simd,
}

impl Context<'_> {
    fn slot(&self, position: usize) -> usize {
        let page_size = self.cache.shape.page_size;
        self.pages[position / page_size] as usize * page_size + position % page_size
    }

    /// Keys of the group of positions that begins at `position`: `[head_dim][group_len]`.
    fn keys(&self, position: usize) -> &[f32] {
        let group = group_len(self.cache.shape.page_size);
        let CacheShape { n_kv_heads, head_dim, .. } = self.cache.shape;
        let start = (self.slot(position) * n_kv_heads + self.kv_head * group) * head_dim;
        &self.cache.k[start..start + head_dim * group]
    }

    fn values(&self, position: usize) -> &[f32] {
        let CacheShape { n_kv_heads, head_dim, .. } = self.cache.shape;
        let start = (self.slot(position) * n_kv_heads + self.kv_head) * head_dim;
        &self.cache.v[start..start + head_dim]
    }
}

for_each_instruction_set! {
    /// Attention of up to [`MAX_TILE_QUERIES`] queries; `scores` is scratch.
    fn tile => tile_body(
        context: &Context<'_>,
        queries: &[f32],
        scores: &mut Vec<f32>,
        output: &mut [f32],
    )
}

#[inline(always)]
unsafe fn tile_body<V: Vector>(context: &Context<'_>, queries: &[f32], scores: &mut Vec<f32>, output: &mut [f32]) {
    let head_dim = context.cache.shape.head_dim;
    // A full tile has its sums in registers; what is left over goes one by one.
    if queries.len() == MAX_TILE_QUERIES * head_dim {
        // SAFETY: passed on from the caller.
        unsafe { attend_queries::<V, MAX_TILE_QUERIES>(context, queries, scores, output) };
    } else {
        for (query, output) in queries.chunks_exact(head_dim).zip(output.chunks_exact_mut(head_dim)) {
            // SAFETY: passed on from the caller.
            unsafe { attend_queries::<V, 1>(context, query, scores, output) };
        }
    }
}

#[inline(always)]
unsafe fn attend_queries<V: Vector, const Q: usize>(
    context: &Context<'_>,
    queries: &[f32],
    scores: &mut Vec<f32>,
    output: &mut [f32],
) {
    let head_dim = context.cache.shape.head_dim;
    let group = group_len(context.cache.shape.page_size);
    let stride = context.visible.next_multiple_of(LANES);
    scores.clear();
    scores.resize(Q * stride, 0.0);
    for first in (context.first / group * group..context.visible).step_by(group) {
        let keys = context.keys(first);
        if group == LANES {
            let (vectors, _) = keys.as_chunks::<LANES>();
            // SAFETY: passed on from the caller.
            let mut sums = [unsafe { V::splat(0.0) }; Q];
            for (component, keys) in vectors.iter().enumerate() {
                // SAFETY: passed on from the caller.
                unsafe {
                    let keys = V::load(keys);
                    for (query, sum) in sums.iter_mut().enumerate() {
                        *sum = V::splat(queries[query * head_dim + component]).mul_add(keys, *sum);
                    }
                }
            }
            for (query, sum) in sums.iter().enumerate() {
                if let Some((place, _)) = scores[query * stride + first..].split_first_chunk_mut::<LANES>() {
                    // SAFETY: passed on from the caller.
                    unsafe { sum.store(place) };
                }
            }
        } else {
            // Pages shorter than a vector: the same sums, a lane at a time.
            for query in 0..Q {
                for lane in 0..group.min(context.visible - first) {
                    let mut sum = 0.0;
                    for (component, value) in queries[query * head_dim..][..head_dim].iter().enumerate() {
                        // SAFETY: passed on from the caller.
                        sum = unsafe { V::mul_add_lane(*value, keys[component * group + lane], sum) };
                    }
                    scores[query * stride + first + lane] = sum;
                }
            }
        }
    }
    for scores in scores.chunks_exact_mut(stride) {
        let scores = &mut scores[context.first..context.visible];
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = 1.0 / context.simd.exp_sub_sum(scores, top);
        for score in scores {
            *score *= scale;
        }
    }
    let mut column = 0;
    while column + LANES <= head_dim {
        // SAFETY: passed on from the caller.
        let mut sums = [unsafe { V::splat(0.0) }; Q];
        for position in context.first..context.visible {
            if let Some((values, _)) = context.values(position)[column..].split_first_chunk::<LANES>() {
                // SAFETY: passed on from the caller.
                unsafe {
                    let values = V::load(values);
                    for (query, sum) in sums.iter_mut().enumerate() {
                        *sum = V::splat(scores[query * stride + position]).mul_add(values, *sum);
                    }
                }
            }
        }
        for (query, sum) in sums.iter().enumerate() {
            if let Some((place, _)) = output[query * head_dim + column..].split_first_chunk_mut::<LANES>() {
                // SAFETY: passed on from the caller.
                unsafe { sum.store(place) };
            }
        }
        column += LANES;
    }
    for column in column..head_dim {
        for query in 0..Q {
            output[query * head_dim + column] = (context.first..context.visible)
                .map(|position| scores[query * stride + position] * context.values(position)[column])
                .sum();
        }
    }
}
