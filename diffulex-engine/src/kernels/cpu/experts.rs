//! Routed experts, an expert at a time over the rows that chose it.
//!
//! Weights of an expert are read once a forward, however many rows it has. A row adds up its experts in ascending
//! order, so its result does not depend on the rows beside it.

use super::linear::linears;
use super::packed::PackedMatrix;
use super::threads::Pool;
use super::{Rows, Simd, activate};
use crate::kernels::GatedMlp;
use crate::kernels::routing::Choice;

pub(super) fn experts(
    pool: &Pool,
    simd: Simd,
    x: &Rows,
    choices: &[Vec<Choice>],
    experts: &[GatedMlp<PackedMatrix>],
) -> Rows {
    let mut rows_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts.len()];
    for (row, choices) in choices.iter().enumerate() {
        for choice in choices {
            rows_of[choice.expert].push((row, choice.weight));
        }
    }
    let chosen: Vec<usize> = (0..experts.len()).filter(|expert| !rows_of[*expert].is_empty()).collect();
    // Regions of products inside these run on the thread that has the expert.
    let results = pool.map(chosen.len(), |index| {
        let (expert, rows) = (&experts[chosen[index]], &rows_of[chosen[index]]);
        let mut inputs = x.scratch(rows.len(), x.width());
        for (place, (row, _)) in rows.iter().enumerate() {
            inputs.row_mut(place).copy_from_slice(x.row(*row));
        }
        let [mut gate, up] = linears(pool, simd, &inputs, [(&expert.gate, None), (&expert.up, None)]);
        activate(simd, gate.values_mut(), up.values(), expert.activation);
        let [down] = linears(pool, simd, &gate, [(&expert.down, None)]);
        down
    });
    let mut out = x.scratch(x.n_rows(), x.width());
    out.values_mut().fill(0.0);
    for (expert, result) in chosen.iter().zip(&results) {
        for (place, (row, weight)) in rows_of[*expert].iter().enumerate() {
            for (sum, value) in out.row_mut(*row).iter_mut().zip(result.row(place)) {
                *sum += weight * value;
            }
        }
    }
    out
}
