//! CPU kernels of every operation in the model's table, for the cpu worker and for the emulated
//! device: linears, mixtures of experts, norms, rope, embedding, attention, recurrent states,
//! sampling.
//!
//! [`Kernels`] is built once per worker with an instruction set, a number of threads and limits for
//! its scratch. After that no call allocates, takes a lock or reads the environment.
//!
//! Invariants:
//! - **Row independence.** The bits of a row of output depend on that row's inputs and on the
//!   [`Variant`], never on batch size, neighbours, thread count or the partition of the work. Every
//!   sum has one order, fixed by its length (`linear/`, `attention/`).
//! - Sums are f32; a result is rounded once, to nearest even, when it is stored.
//! - Shapes are checked at the entry of a call, which panics if they are wrong: they come from the
//!   caller's program.
//! - All SIMD is in `simd`; the algorithms are written once over its trait.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod columns;
mod delta;
mod element;
mod embed;
mod linear;
mod logprobs;
mod norm;
mod norm_row;
mod number;
mod penalties;
mod pool;
mod processor;
pub mod quant;
pub mod reference;
mod rope;
mod router;
mod sample;
mod scratch;
mod simd;
mod streams;
mod threads;
mod unroll;
mod unrotate;
mod variant;

pub use attention::{
    AttentionOperands, AttentionPart, AttentionShape, AttentionUnit, AttentionUnits, CompressRules,
    CompressedSpan, EntryIndexer, EntryPlaces, EntryQueries, EntryShape, IndexedPlaces,
    IndexedScratch, IndexedShape, KvCacheSlice, PageLists, PartialKeyOperands, SelectRule,
    Selection, SelectionCounts, paged_place, partial_key, scores_len,
};
pub use columns::Columns;
pub use delta::{DeltaInputs, DeltaTasks, StateRows, StateSlots};
pub use element::Element;
pub use linear::{
    ColumnsOut, ColumnsWeight, ExpertLimits, ExpertPlaces, ExpertWeight, HeadLinear, HeadSpan,
    Linear, LinearColumns, LinearOut, LinearQuant, RoutedLinear, SharedExperts,
};
pub use logprobs::{Logprob, logprobs};
pub use number::Number;
pub use penalties::{LogitChange, Penalties};
pub use pool::{PoolOptions, ThreadPool};
#[doc(hidden)]
pub use processor::assume_other_processor;
pub use rope::RopeTables;
pub use router::{RoutedExpert, RouterRules, Routing};
pub use sample::{NO_TOKEN, SampleDraw, SampleScratch, Sampling, argmax, random_unit, sample};
pub use scratch::ScratchLimits;
pub use streams::{StreamRules, StreamTasks};
pub use threads::ThreadLimits;
pub use variant::{VARIANT_ENV, Variant, VariantError};

use model::quantized_format::ActivationFormat;
use scratch::{AlignedBuffer, ThreadScratch};

/// Kernels of one worker process: an instruction set, a pool of threads and their scratch.
#[derive(Debug)]
pub struct Kernels {
    variant: Variant,
    limits: ScratchLimits,
    pool: ThreadPool,
    thread_limits: ThreadLimits,
    activations: ActivationFormat,
    /// Packed activations of a linear, read by all threads.
    packed: AlignedBuffer,
    per_thread: ThreadScratch,
    attention: attention::Workspace,
    experts: linear::ExpertWorkspace,
    head_linears: linear::HeadWorkspace,
}

impl Kernels {
    /// Creates the kernels of `variant` on `threads` threads, including the caller, with scratch
    /// for `limits`.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    ///
    /// # Panics
    /// If this machine cannot run `variant`.
    pub fn new(
        variant: Variant,
        threads: usize,
        limits: ScratchLimits,
    ) -> Result<Kernels, std::io::Error> {
        assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
        // SAFETY: the variant is available.
        unsafe { Self::new_unchecked(variant, threads, limits) }
    }

    /// Creates kernels like [`Kernels::new`], without a check of the machine: for tests that
    /// emulate instructions.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    ///
    /// # Safety
    /// Every instruction of `variant` works in this process, on every thread.
    #[doc(hidden)]
    pub unsafe fn new_unchecked(
        variant: Variant,
        threads: usize,
        limits: ScratchLimits,
    ) -> Result<Kernels, std::io::Error> {
        Ok(Self::assemble(variant, ThreadPool::new(threads)?, limits))
    }

    /// Creates kernels like [`Kernels::new`], on a pool that determines where its threads run and
    /// whether they spin.
    ///
    /// # Panics
    /// If this machine cannot run `variant`.
    pub fn with_pool(variant: Variant, pool: ThreadPool, limits: ScratchLimits) -> Kernels {
        assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
        Self::assemble(variant, pool, limits)
    }

    fn assemble(variant: Variant, pool: ThreadPool, limits: ScratchLimits) -> Kernels {
        let thread_len = linear::thread_len()
            .max(attention::thread_len(&limits))
            .max(attention::compress_thread_len(&limits))
            .max(rope::thread_len(&limits))
            .max(delta::block_len(delta::KEY_DIM_MAX));
        Kernels {
            variant,
            limits,
            thread_limits: ThreadLimits::default(),
            activations: ActivationFormat::default(),
            packed: AlignedBuffer::new(linear::packed_len(
                limits.rows,
                limits.linear_inputs,
                pool.threads(),
            )),
            per_thread: ThreadScratch::new(pool.threads(), thread_len),
            attention: attention::Workspace::new(pool.threads(), &limits),
            experts: linear::ExpertWorkspace::new(pool.threads(), ExpertLimits::NONE),
            head_linears: linear::HeadWorkspace::new(pool.threads(), &limits, 0),
            pool,
        }
    }

    /// Adds scratch for a mixture of experts.
    pub fn with_experts(self, limits: ExpertLimits) -> Kernels {
        let experts = linear::ExpertWorkspace::new(self.pool.threads(), limits);
        Kernels { experts, ..self }
    }

    /// Adds scratch for linears of heads with up to `inputs` inputs.
    pub fn with_head_linears(self, inputs: usize) -> Kernels {
        let threads = self.pool.threads();
        let head_linears = linear::HeadWorkspace::new(threads, &self.limits, inputs);
        Kernels { head_linears, ..self }
    }

    /// Sets the rounding of activations that are multiplied by grouped weights.
    pub fn with_activations(self, activations: ActivationFormat) -> Kernels {
        Kernels { activations, ..self }
    }

    /// Returns the instruction set in use.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Returns the number of threads that work on a call, including the caller.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}
