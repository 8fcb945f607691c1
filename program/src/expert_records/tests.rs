use proptest::prelude::*;

use super::*;

/// Returns the records of `count` experts with linears of these matrices and biases, in bytes.
fn record(linears: &[Option<(u64, u64)>], count: u64) -> ExpertRecord {
    let mut end_bytes = 0;
    let parts = std::array::from_fn(|place| {
        let (matrix_bytes, bias_bytes) = linears[place]?;
        let part = RecordPart {
            offset_bytes: end_bytes,
            matrix_bytes,
            bias_offset_bytes: matrix_bytes.next_multiple_of(64),
            bias_bytes,
        };
        end_bytes = part.end_bytes().next_multiple_of(64);
        Some(part)
    });
    ExpertRecord { count, parts, size_bytes: end_bytes.next_multiple_of(BLOCK_BYTES) }
}

fn linear() -> impl Strategy<Value = Option<(u64, u64)>> {
    prop::option::weighted(0.8, (1u64..200_000, prop_oneof![Just(0u64), 1u64..9_000]))
}

/// Returns the number of ranges that experts read into their own slots have.
fn ranges(record: &ExpertRecord, ops: ExpertOps, experts: &[u64]) -> usize {
    let mut reads = Vec::new();
    for (slot, expert) in (0..).zip(experts) {
        record.append_blocks(ops, *expert, 2 * slot * record.slot_bytes(ops), &mut reads);
    }
    reads.len()
}

#[test]
fn one_range_fetches_an_expert() {
    let record = record(&[Some((100_000, 0)), Some((100_000, 512)), Some((100_000, 0))], 8);
    assert_eq!(record.size_bytes, 5 * BLOCK_BYTES);
    assert_eq!(ranges(&record, record.ops(), &[1, 2, 5]), 3);
    for op in LINEARS {
        assert_eq!(ranges(&record, ExpertOps::from_ops([op]), &[1, 2, 5]), 3, "{op:?}");
    }
    // The blocks of the middle linear touch those of both others.
    let outer = ExpertOps::from_ops([Op::ExpertGate, Op::ExpertDown]);
    assert_eq!(record.slot_bytes(outer), 4 * BLOCK_BYTES);
    assert_eq!(ranges(&record, outer, &[1, 2, 5]), 6);
}

#[test]
fn all_experts_are_one_range_to_consecutive_slots() {
    let record = record(&[Some((70_000, 0)), Some((70_000, 0)), None], 6);
    let mut reads = Vec::new();
    for expert in 0..6 {
        record.append_blocks(record.ops(), expert, expert * record.size_bytes, &mut reads);
    }
    assert_eq!(reads, [(0..6 * record.size_bytes / BLOCK_BYTES, 0)]);
}

proptest! {
    #[test]
    fn each_byte_of_the_linears_is_read_to_its_slot(
        linears in prop::collection::vec(linear(), 3),
        chosen in 1u8..8,
        experts in prop::collection::btree_set(0u64..9, 1..6),
    ) {
        let record = record(&linears, 9);
        let ops = ExpertOps(chosen & record.ops().0);
        prop_assume!(!ops.is_empty());
        let slot_bytes = record.slot_bytes(ops);
        prop_assert!(slot_bytes <= record.size_bytes);
        // Slots are assigned backwards.
        let slot = |expert: u64| 9 - expert;
        let mut reads = Vec::new();
        for expert in &experts {
            record.append_blocks(ops, *expert, slot(*expert) * slot_bytes, &mut reads);
        }
        prop_assert!(reads.len() <= max_ranges(experts.len()));
        let read: u64 = reads.iter().map(|(blocks, _)| blocks.end - blocks.start).sum();
        prop_assert_eq!(read * BLOCK_BYTES, experts.len() as u64 * slot_bytes);
        for (expert, op) in experts.iter().flat_map(|e| ops.iter().map(move |op| (*e, op))) {
            let part = record.part(op).expect("a linear of the record");
            let place = record.place_in_slot(ops, op).expect("a linear of the record");
            let bytes = part.bias_offset_bytes + part.bias_bytes;
            prop_assert!(place + bytes <= slot_bytes);
            for byte in [0, bytes / 2, bytes - 1] {
                let source = expert * record.size_bytes + part.offset_bytes + byte;
                let found = reads.iter().any(|(blocks, to_bytes)| {
                    blocks.contains(&(source / BLOCK_BYTES))
                        && to_bytes + (source - blocks.start * BLOCK_BYTES)
                            == slot(expert) * slot_bytes + place + byte
                });
                prop_assert!(found, "expert {} {:?} byte {}", expert, op, byte);
            }
        }
    }

    #[test]
    fn any_division_keeps_each_block_once(
        lens in prop::collection::vec((1u64..9, 0u64..3), 0..12),
        cuts in prop::collection::vec(0.0..1.0, 0..4),
    ) {
        let mut next = 0;
        let reads: Vec<BlockRange> = lens.iter().map(|(len, gap)| {
            let start = next + gap;
            next = start + len;
            (start..next, start * BLOCK_BYTES)
        }).collect();
        let all: Vec<u64> = reads.iter().flat_map(|(blocks, _)| blocks.clone()).collect();
        let at = |cut: &f64| (cut * all.len() as f64) as u64;
        let mut bounds: Vec<u64> = cuts.iter().map(at).collect();
        bounds.extend([0, all.len() as u64]);
        bounds.sort_unstable();
        let kept = bounds.windows(2).flat_map(|pair| {
            let mut own = reads.clone();
            keep_blocks(&mut own, pair[0]..pair[1]);
            assert!(own.iter().all(|(blocks, at)| *at == blocks.start * BLOCK_BYTES));
            own.into_iter().flat_map(|(blocks, _)| blocks).collect::<Vec<u64>>()
        });
        prop_assert_eq!(kept.collect::<Vec<u64>>(), all);
    }
}
