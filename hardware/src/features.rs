//! Instruction sets relevant to the kernels, as supported by both processor and system: registers
//! that the system does not save between threads cannot be used.

/// Names of the usable instruction sets, in a fixed order, as `/proc/cpuinfo` spells them.
pub fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! add {
            ($($name:tt as $shown:literal),* $(,)?) => {
                $(if is_x86_feature_detected!($name) { found.push($shown); })*
            };
        }
        add!(
            "sse4.2" as "sse4_2",
            "avx" as "avx",
            "avx2" as "avx2",
            "fma" as "fma",
            "f16c" as "f16c",
            "avx512f" as "avx512f",
            "avx512bw" as "avx512bw",
            "avx512dq" as "avx512dq",
            "avx512vl" as "avx512vl",
            "avx512vbmi" as "avx512vbmi",
            "avx512vnni" as "avx512_vnni",
            "avx512bf16" as "avx512_bf16",
            "avx512fp16" as "avx512_fp16",
        );
        found.extend(amx());
    }
    found
}

/// Returns the usable AMX features, which the standard library does not detect on the stable
/// channel.
#[cfg(target_arch = "x86_64")]
fn amx() -> Vec<&'static str> {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// XCR0 bits: the system saves tile configuration and tile data.
    const TILES_SAVED: u64 = 0b11 << 17;
    /// Bit of CPUID leaf 1, ECX: XGETBV may be executed.
    const OSXSAVE: u32 = 1 << 27;

    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return Vec::new();
    }
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: needed to read XCR0; register 0 exists wherever XGETBV does.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: needed to call code that uses XGETBV; OSXSAVE says that it may be executed.
    if unsafe { saved() } & TILES_SAVED != TILES_SAVED {
        return Vec::new();
    }
    let edx = __cpuid_count(7, 0).edx;
    [(24, "amx_tile"), (22, "amx_bf16"), (25, "amx_int8")]
        .into_iter()
        .filter(|(bit, _)| edx & (1 << bit) != 0)
        .map(|(_, name)| name)
        .collect()
}
