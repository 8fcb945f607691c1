//! Data dependencies between the operations of a model's layer: a table from a file is taken for a
//! chain, although Q, K and V need the same norm and not each other.

use model::config::ModelConfig;
use model::ops::Value;
use program::map::OpChunk;
use program::pieces::own_input;

/// Returns for each entry of a layer's list the entries of the same layer that write its inputs;
/// empty for the first entry, which reads the residual stream of the previous layer.
pub fn dataflow(config: &ModelConfig, list: &[OpChunk]) -> Vec<Vec<usize>> {
    let mut writers: Vec<(Value, Vec<usize>)> = Vec::new();
    let mut needs = Vec::with_capacity(list.len());
    for (index, entry) in list.iter().enumerate() {
        let mut need: Vec<usize> = Vec::new();
        for value in entry.op.reads(config) {
            let Some((_, found)) = writers.iter().find(|(written, _)| written == value) else {
                continue;
            };
            // A piece of a linear needs all of its first input.
            let is_own = entry.op.is_attention() || own_input(config, entry.op) == Some(*value);
            let own = |writer: &&usize| {
                is_own && entry.chunk.is_some() && list[**writer].chunk == entry.chunk
            };
            match found.iter().find(own) {
                Some(writer) => need.push(*writer),
                // Other pieces of the same linear add to other columns.
                None => need.extend(found.iter().filter(|writer| list[**writer].op != entry.op)),
            }
        }
        need.sort_unstable();
        need.dedup();
        needs.push(need);
        let Some(value) = entry.op.writes(config) else { continue };
        match writers.iter_mut().find(|(written, _)| *written == value) {
            Some((_, parts)) if entry.chunk.is_some() => parts.push(index),
            Some((_, parts)) => *parts = vec![index],
            None => writers.push((value, vec![index])),
        }
    }
    needs
}

#[cfg(test)]
mod tests {
    use model::known::find_known;
    use program::map::{ChunkOrder, Chunking, layer_list};

    use super::dataflow;

    #[test]
    fn projections_do_not_wait_for_each_other() {
        let config = find_known("opt-125m").expect("known").config;
        // ln0 q k v scores softmax wv out ln1 fc0 fc1
        let needs = dataflow(&config, &layer_list(&config, 0, None));
        let expected: [&[usize]; 11] =
            [&[], &[0], &[0], &[0], &[1, 2], &[4], &[3, 5], &[6], &[7], &[8], &[7, 9]];
        assert_eq!(needs, expected);
    }

    #[test]
    fn whole_heads_stay_apart_until_out() {
        let config = find_known("opt-125m").expect("known").config;
        let chunking = Chunking { order: ChunkOrder::Attention, chunks: 2 };
        // ln0 q k v s0 m0 w0 s1 m1 w1 out ..
        let needs = dataflow(&config, &layer_list(&config, 0, Some(chunking)));
        assert_eq!(
            needs[4..11],
            [vec![1, 2], vec![4], vec![3, 5], vec![1, 2], vec![7], vec![3, 8], vec![6, 9]]
        );
        let linears = Chunking { order: ChunkOrder::Linears, chunks: 2 };
        // ln0 q0 q1 k v scores softmax wv out0 out1 ln1 fc00 fc01 fc10 fc11
        let needs = dataflow(&config, &layer_list(&config, 0, Some(linears)));
        assert_eq!(needs[5], [1, 2, 3]);
        assert_eq!(needs[8..13], [vec![7], vec![7], vec![8, 9], vec![10], vec![10]]);
        assert_eq!(needs[13..], [vec![8, 11, 12], vec![9, 11, 12]]);
        let scores = Chunking { order: ChunkOrder::Scores, chunks: 2 };
        // ln0 q k v s0 s1 softmax wv ..
        let needs = dataflow(&config, &layer_list(&config, 0, Some(scores)));
        assert_eq!(needs[4..8], [vec![1, 2], vec![1, 2], vec![4, 5], vec![3, 6]]);
    }
}
