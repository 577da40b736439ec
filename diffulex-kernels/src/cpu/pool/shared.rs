//! Values that tasks write together, each its own.

use std::marker::PhantomData;

/// Some values. Tasks write them, and their owner reads them when the tasks have ended.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    values: PhantomData<&'a mut [T]>,
}

// SAFETY: values are only written, by tasks that vouch that nobody else writes the same ones.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Copy> Shared<'a, T> {
    pub(crate) fn new(values: &'a mut [T]) -> Self {
        Self { start: values.as_mut_ptr(), len: values.len(), values: PhantomData }
    }

    /// Writes `values` from `place` on.
    ///
    /// # Safety
    /// No other task writes any of these.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, place: usize, values: &[T]) {
        assert!(place <= self.len && values.len() <= self.len - place);
        // SAFETY: inside the memory, which is borrowed for as long as this lives; the caller vouches for the rest.
        unsafe { self.start.add(place).copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }

    /// [`Self::write`] for a number of values that the compiler knows, which then takes no call.
    ///
    /// # Safety
    /// No other task writes any of these.
    #[inline(always)]
    pub(crate) unsafe fn write_array<const N: usize>(&self, place: usize, values: [T; N]) {
        assert!(place <= self.len && N <= self.len - place);
        // SAFETY: as above.
        unsafe { self.start.add(place).cast::<[T; N]>().write(values) };
    }
}
