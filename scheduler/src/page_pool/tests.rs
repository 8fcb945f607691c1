//! Tests of the users of pages, and of the contents found in them.

use proptest::prelude::*;

use super::*;

#[test]
fn beginnings_are_shared_and_kept_until_others_need_their_pages() {
    let mut pages = PagePool::new(4, 2);
    let own = vec![pages.allocate().expect("empty"), pages.allocate().expect("empty")];
    pages.record_full(0, &own[..1], &[1, 2]);
    pages.record_full(0, &own, &[1, 2, 3, 4]);
    assert_eq!(pages.acquire_prefix(0, &[1, 2, 3, 4]), own[..1], "the last token is computed");
    pages.release(own[0]);
    assert_eq!(pages.acquire_prefix(1, &[1, 2, 3, 4, 5]), [], "of another kind");
    let both = pages.acquire_prefix(0, &[1, 2, 3, 4, 5]);
    assert_eq!(both, own);
    for page in [both[1], both[0], own[1], own[0]] {
        pages.release(page);
    }
    assert_eq!((pages.used(), pages.available()), (0, 4));
    let taken: Vec<u32> = (0..3).map(|_| pages.allocate().expect("unused")).collect();
    assert_eq!(
        pages.acquire_prefix(0, &[1, 2, 3, 4, 5]),
        own[..1],
        "the beginning is kept longest"
    );
    assert_eq!(pages.allocate(), None);
    taken.into_iter().for_each(|page| pages.release(page));
}

#[test]
fn a_beginning_is_followed_page_by_page_and_held() {
    let mut pages = PagePool::new(2, 2);
    let own = vec![pages.allocate().expect("empty"), pages.allocate().expect("empty")];
    pages.record_full(5, &own[..1], &[1, 2]);
    assert_eq!(pages.find_next(4, &[1, 2]), None, "of another kind");
    let (first, name) = pages.find_next(5, &[1, 2]).expect("it holds them");
    assert_eq!((first, pages.find_next(name, &[3, 4])), (own[0], None), "not yet full");
    pages.record_full(5, &own, &[1, 2, 3, 4]);
    assert_eq!(pages.find_next(name, &[3, 4]).map(|(page, _)| page), Some(own[1]));
    pages.acquire(first);
    own.iter().rev().for_each(|page| pages.release(*page));
    assert_eq!((pages.allocate(), pages.allocate()), (Some(own[1]), None), "the other is held");
    pages.release(first);
    assert_eq!(pages.available(), 1);
}

#[test]
fn what_two_computed_beside_each_other_is_kept_once() {
    let mut pages = PagePool::new(4, 1);
    let one = [pages.allocate().expect("empty"), pages.allocate().expect("empty")];
    let other = [pages.allocate().expect("empty"), pages.allocate().expect("empty")];
    pages.record_full(3, &one[..1], &[9]);
    pages.record_full(3, &other[..1], &[9]);
    pages.record_full(3, &other, &[9, 8]);
    one.iter().chain(&other).rev().for_each(|page| pages.release(*page));
    assert_eq!(pages.acquire_prefix(3, &[9, 8, 7]), [one[0], other[1]], "either beginning serves");
}

#[test]
fn what_begins_alike_within_a_page_is_found_to_the_token() {
    let mut pages = PagePool::new(5, 64);
    let tokens: Vec<u32> = (0..201).collect();
    let own: Vec<u32> = (0..4).map(|_| pages.allocate().expect("empty")).collect();
    for full in 1..4 {
        pages.record_full(0, &own[..full], &tokens[..full * 64]);
    }
    assert_eq!(pages.find_partial(0, &own[..3], &tokens), None, "it is not said what it holds");
    pages.record_partial(0, &own, &tokens[..200]);
    assert_eq!(pages.find_partial(0, &own[..3], &tokens), None, "8 positions are too few");
    let longer: Vec<u32> = (0..230).collect();
    pages.record_partial(0, &own, &longer);
    assert_eq!(pages.find_partial(0, &own[..3], &longer), Some((own[3], 37)), "but for the last");
    assert_eq!(pages.find_partial(0, &own[..3], &longer[..210]), Some((own[3], 17)));
    assert_eq!(pages.find_partial(1, &[], &longer), None, "of another kind");
    // Another sequence differs from within the second page, which is full.
    let other: Vec<u32> = (0..100).chain(7..200).collect();
    assert_eq!(pages.find_partial(0, &own[..1], &other), Some((own[1], 36)));
    assert_eq!((pages.count_cached(0, &other), pages.count_cached(0, &longer)), (100, 229));
    assert_eq!(pages.count_cached(0, &longer[..150]), 149, "a part of a page that is full");
    own.iter().rev().for_each(|page| pages.release(*page));
    assert_eq!(pages.find_partial(0, &own[..3], &longer), Some((own[3], 37)), "unused, it is kept");
    let taken: Vec<u32> = (0..2).map(|_| pages.allocate().expect("unused")).collect();
    assert_eq!(taken[1], own[3], "behind what is empty the end of a sequence goes first");
    assert_eq!(
        (pages.find_partial(0, &own[..3], &longer), pages.count_cached(0, &longer)),
        (None, 192)
    );
}

#[test]
fn a_part_is_kept_once_and_becomes_a_page() {
    let mut pages = PagePool::new(3, 32);
    let tokens: Vec<u32> = (0..40).collect();
    let [one, other] = [0; 2].map(|_| pages.allocate().expect("empty"));
    pages.record_partial(5, &[one], &tokens[..20]);
    pages.record_partial(5, &[other], &tokens[..18]);
    pages.release(other);
    assert_eq!(pages.allocate(), Some(other), "it holds nothing that the first does not");
    pages.release(one);
    pages.record_partial(5, &[other], &tokens[..25]);
    assert_eq!(pages.find_partial(5, &[], &tokens), Some((other, 25)));
    assert_eq!((pages.used(), pages.available()), (1, 2));
    pages.record_full(5, &[other], &tokens[..32]);
    assert_eq!(pages.find_next(5, &tokens[..32]).map(|(page, _)| page), Some(other));
    assert_eq!(pages.find_partial(5, &[], &tokens[..30]), Some((other, 29)));
    pages.release(other);
    assert_eq!(pages.acquire_prefix(5, &tokens), [other]);
}

/// Sequences of two kinds over few different tokens, so that many have a common prefix.
#[derive(Debug)]
struct Running {
    kind: u64,
    tokens: Vec<u32>,
    pages: Vec<u32>,
}

proptest! {
    #[test]
    fn no_page_is_written_while_another_reads_it_and_none_is_lost(
        draws in prop::collection::vec((0u64..2, any::<u32>(), 0usize..4), 1..200),
    ) {
        const COUNT: u32 = 9;
        let mut pages = PagePool::new(COUNT, 2);
        // The kind and all tokens up to the end of each page, when it was written.
        let mut written: HashMap<u32, (u64, Vec<u32>)> = HashMap::new();
        let mut running: Vec<Running> = Vec::new();
        for (kind, bits, what) in draws {
            if what == 0 || running.len() > 3 {
                if let Some(mut ended) = running.pop() {
                    while let Some(page) = ended.pages.pop() {
                        pages.release(page);
                    }
                }
            } else if what == 1 {
                let tokens: Vec<u32> = (0..1 + bits % 7).map(|i| bits >> i & 1).collect();
                let shared = pages.acquire_prefix(kind, &tokens);
                for (index, page) in shared.iter().enumerate() {
                    let upto = tokens[..2 * (index + 1)].to_vec();
                    prop_assert_eq!(&written[page], &(kind, upto));
                }
                running.push(Running { kind, tokens, pages: shared });
            } else if let Some(one) = running.first_mut() {
                // The sequence is computed to the end of its tokens, and one more token is known.
                while one.pages.len() * 2 < one.tokens.len() {
                    let Some(page) = pages.allocate() else { break };
                    one.pages.push(page);
                    let upto = one.tokens.len().min(one.pages.len() * 2);
                    written.insert(page, (one.kind, one.tokens[..upto].to_vec()));
                    if upto == one.pages.len() * 2 {
                        pages.record_full(one.kind, &one.pages, &one.tokens[..upto]);
                    } else {
                        break;
                    }
                }
                if one.pages.len() * 2 >= one.tokens.len() + 2 {
                    one.tokens.push(bits & 1);
                }
            }
            let used: std::collections::BTreeSet<u32> =
                running.iter().flat_map(|one| one.pages.iter().copied()).collect();
            prop_assert_eq!(pages.used() as usize, used.len());
            prop_assert_eq!(pages.used() + pages.available(), COUNT);
        }
    }

    /// Tests partial pages: regardless of the sequences that begin, grow and end in between, the
    /// positions found in a page are those of the requested tokens.
    #[test]
    fn parts_hold_what_they_are_found_for(
        draws in prop::collection::vec((any::<u32>(), 0usize..5), 1..300),
    ) {
        const POSITIONS: u32 = 20;
        let mut pages = PagePool::new(9, POSITIONS);
        let mut written: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut running: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
        for (bits, what) in draws {
            let place = (bits >> 8) as usize % running.len().max(1);
            if what < 2 && running.len() < 3 {
                // Few different prefixes, which diverge at few positions.
                let parts = 17 + bits % 4 * 6;
                let length = parts + bits / 4 % 30;
                let tokens = (0..length).map(|i| if i < parts { i } else { 100 + i + bits % 3 });
                let tokens: Vec<u32> = tokens.collect();
                let mut own = pages.acquire_prefix(0, &tokens);
                let mut known = own.len() * POSITIONS as usize;
                if let Some((page, positions)) = pages.find_partial(0, &own, &tokens) {
                    let upto = known + positions as usize;
                    prop_assert!(written[&page].starts_with(&tokens[..upto]), "page {}", page);
                    prop_assert_eq!(pages.count_cached(0, &tokens) as usize, upto);
                    known = upto;
                }
                if let Some(page) = pages.allocate() {
                    own.push(page);
                    written.insert(page, tokens[..known].to_vec());
                }
                running.push((tokens, own));
            } else if what == 2 && place < running.len() {
                let (_, own) = running.remove(place);
                own.into_iter().rev().for_each(|page| pages.release(page));
            } else if place < running.len() {
                // The last page is filled to the end of its tokens or of the page.
                let (tokens, own) = &running[place];
                let end = tokens.len().min(own.len() * POSITIONS as usize);
                let Some(last) = own.last().filter(|_| end > (own.len() - 1) * POSITIONS as usize)
                else { continue };
                written.insert(*last, tokens[..end].to_vec());
                match end % POSITIONS as usize {
                    0 => pages.record_full(0, own, &tokens[..end]),
                    _ => pages.record_partial(0, own, &tokens[..end]),
                }
            }
            let used: std::collections::BTreeSet<u32> =
                running.iter().flat_map(|(_, own)| own.iter().copied()).collect();
            prop_assert_eq!(pages.used() as usize, used.len());
        }
    }
}

/// Returns a pool with checkpoints and the pages of a sequence, all recorded as full.
fn with_sequence(checkpoints: u32, tokens: &[u32]) -> (PagePool, Vec<u32>) {
    let mut pages = PagePool::new(8, 2).with_checkpoints(checkpoints);
    let own: Vec<u32> = tokens.chunks(2).map(|_| pages.allocate().expect("empty")).collect();
    for full in 1..=own.len() {
        pages.record_full(0, &own[..full], &tokens[..2 * full]);
    }
    (pages, own)
}

#[test]
fn a_beginning_is_shared_up_to_its_last_checkpoint() {
    let tokens = [1, 2, 3, 4, 5, 6, 7];
    let (mut pages, own) = with_sequence(3, &tokens[..6]);
    let none = CheckpointedPrefix { pages: Vec::new(), checkpoint: None, known_pages: 3 };
    assert_eq!(pages.acquire_checkpointed(0, &tokens), none);
    let numbers = [0, 1].map(|_| pages.reserve_checkpoint().expect("free"));
    pages.record_checkpoint(numbers[0], own[0]);
    pages.record_checkpoint(numbers[1], own[1]);
    assert_eq!(pages.count_checkpointed(0, &tokens), 4);
    let found = pages.acquire_checkpointed(0, &tokens);
    assert_eq!((&found.pages[..], found.checkpoint), (&own[..2], Some(numbers[1])));
    assert_eq!(pages.count_checkpointed(0, &tokens[..4]), 2, "the last token is computed");
    assert_eq!(pages.count_checkpointed(1, &tokens), 0, "of another kind");
    assert_eq!(pages.count_checkpointed(0, &[1, 2, 9, 9, 5, 6, 7]), 2, "of another prefix");
    // The same one again, by another sequence.
    let again = pages.reserve_checkpoint().expect("free");
    pages.record_checkpoint(again, own[1]);
    assert_eq!((pages.checkpoints(), pages.reserve_checkpoint()), (2, Some(again)));
}

#[test]
fn the_least_recently_used_checkpoint_is_replaced_and_none_while_it_is_copied() {
    let tokens = [1, 2, 3, 4, 5, 6, 7];
    let (mut pages, own) = with_sequence(2, &tokens[..6]);
    let numbers = [0, 1].map(|_| pages.reserve_checkpoint().expect("free"));
    assert_eq!(pages.reserve_checkpoint(), None, "all are planned");
    pages.record_checkpoint(numbers[1], own[1]);
    pages.record_checkpoint(numbers[0], own[0]);
    let found = pages.acquire_checkpointed(0, &tokens[..3]);
    assert_eq!(found.checkpoint, Some(numbers[0]));
    assert_eq!(pages.reserve_checkpoint(), Some(numbers[1]), "it was used before the other");
    assert_eq!(pages.reserve_checkpoint(), None, "the other is being copied");
    pages.release_checkpoint(numbers[0]);
    assert_eq!(pages.reserve_checkpoint(), Some(numbers[0]));
    pages.cancel_checkpoint(numbers[1]);
    assert_eq!(pages.reserve_checkpoint(), Some(numbers[1]), "it was not taken");
}

#[test]
fn a_checkpoint_is_evicted_with_its_page() {
    let tokens = [1, 2, 3, 4, 5, 6, 7];
    let (mut pages, own) = with_sequence(2, &tokens[..6]);
    let number = pages.reserve_checkpoint().expect("free");
    pages.record_checkpoint(number, own[2]);
    own.iter().rev().for_each(|page| pages.release(*page));
    let others: Vec<u32> = (0..6).map(|_| pages.allocate().expect("unused")).collect();
    assert!(others.contains(&own[2]), "the end of a sequence is evicted first");
    assert_eq!((pages.checkpoints(), pages.count_checkpointed(0, &tokens)), (0, 0));
    // Contents with the same tokens, computed again, have no checkpoint.
    let page = own[2];
    pages.record_full(0, &[own[0], own[1], page], &tokens[..6]);
    assert_eq!(pages.count_checkpointed(0, &tokens), 0);
    // One that is evicted while it is copied is not reused before.
    let number = pages.reserve_checkpoint().expect("free");
    pages.record_checkpoint(number, page);
    let found = pages.acquire_checkpointed(0, &tokens);
    assert_eq!(found.checkpoint, Some(number));
    pages.evict_checkpoint(page);
    let other = pages.reserve_checkpoint();
    assert!(other.is_some() && other != Some(number));
    assert_eq!(pages.reserve_checkpoint(), None);
    pages.release_checkpoint(number);
    assert_eq!(pages.reserve_checkpoint(), Some(number));
}
