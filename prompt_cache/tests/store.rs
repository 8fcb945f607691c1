//! Pages are complete or absent, regardless of killed processes, failures of the drive, and the
//! number of concurrent writers.

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use prompt_cache::{
    PageHash, PageKey, PageOrigin, PageStore, WriteOutcome, list_store, remove_prefixes,
};

use common::Memory;

const POSITIONS: usize = 8;
/// Environment variable that makes this program a child process of the given kind; the value is the
/// store.
const CHILD: &str = "PROMPT_STORE_CHILD";

fn origin(dtype: &str) -> PageOrigin {
    PageOrigin { model: "tiny".to_owned(), fields: vec![("dtype".to_owned(), dtype.to_owned())] }
}

fn open(directory: &Path) -> PageStore {
    open_bounded(directory, None)
}

fn open_bounded(directory: &Path, max_bytes: Option<u64>) -> PageStore {
    PageStore::open(directory, origin("bf16"), max_bytes).expect("a store")
}

/// Returns the tokens of a page of a prompt.
fn tokens(prompt: u32, index: u32) -> Vec<u32> {
    (0..POSITIONS as u32).map(|i| prompt * 1000 + index * 10 + i).collect()
}

/// Returns the bytes of a page, which follow from its name.
fn bytes(name: &PageHash, run: usize, size_bytes: usize) -> Vec<u8> {
    let text = name.to_string();
    text.bytes().cycle().skip(run * 7).take(size_bytes).collect()
}

const RUNS: [usize; 3] = [4096, 100, 70_000];

struct Chain {
    before: PageHash,
    index: u32,
    prompt: u32,
}

impl Chain {
    fn of(store: &PageStore, prompt: u32) -> Chain {
        Chain { before: store.root_hash(&[]), index: 0, prompt }
    }

    /// Calls `each` with the next page.
    fn next<T>(&mut self, each: impl FnOnce(&PageKey<'_>) -> T) -> T {
        let tokens = tokens(self.prompt, self.index);
        let name = self.before.child(&tokens);
        let page = PageKey { name, previous: self.before, index: self.index, tokens: &tokens };
        let result = each(&page);
        (self.before, self.index) = (name, self.index + 1);
        result
    }
}

fn runs_of(page: &PageKey<'_>) -> Vec<Vec<u8>> {
    RUNS.iter().enumerate().map(|(run, size)| bytes(&page.name, run, *size)).collect()
}

fn write(
    store: &mut PageStore,
    page: &PageKey<'_>,
) -> Result<WriteOutcome, prompt_cache::PageWriteError> {
    store.write(page, &mut Memory(runs_of(page), usize::MAX))
}

fn write_all(store: &mut PageStore, prompt: u32, pages: u32) {
    let mut chain = Chain::of(store, prompt);
    for _ in 0..pages {
        chain.next(|page| write(store, page)).expect("room");
    }
}

/// Reads a page and checks its bytes; returns false if it does not exist.
fn read(store: &PageStore, page: &PageKey<'_>) -> Result<bool, String> {
    let mut memory = Memory(RUNS.iter().map(|size| vec![0; *size]).collect(), usize::MAX);
    let read = store.read(page, &mut memory);
    let runs = memory.0;
    let is_there = read.map_err(|error| error.to_string())?.is_some();
    for (run, found) in runs.iter().enumerate().filter(|_| is_there) {
        assert!(
            *found == bytes(&page.name, run, found.len()),
            "page {} has other bytes",
            page.name
        );
    }
    Ok(is_there)
}

/// Returns the number of a prompt's pages that exist without a gap, counted from the first.
fn known(store: &PageStore, prompt: u32) -> u32 {
    let mut chain = Chain::of(store, prompt);
    while chain.next(|page| read(store, page)).expect("none is damaged") {}
    chain.index - 1
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(directory).expect("a store").flatten();
    let folders = folders.filter(|entry| entry.path().is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder"));
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    files
}

fn pages(directory: &Path) -> Vec<PathBuf> {
    let mut files = files(directory);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "kv"));
    files
}

#[test]
fn another_process_finds_what_was_stored_and_another_origin_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    assert_eq!(known(&store, 1), 0);
    write_all(&mut store, 1, 3);
    let again = Chain::of(&store, 1).next(|page| write(&mut store, page));
    assert_eq!(again.expect("it is there"), WriteOutcome::AlreadyPresent);
    assert_eq!((known(&open(folder.path()), 1), known(&store, 2)), (3, 0));
    let other = PageStore::open(folder.path(), origin("f32"), None).expect("a store");
    assert_eq!(known(&other, 1), 0);
    let of_kind = Chain { before: store.root_hash(&[7]), index: 0, prompt: 1 };
    assert_eq!({ of_kind }.next(|page| read(&store, page)), Ok(false), "rotated in another way");
}

/// Memory can be withdrawn at any run: nothing is written to it afterwards, no incomplete page gets
/// its name, and the page on the drive stays.
#[test]
fn memory_can_be_withdrawn_at_any_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    // Each run is copied twice: for its checksum, and to be written.
    for copies in 0..2 * RUNS.len() {
        let wrote =
            Chain::of(&store, 1).next(|page| store.write(page, &mut Memory(runs_of(page), copies)));
        let sentence = wrote.expect_err("it is withdrawn").to_string();
        assert!(sentence.contains("cancelled"), "{sentence}");
        let left = files(folder.path()).into_iter();
        let left: Vec<PathBuf> = left.filter(|file| !file.ends_with("origin.json")).collect();
        assert!(left.is_empty(), "after {copies} copies: {left:?}");
    }
    write_all(&mut store, 1, 1);
    for copies in 0..RUNS.len() {
        let empty: Vec<Vec<u8>> = RUNS.iter().map(|size| vec![0; *size]).collect();
        let mut memory = Memory(empty, copies);
        let read = Chain::of(&store, 1).next(|page| store.read(page, &mut memory));
        assert_eq!(read.expect("it is whole"), None);
        let untouched = memory.0[copies..].iter().flatten().all(|byte| *byte == 0);
        assert!(untouched, "after {copies} copies");
    }
    assert_eq!(known(&store, 1), 1);
}

/// Pipes without writers in the places of pages and of temporary files: no operation blocks.
#[test]
fn what_is_no_regular_file_is_refused_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    write_all(&mut store, 1, 2);
    let both = pages(folder.path());
    let page = &both[0];
    let others = [page.with_extension("kv.1-1.tmp"), page.with_file_name("origin.json")];
    for path in both.clone().into_iter().chain(others) {
        let _ = std::fs::remove_file(&path);
        let made = Command::new("mkfifo").arg(&path).status().expect("it runs");
        assert!(made.success());
    }
    let store = open(folder.path());
    assert!(list_store(folder.path()).is_ok());
    let mut chain = Chain::of(&store, 1);
    chain.next(|page| store.prefetch(&page.name));
    let refused = Chain::of(&store, 1).next(|page| read(&store, page)).expect_err("a pipe");
    assert!(refused.contains("not a regular file"), "{refused}");
    assert_eq!(Chain::of(&store, 1).next(|page| read(&store, page)), Ok(false), "it is removed");
}

/// Damage to a page's file.
#[derive(Debug)]
enum Damage {
    /// Inverts bits of the byte at this offset.
    Flip(u64),
    /// Sets the file's size in bytes.
    Resize(u64),
}

#[test]
fn a_flipped_byte_a_torn_end_and_a_wrong_name_are_refused_and_written_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    write_all(&mut store, 1, 1);
    let size_bytes = std::fs::metadata(&pages(folder.path())[0]).expect("a page").len();
    let flips = [0, 9, 30, 90, 130, 200, 4096, 8200, size_bytes - 1].map(Damage::Flip);
    let cuts = [0, 5, 150, 4096, size_bytes - 1, size_bytes + 1].map(Damage::Resize);
    for damage in flips.into_iter().chain(cuts) {
        let (path, what) = (pages(folder.path())[0].clone(), format!("{damage:?}"));
        match damage {
            Damage::Flip(place) => flip(&path, place),
            Damage::Resize(left) => cut(&path, left),
        }
        let refused = Chain::of(&store, 1).next(|page| read(&store, page));
        let sentence = refused.expect_err(&what);
        assert!(sentence.contains(&*path.to_string_lossy()), "{sentence}");
        assert_eq!(known(&store, 1), 0, "{what}: it is removed");
        write_all(&mut store, 1, 1);
        assert_eq!(known(&store, 1), 1, "{what}: it is written again");
    }
    write_all(&mut store, 1, 2);
    let [first, second] = &pages(folder.path())[..] else { panic!("two pages") };
    let kept = std::fs::read(first).expect("a page");
    std::fs::write(second, kept).expect("room");
    assert!(known_or_refused(&store, 1).is_err(), "another page's name");
}

fn known_or_refused(store: &PageStore, prompt: u32) -> Result<(), String> {
    let mut chain = Chain::of(store, prompt);
    while chain.next(|page| read(store, page))? {}
    Ok(())
}

fn flip(path: &Path, place: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("a page");
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], place).expect("room");
}

fn cut(path: &Path, left: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("a page");
    file.set_len(left).expect("room");
}

fn size_bytes(directory: &Path) -> u64 {
    pages(directory).iter().map(|page| std::fs::metadata(page).map_or(0, |of| of.len())).sum()
}

#[test]
fn the_longest_unused_pages_go_where_the_store_would_pass_its_bound() {
    let folder = tempfile::tempdir().expect("a folder");
    write_all(&mut open(folder.path()), 1, 1);
    let page_bytes = size_bytes(folder.path());
    let max_bytes = page_bytes * 10 + page_bytes / 2;
    let mut store = open_bounded(folder.path(), Some(max_bytes));
    for prompt in 1..20 {
        write_all(&mut store, prompt, 2);
        assert!(size_bytes(folder.path()) <= max_bytes, "prompt {prompt}");
        // The first prompt is used repeatedly.
        let mut first = Chain::of(&store, 1);
        for _ in 0..2 {
            first.next(|page| assert!(store.touch(&page.name, page.index)));
        }
    }
    assert_eq!((known(&store, 1), known(&store, 2), known(&store, 19)), (2, 0, 2));
    // The end of a prompt is removed before its start.
    let small = Some(page_bytes + page_bytes / 2);
    let mut small = PageStore::open(folder.path(), origin("f32"), small).expect("a store");
    Chain::of(&small, 5).next(|page| write(&mut small, page)).expect("room");
    assert_eq!(pages(folder.path()).len(), 1, "one has room");
    let none = Some(page_bytes - 1);
    let mut none = PageStore::open(folder.path(), origin("f32"), none).expect("a store");
    let refused = Chain::of(&none, 6).next(|page| write(&mut none, page));
    assert!(refused.expect_err("no room").to_string().contains("raise its limit"));
    assert_eq!(pages(folder.path()).len(), 1, "nothing was removed for it");
}

/// A folder in the place of a page cannot be removed, even if root runs the test.
#[test]
fn a_page_that_cannot_be_removed_still_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    write_all(&mut open(folder.path()), 1, 1);
    let page_bytes = size_bytes(folder.path());
    let held = pages(folder.path()).remove(0);
    let held = held.with_file_name(format!("{}.kv", "0".repeat(64)));
    std::fs::create_dir(&held).expect("writable");
    std::fs::write(held.join("x"), "x").expect("writable");
    let held_bytes = std::fs::metadata(&held).expect("a folder").len();
    // Two pages fit in addition to the folder's; one of them is left for another process.
    let max_bytes = held_bytes + 2 * page_bytes + page_bytes / 2;
    let mut store = open_bounded(folder.path(), Some(max_bytes));
    for prompt in 2..8 {
        write_all(&mut store, prompt, 1);
        assert!(size_bytes(folder.path()) <= max_bytes, "prompt {prompt}");
    }
    let max_bytes = held_bytes + page_bytes + page_bytes / 2;
    let mut store = open_bounded(folder.path(), Some(max_bytes));
    let refused = Chain::of(&store, 9).next(|page| write(&mut store, page));
    let sentence = refused.expect_err("no room").to_string();
    assert!(sentence.contains("cannot be removed"), "{sentence}");
    assert!(
        sentence.contains(&format!("uses {held_bytes} of at most {max_bytes} bytes")),
        "{sentence}"
    );
    std::fs::remove_dir_all(&held).expect("ours");
    write_all(&mut store, 9, 1);
}

#[test]
fn links_are_not_followed_and_nothing_is_open_to_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store_at, outside) = (folder.path().join("store"), folder.path().join("outside"));
    std::fs::create_dir(&outside).expect("writable");
    let mut store = open(&store_at);
    write_all(&mut store, 1, 2);
    let inner = pages(&store_at)[0].parent().expect("a folder").to_path_buf();
    let mode =
        |path: &Path| std::fs::metadata(path).expect("an entry").permissions().mode() & 0o777;
    assert_eq!((mode(&store_at), mode(&inner)), (0o700, 0o700));
    assert!(files(&store_at).iter().all(|file| mode(file) == 0o600), "{:?}", files(&store_at));
    // Permissions as set by an earlier version.
    std::fs::set_permissions(&inner, PermissionsExt::from_mode(0o755)).expect("ours");
    drop(open(&store_at));
    assert_eq!(mode(&inner), 0o700);
    // A page that is a link is neither read nor written through.
    let page = pages(&store_at).remove(0);
    std::fs::rename(&page, outside.join("page")).expect("writable");
    symlink(outside.join("page"), &page).expect("writable");
    let before = std::fs::read(outside.join("page")).expect("there");
    known_or_refused(&store, 1).expect_err("a link");
    write_all(&mut store, 1, 2);
    assert_eq!(std::fs::read(outside.join("page")).expect("untouched"), before);
    // A folder that is a link is not used either.
    std::fs::remove_dir_all(&inner).expect("ours");
    symlink(&outside, &inner).expect("writable");
    let refused = PageStore::open(&store_at, origin("bf16"), None);
    assert!(refused.is_err_and(|error| error.to_string().contains("the prompt store")));
    let refused = Chain::of(&store, 3).next(|page| write(&mut store, page));
    refused.expect_err("a link");
    assert_eq!(std::fs::read_dir(&outside).expect("a folder").count(), 1);
}

#[test]
fn what_is_listed_can_be_removed_and_what_others_need_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = open(folder.path());
    write_all(&mut store, 1, 3);
    // Another prompt that shares the first two pages.
    let mut chain = Chain::of(&store, 1);
    for _ in 0..2 {
        chain.next(|page| write(&mut store, page)).expect("room");
    }
    chain.prompt = 2;
    chain.next(|page| write(&mut store, page)).expect("room");
    std::fs::write(folder.path().join("letter.txt"), "not ours").expect("room");
    let listing = list_store(folder.path()).expect("a store");
    let [listed] = &listing.origins[..] else { panic!("{listing:?}") };
    assert_eq!(listed.origin, Some(origin("bf16")));
    assert_eq!(listed.prefixes.len(), 2);
    assert!(listed.prefixes.iter().all(|one| one.tokens == 3 * POSITIONS as u64));
    assert_eq!(listing.size_bytes, size_bytes(folder.path()));
    assert!(listed.unusable.is_empty());
    let other = listed.prefixes.iter().find(|one| one.name == chain.before).expect("both");
    let wanted = other.name;
    let removed = remove_prefixes(folder.path(), |_, one| one.name == wanted).expect("a store");
    assert_eq!((removed > 0, known(&store, 1), pages(folder.path()).len()), (true, 3, 3));
    // Without its first page a prefix is unusable.
    let first = Chain::of(&store, 1).next(|page| page.name);
    std::fs::remove_file(
        pages(folder.path())
            .into_iter()
            .find(|path| path.to_string_lossy().contains(&first.to_string()))
            .expect("a page"),
    )
    .expect("it is there");
    let listing = list_store(folder.path()).expect("a store");
    assert_eq!((listing.origins[0].prefixes.len(), listing.origins[0].unusable.len()), (0, 2));
    remove_prefixes(folder.path(), |_, _| false).expect("a store");
    assert_eq!(pages(folder.path()).len(), 0);
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a store").flatten().collect();
    assert_eq!(left.len(), 1, "what is not ours stays: {left:?}");
    // A process that has the store open can continue.
    write_all(&mut store, 1, 1);
    let listing = list_store(folder.path()).expect("a store");
    assert_eq!((known(&store, 1), &listing.origins[0].origin), (1, &Some(origin("bf16"))));
}

fn child(what: &str, directory: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    Command::new(program)
        .args(["--exact", "another_process", "--nocapture"])
        .env(CHILD, format!("{what}={}", directory.display()))
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

/// Entry point of the child processes of the other tests, not a test of its own.
#[test]
fn another_process() {
    let Ok(asked) = std::env::var(CHILD) else { return };
    let (what, directory) = asked.split_once('=').expect("a store");
    let directory = Path::new(directory);
    match what {
        "endless" => {
            let mut store = open(directory);
            let mut chain = Chain::of(&store, 1);
            loop {
                chain.next(|page| write(&mut store, page)).expect("room");
            }
        }
        "bounded" => {
            let mut store =
                PageStore::open(directory, origin("bf16"), Some(1 << 20)).expect("a store");
            for prompt in 0..20 {
                write_all(&mut store, prompt % 7, 4);
                assert!(size_bytes(directory) <= 1 << 20);
                assert!(known(&store, prompt % 5) <= 4);
            }
        }
        "limited" => {
            let limit = libc::rlimit { rlim_cur: 10_000, rlim_max: 10_000 };
            // SAFETY: needed since the standard library sets no limits. Plain system calls; the
            // signal's default would end the process.
            unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
            }
            let mut store = open(directory);
            let refused = Chain::of(&store, 1).next(|page| write(&mut store, page));
            let sentence = refused.expect_err("no room").to_string();
            assert!(sentence.contains("cannot store a page"), "{sentence}");
        }
        _ => panic!("{what}"),
    }
}

#[test]
fn a_writer_that_is_killed_leaves_whole_pages_and_what_the_next_one_removes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut torn = 0;
    for round in 0..12 {
        let mut writer = child("endless", folder.path());
        std::thread::sleep(Duration::from_millis(30 + 11 * round));
        writer.kill().expect("it runs");
        let status = writer.wait().expect("a child");
        assert_eq!(status.signal(), Some(9), "{status}");
        let left = files(folder.path()).into_iter();
        torn += left.filter(|file| file.to_string_lossy().ends_with(".tmp")).count();
        let store = open(folder.path());
        assert_eq!(known(&store, 1) as usize, pages(folder.path()).len(), "all whole, in a row");
        let left: BTreeSet<PathBuf> = files(folder.path()).into_iter().collect();
        let temporary = left.iter().filter(|file| file.to_string_lossy().ends_with(".tmp"));
        assert_eq!(temporary.count(), 0, "round {round}");
    }
    assert!(!pages(folder.path()).is_empty(), "something was written; torn: {torn}");
}

#[test]
fn without_room_nothing_is_left_of_a_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let status = child("limited", folder.path()).wait().expect("a child");
    assert!(status.success(), "{status}");
    assert_eq!(pages(folder.path()).len(), 0);
    let torn =
        files(folder.path()).into_iter().filter(|file| file.to_string_lossy().ends_with("tmp"));
    assert_eq!(torn.count(), 0);
}

#[test]
fn processes_that_write_the_same_at_once_keep_the_bound_and_whole_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let writers: Vec<Child> = (0..2).map(|_| child("bounded", folder.path())).collect();
    for mut writer in writers {
        let status = writer.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
    let store = open(folder.path());
    (0..7).for_each(|prompt| assert!(known(&store, prompt) <= 4));
    assert!(size_bytes(folder.path()) <= 1 << 20);
}
