//! The rows of the next step.

use crate::drafts::choose_drafts;
use crate::sequence::{RowSpan, Sequence, StepLimits, attended_positions};

/// Minimum number of rows of a prompt in a step regardless of duration, to guarantee progress.
const PROMPT_ROWS_MIN: u32 = 16;

/// Factor on the duration of a step with prompts only, which delays no token: longer chunks are
/// more efficient.
const PROMPTS_ONLY_FACTOR: u64 = 4;

/// Reports the rows of the next step: the newest token of every decoding sequence, with as many of
/// its drafts as shorten the time per token, then prompts in the order of arrival, as many of their
/// rows as the step's duration permits. Sorts `sequences` by arrival and lowers their drafts to
/// those that are verified.
pub fn next_step(sequences: &mut [Sequence], step: &StepLimits, mut emit: impl FnMut(RowSpan)) {
    // Numbers wrap around, but those of concurrent sequences are close to each other.
    let newest = sequences.iter().map(|one| one.arrival).reduce(later_arrival).unwrap_or(0);
    sequences.sort_unstable_by_key(|one| std::cmp::Reverse(newest.wrapping_sub(one.arrival)));
    choose_drafts(sequences, step);
    let (mut rows, mut positions, mut logits_ns) = (0, 0, 0);
    for one in sequences.iter().filter(|one| one.can_decode()) {
        let span = one.decode_span();
        rows += span.rows;
        positions += attended_positions(one.computed, span.rows);
        logits_ns += step.costs.drafts_ns(span.drafts);
        emit(span);
    }
    let mut logits = step.logits_rows.saturating_sub(rows);
    let target_ns =
        if rows > 0 { step.target_ns } else { step.target_ns.saturating_mul(PROMPTS_ONLY_FACTOR) };
    let mut is_first = true;
    for one in sequences.iter().filter(|one| !one.is_decode() && one.rows() > 0) {
        let max_rows = one.rows().min(step.rows.saturating_sub(rows)).min(one.max_rows(logits));
        if max_rows == 0 {
            continue;
        }
        let target_ns = target_ns.saturating_sub(logits_ns);
        let fitting_rows = rows_in_time(step, target_ns, rows, positions, one, max_rows);
        let count =
            if is_first { fitting_rows.max(max_rows.min(PROMPT_ROWS_MIN)) } else { fitting_rows };
        if count == 0 {
            break;
        }
        is_first = false;
        let span = one.row_span(count);
        emit(span);
        logits -= span.logits_rows;
        logits_ns += step.costs.logits_ns(span.extra_logits_rows());
        rows += count;
        positions += attended_positions(one.computed, count);
    }
}

/// Returns the maximum number of the next rows of a prompt, up to `max_rows`, that fit in a step in
/// addition to its other rows and their positions.
fn rows_in_time(
    step: &StepLimits,
    target_ns: u64,
    rows: u32,
    positions: u64,
    sequence: &Sequence,
    max_rows: u32,
) -> u32 {
    let fits = |own: u32| {
        let positions = positions + attended_positions(sequence.computed, own);
        let logits_ns = step.costs.logits_ns(sequence.row_span(own).extra_logits_rows());
        step.costs.step_ns(rows + own, positions).saturating_add(logits_ns) <= target_ns
    };
    let (mut fitting, mut beyond) = (0, max_rows + 1);
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            beyond = middle;
        }
    }
    fitting
}

/// Returns the later of two arrivals.
fn later_arrival(a: u32, b: u32) -> u32 {
    if a.wrapping_sub(b) < u32::MAX / 2 { a } else { b }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::costs::StepCostCurve;

    fn costs() -> StepCostCurve {
        let mut costs = StepCostCurve { position_ps: 1_000, ..StepCostCurve::NONE };
        costs.points[0] = (1, 10_000);
        costs.points[1] = (101, 110_000);
        costs
    }

    fn step(rows: u32, aim_ms: u64) -> StepLimits {
        StepLimits { rows, logits_rows: 40, target_ns: aim_ms * 1_000_000, costs: costs() }
    }

    fn sequence(slot: u32, arrival: u32, num_tokens: u32, computed: u32) -> Sequence {
        let (capacity, logits_from, samples_token) = (u32::MAX, u32::MAX, true);
        let (drafts, acceptance) = (0, 0.0);
        Sequence {
            slot,
            arrival,
            num_tokens,
            computed,
            capacity,
            logits_from,
            samples_token,
            drafts,
            acceptance,
        }
    }

    fn pieces(mut sequences: Vec<Sequence>, step: &StepLimits) -> Vec<RowSpan> {
        let mut pieces = Vec::new();
        next_step(&mut sequences, step, |piece| pieces.push(piece));
        pieces
    }

    #[test]
    fn newest_tokens_come_first_and_prompts_in_the_order_of_their_arrival() {
        let sequences = vec![
            sequence(0, 7, 300, 0),
            sequence(1, 8, 21, 20),
            sequence(2, 5, 40, 10),
            sequence(3, 6, 5, 4),
        ];
        let found = pieces(sequences, &step(512, 60));
        let rows: Vec<(u32, u32, u32, bool)> = found
            .iter()
            .map(|piece| (piece.slot, piece.first, piece.rows, piece.is_sampled))
            .collect();
        // 52 rows take 60 ms - attention; the older prompt is computed to its end.
        assert_eq!(rows[..3], [(3, 4, 1, true), (1, 20, 1, true), (2, 10, 30, true)]);
        assert_eq!((rows[3].0, rows[3].1, rows[3].3), (0, 0, false));
        let all: u32 = rows.iter().map(|row| row.2).sum();
        assert!((49..=51).contains(&all), "{rows:?}");
    }

    #[test]
    fn prompts_alone_take_longer_steps_and_a_late_one_gets_on_all_the_same() {
        let alone = pieces(vec![sequence(0, 1, 1000, 0)], &step(512, 20));
        assert!((70..=71).contains(&alone[0].rows), "{alone:?}");
        let beside = pieces(vec![sequence(0, 1, 1000, 0), sequence(1, 0, 9, 8)], &step(512, 1));
        assert_eq!(beside[1].rows, PROMPT_ROWS_MIN);
    }

    #[test]
    fn arrivals_may_wrap_around() {
        let found =
            pieces(vec![sequence(0, 1, 40, 0), sequence(1, u32::MAX - 1, 40, 0)], &step(50, 1000));
        assert_eq!((found[0].slot, found[1].slot, found[1].rows), (1, 0, 10));
    }

    #[test]
    fn who_has_no_room_sits_out() {
        let mut waits = sequence(0, 0, 65, 64);
        waits.capacity = 64;
        let mut half = sequence(1, 1, 400, 0);
        half.capacity = 64;
        let found = pieces(vec![waits, half], &step(512, 1000));
        let (is_sampled, logits_rows, drafts) = (false, 0, 0);
        let half = RowSpan { slot: 1, first: 0, rows: 64, is_sampled, logits_rows, drafts };
        assert_eq!(found, [half]);
    }

    #[test]
    fn rows_with_logits_take_the_time_of_these_too() {
        // Besides a new token, 50 rows fit in 60 ms; with a millisecond of logits each, 25 do.
        let mut step = step(512, 60);
        step.costs.position_ps = 0;
        step.costs.logits_row_ns = 1_000_000;
        for (logits_from, rows) in [(u32::MAX, 50), (0, 25)] {
            let prompt = Sequence { logits_from, ..sequence(0, 1, 1000, 0) };
            assert_eq!(pieces(vec![prompt, sequence(1, 0, 9, 8)], &step)[1].rows, rows);
        }
        // What the logits of one prompt take, another does not have.
        let prompts = [sequence(0, 1, 21, 0), sequence(2, 2, 1000, 0)];
        let [short, long] = prompts.map(|prompt| Sequence { logits_from: 0, ..prompt });
        let found = pieces(vec![short, long, sequence(1, 0, 9, 8)], &step);
        assert_eq!([found[1].rows, found[2].rows], [21, 4], "9 + 1 + 21 + 20 + 4 + 4 ms");
    }

    #[test]
    fn a_prompt_has_logits_from_where_they_are_needed_and_may_end_without_a_drawn_token() {
        let asked = Sequence { logits_from: 30, ..sequence(0, 0, 90, 10) };
        let alone = Sequence { samples_token: false, ..asked };
        for (sequence, is_sampled) in [(asked, true), (alone, false)] {
            let span = |first, rows, logits_rows, is_sampled| {
                [RowSpan { slot: 0, first, rows, is_sampled, logits_rows, drafts: 0 }]
            };
            let first = pieces(vec![sequence], &step(512, 1000));
            assert_eq!(first, span(10, 60, 40, false));
            let later = Sequence { computed: 70, ..sequence };
            let rest = pieces(vec![later], &step(512, 1000));
            assert_eq!(rest, span(70, 20, 20, is_sampled));
            let last = pieces(vec![Sequence { computed: 89, ..sequence }], &step(512, 1000));
            assert_eq!(last, span(89, 1, 1, is_sampled));
        }
    }

    proptest! {
        #[test]
        fn a_step_keeps_to_its_rows_and_every_sequence_that_decodes_has_one(
            drawn in prop::collection::vec((1u32..600, 0u32..600, any::<u32>(), 0u32..800), 1..40),
            rows in 40u32..600,
            aim_ms in 0u64..400,
        ) {
            let sequences = drawn.iter().zip(0..).map(|((more, computed, arrival, capacity), slot)| {
                let num_tokens = computed + more;
                let (computed, capacity, samples_token) = (*computed, *capacity, arrival % 7 > 0);
                let logits_from = if arrival % 5 == 0 { arrival % 600 } else { u32::MAX };
                let free = capacity.saturating_sub(num_tokens);
                let (drafts, acceptance) = (free.min(arrival % 9), (arrival % 100) as f32 / 100.0);
                let arrival = arrival % 1000;
                Sequence {
                    slot,
                    arrival,
                    num_tokens,
                    computed,
                    capacity,
                    logits_from,
                    samples_token,
                    drafts,
                    acceptance,
                }
            });
            let sequences: Vec<Sequence> = sequences.collect();
            let found = pieces(sequences.clone(), &step(rows, aim_ms));
            prop_assert!(found.iter().map(|piece| piece.rows).sum::<u32>() <= rows);
            prop_assert!(found.iter().map(|piece| piece.logits_rows).sum::<u32>() <= 40);
            for piece in &found {
                let of = sequences[piece.slot as usize];
                prop_assert!(piece.rows > 0 && piece.first == of.computed);
                let end = piece.first + piece.rows - piece.drafts;
                prop_assert!(end <= of.num_tokens);
                prop_assert!(end + piece.drafts <= of.capacity.max(of.computed));
                prop_assert_eq!(piece.is_sampled, of.samples_token && end == of.num_tokens);
                let max_drafts = if of.is_decode() { of.drafts } else { 0 };
                prop_assert!(piece.drafts <= max_drafts);
                let asked = (piece.first..end).filter(|row| *row >= of.logits_from).count() as u32;
                let drawn = asked.max(piece.is_sampled.into());
                prop_assert_eq!(piece.logits_rows, drawn + piece.drafts);
            }
            for one in sequences.iter().filter(|one| one.is_decode() && one.rows() > 0) {
                prop_assert!(found.iter().any(|piece| piece.slot == one.slot));
            }
            let prompts = sequences.iter().any(|one| !one.is_decode() && one.rows() > 0);
            let decodes = sequences.iter().filter(|one| one.is_decode() && one.rows() > 0).count();
            if prompts && (decodes as u32) < rows.min(40) {
                let has_prompt = found.iter().any(|at| !sequences[at.slot as usize].is_decode());
                prop_assert!(has_prompt, "a prompt gets on");
            }
        }
    }
}
