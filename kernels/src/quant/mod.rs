//! Compressed formats of weights and KV. They are produced here at load and on append, widened here
//! by the emulated device, and read by linears and by attention. Their sizes are defined in
//! `model::compressed`.
//!
//! **Grouped weights** of a matrix `[n, k]`: a value is `scale * q + min`, with a small integer `q`
//! and a scale and minimum per output row and group of consecutive inputs. Blocks of 16 output rows
//! are interleaved, so that a vector lane is an output row. A record is 16 rows of one or more
//! groups, as bytes in this order:
//! - The values from which scales and minimums are computed, row `r` of the block at index `r` of
//!   each array, padded to a multiple of 64 bytes. `Halves`: 16 scales, 16 minimums, f16.
//!   `HalfScales`: 16 f16 for each group. `Floats`: 16 scales, 16 minimums, f32. `PowersOfTwo`: 16
//!   bytes for each group. `Products`: 16 f16, then 16 bytes for each group. `ProductsAndMinimums`:
//!   16 f16 for scales, 16 for minimums, then for each group 16 bytes for scales and 16 for
//!   minimums.
//! - Group by group the integers, as vectors of 16 little-endian dwords, dword `r` for row `r`.
//!   - `Int4Records`: vector `i` contains inputs `8i..8i + 8`, the even ones in bits 0..16, the
//!     odd in bits 16..32, so that both halves yield a pair of neighbours at the same shift.
//!   - `Int8Records`: vector `i` contains inputs `4i..4i + 4`, one in each byte.
//!   - All others: first vectors of the bits above the lower four, then vectors of the lower four.
//!     Of the latter, vector `i` contains inputs `8i..8i + 4` in the low halves of its bytes and
//!     `8i + 4..8i + 8` in the high halves. With a fifth bit, bit `s` of byte `b` of vector `i`
//!     belongs to input `32i + 4s + b`; with two upper bits, bits `2s..2s + 2` of byte `b` belong
//!     to input `16i + 4s + b`.
//!
//! Rows and inputs beyond the matrix are zeros.
//!
//! **4-bit KV**, one record per position of a KV head: `head_dim / 2` bytes of integers, then an
//! f16 scale per group, then an f16 minimum per group. Within a group, byte `i` holds element `i`
//! in its low half and element `i + length / 2` in its high half.
//!
//! **8-bit KV**, likewise: `head_dim` signed bytes, one per element, then a bf16 scale per group.
//!
//! Invariants:
//! - `scale * q` is exact in f32, so a value is the same with and without fused multiply-add.
//! - Results depend on the values alone, never on the [`Variant`](crate::Variant), neighbours or
//!   threads: only single IEEE operations, and minima and maxima independent of order, are used.
//! - All ranges of whole records are independent, so every operation can be split over threads.

mod kv;
mod kv4;
mod kv8;
mod nearest;
mod quantise;
mod range;
mod record;
mod repack;
mod super_blocks;
mod widen;

pub use kv::{decode_kv, quantise_kv};
pub(crate) use kv8::decode_record as decode_kv8_record;
pub use quantise::quantise;
pub use range::error_bound;
pub use record::{decode_row, integer, range, scale_and_minimum};
pub use repack::{RepackError, from_blocks, from_q4_0, from_q4_1, from_q8_0};
pub use widen::widen;
