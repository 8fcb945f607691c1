//! Stored responses: one file per response in a directory of bounded size.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE};
use lru::LruCache;
use openai::responses::stored::StoredResponse;
use rustix::fs::OFlags;

/// Beginning of the id of a response, which is followed by lowercase hexadecimal digits.
const ID_PREFIX: &str = "resp_";
const MAX_ID_DIGITS: usize = 64;
const EXTENSION: &str = ".json";

/// Size of a block of a file system, in bytes: a file uses a whole number of them.
const BLOCK_BYTES: u64 = 4096;

/// Stored responses. The least recently used ones are removed if there are too many bytes.
#[derive(Debug)]
pub struct ResponseStore {
    directory: Directory,
    max_bytes: u64,
    /// Maximum size of a record, which is in memory while it is read or written.
    max_record_bytes: u64,
    index: Mutex<StoreIndex>,
}

/// Sizes of the stored files.
#[derive(Debug)]
struct StoreIndex {
    /// Sizes in bytes, by response, in order of use.
    sizes: LruCache<String, u64>,
    total_bytes: u64,
}

impl ResponseStore {
    /// Opens a directory, which is created if it is missing, with at most `max_bytes` bytes, and at
    /// most `max_record_bytes` in each file. Files that are not stored responses are left alone.
    ///
    /// # Errors
    /// The directory cannot be created or read.
    pub fn open(path: &Path, max_bytes: u64, max_record_bytes: u64) -> io::Result<ResponseStore> {
        let directory = Directory::create(path, PRIVATE_DIRECTORY_MODE)?;
        let mut found: Vec<(SystemTime, String, u64)> = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(EXTENSION));
            let metadata = entry.metadata()?;
            if let Some(id) = id.filter(|id| is_id(id) && metadata.is_file()) {
                found.push((metadata.modified()?, id.to_owned(), metadata.len()));
            }
        }
        found.sort();
        let mut index = StoreIndex { sizes: LruCache::unbounded(), total_bytes: 0 };
        for (_, id, bytes) in found {
            index.insert(id, bytes);
        }
        let store =
            ResponseStore { directory, max_bytes, max_record_bytes, index: Mutex::new(index) };
        store.evict(&mut store.lock());
        Ok(store)
    }

    /// Returns a stored response with at most `max_values` JSON values; `None` if there is none, or
    /// if its file is damaged.
    pub fn get(&self, id: &str, max_values: usize) -> Option<StoredResponse> {
        self.lock().sizes.get(id)?;
        let file = self.directory.open_file(file_name(id), OFlags::RDONLY, 0).ok()?;
        // Not the size in the index, which is that of another file while a response is replaced.
        let bytes = file.metadata().ok()?.len();
        if bytes > self.max_record_bytes {
            return None;
        }
        let mut content = Vec::new();
        file.take(bytes).read_to_end(&mut content).ok()?;
        StoredResponse::parse(&content, max_values)
    }

    /// Returns the stored item with the given id, which ends with the id of its response and an
    /// index.
    pub fn get_item(&self, id: &str, max_values: usize) -> Option<serde_json::Value> {
        let suffix = id.split('_').nth(1)?;
        let stored = self.get(&format!("{ID_PREFIX}{suffix}"), max_values)?;
        stored.into_items().into_iter().find(|item| item["id"] == id)
    }

    /// Stores a response.
    ///
    /// # Errors
    /// The file cannot be written, or the response and its conversation are too large.
    pub fn put(&self, id: &str, stored: &StoredResponse) -> io::Result<()> {
        let content = stored.to_bytes();
        if !is_id(id) || content.len() as u64 > self.max_bytes.min(self.max_record_bytes) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.directory.replace(file_name(id), &content, PRIVATE_MODE)?;
        let mut index = self.lock();
        index.insert(id.to_owned(), content.len() as u64);
        self.evict(&mut index);
        Ok(())
    }

    /// Removes a response; returns false if there is none.
    pub fn remove(&self, id: &str) -> bool {
        let is_removed = self.lock().remove(id);
        is_removed && self.directory.remove_file(file_name(id)).is_ok()
    }

    /// Removes the least recently used responses while there are too many bytes.
    fn evict(&self, index: &mut StoreIndex) {
        while index.total_bytes > self.max_bytes {
            let Some((id, bytes)) = index.sizes.pop_lru() else { return };
            index.total_bytes -= used_bytes(bytes);
            // A file that another program removed needs no space either.
            let _ = self.directory.remove_file(file_name(&id));
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoreIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreIndex {
    fn insert(&mut self, id: String, bytes: u64) {
        self.remove(&id);
        self.total_bytes += used_bytes(bytes);
        self.sizes.put(id, bytes);
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(bytes) = self.sizes.pop(id) else { return false };
        self.total_bytes -= used_bytes(bytes);
        true
    }
}

/// Returns the number of bytes that a file uses.
fn used_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES).max(1) * BLOCK_BYTES
}

fn file_name(id: &str) -> String {
    format!("{id}{EXTENSION}")
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(ID_PREFIX).is_some_and(|digits| {
        (1..=MAX_ID_DIGITS).contains(&digits.len()) && digits.bytes().all(is_digit)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(id: &str, length: usize) -> StoredResponse {
        let input = vec![json!({"role": "user", "content": "x".repeat(length)})];
        StoredResponse::new(json!({"id": id, "output": [{"id": "msg_a_0"}]}), input)
    }

    #[test]
    fn the_least_recently_used_response_is_evicted_and_a_restart_finds_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = ResponseStore::open(folder.path(), 3 * BLOCK_BYTES, 1 << 20).expect("a store");
        std::fs::write(folder.path().join("notes.json"), "mine").expect("written");
        for id in ["resp_1", "resp_2", "resp_3"] {
            store.put(id, &stored(id, 10)).expect("stored");
        }
        assert!(store.get("resp_1", 100).is_some(), "used again");
        store.put("resp_4", &stored("resp_4", 10)).expect("stored");
        let is_there = |store: &ResponseStore, id: &str| store.get(id, 100).is_some();
        assert!(!is_there(&store, "resp_2") && is_there(&store, "resp_1"));
        assert!(store.put("resp_5", &stored("resp_5", 20_000)).is_err(), "larger than all");
        assert!(store.put("../x", &stored("../x", 1)).is_err());
        assert!(store.get("../notes", 100).is_none());
        drop(store);
        let store = ResponseStore::open(folder.path(), 2 * BLOCK_BYTES, 1 << 20).expect("a store");
        let left = ["resp_1", "resp_3", "resp_4"].iter().filter(|id| is_there(&store, id)).count();
        assert_eq!(left, 2, "the bound is smaller");
        assert!(store.remove("resp_4") && !store.remove("resp_4"));
        assert!(folder.path().join("notes.json").exists());
    }

    #[test]
    fn items_are_found_by_their_ids_and_damage_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = ResponseStore::open(folder.path(), 1 << 20, 1 << 20).expect("a store");
        store.put("resp_a", &stored("resp_a", 1)).expect("stored");
        assert_eq!(store.get_item("msg_a_0", 100), Some(json!({"id": "msg_a_0"})));
        assert!(store.get_item("msg_a_in0", 100).is_some() && store.get_item("msg", 100).is_none());
        assert!(store.get("resp_a", 5).is_none(), "too many values");
        std::fs::write(folder.path().join("resp_a.json"), "{").expect("written");
        assert!(store.get("resp_a", 100).is_none());
    }
}
