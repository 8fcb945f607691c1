//! Weights on drives: written once, read in every step.
//!
//! A *staging* is a folder that holds *blobs*, named runs of bytes, in the form in which they are
//! used. [`Writer`] makes one and can be killed at any time; [`Staged::lookup`] finds a whole one
//! and refuses one that was damaged; [`Reader`] reads parts of blobs straight from the drive into
//! their place, with many requests in flight, and verifies every block. [`balance`] divides a blob
//! over drives of unequal speed. The crate knows bytes, names and files, and nothing of models.
//!
//! `DIR/NAME/` holds
//! - `weights.bin`: each blob at a multiple of [`BLOB_ALIGN_BYTES`];
//! - `blocks.bin`: the XXH3 checksum (u64, little-endian) of every block of [`BLOCK_BYTES`] of
//!   every blob, the last block of a blob being shorter;
//! - `index.json`: whose weights these are, every blob's place, size and checksum, and the checksum
//!   of `blocks.bin` and of itself.
//!
//! While it is written the folder is called `.NAME.partial` and has a `journal` of the blobs that
//! are on the drive for certain.

pub mod balance;
mod buffer;
mod checksum;
pub mod device;
mod disk;
mod error;
mod flight;
mod identity;
mod index;
mod journal;
mod layout;
mod list;
pub mod measure;
mod options;
mod reader;
mod sink;
mod staged;
mod verify;
mod writer;

pub use buffer::AlignedBuffer;
pub use device::{FaultError, Faults, IoKind, Registered};
pub use error::{Difference, OpenError, ReadError, ReaderError, StageError};
pub use flight::Flying;
pub use identity::Identity;
pub use layout::{BLOB_ALIGN_BYTES, BLOCK_BYTES, BlobSize, PAGE_BYTES, size_bytes};
pub use list::{Listed, State, list, remove};
pub use options::ReaderOptions;
pub use reader::Reader;
pub use staged::{BlobId, Lookup, Progress, Staged};
pub use verify::{Damage, Verified};
pub use writer::Writer;
