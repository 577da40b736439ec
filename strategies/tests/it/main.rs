//! The strategies from outside: what they declare, when blocks open, and what a step does with given candidates.

mod harness;
mod opening;
mod requirements;
mod rules;
mod settings;
mod steps;
