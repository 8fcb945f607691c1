//! Grouped weights in bf16 linears with activations of 8 bits: products of bytes, four per lane.
//!
//! A group of at most 32 values of x is rounded to multiples of a 127th of its largest magnitude. A
//! block of weights of some columns is expanded to bytes, which stay in the first-level cache while
//! all rows of x are multiplied by them.
//!
//! **The order of every sum.** Products and sums within a group are exact, whatever instructions
//! compute them. `part` and `sum(x)` of a group are rounded to f32 at most twice; then the groups
//! are added in order, as on all paths. All processors with fused multiply-adds give the same bits.
//!
//! - `biased`: conversion of exact sums to f32, in one instruction.
//! - `target`: the instruction sets for which the path is compiled.
//! - `shape`: sizes of groups, blocks and tiles.
//! - `form`: bytes to which weights are expanded, and the instructions for their products.
//! - `pack`: x as bytes, and its factors.
//! - `decode`: stored integers as bytes.
//! - `direct`: few rows, by weights in registers.
//! - `expand`: a block of weights as bytes, with its scales.
//! - `multiply`: some rows by an expanded block.

mod biased;
mod decode;
mod direct;
mod expand;
mod form;
mod multiply;
mod pack;
mod shape;
mod target;

use std::marker::PhantomData;

use half::bf16;
use model::quantized_format::{ActivationFormat, Grouped, WeightFormat};

use super::factors::FACTORS;
use super::pack::Pack;
use super::path::{MultiplicationPath, PackedLayout, Shape};
use super::reader::Records;
use super::rows::RowTiles;
use super::task::Sums;
use super::tuning::VECTOR_COLS;
use crate::simd::Simd;
use crate::variant::Variant;
use form::ByteForm;
use multiply::Multiply;
use pack::PackBytes;
use shape::{BLOCK, MAX_GROUP, STEP};
pub(super) use target::*;

/// Returns the records with groups whose values of x share a step.
pub(super) fn in_groups_of_x(records: Records) -> Records {
    records.in_groups_of_at_most(MAX_GROUP)
}

/// Returns the layout of packed x, with or without AMX tiles.
pub(super) fn packed_layout(tiles: RowTiles, k: usize, format: Grouped) -> PackedLayout {
    let inputs = format.groups(k) * format.group;
    let groups = inputs / format.group.min(MAX_GROUP);
    PackedLayout { tiles, units: inputs / STEP, sums: FACTORS * groups }
}

/// Packs x like [`Multiplication::pack`], for AMX tiles: `[tile][group][row][dword]`. `offset` was
/// added to the weights.
///
/// # Safety
/// The conditions of [`MultiplicationPath::pack`] hold.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn pack_for_tiles(task: &Pack<bf16>, offset: i32) {
    // SAFETY: the caller's promise.
    let s = unsafe { WideDots::token() };
    s.out_of_line(PackBytes { task, offset, for_tiles: true });
}

/// The path for the instructions of a target; see the module documentation.
pub(super) struct Multiplication<T>(PhantomData<T>);

impl<T: Target> MultiplicationPath for Multiplication<T> {
    type Reader = Records;

    fn fits(variant: Variant, shape: Shape) -> bool {
        shape.activations == ActivationFormat::Int8 && T::fits(variant)
    }

    fn layout(Shape { rows, k, format, .. }: Shape) -> PackedLayout {
        let WeightFormat::Grouped(format) = format else {
            unreachable!("plain weights are no integers");
        };
        let form = ByteForm::of(format.bits, format.group, T::HAS_DOTS);
        let highest = form.tile_rows::<T>(rows);
        packed_layout(RowTiles::even(rows, highest, VECTOR_COLS, BLOCK), k, format)
    }

    unsafe fn pack(task: &Pack<bf16>) {
        // SAFETY: the caller's promise.
        let s = unsafe { T::token() };
        let (group, bits) = task.group.expect("a grouped weight has groups");
        let offset = i32::from(ByteForm::of(bits, group, T::HAS_DOTS).offset);
        s.out_of_line(PackBytes { task, offset, for_tiles: false });
    }

    unsafe fn multiply(task: &Sums<Records>) {
        // SAFETY: the caller's promise.
        let s = unsafe { T::token() };
        let Sums { reader, area } = task;
        let records = in_groups_of_x(*reader);
        Multiply::<T> { records, area, target: PhantomData }.run(s);
    }
}
