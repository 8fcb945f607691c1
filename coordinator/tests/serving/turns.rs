//! Tests of conversations with models whose layers overwrite what they keep of a sequence: later
//! turns continue from checkpoints, with the bytes of a server that computes everything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::serving::{ServingEngine, ServingOptions};
use engine_api::serving::{Engine, EngineStatus, Sampling};
use model::config::{Dtype, ModelConfig};
use planner::policy::{DefaultTiers, Policy, device_map};
use program::compile::compile;
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use program::validate::validate;
use prompt_cache::PageOrigin;
use protocol::messages::PrefixStoreConfig;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rustix::process::{Signal, kill_process};
use scheduler::StepCostCurve;

use crate::common::{Answer, EventReceiver, Job, options_of, submit, workers};
use crate::{WATCHDOG, models, wait_until};

const SLOTS: u16 = 4;

/// Number formats of the computation and of the caches.
const FORMATS: [(Dtype, KvFormat); 2] =
    [(Dtype::F32, KvFormat::Plain), (Dtype::Bf16, KvFormat::Four)];

/// Sizes of a server.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Positions per page.
    pub page: usize,
    pub context: u32,
    /// Maximum number of rows of a step.
    pub rows: u32,
    pub pages: u32,
    /// Number of checkpoints; 0: nothing is shared.
    pub checkpoints: u32,
    /// Maximum number of rows of logits of a step; 0: one for each slot.
    pub logits_rows: u32,
}

const LARGE: Size =
    Size { page: 64, context: 4608, rows: 100, pages: 300, checkpoints: 16, logits_rows: 0 };
pub const SMALL: Size =
    Size { page: 32, context: 640, rows: 24, pages: 60, checkpoints: 16, logits_rows: 0 };

pub fn plan(config: &ModelConfig, dtype: Dtype, kv_format: KvFormat, size: Size) -> Plan {
    let shape = RunShape {
        batches: 1,
        batch_size: SLOTS,
        max_prompt: size.context,
        shared_prompt: 0,
        max_context: size.context,
        max_new: size.context - 1,
        logprobs: 2,
        micro_sequences: 1,
        prefill_chunk: size.rows,
        serves: true,
        page_positions: size.page as u32,
        kv_pages: size.pages,
        checkpoints: size.checkpoints,
        logits_rows: size.logits_rows,
        device_slots: 0,
        dtype,
    };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, config, true, homes);
    let map = DeviceMap { kv_format, ..map };
    let plan = compile(config, &shape, &map).expect("compiles");
    validate(&plan).expect("it is proved");
    plan
}

fn start(plan: Plan) -> ServingEngine {
    start_storing(plan, None)
}

/// Starts a server that stores prompts at `prompts`, if given.
fn start_storing(plan: Plan, prompts: Option<PrefixStoreConfig>) -> ServingEngine {
    let options = options_of(plan, prompts, Box::new(|_| {}));
    let step_costs = Some(StepCostCurve::NONE);
    ServingEngine::start(ServingOptions { step_costs, ..options }).expect("it starts")
}

/// Returns an engine that shares nothing.
pub fn start_from_scratch(
    config: &ModelConfig,
    dtype: Dtype,
    kv: KvFormat,
    size: Size,
) -> ServingEngine {
    start(plan(config, dtype, kv, Size { checkpoints: 0, ..size }))
}

/// Returns tokens that depend on a seed.
fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.next_u32() % 200).collect()
}

fn job(prompt: Vec<u32>, max_new: u32) -> Job {
    Job {
        prompt,
        max_new,
        sampling: Sampling { temperature: 0.9, ..Sampling::GREEDY },
        logprobs: 2,
        prompt_logprobs: 0,
        prompt_logprobs_from: 1,
        id_hash: 3,
        grammar: None,
        reasoning_budget: None,
        prediction: None,
    }
}

fn answer(engine: &ServingEngine, job: &Job) -> Answer {
    let answer = submit(engine, job).answer(WATCHDOG);
    wait_until("it has left its slot", || engine.status().running == 0);
    answer
}

/// Returns the numbers of prompt tokens that were computed and that were found, since `before`.
fn prompt_tokens(engine: &ServingEngine, before: EngineStatus) -> (usize, usize) {
    let after = engine.status();
    let computed = after.prompt_tokens - before.prompt_tokens;
    (computed as usize, (after.cached_tokens - before.cached_tokens) as usize)
}

/// Asserts the tokens found for a job, and its answer.
fn assert_turn(
    engine: &ServingEngine,
    scratch: &ServingEngine,
    job: &Job,
    cached: usize,
    case: &str,
) -> Answer {
    let before = engine.status();
    let found = answer(engine, job);
    assert_eq!(prompt_tokens(engine, before), (job.prompt.len() - cached, cached), "{case}");
    assert_eq!(found, answer(scratch, job), "{case}");
    found
}

impl Size {
    /// Returns the end of the last page within `positions` positions.
    fn page_end(self, positions: usize) -> usize {
        positions / self.page * self.page
    }
}

/// A conversation of 4,000 tokens. Between the turns, other conversations use the slots.
pub fn turns_compute_only_their_new_tokens() {
    for (index, config) in models::all().into_iter().enumerate() {
        let (dtype, kv) = FORMATS[index % FORMATS.len()];
        let engine = start(plan(&config, dtype, kv, LARGE));
        let scratch = start_from_scratch(&config, dtype, kv, LARGE);
        let mut history = Vec::new();
        let mut cached = 0;
        for turn in 0..5 {
            let case = format!("{} {dtype:?} {kv:?} turn {turn}", config.name);
            let prompt = [&history[..], &tokens(turn, 760 + turn as usize)].concat();
            let job = job(prompt.clone(), 40);
            let answer = assert_turn(&engine, &scratch, &job, cached, &case);
            let other = tokens(100 + turn, 300);
            assert_turn(&engine, &scratch, &self::job(other, 9), 0, &case);
            // A template that drops a part of the answer: only the prompt is the same.
            let rewritten = [&prompt[..], &tokens(7, 50)].concat();
            let cached_prompt = LARGE.page_end(prompt.len() - 1);
            assert_turn(&engine, &scratch, &self::job(rewritten, 3), cached_prompt, &case);
            history = [&prompt[..], answer.tokens()].concat();
            // The last token is not computed.
            cached = LARGE.page_end(history.len() - 1);
        }
        assert!(history.len() > 4000, "{}", history.len());
        assert_eq!(engine.status().worker_allocations, 0, "{}", config.name);
    }
}

pub fn diverging_prompts_share_their_beginning() {
    for config in models::all() {
        let (dtype, kv) = (Dtype::F32, KvFormat::Plain);
        let engine = start(plan(&config, dtype, kv, SMALL));
        let scratch = start_from_scratch(&config, dtype, kv, SMALL);
        let common = tokens(1, 450);
        let diverging = |seed| job([&common[..], &tokens(seed, 70)].concat(), 20);
        let case = &config.name;
        assert_turn(&engine, &scratch, &diverging(10), 0, case);
        // The first prompt had a checkpoint after every eighth page.
        assert_turn(&engine, &scratch, &diverging(11), 8 * SMALL.page, case);
        // The second one had one where it departed from the first.
        assert_turn(&engine, &scratch, &diverging(12), SMALL.page_end(450), case);
        // An earlier departure finds the earlier checkpoint.
        let earlier = job([&common[..400], &tokens(13, 30)].concat(), 5);
        assert_turn(&engine, &scratch, &earlier, 8 * SMALL.page, case);
        // The same prompt again computes its last page.
        assert_turn(&engine, &scratch, &diverging(12), SMALL.page_end(519), case);
        // Concurrent questions about one document compute it once.
        let document = tokens(2, 420);
        let questions: Vec<Job> =
            (0..8).map(|seed| job([&document[..], &tokens(seed, 9)].concat(), 12)).collect();
        let before = engine.status();
        let receivers: Vec<EventReceiver> =
            questions.iter().map(|job| submit(&engine, job)).collect();
        for (question, receivers) in questions.iter().zip(receivers) {
            assert_eq!(receivers.answer(WATCHDOG), answer(&scratch, question), "{case}");
        }
        let (computed, cached) = prompt_tokens(&engine, before);
        assert!(cached >= 7 * SMALL.page_end(420), "{case}: {cached} cached, {computed} computed");
    }
}

/// Returns conversations of three turns, the turns of all conversations mixed.
pub fn mixed_turns(scratch: &ServingEngine, conversations: u64) -> Vec<(Job, Answer)> {
    let mut histories: Vec<Vec<u32>> = vec![Vec::new(); conversations as usize];
    let mut turns = Vec::new();
    for turn in 0..3 {
        for (seed, history) in (0..).zip(&mut histories) {
            let new = tokens(31 * seed + turn, 20 + 37 * (seed as usize + turn as usize) % 110);
            let prompt = [&history[..], &new].concat();
            let job = job(prompt.clone(), 10 + 11 * turn as u32);
            let answer = answer(scratch, &job);
            *history = [&prompt[..], answer.tokens()].concat();
            turns.push((job, answer));
        }
    }
    turns
}

/// Fewer checkpoints than sequences, and fewer pages than prompts, evict what later turns need.
pub fn few_checkpoints_change_no_answer() {
    for config in models::all() {
        let (dtype, kv) = (Dtype::Bf16, KvFormat::Plain);
        let scratch = start_from_scratch(&config, dtype, kv, SMALL);
        let turns = mixed_turns(&scratch, 5);
        for (checkpoints, pages) in [(1, 60), (3, 21), (20, 60)] {
            let size = Size { checkpoints, pages, ..SMALL };
            let engine = start(plan(&config, dtype, kv, size));
            let receivers = turns.iter().map(|(job, _)| submit(&engine, job));
            let receivers: Vec<EventReceiver> = receivers.collect();
            for (index, (receivers, (_, expected))) in receivers.into_iter().zip(&turns).enumerate()
            {
                let case = format!("{} {size:?} turn {index}", config.name);
                assert_eq!(receivers.answer(WATCHDOG), *expected, "{case}");
            }
            wait_until("pages are back", || engine.status().kv_positions_used == 0);
            let before = engine.status().cached_tokens;
            for (index, (job, expected)) in turns.iter().enumerate() {
                let case = format!("{} {size:?} turn {index} again", config.name);
                assert_eq!(answer(&engine, job), *expected, "{case}");
            }
            let cached = engine.status().cached_tokens - before;
            assert!(checkpoints < 20 || cached > 0, "{} {size:?}", config.name);
        }
    }
}

pub fn cancelled_turns_change_no_answer() {
    for config in models::all() {
        let (dtype, kv) = (Dtype::F32, KvFormat::Plain);
        let scratch = start_from_scratch(&config, dtype, kv, SMALL);
        let turns = mixed_turns(&scratch, 5);
        let engine = start(plan(&config, dtype, kv, Size { checkpoints: 3, ..SMALL }));
        let mut random = ChaCha8Rng::seed_from_u64(5);
        for round in 0..3 {
            let mut receivers = Vec::new();
            for (index, (job, _)) in turns.iter().enumerate() {
                let receiver = submit(&engine, job);
                std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 1500)));
                match random.next_u32() % 3 {
                    0 => engine.cancel(receiver.id()),
                    _ => receivers.push((index, receiver)),
                }
            }
            for (index, receiver) in receivers {
                let case = format!("{} round {round}, turn {index}", config.name);
                assert_eq!(receiver.answer(WATCHDOG), turns[index].1, "{case}");
            }
            wait_until("slots are free", || engine.status().kv_positions_used == 0);
        }
        // What was cancelled has not kept checkpoints reserved.
        let (job, expected) = &turns[14];
        assert_eq!(answer(&engine, job), *expected);
        let before = engine.status();
        assert_eq!(answer(&engine, job), *expected);
        let (_, cached) = prompt_tokens(&engine, before);
        assert_eq!(cached, SMALL.page_end(job.prompt.len() - 1), "{}", config.name);
    }
}

pub fn turns_survive_a_lost_worker() {
    for (config, seed) in models::all().into_iter().zip(0..) {
        let (dtype, kv) = (Dtype::F32, KvFormat::Plain);
        let scratch = start_from_scratch(&config, dtype, kv, SMALL);
        let turns = mixed_turns(&scratch, 4);
        drop(scratch);
        let engine = start(plan(&config, dtype, kv, SMALL));
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for round in 0..3 {
            let receivers: Vec<EventReceiver> =
                turns.iter().map(|(job, _)| submit(&engine, job)).collect();
            std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 30_000)));
            for worker in workers() {
                let _ = kill_process(worker, Signal::KILL);
            }
            for (index, (receivers, (_, expected))) in receivers.into_iter().zip(&turns).enumerate()
            {
                let case = format!("{} round {round}, turn {index}", config.name);
                assert_eq!(receivers.answer(WATCHDOG), *expected, "{case}");
            }
            let (job, expected) = &turns[turns.len() - 1];
            assert_eq!(answer(&engine, job), *expected, "{} round {round}", config.name);
        }
    }
}

/// Returns the files of a store that contain checkpoints: they have no tokens.
fn checkpoint_files(store: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(store).expect("a store").flatten();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).expect("a folder"));
    let pages = files.flatten().map(|file| file.path());
    let pages = pages.filter(|path| path.extension().is_some_and(|of| of == "kv"));
    pages.filter(|path| std::fs::read(path).expect("a page")[16..20] == [0; 4]).collect()
}

/// A conversation that continues in another process, whose checkpoints are then damaged and lost.
pub fn turns_continue_after_a_restart() {
    for config in models::all() {
        for (dtype, kv) in FORMATS {
            let folder = tempfile::tempdir().expect("a folder");
            let start_again = || {
                let field = |name: &str, value: String| (name.to_owned(), value);
                let at = PrefixStoreConfig {
                    directory: folder.path().to_path_buf(),
                    max_bytes: None,
                    min_tokens: 64,
                    origin: PageOrigin {
                        model: config.name.clone(),
                        fields: vec![field("dtype", format!("{dtype:?} {kv:?}"))],
                    },
                };
                start_storing(plan(&config, dtype, kv, SMALL), Some(at))
            };
            let scratch = start_from_scratch(&config, dtype, kv, SMALL);
            let (mut engine, mut history, mut cached) = (start_again(), Vec::new(), 0);
            for turn in 0..3 {
                let case = format!("{} {dtype:?} {kv:?} turn {turn}", config.name);
                let prompt = [&history[..], &tokens(turn, 150 + turn as usize)].concat();
                let job = job(prompt.clone(), 25);
                let answer = assert_turn(&engine, &scratch, &job, cached, &case);
                assert_eq!(engine.status().prompt_cache.hits, u64::from(turn > 0), "{case}");
                // Only the prompt is stored.
                cached = SMALL.page_end(prompt.len() - 1);
                history = [&prompt[..], answer.tokens()].concat();
                drop(engine);
                engine = start_again();
            }
            let job = job(history.clone(), 9);
            let expected = answer(&scratch, &job);
            drop(engine);
            let files = checkpoint_files(folder.path());
            assert!(files.len() >= 3, "{files:?}");
            for file in &files {
                let mut bytes = std::fs::read(file).expect("a checkpoint");
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                std::fs::write(file, bytes).expect("writable");
            }
            // Pages are of no use without their checkpoint, which is written again.
            let end = SMALL.page_end(history.len() - 1);
            for (round, (unusable, found)) in [(1, 0), (0, end), (0, 0)].into_iter().enumerate() {
                let case = format!("{} {dtype:?} round {round}", config.name);
                if round == 2 {
                    for file in checkpoint_files(folder.path()) {
                        std::fs::remove_file(file).expect("it is there");
                    }
                }
                let engine = start_again();
                let before = engine.status();
                assert_eq!(answer(&engine, &job), expected, "{case}");
                let (status, cached) = (engine.status(), prompt_tokens(&engine, before).1);
                assert_eq!(
                    (status.prompt_cache.unusable_pages, cached),
                    (unusable, found),
                    "{case}"
                );
            }
        }
    }
}
