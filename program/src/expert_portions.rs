//! Computation of a layer's experts in portions, while others are being read from storages.
//!
//! The experts that rows are routed to in a step are divided into portions, each of which is read
//! and computed by instructions of its own. With a cache of experts, the first portion has those
//! that are in the cache, which are computed while the others are read. Which expert belongs to
//! which portion follows from the list that the layer's router writes, so it changes from step to
//! step while the program does not.
//!
//! Different portions of one list share no slot and no entry of the routing. Accesses that follow
//! different lists are ordered by the list itself: both read it, and a router writes it in between.
//! The validator checks that every access to a portion reads the list, and that a buffer's portions
//! follow one list.

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::map::Chunk;

/// Number of portions of the experts that are read: what is not computed concurrently with reads is
/// one of them, and each takes a wait and its own passes over the rows.
const READ_PORTIONS: u16 = 4;

/// Returns the number of portions of a layer's experts.
pub const fn portions(has_cache: bool) -> u16 {
    READ_PORTIONS + first_read(has_cache)
}

/// Returns the first portion that is read: the portion before it is in the cache.
pub const fn first_read(has_cache: bool) -> u16 {
    has_cache as u16
}

/// Returns the number of portions that are read, of `of` in all.
pub fn read_portions(has_cache: bool, of: u16) -> u16 {
    of.saturating_sub(first_read(has_cache)).max(1)
}

/// Returns the portion, of `of`, of the `index`-th of `count` experts that are read, in ascending
/// order.
pub fn read_portion(has_cache: bool, of: u16, index: usize, count: usize) -> u16 {
    let read = usize::from(read_portions(has_cache, of));
    first_read(has_cache) + (index * read / count.max(1)) as u16
}

/// Returns the portion of the experts that an operation computes, given the chunk of its
/// instruction; `None` for all experts, and for other operations.
pub fn portion(op: Op, chunk: Option<Chunk>) -> Option<Chunk> {
    chunk.filter(|_| op.is_expert())
}

/// Returns the values that an operation or a portion of it reads. The outputs of a portion's
/// experts are added up by `ExpertCombine`.
pub fn reads(op: Op, config: &ModelConfig, chunk: Option<Chunk>) -> &'static [Value] {
    match portion(op, chunk) {
        Some(_) if op == Op::ExpertDown => &[Value::ExpertFfn, Value::Routing],
        _ => op.reads(config),
    }
}

/// Returns the value that an operation or a portion of it writes.
pub fn writes(op: Op, config: &ModelConfig, chunk: Option<Chunk>) -> Option<Value> {
    match portion(op, chunk) {
        Some(_) if op == Op::ExpertDown => Some(Value::ExpertOut),
        _ => op.writes(config),
    }
}

/// Returns true if portions of a value belong to portions of experts.
pub const fn is_divided(value: Value) -> bool {
    matches!(value, Value::ExpertGate | Value::ExpertFfn | Value::ExpertOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expert_has_one_of_the_portions_in_ascending_order() {
        for (has_cache, count) in (1..20).flat_map(|count| [(false, count), (true, count)]) {
            let portion_count = portions(has_cache);
            let all: Vec<u16> = (0..count)
                .map(|index| read_portion(has_cache, portion_count, index, count))
                .collect();
            assert!(all.is_sorted(), "{all:?}");
            let sizes = (first_read(has_cache)..portion_count)
                .map(|one| all.iter().filter(|portion| **portion == one).count());
            let sizes: Vec<usize> = sizes.collect();
            assert_eq!(sizes.iter().sum::<usize>(), count);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{count} experts: {sizes:?}");
        }
    }
}
