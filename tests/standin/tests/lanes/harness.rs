//! Runs the workers as processes with the stand-in, driven like the coordinator drives them.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use model::config::ModelConfig;
use model::source::dummy::DummySource;
use model::source::{SourceError, WeightSource};
use program::plan::Plan;
use program::topology::{SegmentId, WorkerId};
use protocol::group::{BATCH_STAGES, list_work};
use protocol::messages::{
    CudaConfig, FromWorker, SegmentNodes, ToWorker, WeightsOrigin, WorkerSetup,
};
use protocol::prefix_sharing::share_prefixes;
use protocol::release::{list_first, stages};
use protocol::serving::{OfferedSequence, clear_table, offer_sequence};
use protocol::table::{HybridPolicy, StepTable};
use scheduler::StepCostCurve;
use scheduler::hybrid::IterationLimits;
use shm::{Channel, Control, Segment, TraceSegment};
use workers::testing::{Outcome, PlacedRequest, fill};

pub(crate) const CHANNEL_VARIABLE: &str = "TANDEM_TEST_CHANNEL";
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const SEED: u64 = 3;
const TRACE_CAPACITY: usize = 4096;

pub(crate) fn open_dummy(
    from: &WeightsOrigin,
    config: &ModelConfig,
) -> Result<Box<dyn WeightSource>, SourceError> {
    match from {
        WeightsOrigin::Dummy { seed } => Ok(Box::new(DummySource::new(config.clone(), *seed))),
        other => Err(SourceError::Format {
            path: format!("{other:?}"),
            reason: "this test has dummy weights only".to_owned(),
        }),
    }
}

/// Returns a folder with the stand-in under the names of the driver and of cuBLASLt.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let program = std::env::current_exe().expect("a test has a path");
        let library = program.with_file_name("libcuda_standin.so");
        assert!(library.is_file(), "{} is built beside the test", library.display());
        let name = format!("lanes{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        for name in ["libcuda.so", "libcuda.so.1", "libcublasLt.so.12"] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&library, link).expect("a link can be made");
        }
        folder
    })
}

/// Deviations of a run from a plain one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting<'a> {
    /// Settings of the stand-in, for the workers that use it.
    pub(crate) variables: Vec<(&'a str, String)>,
    pub(crate) copies_in_gpu_worker: bool,
    pub(crate) waits_on_host: bool,
    /// Computes prefill's linears through cuBLASLt.
    pub(crate) blas: bool,
}

struct Worker {
    id: WorkerId,
    process: Child,
    channel: Channel,
}

impl Worker {
    fn start(id: WorkerId, setting: &Setting<'_>) -> Worker {
        let (ours, theirs) = Channel::pair().expect("a channel");
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        let number = theirs.hand_to(&mut command);
        command
            .args(["worker_child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHANNEL_VARIABLE, number.to_string())
            .env("LD_LIBRARY_PATH", folder())
            .envs(workers::device::ENVIRONMENT)
            .envs(setting.variables.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Worker { id, process: command.spawn().expect("a process"), channel: ours }
    }

    fn send(&self, message: &ToWorker, descriptors: &[BorrowedFd<'_>]) -> Result<(), String> {
        let bytes = postcard::to_stdvec(message).expect("a message");
        self.channel.send_large(&bytes, descriptors).map_err(|error| error.to_string())
    }

    /// Receives the next message; a failure of the worker is returned as an error.
    fn receive(&self) -> Result<FromWorker, String> {
        let gone = |error: shm::ChannelError| format!("{}: {error}", self.id.0);
        let (bytes, _): (Vec<u8>, Vec<OwnedFd>) = self.channel.recv(LIMIT).map_err(gone)?;
        match postcard::from_bytes(&bytes).expect("a message") {
            FromWorker::Failed { message, .. } => Err(message),
            message => Ok(message),
        }
    }

    /// Returns the worker's last error message, if it failed.
    fn failure(&self) -> Option<String> {
        while let Ok((bytes, _)) = self.channel.recv(Duration::from_millis(200)) {
            if let Ok(FromWorker::Failed { message, .. }) = postcard::from_bytes(&bytes) {
                return Some(message);
            }
        }
        None
    }

    fn ends_well(&mut self) -> bool {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("worker {} does not end", self.id.0);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Running workers of one plan.
pub(crate) struct Workers {
    plan: Plan,
    control: Control,
    workers: Vec<Worker>,
    /// Keeps the rings mapped as long as the lanes run.
    _trace: TraceSegment,
}

impl Workers {
    /// Starts the workers of a plan that uses a device; all are ready when this returns.
    ///
    /// # Errors
    /// Returns the message of the worker that could not start.
    pub(crate) fn start(plan: &Plan, setting: &Setting<'_>) -> Result<Workers, String> {
        let lanes = plan.lanes();
        let control = Control::create(lanes.len() as u32, plan.table.words() * 4).expect("control");
        let trace = TraceSegment::create(plan.topology.lanes.len(), TRACE_CAPACITY).expect("trace");
        let host = [SegmentId::HOST_WEIGHTS, SegmentId::HOST_KV, SegmentId::HOST_ACTIVATIONS];
        let segments = host.map(|memory| {
            let size_bytes = plan.segment_bytes(memory).max(4096) as usize;
            (memory, Segment::create("test", size_bytes).expect("a segment"))
        });
        let copies_in_gpu_worker = setting.copies_in_gpu_worker;
        let copier = if copies_in_gpu_worker { WorkerId::GPU } else { WorkerId::TRANSFER };
        let mut workers = Vec::new();
        for id in plan.topology.worker_ids() {
            if id == WorkerId::TRANSFER && copier != id {
                continue;
            }
            let mapped: Vec<_> = segments
                .iter()
                .filter(|(memory, _)| plan.topology.maps(id, memory.memory) || id == copier)
                .collect();
            let setup = WorkerSetup {
                worker: id,
                plan: plan.clone(),
                memories: mapped.iter().map(|(m, s)| (*m, s.size_bytes() as u64)).collect(),
                private: Vec::new(),
                nodes: SegmentNodes::default(),
                select_text: Vec::new(),
                control_bytes: control.segment().size_bytes() as u64,
                trace_capacity: TRACE_CAPACITY as u32,
                threads: 1,
                cpus: Vec::new(),
                spin_us: 0,
                weights: WeightsOrigin::Dummy { seed: SEED },
                link_bytes_per_s: None,
                wait_timeout_ms: 30_000,
                start_timeout_ms: None,
                durations: None,
                cuda: Some(CudaConfig {
                    index: 0,
                    copies_in_gpu_worker,
                    waits_on_host: setting.waits_on_host,
                    blas: setting.blas,
                }),
                grammars: None,
                staged: None,
                prompts: None,
                draft_model: None,
            };
            let mut descriptors = vec![control.segment().fd(), trace.segment().fd()];
            descriptors.extend(mapped.iter().map(|(_, segment)| segment.fd()));
            let worker = Worker::start(id, setting);
            worker.send(&ToWorker::Setup(Box::new(setup)), &descriptors)?;
            workers.push(worker);
        }
        let started = Workers { plan: plan.clone(), control, workers, _trace: trace };
        // The first failing worker may take another with it, whose channel is then closed: collect
        // the messages of all.
        started.make_ready(copier).map_err(|error| format!("{}{error}", started.failures()))?;
        Ok(started)
    }

    fn worker(&self, id: WorkerId) -> &Worker {
        self.workers.iter().find(|worker| worker.id == id).expect("it was started")
    }

    fn make_ready(&self, copier: WorkerId) -> Result<(), String> {
        if copier == WorkerId::TRANSFER {
            let exported = self.worker(WorkerId::GPU).receive()?;
            let FromWorker::ExportedDevice { handle: Ok(handle), size_bytes } = exported else {
                return Err(format!("{exported:?}"));
            };
            self.worker(copier).send(&ToWorker::AttachDevice { handle, size_bytes }, &[])?;
            let attached = self.worker(copier).receive()?;
            if attached != (FromWorker::AttachedDevice { refusal: None }) {
                return Err(format!("{attached:?}"));
            }
        }
        let expect = |role, expected: FromWorker| match self.worker(role).receive()? {
            found if found == expected => Ok(()),
            found => Err(format!("{found:?}")),
        };
        expect(WorkerId::CPU, FromWorker::Loaded)?;
        self.worker(copier).send(&ToWorker::Load, &[])?;
        expect(copier, FromWorker::Loaded)?;
        for worker in &self.workers {
            let ready = worker.receive()?;
            assert!(matches!(ready, FromWorker::Ready { .. }), "{ready:?}");
        }
        Ok(())
    }

    /// Returns the messages of the workers that failed.
    fn failures(&self) -> String {
        let said = self.workers.iter().filter_map(Worker::failure);
        said.map(|sentence| sentence + " ").collect()
    }

    /// Runs one group.
    ///
    /// # Errors
    /// Returns the messages of the workers that failed.
    pub(crate) fn run_group(&self, group: &[PlacedRequest]) -> Result<Vec<Outcome>, String> {
        let Workers { plan, control, .. } = self;
        let table = StepTable::new(control.extra(0, plan.table.words()), plan);
        fill(&table, plan, group);
        share_prefixes(&table, 1);
        let target = control.drained().value() + 1;
        control.release(&BATCH_STAGES, list_work(&table));
        if let Err(error) = control.drained().wait_until(target, control.poison(), LIMIT) {
            return Err(format!("{}{error}", self.failures()));
        }
        Ok(group.iter().map(|placed| Outcome::read(&table, placed)).collect())
    }

    /// Serves sequences that all arrive at once, while the number of caches for which the device
    /// has capacity keeps changing. Returns the outcome of each sequence, and the number of times
    /// that each program ran.
    ///
    /// # Errors
    /// Returns the messages of the workers that failed.
    pub(crate) fn serve(
        &self,
        group: &[PlacedRequest],
        deciding: &HybridPolicy,
    ) -> Result<(Vec<Outcome>, [u32; 5]), String> {
        let Workers { plan, control, .. } = self;
        let table = StepTable::new(control.extra(0, plan.table.words()), plan);
        clear_table(&table, plan, u32::MAX, &StepCostCurve::NONE);
        table.set_hybrid_policy(deciding);
        for (placed, arrival) in group.iter().zip(0..) {
            let capacity = plan.shape.max_context;
            let (generated, computed) = (&[][..], 0);
            offer_sequence(
                &table,
                &OfferedSequence { placed, generated, computed, capacity, arrival },
            );
        }
        assert!(list_first(&table), "there is something to compute");
        let target = control.drained().value() + 1;
        control.release(&stages(&table), u32::MAX - 1);
        let until = Instant::now() + LIMIT;
        let mut device_pages = 0;
        let slice = Duration::from_micros(500);
        while let Err(error) = control.drained().wait_until(target, control.poison(), slice) {
            if control.poison().cause().is_some() || Instant::now() > until {
                return Err(format!("{}{error}", self.failures()));
            }
            device_pages = (device_pages + 1) % (u32::from(plan.shape.device_slots) + 1);
            let limits = IterationLimits { device_pages, ..deciding.limits };
            table.set_hybrid_policy(&HybridPolicy { limits, ..*deciding });
        }
        let outcomes = group.iter().map(|placed| Outcome::read(&table, placed)).collect();
        Ok((outcomes, table.program_counts()))
    }

    /// Ends the workers; returns the number of allocations of each since it was ready.
    ///
    /// # Errors
    /// Fails if a worker did not end normally.
    pub(crate) fn finish(mut self) -> Result<Vec<(WorkerId, u64)>, String> {
        self.control.release(&[], 0);
        let mut allocations = Vec::new();
        for worker in &mut self.workers {
            if !worker.ends_well() {
                return Err(format!("worker {} did not end well", worker.id.0));
            }
            let words = self.control.worker(worker.id.index());
            allocations.push((worker.id, words.allocations_seen()));
        }
        Ok(allocations)
    }
}
