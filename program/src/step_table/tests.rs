use super::*;

#[test]
fn ranges_do_not_overlap() {
    let layout = StepTableLayout {
        batches: 2,
        batch_size: 3,
        lists: vec![ListSize { streams: 4, items: 2 }, ListSize { streams: 1, items: 3 }],
        max_prompt: 5,
        max_new: 4,
        logprobs: 3,
        chunks: 2,
        windows: vec![8, 16],
        routers: Routers { layers: 2, experts: 5, logged: 0 },
        pages: 7,
        planned_checkpoints: 2,
        has_owners: true,
        pooled: 6,
    };
    let mut seen = vec![0u32; layout.words()];
    seen[layout.enough()] += 1;
    (0..BUDGET_WORDS).for_each(|word| seen[layout.budget() + word] += 1);
    (0..OWNERS_WORDS).for_each(|word| seen[layout.owners() + word] += 1);
    (0..SELECTED_WORDS).for_each(|word| seen[layout.selected() + word] += 1);
    for layer in 0..2 {
        (0..ROUTER_SUMS + 5).for_each(|word| seen[layout.router(layer) + word] += 1);
    }
    for batch in 0..2 {
        for list in (0..4).map(List::prefill).chain([List::DECODE]) {
            let words = 1 + layout.items_max(list) * ITEM_WORDS;
            (0..words).for_each(|word| seen[layout.list(batch, list) + word] += 1);
        }
        (0..=2).for_each(|chunk| seen[layout.chunk_bounds(batch) + chunk] += 1);
        for sequence in 0..3 {
            for field in 0..FIELDS {
                seen[layout.field(batch, sequence, Field::PromptLen) + field] += 1;
            }
            (0..2).for_each(|w| seen[layout.windowed_start(batch, sequence, w)] += 1);
            (0..5).for_each(|i| seen[layout.prompt(batch, sequence) + i] += 1);
            (0..4).for_each(|i| seen[layout.output(batch, sequence) + i] += 1);
            (0..7).for_each(|i| seen[layout.pages(batch, sequence) + i] += 1);
            (0..6).for_each(|i| seen[layout.pooled(batch, sequence) + i] += 1);
            let biases = layout.logit_biases(batch, sequence);
            (0..2 * LOGIT_BIASES_MAX).for_each(|i| seen[biases + i] += 1);
            let stops = layout.stop_tokens(batch, sequence);
            (0..STOP_TOKENS_MAX).for_each(|i| seen[stops + i] += 1);
            for checkpoint in 0..2 {
                let first = layout.checkpoint(batch, sequence, checkpoint);
                (0..CHECKPOINT_WORDS).for_each(|i| seen[first + i] += 1);
            }
            for position in 0..4 {
                let first = layout.logprobs(batch, sequence, position);
                (0..3 * LOGPROB_WORDS).for_each(|i| seen[first + i] += 1);
            }
        }
    }
    assert!(seen.iter().all(|count| *count == 1), "{seen:?}");
}

#[test]
fn parts_are_complete_and_bounded() {
    let mut state = 7u64;
    for _ in 0..500 {
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let (sequences, kv_heads, chunks) =
            (1 + next(6) as usize, 1 + next(8) as u32, 1 + next(9) as u32);
        let max_context = 1 + next(40) as u32;
        let capacities: Vec<u32> =
            (0..sequences).map(|_| next(u64::from(max_context) + 1) as u32).collect();
        let bounds = balance_units(&capacities, kv_heads, chunks);
        assert_eq!(bounds.len(), chunks as usize + 1);
        assert_eq!((bounds[0], bounds[chunks as usize]), (0, sequences as u32 * kv_heads));
        let most = chunk_positions_max(
            sequences as u64,
            u64::from(max_context),
            u64::from(kv_heads),
            u64::from(chunks),
        );
        for pair in bounds.windows(2) {
            assert!(pair[0] <= pair[1]);
            let size: u64 =
                (pair[0]..pair[1]).map(|u| u64::from(capacities[(u / kv_heads) as usize])).sum();
            assert!(size <= most, "{size} > {most}");
        }
    }
}
