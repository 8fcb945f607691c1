//! State of cuFile: the files and memory that programs registered.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;

/// First handle; distinct from any other pointer.
const FIRST_HANDLE: usize = 0xc0f1_1e00;

#[derive(Debug, Default)]
pub(crate) struct CuFileState {
    /// True if the driver is open.
    pub(crate) is_open: bool,
    files: BTreeMap<usize, RawFd>,
    memory: BTreeSet<usize>,
    handles: usize,
    /// Number of reads so far.
    pub(crate) reads: u64,
    /// Bytes that were read and are not visible yet, by address.
    pub(crate) invisible_writes: Vec<(usize, Vec<u8>)>,
}

impl CuFileState {
    /// Returns a new handle for a descriptor.
    pub(crate) fn register_file(&mut self, number: RawFd) -> usize {
        let handle = FIRST_HANDLE + self.handles;
        self.handles += 1;
        self.files.insert(handle, number);
        handle
    }

    pub(crate) fn deregister_file(&mut self, handle: usize) {
        self.files.remove(&handle);
    }

    /// Returns the descriptor of a handle.
    pub(crate) fn file(&self, handle: usize) -> Option<RawFd> {
        self.files.get(&handle).copied()
    }

    /// Registers memory; returns false if it is registered already.
    pub(crate) fn register_memory(&mut self, base: usize) -> bool {
        self.memory.insert(base)
    }

    /// Deregisters memory; returns false if it was not registered.
    pub(crate) fn deregister_memory(&mut self, base: usize) -> bool {
        self.memory.remove(&base)
    }
}
