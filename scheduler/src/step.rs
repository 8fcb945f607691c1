//! The rows of the next step.

use crate::drafts::choose_drafts;
use crate::sequence::{RowSpan, Sequence, StepLimits, attended_positions};

/// Minimum number of rows of a prompt in a step regardless of duration, to guarantee progress.
const PROMPT_ROWS_MIN: u32 = 16;

/// Factor on the duration of a step with prompts only, which delays no token: longer chunks are
/// more efficient.
const PROMPTS_ONLY_FACTOR: u64 = 4;

/// Factor on the duration of a step with newest tokens of interactive sequences within which rows
/// of background sequences are added, as a fraction.
const BACKGROUND_FACTOR: (u64, u64) = (6, 5);

/// Reports the rows of the next step: the newest token of every decoding sequence, with as many of
/// its drafts as shorten the time per token, then prompts in the order of arrival, as many of their
/// rows as the step's duration permits. Sorts `sequences` by priority and arrival, and lowers their
/// drafts to those that are verified.
///
/// Next to newest tokens of interactive sequences, background sequences have as many rows as hardly
/// prolong the step, but one new token at least, and one row of a prompt if no other prompt has
/// any.
pub fn next_step(sequences: &mut [Sequence], step: &StepLimits, mut emit: impl FnMut(RowSpan)) {
    // Numbers wrap around, but those of concurrent sequences are close to each other.
    let newest = sequences.iter().map(|one| one.arrival).reduce(later_arrival).unwrap_or(0);
    let age = |one: &Sequence| std::cmp::Reverse(newest.wrapping_sub(one.arrival));
    sequences.sort_unstable_by_key(|one| (one.is_background, age(one)));
    let is_streaming = sequences.iter().any(|one| one.can_decode() && !one.is_background);
    if is_streaming {
        let background = sequences.iter_mut().filter(|one| one.is_background);
        background.for_each(|one| one.drafts = 0);
    }
    choose_drafts(sequences, step);
    let mut listed = ListedRows::default();
    let mut has_background = false;
    for one in sequences.iter().filter(|one| one.can_decode()) {
        let span = one.decode_span();
        let with_span = listed.with_decode(one, span, step);
        let yields = one.is_background && is_streaming;
        if yields && has_background && with_span.step_ns(step) > listed.background_ns() {
            break;
        }
        has_background |= yields;
        listed = with_span;
        emit(span);
    }
    list_prompts(sequences, step, is_streaming, listed, emit);
}

/// Reports the rows of prompts, after `listed` rows of newest tokens. `is_streaming` is true if
/// some of these belong to interactive sequences.
fn list_prompts(
    sequences: &[Sequence],
    step: &StepLimits,
    is_streaming: bool,
    mut listed: ListedRows,
    mut emit: impl FnMut(RowSpan),
) {
    let mut logits = step.logits_rows.saturating_sub(listed.rows);
    let has_interactive = sequences.iter().any(|one| !one.is_background);
    // Newest tokens of background sequences are not delayed.
    let is_delaying = is_streaming || listed.rows > 0 && !has_interactive;
    let factor = if is_delaying { 1 } else { PROMPTS_ONLY_FACTOR };
    let interactive_ns = step.target_ns.saturating_mul(factor);
    let mut is_first = true;
    for one in sequences.iter().filter(|one| !one.is_decode() && one.rows() > 0) {
        let max_rows = one.rows().min(step.rows.saturating_sub(listed.rows));
        let max_rows = max_rows.min(one.max_rows(logits));
        if max_rows == 0 {
            continue;
        }
        let yields = one.is_background && is_streaming;
        let target_ns = if yields { listed.background_ns() } else { interactive_ns };
        let min_rows = match (is_first, yields) {
            (true, true) => 1,
            (true, false) => PROMPT_ROWS_MIN,
            (false, true | false) => 0,
        };
        let fitting_rows = rows_in_time(step, target_ns, &listed, one, max_rows);
        let count = fitting_rows.max(max_rows.min(min_rows));
        if count == 0 {
            break;
        }
        is_first = false;
        let span = one.row_span(count);
        emit(span);
        logits -= span.logits_rows;
        listed.logits_ns += step.costs.logits_ns(span.extra_logits_rows());
        listed.rows += count;
        listed.positions += attended_positions(one.computed, count);
    }
}

/// Rows that are listed for a step so far.
#[derive(Debug, Clone, Copy, Default)]
struct ListedRows {
    rows: u32,
    /// Positions to which the rows attend.
    positions: u64,
    /// Duration of logits in addition to those of sampled rows.
    logits_ns: u64,
    /// Duration of a step with the newest tokens of interactive sequences alone.
    streaming_ns: u64,
}

impl ListedRows {
    /// Returns the rows together with a newest token and its drafts.
    fn with_decode(self, one: &Sequence, span: RowSpan, step: &StepLimits) -> ListedRows {
        let added = ListedRows {
            rows: self.rows + span.rows,
            positions: self.positions + attended_positions(one.computed, span.rows),
            logits_ns: self.logits_ns + step.costs.drafts_ns(span.drafts),
            streaming_ns: self.streaming_ns,
        };
        let streaming_ns = if one.is_background { self.streaming_ns } else { added.step_ns(step) };
        ListedRows { streaming_ns, ..added }
    }

    /// Returns the duration up to which rows of background sequences are added.
    fn background_ns(&self) -> u64 {
        let (numerator, denominator) = BACKGROUND_FACTOR;
        self.streaming_ns.saturating_mul(numerator) / denominator
    }

    /// Returns the predicted duration of a step with these rows.
    fn step_ns(&self, step: &StepLimits) -> u64 {
        step.costs.step_ns(self.rows, self.positions).saturating_add(self.logits_ns)
    }
}

/// Returns the maximum number of the next rows of a prompt, up to `max_rows`, that fit in a step in
/// addition to the listed rows.
fn rows_in_time(
    step: &StepLimits,
    target_ns: u64,
    listed: &ListedRows,
    sequence: &Sequence,
    max_rows: u32,
) -> u32 {
    let fits = |own: u32| {
        let logits_ns = step.costs.logits_ns(sequence.row_span(own).extra_logits_rows());
        let with_own = ListedRows {
            rows: listed.rows + own,
            positions: listed.positions + attended_positions(sequence.computed, own),
            logits_ns: listed.logits_ns.saturating_add(logits_ns),
            ..*listed
        };
        with_own.step_ns(step) <= target_ns
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
            is_background: false,
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
    fn background_rows_hardly_prolong_a_step_that_streams_wait_for() {
        let background = |slot, num_tokens, computed| Sequence {
            is_background: true,
            ..sequence(slot, slot, num_tokens, computed)
        };
        let mut step = step(512, 100);
        step.costs.position_ps = 0;
        let slots = |sequences: Vec<Sequence>| -> Vec<(u32, u32)> {
            pieces(sequences, &step).iter().map(|piece| (piece.slot, piece.rows)).collect()
        };
        // A row takes 10 ms and each further one 1 ms: two more are within a fifth of that.
        let decoding = |slot| background(slot, 9, 8);
        let stream = sequence(9, 20, 9, 8);
        let many: Vec<Sequence> = (0..8).map(decoding).collect();
        let with = |more: &[Sequence]| [&many[..], more].concat();
        assert_eq!(slots(with(&[stream])), [(9, 1), (0, 1), (1, 1)]);
        assert_eq!(slots(many.clone()).len(), 8, "nothing else is computed");
        // Prompts of the background follow, by a row at least, and do not hold up other prompts.
        let long = background(8, 400, 0);
        assert_eq!(slots(vec![long, stream]), [(9, 1), (8, 2)]);
        assert_eq!(slots(with(&[long, stream])), [(9, 1), (0, 1), (1, 1), (8, 1)]);
        let prompt = sequence(10, 21, 400, 0);
        assert_eq!(slots(vec![long, stream, prompt]), [(9, 1), (10, 90)]);
        assert_eq!(slots(vec![long, prompt])[0].0, 10, "interactive prompts come first");
        let (tokens, rows) = (slots(with(&[prompt])), 8);
        assert_eq!((tokens.len(), tokens[0]), (rows + 1, (0, 1)));
        assert!(tokens[rows].1 > 300, "no stream waits for this step: {tokens:?}");
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
                    is_background: slot % 3 == 1,
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
            let decodes = || sequences.iter().filter(|one| one.is_decode() && one.rows() > 0);
            let is_streaming = decodes().any(|one| !one.is_background);
            for one in decodes().filter(|one| !one.is_background || !is_streaming) {
                prop_assert!(found.iter().any(|piece| piece.slot == one.slot));
            }
            let prompts = sequences.iter().any(|one| !one.is_decode() && one.rows() > 0);
            if prompts && (decodes().count() as u32) < rows.min(40) {
                let has_prompt = found.iter().any(|at| !sequences[at.slot as usize].is_decode());
                prop_assert!(has_prompt, "a prompt gets on");
            }
        }
    }
}
