//! The gated MLP, whole or as one of many experts.

use super::Ops;
use crate::error::StepError;

/// Activation function of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// `down(activation(gate(x)) * up(x))`, with matrices on a device.
pub struct GatedMlp<O: Ops> {
    /// Gate and up, `[intermediate, hidden]` each, without bias.
    pub gate_up: O::Group<2>,
    /// `[hidden, intermediate]`.
    pub down: O::Matrix,
    /// Function on the gate.
    pub activation: Activation,
}

impl<O: Ops> GatedMlp<O> {
    /// The MLP of every row.
    pub fn apply(&self, ops: &O, x: &O::Tensor) -> Result<O::Tensor, StepError> {
        let [gate, up] = ops.linear_group(x, &self.gate_up)?;
        ops.linear(&ops.gate(gate, &up, self.activation)?, &self.down, None)
    }
}
