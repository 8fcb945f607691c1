//! Tests that a failed answer is distinguished from a complete one.

use std::sync::Arc;

use grammar::{CompiledGrammarCache, Grammar, GrammarSet, Vocabulary};

#[test]
fn a_walk_knows_whether_it_is_complete() {
    let words = vec![b"a".to_vec(), b"b".to_vec(), Vec::new()];
    let vocabulary = Vocabulary { words, ends: vec![2] };
    let grammars = vec![Grammar::Regex("ab".to_owned())];
    let mut compiled =
        CompiledGrammarCache::new(Arc::new(GrammarSet::new(vocabulary, grammars, |_| None)))
            .unwrap();
    let mut walk = compiled.start_matcher(0);
    walk.accept_token(0);
    assert!(!walk.is_complete());
    let mut wrong = walk.clone();
    walk.accept_token(1);
    assert!(walk.is_complete());
    assert_eq!(walk.failure(), None);
    wrong.accept_token(0);
    assert!(wrong.failure().is_some());
    let mut mask = [0];
    wrong.fill_mask(&mut mask);
    assert_eq!(mask, [4]);
    assert!(!wrong.is_complete());
}
