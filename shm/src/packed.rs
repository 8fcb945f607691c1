//! What fits a word of the control segment: where a lane is, and a stage of a group.

/// A part of a group: a program, and how often it runs before the next one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// By its place in the plan.
    pub program: u32,
    /// Steps at most; fewer where the group's last step comes first. At least 1.
    pub steps: u32,
}

impl Stage {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.program) << 32 | u64::from(self.steps)
    }

    /// `None` where there is no stage.
    #[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
    pub(crate) fn unpack(word: u64) -> Option<Stage> {
        let stage = Stage { program: (word >> 32) as u32, steps: word as u32 };
        (stage.steps > 0).then_some(stage)
    }
}

/// Where a lane is: shown when it hangs or dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The program, by its place in the plan; 8 bits are kept.
    pub program: u32,
    /// The step of the program; 24 bits are kept.
    pub step: u32,
    /// The instruction's index in the lane's program.
    pub instruction: u32,
}

impl Position {
    /// The position as one word. Bits beyond those kept are dropped: it is for telling, not for
    /// deciding.
    #[inline]
    pub fn pack(self) -> u64 {
        u64::from(self.program & 0xff) << 56
            | u64::from(self.step & 0xff_ffff) << 32
            | u64::from(self.instruction)
    }

    /// The inverse of [`Position::pack`].
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
            let stage = Stage { program, steps };
            prop_assert_eq!(Stage::unpack(stage.pack()), (steps > 0).then_some(stage));
        }
    }
}
