//! Drafted tokens change no answer.

use std::time::Duration;

use engine::serving::{ServingEngine, ServingOptions, StepTime, draft_obstacle};
use engine_api::serving::{Engine, Sampling};
use model::config::Dtype;
use model::hidden_states::HiddenStates;
use planner::policy::{DefaultTiers, Policy, device_map};
use program::compile::compile;
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::topology::MemoryId;
use program::validate::validate;
use protocol::messages::{DraftModelSetup, WeightsOrigin};
use scheduler::StepCostCurve;

use crate::common::{self, Answer, Job, KvLayout, jobs, options_of, submit};
use crate::models;
use crate::turns::{self, SMALL, Size};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts a server that drafts up to `max_drafts` tokens of a sequence.
fn start_drafting(map: &DeviceMap, dtype: Dtype, kept: KvLayout, max_drafts: u32) -> ServingEngine {
    start_drafting_of(map, dtype, kept, max_drafts, true)
}

/// Starts a server that drafts tokens of all sequences, or only of those that predict their answer.
fn start_drafting_of(
    map: &DeviceMap,
    dtype: Dtype,
    kept: KvLayout,
    max_drafts: u32,
    drafts_all: bool,
) -> ServingEngine {
    let options = common::serving_options(map, dtype, kept, None, Box::new(|_| {}));
    let plan = common::plan_with_logits(map, dtype, Some(kept), 24);
    // Every draft is verified that has a chance of being accepted.
    let step_costs = Some(StepCostCurve::NONE);
    let options = ServingOptions { plan, max_drafts, drafts_all, step_costs, ..options };
    ServingEngine::start(options).expect("it starts")
}

/// Returns the options with drafts of all sequences, and a step that takes a second however many
/// rows it has, so that all drafts are verified.
fn where_steps_take_a_second(options: ServingOptions) -> ServingOptions {
    let mut costs = StepCostCurve::NONE;
    costs.points[0] = (1, 1_000_000);
    costs.points[1] = (512, 1_000_000);
    let step_time = StepTime::Target(Duration::from_secs(3600));
    let step_costs = Some(costs);
    ServingOptions { max_drafts: 7, drafts_all: true, step_costs, step_time, ..options }
}

/// Starts a server whose draft model has weights of the given seed.
fn start_with_draft_model(
    map: &DeviceMap,
    dtype: Dtype,
    kept: KvLayout,
    seed: u64,
) -> ServingEngine {
    let mut options = common::serving_options(map, dtype, kept, None, Box::new(|_| {}));
    options.plan = common::plan_with_logits(map, dtype, Some(kept), 24);
    // Some sequences find no pages.
    let plan = common::plan(&common::maps(KvFormat::Plain)[0], dtype, Some(KvLayout::Pages(20)));
    let weights = WeightsOrigin::Dummy { seed };
    options.launch.draft_model = Some(DraftModelSetup { plan, weights, threads: 1 });
    ServingEngine::start(where_steps_take_a_second(options)).expect("it starts")
}

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

/// Checks the tokens and log-probabilities of all jobs, which are submitted together.
fn check_answers(engine: &ServingEngine, jobs: &[Job], expected: &[Answer], context: &str) {
    let submitted: Vec<_> = jobs.iter().map(|job| submit(engine, job)).collect();
    for (job, (submitted, expected)) in submitted.into_iter().zip(expected).enumerate() {
        let answer = submitted.answer(LIMIT);
        assert_eq!(
            (answer.tokens(), answer.logprobs()),
            (expected.tokens(), expected.logprobs()),
            "job {job}, {context}"
        );
    }
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
                    let engine = start_drafting(&map, dtype, kept, max_drafts);
                    let context = format!("{dtype:?}, {kv:?}, {kept:?}, {max_drafts} drafts");
                    check_answers(&engine, &jobs, &expected, &context);
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
        let engine = start_drafting(map, Dtype::F32, KvLayout::Extents, max_drafts);
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

pub(crate) fn draft_models_change_no_answer() {
    for (dtype, kv) in common::dtypes() {
        for (index, map) in common::maps(kv).into_iter().enumerate() {
            let jobs = jobs(30);
            let expected = common::expected(&map, dtype, &jobs);
            let layouts = [KvLayout::Extents, KvLayout::Pages(24)];
            for kept in layouts.into_iter().take(if index == 0 { 2 } else { 1 }) {
                // The model itself drafts, and another one.
                let shares = [11, 12].map(|seed| {
                    let engine = start_with_draft_model(&map, dtype, kept, seed);
                    let context = format!("{dtype:?}, {kv:?}, {kept:?}, seed {seed}");
                    check_answers(&engine, &jobs, &expected, &context);
                    let drafts = engine.status().drafts;
                    assert!(drafts.verified > 0, "{drafts:?}");
                    drafts.accepted as f64 / drafts.verified as f64
                });
                // Grammars and the ends of answers refuse drafts of the model itself.
                assert!(shares[0] > 0.1 && shares[0] > 2.0 * shares[1], "{shares:?}");
            }
        }
    }
}

/// Starts a server that drafts with the layer for multi-token prediction of its model, where a step
/// takes a second however many rows it has, so that all drafts are verified.
fn start_with_prediction_layer(map: &DeviceMap, dtype: Dtype, kept: KvLayout) -> ServingEngine {
    let mut options = common::serving_options(map, dtype, kept, None, Box::new(|_| {}));
    let plan = common::plan_with_logits(map, dtype, Some(kept), 24);
    let mut config = plan.config.clone();
    config.features.prediction_layer = Some(config.layers.kind(0).clone());
    config.features.hidden_states = HiddenStates::Sampled;
    let layer = config.prediction_model().expect("a layer");
    // Some sequences find no pages.
    let of_pages =
        common::plan(&common::maps(KvFormat::Plain)[0], dtype, Some(KvLayout::Pages(20)));
    let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let layer_map = device_map(&Policy::CpuOnly, &layer, true, tiers);
    let compiled = |config, shape, map| {
        let plan = compile(config, shape, map).expect("it compiles");
        validate(&plan).expect("it is proved");
        plan
    };
    options.plan = compiled(&config, &plan.shape, map);
    let plan = compiled(&layer, &of_pages.shape, &layer_map);
    let weights = WeightsOrigin::Dummy { seed: 11 };
    options.launch.draft_model = Some(DraftModelSetup { plan, weights, threads: 1 });
    ServingEngine::start(where_steps_take_a_second(options)).expect("it starts")
}

/// Layers for multi-token prediction read hidden states wherever the model is computed, of prompts
/// that are computed in steps, share pages, or are computed again.
pub(crate) fn prediction_layers_change_no_answer() {
    for (dtype, kv) in common::dtypes() {
        for (index, map) in common::maps(kv).into_iter().enumerate() {
            let jobs = [repetitive_jobs(20), jobs(20)].concat();
            let expected = common::expected(&map, dtype, &jobs);
            let layouts = [KvLayout::Extents, KvLayout::Pages(24)];
            for kept in layouts.into_iter().take(if index == 0 { 2 } else { 1 }) {
                let engine = start_with_prediction_layer(&map, dtype, kept);
                check_answers(&engine, &jobs, &expected, &format!("{dtype:?}, {kv:?}, {kept:?}"));
                let drafts = engine.status().drafts;
                assert!(drafts.verified > 0, "{drafts:?}");
            }
        }
    }
}

/// The model itself drafts what it draws, greedy or sampled, however its prompt was computed.
pub(crate) fn equal_models_draft_every_token() {
    let map = &common::maps(KvFormat::Plain)[0];
    for (index, temperature) in [0.0, 0.9].into_iter().enumerate() {
        let engine = start_with_draft_model(map, Dtype::F32, KvLayout::Extents, 11);
        let mut job = Job { max_new: 70, grammar: None, ..jobs(1).remove(0) };
        job.sampling = Sampling { temperature, ..Sampling::GREEDY };
        // Which answers end early depends on the processor.
        let is_checked = (0..30).any(|shift| {
            let token = |place: u32| (place * 13 + shift * 7) % 200;
            job.prompt = (0..40 + index as u32).map(token).collect();
            let before = engine.status().drafts;
            let tokens = submit(&engine, &job).answer(LIMIT).tokens().len() as u64;
            let after = engine.status().drafts;
            let accepted = after.accepted - before.accepted;
            let refused = after.verified - before.verified - accepted;
            // Drafts beyond the end of the answer are refused.
            assert!(refused < 7, "{tokens} tokens, {before:?} {after:?}");
            assert!(tokens < 70 || 5 * accepted > 4 * tokens, "{before:?} {after:?}");
            tokens == 70
        });
        assert!(is_checked, "all answers end early");
    }
}

/// Returns jobs with predictions of their answers: right ones, ones with each pair of neighbouring
/// tokens of the answer followed by another token, and in turn both and ones with errors.
fn predicting_jobs(jobs: &[Job], expected: &[Answer]) -> [Vec<Job>; 3] {
    let wrong = |token: u32| (token + 1) % 200;
    let predict = |job: &Job, prediction: Vec<u32>| {
        let prediction = Some(prediction.into());
        Job { prediction, ..job.clone() }
    };
    let pairs = |tokens: &[u32]| -> Vec<u32> {
        let first = tokens.first().map(|first| wrong(*first));
        let pairs = tokens.windows(3).flat_map(|found| [found[0], found[1], wrong(found[2])]);
        first.into_iter().chain(pairs).collect()
    };
    let mixed = |index: usize, tokens: &[u32]| -> Vec<u32> {
        match index % 3 {
            0 => tokens.to_vec(),
            1 => pairs(tokens),
            _ => {
                let every_fifth = |place: usize, token: u32| match place % 5 {
                    4 => wrong(token),
                    _ => token,
                };
                let places = tokens.iter().enumerate();
                places.map(|(place, token)| every_fifth(place, *token)).chain([7; 200]).collect()
            }
        }
    };
    let with = |content: &dyn Fn(usize, &[u32]) -> Vec<u32>| {
        let jobs = jobs.iter().zip(expected).enumerate();
        jobs.map(|(index, (job, answer))| predict(job, content(index, answer.tokens()))).collect()
    };
    [
        with(&|_, tokens: &[u32]| tokens.to_vec()),
        with(&|_, tokens: &[u32]| pairs(tokens)),
        with(&mixed),
    ]
}

pub(crate) fn predictions_change_no_answer() {
    for (index, (dtype, kv)) in common::dtypes().into_iter().enumerate() {
        // A placement for each of the formats.
        let map = &common::maps(kv)[index];
        let jobs = jobs(30);
        let expected = common::expected(map, dtype, &jobs);
        let kept = if index == 0 { KvLayout::Pages(24) } else { KvLayout::Extents };
        let [right, wrong, mixed] = predicting_jobs(&jobs, &expected);
        let engine = start_drafting_of(map, dtype, kept, 7, false);
        let check = |jobs: &[Job], what: &str| {
            let before = engine.status().drafts;
            let context = format!("{dtype:?}, {kv:?}, {kept:?}, {what} predictions");
            check_answers(&engine, jobs, &expected, &context);
            let after = engine.status().drafts;
            [after.verified - before.verified, after.accepted - before.accepted]
        };
        let tokens: usize = expected.iter().map(|answer| answer.tokens().len()).sum();
        let [verified, accepted] = check(&right, "right");
        // The first and the last token of an answer are not drafted.
        assert!(accepted > tokens as u64 / 2, "{accepted} of {verified}, {tokens} tokens");
        let [verified, accepted] = check(&wrong, "wrong");
        assert!(verified > 0 && accepted * 4 < verified, "{accepted} of {verified}");
        check(&mixed, "mixed");
        assert_eq!(check(&jobs, "no"), [0, 0], "nothing else is drafted");
    }
}

/// Refused tokens overwrite no position that a window still includes, and enter no state, also
/// where a later turn continues from a checkpoint.
pub(crate) fn drafts_over_windows_and_states_change_no_answer() {
    const MAX_DRAFTS: u32 = 7;
    let formats = common::dtypes();
    for (index, mut config) in models::all().into_iter().enumerate() {
        let (dtype, kv) = formats[index % formats.len()];
        let scratch = turns::start_from_scratch(&config, dtype, kv, SMALL);
        let (jobs, expected): (Vec<_>, Vec<_>) =
            turns::mixed_turns(&scratch, 5).into_iter().unzip();
        drop(scratch);
        config.layers.set_draft_positions(MAX_DRAFTS as usize);
        let plan = turns::plan(&config, dtype, kv, Size { logits_rows: 24, ..SMALL });
        assert_eq!(draft_obstacle(&plan, MAX_DRAFTS), None);
        assert!(draft_obstacle(&plan, MAX_DRAFTS + 1).is_some());
        let options = ServingOptions {
            max_drafts: MAX_DRAFTS,
            step_costs: Some(StepCostCurve::NONE),
            ..options_of(plan, None, Box::new(|_| {}))
        };
        let engine = ServingEngine::start(options).expect("it starts");
        for (kind, jobs) in
            ["right", "wrong", "mixed"].iter().zip(predicting_jobs(&jobs, &expected))
        {
            let context = format!("{} {dtype:?} {kv:?}, {kind} predictions", config.name);
            check_answers(&engine, &jobs, &expected, &context);
        }
        let status = engine.status();
        let drafts = status.drafts;
        assert!(drafts.accepted > 0 && drafts.accepted < drafts.verified, "{drafts:?}");
        assert!(status.cached_tokens > 0, "later turns continue from checkpoints");
    }
}
