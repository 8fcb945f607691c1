//! Drafted tokens by prompt lookup: what followed the last tokens of a sequence where they occurred
//! before, in its prompt or in its answer.

use program::step_table::Field;
use scheduler::Sequence;

use super::drafts::Drafter;
use super::table::StepTable;

/// Minimum number of last tokens that must have occurred before.
const MATCH_MIN: usize = 2;
/// Number of tokens beyond which a longer match is not preferred.
const MATCH_MAX: usize = 12;
/// Maximum number of positions that are searched, the last ones.
const SEARCHED_POSITIONS: usize = 32 << 10;

/// Drafts by prompt lookup.
#[derive(Debug, Clone, Copy)]
pub struct PromptLookup;

impl Drafter for PromptLookup {
    fn draft(&mut self, table: &StepTable, batch: usize, sequences: &mut [Sequence]) {
        for sequence in sequences.iter_mut().filter(|one| one.drafts > 0) {
            let (slot, tokens) = (sequence.slot as usize, sequence.num_tokens as usize);
            let view = table.tokens(batch, slot);
            let Some(mut next) = find_continuation(|position| view.get(position), tokens) else {
                sequence.drafts = 0;
                continue;
            };
            let first = tokens - table.field(batch, slot, Field::PromptLen) as usize;
            for place in first..first + sequence.drafts as usize {
                // Beyond the last token it continues with the drafts themselves: the text is
                // periodic.
                table.set_output(batch, slot, place, view.get(next));
                next += 1;
            }
        }
    }
}

/// Returns the position that follows the longest earlier occurrence of the last tokens, the latest
/// of equally long ones.
fn find_continuation(token_at: impl Fn(usize) -> u32, tokens: usize) -> Option<usize> {
    let last = tokens.checked_sub(1)?;
    let newest = token_at(last);
    let (mut best, mut best_len) = (None, MATCH_MIN - 1);
    for end in (last.saturating_sub(SEARCHED_POSITIONS)..last).rev() {
        if token_at(end) != newest {
            continue;
        }
        let is_equal = |len: &usize| token_at(end - len) == token_at(last - len);
        let len = 1 + (1..MATCH_MAX.min(end + 1)).take_while(is_equal).count();
        if len > best_len {
            (best, best_len) = (Some(end + 1), len);
        }
        if len == MATCH_MAX {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the token that would be drafted after `tokens`.
    fn next(tokens: &[u32]) -> Option<u32> {
        find_continuation(|position| tokens[position], tokens.len()).map(|next| tokens[next])
    }

    #[test]
    fn a_draft_follows_the_longest_latest_occurrence() {
        assert_eq!(next(&[1, 2, 3, 4, 5, 9, 2, 3]), Some(4));
        assert_eq!(next(&[1, 2, 3, 4, 2, 3, 5, 2, 3]), Some(5), "the later one");
        assert_eq!(next(&[1, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3]), Some(4), "the longer one");
        assert_eq!(next(&[7, 8, 9, 7, 8, 9, 7, 8]), Some(9));
    }

    #[test]
    fn nothing_is_drafted_after_tokens_that_did_not_occur_before() {
        assert_eq!(next(&[]), None);
        assert_eq!(next(&[1]), None);
        assert_eq!(next(&[1, 2, 3, 4, 5]), None);
        assert_eq!(next(&[1, 2, 3, 4, 3]), None, "a single token is no occurrence");
    }
}
