//! Sampling of tokens from logits, and the updates of the step table that follow: the rows of the
//! next step, and the ends of sequences. Only this module and `pooling` write the table during a
//! group.

use std::sync::{Arc, Mutex, PoisonError};

use grammar::GrammarError;
use kernels::{Element, Kernels, Logprob, NO_TOKEN, SampleDraw, SampleScratch};
use program::checkpoints::CheckpointLayout;
use program::ir::{At, ProgramId};
use program::plan::Plan;
use program::step_table::{EndReason, Field, List};
use protocol::drafts::record_drafts;
use protocol::grammar_source::GrammarSource;
use protocol::iteration_planner::IterationPlanner;
use protocol::prompt_lookup::PromptLookup;
use protocol::serving::list_step;
use protocol::table::{StepTable, WorkItem};
use scheduler::Sequence;

use super::grammar_matchers::GrammarMatchers;
use super::operands::Operands;
use super::penalties::{Changes, NextToken};
use super::pooling::pool_rows;
use super::row_logits::{RowLogits, draw_parameters};
use super::sampled_states::SampledStates;
use crate::checkpoint_copies;
use crate::shared_drafter::SharedDrafter;
use crate::work_items::{LogitsRow, SequenceRows, logits_rows, sequences};

/// Scratch for the rows of a batch, allocated once.
#[derive(Debug)]
pub(super) struct SampleState {
    /// Scratch of each thread.
    scratch: Vec<SampleScratch>,
    draws: Vec<SampleDraw>,
    tokens: Vec<u32>,
    changes: Changes,
    /// Number of log-probabilities requested by each row.
    wanted: Vec<u32>,
    /// `[row][maximum number of log-probabilities]`.
    logprobs: Vec<Logprob>,
    /// `None` if no answer follows a grammar.
    grammar_matchers: Option<GrammarMatchers>,
    /// Sequences of a batch, in a serving run.
    sequences: Vec<Sequence>,
    /// Scheduling state of a serving run whose sequences have owners.
    iteration_planner: IterationPlanner,
    /// Checkpoints of each batch, if the plan has any.
    checkpoints: Vec<CheckpointLayout>,
    /// Source of drafted tokens, in a serving run.
    drafter: SharedDrafter,
}

impl SampleState {
    /// Allocates for up to `rows` rows of logits of `plan`, on `threads` threads.
    ///
    /// # Errors
    /// Returns an error if no parser can be created for the vocabulary.
    pub(super) fn new(
        plan: &Plan,
        grammars: Option<&GrammarSource>,
        rows: usize,
        threads: usize,
    ) -> Result<SampleState, GrammarError> {
        let scratch = || SampleScratch::new(plan.config.vocab_size);
        Ok(SampleState {
            scratch: (0..threads).map(|_| scratch()).collect(),
            draws: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            changes: Changes::new(
                rows,
                plan.config.vocab_size,
                plan.shape.max_context as usize,
                plan.config.eos_token_ids.len(),
            ),
            wanted: Vec::with_capacity(rows),
            logprobs: vec![Logprob::NONE; rows * usize::from(plan.shape.logprobs)],
            grammar_matchers: grammars
                .map(|forms| GrammarMatchers::new(forms, plan, rows))
                .transpose()?,
            sequences: Vec::with_capacity(usize::from(plan.shape.batch_size)),
            iteration_planner: IterationPlanner::new(
                usize::from(plan.shape.batch_size),
                usize::from(plan.shape.device_slots),
            ),
            checkpoints: CheckpointLayout::of_batches(plan),
            drafter: Arc::new(Mutex::new(PromptLookup)),
        })
    }

    /// Sets the source of drafted tokens.
    pub(super) fn set_drafter(&mut self, drafter: SharedDrafter) {
        self.drafter = drafter;
    }

    /// Lists the rows of a batch's next step.
    fn list_next_step(&mut self, table: &StepTable, batch: usize) {
        let mut drafter = self.drafter.lock().unwrap_or_else(PoisonError::into_inner);
        list_step(table, batch, &mut self.sequences, &mut *drafter);
    }
}

/// Samples one token for each row of a stream and lists the rows of the next step.
pub(super) fn sample_batch<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    at: At,
    logits: RowLogits<'_>,
    hidden: SampledStates<'_, T>,
    state: &mut SampleState,
) {
    let Operands { plan, table, program, .. } = *operands;
    if !hidden.pooled.is_empty() {
        pool_rows(table, program, at, hidden.pooled);
    }
    let rows = LogitsRows { table, program, at };
    match logits {
        RowLogits::Values(logits) => {
            state.draw(kernels, rows, logits, &plan.config.eos_token_ids);
            if plan.shape.logprobs > 0 {
                state.store_logprobs(kernels, rows, logits, usize::from(plan.shape.logprobs));
            }
        }
        RowLogits::Greedy(tokens) => state.take_greedy(rows, tokens),
    }
    let eos = plan.config.eos_token_ids.as_slice();
    if !plan.shape.serves {
        record(table, program, at, eos, |row, _| state.tokens[row]);
        return;
    }
    record_step(table, program, at, eos, |row| state.tokens[row]);
    hidden.give_to(&state.drafter, table, program, at);
    let SampleState { iteration_planner, checkpoints, .. } = state;
    checkpoint_copies::take_due(operands.view, table, at.batch, checkpoints);
    if !table.has_owners() {
        state.list_next_step(table, usize::from(at.batch));
    } else if at.stream + 1 == table.program(program).streams {
        iteration_planner.list(table);
    }
}

/// The rows of logits of an instruction.
#[derive(Clone, Copy)]
struct LogitsRows<'a> {
    table: &'a StepTable,
    program: ProgramId,
    at: At,
}

impl LogitsRows<'_> {
    fn batch(&self) -> usize {
        usize::from(self.at.batch)
    }

    /// Returns the rows in order.
    fn all(&self) -> impl Iterator<Item = LogitsRow> {
        logits_rows(self.table, self.program, self.at)
    }

    fn field(&self, slot: usize, field: Field) -> u32 {
        self.table.field(self.batch(), slot, field)
    }

    /// Returns the number of new tokens before the one that is drawn from a row: those sampled and
    /// `drafts` drafts.
    fn tokens_before(&self, slot: usize, drafts: usize) -> u32 {
        self.field(slot, Field::Generated) + drafts as u32
    }

    /// Returns the token drafted after `drafts` other drafts of a sequence.
    fn draft(&self, slot: usize, drafts: usize) -> u32 {
        self.table.output(self.batch(), slot, self.tokens_before(slot, drafts) as usize)
    }

    /// Returns the rows whose answers follow a grammar.
    fn grammar_rows(&self) -> impl Iterator<Item = GrammarRow> {
        self.all().enumerate().filter_map(|(row, found)| {
            let grammar = self.field(found.item.slot, Field::Grammar) as usize;
            Some(GrammarRow {
                row,
                item: found.item,
                drafts: found.drawn?,
                grammar: grammar.checked_sub(1)?,
            })
        })
    }
}

/// A row from which a token of an answer with a grammar is drawn.
struct GrammarRow {
    /// Index among the rows of logits.
    row: usize,
    item: WorkItem,
    /// Number of drafts up to this row.
    drafts: usize,
    /// Index of the grammar.
    grammar: usize,
}

impl SampleState {
    /// Draws a token for each row.
    fn draw(&mut self, kernels: &Kernels, rows: LogitsRows<'_>, logits: &[f32], eos: &[u32]) {
        let SampleState { scratch, draws, tokens, changes, grammar_matchers, .. } = self;
        let batch = rows.batch();
        draws.clear();
        draws.extend(rows.all().map(|found| match found.drawn {
            Some(drafts) => {
                let slot = found.item.slot;
                draw_parameters(rows.table, batch, slot, rows.tokens_before(slot, drafts))
            }
            None => SampleDraw::GREEDY,
        }));
        changes.clear();
        for (draw, found) in draws.iter_mut().zip(rows.all()) {
            let (slot, Some(drafts)) = (found.item.slot, found.drawn) else { continue };
            let generated = rows.tokens_before(slot, drafts);
            draw.changes = changes.add(rows.table, NextToken { batch, slot, generated }, eos);
        }
        tokens.clear();
        tokens.resize(draws.len(), 0);
        if let Some(grammar_matchers) = grammar_matchers {
            compute_masks(grammar_matchers, rows, draws, scratch.len());
        }
        let masks = grammar_matchers.as_ref().map_or(&[][..], GrammarMatchers::masks);
        kernels.sample_rows(logits, draws, masks, &changes.all, scratch, tokens);
        complete_tokens(rows, tokens);
        if let Some(grammar_matchers) = grammar_matchers {
            for GrammarRow { row, item, .. } in rows.grammar_rows() {
                if tokens[row] != NO_TOKEN {
                    grammar_matchers.accept_token(batch, item.slot, tokens[row]);
                }
            }
        }
    }

    /// Takes the most likely token of each row.
    fn take_greedy(&mut self, rows: LogitsRows<'_>, tokens: &[u32]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        complete_tokens(rows, &mut self.tokens);
    }

    /// Writes the log-probabilities of the drawn tokens into the table, at most `max` for each.
    fn store_logprobs(
        &mut self,
        kernels: &Kernels,
        rows: LogitsRows<'_>,
        logits: &[f32],
        max: usize,
    ) {
        let SampleState { tokens, wanted, logprobs, .. } = self;
        wanted.clear();
        wanted.extend(rows.all().zip(&*tokens).map(|(found, token)| match found.drawn {
            // A draft before it was refused.
            Some(1..) if *token == NO_TOKEN => 0,
            Some(_) => rows.field(found.item.slot, Field::Logprobs),
            None => rows.field(found.item.slot, Field::PromptLogprobs),
        }));
        let logprobs = &mut logprobs[..tokens.len() * max];
        kernels.logprob_rows(logits, tokens, wanted, logprobs);
        let (table, batch) = (rows.table, rows.batch());
        for ((row, found), wanted) in rows.all().zip(logprobs.chunks(max)).zip(&*wanted) {
            let (slot, found) = (row.item.slot, &found[..*wanted as usize]);
            match row.drawn {
                Some(drafts) => {
                    let place = rows.tokens_before(slot, drafts) as usize;
                    table.set_logprobs(batch, slot, place, found);
                }
                None => table.set_prompt_logprobs(batch, slot, row.position + 1, found),
            }
        }
    }
}

/// Computes the masks of the rows whose answers follow a grammar: those of drafts as if all drafts
/// up to them were accepted.
fn compute_masks(
    grammar_matchers: &mut GrammarMatchers,
    rows: LogitsRows<'_>,
    draws: &mut [SampleDraw],
    threads: usize,
) {
    let batch = rows.batch();
    let first = |slot: usize| rows.field(slot, Field::Generated) == 0;
    let begin = rows.grammar_rows().filter(|row| first(row.item.slot));
    grammar_matchers.prepare(begin.map(|row| row.grammar), threads);
    for GrammarRow { row, item, drafts, grammar } in rows.grammar_rows() {
        let slot = item.slot;
        if drafts == 0 {
            let (arrival, is_first) = (rows.field(slot, Field::Arrival), first(slot));
            if grammar_matchers.ensure_matcher(row, batch, slot, arrival, grammar, is_first) {
                // The answer began elsewhere: replay its tokens.
                let generated = 0..rows.field(slot, Field::Generated) as usize;
                let tokens = generated.map(|place| rows.table.output(batch, slot, place));
                tokens.for_each(|token| grammar_matchers.accept_token(batch, slot, token));
            }
            if item.drafts > 0 {
                grammar_matchers.save(batch, slot);
            }
        }
        draws[row].masked = grammar_matchers.compute_mask(row, batch, slot);
        if drafts < item.drafts {
            // After a draft that the grammar excludes, masks are of no use: the token drawn from
            // this row differs from it.
            grammar_matchers.accept_token(batch, slot, rows.draft(slot, drafts));
        } else if item.drafts > 0 {
            grammar_matchers.restore(batch, slot);
        }
    }
}

/// Replaces drawn tokens that are known or refused.
fn complete_tokens(rows: LogitsRows<'_>, tokens: &mut [u32]) {
    for (token, found) in tokens.iter_mut().zip(rows.all()) {
        if !found.is_drawn() {
            // A row within a prompt, whose next token is known.
            *token = rows.table.token(rows.batch(), found.item.slot, found.position + 1);
        } else if *token == NO_TOKEN && rows.field(found.item.slot, Field::AnyLogits) > 0 {
            *token = 0;
        }
    }
    clear_refused(rows, tokens);
}

/// Replaces the tokens drawn after a refused draft with [`NO_TOKEN`].
fn clear_refused(rows: LogitsRows<'_>, tokens: &mut [u32]) {
    let mut is_refused = false;
    for (row, found) in rows.all().enumerate() {
        match found.drawn {
            None => {}
            Some(0) => is_refused = false,
            Some(drafts) => {
                is_refused |= tokens[row - 1] != rows.draft(found.item.slot, drafts - 1);
                if is_refused {
                    tokens[row] = NO_TOKEN;
                }
            }
        }
    }
}

/// Writes a token for every sampled row and lists the rows of the next step. If the program is its
/// own successor, the list is written anew, otherwise it is appended to. `draw(row, sequence)`
/// returns the token.
pub fn record(
    table: &StepTable,
    program: ProgramId,
    at: At,
    eos: &[u32],
    mut draw: impl FnMut(usize, usize) -> u32,
) {
    let batch = usize::from(at.batch);
    let next_program = table.program(program).next;
    let next_list = List { program: next_program, stream: 0 };
    let mut listed = if next_program == program { 0 } else { table.item_count(batch, next_list) };
    // Item i of the new list is written only after item i of the old one was read, since at most as
    // many items have been listed as were read.
    for (row, LogitsRow { item, .. }) in drawn_rows(table, program, at) {
        let token = draw(row, item.slot);
        if advance(table, batch, item.slot, token, eos) == EndReason::Running {
            let first = item.first + item.rows;
            let next = WorkItem { first, rows: 1, shared_row: None, ..item };
            table.set_item(batch, next_list, listed, next);
            listed += 1;
        }
    }
    table.set_item_count(batch, next_list, listed);
}

/// Returns the rows from which a token is drawn, with their indices among the rows of logits.
fn drawn_rows(
    table: &StepTable,
    program: ProgramId,
    at: At,
) -> impl Iterator<Item = (usize, LogitsRow)> + '_ {
    logits_rows(table, program, at).enumerate().filter(|(_, row)| row.is_drawn())
}

/// Writes the results of a step of a serving run, without listing the next one. `drawn(row)` is the
/// token drawn from a row of logits.
fn record_step(
    table: &StepTable,
    program: ProgramId,
    at: At,
    eos: &[u32],
    drawn: impl Fn(usize) -> u32,
) {
    let batch = usize::from(at.batch);
    let mut logits_rows = 0;
    for SequenceRows { item, .. } in sequences(table, program, at) {
        logits_rows += item.logits_rows;
        let first_row = logits_rows - item.drawn_rows();
        let accepted = accepted_drafts(table, batch, &item, |draft| drawn(first_row + draft));
        // Keys and values of the rows of refused drafts are overwritten by the next step.
        let computed = item.first + item.rows - item.drafts + accepted;
        table.set_field(batch, item.slot, Field::Computed, computed as u32);
        let (mut right, mut is_refused) = (0, false);
        for draft in 0..if item.samples { 1 + accepted } else { 0 } {
            let generated = table.field(batch, item.slot, Field::Generated) as usize;
            let drafts = table.field(batch, item.slot, Field::Drafts) as usize;
            let token = drawn(first_row + draft);
            if draft < drafts {
                is_refused = table.output(batch, item.slot, generated) != token;
                right += u32::from(!is_refused);
            }
            if advance(table, batch, item.slot, token, eos) != EndReason::Running {
                break;
            }
        }
        if right > 0 || is_refused {
            record_drafts(table, batch, item.slot, right, is_refused);
        }
        count(table, batch, item.slot, Field::Verified, item.drafts);
        count(table, batch, item.slot, Field::Accepted, accepted);
    }
}

/// Returns the number of drafts of a work item that are what was drawn before them; `drawn(n)` is
/// the token drawn after `n` drafts.
fn accepted_drafts(
    table: &StepTable,
    batch: usize,
    item: &WorkItem,
    drawn: impl Fn(usize) -> u32,
) -> usize {
    let generated = table.field(batch, item.slot, Field::Generated) as usize;
    let is_accepted =
        |draft: &usize| table.output(batch, item.slot, generated + draft) == drawn(*draft);
    (0..item.drafts).take_while(is_accepted).count()
}

/// Adds to a counter of a sequence.
fn count(table: &StepTable, batch: usize, slot: usize, field: Field, more: usize) {
    if more > 0 {
        table.set_field(batch, slot, field, table.field(batch, slot, field) + more as u32);
    }
}

/// Writes the results of a step whose tokens are all 0, in a run whose sequences have owners, and
/// lists the following iteration.
pub(crate) fn record_iteration(
    table: &StepTable,
    program: ProgramId,
    at: At,
    planner: &mut IterationPlanner,
) {
    record_step(table, program, at, &[], |_| 0);
    if at.stream + 1 == table.program(program).streams {
        planner.list(table);
    }
}

/// Adds one token to a sequence: its output, its counts, and whether the sequence has ended. The
/// order of the stores is specified in [`protocol::serving`].
fn advance(table: &StepTable, batch: usize, sequence: usize, token: u32, eos: &[u32]) -> EndReason {
    let load = |field| table.field(batch, sequence, field);
    let store = |field, value| table.set_field(batch, sequence, field, value);
    if token == NO_TOKEN {
        store(Field::Finish, EndReason::NotFinite as u32);
        return EndReason::NotFinite;
    }
    let generated = load(Field::Generated);
    table.set_output(batch, sequence, generated as usize, token);
    store(Field::Generated, generated + 1);
    let remaining = load(Field::Remaining).saturating_sub(1);
    store(Field::Remaining, remaining);
    let is_end = eos.contains(&token) && load(Field::IgnoreEos) == 0;
    let finish = if is_end || table.stop_tokens(batch, sequence).any(|stop| stop == token) {
        EndReason::Stop
    } else if remaining == 0 {
        EndReason::Length
    } else if load(Field::Cancel) != 0 {
        EndReason::Stop
    } else {
        EndReason::Running
    };
    store(Field::Finish, finish as u32);
    finish
}
