//! Formats of files that linears multiply as they are stored.

use model::quantized_format::{Bits, Codebook, Grouped, ScaleLayout};

use crate::launch::{KernelLaunch, warps_of_segments};

/// Kernels for one stored format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredKernels {
    format: Grouped,
    /// Linears by the maximum number of rows of a block: 8, 16, 32 and 64.
    linear: [&'static str; 4],
    /// Linears of a mixture of experts, by rows as in `linear`.
    expert: [&'static str; 4],
}

/// Maximum number of warps of a block, by its rows as in [`StoredKernels::linear`].
const MAX_WARPS: [u32; 4] = [6, 6, 6, 4];
/// Columns of a block.
const COLUMNS: u32 = 32;
/// Bytes of a warp for the heads of the records of 256 inputs.
const HEADS_BYTES: u32 = 1024;
/// Bytes of a warp for the scales and minimums of 256 inputs, in whose place its sums go.
const RANGES_BYTES: u32 = 2048;

/// Names the kernels of a format, for example those that begin with `linear_q4_k`.
macro_rules! kernels {
    ($format:expr, $name:literal) => {
        StoredKernels {
            format: $format,
            linear: [
                concat!("linear_", $name, "_8_bf16"),
                concat!("linear_", $name, "_16_bf16"),
                concat!("linear_", $name, "_32_bf16"),
                concat!("linear_", $name, "_64_bf16"),
            ],
            expert: [
                concat!("expert_", $name, "_8_bf16"),
                concat!("expert_", $name, "_16_bf16"),
                concat!("expert_", $name, "_32_bf16"),
                concat!("expert_", $name, "_64_bf16"),
            ],
        }
    };
}

static STORED: [StoredKernels; 8] = [
    kernels!(Grouped::GGUF_Q4_K, "q4_k"),
    kernels!(Grouped::GGUF_Q5_K, "q5_k"),
    kernels!(Grouped::GGUF_Q6_K, "q6_k"),
    kernels!(Grouped::GGUF_Q5_0, "q5_0"),
    kernels!(Grouped::GGUF_Q5_1, "q5_1"),
    kernels!(Grouped::GGUF_IQ4_NL, "iq4_nl"),
    kernels!(Grouped::GGUF_IQ4_XS, "iq4_xs"),
    kernels!(Grouped::GGUF_MXFP4, "mxfp4"),
];

/// Returns the codes of integers and scales in `source/compressed/stored.cuh`.
pub(crate) fn stored_codes(format: Grouped) -> (u32, u32) {
    let codes = match format.bits {
        Bits::Four => 0,
        Bits::Five => 1,
        Bits::FiveSigned => 2,
        Bits::SixSigned => 3,
        Bits::Table(table) => match table.index_bits() {
            2 => 5,
            3 => 6,
            _ => 4,
        },
        Bits::Eight => panic!("8 bits are not widened"),
    };
    let scales = match format.scales {
        ScaleLayout::Halves => 0,
        ScaleLayout::HalfScales => 1,
        ScaleLayout::PowersOfTwo => 2,
        ScaleLayout::Products => 3,
        ScaleLayout::ProductsAndMinimums => 4,
        ScaleLayout::HalfByteProducts => 5,
        ScaleLayout::SuperScales => 6,
        ScaleLayout::FloatProducts => 7,
        ScaleLayout::Floats => panic!("{format:?} is no stored form"),
    };
    (codes, scales)
}

impl StoredKernels {
    /// Returns the kernels for a format, if linears multiply it as it is stored.
    pub(crate) fn find(format: Grouped) -> Option<&'static StoredKernels> {
        STORED.iter().find(|kernels| kernels.format == format)
    }

    /// Returns the number of the format for kernels that read any stored format, as in
    /// `source/compressed/forms.cuh`.
    pub(crate) fn form(&self) -> u32 {
        let (codes, scales) = stored_codes(self.format);
        let table = match self.format.bits {
            Bits::Table(Codebook::E2M1) => 1,
            _ => 0,
        };
        self.format.group as u32 | codes << 8 | scales << 12 | table << 16
    }

    /// Returns the launch of a linear over `k` inputs. `rows` is its number of rows or, with
    /// `is_expert`, the average of an expert. `launch` returns a launch from a kernel's name,
    /// columns and rows of a block, and bytes of shared memory.
    pub(crate) fn launch(
        &self,
        rows: u32,
        k: u32,
        is_expert: bool,
        launch: impl Fn(&'static str, u32, u32, u32) -> KernelLaunch,
    ) -> KernelLaunch {
        let index = match rows {
            ..=8 => 0,
            9..=16 => 1,
            17..=32 => 2,
            _ => 3,
        };
        let name = if is_expert { self.expert[index] } else { self.linear[index] };
        let warps = warps_of_segments(k, MAX_WARPS[index]);
        let block_rows = 8 << index;
        let sums_bytes = COLUMNS * block_rows * 4;
        let warp_bytes = sums_bytes.max(RANGES_BYTES) + HEADS_BYTES;
        let launch = launch(name, COLUMNS, block_rows, sums_bytes + warps * warp_bytes);
        KernelLaunch { block: [32 * warps, 1, 1], ..launch }
    }
}

/// Returns true if linears multiply weights of `format` as they are stored in files, not expanded
/// to 8 bits.
pub fn multiplies_stored(format: Grouped) -> bool {
    StoredKernels::find(format).is_some()
}
