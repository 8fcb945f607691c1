//! The compressed formats of weights and KV: made here at load and at append, widened here by the
//! emulated device, read by the linears and by attention. Sizes are `model::compressed`'s.
//!
//! **Grouped weights**, a matrix `[n, k]`: a value is `scale * q + min`, with a small integer `q`
//! and a scale and minimum per output row and group of consecutive inputs. Blocks of 16 output rows
//! are interleaved, so that a vector lane is an output row. A record is 16 rows of one or more
//! groups, bytes in this order:
//! - what scales and minimums are made of, row `r` of the block at index `r` of each, to a multiple
//!   of 64 bytes. `Halves`: 16 scales, 16 minimums, f16. `HalfScales`: 16 f16 for each group.
//!   `Floats`: 16 scales, 16 minimums, f32. `PowersOfTwo`: 16 bytes for each group. `Products`: 16
//!   f16, then 16 bytes for each group. `ProductsAndMinimums`: 16 f16 for scales, 16 for minimums,
//!   then for each group 16 bytes for scales and 16 for minimums;
//! - group by group the integers, as vectors of 16 little-endian dwords, dword `r` for row `r`.
//!   - `Four`: vector `i` has inputs `8i..8i + 8`, the even ones in bits 0..16, the odd ones in
//!     bits 16..32, so that both halves give a pair of neighbours at the same shift.
//!   - `Eight`: vector `i` has inputs `4i..4i + 4`, one in each byte.
//!   - The others: first vectors of the bits above the lower four, then the lower four. Of these,
//!     vector `i` has inputs `8i..8i + 4` in the low and `8i + 4..8i + 8` in the high halves of its
//!     bytes. Of the fifth bits, vector `i` has in bit `s` of byte `b` that of input
//!     `32i + 4s + b`; of two upper bits, in bits `2s..2s + 2` of byte `b` those of input
//!     `16i + 4s + b`.
//!
//! Rows and inputs behind the matrix have zeros.
//!
//! **4-bit KV**, one record per position of a KV head: `head_dim / 2` bytes of integers, then an
//! f16 scale per group, then an f16 minimum per group. Within a group, byte `i` has element `i` in
//! its low half and element `i + length / 2` in its high half.
//!
//! Invariants:
//! - `scale * q` is exact in f32, so a value has one meaning, fused or not.
//! - What is made depends on the values alone, never on the [`Variant`](crate::Variant), neighbours
//!   or threads: only single IEEE operations and orderless minima and maxima are used.
//! - All ranges of whole records are independent, so any of this can be split over threads.

mod kv;
mod nearest;
mod quantise;
mod range;
mod record;
mod repack;
mod super_blocks;
mod widen;

pub use kv::{decode_kv, quantise_kv};
pub use quantise::quantise;
pub use range::error_bound;
pub use record::{decode_row, integer, range, scale_and_minimum};
pub use repack::{RepackError, from_blocks, from_q4_0, from_q4_1, from_q8_0};
pub use widen::widen;
