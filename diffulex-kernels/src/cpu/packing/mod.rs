//! Storage of weights: aligned memory, panels of outputs, integers with their scales.

pub(crate) mod aligned;
pub(crate) mod groups;
pub(crate) mod matrix;
pub(crate) mod panels;
