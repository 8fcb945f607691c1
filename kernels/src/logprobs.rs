//! Log-probabilities of tokens, computed from the logits alone, regardless of how the token is
//! drawn.

use std::cmp::Ordering;

use crate::Kernels;
use crate::sample::{argmax, largest};
use crate::scratch::SharedPointer;

/// Number of logits scanned together: only a block that contains a logit above those found is
/// examined one by one.
const BLOCK: usize = 512;

/// Maximum number of entries that are kept sorted while they are found; more are kept in a heap.
const MAX_FEW: usize = 32;

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Logprob {
    pub token: u32,
    pub logprob: f32,
}

impl Logprob {
    /// Entry without a token.
    pub const NONE: Logprob = Logprob { token: u32::MAX, logprob: f32::NEG_INFINITY };
}

impl Kernels {
    /// Computes the [`logprobs`] of row `i` of `logits` `[rows, vocab]` and of `tokens[i]`, with
    /// `wanted[i]` entries, into row `i` of `entries` `[rows, most]`; rows are distributed over the
    /// threads.
    ///
    /// # Panics
    /// If a row wants more than `most` entries, or lengths do not agree.
    pub fn logprob_rows(
        &self,
        logits: &[f32],
        tokens: &[u32],
        wanted: &[u32],
        entries: &mut [Logprob],
    ) {
        let rows = tokens.len();
        assert_eq!(wanted.len(), rows, "wanted has an entry per row");
        if rows == 0 {
            return;
        }
        let (vocab, most) = (logits.len() / rows, entries.len() / rows);
        assert_eq!(logits.len(), rows * vocab, "logits is [rows, vocab]");
        assert_eq!(entries.len(), rows * most, "entries are [rows, most]");
        assert!(wanted.iter().all(|wanted| *wanted as usize <= most), "there is room");
        let entries = SharedPointer(entries.as_mut_ptr());
        self.run_sized(rows, size_of_val(logits), &|row, _| {
            // SAFETY: `entries` has a row of `most` entries for every task, and no other task
            // writes this one.
            let entries = unsafe {
                std::slice::from_raw_parts_mut(
                    entries.pointer().add(row * most),
                    wanted[row] as usize,
                )
            };
            logprobs(&logits[row * vocab..][..vocab], tokens[row], entries);
        });
    }
}

/// Writes the log-probability of `token` to the first entry of `entries`, followed by those of the
/// most likely tokens, the most likely first and the lower number first among equally likely ones.
/// Probabilities are `softmax(logits)`; NaN counts as minus infinity, and entries in excess of the
/// vocabulary are [`Logprob::NONE`].
pub fn logprobs(logits: &[f32], token: u32, entries: &mut [Logprob]) {
    let Some((own, likely)) = entries.split_first_mut() else { return };
    let largest = logits.get(argmax(logits) as usize).copied().unwrap_or(f32::NAN);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from((logit - largest).exp()))
        .filter(|weight| !weight.is_nan())
        .sum();
    let log_sum = sum.ln();
    let of = |logit: f32| (f64::from(logit - largest) - log_sum) as f32;
    let logit = logits.get(token as usize).copied().unwrap_or(f32::NAN);
    *own = Logprob { token, logprob: if logit.is_nan() { f32::NEG_INFINITY } else { of(logit) } };
    top_few(logits, likely);
    for entry in likely.iter_mut().filter(|entry| entry.token != u32::MAX) {
        entry.logprob = of(entry.logprob);
    }
}

/// Writes the largest logits with their tokens, in the order that [`logprobs`] returns them.
fn top_few(logits: &[f32], likely: &mut [Logprob]) {
    likely.fill(Logprob::NONE);
    if likely.len() > MAX_FEW {
        return top_many(logits, likely);
    }
    let Some(last) = likely.len().checked_sub(1) else { return };
    for (first, block) in (0u32..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        let has_more = |likely: &[Logprob]| {
            likely[last].token == u32::MAX || largest(block) > likely[last].logprob
        };
        if !has_more(likely) {
            continue;
        }
        for (token, &logit) in (first..).zip(block) {
            let logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
            let goes_behind = |entry: &Logprob| entry.token != u32::MAX && entry.logprob >= logit;
            let at = likely.partition_point(goes_behind);
            if at <= last {
                likely[at..].rotate_right(1);
                likely[at] = Logprob { token, logprob: logit };
            }
        }
    }
}

/// Writes the same result as [`top_few`] by means of a heap whose root is the least likely
/// entry, in place.
fn top_many(logits: &[f32], likely: &mut [Logprob]) {
    let entry = |(token, logit): (u32, &f32)| Logprob {
        token,
        logprob: if logit.is_nan() { f32::NEG_INFINITY } else { *logit },
    };
    let mut all = (0..).zip(logits).map(entry);
    let count = logits.len().min(likely.len());
    let heap = &mut likely[..count];
    heap.iter_mut().zip(&mut all).for_each(|(place, entry)| *place = entry);
    (0..heap.len() / 2).rev().for_each(|root| sift_down(heap, root));
    for entry in all {
        if ranks_before(entry, heap[0]) {
            heap[0] = entry;
            sift_down(heap, 0);
        }
    }
    // No entry has a NaN logit at this point, and positive and negative zeros are equal.
    heap.sort_unstable_by(|a, b| {
        let by_logit = b.logprob.partial_cmp(&a.logprob).unwrap_or(Ordering::Equal);
        by_logit.then(a.token.cmp(&b.token))
    });
}

/// Returns true if `a` is likelier than `b`, or as likely with a lower number.
fn ranks_before(a: Logprob, b: Logprob) -> bool {
    a.logprob > b.logprob || a.logprob == b.logprob && a.token < b.token
}

/// Moves the root of a part of the heap down to its position.
fn sift_down(heap: &mut [Logprob], mut root: usize) {
    loop {
        let children = (2 * root + 1)..(2 * root + 3).min(heap.len());
        let least = children.reduce(|a, b| if ranks_before(heap[a], heap[b]) { b } else { a });
        match least.filter(|child| ranks_before(heap[root], heap[*child])) {
            Some(child) => heap.swap(root, child),
            None => return,
        }
        root = least.unwrap_or(root);
    }
}

#[cfg(test)]
#[path = "logprobs_tests.rs"]
mod tests;
