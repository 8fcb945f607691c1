//! Pages of KV caches: who uses them, and what they hold.
//!
//! A page holds the keys and values of some consecutive positions of a sequence. Sequences whose
//! tokens begin alike share the pages of their beginning, which nobody writes any more. A page that
//! nobody uses keeps what it holds until another sequence needs it, the longest unused one first.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a page holds: some tokens behind others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    /// What the page before holds; for the first page of a sequence what its owner says of all of
    /// its sequence.
    before: u64,
    tokens: Box<[u32]>,
}

#[derive(Debug, Clone, Default)]
struct Page {
    users: u32,
    held: Option<Held>,
    /// Names what it holds, and never anything else.
    name: u64,
    /// When it was last used, while nobody does.
    unused_since: u64,
}

/// All pages of a server.
#[derive(Debug, Clone)]
pub struct Pages {
    positions: u32,
    pages: Vec<Page>,
    /// Pages that hold nothing.
    empty: Vec<u32>,
    /// Pages that hold something and that nobody uses, by when they were last used.
    unused: BTreeMap<u64, u32>,
    /// Pages that hold something, by its hash.
    holding: HashMap<u64, Vec<u32>>,
    names: u64,
    clock: u64,
}

impl Pages {
    /// So many pages of so many positions, all empty.
    ///
    /// # Panics
    /// Without positions.
    pub fn new(count: u32, positions: u32) -> Pages {
        assert!(positions > 0, "a page holds positions");
        Pages {
            positions,
            pages: vec![Page::default(); count as usize],
            empty: (0..count).rev().collect(),
            unused: BTreeMap::new(),
            holding: HashMap::new(),
            // Names of pages are none that owners give to first pages.
            names: 1 << 63,
            clock: 0,
        }
    }

    /// Positions of a page.
    pub fn positions(&self) -> u32 {
        self.positions
    }

    /// Pages in use.
    pub fn used(&self) -> u32 {
        (self.pages.len() - self.empty.len() - self.unused.len()) as u32
    }

    /// Pages that can be taken.
    pub fn available(&self) -> u32 {
        (self.empty.len() + self.unused.len()) as u32
    }

    /// Uses the pages that hold the longest beginning of a sequence, but never all of its tokens:
    /// the last is computed for what follows it. `kind` says what else their content depends on, a
    /// number below 2^63.
    pub fn share(&mut self, kind: u64, tokens: &[u32]) -> Vec<u32> {
        let mut shared = Vec::new();
        let mut before = kind;
        let whole = tokens.len().saturating_sub(1) / self.positions as usize;
        for tokens in tokens.chunks_exact(self.positions as usize).take(whole) {
            let Some(page) = self.find(before, tokens) else { break };
            self.hold(page);
            before = self.pages[page as usize].name;
            shared.push(page);
        }
        shared
    }

    /// Uses a page to write to; `None`: all are in use.
    pub fn take(&mut self) -> Option<u32> {
        let page = match self.empty.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.unused.pop_first()?;
                self.forget(page);
                page
            }
        };
        self.pages[page as usize].users = 1;
        Some(page)
    }

    /// Says that the last of a sequence's pages is full: what they hold, in order. `tokens` are
    /// those of all of these pages.
    ///
    /// # Panics
    /// If `pages` are none, or are not in use, or the tokens are not as many as they hold.
    pub fn fill(&mut self, kind: u64, pages: &[u32], tokens: &[u32]) {
        assert_eq!(tokens.len(), pages.len() * self.positions as usize, "full pages");
        let (own, others) = pages.split_last().expect("a page is full");
        let before = others.last().map_or(kind, |page| self.pages[*page as usize].name);
        let last = &tokens[tokens.len() - self.positions as usize..];
        let own_place = *own as usize;
        assert!(self.pages[own_place].users > 0, "page {own} is in use");
        if self.pages[own_place].held.is_some() {
            return;
        }
        if let Some(same) = self.find(before, last) {
            // Two sequences computed it beside each other; the first is kept.
            self.pages[own_place].name = self.pages[same as usize].name;
            return;
        }
        self.holding.entry(hash(before, last)).or_default().push(*own);
        let page = &mut self.pages[own_place];
        page.held = Some(Held { before, tokens: last.into() });
        page.name = self.names;
        self.names += 1;
    }

    /// The page that holds these tokens behind what was named `before`, a sequence's kind or a
    /// page, and its own name. Nobody uses it for that.
    pub fn follow(&self, before: u64, tokens: &[u32]) -> Option<(u32, u64)> {
        let page = self.find(before, tokens)?;
        Some((page, self.pages[page as usize].name))
    }

    /// Uses a page that was just found.
    pub fn hold(&mut self, page: u32) {
        let place = &mut self.pages[page as usize];
        if place.users == 0 {
            self.unused.remove(&place.unused_since);
        }
        place.users += 1;
    }

    /// Ends a use of a page. Of a sequence's pages the last is released first, as it is of no use
    /// without those before it.
    ///
    /// # Panics
    /// If it is not in use.
    pub fn release(&mut self, page: u32) {
        let place = &mut self.pages[page as usize];
        place.users = place.users.checked_sub(1).expect("the page is in use");
        if place.users > 0 {
            return;
        }
        if place.held.is_none() {
            self.empty.push(page);
            return;
        }
        place.unused_since = self.clock;
        self.unused.insert(self.clock, page);
        self.clock += 1;
    }

    fn find(&self, before: u64, tokens: &[u32]) -> Option<u32> {
        let alike = self.holding.get(&hash(before, tokens))?;
        let holds = |page: &&u32| {
            let held = self.pages[**page as usize].held.as_ref();
            held.is_some_and(|held| held.before == before && *held.tokens == *tokens)
        };
        alike.iter().find(holds).copied()
    }

    /// What it holds is of no use any more.
    fn forget(&mut self, page: u32) {
        let Some(held) = self.pages[page as usize].held.take() else { return };
        let hash = hash(held.before, &held.tokens);
        if let Some(alike) = self.holding.get_mut(&hash) {
            alike.retain(|other| *other != page);
            if alike.is_empty() {
                self.holding.remove(&hash);
            }
        }
    }
}

fn hash(before: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, tokens).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn beginnings_are_shared_and_kept_until_others_need_their_pages() {
        let mut pages = Pages::new(4, 2);
        let own = vec![pages.take().expect("empty"), pages.take().expect("empty")];
        pages.fill(0, &own[..1], &[1, 2]);
        pages.fill(0, &own, &[1, 2, 3, 4]);
        assert_eq!(pages.share(0, &[1, 2, 3, 4]), own[..1], "the last token is computed");
        pages.release(own[0]);
        assert_eq!(pages.share(1, &[1, 2, 3, 4, 5]), [], "of another kind");
        let both = pages.share(0, &[1, 2, 3, 4, 5]);
        assert_eq!(both, own);
        for page in [both[1], both[0], own[1], own[0]] {
            pages.release(page);
        }
        assert_eq!((pages.used(), pages.available()), (0, 4));
        let taken: Vec<u32> = (0..3).map(|_| pages.take().expect("unused")).collect();
        assert_eq!(pages.share(0, &[1, 2, 3, 4, 5]), own[..1], "the beginning is kept longest");
        assert_eq!(pages.take(), None);
        taken.into_iter().for_each(|page| pages.release(page));
    }

    #[test]
    fn a_beginning_is_followed_page_by_page_and_held() {
        let mut pages = Pages::new(2, 2);
        let own = vec![pages.take().expect("empty"), pages.take().expect("empty")];
        pages.fill(5, &own[..1], &[1, 2]);
        assert_eq!(pages.follow(4, &[1, 2]), None, "of another kind");
        let (first, name) = pages.follow(5, &[1, 2]).expect("it holds them");
        assert_eq!((first, pages.follow(name, &[3, 4])), (own[0], None), "not yet full");
        pages.fill(5, &own, &[1, 2, 3, 4]);
        assert_eq!(pages.follow(name, &[3, 4]).map(|(page, _)| page), Some(own[1]));
        pages.hold(first);
        own.iter().rev().for_each(|page| pages.release(*page));
        assert_eq!((pages.take(), pages.take()), (Some(own[1]), None), "the other is held");
        pages.release(first);
        assert_eq!(pages.available(), 1);
    }

    #[test]
    fn what_two_computed_beside_each_other_is_kept_once() {
        let mut pages = Pages::new(4, 1);
        let one = [pages.take().expect("empty"), pages.take().expect("empty")];
        let other = [pages.take().expect("empty"), pages.take().expect("empty")];
        pages.fill(3, &one[..1], &[9]);
        pages.fill(3, &other[..1], &[9]);
        pages.fill(3, &other, &[9, 8]);
        one.iter().chain(&other).rev().for_each(|page| pages.release(*page));
        assert_eq!(pages.share(3, &[9, 8, 7]), [one[0], other[1]], "either beginning serves");
    }

    /// Sequences of two kinds over few tokens, so that many begin alike.
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
            let mut pages = Pages::new(COUNT, 2);
            // What was written to each page, kind and all tokens up to its end.
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
                    let shared = pages.share(kind, &tokens);
                    for (index, page) in shared.iter().enumerate() {
                        let upto = tokens[..2 * (index + 1)].to_vec();
                        prop_assert_eq!(&written[page], &(kind, upto));
                    }
                    running.push(Running { kind, tokens, pages: shared });
                } else if let Some(one) = running.first_mut() {
                    // It computes to the end of its tokens, and a token more is known.
                    while one.pages.len() * 2 < one.tokens.len() {
                        let Some(page) = pages.take() else { break };
                        one.pages.push(page);
                        let upto = one.tokens.len().min(one.pages.len() * 2);
                        written.insert(page, (one.kind, one.tokens[..upto].to_vec()));
                        if upto == one.pages.len() * 2 {
                            pages.fill(one.kind, &one.pages, &one.tokens[..upto]);
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
    }
}
