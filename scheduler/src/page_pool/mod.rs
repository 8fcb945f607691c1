//! Pages of KV caches: their users and their contents.
//!
//! A page contains the keys and values of consecutive positions of a sequence. Sequences with a
//! common prefix share the pages of that prefix, which are no longer written. A page without users
//! keeps its contents until another sequence needs the page; the least recently used page is taken
//! first.
//!
//! If layers overwrite what they keep of a sequence, a common prefix can be shared only up to a
//! page at whose end a checkpoint of them was taken; see `checkpoints`.
//!
//! If sequences diverge within a page, the positions before that can be copied. For this purpose,
//! the last page of a sequence is indexed by its first tokens even if it is not full.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use checkpoints::CheckpointPool;

mod checkpoints;

/// Minimum number of positions that are copied; fewer are recomputed.
pub const COPIED_POSITIONS_MIN: u32 = 16;

/// Contents of a page: the tokens that follow those of a previous page. There is one for each
/// position of the page, or fewer if the page is not full.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PageContents {
    /// Name of the previous page; for the first page of a sequence the kind that the owner assigned
    /// to the whole sequence.
    parent: u64,
    tokens: Box<[u32]>,
}

#[derive(Debug, Clone, Default)]
struct Page {
    users: u32,
    contents: Option<PageContents>,
    /// Unique name of the contents, which is never reused for others.
    name: u64,
    /// Time of the last use, valid while the page has no users.
    unused_since: u64,
}

/// Pages that a sequence shares, up to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointedPrefix {
    pub pages: Vec<u32>,
    /// The checkpoint at the end of these pages; `None` if there are none.
    pub checkpoint: Option<u32>,
    /// Number of pages with the sequence's tokens, with and without a checkpoint after them.
    pub known_pages: usize,
}

/// All pages of a server.
#[derive(Debug, Clone)]
pub struct PagePool {
    positions: u32,
    pages: Vec<Page>,
    /// Pages without contents and users.
    empty: Vec<u32>,
    /// Pages with contents but without users, by the time of their last use.
    unused: BTreeMap<u64, u32>,
    /// Full pages, by the hash of their contents.
    full_index: HashMap<u64, Vec<u32>>,
    /// Pages with at least [`COPIED_POSITIONS_MIN`] tokens, by the hash of the first of them. Empty
    /// if pages do not have more positions than that.
    partial_index: HashMap<u64, Vec<u32>>,
    checkpoints: CheckpointPool,
    next_name: u64,
    clock: u64,
}

impl PagePool {
    /// Creates `count` empty pages of `positions` positions each.
    ///
    /// # Panics
    /// If `positions` is 0.
    pub fn new(count: u32, positions: u32) -> PagePool {
        assert!(positions > 0, "a page holds positions");
        PagePool {
            positions,
            pages: vec![Page::default(); count as usize],
            empty: (0..count).rev().collect(),
            unused: BTreeMap::new(),
            full_index: HashMap::new(),
            partial_index: HashMap::new(),
            checkpoints: CheckpointPool::default(),
            // Distinct from the kinds, which owners assign to the first pages of sequences.
            next_name: 1 << 63,
            clock: 0,
        }
    }

    /// Adds memory for `count` checkpoints, without which no sequence can begin after shared pages.
    #[must_use]
    pub fn with_checkpoints(self, count: u32) -> PagePool {
        PagePool { checkpoints: CheckpointPool::new(count), ..self }
    }

    /// Returns the number of positions in a page.
    pub fn positions(&self) -> u32 {
        self.positions
    }

    /// Returns the number of pages in use.
    pub fn used(&self) -> u32 {
        (self.pages.len() - self.empty.len() - self.unused.len()) as u32
    }

    /// Returns the number of pages that can be taken.
    pub fn available(&self) -> u32 {
        (self.empty.len() + self.unused.len()) as u32
    }

    /// Acquires the pages with the longest known prefix of a sequence, but never of all its tokens,
    /// since the last one must be computed to predict the next. `kind` identifies everything else
    /// that the contents depend on, a number below 2^63.
    pub fn acquire_prefix(&mut self, kind: u64, tokens: &[u32]) -> Vec<u32> {
        let mut shared = Vec::new();
        let mut before = kind;
        let whole = tokens.len().saturating_sub(1) / self.positions as usize;
        for tokens in tokens.chunks_exact(self.positions as usize).take(whole) {
            let Some(page) = self.find(before, tokens) else { break };
            self.acquire(page);
            before = self.pages[page as usize].name;
            shared.push(page);
        }
        shared
    }

    /// Acquires the pages with the longest known prefix of a sequence that ends with a checkpoint,
    /// and that checkpoint, which is released with [`PagePool::release_checkpoint`]. `tokens` and
    /// `kind` are those of [`PagePool::acquire_prefix`].
    pub fn acquire_checkpointed(&mut self, kind: u64, tokens: &[u32]) -> CheckpointedPrefix {
        let (known, checkpointed) = self.find_checkpointed(kind, tokens);
        let (count, checkpoint) = checkpointed.unzip();
        let pages = known[..count.unwrap_or(0)].to_vec();
        pages.iter().for_each(|page| self.acquire(*page));
        checkpoint.iter().for_each(|number| self.checkpoints.acquire(*number));
        CheckpointedPrefix { pages, checkpoint, known_pages: known.len() }
    }

    /// Returns the pages with the longest known prefix, and of those the number before the last
    /// checkpoint, and that checkpoint.
    fn find_checkpointed(&self, kind: u64, tokens: &[u32]) -> (Vec<u32>, Option<(usize, u32)>) {
        let (mut pages, mut before, mut checkpointed) = (Vec::new(), kind, None);
        let whole = tokens.len().saturating_sub(1) / self.positions as usize;
        for tokens in tokens.chunks_exact(self.positions as usize).take(whole) {
            let Some((page, name)) = self.find_next(before, tokens) else { break };
            pages.push(page);
            checkpointed =
                self.checkpoints.find(name).map(|number| (pages.len(), number)).or(checkpointed);
            before = name;
        }
        (pages, checkpointed)
    }

    /// Returns the number of tokens after which a sequence could begin with a checkpoint.
    pub fn count_checkpointed(&self, kind: u64, tokens: &[u32]) -> u32 {
        let (_, checkpointed) = self.find_checkpointed(kind, tokens);
        checkpointed.map_or(0, |(pages, _)| pages as u32 * self.positions)
    }

    /// Reserves memory for a checkpoint and returns its number. Evicts the least recently used one
    /// if necessary; `None` if none can be evicted.
    pub fn reserve_checkpoint(&mut self) -> Option<u32> {
        self.checkpoints.reserve()
    }

    /// Records that a reserved checkpoint was taken at the end of a page, whose contents are
    /// recorded as full.
    pub fn record_checkpoint(&mut self, number: u32, page: u32) {
        self.checkpoints.record(number, self.pages[page as usize].name);
    }

    /// Returns a reserved checkpoint that was not taken.
    pub fn cancel_checkpoint(&mut self, number: u32) {
        self.checkpoints.cancel(number);
    }

    /// Acquires the checkpoint at the end of the page with contents `name`, if there is one.
    pub fn acquire_checkpoint(&mut self, name: u64) -> Option<u32> {
        let number = self.checkpoints.find(name)?;
        self.checkpoints.acquire(number);
        Some(number)
    }

    /// Acquires the checkpoint at the end of a page, if there is one.
    pub fn acquire_checkpoint_of(&mut self, page: u32) -> Option<u32> {
        self.acquire_checkpoint(self.pages[page as usize].name)
    }

    /// Releases a checkpoint that was acquired.
    pub fn release_checkpoint(&mut self, number: u32) {
        self.checkpoints.release(number);
    }

    /// Evicts the checkpoint at the end of a page, if there is one. The page keeps its contents.
    pub fn evict_checkpoint(&mut self, page: u32) {
        self.checkpoints.evict(self.pages[page as usize].name);
    }

    /// Returns the number of checkpoints that were taken and are kept.
    pub fn checkpoints(&self) -> usize {
        self.checkpoints.taken()
    }

    /// Acquires a page to write to; `None` if all pages are in use.
    pub fn allocate(&mut self) -> Option<u32> {
        let page = match self.empty.pop() {
            Some(page) => page,
            None => {
                let (_, page) = self.unused.pop_first()?;
                self.clear_contents(page);
                page
            }
        };
        self.pages[page as usize].users = 1;
        Some(page)
    }

    /// Records that the last page of a sequence is full. `pages` are the sequence's pages up to
    /// this one, in order, and `tokens` all tokens in them.
    ///
    /// # Panics
    /// If `pages` is empty, the last page is not in use, or the number of tokens is not that of the
    /// pages' positions.
    pub fn record_full(&mut self, kind: u64, pages: &[u32], tokens: &[u32]) {
        assert_eq!(tokens.len(), pages.len() * self.positions as usize, "full pages");
        let (own, others) = pages.split_last().expect("a page is full");
        let parent = others.last().map_or(kind, |page| self.pages[*page as usize].name);
        let last = &tokens[tokens.len() - self.positions as usize..];
        assert!(self.pages[*own as usize].users > 0, "page {own} is in use");
        if self.is_full(*own) {
            return;
        }
        // The page may be indexed by its first tokens.
        self.clear_contents(*own);
        let own_place = *own as usize;
        if let Some(same) = self.find(parent, last) {
            // Two sequences computed the contents concurrently; the first page is kept.
            self.pages[own_place].name = self.pages[same as usize].name;
            return;
        }
        self.pages[own_place].name = self.next_name;
        self.next_name += 1;
        self.set_contents(*own, PageContents { parent, tokens: last.into() });
    }

    /// Records the contents of the last page of a sequence while it is not full: its first
    /// positions, which are no longer written. `tokens` are all tokens in `pages`. Contents that
    /// another page also has are stored only once.
    ///
    /// # Panics
    /// If `pages` is empty, or the last page is not in use or would be full.
    pub fn record_partial(&mut self, kind: u64, pages: &[u32], tokens: &[u32]) {
        let (own, others) = pages.split_last().expect("a page is filled");
        let part = &tokens[others.len() * self.positions as usize..];
        assert!(part.len() < self.positions as usize, "a part of a page");
        assert!(self.pages[*own as usize].users > 0, "page {own} is in use");
        if part.len() < COPIED_POSITIONS_MIN as usize || self.is_full(*own) {
            return;
        }
        let parent = others.last().map_or(kind, |page| self.pages[*page as usize].name);
        let matches = self.partial_index.get(&hash_part(parent, part)).cloned().unwrap_or_default();
        for other in matches {
            let Some(held) = &self.pages[other as usize].contents else { continue };
            if held.parent != parent {
                continue;
            }
            if held.tokens.starts_with(part) {
                return;
            }
            // A page without users whose contents are a prefix of this page's is no longer needed.
            if part.starts_with(&held.tokens) && self.pages[other as usize].users == 0 {
                self.unused.remove(&self.pages[other as usize].unused_since);
                self.clear_contents(other);
                self.empty.push(other);
            }
        }
        self.clear_contents(*own);
        self.set_contents(*own, PageContents { parent, tokens: part.into() });
    }

    /// Returns the page with the longest prefix of the tokens that follow `pages`, which are the
    /// first pages of a sequence of `tokens`, and the number of its positions. The last token is
    /// never included, since it must be computed to predict the next. Returns `None` if there are
    /// too few positions to copy. Does not acquire the page.
    pub fn find_partial(&self, kind: u64, pages: &[u32], tokens: &[u32]) -> Option<(u32, u32)> {
        let before = pages.last().map_or(kind, |page| self.pages[*page as usize].name);
        let from = pages.len() * self.positions as usize;
        let rest = tokens.get(from..tokens.len().saturating_sub(1))?;
        if rest.len() < COPIED_POSITIONS_MIN as usize {
            return None;
        }
        let common = |page: &u32| {
            let held = self.pages[*page as usize].contents.as_ref()?;
            let matches = held.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count() as u32;
            let is_enough = held.parent == before && matches >= COPIED_POSITIONS_MIN;
            is_enough.then_some((*page, matches))
        };
        let matches = self.partial_index.get(&hash_part(before, rest))?;
        matches.iter().filter_map(common).max_by_key(|(_, positions)| *positions)
    }

    /// Returns the number of tokens that [`PagePool::acquire_prefix`] and
    /// [`PagePool::find_partial`] would find.
    pub fn count_cached(&self, kind: u64, tokens: &[u32]) -> u32 {
        let (mut before, mut pages) = (kind, Vec::new());
        let whole = tokens.len().saturating_sub(1) / self.positions as usize;
        for tokens in tokens.chunks_exact(self.positions as usize).take(whole) {
            let Some((page, name)) = self.find_next(before, tokens) else { break };
            pages.push(page);
            before = name;
        }
        let part = self.find_partial(kind, &pages, tokens).map_or(0, |(_, positions)| positions);
        pages.len() as u32 * self.positions + part
    }

    /// Returns the page with these tokens after the contents named `before`, which is the name of a
    /// page or the kind of a sequence, and the name of its own contents. Does not acquire the page.
    pub fn find_next(&self, before: u64, tokens: &[u32]) -> Option<(u32, u64)> {
        let page = self.find(before, tokens)?;
        Some((page, self.pages[page as usize].name))
    }

    /// Acquires a page that was just found.
    pub fn acquire(&mut self, page: u32) {
        let place = &mut self.pages[page as usize];
        if place.users == 0 {
            self.unused.remove(&place.unused_since);
        }
        place.users += 1;
    }

    /// Releases a page. The pages of a sequence are released starting with the last one, since a
    /// page is useless without those before it.
    ///
    /// # Panics
    /// If the page is not in use.
    pub fn release(&mut self, page: u32) {
        let place = &mut self.pages[page as usize];
        place.users = place.users.checked_sub(1).expect("the page is in use");
        if place.users > 0 {
            return;
        }
        if place.contents.is_none() {
            self.empty.push(page);
            return;
        }
        place.unused_since = self.clock;
        self.unused.insert(self.clock, page);
        self.clock += 1;
    }

    fn find(&self, before: u64, tokens: &[u32]) -> Option<u32> {
        let matches = self.full_index.get(&hash(before, tokens))?;
        let holds = |page: &&u32| {
            let held = self.pages[**page as usize].contents.as_ref();
            held.is_some_and(|held| held.parent == before && *held.tokens == *tokens)
        };
        matches.iter().find(holds).copied()
    }

    fn is_full(&self, page: u32) -> bool {
        let held = self.pages[page as usize].contents.as_ref();
        held.is_some_and(|held| held.tokens.len() == self.positions as usize)
    }

    /// Indexes a page without contents by its new contents.
    fn set_contents(&mut self, page: u32, held: PageContents) {
        let PageContents { parent, tokens } = &held;
        if tokens.len() == self.positions as usize {
            self.full_index.entry(hash(*parent, tokens)).or_default().push(page);
        }
        if self.positions > COPIED_POSITIONS_MIN && tokens.len() >= COPIED_POSITIONS_MIN as usize {
            self.partial_index.entry(hash_part(*parent, tokens)).or_default().push(page);
        }
        self.pages[page as usize].contents = Some(held);
    }

    /// Removes the contents of a page and its index entries.
    fn clear_contents(&mut self, page: u32) {
        let Some(PageContents { parent, tokens }) = self.pages[page as usize].contents.take()
        else {
            return;
        };
        if tokens.len() == self.positions as usize {
            self.checkpoints.evict(self.pages[page as usize].name);
            remove(&mut self.full_index, hash(parent, &tokens), page);
        }
        if self.positions > COPIED_POSITIONS_MIN && tokens.len() >= COPIED_POSITIONS_MIN as usize {
            remove(&mut self.partial_index, hash_part(parent, &tokens), page);
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

/// Hashes the first [`COPIED_POSITIONS_MIN`] tokens, which a page must contain to be copied from.
fn hash_part(before: u64, tokens: &[u32]) -> u64 {
    hash(before, &tokens[..COPIED_POSITIONS_MIN as usize])
}

fn hash(before: u64, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, tokens).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
