//! Which weights a model has: a hash over every byte of their files, kept so that a file is read
//! once for it and not at every run.
//!
//! A kept hash is of the file as it was: path, size, inode, and the times of its last change to the
//! nanosecond. Whatever is wrong with what is kept, the file is read again.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE};
use profiler::Cache;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shm::sync::{AtomicU64, Ordering};

/// What is kept is one file of this name beside the profiles.
const KEPT: &str = "weights.json";
/// Files that are remembered, at most; then the file begins anew.
const KEPT_MAX: usize = 4096;
/// Threads take pieces of this size, which are hashed each by itself.
const PIECE_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 1 << 20;
/// A reading that takes longer is told so often.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// A file and the state in which it was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    size_bytes: u64,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl State {
    fn of(metadata: &Metadata) -> State {
        State {
            size_bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Hashes by canonical path, with the state of the file that each is of.
type Kept = BTreeMap<PathBuf, (State, String)>;

/// Files of a model's weights, for its identity.
pub fn weight_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    files
}

/// Identity of weight files: a hash over their contents in this order. Names and times are left
/// out, so that a copy is the same. `cache` is where hashes are kept.
///
/// # Errors
/// A file that cannot be read.
pub fn weights_identity(files: &[PathBuf], cache: Option<&Cache>) -> io::Result<String> {
    let kept_at = cache.map(|cache| cache.directory().join(KEPT));
    let mut kept = kept_at.as_deref().map(read_kept).unwrap_or_default();
    let mut hash = Sha256::new();
    let mut changed = false;
    for path in files {
        let path = path.canonicalize()?;
        let state = State::of(&path.metadata()?);
        let known = kept.get(&path).filter(|(known, _)| *known == state);
        let content = match known {
            Some((_, content)) => content.clone(),
            None => {
                let content = content_hash(&path, state.size_bytes)?;
                kept.insert(path, (state, content.clone()));
                changed = true;
                content
            }
        };
        hash.update(content.as_bytes());
    }
    if let (Some(kept_at), true) = (kept_at, changed) {
        // Not being able to keep it only costs the next run a reading.
        let _ = write_kept(&kept_at, kept);
    }
    Ok(hex(&hash.finalize()[..16]))
}

fn read_kept(path: &Path) -> Kept {
    std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

fn write_kept(path: &Path, kept: Kept) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let folder = Directory::create(folder, PRIVATE_DIRECTORY_MODE)?;
    let kept = if kept.len() > KEPT_MAX { Kept::new() } else { kept };
    let text = serde_json::to_vec(&kept).map_err(io::Error::other)?;
    folder.replace(path.file_name().unwrap_or_default(), &text, PRIVATE_MODE)
}

/// A hash over the hashes of a file's pieces.
fn content_hash(path: &Path, size_bytes: u64) -> io::Result<String> {
    let file = File::open(path)?;
    let pieces = size_bytes.div_ceil(PIECE_BYTES);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let hash_pieces = || -> io::Result<Vec<(u64, [u8; 32])>> {
        let mut hashes = Vec::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut said = Instant::now();
        loop {
            // Relaxed: only the number matters, each piece is one thread's.
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return Ok(hashes);
            }
            let begin = piece * PIECE_BYTES;
            let end = size_bytes.min(begin + PIECE_BYTES);
            hashes.push((piece, piece_hash(&file, begin, end, &mut buffer)?));
            let done_bytes = done.fetch_add(end - begin, Ordering::Relaxed) + end - begin;
            if piece.is_multiple_of(threads as u64) && said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                say(path, done_bytes, size_bytes);
            }
        }
    };
    let by_thread = std::thread::scope(|scope| {
        // One by one where the system starts no more threads.
        let begin = |_| std::thread::Builder::new().spawn_scoped(scope, hash_pieces).ok();
        let threads: Vec<_> = (1..threads).filter_map(begin).collect();
        let ours = hash_pieces();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        std::iter::once(ours).chain(threads.into_iter().map(join)).collect::<io::Result<Vec<_>>>()
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
        let len = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        file.read_exact_at(&mut buffer[..len], at)?;
        hash.update(&buffer[..len]);
        at += len as u64;
    }
    Ok(hash.finalize().into())
}

fn say(path: &Path, done_bytes: u64, size_bytes: u64) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let name = path.file_name().unwrap_or_default().display();
    eprintln!(
        "reading {name} once, to know these weights again: {:.1} of {:.1} GiB",
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
        let cache = Cache::new(folder.path().join("cache"));
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, b"one").unwrap();
        let of = || weights_identity(std::slice::from_ref(&path), Some(&cache)).unwrap();
        let one = of();
        let kept = cache.directory().join(KEPT);
        let mut lied: Kept = read_kept(&kept);
        assert_eq!(lied.len(), 1);
        // What is kept is what is told, as long as the file is as it was.
        lied.values_mut().for_each(|(_, hash)| "other".clone_into(hash));
        write_kept(&kept, lied).unwrap();
        assert_ne!(of(), one);
        let before = path.metadata().unwrap().modified().unwrap();
        std::fs::write(&path, b"two").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
        let two = of();
        assert_eq!(two, weights_identity(std::slice::from_ref(&path), None).unwrap());
        std::fs::write(&kept, b"{").unwrap();
        assert_eq!(of(), two);
    }
}
