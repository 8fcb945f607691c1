//! Loops of multiply-adds: the peak, and a test whether a core can load the operands concurrently.
//!
//! They are assembly: a compiler that spills one accumulator halves the peak, and every share
//! measured against it doubles.

#[cfg(target_arch = "x86_64")]
mod amx;

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

use kernels::Variant;

/// Returns true if the variant's bf16 linears have dedicated instructions that multiply bf16.
pub fn has_bf16(variant: Variant) -> bool {
    match variant {
        #[cfg(target_arch = "x86_64")]
        Variant::Avx512Bf16 | Variant::Amx => variant.is_available(),
        _ => false,
    }
}

/// Runs `rounds` of the variant's loop of products of bf16, if [`has_bf16`], and returns the number
/// of operations; a round of tiles takes about as long as one of the other loops.
pub fn bf16(variant: Variant, rounds: u64) -> f64 {
    assert!(has_bf16(variant), "{} has no products of bf16", variant.name());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the variant can be used here, as was just checked.
    unsafe {
        if variant == Variant::Amx { amx::products(rounds / 6) } else { fma_bf16(rounds) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("products of bf16 are {rounds} rounds of x86")
}

/// Runs `rounds` of the variant's f32 loop, all operands in registers, and returns the number of
/// operations.
pub fn in_registers(variant: Variant, rounds: u64) -> f64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a variant that could be chosen has its instructions here, and each loop uses only
    // those of its own variant.
    unsafe {
        if variant >= Variant::Avx512 {
            return fma_512(rounds);
        } else if variant == Variant::Avx2 {
            return fma_256(rounds);
        }
    }
    let _ = variant;
    fma_scalar(rounds)
}

/// Runs the same number of operations as [`in_registers`], with operands loaded like in a linear's
/// register tile. Portable code has no such loop: a core counts as alone.
pub fn loading(variant: Variant, rounds: u64) -> f64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        if variant >= Variant::Avx512 {
            return load_fma_512(rounds * 20 / 24);
        } else if variant == Variant::Avx2 {
            return load_fma_256(rounds);
        }
    }
    in_registers(variant, rounds)
}

/// Runs multiply-adds without intrinsics, like the portable kernels.
fn fma_scalar(rounds: u64) -> f64 {
    let mut sums = [0.0f32; 16];
    let (a, b) = std::hint::black_box((0.0f32, 1.0f32));
    for _ in 0..rounds / 4 {
        for sum in &mut sums {
            *sum += a * b;
        }
        std::hint::black_box(&mut sums);
    }
    (rounds / 4) as f64 * 32.0
}

/// Applies `$op` to each register `$n`, with `$a` and `$b` of the same width as operands.
#[cfg(target_arch = "x86_64")]
macro_rules! each {
    ($op:literal, $width:literal, $a:literal, $b:literal; $($n:literal)*) => {
        concat!($($op, " ", $width, $n, ", ", $width, $a, ", ", $width, $b, "\n"),*)
    };
}

/// Zeroes `$width` registers: no NaN and no subnormal slows the loop down.
#[cfg(target_arch = "x86_64")]
macro_rules! zero {
    ($width:literal; $($n:literal)*) => {
        concat!($("vxorps ", $width, $n, ", ", $width, $n, ", ", $width, $n, "\n"),*)
    };
}

/// Applies `$op` to every accumulator `$n`, `$rounds` times: there are more accumulators than the
/// latency of a multiply-add in cycles times the number that start in each.
#[cfg(target_arch = "x86_64")]
macro_rules! fma_loop {
    ($rounds:ident, $op:literal, $width:literal, $a:literal, $b:literal; $($n:literal)*) => {
        asm!(
            zero!($width; $a $b $($n)*),
            "2:",
            each!($op, $width, $a, $b; $($n)*),
            "dec rcx",
            "jnz 2b",
            inout("rcx") $rounds => _,
            clobber_abi("C"),
            options(nomem, nostack),
        )
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn fma_512(rounds: u64) -> f64 {
    // SAFETY: registers only, all declared; assembly because nothing may be spilled.
    unsafe {
        fma_loop!(rounds, "vfmadd231ps", "zmm", "30", "31";
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19");
    }
    rounds as f64 * 20.0 * 32.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn fma_bf16(rounds: u64) -> f64 {
    // SAFETY: as above; the caller promised AVX512-BF16.
    unsafe {
        fma_loop!(rounds, "vdpbf16ps", "zmm", "30", "31";
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15" "16" "17" "18" "19");
    }
    rounds as f64 * 20.0 * 64.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_256(rounds: u64) -> f64 {
    // SAFETY: as above.
    unsafe {
        fma_loop!(rounds, "vfmadd231ps", "ymm", "14", "15";
            "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11");
    }
    rounds as f64 * 12.0 * 16.0
}

/// Runs `$rounds` times `$rows` of a broadcast and a product with each of the weights, all in L1.
#[cfg(target_arch = "x86_64")]
macro_rules! load_fma_loop {
    ($rounds:ident, $operands:ident, $width:literal, $x:literal;
     $($weight:literal)*; $([$at:literal: $($sum:literal $by:literal)*])*) => {
        asm!(
            zero!($width; $($($sum)*)*),
            "2:",
            $(concat!("vmovups ", $width, $weight, ", [{operands}]"),)*
            $(
                concat!("vbroadcastss ", $width, $x, ", [{operands} + ", $at, "]"),
                $(concat!("vfmadd231ps ", $width, $sum, ", ", $width, $by, ", ", $width, $x),)*
            )*
            "dec rcx",
            "jnz 2b",
            operands = in(reg) $operands.as_ptr(),
            inout("rcx") $rounds => _,
            clobber_abi("C"),
            options(readonly, nostack),
        )
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
fn load_fma_512(rounds: u64) -> f64 {
    let operands = Operands([0.0; 32]);
    let operands = &operands.0;
    // SAFETY: reads the operands; registers are all declared.
    unsafe {
        load_fma_loop!(rounds, operands, "zmm", "31"; "28" "29" "30";
            ["0": "0" "28" "1" "29" "2" "30"] ["4": "3" "28" "4" "29" "5" "30"]
            ["8": "6" "28" "7" "29" "8" "30"] ["12": "9" "28" "10" "29" "11" "30"]
            ["16": "12" "28" "13" "29" "14" "30"] ["20": "15" "28" "16" "29" "17" "30"]
            ["24": "18" "28" "19" "29" "20" "30"] ["28": "21" "28" "22" "29" "23" "30"]);
    }
    rounds as f64 * 24.0 * 32.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn load_fma_256(rounds: u64) -> f64 {
    let operands = Operands([0.0; 32]);
    let operands = &operands.0;
    // SAFETY: as above.
    unsafe {
        load_fma_loop!(rounds, operands, "ymm", "15"; "13" "14";
            ["0": "0" "13" "1" "14"] ["4": "2" "13" "3" "14"] ["8": "4" "13" "5" "14"]
            ["12": "6" "13" "7" "14"] ["16": "8" "13" "9" "14"] ["20": "10" "13" "11" "14"]);
    }
    rounds as f64 * 12.0 * 16.0
}

/// Operands that a loop loads, within two lines.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(64))]
struct Operands([f32; 32]);
