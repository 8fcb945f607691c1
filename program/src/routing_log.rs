//! Log of the first lookups in a cache of experts, in the step table: a word with the number of
//! entries and then the entries, one for each expert that a lookup needed. From it the coordinator
//! computes what the best rule would have read.

/// Maximum number of entries: half a MiB.
pub const LOG_ENTRIES: u32 = 1 << 17;
/// Bit of the number of entries that is set once a lookup did not fit. Later ones are not logged.
pub const LOG_IS_FULL: u32 = 1 << 31;

const MISSING: u32 = 1 << 31;
const FIRST: u32 = 1 << 30;
const LAYER_MAX: u32 = (1 << 14) - 1;

/// Use of an expert by a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedUse {
    /// Less than 16384.
    pub layer: u16,
    pub expert: u16,
    /// The cache did not have the expert.
    pub is_missing: bool,
    /// The first use of its lookup.
    pub is_first: bool,
}

impl LoggedUse {
    /// Returns the word of the log.
    pub const fn to_word(self) -> u32 {
        let LoggedUse { layer, expert, is_missing, is_first } = self;
        let place = (layer as u32 & LAYER_MAX) << 16 | expert as u32;
        place | if is_missing { MISSING } else { 0 } | if is_first { FIRST } else { 0 }
    }

    /// Returns the use that a word contains.
    pub const fn from_word(word: u32) -> LoggedUse {
        LoggedUse {
            layer: (word >> 16 & LAYER_MAX) as u16,
            expert: word as u16,
            is_missing: word & MISSING != 0,
            is_first: word & FIRST != 0,
        }
    }

    /// Returns a number that is unique to the expert.
    pub const fn key(self) -> u32 {
        (self.layer as u32) << 16 | self.expert as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_contain_uses() {
        for (layer, expert) in [(0, 0), (93, 127), (16_383, 65_535)] {
            for bits in 0..4 {
                let (is_missing, is_first) = (bits & 1 == 1, bits & 2 == 2);
                let one = LoggedUse { layer, expert, is_missing, is_first };
                assert_eq!(LoggedUse::from_word(one.to_word()), one);
            }
        }
    }
}
