//! 8-bit floats with four bits of exponent and three bits of mantissa (E4M3).

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
}
