//! Shared prompt prefixes: prefill computes a common prefix once for a stream or, if prompts are
//! split into chunks, for a batch.
//!
//! A sequence may share a prefix of its prompt that another sequence computes, the *owner* of the
//! rows, which itself computes its whole prompt. K and V of those rows are appended to the caches
//! of both, so nothing differs after prefill; and since a row's bits depend on that row alone,
//! nothing differs during prefill either. Sequences whose lengths lead to different rope
//! frequencies share nothing, nor do those of a model whose layers have states.

use std::ops::Range;

use program::step_table::Field;

use crate::table::StepTable;

/// Minimum number of shared tokens. Shorter common prefixes, such as the first tokens of a chat
/// template, are computed repeatedly.
pub const MIN_TOKENS: usize = 16;

/// Lets the new sequences of the table share prefixes of `min_tokens` tokens or more. Called before
/// a group is released, once all its sequences are placed.
pub fn share_prefixes(table: &StepTable, min_tokens: usize) {
    if !table.can_share_prefixes() {
        return;
    }
    for batch in 0..table.batches() {
        if table.prefill_chunk().is_some() {
            share_among(table, batch, min_tokens, 0..table.batch_size());
            continue;
        }
        for stream in 0..table.streams() {
            share_among(table, batch, min_tokens, table.stream_slots(stream));
        }
    }
}

/// Lets the new sequences of some slots share prefixes.
fn share_among(table: &StepTable, batch: usize, min_tokens: usize, slots: Range<usize>) {
    let is_new = |slot: &usize| table.field(batch, *slot, Field::Fresh) > 0;
    let new: Vec<usize> = slots.filter(is_new).collect();
    let prompts: Vec<Vec<u32>> = new.iter().map(|&slot| table.prompt(batch, slot)).collect();
    let rotate_equally = |a: usize, b: usize| table.rotate_equally(batch, new[a], new[b]);
    for (index, shared) in find_shared(&prompts, min_tokens, rotate_equally).into_iter().enumerate()
    {
        let Some((owner, tokens)) = shared else { continue };
        let fresh = (prompts[index].len() - tokens) as u32;
        table.set_field(batch, new[index], Field::Fresh, fresh);
        table.set_field(batch, new[index], Field::Owner, new[owner] as u32 + 1);
    }
}

/// Returns the length of the common prefix of two prompts, in tokens.
pub fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns for each prompt the preceding prompt that owns its shared prefix, and the length of that
/// prefix, which is `min_tokens` or more. Only prompts that are `rotate_equally` rotate common
/// tokens equally and can share.
fn find_shared(
    prompts: &[Vec<u32>],
    min_tokens: usize,
    rotate_equally: impl Fn(usize, usize) -> bool,
) -> Vec<Option<(usize, usize)>> {
    let owned = |owner: usize, index: usize| {
        if !rotate_equally(owner, index) {
            return 0;
        }
        let common = common_prefix_len(&prompts[owner], &prompts[index]);
        // Every sequence computes its last token, since its logits are needed.
        if common < min_tokens { 0 } else { common.min(prompts[index].len() - 1) }
    };
    let has = |shared: Option<(usize, usize)>| shared.map_or(0, |(_, tokens)| tokens);
    // Best owner of each prompt so far, and the length of the shared prefix.
    let mut best: Vec<Option<(usize, usize)>> = vec![None; prompts.len()];
    for index in 0..prompts.len() {
        let more: Vec<usize> = (index + 1..prompts.len())
            .map(|later| owned(index, later).saturating_sub(has(best[later])))
            .collect();
        // An owner has to compute the tokens that it could share itself, but later prompts may
        // share more with it.
        if best[index].is_some() && has(best[index]) >= more.iter().sum::<usize>() {
            continue;
        }
        best[index] = None;
        for (later, more) in (index + 1..).zip(more) {
            if more > 0 {
                best[later] = Some((index, has(best[later]) + more));
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::MIN_TOKENS;

    fn shared(prompts: &[Vec<u32>]) -> Vec<Option<(usize, usize)>> {
        super::find_shared(prompts, MIN_TOKENS, |_, _| true)
    }

    fn prompt(parts: &[(u32, usize)]) -> Vec<u32> {
        parts.iter().flat_map(|&(token, count)| std::iter::repeat_n(token, count)).collect()
    }

    #[test]
    fn the_beginning_of_all_prompts_is_left_to_the_first() {
        let of = |own: u32| prompt(&[(1, 40), (own, 10)]);
        assert_eq!(shared(&[of(2), of(3), of(4)]), [None, Some((0, 40)), Some((0, 40))]);
    }

    #[test]
    fn equal_prompts_compute_their_last_token() {
        let prompts = vec![prompt(&[(1, 20)]); 3];
        assert_eq!(shared(&prompts), [None, Some((0, 19)), Some((0, 19))]);
    }

    #[test]
    fn a_prompt_that_others_repeat_is_an_owner_though_it_could_share() {
        let of = |own: u32| prompt(&[(1, 20), (own, 30)]);
        let prompts = [of(2), of(2), of(3), of(3), of(3)];
        let expected = [None, Some((0, 49)), None, Some((2, 49)), Some((2, 49))];
        assert_eq!(shared(&prompts), expected);
    }

    #[test]
    fn prompts_that_rotate_unlike_share_nothing() {
        let prompts = vec![prompt(&[(1, 20)]); 4];
        let rotate_equally = |a: usize, b: usize| a % 2 == b % 2;
        let expected = [None, None, Some((0, 19)), Some((1, 19))];
        assert_eq!(super::find_shared(&prompts, MIN_TOKENS, rotate_equally), expected);
    }

    #[test]
    fn a_few_tokens_are_not_worth_it() {
        let of = |own: u32| prompt(&[(1, MIN_TOKENS - 1), (own, 5)]);
        assert_eq!(shared(&[of(2), of(3)]), [None, None]);
        let least = [prompt(&[(1, 30)]), prompt(&[(1, MIN_TOKENS)])];
        assert_eq!(shared(&least), [None, Some((0, MIN_TOKENS - 1))]);
        assert_eq!(shared(&[]), []);
    }
}
