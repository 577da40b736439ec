//! A launch, and its arguments.

/// A launch.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'static str,
    pub(crate) grid: [usize; 3],
    pub(crate) args: &'a [u64],
}

impl Call<'_> {
    /// An integer.
    pub(crate) fn int(&self, arg: usize) -> usize {
        self.args[arg] as usize
    }

    /// A float.
    pub(crate) fn float(&self, arg: usize) -> f32 {
        f32::from_bits(self.args[arg] as u32)
    }

    /// Address of row `row`, of `width` words, of the array at an argument.
    pub(crate) fn at(&self, arg: usize, row: usize, width: usize) -> u64 {
        self.args[arg] + (4 * row * width) as u64
    }
}
