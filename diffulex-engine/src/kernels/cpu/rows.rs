//! Activations on the CPU.

/// f32 values `[n_rows, width]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    values: Vec<f32>,
    width: usize,
}

impl Rows {
    /// All zero.
    pub fn zeros(n_rows: usize, width: usize) -> Self {
        Self { values: vec![0.0; n_rows * width], width }
    }

    /// From row-major values; `width` divides their number.
    pub fn new(values: Vec<f32>, width: usize) -> Self {
        debug_assert_eq!(values.len() % width, 0);
        Self { values, width }
    }

    /// How many rows.
    pub fn n_rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..(row + 1) * self.width]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.width..(row + 1) * self.width]
    }

    /// All rows.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All rows, to write.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}
