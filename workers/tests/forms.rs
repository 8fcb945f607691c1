//! Structured output with thousands of grammars through the sampler.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;

use grammar::{Grammar, GrammarSet, Vocabulary};
use model::config::Dtype;
use model::source::dummy::DummySource;
use program::compile::compile;
use program::step_table::EndReason;
use protocol::grammar_source::GrammarSource;
use protocol::group::AnswerGrammar;
use shm::sync::{AtomicU64, Ordering};
use workers::setup::LaneOptions;
use workers::testing::{GenerationRequest, InProcess, PlacedRequest};

use common::placed::{cpu_only, options, shape};

static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Allocator that counts the bytes held by the process.
struct Counting;

// SAFETY: needed because the trait is unsafe. Every call goes to the system's allocator unchanged;
// counting allocates nothing, so it cannot recurse.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SLOTS: usize = 4;
/// Token that ends an answer; all others are letters.
const END: u32 = 60;

/// Returns the `i`-th of 26 * 26 * 26 texts, as a regular expression.
fn form(i: usize) -> Grammar {
    let letter = |value: usize| char::from(b'a' + (value % 26) as u8);
    Grammar::Regex(format!("{}{{2}}{}{}", letter(i), letter(i / 26), letter(i / 676)))
}

#[test]
fn thousands_of_forms_are_held_like_a_few() {
    let formats = 3_000;
    let mut config = common::llama();
    config.eos_token_ids = vec![END];
    let shape = shape(1, SLOTS as u16, SLOTS as u16, Dtype::F32);
    let plan = compile(&config, &shape, &cpu_only(&config)).expect("the map compiles");
    let mut words: Vec<Vec<u8>> = (0..END).map(|i| vec![b'a' + i as u8]).collect();
    words.push(Vec::new());
    let vocabulary = Vocabulary { words, ends: vec![END] };
    let grammars = GrammarSet::new(vocabulary, (0..formats).map(form).collect(), |_| None);
    let options =
        LaneOptions { grammars: Some(GrammarSource::Preloaded(Arc::new(grammars))), ..options(2) };
    let source = DummySource::new(config.clone(), 5);
    let mut lanes = InProcess::start(plan, &source, options).expect("the lanes start");
    let mut warm_bytes = 0;
    for first in (0..formats).step_by(SLOTS) {
        let placed = |slot: usize| {
            let mut request = GenerationRequest::greedy(vec![1, 2, 3], 6);
            request.ignore_eos = false;
            request.grammar = AnswerGrammar::Number((first + slot + 1) as u32);
            PlacedRequest { batch: 0, slot, request }
        };
        let placed: Vec<PlacedRequest> = (0..SLOTS).map(placed).collect();
        for (i, outcome) in lanes.run_group(&placed).into_iter().enumerate() {
            let letter = |value: usize| (value % 26) as u32;
            let i = first + i;
            let expected = [letter(i), letter(i), letter(i / 26), letter(i / 676), END];
            assert_eq!(
                (&outcome.tokens[..], outcome.finish),
                (&expected[..], EndReason::Stop as u32)
            );
        }
        lanes.drain_trace();
        if first == 600 {
            warm_bytes = LIVE_BYTES.load(Ordering::Relaxed);
        }
    }
    let grown_bytes = LIVE_BYTES.load(Ordering::Relaxed).saturating_sub(warm_bytes);
    assert!(grown_bytes < 8 << 20, "2,400 more forms hold {grown_bytes} bytes");
    assert!(lanes.finish().iter().all(Result::is_ok));
}
