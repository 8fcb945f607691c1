//! Background sequences next to interactive ones, in the step table as the sampler leaves it.

use engine_api::serving::{EngineState, FinishCause, Priority};
use program::step_table::EndReason;
use protocol::release::list_first;

use super::tests::{RecordingSink, plan, table};
use super::*;

/// A scheduler with a step table and a sampler that draws, at each position, a token of its own.
struct Fixture {
    plan: Plan,
    table: StepTable,
    scheduler: Scheduler,
    status: EngineStatus,
    sinks: Vec<RecordingSink>,
}

impl Fixture {
    fn new() -> Fixture {
        let plan = plan();
        let (table, scheduler) = (table(&plan), Scheduler::new(&plan, None));
        let status = EngineStatus::new(EngineState::Ready);
        Fixture { plan, table, scheduler, status, sinks: Vec::new() }
    }

    fn submit(&mut self, priority: Priority, max_new: u32) -> usize {
        let index = self.sinks.len();
        let sink = RecordingSink::default();
        // Prompts differ from the first token on, so that none waits for the pages of another.
        let prompt = (0..20).map(|position| position + 1 + index as u32).collect();
        let request = GenerationRequest { priority, ..GenerationRequest::greedy(prompt, max_new) };
        self.scheduler.submit(GenerationId(index as u64), request, Box::new(sink.clone()));
        self.sinks.push(sink);
        index
    }

    /// Runs a step: offers, lists rows, draws a token for every sequence, and observes.
    fn step(&mut self) {
        self.scheduler.offer(&self.table, &self.plan);
        list_first(&self.table);
        let table = &self.table;
        let slots: Vec<(usize, usize)> = table.slots().collect();
        for (batch, slot) in slots {
            if slot_state(table, batch, slot) != SlotState::Running {
                continue;
            }
            let get = |field| table.field(batch, slot, field);
            let (generated, prompt) = (get(Field::Generated), get(Field::PromptLen));
            table.set_field(batch, slot, Field::Computed, prompt + generated);
            table.set_output(batch, slot, generated as usize, 40 + generated % 20);
            table.set_field(batch, slot, Field::Generated, generated + 1);
            let remaining = get(Field::Remaining) - 1;
            table.set_field(batch, slot, Field::Remaining, remaining);
            if remaining == 0 {
                table.set_field(batch, slot, Field::Finish, EndReason::Length as u32);
            }
        }
        self.scheduler.observe(table, &self.plan, &mut self.status);
    }

    fn tokens(&self, index: usize) -> Vec<u32> {
        let events = self.sinks[index].0.lock().expect("held");
        let token = |event: &EngineEvent| match event {
            EngineEvent::Token { token, .. } => Some(*token),
            _ => None,
        };
        events.iter().filter_map(token).collect()
    }

    fn has_finished(&self, index: usize) -> bool {
        let events = self.sinks[index].0.lock().expect("held");
        events.last() == Some(&EngineEvent::Finished(FinishCause::Length))
    }

    /// Returns the indices of the running sequences, in ascending order.
    fn running(&self) -> Vec<u64> {
        let ids = self.scheduler.sequences_in_slots().map(|running| running.sequence.id.0);
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        ids
    }
}

fn drawn(count: u32) -> Vec<u32> {
    (0..count).map(|position| 40 + position % 20).collect()
}

#[test]
fn an_interactive_sequence_takes_the_slot_of_the_youngest_background_one() {
    let mut fixture = Fixture::new();
    let background = [0, 1, 2].map(|_| fixture.submit(Priority::Background, 12));
    fixture.step();
    fixture.step();
    assert_eq!(fixture.running(), [0, 1], "they fill the slots");
    assert_eq!((fixture.status.background_running, fixture.status.background_waiting), (2, 1));
    let interactive = fixture.submit(Priority::Interactive, 4);
    let mut steps = 0;
    while !fixture.running().contains(&(interactive as u64)) {
        fixture.step();
        steps += 1;
        assert!(steps <= 3, "it waits for a slot");
    }
    assert_eq!(fixture.running(), [0, 3], "the youngest one has left");
    let reported = fixture.tokens(background[1]);
    assert!(!reported.is_empty() && reported.len() < 12, "{reported:?}");
    assert_eq!(fixture.status.preemptions, 1);
    for _ in 0..60 {
        fixture.step();
    }
    assert!(fixture.scheduler.is_empty());
    // Nothing is reported again, and nothing is lost.
    for index in background {
        assert_eq!(fixture.tokens(index), drawn(12));
        assert!(fixture.has_finished(index));
    }
    assert_eq!(fixture.tokens(interactive), drawn(4));
}

#[test]
fn background_sequences_wait_while_interactive_ones_do() {
    let mut fixture = Fixture::new();
    let background = fixture.submit(Priority::Background, 2);
    let interactive: Vec<usize> =
        (0..4).map(|_| fixture.submit(Priority::Interactive, 5)).collect();
    fixture.step();
    assert_eq!(fixture.running(), [1, 2]);
    let status = fixture.status;
    assert_eq!((status.waiting, status.background_waiting), (3, 1));
    while !interactive.iter().all(|index| fixture.has_finished(*index)) {
        assert!(fixture.tokens(background).is_empty() || fixture.scheduler.waiting.is_empty());
        fixture.step();
    }
    for _ in 0..5 {
        fixture.step();
    }
    assert!(fixture.has_finished(background), "a free slot is enough");
    assert_eq!(fixture.status.preemptions, 0);
}

#[test]
fn the_sampler_knows_which_rows_yield() {
    let mut fixture = Fixture::new();
    fixture.submit(Priority::Background, 3);
    fixture.submit(Priority::Interactive, 3);
    fixture.step();
    let field = |slot| fixture.table.field(0, slot, Field::Background);
    assert_eq!([field(0), field(1)], [0, 1], "the interactive one is first");
}
