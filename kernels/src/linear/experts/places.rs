//! Experts anywhere in one memory.

use std::marker::PhantomData;

use model::quantized_format::WeightFormat;

/// Places of experts that are not stored one after the other, in bytes from the first byte of the
/// weights, by expert. Those of experts without rows have no meaning.
#[derive(Debug, Clone, Copy)]
pub struct ExpertPlaces<'a> {
    pub matrices: &'a [usize],
    /// Biases, `[n]` each, if the linear has them.
    pub biases: Option<&'a [usize]>,
}

/// Memory with the matrices of experts at places, of which others may write what no included expert
/// occupies.
#[derive(Debug, Clone, Copy)]
pub struct SharedExperts<'a> {
    pub(super) format: WeightFormat,
    pub(super) first: *const u8,
    pub(super) len_bytes: usize,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> SharedExperts<'a> {
    /// Describes `len_bytes` bytes from `first`, with matrices in `format`.
    ///
    /// # Safety
    /// The bytes are mapped as long as the value exists, and nothing writes to the matrices and
    /// biases of experts that a call includes until it returns.
    pub const unsafe fn new(
        format: WeightFormat,
        first: *const u8,
        len_bytes: usize,
    ) -> SharedExperts<'a> {
        SharedExperts { format, first, len_bytes, lifetime: PhantomData }
    }
}
