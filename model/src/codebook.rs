//! Tables of values that the codes of low-bit weights select.

use serde::{Deserialize, Serialize};

/// Tables of at most sixteen signed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Codebook {
    /// The table of GGUF's IQ4_NL and IQ4_XS.
    NonLinear,
    /// The floats of MXFP4 times two: a sign, two bits of exponent and one bit of mantissa.
    E2M1,
    /// The integers 0 to 3: GGUF's Q2_K.
    Unsigned,
    /// The integers -1 to 2: GGUF's TQ1_0 and TQ2_0.
    Ternary,
    /// The integers -4 to 3: GGUF's Q3_K.
    Signed,
    /// Eight times the values of GGUF's IQ2_XXS, IQ2_XS and IQ2_S: a sign above two bits.
    Iq2,
    /// Four times the values of GGUF's IQ3_XXS: a sign above three bits.
    Iq3Xxs,
    /// The values of GGUF's IQ3_S: a sign above three bits.
    Iq3S,
    /// Eight times the values of GGUF's IQ1_S and IQ1_M: the sign of an offset of one above -1, 0
    /// and 1.
    Iq1,
}

impl Codebook {
    /// Returns the number of bits of an index.
    pub const fn index_bits(self) -> usize {
        match self {
            Codebook::Unsigned | Codebook::Ternary => 2,
            Codebook::Signed | Codebook::Iq2 | Codebook::Iq1 => 3,
            Codebook::NonLinear | Codebook::E2M1 | Codebook::Iq3Xxs | Codebook::Iq3S => 4,
        }
    }

    /// Returns the value for each index, and zeros.
    pub const fn values(self) -> [i8; 16] {
        match self {
            Codebook::NonLinear => {
                [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
            }
            Codebook::E2M1 => [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
            Codebook::Unsigned => padded([0, 1, 2, 3]),
            Codebook::Ternary => padded([-1, 0, 1, 2]),
            Codebook::Signed => padded([-4, -3, -2, -1, 0, 1, 2, 3]),
            Codebook::Iq2 => padded([8, 25, 43, 0, -8, -25, -43, 0]),
            Codebook::Iq3Xxs => {
                [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62]
            }
            Codebook::Iq3S => [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15],
            Codebook::Iq1 => padded([-7, 1, 9, 0, -9, -1, 7, 0]),
        }
    }

    /// Returns the power of two by which scales that are products are multiplied in addition.
    /// Applied to the f16 of a row, it could round.
    pub const fn unit(self) -> f32 {
        match self {
            Codebook::Iq2 | Codebook::Iq1 => 0.125,
            Codebook::Iq3Xxs => 0.25,
            Codebook::NonLinear
            | Codebook::E2M1
            | Codebook::Unsigned
            | Codebook::Ternary
            | Codebook::Signed
            | Codebook::Iq3S => 1.0,
        }
    }
}

/// Returns a table followed by zeros.
const fn padded<const N: usize>(values: [i8; N]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut index = 0;
    while index < N {
        table[index] = values[index];
        index += 1;
    }
    table
}
