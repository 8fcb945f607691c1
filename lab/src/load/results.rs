//! Results of a measurement, as defined by `vllm bench serve`.

use std::time::Duration;

use serde::Serialize;

use super::record::{AnswerRecord, RequestRecords};
use super::slo::Slo;

/// Summary of a distribution, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencySummary {
    pub mean: f64,
    pub median: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// Results of a measurement. Requests without a complete answer only count in `failed`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadTestResults {
    pub completed: usize,
    pub failed: usize,
    /// Number of answers with fewer tokens than requested.
    pub short: usize,
    /// Duration from the first scheduled arrival to the end of the last request, in seconds.
    pub duration: f64,
    pub total_input_tokens: u64,
    pub total_output_tokens: u64,
    /// Completed requests per second.
    pub request_throughput: f64,
    /// Completed requests per second that met the objective.
    pub request_goodput: f64,
    /// Fraction of all requests that met the objective, 0 to 1.
    pub within_slo: f64,
    /// Generated tokens per second.
    pub output_throughput: f64,
    /// Tokens per second, including those of prompts.
    pub total_token_throughput: f64,
    /// Time to first token, from the scheduled arrival.
    pub ttft_ms: Option<LatencySummary>,
    /// Time per output token after the first, averaged over each answer.
    pub tpot_ms: Option<LatencySummary>,
    /// Inter-token latency: the time between two consecutive events of a stream.
    pub itl_ms: Option<LatencySummary>,
    /// End-to-end latency, from the scheduled arrival.
    pub e2el_ms: Option<LatencySummary>,
    /// Delay between the scheduled arrival and the time at which this program sent the request.
    pub sent_late_ms: Option<LatencySummary>,
}

impl LoadTestResults {
    /// Computes the results from records.
    pub fn from_records(records: &RequestRecords, slo: Slo) -> LoadTestResults {
        let answers = &records.answers;
        let duration = records.duration.as_secs_f64();
        let per_second = |count: f64| if duration > 0.0 { count / duration } else { 0.0 };
        let sum =
            |tokens: fn(&AnswerRecord) -> u32| answers.iter().map(|a| u64::from(tokens(a))).sum();
        let total_input_tokens: u64 = sum(|answer| answer.prompt_tokens);
        let total_output_tokens: u64 = sum(|answer| answer.answer_tokens);
        let good = answers.iter().filter(|answer| slo.is_met(answer)).count() as f64;
        let all = answers.len() + records.failures.len();
        let summarize_each =
            |time: fn(&AnswerRecord) -> Duration| summarize(answers.iter().map(time));
        LoadTestResults {
            completed: answers.len(),
            failed: records.failures.len(),
            short: answers.iter().filter(|a| a.answer_tokens < a.requested_tokens).count(),
            duration,
            total_input_tokens,
            total_output_tokens,
            request_throughput: per_second(answers.len() as f64),
            request_goodput: per_second(good),
            within_slo: good / all.max(1) as f64,
            output_throughput: per_second(total_output_tokens as f64),
            total_token_throughput: per_second((total_input_tokens + total_output_tokens) as f64),
            ttft_ms: summarize_each(AnswerRecord::time_to_first_token),
            tpot_ms: summarize(answers.iter().filter_map(AnswerRecord::time_per_output_token)),
            itl_ms: summarize(answers.iter().flat_map(AnswerRecord::gaps)),
            e2el_ms: summarize_each(|answer| answer.ended.saturating_sub(answer.scheduled)),
            sent_late_ms: summarize_each(|answer| answer.sent.saturating_sub(answer.scheduled)),
        }
    }
}

/// Summarises a distribution; returns `None` if it is empty.
fn summarize(times: impl Iterator<Item = Duration>) -> Option<LatencySummary> {
    let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1000.0).collect();
    ms.sort_by(f64::total_cmp);
    let max = *ms.last()?;
    Some(LatencySummary {
        mean: ms.iter().sum::<f64>() / ms.len() as f64,
        median: quantile(&ms, 0.5),
        p95: quantile(&ms, 0.95),
        p99: quantile(&ms, 0.99),
        max,
    })
}

/// Returns a quantile by linear interpolation between the two nearest values, like NumPy's default.
fn quantile(ascending: &[f64], share: f64) -> f64 {
    let position = share * (ascending.len() - 1) as f64;
    let (below, above) = (ascending[position as usize], ascending[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn quantiles_are_numpys() {
        let ten: Vec<f64> = (0..=10).map(f64::from).collect();
        assert_eq!(quantile(&ten, 0.5), 5.0);
        assert!((quantile(&ten, 0.99) - 9.9).abs() < 1e-9);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert_eq!(summarize(std::iter::empty()), None);
    }

    #[test]
    fn figures_of_two_answers_and_a_failure() {
        let answer = |scheduled, events: &[u64], tokens| AnswerRecord {
            scheduled: ms(scheduled),
            sent: ms(scheduled + 2),
            events: events.iter().map(|at| ms(*at)).collect(),
            ended: ms(events[events.len() - 1] + 1),
            prompt_tokens: 10,
            answer_tokens: tokens,
            requested_tokens: 3,
        };
        let records = RequestRecords {
            // The second answer is late with its first token, and one token short.
            answers: vec![answer(0, &[100, 150, 300], 3), answer(500, &[2500, 2600], 2)],
            failures: vec!["queue full".to_owned()],
            duration: ms(4000),
        };
        let figures = LoadTestResults::from_records(&records, Slo::default());
        assert_eq!((figures.completed, figures.failed, figures.short), (2, 1, 1));
        assert_eq!((figures.total_input_tokens, figures.total_output_tokens), (20, 5));
        assert_eq!((figures.request_throughput, figures.request_goodput), (0.5, 0.25));
        assert_eq!((figures.output_throughput, figures.total_token_throughput), (1.25, 6.25));
        assert!((figures.within_slo - 1.0 / 3.0).abs() < 1e-9);
        let mean = |spread: Option<LatencySummary>| spread.expect("values").mean;
        assert_eq!(mean(figures.ttft_ms), (100.0 + 2000.0) / 2.0);
        assert_eq!(mean(figures.tpot_ms), 100.0);
        assert_eq!(mean(figures.itl_ms), 100.0);
        assert_eq!(figures.itl_ms.expect("gaps").max, 150.0);
        assert_eq!(mean(figures.e2el_ms), (301.0 + 2101.0) / 2.0);
        assert_eq!(mean(figures.sent_late_ms), 2.0);
        let none = LoadTestResults::from_records(&RequestRecords::default(), Slo::default());
        assert_eq!((none.completed, none.output_throughput, none.ttft_ms), (0, 0.0, None));
    }
}
