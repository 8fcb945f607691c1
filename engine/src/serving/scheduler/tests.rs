//! Sequences whose worker is killed between any two of the sampler's stores, in the step table as
//! the sampler leaves it: the same events are reported as in an undisturbed run.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use engine_api::request::Pooling;
use engine_api::serving::{EngineState, FinishCause as Ended};
use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use planner::policy::{DefaultTiers, Policy, device_map};
use program::compile::compile;
use program::plan::RunShape;
use program::step_table::EndReason;
use program::topology::MemoryId;
use protocol::serving::clear_table;
use scheduler::StepCostCurve;
use shm::Control;

use super::*;

const EOS: u32 = 17;
const CONTEXT: u32 = 64;

pub(super) fn plan() -> Plan {
    let config = ModelConfig {
        num_layers: 1,
        hidden_size: 64,
        num_heads: 2,
        num_kv_heads: 2,
        head_dim: 32,
        ffn_size: 64,
        vocab_size: 64,
        max_positions: 64,
        eos_token_ids: vec![EOS],
        ..find_known("smollm2-135m").expect("it is known").config
    };
    let shape = RunShape {
        batches: 1,
        batch_size: 2,
        max_prompt: CONTEXT,
        shared_prompt: 0,
        max_context: CONTEXT,
        max_new: CONTEXT,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 16,
        serves: true,
        page_positions: 16,
        kv_pages: 8,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: Dtype::F32,
    };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let map = device_map(&Policy::CpuOnly, &config, true, homes);
    compile(&config, &shape, &map).expect("it compiles")
}

pub(super) fn table(plan: &Plan) -> StepTable {
    let control = Control::create(1, plan.table.words() * 4).expect("memory");
    let table = StepTable::new(control.extra(0, plan.table.words()), plan);
    clear_table(&table, plan, 0, &StepCostCurve::NONE);
    table
}

/// Tokens that the model samples.
#[derive(Debug, Clone)]
struct Script {
    /// `None` stands for logits that are not finite.
    tokens: Vec<Option<u32>>,
    max_new: u32,
    ignore_eos: bool,
}

/// The sampler, which is killed after `stores` stores.
struct Sampler<'a> {
    table: &'a StepTable,
    script: &'a Script,
    stores: usize,
}

impl Sampler<'_> {
    /// Performs a store; returns `None` if the sampler is killed before it.
    fn store(&mut self, store: impl FnOnce(&StepTable)) -> Option<()> {
        self.stores = self.stores.checked_sub(1)?;
        store(self.table);
        Some(())
    }

    fn set(&mut self, field: Field, value: u32) -> Option<()> {
        self.store(|table| table.set_field(0, 0, field, value))
    }

    /// Runs a step of the sequence in the first slot: stores the sampled token, in the order of
    /// `protocol::serving`, and the slot's state.
    fn step(&mut self) -> Option<()> {
        let get = |field| self.table.field(0, 0, field);
        let (generated, remaining) = (get(Field::Generated), get(Field::Remaining));
        if get(Field::State) == SlotState::Offered as u32 {
            self.set(Field::State, SlotState::Running as u32)?;
        }
        self.set(Field::Computed, get(Field::PromptLen) + generated)?;
        let finish = match self.script.tokens[generated as usize] {
            None => EndReason::NotFinite,
            Some(token) => {
                self.store(|table| table.set_output(0, 0, generated as usize, token))?;
                self.set(Field::Generated, generated + 1)?;
                self.set(Field::Remaining, remaining - 1)?;
                match token {
                    EOS if !self.script.ignore_eos => EndReason::Stop,
                    _ if remaining == 1 => EndReason::Length,
                    _ => EndReason::Running,
                }
            }
        };
        self.set(Field::Finish, finish as u32)?;
        if finish != EndReason::Running {
            self.set(Field::State, SlotState::Ended as u32)?;
        }
        Some(())
    }

    /// Runs steps until the sequence has ended or the sampler is killed. Returns true if the
    /// sequence has ended.
    fn run(&mut self, mut after_step: impl FnMut()) -> bool {
        loop {
            match slot_state(self.table, 0, 0) {
                SlotState::Ended | SlotState::Free => return true,
                SlotState::Offered | SlotState::Running => {}
            }
            if self.step().is_none() {
                return false;
            }
            after_step();
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct RecordingSink(pub(super) Arc<Mutex<Vec<EngineEvent>>>);

impl EventSink for RecordingSink {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        // The waiting time is irrelevant here.
        let event = match event {
            EngineEvent::Prompt { logprobs, .. } => {
                EngineEvent::Prompt { cached_tokens: 0, queue_time: Duration::ZERO, logprobs }
            }
            event => event,
        };
        self.0.lock().expect("held").push(event);
        ControlFlow::Continue(())
    }
}

fn submission(script: &Script) -> GenerationRequest {
    GenerationRequest {
        seed: 1,
        id_hash: 1,
        ignore_eos: script.ignore_eos,
        any_logits: false,
        ..GenerationRequest::greedy((0..20).collect(), script.max_new)
    }
}

/// Returns the events that are reported if the sampler is killed after `stores` stores, and true if
/// it was killed, which is not the case if it makes fewer. If `looks`, the coordinator reads the
/// table after each step, and not only at the end.
fn run_with_kill(
    plan: &Plan,
    script: &Script,
    stores: usize,
    looks: bool,
) -> (Vec<EngineEvent>, bool) {
    let (sink, mut status) = (RecordingSink::default(), EngineStatus::new(EngineState::Ready));
    let mut scheduler = Scheduler::new(plan, None);
    scheduler.submit(GenerationId(0), submission(script), Box::new(sink.clone()));
    let mut killed = false;
    let mut stores = stores;
    for _ in 0..2 {
        let table = table(plan);
        scheduler.offer(&table, plan);
        let mut sampler = Sampler { table: &table, script, stores };
        let has_ended = sampler.run(|| {
            if looks {
                scheduler.observe(&table, plan, &mut status);
            }
        });
        scheduler.observe(&table, plan, &mut status);
        if !has_ended {
            killed = true;
            scheduler.requeue_all(&table, plan, "it was killed");
        }
        if scheduler.is_empty() {
            break;
        }
        stores = usize::MAX;
    }
    assert!(scheduler.is_empty(), "{script:?}: it is answered");
    let events = sink.0.lock().expect("held").clone();
    assert_eq!(status.generated_tokens as usize, script_length(script), "{script:?}");
    (events, killed)
}

fn script_length(script: &Script) -> usize {
    let ends = |token: &&Option<u32>| **token == Some(EOS) && !script.ignore_eos;
    let before_end =
        script.tokens.iter().position(|token| ends(&token)).map_or(usize::MAX, |at| at + 1);
    let finite = script.tokens.iter().take_while(|token| token.is_some()).count();
    finite.min(before_end).min(script.max_new as usize)
}

#[test]
fn a_sampler_killed_between_any_two_stores_changes_nothing_that_is_told() {
    let plan = plan();
    let tokens: Vec<Option<u32>> = [5, 6, EOS, 8, 9, EOS, 11].map(Some).to_vec();
    let not_finite: Vec<Option<u32>> = vec![Some(5), Some(6), None];
    let scripts = [
        (1, false, tokens.clone(), Ended::Length),
        (2, false, tokens.clone(), Ended::Length),
        (3, false, tokens.clone(), Ended::Stop),
        (7, false, tokens.clone(), Ended::Stop),
        (3, true, tokens.clone(), Ended::Length),
        (7, true, tokens, Ended::Length),
        (5, false, vec![Some(EOS), Some(5), Some(6), Some(7), Some(8)], Ended::Stop),
        (5, false, not_finite, Ended::NotFinite),
    ];
    for (max_new, ignore_eos, tokens, finish) in scripts {
        let script = Script { tokens, max_new, ignore_eos };
        let (undisturbed, _) = run_with_kill(&plan, &script, usize::MAX, true);
        assert_eq!(undisturbed.last(), Some(&EngineEvent::Finished(finish)), "{script:?}");
        let mut stores = 0;
        loop {
            let mut any_killed = false;
            for looks in [false, true] {
                let (found, killed) = run_with_kill(&plan, &script, stores, looks);
                assert_eq!(found, undisturbed, "{script:?}: killed after {stores} stores");
                any_killed |= killed;
            }
            if !any_killed {
                break;
            }
            stores += 1;
        }
        assert!(stores > 5 * script_length(&script), "{stores} stores of {script:?}");
    }
}

/// Preemption of a sequence in the step in which it ends by itself.
#[test]
fn a_sequence_with_all_of_its_tokens_is_not_put_back() {
    let plan = plan();
    let script = Script { tokens: vec![Some(5), Some(6)], max_new: 2, ignore_eos: false };
    let (sink, mut status) = (RecordingSink::default(), EngineStatus::new(EngineState::Ready));
    let mut scheduler = Scheduler::new(&plan, None);
    scheduler.submit(GenerationId(0), submission(&script), Box::new(sink.clone()));
    let table = table(&plan);
    scheduler.offer(&table, &plan);
    let mut sampler = Sampler { table: &table, script: &script, stores: usize::MAX };
    sampler.step().expect("it lives");
    sampler.step().expect("it lives");
    // The sequence is cancelled before the sampler has stored the reason why it has ended.
    scheduler.running[0].is_preempted = true;
    table.set_field(0, 0, Field::Cancel, 1);
    table.set_field(0, 0, Field::Finish, EndReason::Stop as u32);
    scheduler.observe(&table, &plan, &mut status);
    assert!(scheduler.is_empty());
    assert_eq!(status.preemptions, 0);
    let events = sink.0.lock().expect("held").clone();
    assert_eq!(events.last(), Some(&EngineEvent::Finished(Ended::Length)));
}

#[test]
fn pooled_hidden_states_follow_the_prompt_and_are_those_of_all_its_rows() {
    let plan = plan();
    let script = Script { tokens: vec![Some(5)], max_new: 1, ignore_eos: true };
    let mut scheduler = Scheduler::new(&plan, None);
    let mut status = EngineStatus::new(EngineState::Ready);
    let table = table(&plan);
    for (id, pooling, expected) in [
        (0, None, None),
        (1, Some(Pooling::LastToken), Some(20.0)),
        (2, Some(Pooling::Mean), Some(1.0)),
    ] {
        let sink = RecordingSink::default();
        // The same first page, and no part of the second one.
        let prompt = (0..16).chain(20 * id as u32 + 16..20 * id as u32 + 20).collect();
        let request = GenerationRequest { prompt, pooling, ..submission(&script) };
        scheduler.submit(GenerationId(id), request, Box::new(sink.clone()));
        scheduler.offer(&table, &plan);
        // A page of the same tokens is known from the first sequence on, but its rows after the
        // final norm are not.
        let is_reused = table.field(0, 0, Field::Computed) > 0;
        assert_eq!(is_reused, pooling == Some(Pooling::LastToken));
        // The prompt has 20 tokens.
        let row = vec![20.0; table.pooled_elements()];
        table.update_pooled_row(0, 0, &row, |_, element| *element);
        let mut sampler = Sampler { table: &table, script: &script, stores: usize::MAX };
        sampler.step().expect("it lives");
        scheduler.observe(&table, &plan, &mut status);
        let events = sink.0.lock().expect("held").clone();
        let pooled = |value| EngineEvent::Pooled(vec![value; table.pooled_elements()]);
        match expected {
            None => assert!(!events.iter().any(|event| matches!(event, EngineEvent::Pooled(_)))),
            Some(value) => assert_eq!(events[1], pooled(value)),
        }
        assert!(matches!(events[0], EngineEvent::Prompt { .. }));
        assert_eq!(events.last(), Some(&EngineEvent::Finished(Ended::Length)));
    }
}
