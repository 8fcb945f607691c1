//! Checkpoints of sequences at the ends of pages.
//!
//! A checkpoint belongs to the contents of a page and is evicted with them. If there are more
//! checkpoints to take than there is memory for, the least recently used one is replaced.

use std::collections::HashMap;

/// State of a checkpoint's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Free,
    /// Planned for a running sequence, which may write it at any time.
    Reserved,
    /// Belongs to the page contents with this name.
    Taken {
        name: u64,
        /// Number of slots that it is being copied to.
        readers: u32,
        last_use: u64,
    },
    /// Its contents were evicted while it is being copied.
    Evicted {
        readers: u32,
    },
}

/// The checkpoints of a batch, by number.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckpointPool {
    entries: Vec<Entry>,
    by_name: HashMap<u64, u32>,
    clock: u64,
}

impl CheckpointPool {
    pub(super) fn new(count: u32) -> CheckpointPool {
        CheckpointPool { entries: vec![Entry::Free; count as usize], ..CheckpointPool::default() }
    }

    /// Reserves memory for a checkpoint, evicting the least recently used one if necessary. Returns
    /// `None` if all are reserved or being copied.
    pub(super) fn reserve(&mut self) -> Option<u32> {
        let age = |entry: &Entry| match entry {
            Entry::Free => Some(0),
            Entry::Taken { readers: 0, last_use, .. } => Some(1 + *last_use),
            Entry::Taken { .. } | Entry::Reserved | Entry::Evicted { .. } => None,
        };
        let ages = self.entries.iter().enumerate();
        let (number, _) = ages
            .filter_map(|(number, entry)| Some((number, age(entry)?)))
            .min_by_key(|(_, age)| *age)?;
        if let Entry::Taken { name, .. } = self.entries[number] {
            self.by_name.remove(&name);
        }
        self.entries[number] = Entry::Reserved;
        Some(number as u32)
    }

    /// Records that a reserved checkpoint was taken at the end of the page with contents `name`.
    pub(super) fn record(&mut self, number: u32, name: u64) {
        self.entries[number as usize] = Entry::Free;
        if let Some(same) = self.by_name.get(&name).copied() {
            // Two sequences took it concurrently; the first one is kept.
            self.mark_used(same);
            return;
        }
        self.by_name.insert(name, number);
        self.entries[number as usize] = Entry::Taken { name, readers: 0, last_use: 0 };
        self.mark_used(number);
    }

    /// Returns a reserved checkpoint that was not taken.
    pub(super) fn cancel(&mut self, number: u32) {
        self.entries[number as usize] = Entry::Free;
    }

    /// Returns the checkpoint of the page contents `name`.
    pub(super) fn find(&self, name: u64) -> Option<u32> {
        self.by_name.get(&name).copied()
    }

    /// Marks a checkpoint as being copied to a slot.
    pub(super) fn acquire(&mut self, number: u32) {
        if let Entry::Taken { readers, .. } = &mut self.entries[number as usize] {
            *readers += 1;
        }
        self.mark_used(number);
    }

    /// Records that a checkpoint was copied to a slot.
    pub(super) fn release(&mut self, number: u32) {
        match &mut self.entries[number as usize] {
            Entry::Taken { readers, .. } => *readers -= 1,
            Entry::Evicted { readers: 1 } => self.entries[number as usize] = Entry::Free,
            Entry::Evicted { readers } => *readers -= 1,
            Entry::Free | Entry::Reserved => {}
        }
    }

    /// Evicts the checkpoint of the page contents `name`, if there is one.
    pub(super) fn evict(&mut self, name: u64) {
        let Some(number) = self.by_name.remove(&name) else { return };
        let entry = &mut self.entries[number as usize];
        *entry = match *entry {
            Entry::Taken { readers, .. } if readers > 0 => Entry::Evicted { readers },
            _ => Entry::Free,
        };
    }

    /// Returns the number of checkpoints that were taken and are kept.
    pub(super) fn taken(&self) -> usize {
        self.by_name.len()
    }

    fn mark_used(&mut self, number: u32) {
        self.clock += 1;
        if let Entry::Taken { last_use, .. } = &mut self.entries[number as usize] {
            *last_use = self.clock;
        }
    }
}
