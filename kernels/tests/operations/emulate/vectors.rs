//! Emulation of `vdpbf16ps` on 512-bit registers, in the XSAVE area of the signal frame.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::decode::{Cursor, EvexPrefix, Operand};
use super::{Machine, products};

/// Offsets of the parts of vector registers in the XSAVE area, in its standard format.
struct Offsets {
    /// Bits 128..256 of registers 0..16.
    second_quarters: usize,
    /// Bits 256..512 of registers 0..16.
    upper_halves: usize,
    /// Registers 16..32.
    high_registers: usize,
}

static OFFSETS: OnceLock<Offsets> = OnceLock::new();

/// Reads the offsets from the processor; must be called before the first signal.
pub(super) fn find_offsets() {
    let offset = |component| __cpuid_count(0xd, component).ebx as usize;
    OFFSETS.get_or_init(|| Offsets {
        second_quarters: offset(2),
        upper_halves: offset(6),
        high_registers: offset(7),
    });
}

/// Executes the instruction, or returns `None` if it is not `vdpbf16ps` as the kernels use it: 512
/// bits, no mask.
pub(super) fn execute(
    machine: &mut Machine<'_>,
    cursor: &mut Cursor,
    prefix: EvexPrefix,
) -> Option<()> {
    let EvexPrefix { vex, broadcast, zeroing, mask } = prefix;
    let opcode = cursor.byte();
    if (vex.map, vex.mandatory, vex.wide, vex.length, opcode) != (2, 2, false, 2, 0x52)
        || zeroing
        || mask != 0
    {
        return None;
    }
    let (target, operand) = cursor.operands(machine, vex, if broadcast { 4 } else { 64 });
    let offsets = OFFSETS.get()?;
    let area = machine.vector_state();
    let b = match operand {
        Operand::Register(_) if broadcast => return None,
        Operand::Register(number) => {
            // SAFETY: the kernel saved the state of an AVX-512 machine at `area`.
            unsafe { read(area, offsets, number) }
        }
        Operand::Memory { .. } => {
            let from = operand.address()? as *const u32;
            // SAFETY: the interrupted instruction was about to read exactly this memory; if it may
            // not be read, the access faults like the instruction.
            unsafe {
                if broadcast {
                    [from.read_unaligned(); 16]
                } else {
                    from.cast::<[u32; 16]>().read_unaligned()
                }
            }
        }
    };
    // SAFETY: as above; AVX-512 machines have AVX2 and FMA.
    unsafe {
        let a = read(area, offsets, vex.second);
        let mut sums = read(area, offsets, target);
        products::dot_pairs(&mut sums, &a, &b);
        write(area, offsets, target, &sums);
    }
    Some(())
}

/// Offset of the header that indicates which components are in use, and of the first 128 bits.
const IN_USE: usize = 512;
const FIRST_QUARTERS: usize = 160;

/// Returns the parts of register `number`: component, offset in the area, bytes.
fn parts(offsets: &Offsets, number: u8) -> [(u32, usize, usize); 3] {
    let number = usize::from(number);
    if number < 16 {
        [
            (1, FIRST_QUARTERS + number * 16, 16),
            (2, offsets.second_quarters + number * 16, 16),
            (6, offsets.upper_halves + number * 32, 32),
        ]
    } else {
        [(7, offsets.high_registers + (number - 16) * 64, 64), (7, 0, 0), (7, 0, 0)]
    }
}

/// # Safety
/// `area` is the XSAVE area of a signal frame on a machine with AVX-512.
unsafe fn read(area: *const u8, offsets: &Offsets, number: u8) -> [u32; 16] {
    let mut value = [0u32; 16];
    let mut at = value.as_mut_ptr().cast::<u8>();
    // SAFETY: the parts are within the area, and add up to 64 bytes.
    unsafe {
        let in_use = area.add(IN_USE).cast::<u64>().read_unaligned();
        for (component, offset, bytes) in parts(offsets, number) {
            // A component that is not in use is zero, regardless of the contents of the memory.
            if in_use >> component & 1 == 1 {
                at.copy_from_nonoverlapping(area.add(offset), bytes);
            }
            at = at.add(bytes);
        }
    }
    value
}

/// # Safety
/// Same contract as [`read`].
unsafe fn write(area: *mut u8, offsets: &Offsets, number: u8, value: &[u32; 16]) {
    let mut at = value.as_ptr().cast::<u8>();
    // SAFETY: the parts are within the area, and add up to 64 bytes; so do the whole components,
    // which hold 16 registers each.
    unsafe {
        let header = area.add(IN_USE).cast::<u64>();
        for (component, offset, bytes) in parts(offsets, number) {
            let in_use = header.read_unaligned();
            if in_use >> component & 1 == 0 {
                let index = usize::from(number) % 16;
                area.add(offset - index * bytes).write_bytes(0, 16 * bytes);
                header.write_unaligned(in_use | 1 << component);
            }
            area.add(offset).copy_from_nonoverlapping(at, bytes);
            at = at.add(bytes);
        }
    }
}
