//! Words of the list that a layer's router writes after its result if experts are cached: for each
//! expert, its slot and whether it has to be read.

use program::expert_portions::read_portion;
use program::map::Chunk;
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

/// Marks the experts of a portion ([`program::expert_portions`]): of those that are read, whose
/// marks are true before, or of those that a list of cached experts contains.
pub(crate) fn select_portion(marks: &mut [bool], list: Option<&[u32]>, portion: Chunk) {
    let is_missing = |expert: usize, mark: bool| match list {
        Some(list) => from_word(list[expert]).map(|assigned| assigned.is_missing),
        None => mark.then_some(true),
    };
    let read =
        (0..).zip(&*marks).filter(|(expert, mark)| is_missing(*expert, **mark) == Some(true));
    let count = read.count();
    let mut index = 0;
    for (expert, mark) in marks.iter_mut().enumerate() {
        *mark = match is_missing(expert, *mark) {
            Some(true) => {
                index += 1;
                read_portion(list.is_some(), portion.of, index - 1, count) == portion.index
            }
            Some(false) => portion.index == 0,
            None => false,
        };
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

    #[test]
    fn portions_are_those_of_the_cache_and_of_each_read() {
        let assigned = |slot, is_missing| to_word(Some(Assigned { slot, is_missing }));
        let list = [assigned(3, true), to_word(None), assigned(0, false), assigned(1, true)];
        let marks = |list: Option<&[u32]>, index, of| {
            let mut marks = [true, false, true, true];
            select_portion(&mut marks, list, Chunk { index, of });
            marks.map(u8::from)
        };
        let cached: Vec<[u8; 4]> = (0..5).map(|index| marks(Some(&list), index, 5)).collect();
        let expected = [[0, 0, 1, 0], [1, 0, 0, 0], [0; 4], [0, 0, 0, 1], [0; 4]];
        assert_eq!(cached, expected);
        let read: Vec<[u8; 4]> = (0..4).map(|index| marks(None, index, 4)).collect();
        assert_eq!(read, [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0; 4]]);
    }
}
