//! The stand-in's queues are as short and as shared as a real driver's: a call that finds one full,
//! or loads code while a stream waits, blocks the whole process until a word changes.

use std::time::Duration;

use cuda::{Context, Event, Module, RegisteredHost, Stream};
use shm::Segment;
use shm::sync::{AtomicBool, AtomicU32, Ordering};

use crate::{open, outside};

/// A word that streams wait for, initially 0.
struct Word {
    segment: Segment,
    registered: RegisteredHost,
}

impl Word {
    fn new(context: &Context) -> Word {
        let segment = Segment::create("word", 4096).expect("there is memory");
        // SAFETY: the segment lives as long as the registration, which is dropped with it and not
        // used any more.
        let registered = unsafe { RegisteredHost::new(context, segment.base(), 4096, true) };
        Word { segment, registered: registered.expect("it can be pinned") }
    }

    /// Makes a stream wait until the word changes.
    fn hold(&self, stream: &Stream) {
        let address = self.registered.address().expect("it has one");
        // SAFETY: the word is registered for as long as the stream has work.
        unsafe { stream.wait_value(address, 1) }.expect("a wait");
    }

    fn move_on(&self) {
        let word = self.segment.pointer::<AtomicU32>(0, 1);
        // SAFETY: the segment is mapped, the word in bounds and only accessed as an atomic.
        unsafe { word.as_ref() }.store(1, Ordering::Release);
    }
}

/// Time in which a thread finishes everything that does not block.
const A_WHILE: Duration = Duration::from_millis(100);

/// Runs `call` in a thread while another one queries an event that was passed: neither returns from
/// the driver before the word changes, and both do afterwards.
fn blocks_until_the_word_moves(context: &Context, word: &Word, call: impl FnOnce() + Send) {
    let idle = Stream::new(context).expect("a stream");
    let event = Event::new(context).expect("an event");
    event.record(&idle).expect("a mark");
    idle.synchronize().expect("nothing has failed");
    let (entered, called, asked) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            context.make_current().expect("a context");
            entered.store(true, Ordering::SeqCst);
            call();
            called.store(true, Ordering::SeqCst);
        });
        while !entered.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        std::thread::sleep(A_WHILE);
        scope.spawn(|| {
            context.make_current().expect("a context");
            assert!(event.is_done().expect("nothing has failed"));
            asked.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(A_WHILE);
        let early = called.load(Ordering::SeqCst) || asked.load(Ordering::SeqCst);
        word.move_on();
        assert!(!early, "a call left the driver though the queue stood still");
    });
    assert!(called.into_inner() && asked.into_inner());
}

#[test]
fn a_full_queue_holds_up_every_thread() {
    const ENTRIES: usize = 8;
    const NAME: &str = "queues::a_full_queue_holds_up_every_thread";
    if outside(NAME, &[("STANDIN_CUDA_QUEUE", "8")]) {
        return;
    }
    let context = open();
    let (word, stream) = (Word::new(&context), Stream::new(&context).expect("a stream"));
    let event = Event::new(&context).expect("an event");
    word.hold(&stream);
    for _ in 1..ENTRIES {
        event.record(&stream).expect("there is room");
    }
    assert_eq!(stream.enqueued(), ENTRIES as u64);
    blocks_until_the_word_moves(&context, &word, || event.record(&stream).expect("a mark"));
    stream.synchronize().expect("nothing has failed");
}

#[test]
fn a_kernel_is_loaded_once_the_device_is_idle() {
    const NAME: &str = "queues::a_kernel_is_loaded_once_the_device_is_idle";
    if outside(NAME, &[]) {
        return;
    }
    let context = open();
    let (word, stream) = (Word::new(&context), Stream::new(&context).expect("a stream"));
    let ptx = ".version 8.0\n.target sm_80\n.entry first()\n{}\n.entry second()\n{}\n";
    let module = Module::load(&context, ptx).expect("two kernels");
    module.kernel("first").expect("nothing waits");
    word.hold(&stream);
    // A kernel that is loaded already is found at once.
    module.kernel("first").expect("it is loaded");
    blocks_until_the_word_moves(&context, &word, || {
        module.kernel("second").expect("it is there");
    });
    stream.synchronize().expect("nothing has failed");
}

/// Returns true if a stream finishes its work while another waits.
fn passes_another(context: &Context) -> bool {
    let word = Word::new(context);
    let streams = [0, 1].map(|_| Stream::new(context).expect("a stream"));
    let event = Event::new(context).expect("an event");
    word.hold(&streams[0]);
    event.record(&streams[1]).expect("a mark");
    let passed = (0..200).any(|_| event.is_done().expect("nothing has failed"));
    word.move_on();
    streams.iter().for_each(|stream| stream.synchronize().expect("nothing has failed"));
    passed
}

#[test]
fn streams_of_one_channel_hold_each_other_up() {
    const NAME: &str = "queues::streams_of_one_channel_hold_each_other_up";
    if !outside(NAME, &[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]) {
        assert!(!passes_another(&open()), "one channel has one order");
    }
}

#[test]
fn streams_of_two_channels_do_not() {
    const NAME: &str = "queues::streams_of_two_channels_do_not";
    if !outside(NAME, &[("CUDA_DEVICE_MAX_CONNECTIONS", "2")]) {
        assert!(passes_another(&open()), "each has a channel of its own");
    }
}
