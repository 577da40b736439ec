//! Scoring and sampling.

pub(crate) mod classes;
pub(crate) mod cut;
pub(crate) mod findings;
pub(crate) mod scoring;
pub(crate) mod summary;
