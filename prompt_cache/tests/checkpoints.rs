//! Checkpoints at the ends of stored pages: listed and removed with the prefixes that they belong
//! to.

mod common;

use common::Memory;
use prompt_cache::{PageHash, PageKey, PageOrigin, PageStore, list_store, remove_prefixes};

/// Bytes of a file before its first run.
const HEADER_BYTES: usize = 4096;
const PAGE_BYTES: usize = 3000;
const CHECKPOINT_BYTES: usize = 500;

fn write(store: &mut PageStore, page: &PageKey<'_>, size_bytes: usize) {
    let mut memory = Memory(vec![vec![7; size_bytes]], usize::MAX);
    store.write(page, &mut memory).expect("writable");
}

/// Writes the pages of a prompt that begins with those of others, with checkpoints after some.
fn write_prompt(store: &mut PageStore, pages: &[u32], checkpoints: &[u32]) -> PageHash {
    let mut previous = store.root_hash(&[]);
    for (token, index) in pages.iter().zip(0..) {
        let tokens = [*token; 4];
        let name = previous.child(&tokens);
        write(store, &PageKey { name, previous, index, tokens: &tokens }, PAGE_BYTES);
        if checkpoints.contains(&index) {
            let checkpoint = name.checkpoint();
            let key = PageKey { name: checkpoint, previous: name, index: index + 1, tokens: &[] };
            write(store, &key, CHECKPOINT_BYTES);
        }
        previous = name;
    }
    previous
}

#[test]
fn checkpoints_are_listed_and_removed_with_their_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = PageOrigin { model: "tiny".to_owned(), fields: Vec::new() };
    let mut store = PageStore::open(folder.path(), origin, None).expect("a store");
    let first = write_prompt(&mut store, &[1, 2, 3], &[0, 2]);
    let second = write_prompt(&mut store, &[1, 2, 4], &[1]);
    let listing = list_store(folder.path()).expect("a store");
    let [listed] = &listing.origins[..] else { panic!("{listing:?}") };
    assert_eq!((listed.prefixes.len(), listed.unusable.len()), (2, 0));
    for (name, checkpoints) in [(first, 3), (second, 2)] {
        let prefix = listed.prefixes.iter().find(|one| one.name == name).expect("it is listed");
        let size_bytes =
            3 * (HEADER_BYTES + PAGE_BYTES) + checkpoints * (HEADER_BYTES + CHECKPOINT_BYTES);
        assert_eq!((prefix.tokens, prefix.size_bytes), (12, size_bytes as u64));
    }
    remove_prefixes(folder.path(), |_, one| one.name == first).expect("a store");
    let exists = |name: PageHash| (store.contains(&name), store.contains(&name.checkpoint()));
    assert_eq!((exists(first), exists(second)), ((false, false), (true, false)));
    let shared = store.root_hash(&[]).child(&[1; 4]);
    assert_eq!(exists(shared), (true, true), "the other prefix needs it");
    assert_eq!(exists(shared.child(&[2; 4])), (true, true));
    remove_prefixes(folder.path(), |_, _| true).expect("a store");
    assert_eq!(list_store(folder.path()).expect("a store").size_bytes, 0);
}
