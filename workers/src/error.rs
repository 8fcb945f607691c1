//! Why a worker cannot go on, in sentences for the user, and the codes that poison carries.

use cuda::CudaError;
use program::compile::CompileError;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneId;
use program::validate::describe;
use serde::{Deserialize, Serialize};
use shm::{
    ChannelError, ControlError, MapError, NodesError, Position, SegmentError, TraceError, WaitError,
};

use crate::load::LoadError;
use crate::memory::MemoryError;

/// What a poisoning worker leaves in the control segment beside the index of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PoisonCode {
    /// A lane waited for another that did not come.
    TimedOut = 1,
    /// The worker failed before its lanes ran.
    Setup = 2,
    /// The device failed under a lane.
    Device = 3,
}

/// What a failure is about, where somebody can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Too little memory on the device.
    DeviceMemory,
    /// A storage cannot be read, or not any more; others may hold the same.
    Storage,
    /// No lane moved for too long.
    Stuck,
    Other,
}

/// Why a lane stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// Another process ended the run; it says why.
    #[error("The run was ended by another process.")]
    Poisoned,
    /// Another lane made no progress within the bound.
    #[error(
        "Lane {waiting} waited {limit_s} s for {awaited} in {place}, which did not move; the run \
         was ended."
    )]
    TimedOut {
        /// Name of the lane that gave up.
        waiting: String,
        /// What it waited for.
        awaited: String,
        /// Phase, step and instruction of the waiting lane.
        place: String,
        /// The bound.
        limit_s: u64,
    },
    /// The device did not get done with an instruction.
    #[error(
        "Lane {lane} waited {still_s} s for the device in {place}, and nothing moved; the run was \
         ended. A kernel may hang: look at dmesg."
    )]
    Stuck {
        /// Name of the lane.
        lane: String,
        /// Phase, step and instruction.
        place: String,
        /// For how long.
        still_s: u64,
    },
    /// The device or its driver failed.
    #[error("Lane {lane} failed in {place}: {source}")]
    Device {
        /// Name of the lane.
        lane: String,
        /// Phase, step and instruction.
        place: String,
        /// What the driver said.
        source: CudaError,
    },
    /// A storage could not be read.
    #[error("Lane {lane} could not read in {place}: {reason}")]
    Storage {
        /// Name of the lane.
        lane: String,
        /// Phase, step and instruction.
        place: String,
        /// What the system said.
        reason: String,
    },
    /// A storage does not answer.
    #[error("{reason}.")]
    Silent {
        /// For how long.
        reason: String,
    },
}

/// Where a lane is, in words: `decode step 3, fc0, layer 4, batch 1`.
pub fn place(plan: &Plan, lane: LaneId, at: Position) -> String {
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
        (waiting, awaited): (&str, &str),
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

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The coordinator is gone, or spoke another language.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// A message that does not belong here.
    #[error(
        "The coordinator sent {found} where {expected} was expected; both must come from the same \
         build."
    )]
    Unexpected {
        /// What came.
        found: &'static str,
        /// What the handshake asks for.
        expected: &'static str,
    },
    /// A message that could not be read or written.
    #[error(
        "A message between coordinator and worker is unreadable ({0}); both must come from the \
         same build."
    )]
    Message(#[from] postcard::Error),
    /// The control segment.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// Memory that another process has too.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// Memory of this worker alone.
    #[error("{0}")]
    Map(#[from] MapError),
    /// NUMA nodes on which memory should lie.
    #[error("{0}")]
    Nodes(#[from] NodesError),
    /// The trace rings.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// A staging that cannot be read, or holds other weights.
    #[error("{reason}")]
    Staging {
        /// A sentence.
        reason: String,
    },
    /// A plan whose buffers do not fit the memory.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The weights.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// No such instruction set here.
    #[error("{0}")]
    Variant(#[from] kernels::VariantError),
    /// A form of answers.
    #[error("A form of answers cannot be followed: {0}.")]
    Grammar(#[from] grammar::GrammarError),
    /// The system refused a thread.
    #[error(
        "The system refused to start a thread of the worker: {0}. Lower the number of threads or \
         raise the limit (`ulimit -u`)."
    )]
    Thread(#[source] std::io::Error),
    /// The text by which positions are selected could not be computed.
    #[error("The text of --kv-select-text could not be computed: {0}.")]
    Calibration(#[source] CompileError),
    /// The parent-death signal could not be armed.
    #[error("The worker could not ask to end with the coordinator: {0}.")]
    Parent(#[source] std::io::Error),
    /// The coordinator ended before the worker was armed to follow it.
    #[error("The coordinator has ended.")]
    Orphaned,
    /// The CUDA device.
    #[error("{0}")]
    Device(#[from] CudaError),
    /// A model that is not for the kernels of a CUDA device.
    #[error(
        "This model has {value} {what} and the kernels for CUDA devices take at most {most}: run \
         with --device none."
    )]
    Unsupported {
        /// What there are too many of.
        what: &'static str,
        /// How many.
        value: usize,
        /// The most.
        most: u32,
    },
    /// A piece of a linear, which the kernels of a CUDA device do not compute.
    #[error(
        "The placement splits {op} by its output rows, which the kernels for CUDA devices do not \
         compute: choose another --split-chunks, or --device emulated."
    )]
    PieceOnDevice {
        /// Its name.
        op: &'static str,
    },
    /// An operation that is not among the kernels of a CUDA device.
    #[error(
        "Layers of this model keep a state or have a gate ({op}), which the kernels for CUDA \
         devices do not compute: run with --device none."
    )]
    NotOnDevice {
        /// Its name.
        op: &'static str,
    },
    /// A lane.
    #[error("{0}")]
    Lane(#[from] LaneError),
}

impl WorkerError {
    /// What it is about.
    pub fn kind(&self) -> FailureKind {
        let of_device = match self {
            WorkerError::Device(error) => Some(error),
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
