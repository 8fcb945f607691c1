//! Experts anywhere in one memory.

/// Places of experts that are not stored one after the other, in bytes from the first byte of the
/// weights, by expert. Those of experts without rows have no meaning.
#[derive(Debug, Clone, Copy)]
pub struct ExpertPlaces<'a> {
    pub matrices: &'a [usize],
    /// Biases, `[n]` each, if the linear has them.
    pub biases: Option<&'a [usize]>,
}
