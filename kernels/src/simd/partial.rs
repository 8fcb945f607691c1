//! A whole vector of elements or some, whichever is left of a row.

use std::ops::Range;

use super::{MAX_LANES, Simd, SimdElement};

/// `width` elements, and zeros behind them.
///
/// # Safety
/// `from` is valid for `width <= LANES` elements.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd, T: SimdElement>(
    s: S,
    from: *const T,
    width: usize,
) -> S::F {
    // SAFETY: the caller's promise; the partial form is for less than a vector.
    unsafe { if width == S::LANES { T::load(s, from) } else { T::load_partial(s, from, width) } }
}

/// The first `width` elements.
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
    // SAFETY: the caller's promise; the partial form is for less than a vector.
    unsafe {
        if width == S::LANES {
            T::store(s, to, value);
        } else {
            T::store_partial(s, to, value, width);
        }
    }
}

/// The elements of `range`, which go to the same places behind `to`.
///
/// # Safety
/// `to` is valid for them; `range` ends within a vector.
#[inline(always)]
pub(crate) unsafe fn store_between<S: Simd>(s: S, to: *mut f32, value: S::F, range: Range<usize>) {
    // SAFETY: the caller's promise; the buffer has room for the widest vectors.
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
