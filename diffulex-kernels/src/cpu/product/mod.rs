//! Matrix products: loops over tiles of rows and panels, of floats and of integers.

pub(crate) mod integer;
pub(crate) mod linear;
pub(crate) mod lines;
pub(crate) mod output;
pub(crate) mod tiles;
