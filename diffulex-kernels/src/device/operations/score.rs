//! Scoring on the device: specs go up in one copy, records come back in one, and logits stay where they are.
//!
//! Specs are scored in parts of at most [`MAX_ROWS`] rows of logits, so that memory is bounded and the head is read once
//! per part. gpu/score.cu describes the launches; its structures are written and read here, word by word.

use std::sync::{Arc, PoisonError};

use crate::device::memory::arena::Block;
use crate::device::memory::buffer::Buffer;
use crate::device::operands::padding::{NONE, bucket};
use crate::device::operands::step::DeviceList;
use crate::device::operands::tensor::Tensor;
use crate::device::operands::words::Words;
use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::error::{BatchError, StepError};
use crate::{ClassScore, Classes, Draw, Head, MAX_LIKELIEST, Ops, RowScore, Score, ScoreSpec, SelfConditioning};

/// Rows of logits at once: as many as a product reads its weights for once. 39 MB at a vocabulary of 152k.
const MAX_ROWS: usize = 64;

/// Tokens of a tile, as score.h has it.
pub(crate) const TILE: usize = 2048;

/// Threads of a block, as score.h has it.
pub(crate) const THREADS: usize = 256;

/// Threads of a block that cuts, as score_cut.cu has it.
pub(crate) const CUT_THREADS: u32 = 1024;

/// Shared memory of a block, in bytes: `Room`; `CutRoom`; `FinishRoom`.
const ROOM: u32 = 280;
const CUT_ROOM: u32 = ROOM + 8 * CUT_THREADS + 8;
const FINISH_ROOM: u32 = ROOM + 8 * MAX_LIKELIEST as u32;

/// Bytes that the kernels keep per tile, per tile's likeliest tokens, per cut and per class of a row.
pub(crate) const TILE_BYTES: usize = 24;
const RANKED_BYTES: usize = 8 * MAX_LIKELIEST;
pub(crate) const CUT_BYTES: usize = 16;
const CLASS_BYTES: usize = 24;

/// Words of a spec, of a change, of a record and of a class's answer.
pub(crate) const SPEC_WORDS: usize = 24;
pub(crate) const CHANGE_WORDS: usize = 5;
pub(crate) const RECORD_WORDS: usize = 4 + 2 * MAX_LIKELIEST;
const CLASS_WORDS: usize = 6;

/// Tables of classes that the device keeps, at most: 39 MB at a vocabulary of 152k. Chosen by us.
const MAX_CLASS_TABLES: usize = 64;

/// Specs that are scored at once, and where their lists lie.
struct Part<'a> {
    specs: Vec<&'a ScoreSpec>,
    /// Specs, padding included.
    n_slots: usize,
    /// Rows of logits, padding included: rows of specs, then unguided rows.
    n_rows: usize,
    n_changes: usize,
    /// Offsets in bytes.
    specs_at: usize,
    rows_at: usize,
    changes_at: usize,
    conditions_at: usize,
    /// Classes of a row at most, rounded up.
    class_stride: usize,
}

/// Everything that a call brings to the device, and where its answers come.
struct Plan<'a> {
    parts: Vec<Part<'a>>,
    words: Words,
    asked_at: usize,
    /// Words of the output.
    n_words: usize,
    /// First word of each spec's answers in the output.
    answers: Vec<usize>,
    _tables: Vec<Arc<Buffer>>,
}

/// The number that a list of `n` is padded to, so that steps repeat; lists that are mostly empty stay so.
fn padded(n: usize) -> usize {
    if n == 0 { 0 } else { n.next_power_of_two().max(16) }
}

fn n_rows(spec: &ScoreSpec) -> usize {
    1 + usize::from(spec.guidance.is_some())
}

fn n_classes(spec: &ScoreSpec) -> usize {
    spec.classes.as_ref().map_or(0, |classes| classes.n_classes())
}

/// Splits specs, given with their places, into parts: those that condition canvases apart from the others.
fn parts(specs: &[ScoreSpec]) -> Vec<Vec<(usize, &ScoreSpec)>> {
    let (conditioning, others): (Vec<_>, Vec<_>) =
        specs.iter().enumerate().partition(|(_, spec)| spec.conditions.is_some());
    let mut parts = Vec::new();
    for specs in [others, conditioning] {
        let mut n = MAX_ROWS;
        for (place, spec) in specs {
            n += n_rows(spec);
            if n > MAX_ROWS {
                parts.push(Vec::new());
                n = n_rows(spec);
            }
            if let Some(part) = parts.last_mut() {
                part.push((place, spec));
            }
        }
    }
    parts
}

/// One upload, the launches of each part, one download.
pub(crate) fn score(
    ops: &DeviceOps,
    x: &Tensor,
    head: &Head<'_, DeviceOps>,
    specs: &[ScoreSpec],
    mut conditioning: Option<SelfConditioning<'_, DeviceOps>>,
) -> Result<Vec<Option<RowScore>>, StepError> {
    if specs.is_empty() {
        return Ok(Vec::new());
    }
    let plan = ops.plan_scores(specs, head.matrix.n_out)?;
    let lists = ops.upload_words(&plan.words)?;
    let output = ops.alloc(4 * plan.n_words)?;
    for part in &plan.parts {
        let at = |offset: usize| lists.address() + offset as u64;
        let rows = DeviceList { address: at(part.rows_at), n_padded: part.n_rows, n_real: part.n_rows };
        let (norm, eps) = head.norm;
        let normed = ops.rms_norm(&ops.select_listed(x, rows)?, norm, eps)?;
        let mut logits = ops.linear(&normed, head.matrix, None)?;
        drop(normed);
        ops.settle(part, &lists, &mut logits, head.soft_cap);
        ops.score_part(part, &lists, plan.asked_at, &logits, &output)?;
        if let (Some(conditioning), true) = (&mut conditioning, part.conditions()) {
            let mixed = ops.embed_softmax(conditioning.table, &logits)?;
            let rows = &mut *conditioning.rows;
            let grid = [rows.width.div_ceil(THREADS), part.n_slots, 1];
            let args = [Arg::Pointer(at(part.conditions_at)), mixed.read(), conditioning.scale.into()];
            let args = [&args[..], &[rows.write(), rows.width.into()]].concat();
            ops.launch("score_condition", grid, THREADS as u32, 0, &args);
        }
    }
    let output = ops.download(&[(&output, 4 * plan.n_words)])?;
    let words: Vec<u32> =
        output.iter().flat_map(|bytes| bytes.as_chunks::<4>().0).map(|four| u32::from_le_bytes(*four)).collect();
    Ok(specs.iter().enumerate().map(|(place, spec)| scored(spec, place, plan.answers[place], &words)).collect())
}

impl DeviceOps {
    /// Lays everything out for the device.
    fn plan_scores<'a>(&self, specs: &'a [ScoreSpec], n_out: usize) -> Result<Plan<'a>, StepError> {
        let mut n_words = RECORD_WORDS * bucket(specs.len());
        let first_answer = n_words;
        let mut answers = Vec::with_capacity(specs.len());
        let mut asked: Vec<u32> = Vec::new();
        let mut first_asked = Vec::with_capacity(specs.len());
        for spec in specs {
            answers.push(n_words);
            first_asked.push(asked.len());
            asked.extend(&spec.asked);
            n_words += spec.asked.len() + CLASS_WORDS * n_classes(spec);
        }
        n_words = first_answer + padded(n_words - first_answer);
        let mut words = Words::default();
        let (mut laid_out, mut tables) = (Vec::new(), Vec::new());
        for part in parts(specs) {
            let n_slots = bucket(part.len());
            let (mut records, mut rows, mut unguided) = (Vec::new(), Vec::new(), Vec::new());
            let mut changes: Vec<[u32; CHANGE_WORDS]> = Vec::new();
            for (slot, (place, spec)) in (0..).zip(&part) {
                let table = spec.classes.as_ref().map(|classes| self.class_table(classes)).transpose()?;
                let address = table.as_ref().map_or(0, |table| table.address());
                tables.extend(table);
                let of_call = [*place, first_asked[*place], answers[*place]].map(|n| n as u32);
                let unguided_row = spec.guidance.map_or(NONE, |_| (n_slots + unguided.len()) as u32);
                records.extend(recipe_words(spec, of_call, unguided_row, address, n_out));
                rows.push(spec.row);
                unguided.extend(spec.guidance.map(|guidance| guidance.unguided_row));
                changes.extend(spec.changes.iter().map(|change| {
                    let [bias, repetition, penalty] =
                        [change.bias, change.repetition, change.penalty].map(f32::to_bits);
                    [slot, change.token, bias, repetition, penalty]
                }));
            }
            let n_rows = if unguided.is_empty() { n_slots } else { n_slots + bucket(unguided.len()) };
            rows.resize(n_slots, NONE);
            rows.extend(unguided);
            let n_changes = padded(changes.len());
            let conditions = part.iter().map(|(_, spec)| spec.conditions.unwrap_or(NONE));
            laid_out.push(Part {
                n_slots,
                n_rows,
                n_changes,
                specs_at: words.push(records, n_slots * SPEC_WORDS, NONE),
                rows_at: words.push(rows, n_rows, NONE),
                changes_at: words.push(changes.into_iter().flatten(), n_changes * CHANGE_WORDS, NONE),
                conditions_at: words.push(conditions, n_slots, NONE),
                class_stride: padded(part.iter().map(|(_, spec)| n_classes(spec)).max().unwrap_or(0)),
                specs: part.into_iter().map(|(_, spec)| spec).collect(),
            });
        }
        let n_asked = padded(asked.len());
        let asked_at = words.push(asked, n_asked, NONE);
        Ok(Plan { parts: laid_out, words, asked_at, n_words, answers, _tables: tables })
    }

    /// Changes the logits of a part as its specs say.
    fn settle(&self, part: &Part<'_>, lists: &Block, logits: &mut Tensor, soft_cap: Option<f32>) {
        let specs = Arg::Pointer(lists.address() + part.specs_at as u64);
        let n_out = logits.width;
        let is_tempered = |spec: &&ScoreSpec| spec.strategy_temperature != 1.0 || spec.guidance.is_some();
        if soft_cap.is_some() || part.specs.iter().any(is_tempered) {
            let grid = [n_out.div_ceil(TILE), part.n_slots, 1];
            let args = [specs, logits.write(), n_out.into(), soft_cap.unwrap_or(0.0).into()];
            self.launch("score_settle", grid, THREADS as u32, 0, &args);
        }
        if part.n_changes > 0 {
            let changes = Arg::Pointer(lists.address() + part.changes_at as u64);
            let grid = [part.n_changes.div_ceil(THREADS), 1, 1];
            let args = [changes, part.n_changes.into(), logits.write(), n_out.into()];
            self.launch("score_change", grid, THREADS as u32, 0, &args);
        }
    }

    /// Scores the changed logits of a part.
    fn score_part(
        &self,
        part: &Part<'_>,
        lists: &Block,
        asked_at: usize,
        logits: &Tensor,
        output: &Block,
    ) -> Result<(), StepError> {
        let n_out = logits.width;
        let n_tiles = n_out.div_ceil(TILE);
        let n_all = part.n_slots * n_tiles;
        let specs = Arg::Pointer(lists.address() + part.specs_at as u64);
        let by_tile = [n_tiles, part.n_slots, 1];
        let tiles = self.alloc(TILE_BYTES * n_all)?;
        let ranked = self.alloc(RANKED_BYTES * n_all)?;
        let args = [specs, logits.read(), n_out.into(), (&tiles).into(), (&ranked).into()];
        self.launch("score_tiles", by_tile, THREADS as u32, ROOM, &args);
        let cut = if part.specs.iter().any(|spec| spec.is_cut()) {
            let ids = self.alloc(4 * part.n_slots * n_out)?;
            let (masses, cuts) = (self.alloc(8 * n_all)?, self.alloc(CUT_BYTES * part.n_slots)?);
            self.queue().clear(masses.address(), 8 * n_all);
            let args = [specs, logits.read(), n_out.into(), (&tiles).into(), n_tiles.into()];
            let args = [&args[..], &[(&ids).into(), (&masses).into(), (&cuts).into()]].concat();
            self.launch("score_cut", [part.n_slots, 1, 1], CUT_THREADS, CUT_ROOM, &args);
            Some([masses, cuts])
        } else {
            None
        };
        let [masses, cuts] =
            cut.as_ref().map_or([Arg::NULL; 2], |blocks: &[Block; 2]| blocks.each_ref().map(Arg::from));
        let classes = if part.class_stride > 0 {
            let found = self.alloc(CLASS_BYTES * part.n_slots * part.class_stride)?;
            let args = [specs, logits.read(), n_out.into(), (&tiles).into(), n_tiles.into(), cuts];
            let args = [&args[..], &[(&found).into(), part.class_stride.into()]].concat();
            self.launch("score_classes", [part.class_stride, part.n_slots, 1], THREADS as u32, ROOM, &args);
            Some(found)
        } else {
            None
        };
        let classes = classes.as_ref().map_or(Arg::NULL, Arg::from);
        let asked = Arg::Pointer(lists.address() + asked_at as u64);
        let args = [
            &[specs, logits.read(), n_out.into(), (&tiles).into(), n_tiles.into(), (&ranked).into()][..],
            &[masses, cuts, classes, part.class_stride.into(), asked, output.into()],
        ];
        self.launch("score_finish", [part.n_slots, 1, 1], THREADS as u32, FINISH_ROOM, &args.concat());
        Ok(())
    }

    /// Classes on the device: where each ends among the tokens, and the tokens behind that.
    fn class_table(&self, classes: &Arc<Classes>) -> Result<Arc<Buffer>, StepError> {
        let mut tables = self.class_tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|(classes, _)| classes.strong_count() > 0);
        if let Some(place) = tables.iter().position(|(known, _)| known.as_ptr() == Arc::as_ptr(classes)) {
            // The last is the one that was used last.
            let known = tables.remove(place);
            let table = known.1.clone();
            tables.push(known);
            return Ok(table);
        }
        if tables.len() == MAX_CLASS_TABLES {
            tables.remove(0);
        }
        let mut words = Words::default();
        let (ends, tokens) = (classes.ends(), classes.all_tokens());
        words.push(ends.iter().chain(tokens).copied(), ends.len() + tokens.len(), 0);
        let bytes = words.bytes();
        let Some(table) = Buffer::new(&self.device, bytes.len())? else {
            let (needed, free) = (bytes.len() as u64, self.device.driver.memory()?.free);
            return Err(BatchError::OutOfMemory { needed, free }.into());
        };
        table.write(0, &bytes)?;
        let table = Arc::new(table);
        tables.push((Arc::downgrade(classes), table.clone()));
        Ok(table)
    }
}

impl Part<'_> {
    /// Whether its specs condition canvases: all do or none does.
    fn conditions(&self) -> bool {
        self.specs.iter().any(|spec| spec.conditions.is_some())
    }
}

/// A spec as the kernels read it. `of_call` are its place among all specs, the first of its tokens among all that are asked
/// for, and the first word of its answers.
fn recipe_words(
    spec: &ScoreSpec,
    of_call: [u32; 3],
    unguided_row: u32,
    class_ends: u64,
    n_out: usize,
) -> [u32; SPEC_WORDS] {
    let [place, first_asked, first_answer] = of_call;
    let (uniform, given) = match spec.draw {
        // Exact: a multiplication by a power of two.
        Draw::Uniform(uniform) => ((uniform * 2f64.powi(64)) as u64, NONE),
        Draw::Token(token) => (0, token),
    };
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let [class_low, class_high] = halves(class_ends);
    let [uniform_low, uniform_high] = halves(uniform);
    let score = match spec.score {
        Score::Probability => 0,
        Score::Margin => 1,
        Score::NegativeEntropy => 2,
    };
    [
        class_low,
        class_high,
        uniform_low,
        uniform_high,
        place,
        spec.vocabulary.n_sampleable.min(n_out) as u32,
        spec.vocabulary.mask_token_id.unwrap_or(NONE),
        u32::from(spec.is_greedy()),
        spec.inverse_temperature().to_bits(),
        spec.strategy_temperature.to_bits(),
        unguided_row,
        spec.guidance.map_or(0.0, |guidance| guidance.scale + 1.0).to_bits(),
        score,
        spec.n_ranked() as u32,
        spec.n_likeliest as u32,
        u32::from(spec.is_cut()),
        spec.top_k.unwrap_or(0),
        spec.top_p.unwrap_or(1.0).to_bits(),
        spec.min_p.unwrap_or(0.0).to_bits(),
        given,
        first_asked,
        spec.asked.len() as u32,
        n_classes(spec) as u32,
        first_answer,
    ]
}

/// The record of a spec and its answers, from the words of the output.
fn scored(spec: &ScoreSpec, place: usize, first_answer: usize, words: &[u32]) -> Option<RowScore> {
    let record = &words[place * RECORD_WORDS..(place + 1) * RECORD_WORDS];
    let (&[is_scored, token, confidence, score], likeliest) = record.split_first_chunk()?;
    if is_scored == 0 {
        return None;
    }
    let (tokens, probabilities) = likeliest.split_at(MAX_LIKELIEST);
    let mut likeliest = tokens.iter().zip(probabilities).map(|(token, p)| (*token, f32::from_bits(*p)));
    let (asked, classes) = words[first_answer..].split_at(spec.asked.len());
    let classes = classes.chunks_exact(CLASS_WORDS).take(n_classes(spec));
    Some(RowScore {
        token,
        confidence: f32::from_bits(confidence),
        score: f32::from_bits(score),
        likeliest: likeliest.next()?,
        // The kernel writes probability 0 after the last.
        runners_up: likeliest.take(spec.n_likeliest - 1).take_while(|(_, probability)| *probability > 0.0).collect(),
        log_probabilities: asked.iter().map(|log| f32::from_bits(*log)).collect(),
        classes: classes
            .map(|class| ClassScore {
                token: class[0],
                log_max: f32::from_bits(class[1]),
                log_sum: f32::from_bits(class[2]),
                drawn: class[3],
                log_drawn: f32::from_bits(class[4]),
                is_cut: class[5] != 0,
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::every_gpu;
    use crate::{Guidance, SampleableTokens};

    #[test]
    fn parts_have_each_recipe_once_and_rows_for_one_product() {
        let spec = |row: u32| ScoreSpec {
            guidance: row.is_multiple_of(5).then_some(Guidance { unguided_row: row, scale: 1.0 }),
            conditions: row.is_multiple_of(3).then_some(row),
            ..ScoreSpec::greedy(row, SampleableTokens::default())
        };
        for n in [0, 1, 64, 65, 300] {
            let specs: Vec<ScoreSpec> = (0..n).map(spec).collect();
            let parts = parts(&specs);
            let mut places: Vec<usize> = parts.iter().flatten().map(|(place, _)| *place).collect();
            places.sort_unstable();
            assert_eq!(places, (0..specs.len()).collect::<Vec<_>>());
            for part in &parts {
                assert!((1..=MAX_ROWS).contains(&part.iter().map(|(_, spec)| n_rows(spec)).sum()));
                let conditions = part.iter().filter(|(_, spec)| spec.conditions.is_some()).count();
                assert!(conditions == 0 || conditions == part.len());
            }
            // Both kinds have a part that is not full, at most.
            let n_rows: usize = specs.iter().map(n_rows).sum();
            assert!(parts.len() <= n_rows / (MAX_ROWS - 1) + 2, "{} parts of {n_rows} rows", parts.len());
        }
    }

    #[test]
    fn a_table_of_classes_is_uploaded_once_and_leaves_with_the_classes() {
        let Some(ops) = every_gpu() else { return };
        let classes = |n_classes| Arc::new(Classes::new(&[1; 100], n_classes));
        let (first, second) = (classes(2), classes(3));
        let table = ops.class_table(&first).unwrap();
        let other = ops.class_table(&second).unwrap();
        assert!(Arc::ptr_eq(&table, &ops.class_table(&first).unwrap()));
        assert!(!Arc::ptr_eq(&table, &other));
        let weak = Arc::downgrade(&table);
        drop((first, table));
        ops.class_table(&second).unwrap();
        assert_eq!(weak.strong_count(), 0);
        // Those that were not used for the longest time make room.
        let many: Vec<_> = (0..MAX_CLASS_TABLES).map(|_| classes(2)).collect();
        let tables: Vec<_> = many
            .iter()
            .map(|classes| {
                assert!(Arc::ptr_eq(&other, &ops.class_table(&second).unwrap()));
                Arc::downgrade(&ops.class_table(classes).unwrap())
            })
            .collect();
        assert_eq!([0, 1].map(|place: usize| tables[place].strong_count()), [0, 1]);
        assert_eq!(ops.class_tables.lock().unwrap().len(), MAX_CLASS_TABLES);
    }
}
