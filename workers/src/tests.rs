//! Tests of rows, units, copies, appends and sampling against a step table in a real control
//! segment.

use std::collections::BTreeMap;

use kernels::AttentionUnit;
use model::config::{Activation, Dtype, Family, Features, ModelConfig, Scales};
use model::layers::{LayerKind, Layers};
use model::ops::{Kv, Op, Value};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::{Split, parse_chunking};
use program::compile::compile;
use program::ir::{Append, At, BufferId, Copy, Moved, ProgramId, Region};
use program::map::Chunk;
use program::plan::{Plan, RunShape};
use program::step_table::{EndReason, Field, List};
use program::topology::{LaneId, MemoryId};
use protocol::group::list_work;
use protocol::table::{StepTable, WorkItem};
use shm::Control;

use crate::execute::announce::announce;
use crate::execute::sample::record;
use crate::execute::{CopySpan, append_spans, copy_spans};
use crate::testing::{GenerationRequest, PlacedRequest, continue_group, fill, place_request};
use crate::work_items::{row_counts, sequences, units};

const AT: At = At { layer: Some(0), batch: 0, stream: 0 };

fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_owned(),
        family: Family::Opt,
        num_layers: 1,
        hidden_size: 24,
        num_heads: 6,
        num_kv_heads: 3,
        head_dim: 4,
        ffn_size: 40,
        vocab_size: 61,
        max_positions: 600,
        norm_eps: 1e-5,
        activation: Activation::Relu,
        learned_positions: Some(2),
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: None,
        qkv_bias: true,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: vec![7],
    }
}

fn plan(batches: u16, batch_size: u16, micro_sequences: u16, chunks: u16) -> Plan {
    let config = config();
    let shape = RunShape {
        batches,
        batch_size,
        max_prompt: 512,
        shared_prompt: 0,
        max_context: 520,
        max_new: 8,
        logprobs: 0,
        micro_sequences,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: Dtype::Bf16,
    };
    let chunking = Some(parse_chunking(&format!("attention={chunks}")).unwrap());
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let policy = Policy::TwoSplit { split: Split { start: 4, end: 5 }, chunking };
    compile(&config, &shape, &device_map(&policy, &config, true, homes)).unwrap()
}

struct Run {
    plan: Plan,
    control: Control,
    table: StepTable,
}

/// Returns a table with prompts of these lengths in the slots of batch 0; 0 leaves a slot empty.
fn run(plan: Plan, lengths: &[usize], max_new: u32) -> Run {
    let control = Control::create(1, plan.table.words() * 4).unwrap();
    let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
    let group: Vec<PlacedRequest> = (0..lengths.len())
        .filter(|slot| lengths[*slot] > 0)
        .map(|slot| {
            let prompt = (0..lengths[slot]).map(|i| (slot * 100 + i) as u32).collect();
            let request = GenerationRequest {
                ignore_eos: false,
                ..GenerationRequest::greedy(prompt, max_new)
            };
            PlacedRequest { batch: 0, slot, request }
        })
        .collect();
    fill(&table, &plan, &group);
    list_work(&table);
    Run { plan, control, table }
}

impl Run {
    /// Performs prefill's sampling of batch 0, with every sequence drawing `token`.
    fn prefill(&self, token: u32) {
        for stream in 0..self.plan.shape.streams() {
            record(&self.table, ProgramId::PREFILL, At { stream, ..AT }, &[7], |_, _| token);
        }
    }

    fn copy(&self, moved: Moved, chunk: Option<Chunk>) -> (Vec<CopySpan>, usize) {
        let region = |id| Region::whole(BufferId(id));
        let table = Some(region(0));
        let copy = Copy { moved, at: AT, chunk, from: region(1), to: region(2), table };
        let mut spans = Vec::new();
        let rows = copy_spans(&self.plan, &self.table, ProgramId::DECODE, &copy, 640, |span| {
            spans.push(span)
        });
        (spans, rows)
    }
}

/// Returns the slots and positions of the rows of the next decode step.
fn listed(table: &StepTable) -> Vec<(usize, usize)> {
    let item = |index| table.item(0, List::DECODE, index);
    let items = (0..table.item_count(0, List::DECODE)).map(item);
    items.map(|WorkItem { slot, first, .. }| (slot, first)).collect()
}

fn total(spans: &[CopySpan]) -> usize {
    spans.iter().map(|span| span.size_bytes).sum()
}

#[test]
fn prefill_rows_are_the_prompts_of_a_micro_batch_one_behind_the_other() {
    let run = run(plan(1, 5, 2, 1), &[3, 0, 1, 512, 4], 2);
    let found = |stream| -> Vec<(usize, usize, usize, usize)> {
        sequences(&run.table, ProgramId::PREFILL, At { stream, ..AT })
            .map(|s| (s.item.slot, s.row0, s.item.rows, s.item.first))
            .collect()
    };
    assert_eq!(found(0), [(0, 0, 3, 0)]);
    assert_eq!(found(1), [(2, 0, 1, 0), (3, 1, 512, 0)]);
    assert_eq!(found(2), [(4, 0, 4, 0)]);
    assert_eq!(row_counts(&run.table, ProgramId::PREFILL, At { stream: 1, ..AT }), (2, 513));
    // Prefill's units read no cache: three heads, each over its sequence's rows.
    let prefill: Vec<AttentionUnit> =
        units(&run.table, ProgramId::PREFILL, At { stream: 1, ..AT }, None).collect();
    assert_eq!(prefill.len(), 6);
    assert!(prefill.iter().all(|unit| unit.past == 0));
}

#[test]
fn units_of_all_chunks_tile_the_cache() {
    for (lengths, chunks) in [
        (vec![3, 0, 9, 1], 1),
        (vec![3, 0, 9, 1], 4),
        (vec![1, 512, 0, 30], 5),
        (vec![0, 0, 2, 0], 7),
    ] {
        let run = run(plan(1, 4, 4, chunks), &lengths, 5);
        run.prefill(1);
        // The obvious layout: consecutive units, each of its capacity.
        let mut expected = BTreeMap::new();
        let mut elements = 0;
        for (slot, length) in lengths.iter().enumerate() {
            let capacity = if *length > 0 { length + 5 } else { 0 };
            for head in 0..3 {
                if capacity > 0 {
                    expected.insert((slot, head), elements);
                }
                elements += capacity * 4;
            }
        }
        let mut seen = BTreeMap::new();
        for index in 0..chunks {
            let chunk = Some(Chunk { index, of: chunks });
            let mut first = None;
            for unit in units(&run.table, ProgramId::DECODE, AT, chunk) {
                let slot = run.table.item(0, List::DECODE, unit.row0 as usize).slot;
                let place = expected[&(slot, unit.kv_head as usize)];
                // Offsets are relative to the chunk's first unit that has an extent.
                let origin = *first.get_or_insert(place - unit.cache_offset);
                assert_eq!(unit.cache_offset + origin, place);
                assert_eq!((unit.past as usize, unit.rows), (lengths[slot], 1));
                let number = slot * 3 + unit.kv_head as usize;
                let bound = run.table.chunk_units(AT, chunk).start;
                assert_eq!(unit.scores_offset, (number - bound) * 2 * 520);
                assert!(seen.insert((slot, unit.kv_head as usize), ()).is_none(), "twice");
            }
        }
        assert_eq!(seen.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    }
}

#[test]
fn copies_move_what_is_active() {
    let run = run(plan(1, 4, 4, 3), &[1, 0, 512, 0], 6);
    run.prefill(1);
    let (spans, rows) = run.copy(Moved::Cache(Kv::K), None);
    assert_eq!((total(&spans), rows), (513 * 3 * 4 * 2, 2));
    let chunk = |index| Some(Chunk { index, of: 3 });
    let parts: usize =
        (0..3).map(|index| total(&run.copy(Moved::Cache(Kv::V), chunk(index)).0)).sum();
    assert_eq!(parts, 513 * 3 * 4 * 2);
    let row_bytes = |value: Value| {
        value.row_elements(&run.plan.config).unwrap() * value.element_bytes(Dtype::Bf16)
    };
    for value in [Value::Hidden, Value::Query, Value::Key, Value::Ffn, Value::Logits] {
        let (spans, rows) = run.copy(Moved::Value(value), None);
        assert_eq!(spans, [CopySpan::at(0, 2 * row_bytes(value))]);
        assert_eq!(rows, 2);
    }
    assert_eq!(total(&run.copy(Moved::Weights(Op::Q), None).0), 640);
    // Scores: both query heads of each unit, past + 1 positions.
    let (spans, _) = run.copy(Moved::Value(Value::Scores), None);
    assert_eq!(total(&spans), (2 + 513) * 3 * 2 * 4);
    assert_eq!(spans[3].from_bytes, (2 * 3) * 2 * 520 * 4);
}

#[test]
fn chunks_of_a_value_are_disjoint_and_complete() {
    let run = run(plan(1, 3, 3, 4), &[40, 7, 90], 6);
    run.prefill(1);
    for value in [Value::Attended, Value::Scores, Value::Probabilities] {
        let mark = |bytes: &mut BTreeMap<usize, u32>, chunk| {
            for span in run.copy(Moved::Value(value), chunk).0 {
                for byte in span.from_bytes..span.from_bytes + span.size_bytes {
                    *bytes.entry(byte).or_insert(0) += 1;
                }
            }
        };
        let (mut whole, mut parts) = (BTreeMap::new(), BTreeMap::new());
        mark(&mut whole, None);
        (0..4).for_each(|index| mark(&mut parts, Some(Chunk { index, of: 4 })));
        assert!(!whole.is_empty() && whole.values().all(|count| *count == 1));
        assert_eq!(whole, parts, "{value:?}");
    }
}

#[test]
fn appends_go_behind_the_past() {
    let run = run(plan(1, 3, 3, 2), &[2, 0, 3], 4);
    let append = |program, index| {
        let region = Region::whole(BufferId(0));
        let chunk = Chunk { index, of: 2 };
        let append = Append { kv: Kv::K, at: AT, chunk, from: region, to: region, table: region };
        let mut spans = Vec::new();
        append_spans(&run.table, program, &append, |from, to| spans.push((from, to)));
        spans
    };
    let rows = |spans: &[(usize, usize)]| -> usize { spans.len() };
    // 5 prompt rows of 3 heads, over both chunks.
    assert_eq!(rows(&append(ProgramId::PREFILL, 0)) + rows(&append(ProgramId::PREFILL, 1)), 5 * 3);
    // Head 0 of sequence 0: row 0 to position 0, row 1 to position 1; rows are 12 elements wide.
    assert_eq!(append(ProgramId::PREFILL, 0)[..2], [(0, 0), (12, 4)]);
    run.prefill(1);
    let first = append(ProgramId::DECODE, 0)[0];
    assert_eq!(first, (0, 2 * 4), "behind two cached positions");
    let all = append(ProgramId::DECODE, 0).len() + append(ProgramId::DECODE, 1).len();
    assert_eq!(all, 2 * 3);
}

#[test]
fn sampling_ends_sequences_by_eos_length_and_cancel() {
    let run = run(plan(1, 4, 2, 1), &[3, 2, 0, 5], 3);
    let table = &run.table;
    table.set_field(0, 3, Field::IgnoreEos, 1);
    run.prefill(1);
    assert_eq!(listed(table), [(0, 3), (1, 2), (3, 5)]);
    // Sequences 0 and 3 draw an EOS, and 3 ignores it.
    record(table, ProgramId::DECODE, AT, &[7], |_, sequence| if sequence == 1 { 2 } else { 7 });
    assert_eq!(table.field(0, 0, Field::Finish), EndReason::Stop as u32);
    assert_eq!(table.field(0, 0, Field::Generated), 2);
    assert_eq!((table.output(0, 0, 0), table.output(0, 0, 1)), (1, 7));
    assert_eq!(listed(table), [(1, 3), (3, 6)]);
    // Sequence 1 reaches its length; rows are drawn in the order of the active list.
    let mut drawn = Vec::new();
    record(table, ProgramId::DECODE, AT, &[7], |row, sequence| {
        drawn.push((row, sequence));
        4
    });
    assert_eq!(drawn, [(0, 1), (1, 3)]);
    assert_eq!(listed(table), []);
    assert_eq!(table.field(0, 1, Field::Finish), EndReason::Length as u32);
    assert_eq!(table.field(0, 1, Field::Remaining), 0);
    assert_eq!(table.token(0, 3, 7), 4, "the third behind five of the prompt");
    // No sequence is left: nothing is drawn.
    record(table, ProgramId::DECODE, AT, &[7], |_, _| panic!("no row is active"));
}

#[test]
fn a_cancelled_sequence_ends_at_the_next_sample() {
    let run = run(plan(1, 2, 2, 1), &[3, 2], 8);
    run.prefill(1);
    run.table.set_field(0, 1, Field::Cancel, 1);
    record(&run.table, ProgramId::DECODE, AT, &[7], |_, _| 5);
    assert_eq!(run.table.field(0, 1, Field::Finish), EndReason::Stop as u32);
    assert_eq!(listed(&run.table), [(0, 4)]);
}

#[test]
fn the_last_step_is_lowered_one_step_ahead_and_never_below() {
    let run = run(plan(2, 2, 2, 1), &[3, 2], 6);
    let Run { control, table, .. } = &run;
    control.set_last_step(Some(5));
    run.prefill(1);
    announce(control, table, 0, 0);
    assert_eq!((control.last_step(), control.steps().value()), (Some(5), 1));
    // Sequence 0 ends by EOS in step 1, and 1 has 4 tokens to go.
    record(table, ProgramId::DECODE, AT, &[7], |row, _| if row == 0 { 7 } else { 1 });
    announce(control, table, 1, 0);
    assert_eq!(control.last_step(), Some(5));
    // All end in step 2: the step after it may have begun, so it is the last.
    record(table, ProgramId::DECODE, AT, &[7], |_, _| 7);
    announce(control, table, 2, 0);
    assert_eq!((control.last_step(), control.steps().value()), (Some(3), 3));
    announce(control, table, 3, 0);
    assert_eq!(control.last_step(), Some(3));
}

#[test]
fn a_group_ends_when_enough_have_and_the_others_go_on_in_the_next() {
    let run = run(plan(1, 4, 2, 1), &[3, 2, 4, 5], 6);
    let Run { control, table, .. } = &run;
    table.set_early_end_running(2);
    control.set_last_step(Some(list_work(table)));
    assert_eq!(control.last_step(), Some(5));
    run.prefill(1);
    announce(control, table, 0, 0);
    assert_eq!(control.last_step(), Some(5));
    // Two of four end by EOS: the step after that, which may have begun, is the last.
    record(table, ProgramId::DECODE, AT, &[7], |_, sequence| if sequence % 2 == 0 { 7 } else { 1 });
    announce(control, table, 1, 0);
    assert_eq!(control.last_step(), Some(2));
    record(table, ProgramId::DECODE, AT, &[7], |_, _| 2);
    announce(control, table, 2, 0);
    assert_eq!(control.last_step(), Some(2));
    // A new sequence is placed in slot 2, whose extent is unchanged.
    let extent =
        |slot| [Field::KvStart, Field::KvCapacity].map(|field| table.field(0, slot, field));
    let before = extent(2);
    continue_group(table);
    assert_eq!(row_counts(table, ProgramId::PREFILL, AT), (0, 0), "nobody is new yet");
    let request =
        GenerationRequest { ignore_eos: false, ..GenerationRequest::greedy(vec![9, 9], 3) };
    place_request(table, &PlacedRequest { batch: 0, slot: 2, request });
    assert_eq!(extent(2), before);
    assert_eq!(
        list_work(table),
        3,
        "slots 1 and 3 may make three more tokens, slot 2 two after prefill's"
    );
    let fresh: Vec<_> = (0..2)
        .flat_map(|stream| sequences(table, ProgramId::PREFILL, At { stream, ..AT }))
        .map(|s| (s.item.slot, s.row0, s.item.rows, s.item.first))
        .collect();
    assert_eq!(fresh, [(2, 0, 2, 0)]);
    // Prefill computes a token for the new sequence alone, and lists all running ones.
    run.prefill(3);
    assert_eq!(listed(table), [(1, 4), (3, 7), (2, 2)], "two of the prompt, two of decode");
    let made = [1, 2, 3].map(|slot| table.field(0, slot, Field::Generated));
    assert_eq!(made, [3, 1, 3]);
    assert_eq!(table.output(0, 2, 0), 3);
}

#[test]
fn wait_targets_wrap_and_the_step_before_is_free_at_first() {
    use crate::lane::wait_target;
    use program::ir::TimelineWait;
    let wait = |offset, previous_step| TimelineWait { lane: LaneId::D2H, offset, previous_step };
    assert_eq!(wait_target(100, 7, 0, &wait(3, false)), 103);
    assert_eq!(wait_target(100, 7, 2, &wait(3, false)), 117);
    assert_eq!(wait_target(100, 7, 2, &wait(3, true)), 110);
    let first = wait_target(0, 7, 0, &wait(7, true));
    assert!(shm::timeline::reached(0, first), "nothing to wait for in the first step");
    assert!(!shm::timeline::reached(0, wait_target(0, 7, 0, &wait(1, false))));
    let wrapped = wait_target(u32::MAX - 4, 7, 1, &wait(2, false));
    assert_eq!(wrapped, 4);
    assert!(!shm::timeline::reached(u32::MAX - 1, wrapped) && shm::timeline::reached(4, wrapped));
}

/// Returns the items of the streams of a run whose prompts are split every `most` rows, as slot,
/// first position and rows.
fn chunks(prompts: &[Vec<u32>], most: u32, shares: bool) -> Vec<Vec<(usize, usize, usize)>> {
    let base = plan(1, prompts.len() as u16, 1, 1);
    let longest = prompts.iter().map(Vec::len).max().unwrap() as u32;
    let shape = RunShape { prefill_chunk: most, max_prompt: longest, ..base.shape };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, &config(), true, homes);
    let plan = compile(&config(), &shape, &map).unwrap();
    let control = Control::create(1, plan.table.words() * 4).unwrap();
    let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
    let placed = |(slot, prompt): (usize, &Vec<u32>)| PlacedRequest {
        batch: 0,
        slot,
        request: GenerationRequest::greedy(prompt.clone(), 2),
    };
    let group: Vec<PlacedRequest> = prompts.iter().enumerate().map(placed).collect();
    fill(&table, &plan, &group);
    if shares {
        protocol::prefix_sharing::share_prefixes(&table, 2);
    }
    list_work(&table);
    let of = |stream| -> Vec<(usize, usize, usize)> {
        let at = At { stream, ..AT };
        let found = sequences(&table, ProgramId::PREFILL, at);
        found.map(|s| (s.item.slot, s.item.first, s.item.rows)).collect()
    };
    (0..table.streams()).map(of).collect()
}

#[test]
fn prompts_are_cut_where_a_stream_is_full() {
    let prompts = [vec![1; 5], vec![2; 3], vec![3; 4]];
    let found = chunks(&prompts, 4, false);
    let expected: [&[_]; 4] = [&[(0, 0, 4)], &[(0, 4, 1), (1, 0, 3)], &[(2, 0, 4)], &[]];
    assert_eq!(found, expected);
}

#[test]
fn a_beginning_is_in_the_cache_before_the_stream_that_reads_it() {
    let alike = |last: u32| [vec![1; 5], vec![last; 2]].concat();
    let found = chunks(&[alike(2), alike(3), alike(4)], 4, true);
    // Row 4 of the first prompt is in the second stream, so the others begin in the third.
    let expected: [&[_]; 6] = [&[(0, 0, 4)], &[(0, 4, 3)], &[(1, 5, 2), (2, 5, 2)], &[], &[], &[]];
    assert_eq!(found, expected);
    // A stream that contains all rows leaves none for a later begin: each prompt is computed whole.
    let found = chunks(&[alike(2), alike(3)], 14, true);
    assert_eq!(found, [vec![(0, 0, 7), (1, 0, 7)]]);
}
