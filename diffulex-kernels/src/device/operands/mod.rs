//! Operands of kernels on the device: weights, activations, and the lists of a step.

pub(crate) mod launches;
pub(crate) mod matrix;
pub(crate) mod padding;
pub(crate) mod rotation;
pub(crate) mod step;
pub(crate) mod tensor;
pub(crate) mod tiles;
pub(crate) mod words;
