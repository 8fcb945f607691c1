//! A whole vector of elements or some, whichever is left of a row.

use super::{Simd, SimdElement};

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
