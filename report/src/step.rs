//! Timeline of a decode step, simulated or measured, and its parts.

use model::ops::Op;
use planner::search::SteadyDecode;
use program::ir::{Instruction, Moved};
use program::plan::Plan;
use program::simulate::Span;
use program::topology::LaneId;

use super::gantt::{Gantt, GanttBar, LAYERS};

/// A span with the work that it consists of.
struct StepWork<'a> {
    span: &'a Span,
    layer: Option<u16>,
    batch: u16,
    /// The operation, or the one whose operand is moved.
    op: Op,
    chunk: Option<u16>,
    computes: bool,
}

/// A span in a picture, with times relative to its window.
#[derive(Debug, Clone)]
pub struct WindowSpan {
    pub lane: String,
    pub op: String,
    pub layer: Option<u16>,
    pub batch: u16,
    pub start_ms: f64,
    pub end_ms: f64,
}

/// A decode step of a plan.
#[derive(Debug)]
pub struct Step<'a> {
    plan: &'a Plan,
    spans: Vec<&'a Span>,
    step_ns: f64,
}

/// Parts of a step's duration, which add up to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepBreakdown {
    /// Time from the first operation of the first layer to the last one of the last layer.
    pub layers_ms: f64,
    /// Time of the operations before and after the layers.
    pub rest_ms: f64,
}

impl<'a> Step<'a> {
    /// Creates the step from a simulated decode step in the steady state.
    pub fn from_steady(plan: &'a Plan, steady: &'a SteadyDecode) -> Step<'a> {
        Step { plan, spans: steady.spans().collect(), step_ns: steady.step_ns() }
    }

    /// Creates a step from the spans that ran in it.
    pub(crate) fn from_spans(plan: &'a Plan, spans: &'a [Span]) -> Step<'a> {
        let start_ns = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
        let end_ns = spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        Step { plan, spans: spans.iter().collect(), step_ns: (end_ns - start_ns) as f64 }
    }

    /// Splits the step into the time from the first operation of the first layer to the last one of
    /// the last layer, and the rest.
    pub fn breakdown(&self) -> StepBreakdown {
        let computed: Vec<StepWork<'_>> = self.work_items().filter(|work| work.computes).collect();
        let layer_work = || computed.iter().filter(|work| work.layer.is_some());
        let start = layer_work().map(|work| work.span.start_ns).min().unwrap_or(0);
        let end = layer_work().map(|work| work.span.end_ns).max().unwrap_or(0);
        let step_ms = self.step_ns / 1e6;
        let layers_ms = ((end - start) as f64 / 1e6).min(step_ms);
        StepBreakdown { layers_ms, rest_ms: step_ms - layers_ms }
    }

    /// Returns the lane that works for the largest share of the step, and that share.
    pub fn busiest(&self) -> Option<(&'a str, f64)> {
        let mut busy_ns = vec![0; self.plan.topology.lanes.len()];
        self.spans.iter().for_each(|span| busy_ns[span.lane.index()] += span.duration_ns());
        let max_ns = busy_ns.iter().copied().max().filter(|ns| *ns > 0)?;
        let lane = busy_ns.iter().position(|ns| *ns == max_ns)?;
        let share = max_ns as f64 / self.step_ns;
        Some((&self.plan.topology.lanes[lane].name, share.min(1.0)))
    }

    /// Returns the chart of two layers in the middle.
    pub fn gantt(&self) -> Gantt {
        let (start_ms, end_ms) = self.window_ms(LAYERS);
        let mut gantt =
            Gantt { lanes: Vec::new(), names: Vec::new(), bars: Vec::new(), start_ms, end_ms };
        let index_of = |names: &mut Vec<String>, name: String| match names
            .iter()
            .position(|other| *other == name)
        {
            Some(index) => index,
            None => {
                names.push(name);
                names.len() - 1
            }
        };
        let mut spans = self.window_spans(LAYERS);
        let lane = |name: &str| self.plan.topology.lanes.iter().position(|lane| lane.name == name);
        spans.sort_by_key(|span| lane(&span.lane));
        for span in spans {
            let lane = index_of(&mut gantt.lanes, span.lane);
            let name = index_of(&mut gantt.names, span.op);
            let (start_ms, end_ms) = (span.start_ms + start_ms, span.end_ms + start_ms);
            gantt.bars.push(GanttBar { lane, name, start_ms, end_ms });
        }
        gantt
    }

    /// Returns the work in the window of the given number of layers in the middle, with times
    /// relative to its start.
    pub fn window_spans(&self, layers: usize) -> Vec<WindowSpan> {
        let (start_ms, end_ms) = self.window_ms(layers);
        let config = &self.plan.config;
        let spans = self.work_items().filter_map(|work| {
            let (from, to) = (work.span.start_ns as f64 / 1e6, work.span.end_ns as f64 / 1e6);
            let name = work.op.name(config.family);
            (to > start_ms && from < end_ms && to > from).then(|| WindowSpan {
                lane: self.plan.lane_name(work.span.lane).to_owned(),
                op: work.chunk.map_or_else(|| name.to_owned(), |chunk| format!("{name}.{chunk}")),
                layer: work.layer,
                batch: work.batch,
                start_ms: from - start_ms,
                end_ms: to - start_ms,
            })
        });
        spans.collect()
    }

    /// Returns the window of the given number of layers in the middle: from the start of the first
    /// of them to the start of the layer that follows the last.
    pub fn window_ms(&self, layers: usize) -> (f64, f64) {
        let count = self.plan.config.num_layers;
        let first = count.saturating_sub(layers) / 2;
        let computed: Vec<StepWork<'_>> = self.work_items().filter(|work| work.computes).collect();
        let layer_start_ns = |layer: usize| {
            let layer_work =
                computed.iter().filter(|work| work.layer.map(usize::from) == Some(layer));
            layer_work.map(|work| work.span.start_ns).min()
        };
        let ends = computed.iter().filter(|work| work.layer.is_some());
        let last = ends.map(|work| work.span.end_ns).max().unwrap_or(0);
        let start = layer_start_ns(first).unwrap_or(0);
        let end = layer_start_ns(first + layers).unwrap_or(last);
        (start as f64 / 1e6, end as f64 / 1e6)
    }

    /// Returns the work of all lanes in the step.
    fn work_items(&self) -> impl Iterator<Item = StepWork<'_>> {
        let program = self.plan.decode();
        let instruction = move |lane: LaneId, index: u32| {
            program.lane(lane).map(|list| &list.instructions[index as usize])
        };
        self.spans.iter().filter_map(move |span| {
            let instruction = instruction(span.lane, span.instruction)?;
            let at = instruction.at()?;
            let (op, chunk) = match instruction {
                Instruction::Compute(compute) => (compute.op, compute.chunk),
                Instruction::Copy(copy) => match copy.moved {
                    Moved::Weights(op) => (op, None),
                    Moved::Cache(model::ops::Kv::K) => (Op::Scores, copy.chunk),
                    Moved::Cache(model::ops::Kv::V) => (Op::Wv, copy.chunk),
                    Moved::Value(_) | Moved::Sequences(_) | Moved::Deferred(_) => return None,
                },
                Instruction::Decompress(decompress) => (decompress.op, None),
                Instruction::Read(read) => (read.op, None),
                Instruction::Append(_) | Instruction::Wait(_) | Instruction::Signal => return None,
            };
            let computes = matches!(instruction, Instruction::Compute(_));
            let chunk = chunk.filter(|chunk| chunk.of > 1).map(|chunk| chunk.index);
            Some(StepWork { span, layer: at.layer, batch: at.batch, op, chunk, computes })
        })
    }
}
