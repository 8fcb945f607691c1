//! Checks that any two conflicting accesses are ordered.
//!
//! Accesses are walked in one order that respects happens-before. For each buffer, only the
//! accesses to which a later one must be compared are kept: a write subsumes all accesses that it
//! covers, since it was found to be ordered after them; a read subsumes the earlier reads of its
//! lane.

use crate::ir::Region;
use crate::map::Chunk;
use crate::plan::Buffer;

use super::error::ValidateError;
use super::order::Order;

struct Access {
    region: Region,
    /// Index into the order's events.
    event: usize,
    write: bool,
}

/// Checks that all conflicting accesses are ordered; returns the number of pairs compared.
///
/// # Errors
/// `Race` for the first pair that is not ordered.
pub(super) fn check(order: &Order<'_>, buffers: &[Buffer]) -> Result<usize, ValidateError> {
    let mut live: Vec<Vec<Access>> = buffers.iter().map(|_| Vec::new()).collect();
    let mut compared = 0;
    for (index, event) in order.events.iter().enumerate() {
        let mine = event.instruction.accesses();
        for (region, write) in &mine {
            let buffer = region.buffer.0 as usize;
            for other in &live[buffer] {
                if !(*write || other.write) || !other.region.overlaps(region) {
                    continue;
                }
                compared += 1;
                let first = &order.events[other.event];
                if !order.happens_before(first, event) {
                    return Err(ValidateError::Race {
                        buffer: buffers[buffer].name.as_str().into(),
                        first: Box::new(order.site(first)),
                        second: Box::new(order.site(event)),
                    });
                }
            }
        }
        for (region, write) in mine {
            let list = &mut live[region.buffer.0 as usize];
            list.retain(|other| {
                let same_lane = order.events[other.event].lane == event.lane;
                !(covers(&region, &other.region) && (write || (!other.write && same_lane)))
            });
            list.push(Access { region, event: index, write });
        }
    }
    Ok(compared)
}

/// Returns true if `outer` contains `inner`, a region of the same buffer.
fn covers(outer: &Region, inner: &Region) -> bool {
    let is_whole = |part: Option<Chunk>| part.is_none_or(|part| part.of == 1);
    (is_whole(outer.chunk) || outer.chunk == inner.chunk)
        && (is_whole(outer.portion) || outer.portion == inner.portion)
}
