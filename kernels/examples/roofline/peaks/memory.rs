//! Loops that read memory, with explicit loads: a compiler turns plain loops over lines into
//! gathers, which read slower than memory allows.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Distance of the rows that a loop reads in parallel: rows of 7168 bf16.
const ROW_BYTES: usize = 14 << 10;

/// Words of a cache line.
const LINE: usize = 8;

/// Access pattern; which one is fastest depends on the machine.
#[derive(Debug, Clone, Copy)]
pub enum Read {
    /// A single stream, which suits the hardware's prefetcher best.
    OneStream,
    FourStreams,
    /// Four rows of a matrix in parallel, then the next four.
    FourRows,
    /// Sixteen rows: the access pattern of the linear at one row.
    SixteenRows,
}

impl Read {
    pub const ALL: [Read; 4] =
        [Read::OneStream, Read::FourStreams, Read::FourRows, Read::SixteenRows];

    /// Returns the number of parallel streams and the words of each, for `words` words.
    fn streams(self, words: usize) -> (usize, usize) {
        match self {
            Read::OneStream => (1, words / LINE * LINE),
            Read::FourStreams => (4, words / (4 * LINE) * LINE),
            Read::FourRows => (4, ROW_BYTES / 8),
            Read::SixteenRows => (16, ROW_BYTES / 8),
        }
    }
}

/// Runs `$body` for each line of `$data`, the streams of `$read` in turn.
macro_rules! each_line {
    ($read:ident, $data:ident, $line:ident => $body:expr) => {
        let (streams, len) = $read.streams($data.len());
        for part in 0..$data.len() / (streams * len) {
            for at in (0..len).step_by(LINE) {
                for stream in 0..streams {
                    let $line = $data.as_ptr().wrapping_add((part * streams + stream) * len + at);
                    $body;
                }
            }
        }
    };
}

/// Reads `data` with the widest loads: narrow ones fill the core's window with fewer lines.
pub fn read(read: Read, data: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: compiled for instructions that this machine has, which is checked.
    unsafe {
        if is_x86_feature_detected!("avx512f") {
            return in_512(read, data);
        } else if is_x86_feature_detected!("avx2") {
            return in_256(read, data);
        }
    }
    let mut sum = 0;
    each_line!(read, data, line => {
        for word in 0..LINE {
            // SAFETY: whole lines of the data.
            sum ^= unsafe { *line.add(word) };
        }
    });
    sum
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn in_512(read: Read, data: &[u64]) -> u64 {
    let mut sum = _mm512_setzero_si512();
    // SAFETY: whole lines of the data.
    each_line!(read, data, line => sum = _mm512_xor_si512(sum, unsafe { _mm512_loadu_si512(line.cast()) }));
    _mm512_reduce_add_epi64(sum).cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn in_256(read: Read, data: &[u64]) -> u64 {
    let mut sum = _mm256_setzero_si256();
    each_line!(read, data, line => {
        for half in [line, line.wrapping_add(LINE / 2)] {
            // SAFETY: whole lines of the data.
            sum = _mm256_xor_si256(sum, unsafe { _mm256_loadu_si256(half.cast()) });
        }
    });
    _mm256_extract_epi64::<0>(sum).cast_unsigned()
}
