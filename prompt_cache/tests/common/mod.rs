//! Memory of pages for tests.

use prompt_cache::{MemoryWithdrawn, PageMemory};

/// Runs of a page, and the number of copies after which they are withdrawn.
pub struct Memory(pub Vec<Vec<u8>>, pub usize);

impl Memory {
    fn copies(&mut self) -> Result<(), MemoryWithdrawn> {
        self.1 = self.1.checked_sub(1).ok_or(MemoryWithdrawn)?;
        Ok(())
    }
}

impl PageMemory for Memory {
    fn run_sizes_bytes(&self) -> Vec<usize> {
        self.0.iter().map(Vec::len).collect()
    }

    fn copy_out(&mut self, run: usize, buffer: &mut [u8]) -> Result<(), MemoryWithdrawn> {
        self.copies()?;
        buffer.copy_from_slice(&self.0[run]);
        Ok(())
    }

    fn copy_in(&mut self, run: usize, buffer: &[u8]) -> Result<(), MemoryWithdrawn> {
        self.copies()?;
        self.0[run].copy_from_slice(buffer);
        Ok(())
    }
}
