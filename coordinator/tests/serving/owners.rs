//! Tests of servers whose sequences belong to the device or to the host.

use std::time::Duration;

use engine_api::serving::{Engine, HybridStepCounts};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rustix::process::{Signal, kill_process};
use scheduler::hybrid::{SchedulingPolicy, StepCosts};

use super::common::{
    EventReceiver, Job, KvLayout, dtypes, expected, jobs, maps, start_with, submit, workers,
};
use super::{WATCHDOG, wait_until};

/// Prompts have up to 70 tokens and steps 16 rows: most prompts are computed in chunks, short ones
/// whole.
pub fn either_owner_answers_alike() {
    for (dtype, kv_format) in dtypes() {
        let all = maps(kv_format);
        let (on_cpu, on_device) = (&all[0], &all[2]);
        let jobs = jobs(40);
        let expected = expected(on_cpu, dtype, &jobs);
        let measured = SchedulingPolicy::ALL.map(KvLayout::Owners).into_iter();
        for kept in
            measured.chain([SchedulingPolicy::Apex, SchedulingPolicy::Auto].map(KvLayout::SlowHost))
        {
            let engine = start_with(on_device, dtype, kept);
            let deciding = engine.hybrid_policy().expect("sequences have owners");
            // In so small a model some costs may be too low to be measured, but not all.
            let costs = deciding.costs;
            let unknown = StepCosts { layers: costs.layers, ..StepCosts::NONE };
            assert_ne!(costs, unknown, "measured or given");
            let mut random = ChaCha8Rng::seed_from_u64(7);
            let mut heard: Vec<EventReceiver> = Vec::new();
            for job in &jobs {
                heard.push(submit(&engine, job));
                std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 2000)));
            }
            let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
            assert_eq!(found, expected, "{dtype:?} {kv_format:?} {kept:?}");
            let status = engine.status();
            assert_eq!(status.restarts, 0);
            let HybridStepCounts { pipelined, deferred, .. } = status.hybrid_steps;
            let must_lag = kept == KvLayout::SlowHost(SchedulingPolicy::Apex);
            assert!(deferred > 50 || !must_lag, "rows lag: {:?}", status.hybrid_steps);
            assert!(
                pipelined > 0,
                "the host attends, for pieces at least: {:?}",
                status.hybrid_steps
            );
            wait_until("slots are free", || engine.status().running == 0);
        }
    }
}

pub fn prompts_of_owners_are_told() {
    let (dtype, kv_format) = dtypes()[0];
    let all = maps(kv_format);
    let told = |job: Job| Job { prompt_logprobs: 3, prompt_logprobs_from: 2, max_new: 1, ..job };
    let jobs: Vec<Job> = jobs(12).into_iter().map(told).collect();
    let told_by = |map, kept| -> Vec<_> {
        let engine = start_with(map, dtype, kept);
        let heard: Vec<EventReceiver> = jobs.iter().map(|job| submit(&engine, job)).collect();
        let answers = heard.into_iter().map(|heard| heard.answer(WATCHDOG));
        answers.map(|answer| answer.prompt_logprobs().to_vec()).collect()
    };
    let expected = told_by(&all[0], KvLayout::Extents);
    assert!(expected.iter().any(|told| told.len() > 60), "long prompts are told");
    assert_eq!(told_by(&all[2], KvLayout::Owners(SchedulingPolicy::Neo)), expected);
}

pub fn owners_survive_a_lost_worker() {
    let (dtype, kv_format) = dtypes()[0];
    let all = maps(kv_format);
    let jobs = jobs(24);
    let expected = expected(&all[0], dtype, &jobs);
    for seed in 0..6 {
        let kept = match seed % 3 {
            0 => KvLayout::Owners(SchedulingPolicy::Neo),
            1 => KvLayout::Owners(SchedulingPolicy::FastDecode),
            _ => KvLayout::SlowHost(SchedulingPolicy::Apex),
        };
        let engine = start_with(&all[2], dtype, kept);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let heard: Vec<EventReceiver> = jobs.iter().map(|job| submit(&engine, job)).collect();
        std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 20_000)));
        let workers = workers();
        // The worker may have exited already if everything is answered.
        let _ = kill_process(workers[random.next_u32() as usize % workers.len()], Signal::KILL);
        let found: Vec<_> = heard.into_iter().map(|heard| heard.answer(WATCHDOG)).collect();
        assert_eq!(found, expected, "seed {seed}");
    }
}
