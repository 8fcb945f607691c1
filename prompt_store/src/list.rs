//! Listing the content of a store for people, and removing it.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::entry::Head;
use crate::files::{ORIGIN, PageFile, folders, open_regular, pages, remove_torn};
use crate::name::Name;
use crate::origin::Origin;
use crate::read::head;

/// Maximum size of the description of an origin.
const ORIGIN_MAX_BYTES: u64 = 1 << 20;

/// Content of a store.
#[derive(Debug)]
pub struct Listing {
    pub size_bytes: u64,
    pub origins: Vec<Listed>,
}

/// Pages of one origin.
#[derive(Debug)]
pub struct Listed {
    pub folder: PathBuf,
    /// `None` if the folder contains no valid description.
    pub origin: Option<Origin>,
    pub size_bytes: u64,
    pub beginnings: Vec<Beginning>,
    /// Pages that no run can use: damaged, or with a missing predecessor.
    pub useless: Vec<PathBuf>,
}

/// A prompt prefix that is not part of a longer one.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// Name of its last page.
    pub name: Name,
    pub tokens: u64,
    /// Size of its pages, some of which may be shared with other prefixes.
    pub size_bytes: u64,
    pub used: SystemTime,
    pages: Vec<Name>,
}

/// Lists a store by reading the headers of its pages.
///
/// # Errors
/// Fails if a folder cannot be read.
pub fn list(store: &Path) -> io::Result<Listing> {
    let mut origins = Vec::new();
    for folder in folders(store)? {
        let origin = read_origin(&folder.join(ORIGIN));
        let pages = pages(&folder)?;
        let size_bytes = pages.iter().map(|page| page.size_bytes).sum();
        let (beginnings, useless) = beginnings(&pages);
        // A run that has stored nothing leaves its folder.
        if origin.is_none() && pages.is_empty() {
            continue;
        }
        origins.push(Listed { folder, origin, size_bytes, beginnings, useless });
    }
    Ok(Listing { size_bytes: origins.iter().map(|listed| listed.size_bytes).sum(), origins })
}

/// Reads the description of an origin; `None` if it is missing or damaged.
fn read_origin(path: &Path) -> Option<Origin> {
    let mut text = Vec::new();
    open_regular(path).ok()?.take(ORIGIN_MAX_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the longest prefixes, the most recently used first, and the pages that belong to none.
fn beginnings(pages: &[PageFile]) -> (Vec<Beginning>, Vec<PathBuf>) {
    let read = |page: &PageFile| -> Option<Head> {
        let head = head(&open_regular(&page.path).ok()?).ok()?;
        (head.name == page.name).then_some(head)
    };
    let known: HashMap<Name, (Head, &PageFile)> =
        pages.iter().filter_map(|page| Some((page.name, (read(page)?, page)))).collect();
    let followed: HashSet<Name> = known.values().map(|(head, _)| head.before).collect();
    let mut found = Vec::new();
    let mut useful = HashSet::new();
    for (head, file) in known.values().filter(|(head, _)| !followed.contains(&head.name)) {
        let mut beginning = Beginning {
            name: head.name,
            tokens: 0,
            size_bytes: 0,
            used: file.used,
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
            next = head.index.checked_sub(1).map(|index| (head.before, index));
        }
        // A prefix without its first page is never found.
        if next.is_none() {
            useful.extend(beginning.pages.iter().copied());
            found.push(beginning);
        }
    }
    found.sort_by(|a, b| b.used.cmp(&a.used).then(a.name.cmp(&b.name)));
    let useless = pages.iter().filter(|page| !useful.contains(&page.name));
    (found, useless.map(|page| page.path.clone()).collect())
}

/// Removes the prefixes for which `chosen` returns true, except for pages that they share with
/// other prefixes, and all unusable pages. Returns the number of bytes removed. Runs keep what they
/// have read.
///
/// # Errors
/// Fails if a folder cannot be read or a file cannot be removed.
pub fn remove(
    store: &Path,
    mut chosen: impl FnMut(&Listed, &Beginning) -> bool,
) -> io::Result<u64> {
    let mut removed_bytes = 0;
    for listed in list(store)?.origins {
        let mut kept: HashSet<Name> = HashSet::new();
        for beginning in &listed.beginnings {
            if !chosen(&listed, beginning) {
                kept.extend(beginning.pages.iter().copied());
            }
        }
        let mut going = pages(&listed.folder)?;
        going.retain(|page| !kept.contains(&page.name));
        for page in going {
            match std::fs::remove_file(&page.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => removed_bytes += page.size_bytes,
            }
        }
        remove_torn(&listed.folder);
        if kept.is_empty() {
            let _ = std::fs::remove_file(listed.folder.join(ORIGIN));
            // Fails if another process is writing there.
            let _ = std::fs::remove_dir(&listed.folder);
        }
    }
    Ok(removed_bytes)
}
