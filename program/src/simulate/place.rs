//! Places of instructions, and values indexed by place without hashing: simulations look up costs
//! millions of times.

use crate::ir::ProgramId;
use crate::topology::LaneId;

/// Position of an instruction within the programs of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    pub program: ProgramId,
    pub lane: LaneId,
    /// Index in the lane's list.
    pub instruction: u32,
}

/// Values for some of the instructions of some programs.
#[derive(Debug, Clone)]
pub struct ByPlace<T> {
    /// Indexed by program, lane and instruction.
    programs: Vec<Vec<Vec<Option<T>>>>,
}

impl<T> Default for ByPlace<T> {
    fn default() -> ByPlace<T> {
        ByPlace { programs: Vec::new() }
    }
}

impl<T> ByPlace<T> {
    pub fn new() -> ByPlace<T> {
        ByPlace::default()
    }

    /// Sets the value of an instruction, replacing any previous one.
    pub fn insert(&mut self, place: Place, value: T) {
        let lanes = grown(&mut self.programs, place.program.index());
        let values = grown(lanes, place.lane.index());
        *grown(values, place.instruction as usize) = Some(value);
    }

    /// Returns the value of an instruction, if it has one.
    pub fn get(&self, place: Place) -> Option<&T> {
        let lanes = self.programs.get(place.program.index())?;
        lanes.get(place.lane.index())?.get(place.instruction as usize)?.as_ref()
    }
}

/// Returns the element at `index`, after adding empty ones up to it.
fn grown<T: Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize_with(index + 1, T::default);
    }
    &mut list[index]
}

/// # Panics
/// For an instruction without a value.
impl<T> std::ops::Index<Place> for ByPlace<T> {
    type Output = T;

    fn index(&self, place: Place) -> &T {
        match self.get(place) {
            Some(value) => value,
            None => panic!("{place:?} has no value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ByPlace;
    use crate::ir::ProgramId;
    use crate::simulate::Place;
    use crate::topology::LaneId;

    fn place(program: ProgramId, lane: u8, instruction: u32) -> Place {
        Place { program, lane: LaneId(lane), instruction }
    }

    #[test]
    fn values_are_those_of_their_places() {
        let mut values = ByPlace::new();
        let places = [
            place(ProgramId::DECODE, 0, 3),
            place(ProgramId::DECODE, 1, 0),
            place(ProgramId::PREFILL, 0, 3),
            place(ProgramId::DECODE, 0, 1),
        ];
        for (number, place) in places.into_iter().enumerate() {
            values.insert(place, number);
        }
        values.insert(places[1], 9);
        assert_eq!(places.map(|place| values[place]), [0, 9, 2, 3]);
        for absent in [place(ProgramId::DECODE, 0, 0), place(ProgramId::DECODE, 0, 4)] {
            assert_eq!(values.get(absent), None);
        }
        assert_eq!(values.get(place(ProgramId::PREFILL, 1, 0)), None);
    }
}
