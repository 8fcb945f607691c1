//! Queues of work, and when it runs.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;

use shm::sync::{AtomicU32, Ordering};

use crate::settings::settings;
use crate::state::{State, code};

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

impl Product {
    fn run(&self) {
        let Product { a, b, d, rows, n, k } = *self;
        let wide = |from: usize, at: usize| {
            // SAFETY: needed to read an operand; the ranges were checked when the product was queued,
            // and that nobody else touches them is what callers promise.
            f32::from_bits(u32::from(unsafe { (from as *const u16).add(at).read() }) << 16)
        };
        for row in 0..rows {
            for column in 0..n {
                let terms = (0..k).map(|i| wide(b, row * k + i) * wide(a, column * k + i));
                let sum: f32 = terms.sum();
                // SAFETY: needed to write a sum; as above.
                unsafe { (d as *mut f32).add(row * n + column).write(sum) };
            }
        }
    }
}

#[derive(Debug, Default)]
struct Event {
    /// Marks made so far, and the last one that a stream has passed.
    made: u64,
    passed: u64,
    passed_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Streams {
    /// By handle.
    queues: BTreeMap<usize, VecDeque<Work>>,
    events: BTreeMap<usize, Event>,
    next_handle: usize,
    random: u64,
}

impl Default for Streams {
    fn default() -> Streams {
        let random = settings().seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        Streams { queues: BTreeMap::new(), events: BTreeMap::new(), next_handle: 16, random }
    }
}

impl Streams {
    /// A number below `bound`, from the seed.
    fn draw(&mut self, bound: usize) -> usize {
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
    fn ready(&self) -> Vec<usize> {
        let ready = |queue: &VecDeque<Work>| match queue.front() {
            None | Some(Work::Hang) => false,
            Some(Work::Wait { word, value }) => {
                // SAFETY: needed to read a word that other processes write. The range was checked
                // when the wait was queued, and a program keeps it until the stream is done.
                let word = unsafe { AtomicU32::from_ptr(*word as *mut u32) };
                word.load(Ordering::Acquire).wrapping_sub(*value).cast_signed() >= 0
            }
            Some(_) => true,
        };
        self.queues.iter().filter(|(_, queue)| ready(queue)).map(|(handle, _)| *handle).collect()
    }
}

impl State {
    /// What has run since the last call: sometimes nothing, sometimes a good deal.
    pub(crate) fn pass_time(&mut self) {
        let steps = match self.streams.draw(4) {
            0 => self.streams.draw(6),
            _ => 0,
        };
        for _ in 0..steps {
            self.step();
        }
    }

    /// Runs one piece of work of a stream that the seed chooses; `false` where none can run.
    pub(crate) fn step(&mut self) -> bool {
        let ready = self.streams.ready();
        if ready.is_empty() {
            return false;
        }
        let chosen = ready[self.streams.draw(ready.len())];
        let work = self.streams.queues.get_mut(&chosen).and_then(VecDeque::pop_front);
        if let Some(work) = work {
            self.run(work);
        }
        true
    }

    fn run(&mut self, work: Work) {
        match work {
            Work::Copy { to, from, size_bytes } => {
                if self.ranges.kind(to, size_bytes).is_none()
                    || self.ranges.kind(from, size_bytes).is_none()
                {
                    self.fail(code::ILLEGAL_ADDRESS);
                    return;
                }
                // SAFETY: needed to copy. Both ranges are known and of this size (just checked);
                // that nobody else touches them is what callers promise the driver.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size_bytes) };
            }
            Work::Place { to, bytes } => {
                if !self.ranges.is_device(to, bytes.len()) {
                    self.fail(code::ILLEGAL_ADDRESS);
                    return;
                }
                // SAFETY: as above; the source is ours.
                unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
            }
            Work::Fill { to, byte, size_bytes } => {
                if !self.ranges.is_device(to, size_bytes) {
                    self.fail(code::ILLEGAL_ADDRESS);
                    return;
                }
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to as *mut u8, byte, size_bytes) };
            }
            Work::Launch(launch) => self.launch(launch),
            Work::Product(product) => product.run(),
            Work::Record { event, mark } => {
                if let Some(event) = self.streams.events.get_mut(&event) {
                    event.passed = event.passed.max(mark);
                    event.passed_ns = shm::now_ns();
                }
            }
            Work::Wait { .. } | Work::Hang => {}
        }
    }

    fn launch(&mut self, mut launch: Launch) {
        if self.sticky().is_some() {
            return;
        }
        let mut parameters: Vec<*mut c_void> =
            launch.parameters.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        let Launch { name, grid, block, shared_bytes, .. } = &launch;
        // SAFETY: needed to run the kernel. The parameters have the sizes that its PTX says; device
        // addresses among them are the program's promise, as on a device.
        let ran = unsafe { cuda_shim::launch(name, *grid, *block, *shared_bytes, &mut parameters) };
        if let Err(fault) = ran {
            eprintln!("stand-in: kernel {name} failed: {fault:?}");
            self.fail(code::LAUNCH_FAILED);
        }
    }
}
