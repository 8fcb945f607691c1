//! Products of AMX tiles.

use std::arch::asm;

/// Operand of `ldtilecfg`: palette 1, two bytes per row of each tile from byte 16, rows from byte
/// 48.
#[repr(align(64))]
struct Config([u8; 64]);

/// Number of operations of a product of two whole tiles: 16 by 16 sums over 32 inputs.
const OPERATIONS: f64 = 2.0 * 16.0 * 16.0 * 32.0;

/// Runs `rounds` of four products, two tiles by two, all in registers, and returns the number of
/// operations.
///
/// # Safety
/// AMX-BF16 may be used by this process.
pub unsafe fn products(rounds: u64) -> f64 {
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    for tile in 0..8 {
        config.0[16 + 2 * tile] = 64;
        config.0[48 + tile] = 16;
    }
    // SAFETY: the caller's promise; reads `config`, and loading a configuration zeroes every tile:
    // no NaN and no subnormal slows the loop down.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm5, tmm6",
            "tdpbf16ps tmm2, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {rounds}",
            "jnz 2b",
            "tilerelease",
            config = in(reg) &config,
            rounds = inout(reg) rounds => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly),
        );
    }
    rounds as f64 * 4.0 * OPERATIONS
}
