//! Words of the list that a layer's router writes after its result if experts are cached: for each
//! expert, its slot and whether it has to be read.

use scheduler::expert_cache::Assigned;

/// Word of an expert that no row is routed to.
const ABSENT: u32 = u32::MAX;
/// Bit of an expert that is not in its slot yet. Caches have fewer slots than this.
const MISSING: u32 = 1 << 31;

/// Returns the word of an expert; `None` if no row is routed to it.
pub(crate) const fn to_word(assigned: Option<Assigned>) -> u32 {
    match assigned {
        None => ABSENT,
        Some(Assigned { slot, is_missing: false }) => slot,
        Some(Assigned { slot, is_missing: true }) => slot | MISSING,
    }
}

/// Returns the assignment that a word contains.
pub(crate) const fn from_word(word: u32) -> Option<Assigned> {
    match word {
        ABSENT => None,
        _ => Some(Assigned { slot: word & !MISSING, is_missing: word & MISSING != 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_contain_assignments() {
        let assigned = |slot, is_missing| Some(Assigned { slot, is_missing });
        for one in [None, assigned(0, false), assigned(0, true), assigned(1 << 30, true)] {
            assert_eq!(from_word(to_word(one)), one);
        }
    }
}
