//! Unrolled loops whose index must be a constant because it selects registers; a plain loop would
//! keep the values in memory.

/// Repeats `$body` with `$i` a constant from 0 to 15, below `$end`.
macro_rules! unroll_16 {
    ($end:expr, $i:ident => $body:expr) => {
        unroll_16!(@ $end, $i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $end:expr, $i:ident => $body:expr; $($value:literal)*) => {
        $(
            if $value < $end {
                const $i: usize = $value;
                $body
            }
        )*
    };
}
pub(crate) use unroll_16;
