//! The paths that multiply linears, and the choice among them.

use half::bf16;
use model::quantized_format::WeightFormat;

use super::bytes;
use super::pack::Pack;
use super::path::{MultiplicationPath, PackedLayout, Shape};
use super::reader::{Plain, Records};
use super::rows::RowTiles;
use super::sizes::BLOCK_UNITS;
use super::task::Sums;
use super::tuning::VECTOR_COLS;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512, avx512_bf16, integers};
use crate::number::Number;
use crate::variant::{Variant, dispatch, dispatch_narrow};

/// Defines the enum of the paths for each kind of weight, in the order in which they are tried, and
/// static dispatch to them.
macro_rules! registry {
    (
        plain: { $($plain:ident = $plain_path:ty,)* }
        grouped: { $($grouped:ident = $grouped_path:ty,)* }
    ) => {
        /// An algorithm that multiplies a linear.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Path {
            /// `direct` and `tiled`: every format, number and instruction set.
            Vectors,
            $($plain,)*
            $($grouped,)*
        }

        impl Path {
            /// Returns the first path that fits.
            pub(super) fn of<T: Number>(variant: Variant, shape: Shape) -> Path {
                let _ = variant;
                match shape.format {
                    _ if T::IS_F32 => {}
                    WeightFormat::Plain => {
                        $(if <$plain_path>::fits(variant, shape) {
                            return Path::$plain;
                        })*
                    }
                    WeightFormat::Grouped(_) => {
                        $(if <$grouped_path>::fits(variant, shape) {
                            return Path::$grouped;
                        })*
                    }
                }
                Path::Vectors
            }

            pub(super) fn layout(self, variant: Variant, shape: Shape) -> PackedLayout {
                match self {
                    Path::Vectors => vectors_layout(variant, shape),
                    $(Path::$plain => <$plain_path>::layout(shape),)*
                    $(Path::$grouped => <$grouped_path>::layout(shape),)*
                }
            }

            /// Packs with this path.
            ///
            /// # Safety
            /// The path fits `variant`, which is available; the task's own conditions hold.
            #[inline(always)]
            pub(super) unsafe fn pack(self, variant: Variant, task: Pack<bf16>) {
                // SAFETY: the caller's promise.
                unsafe {
                    match self {
                        Path::Vectors => dispatch(variant, task),
                        $(Path::$plain => <$plain_path>::pack(&task),)*
                        $(Path::$grouped => <$grouped_path>::pack(&task),)*
                    }
                }
            }

            /// Computes the sums of plain weights with this path.
            ///
            /// # Safety
            /// The conditions of [`MultiplicationPath::pack`] hold.
            #[inline(always)]
            pub(super) unsafe fn plain(self, variant: Variant, task: Sums<Plain<bf16>>) {
                // SAFETY: the caller's promise.
                unsafe {
                    match self {
                        $(Path::$plain => <$plain_path>::multiply(&task),)*
                        // Each of the wide variants has a path.
                        _ => dispatch_narrow(variant, task),
                    }
                }
            }

            /// Computes the sums of grouped weights with this path.
            ///
            /// # Safety
            /// The conditions of [`MultiplicationPath::pack`] hold.
            #[inline(always)]
            pub(super) unsafe fn grouped(self, variant: Variant, task: Sums<Records>) {
                // SAFETY: the caller's promise.
                unsafe {
                    match self {
                        $(Path::$grouped => <$grouped_path>::multiply(&task),)*
                        _ => dispatch(variant, task),
                    }
                }
            }
        }

        /// Returns the number of floats of a thread's scratch for sums that are not yet results,
        /// sufficient for every path.
        pub(super) fn unfinished_len() -> usize {
            let lens: &[usize] = &[
                $(<$plain_path>::UNFINISHED_LEN,)*
                $(<$grouped_path>::UNFINISHED_LEN,)*
            ];
            lens.iter().copied().max().unwrap_or(0)
        }
    };
}

#[cfg(target_arch = "x86_64")]
registry! {
    plain: {
        Avx512 = avx512::Multiplication,
        Avx512Bf16 = avx512_bf16::Multiplication,
        Amx = amx::Multiplication,
    }
    grouped: {
        ByteTiles = integers::ByteTiles,
        ByteDots = bytes::Multiplication<bytes::WideDots>,
        NarrowByteDots = bytes::Multiplication<bytes::NarrowDots>,
        NarrowBytes = bytes::Multiplication<bytes::Narrow>,
        PortableBytes = bytes::Multiplication<bytes::Portable>,
        IntegerTiles = integers::TileMultiplication,
        Integers = integers::Multiplication,
    }
}

#[cfg(not(target_arch = "x86_64"))]
registry! {
    plain: {}
    grouped: {
        PortableBytes = bytes::Multiplication<bytes::Portable>,
    }
}

fn vectors_layout(variant: Variant, Shape { rows, k, format, .. }: Shape) -> PackedLayout {
    let tiles = RowTiles::even(rows, variant.tile_rows(), VECTOR_COLS, BLOCK_UNITS);
    match format {
        WeightFormat::Plain => PackedLayout { tiles, units: k, sums: 0 },
        WeightFormat::Grouped(grouped) => {
            let groups = grouped.groups(k);
            PackedLayout { tiles, units: groups * grouped.group, sums: groups }
        }
    }
}
