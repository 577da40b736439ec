//! Routed experts, an expert at a time over the rows that chose it.
//!
//! Weights of an expert are read once a forward, however many rows it has. A row adds up its experts in ascending
//! order, so its result does not depend on the rows beside it.

use crate::GatedMlp;
use crate::cpu::isa::simd::Simd;
use crate::cpu::pool::threads::Pool;
use crate::cpu::product::linear::linears;
use crate::cpu::rows::Rows;
use crate::cpu::state::CpuOps;
use crate::routing::Routing;

/// The experts of a layer.
pub struct CpuExperts {
    pub(crate) mlps: Vec<GatedMlp<CpuOps>>,
    pub(crate) routing: Routing,
}

impl CpuExperts {
    /// The weighted sum of the experts that each row is routed to by `logits`.
    pub(crate) fn apply(&self, pool: &Pool, simd: Simd, x: &Rows, logits: &Rows) -> Rows {
        let mut rows_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.mlps.len()];
        for row in 0..x.n_rows() {
            for choice in self.routing.choose(logits.row(row)) {
                rows_of[choice.expert].push((row, choice.weight));
            }
        }
        let chosen: Vec<usize> = (0..self.mlps.len()).filter(|expert| !rows_of[*expert].is_empty()).collect();
        // Regions of products inside these run on the thread that has the expert.
        let results = pool.map(chosen.len(), |index| {
            let (GatedMlp { gate_up, down, activation }, rows) = (&self.mlps[chosen[index]], &rows_of[chosen[index]]);
            let mut inputs = x.scratch(rows.len(), x.width());
            for (place, (row, _)) in rows.iter().enumerate() {
                inputs.row_mut(place).copy_from_slice(x.row(*row));
            }
            let gate_up = gate_up.each_ref().map(|(weight, bias)| (weight, bias.as_deref()));
            let [mut gate, up] = linears(pool, simd, &inputs, gate_up);
            simd.activate(gate.values_mut(), up.values(), *activation);
            let [down] = linears(pool, simd, &gate, [(down, None)]);
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
}
