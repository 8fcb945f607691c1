//! Detection of the processor, because processors with the same instructions differ in what is
//! fastest.
//!
//! An order of prefetching that suits one slows another down (`docs/kernels.md`), so the choice is
//! by name. Results do not depend on it.

use std::sync::OnceLock;

static IS_ZEN_5: OnceLock<bool> = OnceLock::new();

/// Returns true if this is a Zen 5. Other processors with AVX512-BF16 are treated as a Zen 4.
pub(crate) fn is_zen_5() -> bool {
    *IS_ZEN_5.get_or_init(|| family() == Some(ZEN_5))
}

/// Makes the kernels behave as on the other kind of processor, for tests. Must be called before any
/// kernel of this process queries the processor.
///
/// # Panics
/// If a kernel has already queried the processor.
#[doc(hidden)]
pub fn assume_other_processor() {
    let other = family() != Some(ZEN_5);
    IS_ZEN_5.set(other).expect("no kernel has looked at the processor");
}

const ZEN_5: u32 = 26;

/// Returns the family of an AMD processor.
#[cfg(target_arch = "x86_64")]
fn family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;
    let (vendor, version) = (__cpuid(0), __cpuid(1));
    family_of([vendor.ebx, vendor.edx, vendor.ecx], version.eax)
}

#[cfg(not(target_arch = "x86_64"))]
fn family() -> Option<u32> {
    None
}

/// Returns the family from the vendor's name and the base and extended family that `cpuid` packs
/// into leaf 1.
#[cfg(any(target_arch = "x86_64", test))]
fn family_of(vendor: [u32; 3], version: u32) -> Option<u32> {
    let name = vendor.map(u32::to_le_bytes);
    let (base, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
    (name.as_flattened() == b"AuthenticAMD" && base == 0xf).then_some(base + extended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_apart() {
        let of = |name: &[u8; 12], version| {
            let words = name.as_chunks::<4>().0;
            family_of([0, 1, 2].map(|word| u32::from_le_bytes(words[word])), version)
        };
        // Turin and Genoa; Sapphire Rapids; Turin's version with another vendor.
        assert_eq!(of(b"AuthenticAMD", 0x00b0_0f21), Some(ZEN_5));
        assert_eq!(of(b"AuthenticAMD", 0x00a1_0f11), Some(25));
        assert_eq!(of(b"GenuineIntel", 0x0008_06f8), None);
        assert_eq!(of(b"GenuineIntel", 0x00b0_0f21), None);
    }
}
