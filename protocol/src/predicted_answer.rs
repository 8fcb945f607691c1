//! Drafted tokens from the predicted answer of a request: what follows the last tokens of the
//! answer where they occur in the prediction.

use program::step_table::Field;
use scheduler::Sequence;

use super::table::StepTable;

/// Minimum number of last tokens that must occur in the prediction, unless the whole answer is its
/// beginning.
const MATCH_MIN: usize = 2;
/// Number of tokens beyond which a longer match is not preferred.
const MATCH_MAX: usize = 12;
/// Maximum distance of an occurrence from where the answer is expected to continue.
const SEARCHED_DISTANCE: usize = 16 << 10;

/// Drafts tokens of a sequence from its predicted answer: up to `drafts` of it, which are written
/// to its output after the sampled tokens. Returns their number.
pub(super) fn draft_predicted(table: &StepTable, batch: usize, sequence: &Sequence) -> u32 {
    let slot = sequence.slot as usize;
    let field = |field| table.field(batch, slot, field);
    let (predicted, generated) = (field(Field::PredictionLen), field(Field::Generated));
    if predicted == 0 || sequence.drafts == 0 {
        return 0;
    }
    let (view, prompt_len) = (table.tokens(batch, slot), field(Field::PromptLen) as usize);
    let search = PredictionSearch {
        answer: |place| view.get(prompt_len + place),
        prediction: |place| view.predicted(place),
        answer_len: generated as usize,
        prediction_len: predicted as usize,
    };
    let expected = generated.wrapping_add(field(Field::PredictionShift)) as usize;
    let Some(next) = search.find_continuation(expected) else { return 0 };
    table.set_field(batch, slot, Field::PredictionShift, (next as u32).wrapping_sub(generated));
    let drafts = sequence.drafts.min(predicted - next as u32);
    for draft in 0..drafts as usize {
        table.set_output(batch, slot, generated as usize + draft, view.predicted(next + draft));
    }
    drafts
}

/// The tokens of an answer and of its prediction.
struct PredictionSearch<A, P> {
    answer: A,
    prediction: P,
    answer_len: usize,
    prediction_len: usize,
}

impl<A: Fn(usize) -> u32, P: Fn(usize) -> u32> PredictionSearch<A, P> {
    /// Returns the place in the prediction that follows the longest occurrence of the last tokens
    /// of the answer; of equally long ones, the one that is the closest to the `expected` place.
    fn find_continuation(&self, expected: usize) -> Option<usize> {
        let last = self.prediction_len.checked_sub(1)?;
        let expected = expected.min(last);
        let (mut best, mut best_len) = (None, MATCH_MIN - 1);
        let distances = 0..=SEARCHED_DISTANCE.min(expected.max(last - expected));
        for distance in distances {
            let before = expected.checked_sub(distance);
            let after = Some(expected + distance).filter(|next| distance > 0 && *next <= last);
            for next in before.into_iter().chain(after) {
                let len = self.match_len(next);
                if len > best_len {
                    (best, best_len) = (Some(next), len);
                }
            }
            if best_len >= MATCH_MAX {
                break;
            }
        }
        best
    }

    /// Returns the number of last tokens of the answer that are those before a place of the
    /// prediction, up to a maximum, which an answer that begins as the prediction has in any case.
    fn match_len(&self, next: usize) -> usize {
        let max = MATCH_MAX.min(next).min(self.answer_len);
        let is_equal =
            |back: &usize| (self.answer)(self.answer_len - back) == (self.prediction)(next - back);
        let len = (1..=max).take_while(is_equal).count();
        let is_beginning = next == self.answer_len && len == next;
        if is_beginning { MATCH_MAX } else { len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the place in `prediction` that is drafted after `answer`.
    fn next(answer: &[u32], prediction: &[u32], expected: usize) -> Option<usize> {
        let search = PredictionSearch {
            answer: |place: usize| answer[place],
            prediction: |place: usize| prediction[place],
            answer_len: answer.len(),
            prediction_len: prediction.len(),
        };
        search.find_continuation(expected)
    }

    #[test]
    fn an_answer_that_begins_as_predicted_is_drafted_from_its_beginning() {
        let prediction = [1, 2, 3, 1, 2, 4];
        for len in 0..prediction.len() {
            assert_eq!(next(&prediction[..len], &prediction, len), Some(len));
            // The sequence was computed anew.
            assert_eq!(next(&prediction[..len], &prediction, 0), Some(len), "{len}");
        }
        assert_eq!(next(&prediction, &prediction, 6), None, "nothing follows");
        assert_eq!(next(&[], &[], 0), None);
    }

    #[test]
    fn drafts_continue_where_the_answer_returns_to_the_prediction() {
        let prediction = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(next(&[9], &prediction, 1), None);
        assert_eq!(next(&[1, 2, 9], &prediction, 3), None);
        assert_eq!(next(&[1, 2, 9, 4], &prediction, 4), None, "a single token is no occurrence");
        assert_eq!(next(&[1, 2, 9, 4, 5], &prediction, 5), Some(5));
        assert_eq!(next(&[1, 2, 9, 9, 9, 4, 5], &prediction, 7), Some(5), "tokens were inserted");
        assert_eq!(next(&[5, 6], &prediction, 2), Some(6), "tokens were left out");
    }

    #[test]
    fn the_longest_occurrence_counts_and_of_equally_long_ones_the_closest() {
        let prediction = [0, 1, 2, 3, 1, 2, 4, 1, 2, 5];
        assert_eq!(next(&[9, 1, 2], &prediction, 3), Some(3));
        assert_eq!(next(&[9, 1, 2], &prediction, 6), Some(6));
        assert_eq!(next(&[9, 1, 2], &prediction, 100), Some(9));
        assert_eq!(next(&[9, 3, 1, 2], &prediction, 9), Some(6));
    }
}
