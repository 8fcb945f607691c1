//! Queues of work, and selection of the work that can run.
//!
//! Streams share the device's few channels. A channel is one queue: its first entry blocks all
//! others in it, even those of other streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shm::sync::{AtomicU32, Ordering};

use crate::settings::settings;
use crate::turn_taking::TurnTaking;

#[derive(Debug)]
pub(crate) enum QueuedWork {
    Copy {
        to: usize,
        from: usize,
        size_bytes: usize,
    },
    /// A copy from pageable memory, whose bytes are copied when the call is made.
    CopyBytes {
        to: usize,
        bytes: Vec<u8>,
    },
    Fill {
        to: usize,
        byte: u8,
        size_bytes: usize,
    },
    Launch(QueuedLaunch),
    Product(QueuedProduct),
    /// A kernel that never ends.
    Hang,
    Record {
        event: usize,
        mark: u64,
    },
    /// Waits until `word - value` is not negative.
    Wait {
        word: usize,
        value: u32,
    },
}

#[derive(Debug)]
pub(crate) struct QueuedLaunch {
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// Bytes of each parameter, in words so that any type is aligned.
    pub(crate) parameters: Vec<Vec<u64>>,
}

/// `d = b · aᵀ` in f32, `b` bf16 `[rows, k]` and `a` bf16 `[n, k]`.
#[derive(Debug)]
pub(crate) struct QueuedProduct {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) d: usize,
    pub(crate) rows: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

#[derive(Debug, Default)]
pub(crate) struct EventState {
    /// Number of times that the event was recorded, and the last of these that a stream has passed.
    records: u64,
    pub(crate) passed: u64,
    pub(crate) passed_ns: u64,
}

/// A stream that has not been destroyed.
#[derive(Debug)]
struct StreamState {
    /// Index of its channel.
    channel: usize,
    /// Number of its entries in the channel.
    queued: usize,
}

#[derive(Debug)]
pub(crate) struct StreamTable {
    /// Streams, by handle.
    streams: BTreeMap<usize, StreamState>,
    /// Work with its stream, in the order in which it was enqueued.
    channels: Vec<VecDeque<(usize, QueuedWork)>>,
    pub(crate) events: BTreeMap<usize, EventState>,
    next_handle: usize,
    /// Number of streams created so far: channels are assigned round-robin.
    created: usize,
    random: u64,
    /// Streams that have run any work.
    started_streams: BTreeSet<usize>,
    turns: Option<TurnTaking>,
}

impl Default for StreamTable {
    fn default() -> StreamTable {
        let random = settings().seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        StreamTable {
            streams: BTreeMap::new(),
            channels: (0..settings().channels).map(|_| VecDeque::new()).collect(),
            events: BTreeMap::new(),
            next_handle: 16,
            created: 0,
            random,
            started_streams: BTreeSet::new(),
            turns: settings().turns.as_deref().map(TurnTaking::new),
        }
    }
}

impl StreamTable {
    /// Returns a pseudo-random number below `bound`.
    pub(crate) fn random_index(&mut self, bound: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % bound.max(1)
    }

    fn handle(&mut self) -> usize {
        self.next_handle += 16;
        self.next_handle
    }

    pub(crate) fn create(&mut self) -> usize {
        let handle = self.handle();
        let channel = self.created % self.channels.len();
        self.created += 1;
        self.streams.insert(handle, StreamState { channel, queued: 0 });
        handle
    }

    pub(crate) fn has(&self, stream: usize) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Destroys a stream. Work that is still queued is lost, since the stand-in runs nothing in the
    /// background.
    pub(crate) fn destroy(&mut self, stream: usize) -> bool {
        let Some(found) = self.streams.remove(&stream) else { return false };
        self.channels[found.channel].retain(|(of, _)| *of != stream);
        true
    }

    pub(crate) fn is_empty(&self, stream: usize) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.queued == 0)
    }

    /// Returns true if no stream has work.
    pub(crate) fn is_idle(&self) -> bool {
        self.channels.iter().all(VecDeque::is_empty)
    }

    /// Returns true if the channel of a stream cannot accept more work for now.
    pub(crate) fn is_full(&self, stream: usize) -> bool {
        let channel = self.streams.get(&stream).map(|stream| &self.channels[stream.channel]);
        channel.is_some_and(|queue| queue.len() >= settings().queue_entries)
    }

    /// Adds work to a stream; returns false if there is no such stream.
    pub(crate) fn push(&mut self, stream: usize, work: QueuedWork) -> bool {
        let Some(found) = self.streams.get_mut(&stream) else { return false };
        found.queued += 1;
        self.channels[found.channel].push_back((stream, work));
        true
    }

    pub(crate) fn create_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, EventState::default());
        handle
    }

    pub(crate) fn destroy_event(&mut self, event: usize) -> bool {
        self.events.remove(&event).is_some()
    }

    /// Returns the work of recording an event on a stream.
    pub(crate) fn mark(&mut self, event: usize) -> Option<QueuedWork> {
        let found = self.events.get_mut(&event)?;
        found.records += 1;
        Some(QueuedWork::Record { event, mark: found.records })
    }

    /// Returns true if the last recording of the event has been passed; `None` if there is no such
    /// event.
    pub(crate) fn is_passed(&self, event: usize) -> Option<bool> {
        self.events.get(&event).map(|event| event.passed == event.records)
    }

    /// Returns the time at which the event was passed; `None` if it was not.
    pub(crate) fn passed_ns(&self, event: usize) -> Option<u64> {
        let event = self.events.get(&event)?;
        (event.records > 0 && event.passed == event.records).then_some(event.passed_ns)
    }

    /// Returns the channels whose first entry can run now.
    pub(crate) fn ready(&mut self) -> Vec<usize> {
        let first = |channel: &usize| self.channels[*channel].front();
        let is_ready = |channel: &usize| match first(channel) {
            None | Some((_, QueuedWork::Hang)) => false,
            Some((_, QueuedWork::Wait { word, value })) => is_reached(*word, *value),
            Some(_) => true,
        };
        let mut found: Vec<usize> = (0..self.channels.len()).filter(is_ready).collect();
        if let Some(turns) = &mut self.turns {
            let waits = |queue: &VecDeque<(usize, QueuedWork)>| match queue.front() {
                Some((_, QueuedWork::Wait { word, value })) => !is_reached(*word, *value),
                _ => false,
            };
            turns.announce(self.channels.iter().any(waits));
            let has_begun = |channel: &usize| {
                let first = self.channels[*channel].front();
                first.is_some_and(|(stream, _)| self.started_streams.contains(stream))
            };
            if !found.iter().all(has_begun) && turns.another_process_waits() {
                found.retain(has_begun);
            }
        }
        found
    }

    /// Removes the first entry of a channel to run it.
    pub(crate) fn take(&mut self, channel: usize) -> Option<QueuedWork> {
        let (stream, work) = self.channels[channel].pop_front()?;
        if let Some(found) = self.streams.get_mut(&stream) {
            found.queued -= 1;
        }
        if !matches!(work, QueuedWork::Wait { .. }) {
            self.started_streams.insert(stream);
        }
        Some(work)
    }
}

/// Returns true if `word - value` is not negative.
pub(crate) fn is_reached(word: usize, value: u32) -> bool {
    // SAFETY: needed to read a word that other processes write. The range was checked when the wait
    // was queued, and a program keeps it until the stream is done.
    let word = unsafe { AtomicU32::from_ptr(word as *mut u32) };
    word.load(Ordering::Acquire).wrapping_sub(value).cast_signed() >= 0
}
