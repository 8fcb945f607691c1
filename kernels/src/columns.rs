//! Rows of which a call accesses only some columns: those of its units, or of a part of a linear.

use std::marker::PhantomData;

/// `[rows, n]` to write to or to read from. Other threads may write other columns of the same rows
/// concurrently, so there is never a slice of it.
#[derive(Debug)]
pub struct Columns<'a, T> {
    first: *mut T,
    len: usize,
    rows: PhantomData<&'a mut [T]>,
}

impl<T> Columns<'_, T> {
    /// Creates the columns of `len` elements starting at `first`.
    ///
    /// # Safety
    /// The elements are mapped and initialised for as long as the value lives, and no other code
    /// writes the columns that a call is given, or accesses those that it writes.
    pub const unsafe fn new(first: *mut T, len: usize) -> Self {
        Columns { first, len, rows: PhantomData }
    }

    /// Returns the number of elements of all rows.
    #[allow(clippy::len_without_is_empty)] // A length to check, of something nobody iterates.
    pub const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn first(&self) -> *mut T {
        self.first
    }
}

impl<'a, T> From<&'a mut [T]> for Columns<'a, T> {
    fn from(rows: &'a mut [T]) -> Self {
        Columns { first: rows.as_mut_ptr(), len: rows.len(), rows: PhantomData }
    }
}

impl<'a, T> From<&'a mut Vec<T>> for Columns<'a, T> {
    fn from(rows: &'a mut Vec<T>) -> Self {
        rows.as_mut_slice().into()
    }
}
