//! Tests that many grammars take no more memory than a few.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use grammar::{CompiledGrammarCache, Grammar, GrammarMatcher, GrammarSet, Vocabulary};

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// Allocator that counts the bytes that each thread holds.
struct Counting;

fn note(bytes: isize) {
    // When a thread ends, memory is freed after its counter is gone.
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: needed because the trait is unsafe. Every call goes to the system's allocator unchanged;
// counting allocates nothing, so it cannot recurse.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the bytes that are held after `slots` concurrent answers have followed each of the
/// grammars in turn.
fn held_bytes(grammars: Vec<Grammar>, slots: usize) -> isize {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    words.push(Vec::new());
    let vocabulary = Vocabulary { words, ends: vec![256] };
    let forms = grammars.len();
    let grammars = Arc::new(GrammarSet::new(vocabulary, grammars, |_| None));
    let before = LIVE_BYTES.get();
    let mut compiled = CompiledGrammarCache::new(grammars).unwrap();
    let mut walks: Vec<Option<GrammarMatcher>> = vec![None; slots];
    let mut mask = vec![0; compiled.mask_words()];
    for form in 0..forms {
        let walk = walks[form % slots].insert(compiled.start_matcher(form));
        walk.fill_mask(&mut mask);
        let (word, bits) = mask.iter().enumerate().find(|(_, bits)| **bits != 0).unwrap();
        walk.accept_token(word as u32 * 32 + bits.trailing_zeros());
        assert_eq!(walk.failure(), None);
    }
    LIVE_BYTES.get() - before
}

#[test]
fn twenty_thousand_choices_are_held_like_a_few() {
    let choices = |count: usize| {
        (0..count).map(|i| Grammar::Choice(vec![format!("yes {i}"), format!("no {i}")])).collect()
    };
    let (few, many) = (held_bytes(choices(400), 4), held_bytes(choices(20_000), 4));
    assert!(many < few + few / 4 + (1 << 20), "{few} bytes of 400, {many} of 20,000");
}

#[test]
fn schemas_are_held_like_a_few() {
    let schemas = |count: usize| {
        let schema =
            |i| format!(r#"{{"type": "object", "properties": {{"p{i}": {{"type": "integer"}}}}}}"#);
        (0..count).map(|i| Grammar::json_schema(schema(i))).collect()
    };
    let (few, many) = (held_bytes(schemas(400), 4), held_bytes(schemas(2_000), 4));
    assert!(many < few + few / 4 + (1 << 20), "{few} bytes of 400, {many} of 2,000");
    assert!(many < 64 << 20, "{many} bytes");
}

/// The states of a grammar's lexer are shared by its answers and bounded, but no answer may find
/// them used up.
#[test]
fn a_form_can_be_followed_as_often_as_there_are_lines() {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    words.push(Vec::new());
    let vocabulary = Vocabulary { words, ends: vec![256] };
    let form = Grammar::Regex(r"([\p{L}\p{M}\p{N}_]{1,30}[ ,]){1,30}".to_owned());
    let grammars = Arc::new(GrammarSet::new(vocabulary, vec![form], |_| None));
    let mut compiled = CompiledGrammarCache::new(grammars).unwrap();
    let mut mask = vec![0; compiled.mask_words()];
    let mut state = 7_u64;
    for answer in 0..250 {
        let mut walk = compiled.start_matcher(0);
        for _ in 0..400 {
            walk.fill_mask(&mut mask);
            assert_eq!(walk.failure(), None, "answer {answer}");
            let is_set = |token: &u32| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
            let allowed: Vec<u32> = (0..256).filter(is_set).collect();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let Some(token) = allowed.get((state >> 33) as usize % allowed.len().max(1)) else {
                break;
            };
            walk.accept_token(*token);
        }
    }
}
