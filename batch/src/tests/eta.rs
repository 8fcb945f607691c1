//! Compares estimates of the remaining time with recorded jobs. The timelines were recorded from
//! SmolLM2-135M on two cores. Each line is a look at the workers: milliseconds, then a sequence for
//! each of its tokens, or `sequence:tokens` if it has ended.

use crate::eta::{CostPrior, Eta, EtaEstimator, PlannedSequence};

enum Event {
    Token(usize),
    End(usize, u32),
}

struct Timeline {
    planned: Vec<PlannedSequence>,
    slots: usize,
    prior: Option<CostPrior>,
    looks: Vec<(f64, Vec<Event>)>,
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn timeline(text: &str) -> Timeline {
    let (planned, looks) = (Vec::new(), Vec::new());
    let mut found = Timeline { planned, slots: 0, prior: None, looks };
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').expect("words");
        let words: Vec<&str> = rest.split(' ').collect();
        match first {
            "slots" => found.slots = number(rest),
            "prior" => {
                let (prompt_token_s, step_s) = (number(words[0]), number(words[1]));
                found.prior = Some(CostPrior { prompt_token_s, step_s });
            }
            "planned" => {
                found.planned.extend(words.iter().map(|word| {
                    let (prompt, new) = word.split_once('/').expect("two numbers");
                    PlannedSequence { prompt_tokens: number(prompt), max_new: number(new) }
                }));
            }
            ms => {
                let event = |word: &&str| match word.split_once(':') {
                    Some((sequence, made)) => Event::End(number(sequence), number(made)),
                    None => Event::Token(number(word)),
                };
                found.looks.push((number::<f64>(ms) / 1e3, words.iter().map(event).collect()));
            }
        }
    }
    found
}

/// Returns the estimate and the true remaining time, in seconds, at each percent of the job.
fn estimates(timeline: &Timeline) -> Vec<(Option<Eta>, f64)> {
    let mut remaining = EtaEstimator::new(timeline.planned.clone(), timeline.slots, timeline.prior);
    let end_s = timeline.looks.last().expect("looks").0;
    let mut looks = timeline.looks.iter().peekable();
    (0..100)
        .map(|percent| {
            let now_s = end_s * f64::from(percent) / 100.0;
            while let Some((at_s, events)) = looks.next_if(|look| look.0 <= now_s) {
                for event in events {
                    match *event {
                        Event::Token(sequence) => remaining.token(sequence, *at_s),
                        Event::End(sequence, made) => remaining.finished(sequence, made, *at_s),
                    }
                }
            }
            (remaining.estimate(now_s), end_s - now_s)
        })
        .collect()
}

/// Asserts that estimates after the first fifth of the job are off by at most half of the remaining
/// time or a twelfth of the whole: the last group of a job may be faster or slower than those
/// before it. There must be an estimate from `first` percent on.
#[track_caller]
fn holds(text: &str, first: usize) {
    let estimates = estimates(&timeline(text));
    let end_s = estimates[0].1;
    for (percent, (eta, true_s)) in estimates.iter().enumerate().skip(first.max(20)) {
        let eta = eta.unwrap_or_else(|| panic!("nothing said at {percent}%"));
        let missed_s = (eta.seconds - true_s).abs();
        let bound_s = (0.5 * true_s).max(end_s / 12.0);
        assert!(missed_s <= bound_s, "at {percent}%: {eta:?}, in truth {true_s:.1} s");
    }
}

#[test]
fn jobs_that_are_mostly_prefill() {
    holds(include_str!("timelines/prefill.txt"), 30);
}

#[test]
fn a_prediction_is_used_before_anything_is_seen() {
    let text = include_str!("timelines/prefill-predicted.txt");
    holds(text, 0);
    let (eta, true_s) = estimates(&timeline(text))[0];
    let eta = eta.expect("a prediction");
    assert!((eta.seconds - true_s).abs() < 0.5 * true_s, "{eta:?} {true_s}");
}

/// Most answers end after 20 to 60 of 1024 tokens, and three run to the limit.
#[test]
fn answers_that_end_early() {
    holds(include_str!("timelines/early.txt"), 20);
}

#[test]
fn long_and_short_prompts_and_answers() {
    holds(include_str!("timelines/mixed.txt"), 20);
}

#[test]
fn answers_that_end_at_once_are_counted_by_their_prefill() {
    let planned = vec![PlannedSequence { prompt_tokens: 100, max_new: 1000 }; 40];
    let mut remaining = EtaEstimator::new(planned, 8, None);
    assert_eq!(remaining.estimate(1.0), None);
    for group in 0..4 {
        for sequence in 8 * group..8 * (group + 1) {
            remaining.finished(sequence, 0, 2.0 * (group + 1) as f64);
        }
    }
    assert_eq!(remaining.prompt_tokens(), 3200);
    let eta = remaining.estimate(8.5).expect("prefills were seen");
    assert!(!eta.is_upper_bound && (0.75..=3.0).contains(&eta.seconds), "{eta:?}");
}

#[test]
fn before_any_answer_has_ended_the_most_is_told_as_that() {
    let planned = vec![PlannedSequence { prompt_tokens: 10, max_new: 1000 }; 8];
    let mut remaining = EtaEstimator::new(planned, 8, None);
    for step in 0..10 {
        (0..8).for_each(|sequence| remaining.token(sequence, 1.0 + 0.1 * f64::from(step)));
    }
    let eta = remaining.estimate(1.9).expect("steps were seen");
    assert!(eta.is_upper_bound && (eta.seconds - 99.0).abs() < 2.0, "{eta:?}");
}
