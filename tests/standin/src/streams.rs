//! Queues of work, and what of it could run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shm::sync::{AtomicU32, Ordering};

use crate::settings::settings;
use crate::turns::Turns;

#[derive(Debug)]
pub(crate) enum Work {
    Copy {
        to: usize,
        from: usize,
        size_bytes: usize,
    },
    /// A copy whose source was pageable: such bytes are taken when the call is made.
    Place {
        to: usize,
        bytes: Vec<u8>,
    },
    Fill {
        to: usize,
        byte: u8,
        size_bytes: usize,
    },
    Launch(Launch),
    Product(Product),
    /// A kernel that never ends.
    Hang,
    Record {
        event: usize,
        mark: u64,
    },
    /// Until `word - value` is not negative.
    Wait {
        word: usize,
        value: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) name: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// Each parameter's bytes, in words so that any type is aligned.
    pub(crate) parameters: Vec<Vec<u64>>,
}

/// `d = b · aᵀ` in f32, `b` bf16 `[rows, k]` and `a` bf16 `[n, k]`.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) d: usize,
    pub(crate) rows: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Event {
    /// Marks made so far, and the last one that a stream has passed.
    made: u64,
    pub(crate) passed: u64,
    pub(crate) passed_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Streams {
    /// By handle.
    pub(crate) queues: BTreeMap<usize, VecDeque<Work>>,
    pub(crate) events: BTreeMap<usize, Event>,
    next_handle: usize,
    random: u64,
    /// Streams that have run something.
    begun: BTreeSet<usize>,
    turns: Option<Turns>,
}

impl Default for Streams {
    fn default() -> Streams {
        let random = settings().seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        Streams {
            queues: BTreeMap::new(),
            events: BTreeMap::new(),
            next_handle: 16,
            random,
            begun: BTreeSet::new(),
            turns: settings().turns.as_deref().map(Turns::new),
        }
    }
}

impl Streams {
    /// A number below `bound`, from the seed.
    pub(crate) fn draw(&mut self, bound: usize) -> usize {
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
        self.queues.insert(handle, VecDeque::new());
        handle
    }

    pub(crate) fn has(&self, stream: usize) -> bool {
        self.queues.contains_key(&stream)
    }

    /// Work that is still queued is lost, as the stand-in runs nothing behind the caller's back.
    pub(crate) fn destroy(&mut self, stream: usize) -> bool {
        self.queues.remove(&stream).is_some()
    }

    pub(crate) fn is_empty(&self, stream: usize) -> bool {
        self.queues.get(&stream).is_none_or(VecDeque::is_empty)
    }

    pub(crate) fn push(&mut self, stream: usize, work: Work) -> bool {
        self.queues.get_mut(&stream).map(|queue| queue.push_back(work)).is_some()
    }

    pub(crate) fn create_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub(crate) fn destroy_event(&mut self, event: usize) -> bool {
        self.events.remove(&event).is_some()
    }

    pub(crate) fn record(&mut self, event: usize, stream: usize) -> bool {
        if !self.has(stream) {
            return false;
        }
        let Some(found) = self.events.get_mut(&event) else { return false };
        found.made += 1;
        let mark = found.made;
        self.push(stream, Work::Record { event, mark })
    }

    /// Whether the event's last mark has been passed; `None` for no event.
    pub(crate) fn is_passed(&self, event: usize) -> Option<bool> {
        self.events.get(&event).map(|event| event.passed == event.made)
    }

    /// When the event was passed; `None` where it was not.
    pub(crate) fn passed_ns(&self, event: usize) -> Option<u64> {
        let event = self.events.get(&event)?;
        (event.made > 0 && event.passed == event.made).then_some(event.passed_ns)
    }

    /// Streams whose first work could run now.
    pub(crate) fn ready(&mut self) -> Vec<usize> {
        let ready = |queue: &VecDeque<Work>| match queue.front() {
            None | Some(Work::Hang) => false,
            Some(Work::Wait { word, value }) => is_reached(*word, *value),
            Some(_) => true,
        };
        let queues = self.queues.iter();
        let mut found: Vec<usize> =
            queues.filter(|(_, queue)| ready(queue)).map(|(handle, _)| *handle).collect();
        if let Some(turns) = &mut self.turns {
            let waits = |queue: &VecDeque<Work>| match queue.front() {
                Some(Work::Wait { word, value }) => !is_reached(*word, *value),
                _ => false,
            };
            turns.tell(self.queues.values().any(waits));
            let is_new = |stream: &usize| !self.begun.contains(stream);
            if found.iter().any(is_new) && turns.others_wait() {
                found.retain(|stream| self.begun.contains(stream));
            }
        }
        found
    }

    /// The first work of a stream, to be run now.
    pub(crate) fn take(&mut self, stream: usize) -> Option<Work> {
        let work = self.queues.get_mut(&stream).and_then(VecDeque::pop_front)?;
        if !matches!(work, Work::Wait { .. }) {
            self.begun.insert(stream);
        }
        Some(work)
    }
}

/// Whether `word - value` is not negative.
fn is_reached(word: usize, value: u32) -> bool {
    // SAFETY: needed to read a word that other processes write. The range was checked when the wait
    // was queued, and a program keeps it until the stream is done.
    let word = unsafe { AtomicU32::from_ptr(word as *mut u32) };
    word.load(Ordering::Acquire).wrapping_sub(value).cast_signed() >= 0
}
