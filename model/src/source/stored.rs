//! Types in which files store tensors: their blocks, and the grouped formats of the low-bit ones.

use crate::quantized_format::Grouped;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredType {
    F32,
    F16,
    Bf16,
    /// safetensors: 8-bit floats, with factors in a separate tensor.
    F8E4M3,
    /// safetensors: groups of 16 with an 8-bit scale, 4-bit floats; with a factor of the matrix in
    /// a separate tensor, which each block has too.
    Nvfp4,
    /// GGUF: blocks of 32 with an f16 scale, 4-bit values from -8.
    Q4_0,
    /// GGUF: blocks of 32 with an f16 scale and minimum, 4-bit values.
    Q4_1,
    /// GGUF: blocks of 32 with an f16 scale, 5-bit values from -16.
    Q5_0,
    /// GGUF: blocks of 32 with an f16 scale and minimum, 5-bit values.
    Q5_1,
    /// GGUF: blocks of 32 with an f16 scale, int8 values.
    Q8_0,
    /// GGUF: blocks of 256 in 16 parts with 4-bit scales and minimums, 2-bit values.
    Q2K,
    /// GGUF: blocks of 256 in 16 parts with 6-bit scales, 3-bit values from -4.
    Q3K,
    /// GGUF: blocks of 256 in 8 parts with 6-bit scales and minimums, 4-bit values.
    Q4K,
    /// GGUF: blocks of 256 in 8 parts with 6-bit scales and minimums, 5-bit values.
    Q5K,
    /// GGUF: blocks of 256 in 16 parts with 8-bit scales, 6-bit values from -32.
    Q6K,
    /// GGUF: blocks of 32 with an f16 scale, 4-bit indices into a table of int8 values.
    Iq4Nl,
    /// GGUF: blocks of 256 in 8 parts with 6-bit scales, and the table of `Iq4Nl`.
    Iq4Xs,
    /// GGUF: blocks of 32 with an exponent of two, 4-bit floats.
    Mxfp4,
    /// GGUF: blocks of 256 in 8 parts with 4-bit scales; eight values are an entry of a grid of
    /// 256, with signs.
    Iq2Xxs,
    /// GGUF: blocks of 256 in 16 parts with 4-bit scales; eight values are an entry of a grid of
    /// 512, with signs.
    Iq2Xs,
    /// GGUF: as `Iq2Xs`, with a grid of 1024.
    Iq2S,
    /// GGUF: blocks of 256 in 8 parts with 4-bit scales; four values are an entry of a grid of 256,
    /// with signs.
    Iq3Xxs,
    /// GGUF: as `Iq3Xxs`, with a grid of 512.
    Iq3S,
    /// GGUF: blocks of 256 in 8 parts with 3-bit scales and an offset of an eighth; eight values
    /// are an entry of a grid of 2048 of -1, 0 and 1.
    Iq1S,
    /// GGUF: the grid of `Iq1S`, in 16 parts, with an offset for each eight values.
    Iq1M,
    /// GGUF: blocks of 256 with an f16 scale, five of -1, 0 and 1 in a byte.
    Tq1,
    /// GGUF: blocks of 256 with an f16 scale, 2-bit values from -1.
    Tq2,
}

impl StoredType {
    /// All types that can be read.
    pub const ALL: [StoredType; 27] = [
        StoredType::F32,
        StoredType::F16,
        StoredType::Bf16,
        StoredType::F8E4M3,
        StoredType::Nvfp4,
        StoredType::Q4_0,
        StoredType::Q4_1,
        StoredType::Q5_0,
        StoredType::Q5_1,
        StoredType::Q8_0,
        StoredType::Q2K,
        StoredType::Q3K,
        StoredType::Q4K,
        StoredType::Q5K,
        StoredType::Q6K,
        StoredType::Iq4Nl,
        StoredType::Iq4Xs,
        StoredType::Mxfp4,
        StoredType::Iq2Xxs,
        StoredType::Iq2Xs,
        StoredType::Iq2S,
        StoredType::Iq3Xxs,
        StoredType::Iq3S,
        StoredType::Iq1S,
        StoredType::Iq1M,
        StoredType::Tq1,
        StoredType::Tq2,
    ];

    /// Returns the name used by file formats and error messages.
    pub const fn name(self) -> &'static str {
        match self {
            StoredType::F32 => "F32",
            StoredType::F16 => "F16",
            StoredType::Bf16 => "BF16",
            StoredType::F8E4M3 => "F8_E4M3",
            StoredType::Nvfp4 => "NVFP4",
            StoredType::Q4_0 => "Q4_0",
            StoredType::Q4_1 => "Q4_1",
            StoredType::Q5_0 => "Q5_0",
            StoredType::Q5_1 => "Q5_1",
            StoredType::Q8_0 => "Q8_0",
            StoredType::Q2K => "Q2_K",
            StoredType::Q3K => "Q3_K",
            StoredType::Q4K => "Q4_K",
            StoredType::Q5K => "Q5_K",
            StoredType::Q6K => "Q6_K",
            StoredType::Iq4Nl => "IQ4_NL",
            StoredType::Iq4Xs => "IQ4_XS",
            StoredType::Mxfp4 => "MXFP4",
            StoredType::Iq2Xxs => "IQ2_XXS",
            StoredType::Iq2Xs => "IQ2_XS",
            StoredType::Iq2S => "IQ2_S",
            StoredType::Iq3Xxs => "IQ3_XXS",
            StoredType::Iq3S => "IQ3_S",
            StoredType::Iq1S => "IQ1_S",
            StoredType::Iq1M => "IQ1_M",
            StoredType::Tq1 => "TQ1_0",
            StoredType::Tq2 => "TQ2_0",
        }
    }

    /// Returns the number of elements and bytes of a block; one element for plain types.
    pub const fn block(self) -> (usize, usize) {
        match self {
            StoredType::F32 => (1, 4),
            StoredType::F16 | StoredType::Bf16 => (1, 2),
            StoredType::F8E4M3 => (1, 1),
            StoredType::Nvfp4 => (16, 4 + 1 + 8),
            StoredType::Q4_0 => (32, 2 + 16),
            StoredType::Q4_1 => (32, 4 + 16),
            StoredType::Q5_0 => (32, 2 + 4 + 16),
            StoredType::Q5_1 => (32, 4 + 4 + 16),
            StoredType::Q8_0 => (32, 2 + 32),
            StoredType::Q2K => (256, 16 + 64 + 4),
            StoredType::Q3K => (256, 32 + 64 + 12 + 2),
            StoredType::Q4K => (256, 4 + 12 + 128),
            StoredType::Q5K => (256, 4 + 12 + 32 + 128),
            StoredType::Q6K => (256, 128 + 64 + 16 + 2),
            StoredType::Iq4Nl => (32, 2 + 16),
            StoredType::Iq4Xs => (256, 2 + 2 + 4 + 128),
            StoredType::Mxfp4 => (32, 1 + 16),
            StoredType::Iq2Xxs => (256, 2 + 64),
            StoredType::Iq2Xs => (256, 2 + 64 + 8),
            StoredType::Iq2S => (256, 2 + 32 + 32 + 8 + 8),
            StoredType::Iq3Xxs => (256, 2 + 64 + 32),
            StoredType::Iq3S => (256, 2 + 64 + 8 + 32 + 4),
            StoredType::Iq1S => (256, 2 + 32 + 16),
            StoredType::Iq1M => (256, 32 + 16 + 8),
            StoredType::Tq1 => (256, 48 + 4 + 2),
            StoredType::Tq2 => (256, 64 + 2),
        }
    }

    /// Returns true if values take fewer than 16 bits, in which case expanded tensors are larger
    /// than the file.
    pub const fn is_quantised(self) -> bool {
        let (elements, bytes) = self.block();
        bytes < 2 * elements
    }

    /// Returns the number of bytes of a row of `elements` elements, which must be a multiple of a
    /// block.
    pub const fn row_bytes(self, elements: usize) -> usize {
        let (block_elements, block_bytes) = self.block();
        elements / block_elements * block_bytes
    }

    /// Returns the grouped format that represents a matrix of this type without loss, if there is
    /// one.
    pub const fn grouped(self) -> Option<Grouped> {
        match self {
            StoredType::Q4_0 | StoredType::Q4_1 => Some(Grouped::GGUF_Q4),
            StoredType::Q8_0 => Some(Grouped::GGUF_Q8),
            StoredType::Q5_0 => Some(Grouped::GGUF_Q5_0),
            StoredType::Q5_1 => Some(Grouped::GGUF_Q5_1),
            StoredType::Q4K => Some(Grouped::GGUF_Q4_K),
            StoredType::Q5K => Some(Grouped::GGUF_Q5_K),
            StoredType::Q6K => Some(Grouped::GGUF_Q6_K),
            StoredType::Iq4Nl => Some(Grouped::GGUF_IQ4_NL),
            StoredType::Iq4Xs => Some(Grouped::GGUF_IQ4_XS),
            StoredType::Mxfp4 => Some(Grouped::GGUF_MXFP4),
            StoredType::Q2K => Some(Grouped::GGUF_Q2_K),
            StoredType::Q3K => Some(Grouped::GGUF_Q3_K),
            StoredType::Iq2Xxs => Some(Grouped::GGUF_IQ2_XXS),
            StoredType::Iq2Xs | StoredType::Iq2S => Some(Grouped::GGUF_IQ2_S),
            StoredType::Iq3Xxs => Some(Grouped::GGUF_IQ3_XXS),
            StoredType::Iq3S => Some(Grouped::GGUF_IQ3_S),
            StoredType::Iq1S => Some(Grouped::GGUF_IQ1_S),
            StoredType::Iq1M => Some(Grouped::GGUF_IQ1_M),
            StoredType::Tq1 | StoredType::Tq2 => Some(Grouped::GGUF_TQ),
            StoredType::Nvfp4 => Some(Grouped::NVFP4),
            StoredType::F32 | StoredType::F16 | StoredType::Bf16 | StoredType::F8E4M3 => None,
        }
    }
}
