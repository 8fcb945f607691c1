//! Numbers chosen for processors: sizes of tasks, prefetch distances, thresholds between
//! algorithms. Another value changes how fast a linear is and never a bit of its result. Numbers
//! that enter the order of a sum, and those of a register tile, stand with their path.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

/// Rows of a thread's share at least, where threads share rows: with fewer, weights come too slowly
/// from memory.
pub(super) const MIN_SHARE_ROWS: usize = 128;

/// Threads at most for whose shares of bf16 rows there is room. More share columns.
pub(super) const SHARING_THREADS: usize = 16;

/// Packing more elements than this is worth a run of its own, while idle threads spin and while
/// they sleep.
pub(super) const PARALLEL_PACK: [usize; 2] = [1 << 15, 1 << 18];

/// Output columns of one task that works with vectors, at most: the more there are, the less often
/// packed x comes from the third level of cache.
pub(super) const VECTOR_COLS: usize = 192;

/// The same of `avx512`, and of few rows in tiles of AMX.
pub(super) const NARROW_COLS: usize = 96;

/// Floats of packed x that stay in the second level of cache beside the rest.
pub(super) const L2_X_LEN: usize = 96 << 10;

/// Prefetch distance in rows, from one that is finished to one whose outputs are prefetched.
pub(super) const OUTPUT_PREFETCH_ROWS: usize = 3;

/// Lines prefetched at once: more would fill the buffers of outstanding misses, which the product
/// needs for x.
pub(super) const BURST_LINES: usize = 4;

/// Prefetch distance of plain weights from the chunk in use, along a row.
pub(super) const PLAIN_PREFETCH_BYTES: usize = 768;

/// Prefetch distance of grouped weights from the vector in use, along the records of a panel.
pub(super) const GROUPED_PREFETCH_BYTES: usize = 1024;

/// `avx512`: prefetch distance of few rows from the line in use.
pub(super) const AVX512_PREFETCH_BYTES: usize = 512;

/// `avx512`: rows from which on blocks are larger: sums are loaded and stored less often, which
/// then outweighs that the first level of cache has less room for x.
pub(super) const AVX512_MANY_ROWS: usize = 40;

/// `avx512_bf16`: prefetch distance where memory is read in one stream: a page, where the
/// processor's own prefetcher stops.
pub(super) const ONE_STREAM_PREFETCH_BYTES: usize = 4096;

/// `avx512_bf16`: prefetch distance where memory is read in several streams.
pub(super) const STREAMS_PREFETCH_BYTES: usize = 1536;

/// `avx512_bf16`: packed x that stays in the first level of cache while streams of weights go
/// through it.
pub(super) const STREAMS_X_BYTES: usize = 24 << 10;

/// `avx512_bf16`: bytes of a task's weights from which on each half is a stream of its own.
pub(super) const TWO_STREAMS_BYTES: usize = 256 << 10;

/// `avx512_bf16`, five to eight rows: floats of packed x that stay in the first level of cache
/// while weights go through it.
pub(super) const ALL_ROWS_X_LEN: usize = 8 << 10;

/// `avx512_bf16`, five to eight rows: columns that go through a block of k before the next block.
pub(super) const ALL_ROWS_GROUP_COLS: usize = 48;

/// `avx512_bf16`, five to eight rows: prefetch distances in columns, of which the second fetches a
/// line that the first fetches again.
pub(super) const ALL_ROWS_NEAR_COLS: usize = 2;
pub(super) const ALL_ROWS_FAR_COLS: usize = 4;

/// `avx512_bf16`: tiles from which on reductions are deferred: fewer do not make up for storing the
/// lanes.
pub(super) const DEFERRED_TILES: usize = 24;

/// `amx`: prefetch distance along the same weight rows, where nothing else is multiplied meanwhile:
/// several steps, because one takes less time than memory needs to answer.
pub(super) const AMX_PREFETCH_BYTES: usize = 512;

/// `amx`: whole blocks of packed x of a kernel call, at most: with few rows, and with more. Sums
/// are read and written once a call.
pub(super) const AMX_CALL_BLOCKS: [usize; 2] = [16, 2];

/// `integers`: prefetch distance of few rows along a panel's records.
pub(super) const INTEGERS_PREFETCH_BYTES: usize = 1024;

/// `integers` in tiles of AMX: the same.
pub(super) const INTEGER_TILES_PREFETCH_BYTES: usize = 3072;

/// `integers`: rows from which on tiles of AMX are faster.
pub(super) const INTEGER_TILES_ROWS: usize = 7;
