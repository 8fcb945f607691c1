//! What cuFile keeps: files and memory that programs registered.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::RawFd;

/// Begins handles, which no other pointer is mistaken for.
const FIRST_HANDLE: usize = 0xc0f1_1e00;

#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// The driver is open.
    pub(crate) is_open: bool,
    files: BTreeMap<usize, RawFd>,
    memory: BTreeSet<usize>,
    handles: usize,
    /// Reads so far.
    pub(crate) reads: u64,
    /// What was read and is not visible yet, by address.
    pub(crate) late: Vec<(usize, Vec<u8>)>,
}

impl Direct {
    /// A handle for a descriptor.
    pub(crate) fn register_file(&mut self, number: RawFd) -> usize {
        let handle = FIRST_HANDLE + self.handles;
        self.handles += 1;
        self.files.insert(handle, number);
        handle
    }

    pub(crate) fn deregister_file(&mut self, handle: usize) {
        self.files.remove(&handle);
    }

    /// The descriptor of a handle.
    pub(crate) fn file(&self, handle: usize) -> Option<RawFd> {
        self.files.get(&handle).copied()
    }

    /// False where it is registered already.
    pub(crate) fn register_memory(&mut self, base: usize) -> bool {
        self.memory.insert(base)
    }

    /// False where it was not registered.
    pub(crate) fn deregister_memory(&mut self, base: usize) -> bool {
        self.memory.remove(&base)
    }
}
