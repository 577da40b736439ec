//! Routed experts, an expert at a time over the rows that chose it.
//!
//! Weights of an expert are read once a forward, however many rows it has. A row adds up its experts in ascending
//! order, so its result does not depend on the rows beside it.

use rayon::prelude::*;

use super::linear::{PackedMatrix, linear};
use super::{Rows, Simd, activate};
use crate::kernels::GatedMlp;
use crate::kernels::routing::Choice;

pub(super) fn experts(simd: Simd, x: &Rows, choices: &[Vec<Choice>], experts: &[GatedMlp<PackedMatrix>]) -> Rows {
    let mut rows_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts.len()];
    for (row, choices) in choices.iter().enumerate() {
        for choice in choices {
            rows_of[choice.expert].push((row, choice.weight));
        }
    }
    let results: Vec<Option<Rows>> = experts
        .par_iter()
        .zip(&rows_of)
        .map(|(expert, rows)| {
            if rows.is_empty() {
                return None;
            }
            let mut inputs = x.zeros(rows.len(), x.width());
            for (place, (row, _)) in rows.iter().enumerate() {
                inputs.row_mut(place).copy_from_slice(x.row(*row));
            }
            let mut gate = linear(simd, &inputs, &expert.gate, None);
            let up = linear(simd, &inputs, &expert.up, None);
            activate(simd, &mut gate, &up, expert.activation);
            Some(linear(simd, &gate, &expert.down, None))
        })
        .collect();
    let mut out = x.zeros(x.n_rows(), x.width());
    for (rows, result) in rows_of.iter().zip(&results) {
        let Some(result) = result else { continue };
        for (place, (row, weight)) in rows.iter().enumerate() {
            for (sum, value) in out.row_mut(*row).iter_mut().zip(result.row(place)) {
                *sum += weight * value;
            }
        }
    }
    out
}
