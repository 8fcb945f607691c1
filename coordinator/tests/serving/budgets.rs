//! Tests of limits on reasoning.

use engine_api::token_rules::ReasoningBudget;

use crate::WATCHDOG;
use crate::common::{Answer, Job, dtypes, expected, jobs, maps, start, submit};

const CLOSE: u32 = 150;

/// Number of tokens of the answers that a limit must leave as they are.
const OPENED_AT: usize = 2;

pub fn reasoning_ends_at_its_budget() {
    let (dtype, kv_format) = dtypes()[0];
    for map in &maps(kv_format) {
        let endless = |job: Job| Job { max_new: 24, grammar: None, reasoning_budget: None, ..job };
        let plain: Vec<Job> = jobs(16).into_iter().map(endless).collect();
        let unlimited = expected(map, dtype, &plain);
        let limited: Vec<Job> = (0..).zip(&plain).zip(&unlimited).map(limit).collect();
        let found = expected(map, dtype, &limited);
        for ((job, found), plain) in limited.iter().zip(&found).zip(&unlimited) {
            check(job.reasoning_budget.expect("it is limited"), found.tokens(), plain.tokens());
        }
        let engine = start(map, dtype);
        let received: Vec<_> = limited.iter().map(|job| submit(&engine, job)).collect();
        let served: Vec<Answer> = received.into_iter().map(|each| each.answer(WATCHDOG)).collect();
        assert_eq!(served, found, "{}", map.policy);
    }
}

/// Returns the job with a limit: on reasoning that the prompt begins, on reasoning that the answer
/// begins, or on reasoning that never begins.
fn limit(((index, job), unlimited): ((u32, &Job), &Answer)) -> Job {
    let open = match index % 3 {
        0 => None,
        1 => unlimited.tokens().get(OPENED_AT).copied(),
        _ => Some(199).filter(|open| !unlimited.tokens().contains(open)),
    };
    let budget = ReasoningBudget { max_tokens: index % 5, open, close: CLOSE };
    Job { reasoning_budget: Some(budget), ..job.clone() }
}

/// Checks an answer against the one without a limit: it differs after the limit only, where the
/// marker is.
fn check(budget: ReasoningBudget, found: &[u32], unlimited: &[u32]) {
    let begin = budget.open.map_or(Some(0), |open| {
        unlimited.iter().position(|token| *token == open).map(|place| place + 1)
    });
    let Some(place) = begin.map(|begin| begin + budget.max_tokens as usize) else {
        assert_eq!(found, unlimited, "reasoning never begins");
        return;
    };
    let is_over = unlimited.len() <= place;
    if is_over || unlimited[begin.unwrap_or(0)..place].contains(&CLOSE) {
        assert_eq!(found, unlimited, "the reasoning ends before");
        return;
    }
    assert_eq!(found[..place], unlimited[..place], "{budget:?}");
    assert_eq!(found[place], CLOSE, "{budget:?}");
    assert!(found[place + 1..].iter().any(|token| *token != CLOSE), "it is forced once: {found:?}");
}
