//! Tests that a text's windows are those of the transformers documentation.

use crate::score::output::Score;
use crate::score::summary::{ScoreSummary, ScoreTotals};
use crate::score::windows::WindowSizes;

/// Returns `begin`, `end` and the number of scored tokens at the end of each window, as the
/// documentation's loop computes them.
fn expected(length: usize, context: usize, stride: usize) -> Vec<(usize, usize, usize)> {
    let (mut windows, mut previous_end) = (Vec::new(), 0);
    for begin in (0..length).step_by(stride) {
        let end = length.min(begin + context);
        windows.push((begin, end, end - previous_end));
        previous_end = end;
        if end == length {
            break;
        }
    }
    windows
}

#[test]
fn every_token_but_the_first_is_scored_once_in_the_windows_of_the_documentation() {
    for (length, context, stride) in
        [(100, 16, 8), (100, 16, 16), (33, 16, 5), (16, 16, 4), (9, 16, 3), (2, 2, 1)]
    {
        let tokens: Vec<u32> = (0..length as u32).collect();
        let overlap = stride < context;
        let questions = WindowSizes { context, stride }.split(&tokens);
        let found = questions.iter().map(|question| {
            let (first, scored) = (question.prompt[0] as usize, &question.continuations[0]);
            // The first token of the first window precedes the others and is not scored.
            let unscored = usize::from(first == 0 || !overlap);
            (first, question.max_sequence_len() + first, scored.len() + unscored)
        });
        assert_eq!(found.collect::<Vec<_>>(), expected(length, context, stride));
        let scored: Vec<u32> =
            questions.iter().flat_map(|question| question.continuations.concat()).collect();
        let first_of_any = |token: &u32| (*token as usize).is_multiple_of(context);
        let wanted: Vec<u32> = match overlap {
            true => tokens[1..].to_vec(),
            false => tokens.iter().copied().filter(|token| !first_of_any(token)).collect(),
        };
        assert_eq!(scored, wanted, "{length} {context} {stride}");
    }
    assert!(WindowSizes { context: 4, stride: 2 }.split(&[3]).is_empty());
    // A last token without a predecessor in its window is left out.
    assert_eq!(WindowSizes { context: 4, stride: 4 }.split(&[1, 2, 3, 4, 5]).len(), 1);
}

#[test]
fn perplexity_counts_tokens_or_windows() {
    let score = |logprobs: &[f32]| {
        let logprob = logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
        let token_logprobs = logprobs.to_vec();
        let (tokens, top_logprobs) = (None, None);
        ScoreTotals::from_scores(&[Score {
            logprob,
            token_logprobs,
            greedy: false,
            tokens,
            top_logprobs,
        }])
    };
    let tallies = [score(&[-1.0, -2.0, -3.0]), score(&[-0.5, -1.5])];
    let windows = WindowSizes { context: 4, stride: 2 };
    let text = ScoreSummary::from_totals(&tallies, Some(windows));
    assert_eq!(text.tokens, 5);
    let close = |found: Option<f64>, expected: f64| (found.expect("a number") - expected).abs();
    assert!(close(text.perplexity, (8.0_f64 / 5.0).exp()) < 1e-12);
    // The first window counts 3 labels; the second one less than its 2.
    let of_windows = ((2.0 * 3.0 + 1.0 * 1.0) / 4.0_f64).exp();
    assert!(close(text.perplexity_of_windows, of_windows) < 1e-12);
    assert_eq!(ScoreSummary::from_totals(&tallies, None).perplexity_of_windows, None);
    assert_eq!(ScoreSummary::from_totals(&[], Some(windows)).perplexity, None);
}
