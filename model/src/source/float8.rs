//! 8-bit floats with four bits of exponent and three bits of mantissa (E4M3).

use half::f16;

/// Byte of the largest finite value, 448. Greater bytes are NaN or negative.
pub const E4M3_MAX: u8 = 0x7e;

/// Returns the value of a byte. The format has no infinities.
pub fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, byte & 7);
    let size = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => f32::from(mantissa) * 2f32.powi(-9),
        _ => f32::from(8 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
    };
    if byte >> 7 == 1 { -size } else { size }
}

/// Returns the byte of the nearest finite value to `value`, which is not negative.
pub fn nearest_e4m3(value: f32) -> u8 {
    // An f16 has seven more bits of mantissa, and its exponents have a bias that is greater by
    // eight.
    let bits = f16::from_f32(value / 256.0).to_bits();
    let to_even = 0x3f + (bits >> 7 & 1);
    ((bits + to_even) >> 7).min(E4M3_MAX.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_8_bit_float_is_what_its_bits_say() {
        for byte in 0..=u8::MAX {
            let bits = |first: u32, count: u32| f64::from(byte >> first & ((1 << count) - 1));
            let (sign, exponent, mantissa) = (bits(7, 1), bits(3, 4), bits(0, 3));
            let value = e4m3(byte);
            if exponent == 15.0 && mantissa == 7.0 {
                assert!(value.is_nan());
                continue;
            }
            let size = if exponent == 0.0 {
                mantissa / 8.0 * 2f64.powi(-6)
            } else {
                (1.0 + mantissa / 8.0) * 2f64.powf(exponent - 7.0)
            };
            assert_eq!(f64::from(value), if sign == 1.0 { -size } else { size }, "{byte:#x}");
        }
        assert_eq!((e4m3(0x7e), e4m3(0x38), e4m3(0x01)), (448.0, 1.0, 0.001_953_125));
        assert_eq!(e4m3(0x80).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn the_nearest_8_bit_float_is_found() {
        for byte in 0..=E4M3_MAX {
            assert_eq!(nearest_e4m3(e4m3(byte)), byte);
        }
        for byte in 0..E4M3_MAX {
            let (below, above) = (e4m3(byte), e4m3(byte + 1));
            for (share, expected) in [(0.1, byte), (0.49, byte), (0.51, byte + 1), (0.9, byte + 1)]
            {
                assert_eq!(
                    nearest_e4m3(below + share * (above - below)),
                    expected,
                    "{byte} {share}"
                );
            }
        }
        assert_eq!(nearest_e4m3(1e6), E4M3_MAX);
    }
}
