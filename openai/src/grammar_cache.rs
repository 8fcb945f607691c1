//! Cache of the grammars that requests specify, so that each of them is checked once.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grammar::{Checker, Grammar, GrammarError};
use lru::LruCache;

use super::input_line::{CompletionRequest, ErrorCode, Rejection};

/// Maximum size of the cached grammars, in bytes.
const MAX_CACHE_BYTES: usize = 64 << 20;
/// Size of an entry in addition to its text, in bytes.
const ENTRY_BYTES: usize = 256;
/// Maximum number of idle checkers.
const MAX_IDLE_CHECKERS: usize = 8;

/// Cache of grammars that can be followed, and of those that cannot. Several threads check at a
/// time: no lock is held while a grammar is checked.
#[derive(Default)]
pub struct GrammarCache {
    entries: Mutex<CacheEntries>,
    idle: Mutex<Vec<Checker>>,
}

/// Entries of the cache, the least recently used of which are evicted first, refused ones before
/// accepted ones.
struct CacheEntries {
    /// Accepted grammars, shared by the requests that specify them.
    accepted: LruCache<Arc<Grammar>, ()>,
    /// Errors of refused grammars, by the hashes of their texts.
    refused: LruCache<u64, GrammarError>,
    hasher: RandomState,
    size_bytes: usize,
}

impl Default for CacheEntries {
    fn default() -> CacheEntries {
        let (accepted, refused) = (LruCache::unbounded(), LruCache::unbounded());
        CacheEntries { accepted, refused, hasher: RandomState::new(), size_bytes: 0 }
    }
}

impl std::fmt::Debug for GrammarCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCache").field("size_bytes", &self.size_bytes()).finish()
    }
}

impl GrammarCache {
    /// Returns the request with its grammar shared by all requests that specify an equal one.
    ///
    /// # Errors
    /// Returns a rejection if no answer can follow the grammar.
    pub fn check_request(
        &self,
        mut request: CompletionRequest,
    ) -> Result<CompletionRequest, Rejection> {
        request.grammar = request.grammar.map(|grammar| self.check(grammar)).transpose()?;
        Ok(request)
    }

    /// Returns the grammar that requests with an equal one share.
    ///
    /// # Errors
    /// Returns a rejection if no answer can follow the grammar.
    pub fn check(&self, grammar: Arc<Grammar>) -> Result<Arc<Grammar>, Rejection> {
        let known = lock(&self.entries).get(&grammar);
        let checked = known.unwrap_or_else(|| {
            let checked = self.check_uncached(&grammar);
            lock(&self.entries).insert(&grammar, &checked);
            checked.map(|()| Arc::clone(&grammar))
        });
        checked.map_err(|error| {
            let rejection = |message| Rejection::new(ErrorCode::InvalidValue, message);
            match grammar.calls() {
                Some(_) => {
                    rejection(format!("Invalid value for 'tools': {error}.")).with_param("tools")
                }
                None => rejection(format!("Invalid response format: {error}.")),
            }
        })
    }

    /// Returns the size of all entries, in bytes.
    pub fn size_bytes(&self) -> usize {
        lock(&self.entries).size_bytes
    }

    fn check_uncached(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        let idle = lock(&self.idle).pop();
        let checker = idle.map_or_else(Checker::new, Ok)?;
        let checked = checker.check(grammar);
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE_CHECKERS {
            idle.push(checker);
        }
        checked
    }
}

impl CacheEntries {
    fn get(&mut self, grammar: &Arc<Grammar>) -> Option<Result<Arc<Grammar>, GrammarError>> {
        if let Some((known, ())) = self.accepted.get_key_value(grammar) {
            return Some(Ok(Arc::clone(known)));
        }
        let hash = self.hasher.hash_one(grammar);
        self.refused.get(&hash).map(|error| Err(error.clone()))
    }

    fn insert(&mut self, grammar: &Arc<Grammar>, checked: &Result<(), GrammarError>) {
        match checked {
            Ok(()) => {
                if self.accepted.put(Arc::clone(grammar), ()).is_none() {
                    self.size_bytes += accepted_bytes(grammar);
                }
            }
            Err(error) => {
                let hash = self.hasher.hash_one(grammar);
                self.size_bytes += refused_bytes(error);
                if let Some(before) = self.refused.put(hash, error.clone()) {
                    self.size_bytes -= refused_bytes(&before);
                }
            }
        }
        while self.size_bytes > MAX_CACHE_BYTES {
            let refused = self.refused.pop_lru().map(|(_, error)| refused_bytes(&error));
            let accepted = || self.accepted.pop_lru().map(|(grammar, ())| accepted_bytes(&grammar));
            let Some(freed) = refused.or_else(accepted) else { break };
            self.size_bytes -= freed;
        }
    }
}

fn accepted_bytes(grammar: &Grammar) -> usize {
    grammar.text_bytes() + ENTRY_BYTES
}

fn refused_bytes(error: &GrammarError) -> usize {
    error.to_string().len() + ENTRY_BYTES
}

/// Locks a mutex, whose value is consistent even if a thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(number: usize, padding: usize) -> Arc<Grammar> {
        let padding = "x".repeat(padding);
        let text = format!("{{\"description\":\"{padding}\",\"const\":{number}}}");
        Arc::new(Grammar::json_schema(text))
    }

    #[test]
    fn equal_grammars_are_checked_once_and_shared() {
        let cache = GrammarCache::default();
        let first = cache.check(schema(1, 10)).expect("it can be followed");
        let again = cache.check(schema(1, 10)).expect("it can be followed");
        assert!(Arc::ptr_eq(&first, &again));
        let wrong = || Arc::new(Grammar::Regex("(".to_owned()));
        let refused = cache.check(wrong()).expect_err("no expression");
        assert_eq!(cache.check(wrong()), Err(refused));
    }

    #[test]
    fn what_is_remembered_is_bounded_in_bytes() {
        let cache = GrammarCache::default();
        let recent = schema(0, 0);
        for number in 0..80 {
            cache.check(schema(number + 1, 1_000_000)).expect("it can be followed");
            let kept = cache.check(Arc::clone(&recent)).expect("it can be followed");
            assert!(Arc::ptr_eq(&kept, &recent), "what is used stays");
            assert!(cache.size_bytes() <= MAX_CACHE_BYTES, "{}", cache.size_bytes());
        }
        assert!(cache.size_bytes() > MAX_CACHE_BYTES - 2_000_000, "{}", cache.size_bytes());
    }
}
