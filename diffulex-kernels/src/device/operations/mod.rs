//! The launches of each operation.

pub(crate) mod attention;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod product;
pub(crate) mod rows;
pub(crate) mod score;

#[cfg(test)]
mod headers_tests;
