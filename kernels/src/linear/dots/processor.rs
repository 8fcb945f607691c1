//! Which processor this is, for processors with AVX512-BF16 differ in what is worth asking for.
//!
//! What one gains by asking another loses (`BENCHMARKS.md`), so the choice is by name: results do not depend on it.

use std::arch::x86_64::{__cpuid, CpuidResult};
use std::sync::LazyLock;

/// Whether weights come as fast as they can if the line is asked for that the core needs in a page's time: Zen 5. Zen 4, and
/// whatever was not measured, wants the second page ahead in the second level of cache too, and rather nothing
/// asked for side by side.
pub(super) fn needs_near_lines_only() -> bool {
    static IS_ZEN_5: LazyLock<bool> = LazyLock::new(|| is_zen_5(__cpuid(0), __cpuid(1)));
    *IS_ZEN_5
}

/// Family 26 of AMD, by leaves 0 and 1 of `cpuid`.
fn is_zen_5(vendor: CpuidResult, version: CpuidResult) -> bool {
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    let (base, extended) = (version.eax >> 8 & 0xf, version.eax >> 20 & 0xff);
    name.as_flattened() == b"AuthenticAMD" && base == 0xf && base + extended == 26
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(name: &[u8; 12], version: u32) -> [CpuidResult; 2] {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| name[at + byte]));
        let vendor = CpuidResult { eax: 16, ebx: word(0), edx: word(4), ecx: word(8) };
        [vendor, CpuidResult { eax: version, ebx: 0, ecx: 0, edx: 0 }]
    }

    #[test]
    fn families_are_told_apart() {
        let is = |name, version| {
            let [vendor, version] = leaves(name, version);
            is_zen_5(vendor, version)
        };
        // Turin and Genoa; Sapphire Rapids; a family of that number of another vendor.
        assert!(is(b"AuthenticAMD", 0x00b0_0f21));
        assert!(!is(b"AuthenticAMD", 0x00a1_0f11));
        assert!(!is(b"GenuineIntel", 0x0008_06f8));
        assert!(!is(b"GenuineIntel", 0x00b0_0f21));
    }
}
