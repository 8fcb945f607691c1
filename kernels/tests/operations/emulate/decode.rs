//! Decoder of the part of the instruction format that the emulated instructions use: three-byte VEX
//! and EVEX prefixes, ModRM, SIB, displacements.

use super::Machine;

/// Reads an instruction byte by byte, never beyond its end.
pub(crate) struct Cursor(*const u8);

/// Fields of a prefix, with inverted bits corrected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VexPrefix {
    pub reg_high: u8,
    pub index_high: u8,
    pub base_high: u8,
    pub map: u8,
    pub wide: bool,
    pub second: u8,
    pub length: u8,
    /// Mandatory prefix: 0 none, 1 66, 2 F3, 3 F2.
    pub mandatory: u8,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct EvexPrefix {
    pub vex: VexPrefix,
    pub broadcast: bool,
    pub zeroing: bool,
    pub mask: u8,
}

pub(crate) enum Prefix {
    Vex(VexPrefix),
    Evex(EvexPrefix),
}

/// Operand of ModRM other than the register field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand {
    Register(u8),
    /// `base` includes the displacement; `index` is the scaled index register, which a tile
    /// instruction uses as the distance between rows.
    Memory {
        base: u64,
        index: u64,
        has_sib: bool,
    },
}

impl Operand {
    /// Returns the address of ordinary memory operands.
    pub(crate) fn address(self) -> Option<u64> {
        match self {
            Operand::Register(_) => None,
            Operand::Memory { base, index, .. } => Some(base.wrapping_add(index)),
        }
    }
}

/// Returns bit `bit` of `byte`, inverted.
fn inverted(byte: u8, bit: u32) -> u8 {
    !(byte >> bit) & 1
}

impl Cursor {
    /// # Safety
    /// A complete instruction starts at `at`.
    pub(crate) unsafe fn new(at: *const u8) -> Self {
        Cursor(at)
    }

    pub(crate) fn position(&self) -> *const u8 {
        self.0
    }

    pub(crate) fn byte(&mut self) -> u8 {
        // SAFETY: callers read only bytes that the format assigns to the instruction, which is
        // complete by the contract of `new`.
        unsafe {
            let byte = *self.0;
            self.0 = self.0.add(1);
            byte
        }
    }

    /// Returns the prefix, or `None` if the instruction starts otherwise and is therefore not an
    /// emulated one.
    pub(crate) fn prefix(&mut self) -> Option<Prefix> {
        match self.byte() {
            0xc4 => {
                let (first, second) = (self.byte(), self.byte());
                Some(Prefix::Vex(VexPrefix {
                    reg_high: inverted(first, 7) << 3,
                    index_high: inverted(first, 6) << 3,
                    base_high: inverted(first, 5) << 3,
                    map: first & 0x1f,
                    wide: second >> 7 == 1,
                    second: !(second >> 3) & 0xf,
                    length: (second >> 2) & 1,
                    mandatory: second & 3,
                }))
            }
            0x62 => {
                let (first, second, third) = (self.byte(), self.byte(), self.byte());
                let vex = VexPrefix {
                    reg_high: inverted(first, 7) << 3 | inverted(first, 4) << 4,
                    index_high: inverted(first, 6) << 3,
                    base_high: inverted(first, 5) << 3,
                    map: first & 7,
                    wide: second >> 7 == 1,
                    second: !(second >> 3) & 0xf | inverted(third, 3) << 4,
                    length: (third >> 5) & 3,
                    mandatory: second & 3,
                };
                Some(Prefix::Evex(EvexPrefix {
                    vex,
                    broadcast: third >> 4 & 1 == 1,
                    zeroing: third >> 7 == 1,
                    mask: third & 7,
                }))
            }
            _ => None,
        }
    }

    /// Returns ModRM and the bytes that follow it: the register field and the other operand. A
    /// displacement of one byte counts in units of `scale` (1 without EVEX).
    pub(crate) fn operands(
        &mut self,
        machine: &Machine<'_>,
        prefix: VexPrefix,
        scale: i64,
    ) -> (u8, Operand) {
        let modrm = self.byte();
        let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7 | prefix.reg_high, modrm & 7);
        if mode == 3 {
            // EVEX uses the index bit as the register's highest.
            return (reg, Operand::Register(rm | prefix.base_high | prefix.index_high << 1));
        }
        let has_sib = rm == 4;
        let (mut base, mut index, mut absolute) = (0u64, 0u64, false);
        if has_sib {
            let sib = self.byte();
            let number = sib >> 3 & 7 | prefix.index_high;
            if number != 4 {
                index = machine.register(number) << (sib >> 6);
            }
            absolute = mode == 0 && sib & 7 == 5;
            if !absolute {
                base = machine.register(sib & 7 | prefix.base_high);
            }
        }
        let relative = mode == 0 && rm == 5;
        if !has_sib && !relative {
            base = machine.register(rm | prefix.base_high);
        }
        let displacement = match mode {
            1 => i64::from(self.byte() as i8) * scale,
            2 => self.four_bytes(),
            _ if absolute || relative => self.four_bytes(),
            _ => 0,
        };
        if relative {
            // No emulated instruction has an immediate, so the next instruction starts here.
            base = self.0 as u64;
        }
        (reg, Operand::Memory { base: base.wrapping_add_signed(displacement), index, has_sib })
    }

    fn four_bytes(&mut self) -> i64 {
        i64::from(i32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()]))
    }
}
