//! Trace files (`--trace t.json`) in the Trace Event format, which Perfetto and Chrome open: one
//! track per lane, one span per instruction.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use program::plan::Plan;
use program::validate::describe;
use serde_json::json;

use crate::trace_stats::{TraceSpan, instruction, program_of};

/// Writer of a trace file. Spans are written as they are added; the file is complete only after
/// [`TraceFile::finish`].
#[derive(Debug)]
pub struct TraceFile {
    out: BufWriter<File>,
    start_ns: Option<u64>,
}

impl TraceFile {
    /// Creates the file and names the tracks.
    ///
    /// # Errors
    /// A file that could not be created or written.
    pub fn create(path: &Path, plan: &Plan) -> std::io::Result<TraceFile> {
        let mut out = BufWriter::new(File::create(path)?);
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
        let mut first = true;
        for id in plan.lanes() {
            let lane = plan.topology.lane(id);
            let worker = &plan.topology.worker(lane.worker).name;
            let (pid, tid) = (lane.worker.index() + 1, id.index() + 1);
            for (kind, id, name) in [("process_name", 0, worker), ("thread_name", tid, &lane.name)]
            {
                let args = json!({"name": name});
                let event = json!({"ph": "M", "name": kind, "pid": pid, "tid": id, "args": args});
                out.write_all(if first { b"" } else { b",\n" })?;
                first = false;
                serde_json::to_writer(&mut out, &event)?;
            }
        }
        Ok(TraceFile { out, start_ns: None })
    }

    /// Adds the spans of a group.
    ///
    /// # Errors
    /// A file that could not be written.
    pub fn add(&mut self, plan: &Plan, spans: &[TraceSpan]) -> std::io::Result<()> {
        let Some(earliest) = spans.iter().map(|span| span.record.start_ns).min() else {
            return Ok(());
        };
        let start_ns = *self.start_ns.get_or_insert(earliest);
        for span in spans {
            let Some(instruction) = instruction(plan, *span) else { continue };
            let worker = plan.topology.lane(span.lane).worker;
            let micros = |ns: u64| ns as f64 / 1000.0;
            let record = &span.record;
            let event = json!({
                "ph": "X",
                "name": describe(instruction, plan.config.family, &plan.topology),
                "cat": plan.program(program_of(record)).name(),
                "pid": worker.index() + 1,
                "tid": span.lane.index() + 1,
                "ts": micros(record.start_ns.saturating_sub(start_ns)),
                "dur": micros(record.end_ns - record.start_ns),
                "args": {"step": record.step, "rows": record.rows, "bytes": record.bytes},
            });
            self.out.write_all(b",\n")?;
            serde_json::to_writer(&mut self.out, &event)?;
        }
        Ok(())
    }

    /// Completes and closes the file.
    ///
    /// # Errors
    /// A file that could not be written.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}
