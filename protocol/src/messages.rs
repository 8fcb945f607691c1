//! Messages between the coordinator and the workers outside the step path, over one channel per
//! worker.
//!
//! Order: `WorkerSetup` to every worker; `ArenaHandle` from the gpu worker, forwarded as `Attach`
//! to the transfer worker, and to storage workers that read to the device; `Loaded` from the cpu
//! worker once host weights are in place, and from each storage worker once its staging is open;
//! then `Load` to the transfer worker, which answers `Loaded`; `Ready` from all. From then on
//! groups are released through the control segment, and the only further messages are `Failed` and,
//! in a serving run, those about grammars and stored prompt prefixes.

use std::path::PathBuf;

use grammar::{EncodedGrammar, GrammarSet};
use program::plan::Plan;
use program::topology::{Holds, LaneId, SegmentId, WorkerId};
use prompt_cache::{PageHash, PageOrigin};
use serde::{Deserialize, Serialize};

/// Category of a failure that the coordinator can react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Too little memory on the device.
    DeviceMemory,
    /// A storage cannot be read, or no longer can; others may have the same weights.
    Storage,
    /// No lane made progress within the bound.
    Stuck,
    Other,
}

/// Source from which the workers that load weights read them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightsOrigin {
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
    /// Dummy weights whose routers select experts at random, regardless of the rows' contents. Used
    /// for measurements, whose rows are equal or contain arbitrary memory.
    DummyRandomRouting {
        seed: u64,
    },
}

/// Draft model of a serving run, which the worker that samples runs on the CPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DraftModelSetup {
    /// Plan of a serving run with a single lane and a slot for each slot of the run.
    pub plan: Plan,
    pub weights: WeightsOrigin,
    /// Number of compute threads.
    pub threads: u16,
}

/// Use of a CUDA device instead of the emulated one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaConfig {
    /// Number of the device.
    pub index: u32,
    /// The gpu worker runs the transfer worker's lanes too, since this system does not let one
    /// process open another's device memory.
    pub copies_in_gpu_worker: bool,
    /// Lanes wait for each other on the host, even if the device's streams could wait.
    pub waits_on_host: bool,
    /// cuBLASLt is installed and enabled, and the arena includes its scratch.
    pub blas: bool,
}

/// Staging from which a storage worker reads its weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedCopyConfig {
    /// Directory of the staging.
    pub path: String,
    /// Reads use threads even if io_uring is available.
    pub uses_threads: bool,
    /// Maximum time that a drive may take to answer before it is given up, in ms.
    pub silence_ms: u64,
    /// Injected faults and a rate, in the syntax of `weight_store::Faults`; empty for none.
    pub faults: String,
}

/// Store of prompt prefixes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixStoreConfig {
    pub directory: PathBuf,
    /// Maximum number of bytes stored; `None` for the capacity of the drive.
    pub max_bytes: Option<u64>,
    /// Minimum number of tokens of a prompt that is stored.
    pub min_tokens: u32,
    pub origin: PageOrigin,
}

/// Memory of a batch with the bytes of a stored page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredMemory {
    /// A page of the caches, by its index.
    Page(u32),
    /// A checkpoint at the end of a page, by its number.
    Checkpoint(u32),
}

/// A page of the caches or the checkpoint at its end, and its identity in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPage {
    pub memory: StoredMemory,
    pub name: PageHash,
    /// Name of the preceding page.
    pub previous: PageHash,
    /// Number of preceding pages.
    pub index: u32,
    /// Tokens of the page; none for a checkpoint.
    pub tokens: Vec<u32>,
}

impl StoredPage {
    /// Returns checkpoint `number` at the end of the page with this name and index.
    pub fn checkpoint(number: u32, page: PageHash, index: u32) -> StoredPage {
        StoredPage {
            memory: StoredMemory::Checkpoint(number),
            name: page.checkpoint(),
            previous: page,
            index: index + 1,
            tokens: Vec::new(),
        }
    }
}

/// NUMA nodes of the host's memory; if empty, the system chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentNodes {
    pub weights: Vec<u16>,
    pub kv: Vec<u16>,
}

impl SegmentNodes {
    /// Returns the nodes of a segment.
    pub fn for_segment(&self, segment: SegmentId) -> &[u16] {
        match segment.holds {
            Holds::Weights => &self.weights,
            Holds::Kv => &self.kv,
            Holds::Activations | Holds::Arena | Holds::Table => &[],
        }
    }
}

/// First message. Its descriptors are control, trace, then those of `memories`, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// The worker that receives this setup.
    pub worker: WorkerId,
    pub plan: Plan,
    /// Segments whose descriptors are attached, with their sizes in bytes.
    pub memories: Vec<(SegmentId, u64)>,
    /// Segments that no other worker uses, with their sizes in bytes; the worker maps them itself.
    pub private: Vec<(SegmentId, u64)>,
    /// NUMA nodes of all these segments.
    pub nodes: SegmentNodes,
    pub control_bytes: u64,
    /// Records per trace ring; each lane of the topology has one.
    pub trace_capacity: u32,
    /// Number of compute threads of this worker.
    pub threads: u16,
    /// CPUs of the compute threads, in the system's numbering; if empty, the system chooses.
    pub cpus: Vec<u32>,
    /// Time for which an idle compute thread spins for the next operation before it sleeps; 0 if
    /// other lanes may need its core.
    pub spin_us: u32,
    pub weights: WeightsOrigin,
    /// Emulated link speed of each copy lane; `None` for the speed of memory.
    pub link_bytes_per_s: Option<u64>,
    /// Bound of any wait for another lane.
    pub wait_timeout_ms: u64,
    /// Bound of a wait in the first steps, for a run that could be started in another way.
    pub start_timeout_ms: Option<u64>,
    /// If present, nothing is loaded, computed or moved: instructions only let their durations
    /// pass.
    pub durations: Option<TimedDurations>,
    /// A CUDA device instead of the emulated one.
    pub cuda: Option<CudaConfig>,
    /// Grammars that answers may have to follow; for a serving run only the vocabulary.
    pub grammars: Option<GrammarSet>,
    /// Tokens of the text by which a plan selects positions; empty if it does not select.
    pub select_text: Vec<u32>,
    /// Staging of a storage worker.
    pub staged: Option<StagedCopyConfig>,
    /// Prompt store of the cpu worker of a serving run.
    pub prompts: Option<PrefixStoreConfig>,
    /// Draft model of the worker that samples.
    pub draft_model: Option<DraftModelSetup>,
}

/// Messages from the coordinator to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    Setup(Box<WorkerSetup>),
    /// A segment created by another worker; one descriptor.
    Attach {
        memory: SegmentId,
        size_bytes: u64,
    },
    /// The arena of a CUDA device, as exported by the gpu worker.
    AttachDevice {
        handle: Vec<u8>,
        size_bytes: u64,
    },
    /// Host weights are in place: copy resident weights to the device.
    Load,
    /// Compile a grammar that answers will follow. Sent to the worker that samples, in a serving
    /// run.
    CompileGrammar {
        number: u32,
        grammar: EncodedGrammar,
    },
    /// Drop a grammar that no further answer will follow.
    ForgetGrammar {
        number: u32,
    },
    /// Write a page to the prompt store, which is full and no longer written to. Sent to the worker
    /// that owns the caches.
    StorePage {
        number: u32,
        batch: u16,
        page: StoredPage,
    },
    /// Read pages from the prompt store, in this order, into pages that no list names.
    FetchPages {
        number: u32,
        batch: u16,
        pages: Vec<StoredPage>,
    },
    /// Answer the fetch with this number with the pages read so far.
    CancelFetch {
        number: u32,
    },
    /// Copy the first positions of a page, which are computed, to a page that no list names.
    CopyPage {
        number: u32,
        batch: u16,
        from: u32,
        to: u32,
        positions: u32,
    },
    /// Copy a checkpoint of a batch to a slot that no list names.
    RestoreCheckpoint {
        number: u32,
        batch: u16,
        checkpoint: u32,
        slot: u16,
    },
}

/// Durations of the instructions of timed lanes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TimedDurations {
    /// Durations in the decode program: per lane with work, the nanoseconds of each entry of its
    /// list, 0 for waits and signals. Work of other programs takes no time.
    Decode(Vec<(LaneId, Vec<u64>)>),
    /// Durations in a run whose sequences have owners: derived from the step table's costs for the
    /// listed rows, multiplied by `slow_motion`.
    ByCosts { slow_motion: u32 },
}

impl TimedDurations {
    /// Returns the durations of one lane; empty for a lane without work.
    pub fn for_lane(&self, lane: LaneId) -> &[u64] {
        let TimedDurations::Decode(lanes) = self else { return &[] };
        let lane_durations = lanes.iter().find(|(other, _)| *other == lane);
        lane_durations.map_or(&[], |(_, durations)| durations)
    }

    /// Returns the factor on durations that are derived from costs, or 1.
    pub const fn slow_motion(&self) -> u32 {
        match self {
            TimedDurations::Decode(_) => 1,
            TimedDurations::ByCosts { slow_motion } => *slow_motion,
        }
    }
}

/// Messages from a worker to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromWorker {
    /// A segment created by this worker; one descriptor.
    Exported {
        memory: SegmentId,
        size_bytes: u64,
    },
    /// The arena of a CUDA device, or the reason why this system cannot export it.
    ExportedDevice {
        handle: Result<Vec<u8>, String>,
        size_bytes: u64,
    },
    /// The driver compiles the kernels for its device, which takes about half a minute, once.
    CompilingKernels,
    /// The worker has opened the device, or `refusal` states why it could not.
    AttachedDevice {
        refusal: Option<String>,
    },
    Loaded,
    Ready {
        kernel_variant: String,
    },
    /// Answers can follow a grammar, or `failure` states why they cannot.
    GrammarReady {
        number: u32,
        failure: Option<String>,
    },
    /// A page was written with this number of bytes, 0 if it existed already; or `failure` states
    /// why it was not.
    PageStored {
        number: u32,
        bytes: u64,
        failure: Option<String>,
    },
    /// The first `pages` pages contain what was requested, and the others are no longer written to.
    /// `refused` states why the next page could not be read although it existed.
    PagesFetched {
        number: u32,
        pages: u32,
        bytes: u64,
        refused: Option<String>,
        /// The store did not answer.
        is_silent: bool,
    },
    /// Positions of a page were copied.
    PageCopied {
        number: u32,
    },
    /// A checkpoint was copied to its slot.
    CheckpointRestored {
        number: u32,
    },
    /// The worker failed, and exits after this message.
    Failed {
        kind: FailureKind,
        /// Description of the failure in one sentence.
        message: String,
    },
}
