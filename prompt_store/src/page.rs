//! What a page is, whether it is written or read.

use crate::name::Name;

/// What a page is beside its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    pub name: Name,
    /// Of the page before it.
    pub before: Name,
    /// How many are before it.
    pub index: u32,
    pub tokens: &'a [u32],
}

/// The memory of a page was taken back from whoever reads or writes the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawn;

/// Memory of a page's runs. A drive may not answer for as long as it likes, so nothing here is lent
/// to a call into the system: bytes are copied, and the memory's owner may withdraw it in between.
pub trait PageMemory {
    /// Bytes of each run, in the order in which they are stored.
    fn run_sizes_bytes(&self) -> Vec<usize>;

    /// Copies a run to `buffer`, which has its size.
    ///
    /// # Errors
    /// Memory that was withdrawn.
    fn copy_out(&mut self, run: usize, buffer: &mut [u8]) -> Result<(), Withdrawn>;

    /// Copies `buffer` to a run, which has its size.
    ///
    /// # Errors
    /// Memory that was withdrawn, to which nothing is copied.
    fn copy_in(&mut self, run: usize, buffer: &[u8]) -> Result<(), Withdrawn>;
}
