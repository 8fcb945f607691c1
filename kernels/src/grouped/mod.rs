//! The compressed formats of weights and KV: made here at load and at append, widened here by the
//! emulated device, read by the linears and by attention. Sizes are `model::compressed`'s.
//!
//! **Grouped weights**, a matrix `[n, k]`: a value is `scale * q + min`, with `q` unsigned for 4
//! bits and signed for 8, and an f16 scale and minimum per output row and group of consecutive
//! inputs. Blocks of 16 output rows are interleaved, so that a vector lane is an output row. A
//! record is 16 rows of one group, bytes in this order:
//! - 16 scales, then 16 minimums, f16; row `r` of the block at index `r`;
//! - the integers, as vectors of 16 little-endian dwords, dword `r` for row `r`. 4 bits: vector `i`
//!   has inputs `8i..8i + 8`, the even ones in bits 0..16, the odd ones in bits 16..32, so that
//!   both halves give a pair of neighbours at the same shift. 8 bits: vector `i` has inputs
//!   `4i..4i + 4`, one in each byte.
//!
//! Rows behind the matrix have scale, minimum and integers 0; inputs behind it have integers 0.
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
mod quantise;
mod range;
mod record;
mod repack;
mod widen;

pub use kv::{decode_kv, quantise_kv};
pub use quantise::quantise;
pub use range::error_bound;
pub use record::{decode_row, integer, scale_and_minimum};
pub use repack::{RepackError, from_blocks, from_q4_0, from_q4_1, from_q8_0};
pub use widen::widen;
