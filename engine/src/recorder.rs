//! Measurements of a run while its workers compute: times, token counts, traces of lanes, and
//! memory.

use std::io;

use program::plan::Plan;
use program::simulate::Span;
use program::topology::{LaneId, WorkerId};
use shm::{SharedU32s, TraceReader};

use crate::RunStats;
use crate::launch::{LaunchError, LaunchOptions, LaunchedWorkers};
use crate::memory::MemorySampler;
use crate::routing_stats::RoutingStats;
use crate::sparse_attention_stats::SparseAttentionStats;
use crate::supervisor::Supervisor;
use crate::trace_file::TraceFile;
use crate::trace_stats::{DecodePrediction, SpanCollector, predict, simulator_spans};

/// Reader of a lane's trace.
#[derive(Debug)]
struct LaneReader {
    lane: LaneId,
    reader: TraceReader,
    /// Number of records that were lost before recording began.
    lost_before: u64,
}

/// Measurements of a run, and the readers of the traces from which they are made.
#[derive(Debug)]
pub(crate) struct RunRecorder {
    pub(crate) stats: RunStats,
    readers: Vec<LaneReader>,
    collector: SpanCollector,
    trace_file: Option<TraceFile>,
    memory: MemorySampler,
}

impl RunRecorder {
    /// Starts to record a run whose workers have loaded the model. Its spans also go to
    /// `trace_file`.
    ///
    /// # Errors
    /// A trace that already has a reader.
    pub(crate) fn new(
        plan: &Plan,
        options: &LaunchOptions,
        launched: &LaunchedWorkers,
        trace_file: Option<TraceFile>,
    ) -> Result<RunRecorder, LaunchError> {
        let mut recorder = RunRecorder {
            stats: RunStats {
                staged_paths: options.staged.iter().map(|staged| staged.path.clone()).collect(),
                ..RunStats::default()
            },
            readers: Vec::new(),
            collector: SpanCollector::default(),
            trace_file,
            memory: MemorySampler::new(),
        };
        recorder.attach(plan, launched)?;
        Ok(recorder)
    }

    /// Records workers that are in no group, from their next group on.
    ///
    /// # Errors
    /// A trace that already has a reader.
    pub(crate) fn attach(
        &mut self,
        plan: &Plan,
        launched: &LaunchedWorkers,
    ) -> Result<(), LaunchError> {
        self.count_lost_records();
        let skip = |(lane, mut reader): (LaneId, TraceReader)| {
            reader.drain(|_| {});
            let lost_before = reader.lost();
            LaneReader { lane, reader, lost_before }
        };
        self.readers = launched.trace_readers(plan)?.into_iter().map(skip).collect();
        self.stats.kernel_variants = launched.kernel_variants(plan);
        self.stats.device.clone_from(&launched.device);
        Ok(())
    }

    fn count_lost_records(&mut self) {
        let lost = |one: &LaneReader| one.reader.lost() - one.lost_before;
        let lost: u64 = self.readers.iter().map(lost).sum();
        self.collector.totals.lost_spans += lost;
    }

    /// Samples the processes' memory from time to time.
    pub(crate) fn sample_memory(&mut self, supervisor: &Supervisor) {
        self.memory.sample_if_due(supervisor);
    }

    /// Discards the spans of the previous group.
    pub(crate) fn begin_group(&mut self) {
        self.collector.clear();
    }

    /// Reads the records that the lanes have written.
    pub(crate) fn drain(&mut self) {
        for LaneReader { lane, reader, .. } in &mut self.readers {
            reader.drain(|record| self.collector.push(*lane, record));
        }
    }

    /// Adds the spans of a group to the totals and to the trace file.
    ///
    /// # Errors
    /// A trace file that could not be written.
    pub(crate) fn end_group(&mut self, plan: &Plan) -> io::Result<()> {
        self.collector.end_group(plan);
        match &mut self.trace_file {
            Some(file) => file.add(plan, &self.collector.spans),
            None => Ok(()),
        }
    }

    /// Does the same as [`RunRecorder::end_group`] for the steps before `step` of a group that
    /// continues, and discards their spans.
    ///
    /// # Errors
    /// A trace file that could not be written.
    pub(crate) fn end_steps_before(&mut self, plan: &Plan, step: u32) -> io::Result<()> {
        let later = self.collector.split_off(step);
        let ended = self.end_group(plan);
        self.collector.spans = later;
        ended
    }

    /// Returns the spans of the group.
    pub(crate) fn spans(&self) -> Vec<Span> {
        simulator_spans(self.collector.spans.iter()).collect()
    }

    /// Predicts the second half of the group's decode steps from the first half.
    pub(crate) fn predict(&self, plan: &Plan, wake_ns: f64) -> Option<DecodePrediction> {
        predict(plan, &self.collector.spans, wake_ns)
    }

    /// Returns the measurements of workers that are about to exit: samples their memory, lets them
    /// exit, and reads what they publish on the way out. They are in a group if `is_busy`.
    ///
    /// # Errors
    /// A trace file that could not be completed.
    pub(crate) fn finish(
        mut self,
        plan: &Plan,
        launched: &mut LaunchedWorkers,
        table: &SharedU32s,
        is_busy: bool,
    ) -> io::Result<RunStats> {
        self.memory.peak.sample(&launched.supervisor);
        self.stats.peak_memory = std::mem::take(&mut self.memory.peak);
        launched.shut_down(is_busy);
        let allocations = |id: WorkerId| {
            let worker = plan.topology.worker(id).name.clone();
            (worker, launched.control.worker(id.index()).allocations_seen())
        };
        self.stats.allocations = plan.topology.worker_ids().map(allocations).collect();
        self.stats.routing = RoutingStats::read(plan, table);
        self.stats.sparse_attention = SparseAttentionStats::read(&plan.table, table);
        if let Some(file) = self.trace_file.take() {
            file.finish()?;
        }
        self.count_lost_records();
        self.stats.totals = self.collector.totals;
        Ok(self.stats)
    }
}
