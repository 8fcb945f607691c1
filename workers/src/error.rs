//! Failures of a worker, as messages for the user, and the codes stored with poison.

use cuda::CudaError;
use program::compile::CompileError;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneId;
use program::validate::describe;
use protocol::messages::FailureKind;
use shm::{
    ChannelError, ControlError, MapError, NodesError, Position, SegmentError, TraceError, WaitError,
};

use crate::load::LoadError;
use crate::memory::MemoryError;

/// Code that a poisoning worker stores in the control segment together with the index of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PoisonCode {
    /// A lane waited for another lane that made no progress.
    TimedOut = 1,
    /// The worker failed before its lanes ran.
    Setup = 2,
    /// The device failed while executing a lane.
    Device = 3,
}

/// Reason why a lane stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// Another process ended the run and reports the reason.
    #[error("The run was stopped by another process.")]
    Poisoned,
    /// Another lane made no progress within the bound.
    #[error(
        "Lane {waiting} waited {limit_s} s for {awaited} in {place}, which made no progress; the \
         run was stopped."
    )]
    TimedOut {
        /// Name of the lane that gave up.
        waiting: String,
        /// Name of what it waited for.
        awaited: String,
        /// Phase, step and instruction of the waiting lane.
        place: String,
        /// Bound on lack of progress, in seconds.
        limit_s: u64,
    },
    /// The device did not finish an instruction.
    #[error(
        "Lane {lane} waited {still_s} s for the device in {place}, which made no progress; the \
         run was stopped. A kernel may hang: check dmesg."
    )]
    Stuck {
        lane: String,
        /// Phase, step and instruction.
        place: String,
        /// Time without progress, in seconds.
        still_s: u64,
    },
    /// The device or its driver failed.
    #[error("Lane {lane} failed in {place}: {source}")]
    Device {
        lane: String,
        /// Phase, step and instruction.
        place: String,
        /// Error of the driver.
        source: CudaError,
    },
    /// A storage could not be read.
    #[error("Lane {lane} could not read in {place}: {reason}")]
    Storage {
        lane: String,
        /// Phase, step and instruction.
        place: String,
        /// Error of the system.
        reason: String,
    },
    /// A storage does not answer.
    #[error("{reason}.")]
    Silent {
        /// Description that includes the time waited.
        reason: String,
    },
}

/// Returns a description of a lane's position, such as `decode step 3, fc0, layer 4, batch 1`.
pub fn describe_position(plan: &Plan, lane: LaneId, at: Position) -> String {
    let Position { program, step, instruction } = at;
    let Some(program) = plan.programs.get(program as usize) else { return String::new() };
    let when = match program.shape.rows.phase() {
        Phase::Prefill => program.name().to_owned(),
        Phase::Decode => format!("{} step {step}", program.name()),
    };
    let list = program.lane(lane).map_or(&[][..], |list| &list.instructions);
    match list.get(instruction as usize) {
        Some(found) => format!("{when}, {}", describe(found, plan.config.family, &plan.topology)),
        None => when,
    }
}

impl LaneError {
    pub(crate) fn from_wait(
        error: &WaitError,
        waiting: &str,
        awaited: &str,
        place: impl FnOnce() -> String,
        limit_s: u64,
    ) -> LaneError {
        match error {
            WaitError::Poisoned(_) => LaneError::Poisoned,
            WaitError::TimedOut { .. } => {
                let (waiting, awaited) = (waiting.to_owned(), awaited.to_owned());
                LaneError::TimedOut { waiting, awaited, place: place(), limit_s }
            }
        }
    }
}

/// Reason why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The coordinator ended, or sent messages that cannot be decoded.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// An unexpected message.
    #[error(
        "The coordinator sent {found} where {expected} was expected; both must come from the same \
         build."
    )]
    Unexpected {
        /// Kind of the message received.
        found: &'static str,
        /// Kind of message that the handshake expects.
        expected: &'static str,
    },
    /// A message that could not be read or written.
    #[error(
        "A message between coordinator and worker is unreadable ({0}); both must come from the \
         same build."
    )]
    Message(#[from] postcard::Error),
    /// The control segment could not be attached.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// Shared memory could not be mapped.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// Private memory of this worker could not be mapped.
    #[error("{0}")]
    Map(#[from] MapError),
    /// Memory could not be bound to its NUMA nodes.
    #[error("{0}")]
    Nodes(#[from] NodesError),
    /// The trace rings could not be opened.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// A staging that cannot be read, or contains other weights.
    #[error("{reason}")]
    Staging {
        /// Description of the failure.
        reason: String,
    },
    /// A plan whose buffers do not fit the memory.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The weights could not be loaded.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// The kernel variant is not supported by this CPU.
    #[error("{0}")]
    Variant(#[from] kernels::VariantError),
    /// A grammar could not be compiled.
    #[error("A form of answers cannot be followed: {0}.")]
    Grammar(#[from] grammar::GrammarError),
    /// The system could not start a thread.
    #[error(
        "The system refused to start a thread of the worker: {0}. Lower the number of threads or \
         raise the limit (`ulimit -u`)."
    )]
    Thread(#[source] std::io::Error),
    /// The text by which positions are selected could not be computed.
    #[error("The text of --kv-select-text could not be computed: {0}.")]
    Calibration(#[source] CompileError),
    /// The parent-death signal could not be armed.
    #[error("The worker could not arrange to end with the coordinator: {0}.")]
    Parent(#[source] std::io::Error),
    /// The coordinator ended before the parent-death signal was armed.
    #[error("The coordinator has ended.")]
    Orphaned,
    /// The CUDA device failed.
    #[error("{0}")]
    Device(#[from] CudaError),
    /// A model beyond the limits of the kernels for CUDA devices.
    #[error(
        "This model has {value} {what} but the kernels for CUDA devices support at most {most}: \
         run with --device none."
    )]
    Unsupported {
        /// Quantity that exceeds its limit.
        what: &'static str,
        /// Value of the quantity.
        value: usize,
        /// Its limit.
        most: u32,
    },
    /// A linear in pieces, which the kernels for CUDA devices do not support.
    #[error(
        "The placement splits {op} by its output rows, which the kernels for CUDA devices do not \
         support: choose another --split-chunks, or --device emulated."
    )]
    PieceOnDevice {
        /// Name of the operation.
        op: &'static str,
    },
    /// An operation that is not among the kernels for CUDA devices.
    #[error(
        "Layers of this model have an operation ({op}) that the kernels for CUDA devices do not \
         support: run with --device none."
    )]
    NotOnDevice {
        /// Name of the operation.
        op: &'static str,
    },
    /// A lane failed.
    #[error("{0}")]
    Lane(#[from] LaneError),
}

impl WorkerError {
    /// Returns the category of the failure.
    pub fn kind(&self) -> FailureKind {
        let of_device = match self {
            WorkerError::Device(error) | WorkerError::Load(LoadError::Device(error)) => Some(error),
            WorkerError::Lane(LaneError::Device { source, .. }) => Some(source),
            WorkerError::Staging { .. }
            | WorkerError::Lane(LaneError::Storage { .. } | LaneError::Silent { .. }) => {
                return FailureKind::Storage;
            }
            WorkerError::Lane(LaneError::Stuck { .. } | LaneError::TimedOut { .. }) => {
                return FailureKind::Stuck;
            }
            _ => None,
        };
        match of_device {
            Some(error) if error.is_about_memory() => FailureKind::DeviceMemory,
            _ => FailureKind::Other,
        }
    }
}
