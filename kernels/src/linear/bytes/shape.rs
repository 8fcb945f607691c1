//! Sizes of groups, blocks and tiles.

/// Inputs of a block: a multiple of every group.
pub(super) const BLOCK_INPUTS: usize = 256;
/// Units of a block of packed x: dwords of four inputs.
pub(super) const BLOCK: usize = BLOCK_INPUTS / STEP;
/// Inputs of a step: the bytes of a dword.
pub(super) const STEP: usize = 4;
/// Maximum number of inputs whose values of x share a step.
pub(super) const MAX_GROUP: usize = 32;
/// Panels of an expanded block, which are multiplied together.
pub(super) const PANELS: usize = 2;
/// Maximum number of rows that use weights from registers. With more, decoding weights for each
/// tile takes more time than expanding a block once.
pub(super) const DIRECT_ROWS: usize = 8;
/// Maximum number of rows of a tile that does.
pub(super) const DIRECT_TILE_ROWS: usize = 4;
