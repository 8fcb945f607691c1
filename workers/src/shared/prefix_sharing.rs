//! Prompts that begin alike: prefill computes what they have in common once for a stream or, where
//! prompts are cut into chunks, for a batch.
//!
//! A sequence may leave the beginning of its prompt to another one, the *owner* of the rows, which
//! leaves nothing to anybody. K and V of those rows are appended to the caches of both, so nothing
//! differs after prefill; and since a row's bits depend on that row alone, nothing differs in it
//! either. Sequences whose rope has other frequencies, as their lengths are others, share nothing,
//! nor do those of a model whose layers keep states.

use std::ops::Range;

use program::step_table::Field;

use crate::shared::table::StepTable;

/// Fewer tokens in common, such as a chat template's first ones, are computed again.
pub const LEAST_TOKENS: usize = 16;

/// Lets the new sequences of the table share the beginnings of their prompts, for whoever releases
/// groups, once all are placed: `least` tokens or more.
pub fn share(table: &StepTable, least: usize) {
    if !table.shares_beginnings() {
        return;
    }
    for batch in 0..table.batches() {
        if table.prefill_chunk().is_some() {
            share_among(table, batch, least, 0..table.batch_size());
            continue;
        }
        for stream in 0..table.streams() {
            share_among(table, batch, least, table.stream_slots(stream));
        }
    }
}

/// The same among the new sequences of some slots.
fn share_among(table: &StepTable, batch: usize, least: usize, slots: Range<usize>) {
    let is_new = |slot: &usize| table.field(batch, *slot, Field::Fresh) > 0;
    let new: Vec<usize> = slots.filter(is_new).collect();
    let prompts: Vec<Vec<u32>> = new.iter().map(|&slot| table.prompt(batch, slot)).collect();
    let alike = |a: usize, b: usize| table.rotate_alike(batch, new[a], new[b]);
    for (index, shared) in shared(&prompts, least, alike).into_iter().enumerate() {
        let Some((owner, tokens)) = shared else { continue };
        let fresh = (prompts[index].len() - tokens) as u32;
        table.set_field(batch, new[index], Field::Fresh, fresh);
        table.set_field(batch, new[index], Field::Owner, new[owner] as u32 + 1);
    }
}

/// How many tokens two prompts begin with alike.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// For each prompt the owner before it, and how many tokens it owns for it, `least` or more, of
/// prompts whose rows are `alike` where they begin alike.
fn shared(
    prompts: &[Vec<u32>],
    least: usize,
    alike: impl Fn(usize, usize) -> bool,
) -> Vec<Option<(usize, usize)>> {
    let owned = |owner: usize, index: usize| {
        if !alike(owner, index) {
            return 0;
        }
        let common = common(&prompts[owner], &prompts[index]);
        // The last token is computed by every sequence: its logits are wanted.
        if common < least { 0 } else { common.min(prompts[index].len() - 1) }
    };
    let has = |shared: Option<(usize, usize)>| shared.map_or(0, |(_, tokens)| tokens);
    // What each prompt has in common with the best owner so far.
    let mut best: Vec<Option<(usize, usize)>> = vec![None; prompts.len()];
    for index in 0..prompts.len() {
        let more: Vec<usize> = (index + 1..prompts.len())
            .map(|later| owned(index, later).saturating_sub(has(best[later])))
            .collect();
        // As an owner it computes what it could leave to another one, and those behind it may leave
        // it more.
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
    use super::LEAST_TOKENS;

    fn shared(prompts: &[Vec<u32>]) -> Vec<Option<(usize, usize)>> {
        super::shared(prompts, LEAST_TOKENS, |_, _| true)
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
        let alike = |a: usize, b: usize| a % 2 == b % 2;
        let expected = [None, None, Some((0, 19)), Some((1, 19))];
        assert_eq!(super::shared(&prompts, LEAST_TOKENS, alike), expected);
    }

    #[test]
    fn a_few_tokens_are_not_worth_it() {
        let of = |own: u32| prompt(&[(1, LEAST_TOKENS - 1), (own, 5)]);
        assert_eq!(shared(&[of(2), of(3)]), [None, None]);
        let least = [prompt(&[(1, 30)]), prompt(&[(1, LEAST_TOKENS)])];
        assert_eq!(shared(&least), [None, Some((0, LEAST_TOKENS - 1))]);
        assert_eq!(shared(&[]), []);
    }
}
