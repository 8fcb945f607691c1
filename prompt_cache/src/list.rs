//! Listing the content of a store for people, and removing it.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::files::{
    ORIGIN_FILE, PageFile, list_folders, list_pages, open_regular, remove_temporary_files,
};
use crate::page_hash::PageHash;
use crate::page_header::FixedHeader;
use crate::page_origin::PageOrigin;
use crate::page_reader::read_head;

/// Maximum size of the description of an origin.
const ORIGIN_MAX_BYTES: u64 = 1 << 20;

/// Content of a store.
#[derive(Debug)]
pub struct StoreListing {
    pub size_bytes: u64,
    pub origins: Vec<OriginPages>,
}

/// Pages of one origin.
#[derive(Debug)]
pub struct OriginPages {
    pub folder: PathBuf,
    /// `None` if the folder contains no valid description.
    pub origin: Option<PageOrigin>,
    pub size_bytes: u64,
    pub prefixes: Vec<CachedPrefix>,
    /// Pages that no run can use: damaged, or with a missing predecessor.
    pub unusable: Vec<PathBuf>,
}

/// A prompt prefix that is not part of a longer one.
#[derive(Debug, Clone)]
pub struct CachedPrefix {
    /// Name of its last page.
    pub name: PageHash,
    pub tokens: u64,
    /// Size of its pages, some of which may be shared with other prefixes.
    pub size_bytes: u64,
    pub last_used: SystemTime,
    pages: Vec<PageHash>,
}

/// Lists a store by reading the headers of its pages.
///
/// # Errors
/// Fails if a folder cannot be read.
pub fn list_store(store: &Path) -> io::Result<StoreListing> {
    let mut origins = Vec::new();
    for folder in list_folders(store)? {
        let origin = read_origin(&folder.join(ORIGIN_FILE));
        let pages = list_pages(&folder)?;
        let size_bytes = pages.iter().map(|page| page.size_bytes).sum();
        let (prefixes, unusable) = find_prefixes(&pages);
        // A run that has stored nothing leaves its folder.
        if origin.is_none() && pages.is_empty() {
            continue;
        }
        origins.push(OriginPages { folder, origin, size_bytes, prefixes, unusable });
    }
    Ok(StoreListing { size_bytes: origins.iter().map(|listed| listed.size_bytes).sum(), origins })
}

/// Reads the description of an origin; `None` if it is missing or damaged.
fn read_origin(path: &Path) -> Option<PageOrigin> {
    let mut text = Vec::new();
    open_regular(path).ok()?.take(ORIGIN_MAX_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the longest prefixes, the most recently used first, and the pages that belong to none.
fn find_prefixes(pages: &[PageFile]) -> (Vec<CachedPrefix>, Vec<PathBuf>) {
    let read = |page: &PageFile| -> Option<FixedHeader> {
        let head = read_head(&open_regular(&page.path).ok()?).ok()?;
        (head.name == page.name).then_some(head)
    };
    let known: HashMap<PageHash, (FixedHeader, &PageFile)> =
        pages.iter().filter_map(|page| Some((page.name, (read(page)?, page)))).collect();
    let pages_only = || known.values().filter(|(head, _)| head.tokens > 0);
    let followed: HashSet<PageHash> = pages_only().map(|(head, _)| head.previous).collect();
    let mut found = Vec::new();
    let mut useful = HashSet::new();
    for (head, file) in pages_only().filter(|(head, _)| !followed.contains(&head.name)) {
        let mut beginning = CachedPrefix {
            name: head.name,
            tokens: 0,
            size_bytes: 0,
            last_used: file.last_used,
            pages: Vec::new(),
        };
        let mut next = Some((head.name, head.index));
        // The index stops cycles of headers that name each other; these are not prefixes.
        while let Some((head, file)) =
            next.and_then(|(name, index)| known.get(&name).filter(|(head, _)| head.index == index))
        {
            beginning.pages.push(head.name);
            beginning.tokens += u64::from(head.tokens);
            beginning.size_bytes += file.size_bytes;
            let checkpoint = known.get(&head.name.checkpoint());
            if let Some((checkpoint, file)) = checkpoint.filter(|(found, _)| found.tokens == 0) {
                beginning.pages.push(checkpoint.name);
                beginning.size_bytes += file.size_bytes;
            }
            next = head.index.checked_sub(1).map(|index| (head.previous, index));
        }
        // A prefix without its first page is never found.
        if next.is_none() {
            useful.extend(beginning.pages.iter().copied());
            found.push(beginning);
        }
    }
    found.sort_by(|a, b| b.last_used.cmp(&a.last_used).then(a.name.cmp(&b.name)));
    let useless = pages.iter().filter(|page| !useful.contains(&page.name));
    (found, useless.map(|page| page.path.clone()).collect())
}

/// Removes the prefixes for which `should_remove` returns true, except for pages that they share
/// with other prefixes, and all unusable pages. Returns the number of bytes removed. Runs keep what
/// they have read.
///
/// # Errors
/// Fails if a folder cannot be read or a file cannot be removed.
pub fn remove_prefixes(
    store: &Path,
    mut should_remove: impl FnMut(&OriginPages, &CachedPrefix) -> bool,
) -> io::Result<u64> {
    let mut removed_bytes = 0;
    for listed in list_store(store)?.origins {
        let mut kept: HashSet<PageHash> = HashSet::new();
        for beginning in &listed.prefixes {
            if !should_remove(&listed, beginning) {
                kept.extend(beginning.pages.iter().copied());
            }
        }
        let mut removable = list_pages(&listed.folder)?;
        removable.retain(|page| !kept.contains(&page.name));
        for page in removable {
            match std::fs::remove_file(&page.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => removed_bytes += page.size_bytes,
            }
        }
        remove_temporary_files(&listed.folder);
        if kept.is_empty() {
            let _ = std::fs::remove_file(listed.folder.join(ORIGIN_FILE));
            // Fails if another process is writing there.
            let _ = std::fs::remove_dir(&listed.folder);
        }
    }
    Ok(removed_bytes)
}
