//! The interface for pages to be read or written.

use crate::page_hash::PageHash;

/// Identity of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageKey<'a> {
    pub name: PageHash,
    /// Name of the previous page.
    pub previous: PageHash,
    /// Number of pages before it in the prompt.
    pub index: u32,
    pub tokens: &'a [u32],
}

/// The owner of a page's memory has withdrawn it from the reader or writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryWithdrawn;

/// Memory of a page's runs. A drive may take any time to respond, so this memory is never passed to
/// a system call: bytes are copied, and the owner may withdraw the memory between two copies.
pub trait PageMemory {
    /// Returns the size of each run, in the order in which runs are stored.
    fn run_sizes_bytes(&self) -> Vec<usize>;

    /// Copies a run to `buffer`, which has the run's size.
    ///
    /// # Errors
    /// Fails if the memory was withdrawn.
    fn copy_out(&mut self, run: usize, buffer: &mut [u8]) -> Result<(), MemoryWithdrawn>;

    /// Copies `buffer`, which has the run's size, to a run.
    ///
    /// # Errors
    /// Fails if the memory was withdrawn; nothing is copied then.
    fn copy_in(&mut self, run: usize, buffer: &[u8]) -> Result<(), MemoryWithdrawn>;
}
