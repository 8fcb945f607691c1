//! Tests of the engine of a server with real worker processes: answers equal those of the batch
//! job's engine, regardless of concurrent requests, cancellations and lost workers.

mod budgets;
mod common;
mod drafts;
mod models;
#[path = "../own_main.rs"]
mod own_main;
mod owners;
mod prompts;
mod turns;

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{
    EventReceiver, Job, KvLayout, dtypes, expected, jobs, maps, start, start_with, submission,
    submit, workers,
};
use engine_api::serving::{Engine, EngineEvent, EngineState, EventSink, Sampling};
use grammar::Grammar;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rustix::process::{Signal, kill_process};

const TESTS: [own_main::Test; 35] = [
    ("reasoning_ends_at_its_budget", budgets::reasoning_ends_at_its_budget),
    ("answers_are_those_without_drafts", drafts::answers_are_those_without_drafts),
    ("repetitions_take_fewer_steps", drafts::repetitions_take_fewer_steps),
    ("predictions_change_no_answer", drafts::predictions_change_no_answer),
    (
        "drafts_over_windows_and_states_change_no_answer",
        drafts::drafts_over_windows_and_states_change_no_answer,
    ),
    ("draft_models_change_no_answer", drafts::draft_models_change_no_answer),
    ("prediction_layers_change_no_answer", drafts::prediction_layers_change_no_answer),
    ("equal_models_draft_every_token", drafts::equal_models_draft_every_token),
    ("answers_are_those_of_a_batch_job", answers_are_those_of_a_batch_job),
    ("who_leaves_changes_no_other_answer", who_leaves_changes_no_other_answer),
    ("a_lost_worker_loses_no_answer", a_lost_worker_loses_no_answer),
    ("what_was_taken_is_answered_before_the_end", what_was_taken_is_answered_before_the_end),
    ("what_the_model_says_of_prompts", what_the_model_says_of_prompts),
    ("pages_of_caches_change_no_answer", pages_of_caches_change_no_answer),
    ("beginnings_are_computed_once", beginnings_are_computed_once),
    ("parts_of_pages_change_no_answer", parts_of_pages_change_no_answer),
    ("answers_to_one_prompt_compute_it_once", answers_to_one_prompt_compute_it_once),
    ("continuations_share_their_prompt", continuations_share_their_prompt),
    ("a_defect_of_the_engine_ends_it", a_defect_of_the_engine_ends_it),
    ("a_form_that_cannot_be_fails_who_asks_for_it", a_form_that_cannot_be_fails_who_asks_for_it),
    ("workers_that_cannot_be_kept_are_given_up", workers_that_cannot_be_kept_are_given_up),
    ("a_stored_document_is_computed_once", prompts::a_stored_document_is_computed_once),
    ("a_store_changes_no_answer", prompts::a_store_changes_no_answer),
    ("damaged_pages_are_computed_again", prompts::damaged_pages_are_computed_again),
    ("a_store_without_room_is_done_without", prompts::a_store_without_room_is_done_without),
    ("a_worker_lost_while_it_stores_loses_nothing", prompts::a_worker_lost_while_it_stores),
    ("turns_compute_only_their_new_tokens", turns::turns_compute_only_their_new_tokens),
    ("prompts_that_diverge_share_their_beginning", turns::diverging_prompts_share_their_beginning),
    ("few_checkpoints_change_no_answer", turns::few_checkpoints_change_no_answer),
    ("cancelled_turns_change_no_answer", turns::cancelled_turns_change_no_answer),
    ("turns_survive_a_lost_worker", turns::turns_survive_a_lost_worker),
    ("turns_continue_after_a_restart", turns::turns_continue_after_a_restart),
    ("either_owner_answers_alike", owners::either_owner_answers_alike),
    ("prompts_of_owners_are_told", owners::prompts_of_owners_are_told),
    ("owners_survive_a_lost_worker", owners::owners_survive_a_lost_worker),
];

fn main() -> ExitCode {
    own_main::main(&TESTS)
}

pub const WATCHDOG: Duration = Duration::from_secs(120);

fn answers_are_those_of_a_batch_job() {
    for (dtype, kv_format) in dtypes() {
        for map in maps(kv_format) {
            let jobs = jobs(40);
            let expected = expected(&map, dtype, &jobs);
            let engine = start(&map, dtype);
            let mut random = ChaCha8Rng::seed_from_u64(7);
            let mut heard: Vec<EventReceiver> = Vec::new();
            for job in &jobs {
                heard.push(submit(&engine, job));
                std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 2000)));
            }
            let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
            assert_eq!(found, expected, "{dtype:?} {kv_format:?} {}", map.policy);
            assert_eq!(engine.status().restarts, 0);
        }
    }
}

fn who_leaves_changes_no_other_answer() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let jobs = jobs(60);
    let expected = expected(map, dtype, &jobs);
    let engine = start(map, dtype);
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut heard: Vec<(usize, EventReceiver)> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let listening = submit(&engine, job);
        match random.next_u32() % 3 {
            0 => heard.push((index, listening)),
            1 => engine.cancel(listening.id()),
            _ => drop(listening),
        }
    }
    for (index, heard) in heard {
        assert_eq!(heard.answer(WATCHDOG), expected[index], "answer {index}");
    }
    wait_until("slots are free", || {
        let status = engine.status();
        status.running == 0 && status.waiting == 0 && status.kv_positions_used == 0
    });
}

fn a_lost_worker_loses_no_answer() {
    let (dtype, kv_format) = dtypes()[0];
    let all = maps(kv_format);
    let jobs = jobs(24);
    for (seed, signal) in
        (0..10).map(|seed| (seed, [Signal::KILL, Signal::STOP][seed as usize % 2]))
    {
        let map = &all[seed as usize % all.len()];
        let expected = expected(map, dtype, &jobs);
        let engine = start(map, dtype);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let heard: Vec<EventReceiver> = jobs.iter().map(|job| submit(&engine, job)).collect();
        std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 20_000)));
        let workers = workers();
        let unlucky = workers[random.next_u32() as usize % workers.len()];
        // The worker may have exited already if everything is answered.
        let _ = kill_process(unlucky, signal);
        let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
        assert_eq!(found, expected, "seed {seed}: {signal:?} {}", map.policy);
        let again = submit(&engine, &jobs[0]).answer(WATCHDOG);
        assert_eq!(again, expected[0], "seed {seed}: served again");
        assert!(engine.status().restarts <= 1, "{:?}", engine.status());
    }
}

fn what_was_taken_is_answered_before_the_end() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let jobs = jobs(20);
    let expected = expected(map, dtype, &jobs);
    let engine = start(map, dtype);
    let heard: Vec<EventReceiver> = jobs.iter().map(|job| submit(&engine, job)).collect();
    engine.drain();
    let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
    assert_eq!(found, expected);
    wait_until("it has ended", || engine.status().state == EngineState::Ended);
    assert!(common::try_submit(&engine, &jobs[0]).is_err(), "nothing more is taken");
}

/// The log-probabilities of a prompt's tokens equal those of the same tokens when a job generates
/// them: prompts here contain a job's answers.
fn what_the_model_says_of_prompts() {
    for (dtype, kv_format) in dtypes() {
        for map in maps(kv_format) {
            let asked =
                |job: Job| Job { logprobs: 3, sampling: Sampling::GREEDY, grammar: None, ..job };
            let first: Vec<Job> = jobs(12).into_iter().map(asked).collect();
            let expected = expected(&map, dtype, &first);
            let engine = start(&map, dtype);
            let heard = first.iter().zip(&expected).map(|(job, answer)| {
                let prompt = [&job.prompt[..], answer.tokens()].concat();
                let next = Job { prompt, max_new: 1, prompt_logprobs: 3, ..job.clone() };
                submit(&engine, &next)
            });
            let heard: Vec<EventReceiver> = heard.collect();
            for (heard, (job, answer)) in heard.into_iter().zip(first.iter().zip(&expected)) {
                let found = heard.answer(WATCHDOG);
                let of_answer = &found.prompt_logprobs()[3 * (job.prompt.len() - 1)..];
                assert_eq!(of_answer, answer.logprobs(), "{dtype:?} {kv_format:?} {}", map.policy);
                assert_eq!(found.prompt_logprobs().len() % 3, 0);
            }
        }
    }
}

/// With fewer pages than the slots would need, sequences are preempted and restarted.
fn pages_of_caches_change_no_answer() {
    let mut preemptions = 0;
    for (dtype, kv_format) in dtypes() {
        // The CPU computes attention and stores the caches.
        let map = &maps(kv_format)[0];
        let jobs = jobs(40);
        let expected = expected(map, dtype, &jobs);
        for pages in [8, 13, 20, 48] {
            let engine = start_with(map, dtype, KvLayout::Pages(pages));
            let heard: Vec<EventReceiver> = jobs.iter().map(|job| submit(&engine, job)).collect();
            let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
            assert_eq!(found, expected, "{dtype:?} {kv_format:?} {pages} pages");
            preemptions += engine.status().preemptions;
            wait_until("pages are back", || engine.status().kv_positions_used == 0);
        }
    }
    assert!(preemptions > 0, "nothing was preempted");
}

/// Tests prompts that diverge within pages, in fewer pages than the slots would need, submitted
/// twice: parts of pages are copied while other sequences come, go and are preempted.
fn parts_of_pages_change_no_answer() {
    let mut preemptions = 0;
    for (dtype, kv_format) in dtypes() {
        let map = &maps(kv_format)[0];
        let of = |(index, job): (usize, Job)| {
            let beginning = (0..20 + index as u32 % 5 * 9).map(|i| (i * 7 + 3) % 200);
            let prompt = beginning.chain(job.prompt.iter().take(20).copied()).collect();
            Job { prompt, grammar: None, ..job }
        };
        let jobs: Vec<Job> = jobs(40).into_iter().enumerate().map(of).collect();
        let expected = expected(map, dtype, &jobs);
        for pages in [5, 7, 18] {
            let engine = start_with(map, dtype, KvLayout::LargePages(pages));
            for round in 0..2 {
                let heard: Vec<EventReceiver> =
                    jobs.iter().map(|job| submit(&engine, job)).collect();
                for (index, heard) in heard.into_iter().enumerate() {
                    if index % 7 == round {
                        engine.cancel(heard.id());
                    } else {
                        let case = format!("{dtype:?} {kv_format:?} {pages} pages, {index}");
                        assert_eq!(heard.answer(WATCHDOG), expected[index], "{case}");
                    }
                }
                wait_until("pages are back", || engine.status().kv_positions_used == 0);
            }
            let status = engine.status();
            assert!(status.cached_tokens > 0, "{status:?}");
            assert_eq!(status.worker_allocations, 0, "copies allocate nothing");
            preemptions += status.preemptions;
        }
    }
    assert!(preemptions > 0, "nothing was preempted");
}

fn answers_to_one_prompt_compute_it_once() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let job = |index: u64| Job {
        prompt: (1..32).collect(),
        max_new: 6,
        id_hash: index,
        ..jobs(2).remove(1)
    };
    let all: Vec<Job> = (0..6).map(job).collect();
    let expected = expected(map, dtype, &all);
    let engine = start_with(map, dtype, KvLayout::LargePages(18));
    let heard: Vec<EventReceiver> = all.iter().map(|job| submit(&engine, job)).collect();
    let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
    assert_eq!(found, expected);
    wait_until("all is shown", || engine.status().running == 0);
    let status = engine.status();
    assert_eq!(status.prompt_tokens, 31 + 5, "the last token of the others, {status:?}");
    assert_eq!(status.cached_tokens, 5 * 30);
}

/// Event sink that panics on the engine's thread at the first token.
struct PanickingSink;

impl EventSink for PanickingSink {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        assert!(!matches!(event, EngineEvent::Token { .. }), "a test's defect");
        ControlFlow::Continue(())
    }
}

/// Every client gets a last event or is disconnected, and no worker keeps running.
fn a_defect_of_the_engine_ends_it() {
    let (dtype, kv_format) = dtypes()[0];
    let engine = start(&maps(kv_format)[0], dtype);
    let endless = Job { max_new: 100, ..jobs(1).remove(0) };
    let heard: Vec<EventReceiver> = (0..8).map(|_| submit(&engine, &endless)).collect();
    let request = submission(&engine, &jobs(2)[1]);
    engine.submit(request, Box::new(PanickingSink)).expect("it is taken");
    wait_until("it has ended", || engine.status().state == EngineState::Ended);
    heard.into_iter().for_each(|heard| heard.end(WATCHDOG));
    assert!(common::try_submit(&engine, &endless).is_err(), "nothing more is taken");
    wait_until("no worker is left", || workers().is_empty());
}

fn beginnings_are_computed_once() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let job = Job { prompt: (1..60).collect(), max_new: 20, ..jobs(1).remove(0) };
    let first = expected(map, dtype, std::slice::from_ref(&job)).remove(0);
    // A conversation continues after its first answer.
    let said: Vec<u32> = job.prompt.iter().chain(first.tokens()).copied().chain([5, 6]).collect();
    let next = Job { prompt: said.clone(), ..job.clone() };
    let second = expected(map, dtype, std::slice::from_ref(&next)).remove(0);
    let engine = start_with(map, dtype, KvLayout::Pages(20));
    assert_eq!(submit(&engine, &job).answer(WATCHDOG), first);
    assert_eq!(engine.status().cached_tokens, 0);
    assert_eq!(submit(&engine, &next).answer(WATCHDOG), second);
    let known = (said.len() - 3) / 16 * 16;
    assert_eq!(engine.status().cached_tokens, known as u64, "of {} tokens", said.len());
    assert_eq!(submit(&engine, &job).answer(WATCHDOG), first);
    let status = engine.status();
    assert_eq!(status.cached_tokens, (known + 48) as u64);
    assert_eq!(status.prompt_tokens + status.cached_tokens, (59 + said.len() + 59) as u64);
}

/// Continuations are scored without the prompt's own tokens and without generating any: among
/// sequences that arrive together one computes the prompt, and the others wait for its pages.
fn continuations_share_their_prompt() {
    const PROMPT: u32 = 50;
    for (dtype, kv_format) in dtypes() {
        for (map, kept) in maps(kv_format).iter().zip([KvLayout::Pages(60), KvLayout::Extents]) {
            let whole = |index: u32| Job {
                prompt: (1..=PROMPT).chain((0..=index).map(|i| 60 + 7 * index + i)).collect(),
                max_new: 1,
                prompt_logprobs: 3,
                grammar: None,
                ..jobs(1).remove(0)
            };
            let whole: Vec<Job> = (0..10).map(whole).collect();
            let engine = start(map, dtype);
            let heard: Vec<EventReceiver> = whole.iter().map(|job| submit(&engine, job)).collect();
            let expected = heard.into_iter().map(|heard| heard.answer(WATCHDOG));
            let expected: Vec<_> = expected.collect();
            drop(engine);
            let engine = start_with(map, dtype, kept);
            let of = |job: &Job| {
                let job = Job { max_new: 0, prompt_logprobs_from: PROMPT, ..job.clone() };
                submit(&engine, &job)
            };
            let heard: Vec<EventReceiver> = whole.iter().map(of).collect();
            for (heard, expected) in heard.into_iter().zip(&expected) {
                let found = heard.answer(WATCHDOG);
                assert!(found.tokens().is_empty(), "{found:?}");
                let of_prompt = 3 * (PROMPT as usize - 1);
                let case = format!("{dtype:?} {kv_format:?} {kept:?}");
                let wanted = &expected.prompt_logprobs()[of_prompt..];
                assert_eq!(found.prompt_logprobs(), wanted, "{case}");
            }
            wait_until("all is shown", || engine.status().running == 0);
            let status = engine.status();
            let pages = u64::from((PROMPT - 1) / 16 * 16);
            let cached = if kept == KvLayout::Extents { 0 } else { 9 * pages };
            assert_eq!(status.cached_tokens, cached, "{status:?}");
            let rows: u64 = whole.iter().map(|job| job.prompt.len() as u64 - 1).sum();
            assert_eq!(status.prompt_tokens, rows - cached, "{status:?}");
            assert_eq!(status.generated_tokens, 0);
        }
    }
}

fn a_form_that_cannot_be_fails_who_asks_for_it() {
    let (dtype, kv_format) = dtypes()[0];
    let map = &maps(kv_format)[0];
    let all = jobs(8);
    let expected = expected(map, dtype, &all);
    let engine = start(map, dtype);
    let wrong = Job { grammar: Some(Grammar::Regex("(".to_owned())), ..all[0].clone() };
    let failing = submit(&engine, &wrong);
    let heard: Vec<EventReceiver> = all.iter().map(|job| submit(&engine, job)).collect();
    let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
    assert_eq!(found, expected);
    let events = failing.events(WATCHDOG);
    let [EngineEvent::Failed(reason)] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("cannot have this form"), "{reason}");
}

fn workers_that_cannot_be_kept_are_given_up() {
    let (dtype, kv_format) = dtypes()[0];
    let engine = start(&maps(kv_format)[0], dtype);
    let endless = Job { max_new: 100, ..jobs(1).remove(0) };
    let heard = submit(&engine, &endless);
    let begun = Instant::now();
    let mut last = Vec::new();
    // All workers are killed as soon as they are seen.
    while engine.status().state != EngineState::Ended && begun.elapsed() < WATCHDOG {
        for worker in workers() {
            let _ = kill_process(worker, Signal::KILL);
        }
        last.extend(heard.events(Duration::from_millis(1)));
    }
    last.extend(heard.events(Duration::from_millis(200)));
    let failed = |event: &EngineEvent| match event {
        EngineEvent::Failed(reason) => reason.contains("worker"),
        _ => false,
    };
    let finished = |event: &EngineEvent| matches!(event, EngineEvent::Finished(_));
    assert!(last.iter().any(|event| failed(event) || finished(event)), "{last:?}");
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < WATCHDOG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
