//! Loops that read memory.

/// Distance of the rows that a loop takes side by side: rows of 7168 bf16.
const ROW_BYTES: usize = 14 << 10;

type Line = [u64; 8];

/// The ways of reading; which one is fastest depends on the machine.
#[derive(Debug, Clone, Copy)]
pub enum Read {
    /// What the hardware's prefetcher likes best.
    OneStream,
    FourStreams,
    /// Four rows of a matrix side by side, then the next four.
    FourRows,
    /// Sixteen: what the linear does at one row.
    SixteenRows,
}

impl Read {
    pub const ALL: [Read; 4] =
        [Read::OneStream, Read::FourStreams, Read::FourRows, Read::SixteenRows];
}

/// Reads `data` with the widest loads: narrow ones fill the core's window with fewer lines.
pub fn read(read: Read, data: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn in_512(read: Read, data: &[u64]) -> u64 {
            run(read, data)
        }
        #[target_feature(enable = "avx2")]
        fn in_256(read: Read, data: &[u64]) -> u64 {
            run(read, data)
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: compiled for instructions that this machine has, as was just asked.
            return unsafe { in_512(read, data) };
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { in_256(read, data) };
        }
    }
    run(read, data)
}

#[inline(always)]
fn run(read: Read, data: &[u64]) -> u64 {
    match read {
        Read::OneStream => fold(bytemuck::cast_slice(&data[..data.len() / 8 * 8])),
        Read::FourStreams => read_streams::<4>(data, data.len() / 32 * 8),
        Read::FourRows => read_rows::<4>(data),
        Read::SixteenRows => read_rows::<16>(data),
    }
}

/// `N` rows of a matrix side by side, then the next.
#[inline(always)]
fn read_rows<const N: usize>(data: &[u64]) -> u64 {
    let row = ROW_BYTES / 8;
    data.chunks_exact(N * row).map(|rows| read_streams::<N>(rows, row)).fold(0, |a, b| a ^ b)
}

/// `N` streams of `len` words each, one behind the other.
#[inline(always)]
fn read_streams<const N: usize>(data: &[u64], len: usize) -> u64 {
    let lines: &[Line] = bytemuck::cast_slice(&data[..N * len]);
    let length = len / 8;
    let mut sums = [[0u64; 8]; 4];
    for at in 0..length {
        for stream in 0..N {
            let line = &lines[stream * length + at];
            for lane in 0..8 {
                sums[stream % 4][lane] ^= line[lane];
            }
        }
    }
    sums.iter().flatten().fold(0, |a, b| a ^ b)
}

#[inline(always)]
fn fold(lines: &[Line]) -> u64 {
    let mut sums = [0u64; 8];
    for line in lines {
        for lane in 0..8 {
            sums[lane] ^= line[lane];
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}
