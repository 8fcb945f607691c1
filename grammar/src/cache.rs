//! A bounded cache that evicts the least recently used values first.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Maximum size of a [`BoundedCache`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheLimits {
    /// Maximum number of values, at least 1.
    pub(crate) count: usize,
    /// Maximum size of all values together. A single larger value is kept until another one is
    /// requested.
    pub(crate) size_bytes: usize,
}

/// A value with a measurable size, which may grow while it is cached.
pub(crate) trait CacheValue {
    fn size_bytes(&self) -> usize;

    /// Returns true if the value must be made again before its next use.
    fn must_rebuild(&self) -> bool;
}

impl<V: CacheValue> CacheValue for Arc<V> {
    fn size_bytes(&self) -> usize {
        (**self).size_bytes()
    }

    fn must_rebuild(&self) -> bool {
        (**self).must_rebuild()
    }
}

/// Values by key, made on demand.
pub(crate) struct BoundedCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// Number of requests so far.
    clock: u64,
    bounds: CacheLimits,
}

struct Entry<V> {
    last_used: u64,
    value: V,
}

impl<K: Hash + Eq + Clone, V: CacheValue> BoundedCache<K, V> {
    pub(crate) fn new(bounds: CacheLimits) -> BoundedCache<K, V> {
        BoundedCache { entries: HashMap::new(), clock: 0, bounds }
    }

    /// Changes the maximum size from now on.
    pub(crate) fn set_max_bytes(&mut self, size_bytes: usize) {
        self.bounds.size_bytes = size_bytes;
    }

    /// Returns the value of a key, calling `make` if it is not cached. Then evicts the least
    /// recently used values until the others are within the bounds.
    pub(crate) fn get_or_insert_with<E>(
        &mut self,
        key: &K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&V, E> {
        self.clock += 1;
        if self.peek(key).is_none_or(CacheValue::must_rebuild) {
            let value = make()?;
            self.entries.insert(key.clone(), Entry { last_used: 0, value });
        }
        let clock = self.clock;
        self.entries.entry(key.clone()).and_modify(|entry| entry.last_used = clock);
        while self.len() > 1 && !self.is_within() {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_used);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.entries.remove(&oldest));
        }
        Ok(&self.entries[key].value)
    }

    /// Returns the value of a key if it is cached.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the size of all values together.
    pub(crate) fn size_bytes(&self) -> usize {
        self.entries.values().map(|entry| entry.value.size_bytes()).sum()
    }

    fn is_within(&self) -> bool {
        let size_bytes = self.size_bytes();
        self.len() <= self.bounds.count && size_bytes <= self.bounds.size_bytes
    }
}

impl<K: Hash + Eq + Clone, V: CacheValue> BoundedCache<K, Arc<V>> {
    /// Returns true if this very value is cached; an equal one does not count.
    pub(crate) fn contains_value(&self, value: &Arc<V>) -> bool {
        self.entries.values().any(|entry| Arc::ptr_eq(&entry.value, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CacheValue for usize {
        fn size_bytes(&self) -> usize {
            *self
        }

        fn must_rebuild(&self) -> bool {
            *self == 77
        }
    }

    fn ask(cache: &mut BoundedCache<u32, usize>, key: u32, size: usize) -> usize {
        *cache.get_or_insert_with(&key, || Ok::<_, ()>(size)).expect("made")
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut cache = BoundedCache::new(CacheLimits { count: 3, size_bytes: 100 });
        for key in [1, 2, 3, 1, 4] {
            ask(&mut cache, key, 1);
        }
        let mut kept: Vec<u32> = cache.entries.keys().copied().collect();
        kept.sort_unstable();
        assert_eq!(kept, [1, 3, 4]);
        assert_eq!(ask(&mut cache, 4, 7), 1, "it is kept");
        // A value larger than the bound is cached alone.
        assert_eq!(ask(&mut cache, 5, 500), 500);
        assert_eq!(cache.len(), 1);
        ask(&mut cache, 6, 90);
        ask(&mut cache, 7, 20);
        assert_eq!(cache.size_bytes(), 20);
    }

    #[test]
    fn what_is_worn_is_made_anew() {
        let mut cache = BoundedCache::new(CacheLimits { count: 3, size_bytes: 100 });
        assert_eq!(ask(&mut cache, 1, 77), 77);
        assert_eq!(ask(&mut cache, 1, 5), 5);
        assert_eq!(ask(&mut cache, 1, 6), 5);
    }

    #[test]
    fn what_cannot_be_made_is_not_kept() {
        let mut cache: BoundedCache<u32, usize> =
            BoundedCache::new(CacheLimits { count: 3, size_bytes: 100 });
        assert_eq!(cache.get_or_insert_with(&1, || Err("no")), Err("no"));
        assert_eq!(ask(&mut cache, 1, 5), 5);
    }
}
