//! CPU kernels of every operation in the model's table, for the cpu worker and for the emulated
//! device: linears, mixtures of experts, norms, rope, embedding, attention, recurrent states,
//! sampling.
//!
//! [`Kernels`] is built once per worker with an instruction set, a number of threads and limits for
//! its scratch. After that no call allocates, takes a lock or reads the environment.
//!
//! Invariants:
//! - **Row independence.** The bits of a row of output depend on that row's inputs and on the
//!   [`Variant`], never on batch size, neighbours, thread count or how the work is cut. Every sum
//!   has one order, fixed by its length (`linear/`, `attention/`).
//! - Sums are f32; a result is rounded once, to nearest even, when it is stored.
//! - Shapes are checked where a call enters and panic when wrong: they are the caller's program.
//! - All SIMD is behind `simd`; the algorithms are written once over its trait.

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod columns;
mod delta;
mod element;
mod embed;
pub mod grouped;
mod linear;
mod logprobs;
mod norm;
mod norm_row;
mod number;
mod penalties;
mod pool;
mod processor;
pub mod reference;
mod rope;
mod router;
mod sample;
mod scratch;
mod simd;
mod threads;
mod unroll;
mod variant;

pub use attention::{
    AttentionShape, Cache, PageLists, Partial, SelectRule, Selected, Selection, Unit, Units,
    paged_place, partial_key, scores_len,
};
pub use columns::Columns;
pub use delta::{DeltaTasks, StateRows};
pub use element::Element;
pub use linear::{
    ColumnsOut, ExpertLimits, ExpertWeight, Experts, Linear, LinearColumns, LinearGrouped,
    LinearOut, PartWeight,
};
pub use logprobs::{Logprob, logprobs};
pub use number::Number;
pub use penalties::{Change, Penalties};
pub use pool::{Pool, PoolOptions};
#[doc(hidden)]
pub use processor::assume_other_processor;
pub use rope::RopeTables;
pub use router::{Routed, Routing};
pub use sample::{Draw, NO_TOKEN, SampleScratch, Sampling, argmax, random_unit, sample};
pub use scratch::ScratchLimits;
pub use threads::ThreadLimits;
pub use variant::{VARIANT_ENV, Variant, VariantError};

use scratch::{AlignedBuffer, ThreadScratch};

/// The kernels of one worker process: an instruction set, a pool of threads and their scratch.
#[derive(Debug)]
pub struct Kernels {
    variant: Variant,
    limits: ScratchLimits,
    pool: Pool,
    thread_limits: ThreadLimits,
    /// Packed activations of a linear, read by all threads.
    packed: AlignedBuffer,
    per_thread: ThreadScratch,
    attention: attention::Workspace,
    experts: linear::ExpertWorkspace,
}

impl Kernels {
    /// Kernels of `variant` on `threads` threads (the caller is one of them), with scratch for
    /// `limits`.
    ///
    /// # Errors
    /// The system refused to start a thread.
    ///
    /// # Panics
    /// This machine cannot run `variant`.
    pub fn new(
        variant: Variant,
        threads: usize,
        limits: ScratchLimits,
    ) -> Result<Kernels, std::io::Error> {
        assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
        // SAFETY: the variant is available.
        unsafe { Self::new_unchecked(variant, threads, limits) }
    }

    /// As [`Kernels::new`], without a check of the machine: for tests that emulate instructions.
    ///
    /// # Errors
    /// The system refused to start a thread.
    ///
    /// # Safety
    /// Every instruction of `variant` works in this process, on every thread.
    #[doc(hidden)]
    pub unsafe fn new_unchecked(
        variant: Variant,
        threads: usize,
        limits: ScratchLimits,
    ) -> Result<Kernels, std::io::Error> {
        Ok(Self::assemble(variant, Pool::new(threads)?, limits))
    }

    /// As [`Kernels::new`], on a pool that says where its threads run and whether they spin.
    ///
    /// # Panics
    /// This machine cannot run `variant`.
    pub fn with_pool(variant: Variant, pool: Pool, limits: ScratchLimits) -> Kernels {
        assert!(variant.is_available(), "this machine cannot run the {} kernels", variant.name());
        Self::assemble(variant, pool, limits)
    }

    fn assemble(variant: Variant, pool: Pool, limits: ScratchLimits) -> Kernels {
        let thread_len =
            linear::thread_len().max(attention::thread_len(&limits)).max(rope::thread_len(&limits));
        Kernels {
            variant,
            limits,
            thread_limits: ThreadLimits::default(),
            packed: AlignedBuffer::new(linear::packed_len(
                limits.rows,
                limits.linear_inputs,
                pool.threads(),
            )),
            per_thread: ThreadScratch::new(pool.threads(), thread_len),
            attention: attention::Workspace::new(pool.threads(), &limits),
            experts: linear::ExpertWorkspace::new(pool.threads(), ExpertLimits::NONE),
            pool,
        }
    }

    /// The same with scratch for a mixture of experts.
    pub fn with_experts(self, limits: ExpertLimits) -> Kernels {
        let experts = linear::ExpertWorkspace::new(self.pool.threads(), limits);
        Kernels { experts, ..self }
    }

    /// The instruction set in use.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Threads that work on a call, the caller included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}
