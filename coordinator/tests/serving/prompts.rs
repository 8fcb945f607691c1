//! Tests of stored prompt prefixes: another engine reads what one engine computed, with the same
//! bits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use engine::serving::ServingEngine;
use engine_api::serving::{Engine, EngineEvent};
use model::config::Dtype;
use program::formats::KvFormat;
use program::map::DeviceMap;
use prompt_cache::PageOrigin;
use protocol::messages::PrefixStoreConfig;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rustix::process::{Signal, kill_process};
use tempfile::TempDir;

use crate::common::{
    Answer, EventReceiver, Job, KvLayout, dtypes, expected, jobs, maps, start_storing, submit,
    workers,
};
use crate::{WATCHDOG, wait_until};

/// Positions per page.
const PAGE: usize = 16;
const PAGES: KvLayout = KvLayout::Pages(48);

/// A store in a directory, and the messages of engines about it.
struct TestStore {
    folder: TempDir,
    max_bytes: Option<u64>,
    told: Arc<Mutex<Vec<String>>>,
}

impl TestStore {
    fn new() -> TestStore {
        let folder = tempfile::tempdir().expect("a folder");
        TestStore { folder, max_bytes: None, told: Arc::default() }
    }

    fn start(&self, map: &DeviceMap, dtype: Dtype, kept: KvLayout) -> ServingEngine {
        let field = |name: &str, value: String| (name.to_owned(), value);
        let fields = vec![
            field("dtype", dtype.name().to_owned()),
            field("KV", format!("{:?}", map.kv_format)),
        ];
        let at = PrefixStoreConfig {
            directory: self.folder.path().to_path_buf(),
            max_bytes: self.max_bytes,
            min_tokens: 2 * PAGE as u32,
            origin: PageOrigin { model: "tiny".to_owned(), fields },
        };
        let told = Arc::clone(&self.told);
        let tell = move |sentence: &str| told.lock().expect("held").push(sentence.to_owned());
        start_storing(map, dtype, kept, Some(at), Box::new(tell))
    }

    fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("held"))
    }

    /// Returns the files of the store with this extension.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(self.folder.path()).expect("a store").flatten();
        let files = |folder: &Path| std::fs::read_dir(folder).expect("a folder").flatten();
        let all = folders.flat_map(|folder| files(&folder.path()).map(|file| file.path()));
        all.filter(|path| path.extension().is_some_and(|of| of == extension)).collect()
    }
}

fn both_dtypes() -> Vec<(Dtype, KvFormat, DeviceMap)> {
    // The CPU computes attention and stores the caches, in a split with an emulated device too.
    let of = |(dtype, kv_format)| {
        maps(kv_format).into_iter().take(1).map(move |map| (dtype, kv_format, map))
    };
    dtypes().into_iter().flat_map(of).collect()
}

/// Returns a request for a document followed by a question.
fn question(index: u32) -> Job {
    let document = (0..70).map(|i| (i * 11 + 5) % 200);
    let asked = (0..1 + index % 9).map(|i| (index * 31 + i * 17) % 200);
    Job {
        prompt: document.chain(asked).collect(),
        max_new: 6,
        grammar: None,
        ..jobs(3).remove(index as usize % 3)
    }
}

fn answers(engine: &ServingEngine, jobs: &[Job]) -> Vec<Answer> {
    let received: Vec<EventReceiver> = jobs.iter().map(|job| submit(engine, job)).collect();
    received.into_iter().map(|received| received.answer(WATCHDOG)).collect()
}

/// Twenty questions in another process recompute no stored row.
pub fn a_stored_document_is_computed_once() {
    let test_store = TestStore::new();
    for (dtype, kv_format, map) in both_dtypes() {
        let questions: Vec<Job> = (0..20).map(question).collect();
        let expected = expected(&map, dtype, &questions);
        let case = format!("{dtype:?} {kv_format:?}");
        let engine = test_store.start(&map, dtype, PAGES);
        assert_eq!(answers(&engine, &questions[..1]), expected[..1], "{case}");
        let status = engine.status();
        assert_eq!(
            (status.cached_tokens, status.prompt_cache.hits),
            (0, 0),
            "{case}: another form's"
        );
        drop(engine);
        let engine = test_store.start(&map, dtype, PAGES);
        assert_eq!(answers(&engine, &questions), expected, "{case}");
        wait_until("all is shown", || engine.status().running == 0);
        let status = engine.status();
        let stored = (questions[0].prompt.len() / PAGE * PAGE) as u64;
        assert_eq!(status.prompt_cache.tokens, stored, "{case}: read once, {status:?}");
        assert_eq!(status.prompt_cache.hits, 1, "{case}: the others found them in memory");
        assert!(status.prompt_cache.read_bytes > 0 && status.prompt_cache.unusable_pages == 0);
        let rows: u64 = questions.iter().map(|job| job.prompt.len() as u64).sum();
        assert_eq!(status.cached_tokens, 20 * stored, "{case}");
        assert_eq!(status.prompt_tokens, rows - 20 * stored, "{case}");
    }
    assert_eq!(test_store.take_warnings(), [""; 0]);
}

/// Tests concurrent prompts of every length, few pages and cancellations, with an empty store, a
/// full one, and one with a small capacity.
pub fn a_store_changes_no_answer() {
    for (dtype, kv_format, map) in both_dtypes() {
        let mut test_store = TestStore::new();
        let jobs: Vec<Job> = jobs(30).into_iter().chain((0..6).map(question)).collect();
        let expected = expected(&map, dtype, &jobs);
        for (round, pages) in [13, 20, 48, 13].into_iter().enumerate() {
            if round == 3 {
                test_store.max_bytes = Some(200_000);
            }
            let engine = test_store.start(&map, dtype, KvLayout::Pages(pages));
            let heard: Vec<EventReceiver> = jobs.iter().map(|job| submit(&engine, job)).collect();
            for (index, heard) in heard.into_iter().enumerate() {
                if index % 5 == round {
                    engine.cancel(heard.id());
                } else {
                    let case = format!("{dtype:?} {kv_format:?} {pages} pages, answer {index}");
                    assert_eq!(heard.answer(WATCHDOG), expected[index], "{case}");
                }
            }
            wait_until("pages are back", || engine.status().kv_positions_used == 0);
            assert!(round == 0 || engine.status().prompt_cache.hits > 0, "{:?}", engine.status());
        }
        assert_eq!(test_store.take_warnings(), [""; 0]);
    }
}

pub fn damaged_pages_are_computed_again() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let test_store = TestStore::new();
    let job = question(1);
    let expected = expected(map, dtype, std::slice::from_ref(&job));
    let jobs = std::slice::from_ref(&job);
    assert_eq!(answers(&test_store.start(map, dtype, PAGES), jobs), expected);
    let pages = test_store.files("kv");
    assert_eq!(pages.len(), job.prompt.len() / PAGE);
    let mut refused = 0;
    for path in &pages {
        let mut bytes = std::fs::read(path).expect("a page");
        let place = bytes.len() - 700;
        bytes[place] ^= 4;
        std::fs::write(path, bytes).expect("room");
        let engine = test_store.start(map, dtype, PAGES);
        assert_eq!(answers(&engine, jobs), expected);
        refused += engine.status().prompt_cache.unusable_pages;
        drop(engine);
        let told = test_store.take_warnings();
        let [sentence] = &told[..] else { panic!("{told:?}") };
        let name = path.file_name().expect("a name").to_string_lossy();
        assert!(sentence.contains(&*name) && sentence.contains("damaged"), "{sentence}");
    }
    assert_eq!(refused, pages.len() as u64);
    let engine = test_store.start(map, dtype, PAGES);
    assert_eq!(answers(&engine, jobs), expected);
    let status = engine.status();
    assert_eq!(status.prompt_cache.tokens as usize, pages.len() * PAGE, "all were written again");
    assert_eq!(test_store.take_warnings(), [""; 0]);
}

/// Tests a capacity below the size of a page, and a directory that can no longer be written.
pub fn a_store_without_room_is_done_without() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let questions: Vec<Job> = (0..6).map(question).collect();
    let expected = expected(map, dtype, &questions);
    let mut test_store = TestStore::new();
    test_store.max_bytes = Some(1000);
    let engine = test_store.start(map, dtype, PAGES);
    assert_eq!(answers(&engine, &questions), expected);
    drop(engine);
    let told = test_store.take_warnings();
    let [sentence] = &told[..] else { panic!("told once: {told:?}") };
    assert!(sentence.contains("raise its limit"), "{sentence}");
    test_store.max_bytes = None;
    let engine = test_store.start(map, dtype, PAGES);
    std::fs::remove_dir_all(test_store.folder.path()).expect("it is there");
    std::fs::write(test_store.folder.path(), "a file").expect("room");
    assert_eq!(answers(&engine, &questions), expected);
    drop(engine);
    let told = test_store.take_warnings();
    let [sentence] = &told[..] else { panic!("told once: {told:?}") };
    assert!(sentence.contains("prompts are not stored for a minute"), "{sentence}");
    std::fs::remove_file(test_store.folder.path()).expect("it is there");
    std::fs::create_dir(test_store.folder.path()).expect("room");
}

pub fn a_worker_lost_while_it_stores() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let questions: Vec<Job> = (0..24)
        .map(|index| Job {
            // Each request has its own document, so that there is much to store.
            prompt: question(index).prompt.iter().map(|token| (token + index) % 200).collect(),
            ..question(index)
        })
        .collect();
    let expected = expected(map, dtype, &questions);
    let test_store = TestStore::new();
    for seed in 0..8 {
        let engine = test_store.start(map, dtype, PAGES);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let heard: Vec<EventReceiver> = questions.iter().map(|job| submit(&engine, job)).collect();
        std::thread::sleep(std::time::Duration::from_micros(u64::from(random.next_u32() % 40_000)));
        for worker in workers() {
            let _ = kill_process(worker, Signal::KILL);
        }
        let found: Vec<Answer> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
        assert_eq!(found, expected, "seed {seed}");
        drop(engine);
        drop(test_store.start(map, dtype, PAGES));
        assert_eq!(test_store.files("tmp").len(), 0, "seed {seed}: who starts again removes it");
    }
    let engine = test_store.start(map, dtype, PAGES);
    assert_eq!(answers(&engine, &questions), expected);
    assert_eq!(engine.status().prompt_cache.unusable_pages, 0, "none is torn");
    // Requests that are cancelled before their prefix is read get no event.
    let heard: Vec<EventReceiver> = questions.iter().map(|job| submit(&engine, job)).collect();
    heard.iter().for_each(|heard| engine.cancel(heard.id()));
    wait_until("pages are back", || engine.status().kv_positions_used == 0);
    let more = heard.iter().flat_map(|heard| heard.events(std::time::Duration::from_millis(1)));
    assert!(!more.into_iter().any(|event| matches!(event, EngineEvent::Failed(_))));
}
