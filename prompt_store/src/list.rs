//! What a store holds, for people, and removing it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::entry::Head;
use crate::files::{ORIGIN, PageFile, folders, open_regular, pages, remove_torn};
use crate::name::Name;
use crate::origin::Origin;
use crate::read::head;

/// All that a store holds.
#[derive(Debug)]
pub struct Listing {
    pub size_bytes: u64,
    pub origins: Vec<Listed>,
}

/// The pages of one origin.
#[derive(Debug)]
pub struct Listed {
    pub folder: PathBuf,
    /// `None`: nothing says what it is.
    pub origin: Option<Origin>,
    pub size_bytes: u64,
    pub beginnings: Vec<Beginning>,
    /// Pages that no run will use: damaged, or behind others that are gone.
    pub useless: Vec<PathBuf>,
}

/// A beginning of prompts that no longer one begins with.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// Of its last page.
    pub name: Name,
    pub tokens: u64,
    /// Of its pages, of which other beginnings may have some too.
    pub size_bytes: u64,
    pub used: SystemTime,
    pages: Vec<Name>,
}

/// Lists a store by its pages' headers.
///
/// # Errors
/// A folder that cannot be read.
pub fn list(store: &Path) -> io::Result<Listing> {
    let mut origins = Vec::new();
    for folder in folders(store)? {
        let text = std::fs::read(folder.join(ORIGIN)).ok();
        let origin = text.and_then(|text| serde_json::from_slice(&text).ok());
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

/// The longest beginnings, the last used first, and what belongs to none.
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
        // Heads that name each other in a circle are no beginning.
        while let Some((head, file)) =
            next.and_then(|(name, index)| known.get(&name).filter(|(head, _)| head.index == index))
        {
            beginning.pages.push(head.name);
            beginning.tokens += u64::from(head.tokens);
            beginning.size_bytes += file.size_bytes;
            next = head.index.checked_sub(1).map(|index| (head.before, index));
        }
        // Without its first page nothing finds it.
        if next.is_none() {
            useful.extend(beginning.pages.iter().copied());
            found.push(beginning);
        }
    }
    found.sort_by(|a, b| b.used.cmp(&a.used).then(a.name.cmp(&b.name)));
    let useless = pages.iter().filter(|page| !useful.contains(&page.name));
    (found, useless.map(|page| page.path.clone()).collect())
}

/// Removes beginnings that `chosen` says yes to, but for pages that others have in common with
/// them, and all that is of no use; how many bytes. What runs have read stays with them.
///
/// # Errors
/// What cannot be read or removed.
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
            // Someone may be writing there.
            let _ = std::fs::remove_dir(&listed.folder);
        }
    }
    Ok(removed_bytes)
}
