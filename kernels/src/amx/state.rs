//! Detection of whether this process may use AMX-BF16: the processor has it, the system saves its
//! state, and the kernel has granted the permission that Linux requires.
//!
//! Used only by [`crate::Variant`]. The standard library does not detect AMX, so this module reads
//! the CPUID leaves.

use std::sync::OnceLock;

/// Returns true if tile instructions on bf16 work in this process. The first call requests from
/// Linux the permission to use tile data, which then holds for all threads of the process; later
/// calls only repeat the answer.
pub(crate) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| has_instructions() && system_saves_tiles() && permission_granted())
}

/// Reads CPUID leaf 7: AMX-BF16, AMX-TILE and AMX-INT8 (which every processor with tiles has; its
/// absence means that a hypervisor hides a part).
fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & AMX == AMX
}

/// Reads XCR0 bits 17 and 18: tile configuration and tile data are saved when threads are switched.
fn system_saves_tiles() -> bool {
    use std::arch::x86_64::__cpuid;
    const OSXSAVE: u32 = 1 << 27;
    const TILES: u64 = 1 << 17 | 1 << 18;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: XCR0 can only be read by an instruction; OSXSAVE indicates that it exists and is
    // enabled.
    let xcr0 = unsafe { read_xcr0() };
    xcr0 & TILES == TILES
}

#[target_feature(enable = "xsave")]
fn read_xcr0() -> u64 {
    // SAFETY: the intrinsic is unsafe because it does not check OSXSAVE, which the caller has done.
    unsafe { std::arch::x86_64::_xgetbv(0) }
}

/// Requests tile data (state component 18) from Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM)`.
#[cfg(target_os = "linux")]
fn permission_granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: no library wraps this call. It accesses no memory of this process; the kernel changes
    // only rax, rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permission_granted() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_agrees_with_what_the_system_lists() {
        let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if listed.is_empty() {
            println!("SKIP the_answer_agrees_with_what_the_system_lists: no /proc/cpuinfo");
            return;
        }
        let flag = listed.split_whitespace().any(|word| word == "amx_bf16");
        // The permission may be refused on a processor with AMX, but never granted without it.
        assert!(flag || !is_usable());
        assert_eq!(flag, has_instructions() && system_saves_tiles());
        assert_eq!(is_usable(), is_usable());
    }
}
