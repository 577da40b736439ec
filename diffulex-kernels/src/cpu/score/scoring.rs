//! Scoring on the CPU: a tile of the vocabulary at a time on all threads, straight from the product with the head.
//!
//! 1. The specs' changes are applied to each tile of logits and the tile is summarised ([`Summary`]) while it is in the caches.
//! 2. The summaries of a row are joined. This completes a greedy row. For a sampled row the tiles' sums yield the tile of
//!    its token.
//! 3. This tile is computed again for the rows that need it, and searched for the token.
//!
//! The logits of a row are kept only if its spec cuts the distribution ([`Cut`]), has classes or conditions a canvas.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::cpu::packing::matrix::PackedMatrix;
use crate::cpu::product::linear::{self, TILE, TiledProduct};
use crate::cpu::rows::Rows;
use crate::cpu::score::classes::ClassesOfRow;
use crate::cpu::score::cut::{Cut, least_kept, place};
use crate::cpu::score::findings::TileOfRow;
use crate::cpu::score::summary::{Summary, Wanted};
use crate::cpu::state::CpuOps;
use crate::error::StepError;
use crate::{ClassScore, Draw, Guidance, Head, Ops, RowScore, Score, ScoreSpec, SelfConditioning};

/// Maximum number of logits kept at once, 64 MiB; more rows are scored in parts. With a vocabulary of 152k this is 110 rows,
/// enough for a product to be bound by arithmetic, so parts cost nothing. Chosen by us.
const MAX_KEPT_VALUES: usize = 1 << 24;

/// A spec and the location of its logits.
struct Row<'a> {
    spec: &'a ScoreSpec,
    wanted: Wanted,
    /// Row of the product.
    row: usize,
    /// Row of the product without the prompt, and the scale of guidance.
    guidance: Option<(usize, f32)>,
    /// Row of the kept logits.
    kept: Option<usize>,
}

/// Logits of the rows that keep them, tile by tile.
struct Kept {
    /// `[n_tiles, n_rows * TILE]`.
    values: Rows,
    n_out: usize,
}

impl Kept {
    /// Logits of row `place` among those that are kept, a tile at a time.
    fn tiles(&self, place: usize) -> impl Iterator<Item = &[f32]> {
        let n_tiles = self.n_out.div_ceil(TILE);
        (0..n_tiles).map(move |tile| {
            let n_tokens = TILE.min(self.n_out - tile * TILE);
            &self.values.row(tile)[place * TILE..place * TILE + n_tokens]
        })
    }
}

/// The weights of a row with cuts, and what is kept of them.
struct KeptWeights {
    weights: Rows,
    cut: Cut,
}

/// Result of a row; its token may still have to be searched.
struct Drawing {
    scored: RowScore,
    /// The tile that contains the token and the search in it; `None` if the token is known.
    search: Option<(usize, Search)>,
}

/// Search for a token in a tile.
#[derive(Clone, Copy)]
enum Search {
    /// The first token at which the sum of weights exceeds `target`; the largest logit has weight 1.
    Sum { target: f64, top: f32, total: f64 },
    /// This token.
    Token { token: u32, top: f32, total: f64 },
}

/// [`Ops::score`].
pub(crate) fn score(
    ops: &CpuOps,
    x: &Rows,
    head: &Head<'_, CpuOps>,
    specs: &[ScoreSpec],
    mut conditioning: Option<SelfConditioning<'_, CpuOps>>,
) -> Result<Vec<Option<RowScore>>, StepError> {
    let n_kept = specs.iter().filter(|spec| keeps_logits(spec)).count();
    // Parts of similar size.
    let n_parts = (n_kept * head.matrix.n_out().next_multiple_of(TILE)).div_ceil(MAX_KEPT_VALUES).max(1);
    let max_kept = n_kept.div_ceil(n_parts);
    let mut scored = Vec::with_capacity(specs.len());
    let mut rest = specs;
    while !rest.is_empty() {
        let mut n_kept = 0;
        let end = rest.iter().position(|spec| {
            n_kept += usize::from(keeps_logits(spec));
            n_kept > max_kept
        });
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        scored.extend(Part::new(ops, x, head, part)?.score(conditioning.as_mut())?);
        rest = behind;
    }
    Ok(scored)
}

/// Whether the row's logits are read more than once and have to be kept.
fn keeps_logits(spec: &ScoreSpec) -> bool {
    spec.is_cut() || spec.classes.is_some() || spec.conditions.is_some()
}

/// Specs that are scored at once.
struct Part<'a> {
    ops: &'a CpuOps,
    matrix: &'a PackedMatrix,
    soft_cap: Option<f32>,
    /// Hidden states after the norm, each row once.
    normed: Rows,
    rows: Vec<Row<'a>>,
    n_kept: usize,
}

impl<'a> Part<'a> {
    fn new(ops: &'a CpuOps, x: &Rows, head: &Head<'a, CpuOps>, specs: &'a [ScoreSpec]) -> Result<Self, StepError> {
        let named = specs.iter().flat_map(|spec| {
            [Some(spec.row), spec.guidance.map(|guidance| guidance.unguided_row)].into_iter().flatten()
        });
        let mut named: Vec<u32> = named.collect();
        named.sort_unstable();
        named.dedup();
        let place = |row: u32| named.partition_point(|other| *other < row);
        let mut n_kept = 0;
        let rows = specs.iter().map(|spec| {
            let kept = keeps_logits(spec).then_some(n_kept);
            n_kept += usize::from(kept.is_some());
            let wanted = Wanted {
                vocabulary: spec.vocabulary,
                n_ranked: spec.n_ranked(),
                second: spec.score == Score::Margin,
                log_total: spec.score == Score::NegativeEntropy,
                factor: spec.inverse_temperature(),
            };
            let guidance = spec.guidance.map(|Guidance { unguided_row, scale }| (place(unguided_row), scale));
            Row { spec, wanted, row: place(spec.row), guidance, kept }
        });
        let rows = rows.collect();
        let (norm, eps) = head.norm;
        let normed = ops.rms_norm(&x.select(&named), norm, eps)?;
        Ok(Self { ops, matrix: head.matrix, soft_cap: head.soft_cap, normed, rows, n_kept })
    }

    fn score(
        &self,
        conditioning: Option<&mut SelfConditioning<'_, CpuOps>>,
    ) -> Result<Vec<Option<RowScore>>, StepError> {
        let pool = &self.ops.pool;
        let product = TiledProduct::new(pool, self.ops.simd, &self.normed, self.matrix);
        // One piece of memory, which is used again by the next step.
        let mut values = self.normed.scratch(product.n_tiles(), self.n_kept * TILE);
        let of_tiles = values.values_mut().chunks_mut((self.n_kept * TILE).max(1)).map(Mutex::new);
        let of_tiles: Vec<Mutex<&mut [f32]>> = of_tiles.collect();
        let tiles = pool.map(product.n_tiles(), |tile| {
            let mut kept = of_tiles.get(tile).map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner));
            self.tile(product.tile(tile), kept.as_deref_mut().map_or(&mut [], |kept| kept))
        });
        let kept = Kept { values, n_out: self.matrix.n_out() };
        let mut drawings = pool.map(self.rows.len(), |index| self.joined(index, &tiles, &kept));
        self.ops.findings.give_back(tiles);
        self.find_tokens(&mut drawings);
        if let Some(conditioning) = conditioning {
            self.condition(&kept, conditioning)?;
        }
        let is_number = |scored: &RowScore| scored.confidence.is_finite();
        Ok(drawings.into_iter().map(|drawing| drawing.map(|drawing| drawing.scored).filter(is_number)).collect())
    }

    /// Findings about each row in a tile with these outputs. Logits that are kept go to `kept`.
    fn tile(&self, (outs, mut values): (Range<usize>, Rows), kept: &mut [f32]) -> Vec<TileOfRow> {
        self.cap(&mut values);
        let mut scratch = Vec::new();
        let simd = self.ops.simd;
        let mut found = self.ops.findings.take();
        found.extend(self.rows.iter().map(|row| {
            let Row { spec, wanted, .. } = row;
            let logits = row.changed(&outs, |row| values.row(row), &mut scratch);
            if let Some(place) = row.kept {
                kept[place * TILE..place * TILE + outs.len()].copy_from_slice(logits);
            }
            let is_here = |(_, token): &(usize, &u32)| outs.contains(&(**token as usize));
            let asked = spec.asked.iter().enumerate().filter(is_here);
            let asked = asked.map(|(place, token)| (place, logits[*token as usize - outs.start])).collect();
            let summarise = |logits: &[f32]| Summary::of_tile(simd, outs.start, logits, *wanted);
            let takes_all = spec.is_greedy() || row.draws_all(&outs);
            let summary = if takes_all {
                summarise(logits)
            } else {
                let mut drawable = logits.to_vec();
                row.blank(&outs, &mut drawable, f32::NEG_INFINITY);
                summarise(&drawable)
            };
            let of_all = || if takes_all { summary.clone() } else { summarise(logits) };
            let whole = spec.asks_log_probabilities().then(|| Box::new(of_all()));
            TileOfRow { summary, whole, asked }
        }));
        found
    }

    fn cap(&self, values: &mut Rows) {
        if let Some(cap) = self.soft_cap {
            self.ops.simd.soft_cap(values.values_mut(), cap);
        }
    }

    /// Joins the tiles of a row; `None` if its logits are NaN or infinite, or no token may be sampled.
    fn joined(&self, index: usize, tiles: &[Vec<TileOfRow>], kept: &Kept) -> Option<Drawing> {
        let row = &self.rows[index];
        let spec = row.spec;
        let of_tiles = || tiles.iter().map(|tile| &tile[index]);
        let summary = Summary::joined(of_tiles().map(|tile| &tile.summary), row.wanted);
        let mut cut = None;
        let mut drawing = if spec.is_greedy() {
            Drawing { scored: greedy(spec, &summary)?, search: None }
        } else if summary.largest[0].is_finite() && summary.total.is_finite() {
            let tops: Vec<f32> = of_tiles().map(|tile| tile.summary.largest[0]).collect();
            let mut top_weights = vec![0.0; tops.len()];
            self.ops.simd.exp_into(&tops, summary.largest[0], row.wanted.factor, &mut top_weights);
            if spec.is_cut() {
                let (drawing, kept) = self.drawn_cut(row, kept.tiles(row.kept?), &top_weights, &summary)?;
                cut = Some(kept);
                drawing
            } else {
                drawn(row, of_tiles().zip(top_weights), &summary)?
            }
        } else {
            return None;
        };
        if spec.asks_log_probabilities() {
            let whole = Summary::joined(of_tiles().filter_map(|tile| tile.whole.as_deref()), row.wanted);
            let (top, log_total) = (whole.largest[0], whole.total.ln());
            if !top.is_finite() || !log_total.is_finite() {
                return None;
            }
            let scored = &mut drawing.scored;
            scored.log_probabilities = vec![0.0; spec.asked.len()];
            for (place, logit) in of_tiles().flat_map(|tile| &tile.asked) {
                scored.log_probabilities[*place] = (logit - top) * row.wanted.factor - log_total;
            }
            scored.classes = self.classes(row, kept, cut.as_ref(), &whole);
        }
        Some(drawing)
    }

    /// Samples a row with cuts; what it keeps comes with it. `top_weights` are the largest weights of its tiles.
    fn drawn_cut<'t>(
        &self,
        row: &Row<'_>,
        tiles: impl Iterator<Item = &'t [f32]>,
        top_weights: &[f32],
        summary: &Summary,
    ) -> Option<(Drawing, KeptWeights)> {
        let (spec, top, factor) = (row.spec, summary.largest[0], row.wanted.factor);
        let simd = self.ops.simd;
        let least = least_kept(spec, top_weights);
        let mut weights = self.normed.scratch(1, self.matrix.n_out());
        for ((weights, logits), largest) in weights.values_mut().chunks_mut(TILE).zip(tiles).zip(top_weights) {
            if *largest < least {
                // Nothing of the tile is kept.
                weights.fill(0.0);
            } else {
                simd.exp_into(logits, top, factor, weights);
            }
        }
        let n_out = weights.width();
        row.blank(&(0..n_out), weights.values_mut(), 0.0);
        let cut = Cut::new(simd, weights.values(), spec, least);
        let (token, weight) = match spec.draw {
            Draw::Uniform(uniform) => cut.draw(weights.values(), uniform),
            Draw::Token(token) => (token, cut.kept(weights.values()[token as usize])),
        };
        let probability = |weight: f32| (f64::from(weight) / cut.total()) as f32;
        let ranked = summary.ranked.tokens().iter().map(|(token, _)| (*token, weights.values()[*token as usize]));
        let ranked =
            ranked.filter(|(_, weight)| cut.keeps(*weight)).map(|(token, weight)| (token, probability(weight)));
        let mut scored = scored(spec, token, probability(weight), ranked.clone())?;
        match spec.score {
            Score::Probability => {}
            Score::Margin => scored.score = margin(ranked),
            Score::NegativeEntropy => scored.score = cut.negative_entropy(weights.values()),
        }
        Some((Drawing { scored, search: None }, KeptWeights { weights, cut }))
    }

    /// Scores of a row's classes; `cut` is what a row with cuts keeps.
    fn classes(&self, row: &Row<'_>, kept: &Kept, cut: Option<&KeptWeights>, whole: &Summary) -> Vec<ClassScore> {
        let (Some(classes), Some(place)) = (&row.spec.classes, row.kept) else { return Vec::new() };
        let of_row = ClassesOfRow {
            simd: self.ops.simd,
            spec: row.spec,
            factor: row.wanted.factor,
            top: whole.largest[0],
            log_total: whole.total.ln(),
        };
        let keeps = cut.map(|kept| {
            let (weights, cut) = (kept.weights.values(), &kept.cut);
            move |token: u32| cut.keeps(weights[token as usize])
        });
        // Beside each other they lie in the nearer caches, from which single tokens are read.
        let mut logits = self.normed.scratch(1, kept.n_out);
        for (copy, tile) in logits.values_mut().chunks_mut(TILE).zip(kept.tiles(place)) {
            copy.copy_from_slice(tile);
        }
        let mut gathered = self.normed.scratch(1, classes.all_tokens().len());
        of_row.scored(classes, logits.values(), keeps, gathered.values_mut())
    }

    /// Finds the tokens of the rows with a search.
    fn find_tokens(&self, drawings: &mut [Option<Drawing>]) {
        let mut by_tile: BTreeMap<usize, Vec<(usize, Search)>> = BTreeMap::new();
        for (index, drawing) in drawings.iter().enumerate() {
            if let Some((tile, search)) = drawing.as_ref().and_then(|drawing| drawing.search) {
                by_tile.entry(tile).or_default().push((index, search));
            }
        }
        let by_tile: Vec<(usize, Vec<(usize, Search)>)> = by_tile.into_iter().collect();
        let found = self.ops.pool.map(by_tile.len(), |index| {
            let (tile, searches) = &by_tile[index];
            let rows: Vec<usize> = searches.iter().flat_map(|(index, _)| self.rows[*index].sources()).collect();
            let mut x = self.normed.scratch(rows.len(), self.normed.width());
            for (place, row) in rows.iter().enumerate() {
                x.row_mut(place).copy_from_slice(self.normed.row(*row));
            }
            let (outs, mut values) = TiledProduct::new(&self.ops.pool, self.ops.simd, &x, self.matrix).tile(*tile);
            self.cap(&mut values);
            let logits_of = |row: usize| values.row(rows.iter().position(|other| *other == row).unwrap_or_default());
            let mut scratch = Vec::new();
            let find = |(index, search): &(usize, Search)| {
                let row = &self.rows[*index];
                let logits = row.changed(&outs, |row| logits_of(row), &mut scratch);
                let mut weights = vec![0.0; logits.len()];
                let (Search::Sum { top, .. } | Search::Token { top, .. }) = *search;
                self.ops.simd.exp_into(logits, top, row.wanted.factor, &mut weights);
                row.blank(&outs, &mut weights, 0.0);
                (*index, found(*search, outs.start, &weights))
            };
            searches.iter().map(find).collect::<Vec<_>>()
        });
        for (index, (token, confidence)) in found.into_iter().flatten() {
            if let Some(drawing) = &mut drawings[index] {
                let scored = &mut drawing.scored;
                (scored.token, scored.confidence) = (token, confidence);
                if self.rows[index].spec.score == Score::Probability {
                    scored.score = confidence;
                }
            }
        }
    }

    /// Writes the self-conditioning rows.
    fn condition(&self, kept: &Kept, conditioning: &mut SelfConditioning<'_, CpuOps>) -> Result<(), StepError> {
        let places: Vec<(u32, usize)> =
            self.rows.iter().filter_map(|row| Some((row.spec.conditions?, row.kept?))).collect();
        let mut logits = self.normed.scratch(places.len(), self.matrix.n_out());
        for (row, (_, place)) in places.iter().enumerate() {
            for (logits, tile) in logits.row_mut(row).chunks_mut(TILE).zip(kept.tiles(*place)) {
                logits.copy_from_slice(tile);
            }
        }
        if places.is_empty() {
            return Ok(());
        }
        let mut mixed = linear::mix_softmax(&self.ops.pool, self.ops.simd, logits, conditioning.table);
        self.ops.scale(&mut mixed, conditioning.scale)?;
        for (row, (place, _)) in places.iter().enumerate() {
            conditioning.rows.row_mut(*place as usize).copy_from_slice(mixed.row(row));
        }
        Ok(())
    }
}

impl Row<'_> {
    /// Rows of the product that the logits are computed from.
    fn sources(&self) -> impl Iterator<Item = usize> {
        [Some(self.row), self.guidance.map(|(unguided, _)| unguided)].into_iter().flatten()
    }

    /// Logits of the tokens `outs` with the changes of the spec. `logits` returns the head's, by row of the product.
    fn changed<'v>(
        &self,
        outs: &Range<usize>,
        logits: impl Fn(usize) -> &'v [f32],
        scratch: &'v mut Vec<f32>,
    ) -> &'v [f32] {
        let ScoreSpec { strategy_temperature, changes, .. } = self.spec;
        let first = changes.partition_point(|change| (change.token as usize) < outs.start);
        let changes = changes[first..].iter().take_while(|change| (change.token as usize) < outs.end);
        let own = logits(self.row);
        if *strategy_temperature == 1.0 && self.guidance.is_none() && changes.clone().next().is_none() {
            return own;
        }
        scratch.clear();
        scratch.extend(own.iter().map(|logit| logit / strategy_temperature));
        if let Some((unguided, scale)) = self.guidance {
            for (logit, base) in scratch.iter_mut().zip(logits(unguided)) {
                let base = base / strategy_temperature;
                *logit = base + (scale + 1.0) * (*logit - base);
            }
        }
        for change in changes {
            let logit = &mut scratch[change.token as usize - outs.start];
            *logit = change.apply(*logit);
        }
        scratch
    }

    /// Whether every token of `outs` may be sampled.
    fn draws_all(&self, outs: &Range<usize>) -> bool {
        let vocabulary = self.wanted.vocabulary;
        outs.end <= vocabulary.n_sampleable
            && vocabulary.mask_token_id.is_none_or(|mask| !outs.contains(&(mask as usize)))
    }

    /// Writes `nothing` for the tokens of `outs` that may not be sampled.
    fn blank(&self, outs: &Range<usize>, values: &mut [f32], nothing: f32) {
        let vocabulary = self.wanted.vocabulary;
        let n_tokens = vocabulary.n_sampleable.clamp(outs.start, outs.end) - outs.start;
        values[n_tokens..].fill(nothing);
        if let Some(mask) = vocabulary.mask_token_id.filter(|mask| outs.contains(&(*mask as usize))) {
            values[mask as usize - outs.start] = nothing;
        }
    }
}

/// The result of a row, with the confidence as its score.
fn scored(
    spec: &ScoreSpec,
    token: u32,
    confidence: f32,
    mut likeliest: impl Iterator<Item = (u32, f32)>,
) -> Option<RowScore> {
    let first = likeliest.next()?;
    Some(RowScore {
        token,
        confidence,
        score: confidence,
        likeliest: first,
        runners_up: likeliest.take(spec.n_likeliest - 1).collect(),
        log_probabilities: Vec::new(),
        classes: Vec::new(),
    })
}

/// Probability of the first token minus that of the second.
fn margin(mut likeliest: impl Iterator<Item = (u32, f32)>) -> f32 {
    let mut next = || likeliest.next().map_or(0.0, |(_, probability)| probability);
    next() - next()
}

/// The result of a greedy row.
fn greedy(spec: &ScoreSpec, summary: &Summary) -> Option<RowScore> {
    let total = summary.log_sum_exp();
    let probability = |logit: f32| (logit - total).exp();
    let (token, logit) = summary.ranked.tokens().first()?;
    let ranked = summary.ranked.tokens().iter().map(|(token, logit)| (*token, probability(*logit)));
    let mut scored = scored(spec, *token, probability(*logit), ranked)?;
    match spec.score {
        Score::Probability => {}
        // Of all that the head has, the mask included.
        Score::Margin => scored.score = probability(summary.largest[0]) - probability(summary.largest[1]),
        Score::NegativeEntropy => scored.score = summary.negative_entropy(),
    }
    Some(scored)
}

/// Samples a row without cuts; `tiles` are its tiles, each with its largest weight.
fn drawn<'t>(row: &Row<'_>, tiles: impl Iterator<Item = (&'t TileOfRow, f32)>, summary: &Summary) -> Option<Drawing> {
    let (spec, top, factor) = (row.spec, summary.largest[0], row.wanted.factor);
    let sum = |(tile, top_weight): (&TileOfRow, f32)| {
        let Summary { largest, total, .. } = tile.summary;
        // Tokens have 32-bit weights: where all of a tile's are 0, the search of its token would find none.
        if top_weight == 0.0 { 0.0 } else { f64::from(total) * f64::from((largest[0] - top) * factor).exp() }
    };
    let sums: Vec<f64> = tiles.map(sum).collect();
    let total: f64 = sums.iter().sum();
    let search = match spec.draw {
        Draw::Uniform(uniform) => {
            let (tile, target) = place(sums.iter().copied(), uniform * total)?;
            (tile, Search::Sum { target, top, total })
        }
        Draw::Token(token) => (token as usize / TILE, Search::Token { token, top, total }),
    };
    let probability = |logit: f32| (f64::from((logit - top) * factor).exp() / total) as f32;
    let ranked = summary.ranked.tokens().iter().map(|(token, logit)| (*token, probability(*logit)));
    // Token and confidence come with the search.
    let mut scored = scored(spec, 0, 0.0, ranked.clone())?;
    match spec.score {
        Score::Probability => {}
        Score::Margin => scored.score = margin(ranked),
        Score::NegativeEntropy => scored.score = summary.negative_entropy(),
    }
    Some(Drawing { scored, search: Some(search) })
}

/// Runs a search in a tile of weights, the first of which belongs to token `first`; the token and its probability.
fn found(search: Search, first: usize, weights: &[f32]) -> (u32, f32) {
    let (place, total) = match search {
        Search::Sum { target, total, .. } => {
            let weights = weights.iter().map(|weight| f64::from(*weight));
            (place(weights, target).map_or(0, |(place, _)| place), total)
        }
        Search::Token { token, total, .. } => (token as usize - first, total),
    };
    ((first + place) as u32, (f64::from(weights[place]) / total) as f32)
}
