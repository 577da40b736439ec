//! Recipes: a plan becomes the rows of a forward, each masked row with a recipe, and its scores become candidates.
//!
//! Never here: tensors, pages, edits.

pub mod batch;
pub mod constrained;
pub(crate) mod logit_changes;
pub mod randomness;
pub mod recipes;
