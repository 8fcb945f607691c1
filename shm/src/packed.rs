//! Values packed into a word of the control segment: the position of a lane, and a stage of a
//! group.

/// A stage of a group: a program, and its number of steps before the next stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramStage {
    /// Index of the program in the plan.
    pub program: u32,
    /// Maximum number of steps, at least 1; fewer if the group's last step comes first.
    pub steps: u32,
}

impl ProgramStage {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.program) << 32 | u64::from(self.steps)
    }

    /// Returns `None` if there is no stage.
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
    pub(crate) fn unpack(word: u64) -> Option<ProgramStage> {
        let stage = ProgramStage { program: (word >> 32) as u32, steps: word as u32 };
        (stage.steps > 0).then_some(stage)
    }
}

/// Position of a lane, reported when it hangs or dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Index of the program in the plan; 8 bits are kept.
    pub program: u32,
    /// Step of the program; 24 bits are kept.
    pub step: u32,
    /// Index of the instruction in the lane's program.
    pub instruction: u32,
}

impl Position {
    /// Packs the position into one word. Higher bits are dropped: the position is only for reports,
    /// never for decisions.
    #[inline]
    pub fn pack(self) -> u64 {
        u64::from(self.program & 0xff) << 56
            | u64::from(self.step & 0xff_ffff) << 32
            | u64::from(self.instruction)
    }

    /// Unpacks a position; the inverse of [`Position::pack`].
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
    pub fn unpack(word: u64) -> Position {
        Position {
            program: (word >> 56) as u32,
            step: (word >> 32) as u32 & 0xff_ffff,
            instruction: word as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_survive_packing(
            program in 0..256u32,
            step in 0..1u32 << 24,
            instruction: u32,
        ) {
            let position = Position { program, step, instruction };
            prop_assert_eq!(Position::unpack(position.pack()), position);
        }

        #[test]
        fn stages_survive_packing(program: u32, steps: u32) {
            let stage = ProgramStage { program, steps };
            prop_assert_eq!(ProgramStage::unpack(stage.pack()), (steps > 0).then_some(stage));
        }
    }
}
