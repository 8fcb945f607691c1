//! Search for weights that are not finite. A single pass over the bits shows whether there are any.

use half::{bf16, f16};
use model::source::StoredType;
use model::source::low_bit::LowBitBlock;

/// Exponent bits of an infinity or a NaN.
const BF16_EXPONENT: u16 = 0x7f80;
const F32_EXPONENT: u32 = 0x7f80_0000;
/// Largest exponent of MXFP4 with which f32 can represent all values.
const MXFP4_LARGEST: u8 = 252;

/// Returns the index of the first value that is infinite or NaN.
pub(super) fn first_bf16(values: &[bf16]) -> Option<usize> {
    let largest = values.iter().map(|value| value.to_bits() & 0x7fff).max().unwrap_or(0);
    let found = largest >= BF16_EXPONENT;
    found.then(|| values.iter().position(|value| !value.is_finite())).flatten()
}

/// Returns the index of the first value that is infinite or NaN.
pub(super) fn first_f32(values: &[f32]) -> Option<usize> {
    let largest = values.iter().map(|value| value.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let found = largest >= F32_EXPONENT;
    found.then(|| values.iter().position(|value| !value.is_finite())).flatten()
}

/// Returns the index of the first value of the first block whose scale or minimum is not finite.
pub(super) fn first_in_blocks(stored: StoredType, blocks: &[u8]) -> Option<usize> {
    let (elements, block_bytes) = stored.block();
    if stored == StoredType::Mxfp4 {
        let block = blocks.chunks_exact(block_bytes).position(|block| block[0] > MXFP4_LARGEST);
        return block.map(|block| block * elements);
    }
    if stored == StoredType::Iq1M {
        // The bits of its factor are in four places.
        let is_finite = |block: &[u8]| {
            LowBitBlock::decode(stored, block).is_some_and(|decoded| decoded.scale.is_finite())
        };
        let block = blocks.chunks_exact(block_bytes).position(|block| !is_finite(block));
        return block.map(|block| block * elements);
    }
    // Offset and number of the f16 factors of a block.
    let (first, factors) = match stored {
        StoredType::Q4_0 | StoredType::Q5_0 | StoredType::Q8_0 => (0, 1),
        StoredType::Iq4Nl | StoredType::Iq4Xs | StoredType::Iq2Xxs | StoredType::Iq2Xs => (0, 1),
        StoredType::Iq2S | StoredType::Iq3Xxs | StoredType::Iq3S | StoredType::Iq1S => (0, 1),
        StoredType::Q4_1 | StoredType::Q5_1 | StoredType::Q4K | StoredType::Q5K => (0, 2),
        StoredType::Q2K => (block_bytes - 4, 2),
        StoredType::Q3K | StoredType::Q6K | StoredType::Tq1 | StoredType::Tq2 => {
            (block_bytes - 2, 1)
        }
        _ => return None,
    };
    let is_finite = |block: &[u8]| {
        block[first..]
            .chunks_exact(2)
            .take(factors)
            .all(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]).is_finite())
    };
    let block = blocks.chunks_exact(block_bytes).position(|block| !is_finite(block));
    block.map(|block| block * elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_that_is_not_finite() {
        let mut values = vec![1.0f32; 1000];
        values[3] = 3.0e38;
        values[4] = -f32::MIN_POSITIVE;
        assert_eq!(first_f32(&values), None);
        let narrow = |values: &[f32]| -> Vec<bf16> {
            values.iter().map(|value| bf16::from_f32(*value)).collect()
        };
        for (index, value) in [(999, f32::NAN), (500, f32::INFINITY), (17, f32::NEG_INFINITY)] {
            values[index] = value;
            assert_eq!(first_f32(&values), Some(index));
            values[3] = 0.0;
            assert_eq!(first_bf16(&narrow(&values)), Some(index));
        }
    }

    #[test]
    fn the_factors_of_a_block_are_looked_at_and_its_values_are_not() {
        for (stored, first, factors) in [
            (StoredType::Q4_0, 0, 1),
            (StoredType::Q4_1, 0, 2),
            (StoredType::Q5_0, 0, 1),
            (StoredType::Q5_1, 0, 2),
            (StoredType::Q8_0, 0, 1),
            (StoredType::Q4K, 0, 2),
            (StoredType::Q5K, 0, 2),
            (StoredType::Q6K, 208, 1),
            (StoredType::Iq4Nl, 0, 1),
            (StoredType::Iq4Xs, 0, 1),
            (StoredType::Q2K, 80, 2),
            (StoredType::Q3K, 108, 1),
            (StoredType::Iq2Xxs, 0, 1),
            (StoredType::Iq2Xs, 0, 1),
            (StoredType::Iq2S, 0, 1),
            (StoredType::Iq3Xxs, 0, 1),
            (StoredType::Iq3S, 0, 1),
            (StoredType::Iq1S, 0, 1),
            (StoredType::Tq1, 52, 1),
            (StoredType::Tq2, 64, 1),
        ] {
            let (elements, block_bytes) = stored.block();
            // Any bits of the values are finite numbers, and so are these factors.
            let mut blocks = vec![0xff_u8; 5 * block_bytes];
            for block in blocks.chunks_exact_mut(block_bytes) {
                block[first..first + 2 * factors].fill(0x3c);
            }
            assert_eq!(first_in_blocks(stored, &blocks), None, "{stored:?}");
            for factor in 0..factors {
                let at = 3 * block_bytes + first + 2 * factor;
                blocks[at..at + 2].copy_from_slice(&f16::NAN.to_le_bytes());
                assert_eq!(first_in_blocks(stored, &blocks), Some(3 * elements), "{stored:?}");
                blocks[at..at + 2].fill(0x3c);
            }
        }
        // The factor of IQ1_M is in the upper four bits of the four last words.
        let mut blocks = [0u8; 3 * 56];
        assert_eq!(first_in_blocks(StoredType::Iq1M, &blocks), None);
        blocks[2 * 56 + 55] = 0x70;
        assert_eq!(first_in_blocks(StoredType::Iq1M, &blocks), None);
        blocks[2 * 56 + 53] = 0xc0;
        assert_eq!(first_in_blocks(StoredType::Iq1M, &blocks), Some(512));
        // The exponent of MXFP4 is a byte; twelve times the power must be representable.
        let mut blocks = [252u8; 3 * 17];
        assert_eq!(first_in_blocks(StoredType::Mxfp4, &blocks), None);
        blocks[17] = 253;
        assert_eq!(first_in_blocks(StoredType::Mxfp4, &blocks), Some(32));
    }
}
