//! Pages of KV caches: who uses them, and what they hold.
//!
//! A page holds the keys and values of some consecutive positions of a sequence. Sequences whose
//! tokens begin alike share the pages of their beginning, which nobody writes any more. A page that
//! nobody uses keeps what it holds until another sequence needs it, the longest unused one first.
//!
//! Where sequences part within a page, the positions before that can be copied: also a page that is
//! not full, the last one of its sequence, is known by its first tokens.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Fewest positions that are worth a copy: others are computed.
pub const PART_MIN: u32 = 16;

/// What a page holds: some tokens behind others, as many as it has positions, or the first of them.
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
    /// Pages that are full, by the hash of what they hold.
    holding: HashMap<u64, Vec<u32>>,
    /// Pages that hold at least [`PART_MIN`] tokens, by the hash of the first of them; none where
    /// pages have no more positions.
    parts: HashMap<u64, Vec<u32>>,
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
            parts: HashMap::new(),
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
        assert!(self.pages[*own as usize].users > 0, "page {own} is in use");
        if self.is_full(*own) {
            return;
        }
        // It may be known by its first tokens.
        self.forget(*own);
        let own_place = *own as usize;
        if let Some(same) = self.find(before, last) {
            // Two sequences computed it beside each other; the first is kept.
            self.pages[own_place].name = self.pages[same as usize].name;
            return;
        }
        self.pages[own_place].name = self.names;
        self.names += 1;
        self.keep(*own, Held { before, tokens: last.into() });
    }

    /// Says what the last of a sequence's pages holds while it is not full: the first of its
    /// positions, which nobody writes to any more. `tokens` are those of all of these pages. What
    /// another page holds too is kept once.
    ///
    /// # Panics
    /// If `pages` are none, or the last is not in use or would be full.
    pub fn fill_part(&mut self, kind: u64, pages: &[u32], tokens: &[u32]) {
        let (own, others) = pages.split_last().expect("a page is filled");
        let part = &tokens[others.len() * self.positions as usize..];
        assert!(part.len() < self.positions as usize, "a part of a page");
        assert!(self.pages[*own as usize].users > 0, "page {own} is in use");
        if part.len() < PART_MIN as usize || self.is_full(*own) {
            return;
        }
        let before = others.last().map_or(kind, |page| self.pages[*page as usize].name);
        let alike = self.parts.get(&hash_part(before, part)).cloned().unwrap_or_default();
        for other in alike {
            let Some(held) = &self.pages[other as usize].held else { continue };
            if held.before != before {
                continue;
            }
            if held.tokens.starts_with(part) {
                return;
            }
            // One that holds less, and that nobody uses, is of no use beside this one.
            if part.starts_with(&held.tokens) && self.pages[other as usize].users == 0 {
                self.unused.remove(&self.pages[other as usize].unused_since);
                self.forget(other);
                self.empty.push(other);
            }
        }
        self.forget(*own);
        self.keep(*own, Held { before, tokens: part.into() });
    }

    /// The page that begins with the most of what follows these pages, a sequence's first ones of
    /// all `tokens`, and how many positions that are; never of the last token, which is computed
    /// for what follows it. `None`: too few to be copied. Nobody uses it for that.
    pub fn find_part(&self, kind: u64, pages: &[u32], tokens: &[u32]) -> Option<(u32, u32)> {
        let before = pages.last().map_or(kind, |page| self.pages[*page as usize].name);
        let from = pages.len() * self.positions as usize;
        let rest = tokens.get(from..tokens.len().saturating_sub(1))?;
        if rest.len() < PART_MIN as usize {
            return None;
        }
        let common = |page: &u32| {
            let held = self.pages[*page as usize].held.as_ref()?;
            let alike = held.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count() as u32;
            let is_enough = held.before == before && alike >= PART_MIN;
            is_enough.then_some((*page, alike))
        };
        let alike = self.parts.get(&hash_part(before, rest))?;
        alike.iter().filter_map(common).max_by_key(|(_, positions)| *positions)
    }

    /// How many tokens [`Pages::share`] and [`Pages::find_part`] would find.
    pub fn known(&self, kind: u64, tokens: &[u32]) -> u32 {
        let (mut before, mut pages) = (kind, Vec::new());
        let whole = tokens.len().saturating_sub(1) / self.positions as usize;
        for tokens in tokens.chunks_exact(self.positions as usize).take(whole) {
            let Some((page, name)) = self.follow(before, tokens) else { break };
            pages.push(page);
            before = name;
        }
        let part = self.find_part(kind, &pages, tokens).map_or(0, |(_, positions)| positions);
        pages.len() as u32 * self.positions + part
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

    fn is_full(&self, page: u32) -> bool {
        let held = self.pages[page as usize].held.as_ref();
        held.is_some_and(|held| held.tokens.len() == self.positions as usize)
    }

    /// Lets a page that holds nothing be found by what it holds from now on.
    fn keep(&mut self, page: u32, held: Held) {
        let Held { before, tokens } = &held;
        if tokens.len() == self.positions as usize {
            self.holding.entry(hash(*before, tokens)).or_default().push(page);
        }
        if self.positions > PART_MIN && tokens.len() >= PART_MIN as usize {
            self.parts.entry(hash_part(*before, tokens)).or_default().push(page);
        }
        self.pages[page as usize].held = Some(held);
    }

    /// What it holds is of no use any more.
    fn forget(&mut self, page: u32) {
        let Some(Held { before, tokens }) = self.pages[page as usize].held.take() else { return };
        if tokens.len() == self.positions as usize {
            remove(&mut self.holding, hash(before, &tokens), page);
        }
        if self.positions > PART_MIN && tokens.len() >= PART_MIN as usize {
            remove(&mut self.parts, hash_part(before, &tokens), page);
        }
    }
}

fn remove(pages: &mut HashMap<u64, Vec<u32>>, hash: u64, page: u32) {
    if let Some(alike) = pages.get_mut(&hash) {
        alike.retain(|other| *other != page);
        if alike.is_empty() {
            pages.remove(&hash);
        }
    }
}

/// Of the first tokens that a page must hold to be copied from.
fn hash_part(before: u64, tokens: &[u32]) -> u64 {
    hash(before, &tokens[..PART_MIN as usize])
}

fn hash(before: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, tokens).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
