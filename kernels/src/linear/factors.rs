//! Factors that convert integer sums of a group of x to results. They follow packed x, for each
//! group and tile of rows as `[factor][row]`: the step of the integers of x, their sum times the
//! step, their sum times the offset that was added to the weights, an integer, and a factor that
//! [`bytes`](super::bytes) alone uses.

/// Number of factors per row.
pub(super) const FACTORS: usize = 4;

/// Writes the factors of a row: `sum` is the sum of its integers.
///
/// # Safety
/// `at` has space for the factors of `rows` rows.
#[inline(always)]
pub(super) unsafe fn write(
    at: *mut f32,
    row: usize,
    rows: usize,
    step: f32,
    sum: i32,
    offset: i32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        at.add(row).write(step);
        at.add(rows + row).write(sum as f32 * step);
        at.add(2 * rows + row).cast::<i32>().write(sum * offset);
    }
}
