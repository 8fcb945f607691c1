//! Drafted tokens change no answer.

use std::time::Duration;

use engine_api::serving::Engine;
use model::config::Dtype;
use program::formats::KvFormat;

use crate::common::{self, Job, KvLayout, jobs, submit};

const LIMIT: Duration = Duration::from_secs(60);

/// Returns jobs whose prompts repeat what they end with, so that every token is drafted: those of a
/// model with random weights are mostly refused, except where an answer repeats itself.
fn repetitive_jobs(count: usize) -> Vec<Job> {
    let mut jobs = jobs(count);
    for (index, job) in jobs.iter_mut().enumerate() {
        let period = 2 + index % 5;
        let token = |place: usize| ((index * 31 + place % period * 7) % 200) as u32;
        job.prompt = (0..3 * period + index % 4).map(token).collect();
        job.max_new = 1 + (index as u32 * 11) % 60;
    }
    jobs
}

pub(crate) fn answers_are_those_without_drafts() {
    for (dtype, kv) in common::dtypes() {
        for (index, map) in common::maps(kv).into_iter().enumerate() {
            let jobs = [repetitive_jobs(40), jobs(30)].concat();
            let expected = common::expected(&map, dtype, &jobs);
            // Caches consist of pages where the CPU alone attends.
            let layouts = [KvLayout::Extents, KvLayout::Pages(24)];
            for kept in layouts.into_iter().take(if index == 0 { 2 } else { 1 }) {
                for max_drafts in [1, 7] {
                    let engine = common::start_drafting(&map, dtype, kept, max_drafts);
                    let submitted: Vec<_> = jobs.iter().map(|job| submit(&engine, job)).collect();
                    for (index, (submitted, expected)) in
                        submitted.into_iter().zip(&expected).enumerate()
                    {
                        let answer = submitted.answer(LIMIT);
                        assert_eq!(
                            (answer.tokens(), answer.logprobs()),
                            (expected.tokens(), expected.logprobs()),
                            "job {index}, {dtype:?}, {kv:?}, {kept:?}, {max_drafts} drafts"
                        );
                    }
                    let drafts = engine.status().drafts;
                    assert!(drafts.accepted > 0, "{drafts:?}");
                    assert!(drafts.accepted < drafts.verified, "{drafts:?}");
                }
            }
        }
    }
}

pub(crate) fn repetitions_take_fewer_steps() {
    let map = &common::maps(KvFormat::Plain)[0];
    let long = Job { max_new: 100, ..jobs(1).remove(0) };
    let steps = [0, 7].map(|max_drafts| {
        let engine = common::start_drafting(map, Dtype::F32, KvLayout::Extents, max_drafts);
        let answer = submit(&engine, &long).answer(LIMIT);
        (answer, engine.status())
    });
    let [(plain, without), (drafted, with)] = steps;
    assert_eq!(plain, drafted);
    assert_eq!(without.drafts.verified, 0);
    let saved = with.drafts.accepted;
    assert!(saved > 0, "{:?}", with.drafts);
    // The last step of either may be counted after the answer has ended.
    assert!((with.steps + saved).abs_diff(without.steps) <= 1, "{with:?} {without:?}");
}
