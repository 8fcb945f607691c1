//! Tests of the emulator itself, against plain Rust and against the processor if it has the
//! instructions: addressing forms, tile shapes, register numbers, order and flushing of the
//! products.

use std::arch::asm;

use crate::common::Random;
use crate::emulate::emulated;
use kernels::Variant;

/// Returns true if the tile instructions work here, natively or emulated.
fn ready(test: &str) -> bool {
    // The check of the variant requests the permission to use tiles, if there are any.
    let native = Variant::Amx.is_available();
    let ready = native || crate::emulate::install();
    if !ready {
        println!("SKIP {test}: neither the instructions nor AVX-512 to emulate them");
    }
    ready
}

/// Returns true if `vdpbf16ps` works here.
fn vectors_ready(test: &str) -> bool {
    let ready = crate::emulate::install();
    if !ready {
        println!("SKIP {test}: no AVX-512");
    }
    ready
}

#[repr(C, align(64))]
struct Config([u8; 64]);

fn config(shapes: &[(u8, u16)]) -> Config {
    let mut bytes = [0u8; 64];
    bytes[0] = 1;
    for (tile, (rows, row_bytes)) in shapes.iter().enumerate() {
        bytes[16 + 2 * tile..18 + 2 * tile].copy_from_slice(&row_bytes.to_le_bytes());
        bytes[48 + tile] = *rows;
    }
    Config(bytes)
}

fn dwords(random: &mut Random, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.bits() as u32).collect()
}

/// Returns pairs of bf16: mostly ordinary numbers, some zeros and subnormals.
fn pairs(random: &mut Random, count: usize) -> Vec<u32> {
    let mut half = || {
        let value = random.unit().to_bits() >> 16;
        match random.below(12) {
            0 => 0,
            1 => value & 0x807f,
            2 => value & 0x807f | 0x0100,
            _ => value,
        }
    };
    (0..count).map(|_| half() | half() << 16).collect()
}

#[test]
fn tiles_are_loaded_and_stored_by_every_addressing_form() {
    if !ready("tiles_are_loaded_and_stored_by_every_addressing_form") {
        return;
    }
    let mut random = Random::new(1);
    let from = dwords(&mut random, 16 * 24);
    let config = config(&[(16, 64), (3, 20), (1, 64), (16, 4), (9, 36)]);
    let (base, stride) = (from.as_ptr(), 96usize);
    let mut to = vec![vec![7u32; 16 * 40]; 5];
    let count = emulated();
    // SAFETY: every load reads rows of a tile's shape, 96 bytes apart, within `from`; every store
    // writes rows within its vector of `to`: 64, 160, 64, 16 and 128 bytes apart.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tileloadd tmm0, [{base} + {stride}]",
            "tilestored [{to0} + {line}], tmm0",
            // Scaled index, displacement of one byte.
            "lea {scaled}, [{stride} - 72]",
            "tileloadd tmm1, [{base} + {scaled}*4 + 16]",
            "tilestored [{to1} + {line}*2 + 32], tmm1",
            // Displacement of four bytes; the hint that data is used once.
            "tileloaddt1 tmm2, [{base} + {stride} + 480]",
            "tilestored [{to2} + {line}], tmm2",
            "tileloadd tmm3, [r13 + r14*8 - 4]",
            "shr {line}, 2",
            "tilestored [{to3} + {line}], tmm3",
            "shl {line}, 3",
            "tileloadd tmm4, [r12 + {stride}]",
            "tilestored [{to4} + {line}], tmm4",
            "tilerelease",
            config = in(reg) &config,
            base = in(reg) base,
            stride = in(reg) stride,
            scaled = out(reg) _,
            line = inout(reg) 64usize => _,
            to0 = in(reg) to[0].as_mut_ptr(),
            to1 = in(reg) to[1].as_mut_ptr(),
            to2 = in(reg) to[2].as_mut_ptr(),
            to3 = in(reg) to[3].as_mut_ptr(),
            to4 = in(reg) to[4].as_mut_ptr(),
            in("r12") base.add(2),
            in("r13") base.add(3),
            in("r14") 12usize,
            options(nostack),
        );
    }
    let row = |first: usize, row: usize, len: usize| &from[first + row * 24..][..len];
    let check = |to: &[u32], at: &dyn Fn(usize) -> usize, rows: usize, first: usize, len: usize| {
        let mut expected = vec![7u32; to.len()];
        for r in 0..rows {
            expected[at(r)..at(r) + len].copy_from_slice(row(first, r, len));
        }
        assert_eq!(to, expected);
    };
    check(&to[0], &|r| r * 16, 16, 0, 16);
    check(&to[1], &|r| r * 32 + 8, 3, 4, 5);
    check(&to[2], &|r| r * 16, 1, 120, 16);
    check(&to[3], &|r| r * 4, 16, 2, 1);
    check(&to[4], &|r| r * 32, 9, 2, 9);
    assert!(Variant::Amx.is_available() || emulated() - count == 12);
}

/// Computes `sums + rows · columns` with the documented order and flushing, independently of the
/// emulator.
fn model_of_products(
    (m, n, k): (usize, usize, usize),
    sums: &[u32],
    rows: &[u32],
    columns: &[u32],
) -> Vec<u32> {
    let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
    let value = |pair: u32, odd: usize| {
        let bits = if odd == 1 { (pair >> 16) as u16 } else { pair as u16 };
        flush(half::bf16::from_bits(bits).to_f32())
    };
    let mut out = Vec::new();
    for i in 0..m {
        for j in 0..n {
            let mut halves = [0.0f32; 2];
            for (odd, sum) in halves.iter_mut().enumerate() {
                for p in 0..k {
                    let (a, b) = (value(rows[i * 16 + p], odd), value(columns[p * 16 + j], odd));
                    // The product of two bf16 is exact in f64; fusing means that only the sum
                    // rounds.
                    *sum = flush(a.mul_add(b, *sum));
                }
            }
            let sum = flush(f32::from_bits(sums[i * 16 + j]));
            out.push(flush(sum + flush(halves[0] + halves[1])).to_bits());
        }
    }
    out
}

#[test]
fn tile_products_are_those_of_the_manual() {
    if !ready("tile_products_are_those_of_the_manual") {
        return;
    }
    let mut random = Random::new(2);
    for (m, n, k) in [(16, 16, 16), (1, 16, 16), (16, 1, 1), (5, 7, 3), (16, 3, 16), (2, 16, 15)] {
        let (rows, columns) = (pairs(&mut random, 256), pairs(&mut random, 256));
        let before: Vec<u32> = (0..256)
            .map(|at| {
                let value = random.unit();
                // Occasional subnormal sums, which count as zero.
                if at % 9 == 0 { value.to_bits() & 0x807f_ffff } else { value.to_bits() }
            })
            .collect();
        let mut sums = before.clone();
        let bytes = |dwords: usize| 4 * dwords as u16;
        let config = config(&[
            (1, 4),
            (1, 4),
            (m as u8, bytes(k)),
            (k as u8, bytes(n)),
            (1, 4),
            (m as u8, bytes(n)),
        ]);
        let mut zeros = [9u32; 256];
        // SAFETY: whole tiles of 16 rows 64 bytes apart start at every pointer.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tileloadd tmm2, [{rows} + {line}]",
                "tileloadd tmm3, [{columns} + {line}]",
                "tileloadd tmm5, [{sums} + {line}]",
                "tdpbf16ps tmm5, tmm2, tmm3",
                "tilestored [{sums} + {line}], tmm5",
                "tilezero tmm5",
                "tilestored [{zeros} + {line}], tmm5",
                "tilerelease",
                config = in(reg) &config,
                rows = in(reg) rows.as_ptr(),
                columns = in(reg) columns.as_ptr(),
                sums = in(reg) sums.as_mut_ptr(),
                zeros = in(reg) zeros.as_mut_ptr(),
                line = in(reg) 64usize,
                options(nostack),
            );
        }
        let expected = model_of_products((m, n, k), &before, &rows, &columns);
        for at in 0..256 {
            let (i, j) = (at / 16, at % 16);
            let within = i < m && j < n;
            let (sum, zero) = if within { (expected[i * n + j], 0) } else { (before[at], 9) };
            assert_eq!(sums[at], sum, "{m}x{n}x{k} at {i}, {j}");
            assert_eq!(zeros[at], zero, "{m}x{n}x{k} at {i}, {j}");
        }
    }
}

#[test]
fn tile_products_of_bytes_are_exact() {
    if !ready("tile_products_of_bytes_are_exact") {
        return;
    }
    let mut random = Random::new(3);
    for (m, n, k) in [(16, 16, 16), (1, 16, 8), (16, 1, 1), (5, 7, 3)] {
        let mut dwords = || -> Vec<u32> { (0..256).map(|_| random.bits() as u32).collect() };
        let (rows, columns, before) = (dwords(), dwords(), dwords());
        let mut sums = before.clone();
        let bytes = |dwords: usize| 4 * dwords as u16;
        let config =
            config(&[(m as u8, bytes(k)), (k as u8, bytes(n)), (m as u8, bytes(n)), (1, 4)]);
        // SAFETY: whole tiles of 16 rows 64 bytes apart start at every pointer.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tileloadd tmm0, [{rows} + {line}]",
                "tileloadd tmm1, [{columns} + {line}]",
                "tileloadd tmm2, [{sums} + {line}]",
                "tdpbsud tmm2, tmm0, tmm1",
                "tilestored [{sums} + {line}], tmm2",
                "tilerelease",
                config = in(reg) &config,
                rows = in(reg) rows.as_ptr(),
                columns = in(reg) columns.as_ptr(),
                sums = in(reg) sums.as_mut_ptr(),
                line = in(reg) 64usize,
                options(nostack),
            );
        }
        for at in 0..256 {
            let (i, j) = (at / 16, at % 16);
            let mut expected = i64::from(before[at].cast_signed());
            if i < m && j < n {
                for d in 0..k {
                    let (a, b) = (rows[i * 16 + d], columns[d * 16 + j]);
                    for byte in 0..4 {
                        let (a, b) = ((a >> (8 * byte)) as i8, (b >> (8 * byte)) as u8);
                        expected += i64::from(a) * i64::from(b);
                    }
                }
            }
            assert_eq!(sums[at], expected as u32, "{m}x{n}x{k} at {i}, {j}");
        }
        // Tests the emulator's own arithmetic, even if the processor has the instruction.
        let columns: Vec<[u32; 16]> = columns.as_chunks().0.to_vec();
        for i in 0..m {
            let mut row: [u32; 16] = before[i * 16..][..16].try_into().expect("16 dwords");
            let columns = columns.as_slice().try_into().expect("16 rows");
            crate::emulate::products::dot_bytes_row(&mut row, &rows[i * 16..][..k], columns);
            assert_eq!(row[..n], sums[i * 16..][..n], "{m}x{n}x{k} row {i}");
        }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn dot_products(sums: &mut [[u32; 16]; 5], a: &[u32; 16], b: &[u32; 16]) {
    // SAFETY: all operands are vectors of 64 bytes, and registers outside the listed ones are
    // preserved.
    unsafe {
        asm!(
            "vmovups zmm7, [{a}]",
            "vmovups zmm29, [{b}]",
            // Register forms: low, and high numbers of every operand.
            "vmovups zmm3, [{sums}]",
            "vdpbf16ps zmm3, zmm7, zmm29",
            "vmovups [{sums}], zmm3",
            "vmovups zmm18, [{sums} + 64]",
            "vmovups zmm9, zmm29",
            "vmovups zmm26, zmm7",
            "vdpbf16ps zmm18, zmm26, zmm9",
            "vmovups [{sums} + 64], zmm18",
            // Memory: a scaled displacement of one byte, then one of four.
            "vmovups zmm31, [{sums} + 128]",
            "lea {at}, [{b} - 128]",
            "vdpbf16ps zmm31, zmm7, [{at} + 128]",
            "vmovups [{sums} + 128], zmm31",
            // A broadcast dword, in units of four bytes; and with an index.
            "vmovups zmm12, [{sums} + 192]",
            "vdpbf16ps zmm12, zmm26, dword ptr [{b} + 20]{{1to16}}",
            "vmovups [{sums} + 192], zmm12",
            "vmovups zmm17, [{sums} + 256]",
            "mov {at}, 3",
            "vdpbf16ps zmm17, zmm7, dword ptr [{b} + {at}*8 + 1]{{1to16}}",
            "vmovups [{sums} + 256], zmm17",
            a = in(reg) a,
            b = in(reg) b,
            sums = in(reg) sums,
            at = out(reg) _,
            out("zmm3") _, out("zmm7") _, out("zmm9") _, out("zmm12") _, out("zmm17") _,
            out("zmm18") _, out("zmm26") _, out("zmm29") _, out("zmm31") _,
            options(nostack),
        );
    }
}

#[test]
fn vector_products_are_those_of_the_manual() {
    if !vectors_ready("vector_products_are_those_of_the_manual") {
        return;
    }
    let mut random = Random::new(3);
    for round in 0..50 {
        let vector = |values: Vec<u32>| -> [u32; 16] { values.try_into().expect("sixteen") };
        let a = vector(pairs(&mut random, 16));
        let b = vector(pairs(&mut random, 16));
        let before: [[u32; 16]; 5] =
            std::array::from_fn(|_| std::array::from_fn(|_| random.unit().to_bits()));
        let mut sums = before;
        // SAFETY: `vectors_ready` reported that AVX-512 is present and that the instruction works.
        unsafe { dot_products(&mut sums, &a, &b) };
        // Dword 5, and the dword that starts one byte after dword 6.
        let bytes: Vec<u8> = b.iter().flat_map(|dword| dword.to_le_bytes()).collect();
        let odd = u32::from_le_bytes([bytes[25], bytes[26], bytes[27], bytes[28]]);
        let factors = [b, b, b, [b[5]; 16], [odd; 16]];
        for (form, (factors, before)) in factors.iter().zip(&before).enumerate() {
            for lane in 0..16 {
                let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
                let half = |pair: u32, odd: u32| {
                    flush(half::bf16::from_bits((pair >> (16 * odd)) as u16).to_f32())
                };
                let mut sum = f32::from_bits(before[lane]);
                for odd in [1, 0] {
                    sum = flush(half(a[lane], odd).mul_add(half(factors[lane], odd), sum));
                }
                let actual = f32::from_bits(sums[form][lane]);
                assert!(
                    actual.to_bits() == sum.to_bits() || actual.is_nan() && sum.is_nan(),
                    "round {round} form {form} lane {lane}: {actual} instead of {sum}"
                );
            }
        }
    }
}

#[test]
fn an_instruction_that_is_not_emulated_still_ends_the_process() {
    const CHILD: &str = "TANDEM_TEST_ILLEGAL";
    if std::env::var_os(CHILD).is_some() {
        crate::emulate::install();
        // SAFETY: the instruction is defined to be illegal; this process exists to die of it.
        unsafe { asm!("ud2") };
    }
    use std::os::unix::process::ExitStatusExt;
    let test = "emulated_instructions::an_instruction_that_is_not_emulated_still_ends_the_process";
    let program = std::env::current_exe().expect("this program has a name");
    let status = std::process::Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::null())
        .status()
        .expect("this program starts again");
    assert_eq!(status.signal(), Some(libc::SIGILL));
}
