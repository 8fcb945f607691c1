//! Identity of a model's weights: a hash of every byte of their files. Hashes are stored, so that a
//! file is read once for this purpose and not in every run.
//!
//! A stored hash belongs to one state of a file: path, size, inode, and the times of its last
//! changes in nanoseconds. If anything is wrong with a stored hash, the file is read again.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE};
use profiler::ProfileCache;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shm::sync::{AtomicU64, Ordering};

/// Name of the file with the stored hashes, in the folder of the profiles.
const CACHE_FILE: &str = "weights.json";
/// Maximum number of files whose hashes are stored; beyond it, the stored ones are discarded.
const MAX_CACHED_FILES: usize = 4096;
/// Size of the pieces of a file that threads hash independently.
const PIECE_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 1 << 20;
/// Interval between progress messages of a long read.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// State of a file when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    size_bytes: u64,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    fn from_metadata(metadata: &Metadata) -> FileState {
        FileState {
            size_bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Hashes by canonical path, each with the state of its file.
type HashCache = BTreeMap<PathBuf, (FileState, String)>;

/// Returns the weight files in a model's directory, in order of their names.
pub fn weight_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    files
}

/// Returns the identity of weight files: a hash of their contents in this order. Names and times
/// are excluded, so that a copy has the same identity. Hashes are stored in `cache`.
///
/// # Errors
/// A file that cannot be read.
pub fn weights_identity(files: &[PathBuf], cache: Option<&ProfileCache>) -> io::Result<String> {
    let cache_path = cache.map(|cache| cache.directory().join(CACHE_FILE));
    let mut hashes = cache_path.as_deref().map(read_cache).unwrap_or_default();
    let mut hash = Sha256::new();
    let mut changed = false;
    for path in files {
        let path = path.canonicalize()?;
        let state = FileState::from_metadata(&path.metadata()?);
        let known = hashes.get(&path).filter(|(known, _)| *known == state);
        let content = match known {
            Some((_, content)) => content.clone(),
            None => {
                let content = content_hash(&path, state.size_bytes)?;
                hashes.insert(path, (state, content.clone()));
                changed = true;
                content
            }
        };
        hash.update(content.as_bytes());
    }
    if let (Some(cache_path), true) = (cache_path, changed) {
        // If it cannot be stored, the next run merely has to read the file again.
        let _ = write_cache(&cache_path, hashes);
    }
    Ok(hex(&hash.finalize()[..16]))
}

fn read_cache(path: &Path) -> HashCache {
    std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn write_cache(path: &Path, hashes: HashCache) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let folder = Directory::create(folder, PRIVATE_DIRECTORY_MODE)?;
    let hashes = if hashes.len() > MAX_CACHED_FILES { HashCache::new() } else { hashes };
    let text = serde_json::to_vec(&hashes).map_err(io::Error::other)?;
    folder.replace(path.file_name().unwrap_or_default(), &text, PRIVATE_MODE)
}

/// Returns a hash of the hashes of a file's pieces.
fn content_hash(path: &Path, size_bytes: u64) -> io::Result<String> {
    let file = File::open(path)?;
    let pieces = size_bytes.div_ceil(PIECE_BYTES);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let hash_pieces = || -> io::Result<Vec<(u64, [u8; 32])>> {
        let mut hashes = Vec::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut last_report = Instant::now();
        loop {
            // Relaxed: only the number itself matters, since each piece belongs to one thread.
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return Ok(hashes);
            }
            let begin = piece * PIECE_BYTES;
            let end = size_bytes.min(begin + PIECE_BYTES);
            hashes.push((piece, piece_hash(&file, begin, end, &mut buffer)?));
            let done_bytes = done.fetch_add(end - begin, Ordering::Relaxed) + end - begin;
            if piece.is_multiple_of(threads as u64) && last_report.elapsed() >= PROGRESS_INTERVAL {
                last_report = Instant::now();
                print_progress(path, done_bytes, size_bytes);
            }
        }
    };
    let by_thread = std::thread::scope(|scope| {
        // If the system refuses more threads, this one hashes the remaining pieces.
        let begin = |_| std::thread::Builder::new().spawn_scoped(scope, hash_pieces).ok();
        let threads: Vec<_> = (1..threads).filter_map(begin).collect();
        let own_hashes = hash_pieces();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        std::iter::once(own_hashes)
            .chain(threads.into_iter().map(join))
            .collect::<io::Result<Vec<_>>>()
    })?;
    let mut hashes: Vec<(u64, [u8; 32])> = by_thread.into_iter().flatten().collect();
    hashes.sort_unstable_by_key(|(piece, _)| *piece);
    let mut hash = Sha256::new();
    hash.update(size_bytes.to_le_bytes());
    hashes.iter().for_each(|(_, piece)| hash.update(piece));
    Ok(hex(&hash.finalize()))
}

fn piece_hash(file: &File, begin: u64, end: u64, buffer: &mut [u8]) -> io::Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let mut at = begin;
    while at < end {
        let len =
            usize::try_from(end - at).map_or(buffer.len(), |remaining| remaining.min(buffer.len()));
        file.read_exact_at(&mut buffer[..len], at)?;
        hash.update(&buffer[..len]);
        at += len as u64;
    }
    Ok(hash.finalize().into())
}

fn print_progress(path: &Path, done_bytes: u64, size_bytes: u64) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let name = path.file_name().unwrap_or_default().display();
    eprintln!(
        "reading {name} once to identify its weights: {:.1} of {:.1} GiB",
        gib(done_bytes),
        gib(size_bytes)
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_and_names_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let size = (PIECE_BYTES + 3 * 1024 * 1024 + 5) as usize;
        let mut bytes: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let identity = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            weights_identity(&[path], None).unwrap()
        };
        let first = identity("a", &bytes);
        assert_eq!(identity("b", &bytes), first);
        for changed in [0, size / 2, PIECE_BYTES as usize, size - 1] {
            bytes[changed] ^= 1;
            assert_ne!(identity("a", &bytes), first, "byte {changed}");
            bytes[changed] ^= 1;
        }
        assert_ne!(identity("a", &bytes[..size - 1]), first);
    }

    #[test]
    fn a_file_that_changed_is_read_again_and_damage_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProfileCache::new(folder.path().join("cache"));
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, b"one").unwrap();
        let identity = || weights_identity(std::slice::from_ref(&path), Some(&cache)).unwrap();
        let first = identity();
        let kept = cache.directory().join(CACHE_FILE);
        let mut lied: HashCache = read_cache(&kept);
        assert_eq!(lied.len(), 1);
        // As long as the file is unchanged, the stored hash is returned.
        lied.values_mut().for_each(|(_, hash)| "other".clone_into(hash));
        write_cache(&kept, lied).unwrap();
        assert_ne!(identity(), first);
        let before = path.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, b"two").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
        let two = identity();
        assert_eq!(two, weights_identity(std::slice::from_ref(&path), None).unwrap());
        std::fs::write(&kept, b"{").unwrap();
        assert_eq!(identity(), two);
    }
}
