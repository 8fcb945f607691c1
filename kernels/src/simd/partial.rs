//! Loads and stores of a whole vector of elements, or of the remaining part of a row.

use std::ops::Range;

use super::{MAX_LANES, Simd, SimdElement};

/// Loads `width` elements, followed by zeros.
///
/// # Safety
/// `from` is valid for `width <= LANES` elements.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd, T: SimdElement>(
    s: S,
    from: *const T,
    width: usize,
) -> S::F {
    // SAFETY: the caller's promise; the partial version is for less than a vector.
    unsafe { if width == S::LANES { T::load(s, from) } else { T::load_partial(s, from, width) } }
}

/// Stores the first `width` elements.
///
/// # Safety
/// `to` is valid for `width <= LANES` elements.
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd, T: SimdElement>(
    s: S,
    to: *mut T,
    value: S::F,
    width: usize,
) {
    // SAFETY: the caller's promise; the partial version is for less than a vector.
    unsafe {
        if width == S::LANES {
            T::store(s, to, value);
        } else {
            T::store_partial(s, to, value, width);
        }
    }
}

/// Stores the elements of `range` at the same offsets from `to`.
///
/// # Safety
/// `to` is valid for them; `range` ends within a vector.
#[inline(always)]
pub(crate) unsafe fn store_between<S: Simd>(s: S, to: *mut f32, value: S::F, range: Range<usize>) {
    // SAFETY: the caller's promise; the buffer has space for the widest vectors.
    unsafe {
        if range.start == 0 {
            store_up_to(s, to, value, range.end);
        } else {
            let mut all = [0.0f32; MAX_LANES];
            s.store(all.as_mut_ptr(), value);
            for i in range {
                *to.add(i) = all[i];
            }
        }
    }
}
