//! Durations of a report, summed up.

use serde::Serialize;

/// Nanoseconds as milliseconds.
pub(super) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// Their sum.
    pub total_ms: f64,
    /// Their mean.
    pub avg_ms: f64,
    /// Their median.
    pub p50_ms: f64,
    /// 95 % of them are shorter.
    pub p95_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Summary {
    /// `None` of nothing.
    pub(super) fn of(mut ms: Vec<f64>) -> Option<Self> {
        ms.sort_by(f64::total_cmp);
        let (total_ms, max_ms) = (ms.iter().sum::<f64>(), *ms.last()?);
        Some(Self {
            count: ms.len(),
            total_ms,
            avg_ms: total_ms / ms.len() as f64,
            p50_ms: percentile(&ms, 0.5),
            p95_ms: percentile(&ms, 0.95),
            max_ms,
        })
    }
}

/// Interpolated between the two nearest of `sorted`, which has one at least.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}
