//! Parameters chosen for processors: sizes of tasks, prefetch distances, thresholds between
//! algorithms. They affect how fast a linear is, but never a bit of its result. Numbers that affect
//! the order of a sum, and those of a register tile, are defined with their path.

#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

/// Minimum number of rows in a thread's share, if threads share rows: with fewer rows, memory does
/// not deliver weights fast enough.
pub(super) const MIN_SHARE_ROWS: usize = 128;

/// Maximum number of threads for whose shares of bf16 rows the scratch has capacity. More threads
/// share columns instead.
pub(super) const SHARING_THREADS: usize = 16;

/// Minimum number of elements that are packed in a separate parallel run, if idle threads spin, and
/// if they sleep.
pub(super) const PARALLEL_PACK: [usize; 2] = [1 << 15, 1 << 18];

/// Maximum number of output columns in a task of the vector paths. More columns mean that packed x
/// is read from the third-level cache less often.
pub(super) const VECTOR_COLS: usize = 192;

/// Maximum number of output columns in a task of `avx512`, and in one of few rows in AMX tiles.
pub(super) const NARROW_COLS: usize = 96;

/// Floats of packed x that stay in the second-level cache in addition to the other operands.
pub(super) const L2_X_LEN: usize = 96 << 10;

/// Prefetch distance in rows, from the row being finished to the one whose outputs are prefetched.
pub(super) const OUTPUT_PREFETCH_ROWS: usize = 3;

/// Lines prefetched at once. More would fill the buffers of outstanding misses, which the product
/// needs for x.
pub(super) const BURST_LINES: usize = 4;

/// Prefetch distance of plain weights from the chunk in use, along a row.
pub(super) const PLAIN_PREFETCH_BYTES: usize = 768;

/// Prefetch distance of grouped weights from the vector in use, along the records of a panel.
pub(super) const GROUPED_PREFETCH_BYTES: usize = 1024;

/// `avx512`: prefetch distance from the line in use, with few rows.
pub(super) const AVX512_PREFETCH_BYTES: usize = 512;

/// `avx512`: number of rows from which blocks are larger. Sums are then loaded and stored less
/// often, which outweighs that less of x fits in the first-level cache.
pub(super) const AVX512_MANY_ROWS: usize = 40;

/// `avx512_bf16`: prefetch distance if memory is read in one stream: a page, where the processor's
/// own prefetcher stops.
pub(super) const ONE_STREAM_PREFETCH_BYTES: usize = 4096;

/// `avx512_bf16`: prefetch distance if memory is read in several streams.
pub(super) const STREAMS_PREFETCH_BYTES: usize = 1536;

/// `avx512_bf16`: bytes of packed x that stay in the first-level cache while streams of weights
/// pass through it.
pub(super) const STREAMS_X_BYTES: usize = 24 << 10;

/// `avx512_bf16`: bytes of a task's weights from which each half is a stream of its own.
pub(super) const TWO_STREAMS_BYTES: usize = 256 << 10;

/// `avx512_bf16`, five to eight rows: floats of packed x that stay in the first-level cache while
/// weights pass through it.
pub(super) const ALL_ROWS_X_LEN: usize = 8 << 10;

/// `avx512_bf16`, five to eight rows: columns that are multiplied along a block of k before the
/// next block.
pub(super) const ALL_ROWS_GROUP_COLS: usize = 48;

/// `avx512_bf16`, five to eight rows: the shorter prefetch distance in columns. A line is
/// prefetched at the longer distance, `ALL_ROWS_FAR_COLS`, and again at this one.
pub(super) const ALL_ROWS_NEAR_COLS: usize = 2;
pub(super) const ALL_ROWS_FAR_COLS: usize = 4;

/// `avx512_bf16`: number of tiles from which reductions are deferred. With fewer tiles, storing the
/// lanes costs more than is gained.
pub(super) const DEFERRED_TILES: usize = 24;

/// `amx`: prefetch distance along the same weight rows, if nothing else is multiplied meanwhile:
/// several steps, because one step takes less time than a memory access.
pub(super) const AMX_PREFETCH_BYTES: usize = 512;

/// `amx`: maximum number of whole blocks of packed x in a kernel call, with few rows and with more.
/// Sums are read and written once per call.
pub(super) const AMX_CALL_BLOCKS: [usize; 2] = [16, 2];

/// `integers`: prefetch distance with few rows, along a panel's records.
pub(super) const INTEGERS_PREFETCH_BYTES: usize = 1024;

/// `integers` in AMX tiles: prefetch distance with few rows, along a panel's records.
pub(super) const INTEGER_TILES_PREFETCH_BYTES: usize = 3072;

/// `integers`: number of rows from which AMX tiles are faster.
pub(super) const INTEGER_TILES_ROWS: usize = 7;
