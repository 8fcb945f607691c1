//! What coordinator and workers say to each other outside the step path, over one channel each.
//!
//! Order: `Setup` to every worker; `Exported` from the gpu worker, forwarded as `Attach` to the
//! transfer worker, and to storage workers that read to the device; `Loaded` from the cpu worker
//! once host weights are in place, and from each storage worker once its staging is open; then
//! `Load` to the transfer worker, which answers `Loaded`; `Ready` from all. From then on groups are
//! released through the control segment, and the only further messages are `Failed` and, in a run
//! that serves, those about forms of answers and about beginnings of prompts that are stored.

use std::path::PathBuf;

use grammar::{Form, Grammars};
use program::plan::Plan;
use program::topology::{Holds, LaneId, SegmentId, WorkerId};
use prompt_store::{Name, Origin};
use serde::{Deserialize, Serialize};

use crate::error::FailureKind;

/// Where workers that load weights read them from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightsFrom {
    /// A directory with safetensors files.
    Safetensors {
        directory: String,
    },
    Gguf {
        path: String,
    },
    Dummy {
        seed: u64,
    },
    /// The same, and routers pick experts at random, whatever their rows hold: for measurements,
    /// whose rows are alike or hold what lay in memory.
    EvenlyRouted {
        seed: u64,
    },
}

/// A CUDA device in the place of the emulated one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaUse {
    /// Its number.
    pub index: u32,
    /// The gpu worker runs the transfer worker's lanes too: this system does not let one process
    /// open another's device memory.
    pub copies_in_gpu_worker: bool,
    /// Lanes wait for each other on the host, though the device's streams could.
    pub waits_on_host: bool,
    /// cuBLASLt is installed and wanted; the arena has room for it.
    pub blas: bool,
}

/// Where a storage worker finds its weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedAt {
    /// The folder of the staging.
    pub path: String,
    /// Threads read, though io_uring may be there.
    pub uses_threads: bool,
    /// A drive that has not answered for so long is given up.
    pub silence_ms: u64,
    /// Faults and a rate, as `staging::Faults` reads them; empty: none.
    pub faults: String,
}

/// Where beginnings of prompts are stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptsAt {
    pub directory: PathBuf,
    /// Most bytes of all that is stored there; `None`: as much as the drive takes.
    pub most_bytes: Option<u64>,
    /// Prompts of fewer tokens are not stored.
    pub least_tokens: u32,
    pub origin: Origin,
}

/// A page of the caches, and what it is where it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPage {
    /// Of its batch's caches.
    pub page: u32,
    pub name: Name,
    /// Of the page before it.
    pub before: Name,
    /// Pages before it.
    pub index: u32,
    pub tokens: Vec<u32>,
}

/// NUMA nodes on which the host's memory lies; none: where the system puts it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryNodes {
    pub weights: Vec<u16>,
    pub kv: Vec<u16>,
}

impl MemoryNodes {
    /// Those of a segment.
    pub fn of(&self, segment: SegmentId) -> &[u16] {
        match segment.holds {
            Holds::Weights => &self.weights,
            Holds::Kv => &self.kv,
            Holds::Activations | Holds::Arena | Holds::Table => &[],
        }
    }
}

/// First message; its descriptors are control, trace, then those of `memories`, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Which of the plan's workers this is.
    pub worker: WorkerId,
    pub plan: Plan,
    /// Segments whose descriptors come along, with their sizes in bytes.
    pub memories: Vec<(SegmentId, u64)>,
    /// What no other worker uses: the worker maps it by itself, with their sizes in bytes.
    pub private: Vec<(SegmentId, u64)>,
    /// Where all of these lie.
    pub nodes: MemoryNodes,
    pub control_bytes: u64,
    /// Records per trace ring; each lane of the topology has one.
    pub trace_capacity: u32,
    /// Compute threads of this worker.
    pub threads: u16,
    /// CPUs of the compute threads, in the system's numbering; empty: wherever the system puts
    /// them.
    pub cpus: Vec<u32>,
    /// How long an idle compute thread spins for the next operation before it sleeps; 0 where other
    /// lanes may want its core.
    pub spin_us: u32,
    pub weights: WeightsFrom,
    /// Emulated link speed of each copy lane; `None`: as fast as memory.
    pub link_bytes_per_s: Option<u64>,
    /// Bound of any wait for another lane.
    pub wait_timeout_ms: u64,
    /// Another in the first steps, of a run that could be started another way.
    pub start_timeout_ms: Option<u64>,
    /// Nothing is loaded, computed or moved: instructions only last so long.
    pub durations: Option<Durations>,
    /// A CUDA device instead of the emulated one.
    pub cuda: Option<CudaUse>,
    /// What answers may have to follow; of a run that serves the vocabulary alone.
    pub grammars: Option<Grammars>,
    /// Tokens of the text by which a plan selects positions; empty where it does not.
    pub select_text: Vec<u32>,
    /// Of a storage worker.
    pub staged: Option<StagedAt>,
    /// Of the cpu worker of a run that serves.
    pub prompts: Option<PromptsAt>,
}

/// Coordinator to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    Setup(Box<Setup>),
    /// A segment made by another worker; one descriptor.
    Attach {
        memory: SegmentId,
        size_bytes: u64,
    },
    /// The arena of a CUDA device, as the gpu worker exported it.
    AttachDevice {
        handle: Vec<u8>,
        size_bytes: u64,
    },
    /// Host weights are in place: copy resident weights to the device.
    Load,
    /// To the worker that samples, in a run that serves: a form that answers will follow.
    Form {
        number: u32,
        form: Form,
    },
    /// No answer will follow it any more.
    Forget {
        number: u32,
    },
    /// To the worker that keeps the caches: write a page, which is full and which nobody writes to,
    /// to the prompt store.
    Store {
        number: u32,
        batch: u16,
        page: StoredPage,
    },
    /// Read pages from there, in this order, into pages that no list names.
    Fetch {
        number: u32,
        batch: u16,
        pages: Vec<StoredPage>,
    },
}

/// How long work lasts that only lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durations {
    /// That of the decode program: per lane with work a number of nanoseconds per entry of its
    /// list, 0 for waits and signals. Work of other programs takes no time.
    Decode(Vec<(LaneId, Vec<u64>)>),
    /// Of a run whose sequences have owners: as the step table's costs say of what is listed, so
    /// many times slower.
    ByCosts { slow_motion: u32 },
}

impl Durations {
    /// Those of one lane; empty for a lane without work.
    pub(crate) fn of(&self, lane: LaneId) -> &[u64] {
        let Durations::Decode(lanes) = self else { return &[] };
        let own = lanes.iter().find(|(other, _)| *other == lane);
        own.map_or(&[], |(_, durations)| durations)
    }

    /// How many times slower time passes where costs say how long work lasts.
    pub(crate) const fn slow_motion(&self) -> u32 {
        match self {
            Durations::Decode(_) => 1,
            Durations::ByCosts { slow_motion } => *slow_motion,
        }
    }
}

/// Worker to coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromWorker {
    /// A segment this worker made; one descriptor.
    Exported {
        memory: SegmentId,
        size_bytes: u64,
    },
    /// The arena of a CUDA device; without a handle where this system exports none, and why.
    ExportedDevice {
        handle: Result<Vec<u8>, String>,
        size_bytes: u64,
    },
    /// The driver compiles the kernels for its device, which takes about half a minute, once.
    Compiles,
    /// Whether the worker could open it; else why not.
    AttachedDevice {
        refusal: Option<String>,
    },
    Loaded,
    Ready {
        kernel_variant: String,
    },
    /// Answers can follow a form, or cannot, and why.
    FormReady {
        number: u32,
        failure: Option<String>,
    },
    /// A page was written with so many bytes, 0 where it was there already; or was not, and why.
    Stored {
        number: u32,
        bytes: u64,
        failure: Option<String>,
    },
    /// The first so many pages hold what was asked for. Why the next one does not, where it was
    /// there.
    Fetched {
        number: u32,
        pages: u32,
        bytes: u64,
        refused: Option<String>,
    },
    /// The worker exits after it.
    Failed {
        kind: FailureKind,
        /// One sentence.
        message: String,
    },
}
