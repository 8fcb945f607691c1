//! Weights on drives: written once, read in every step.
//!
//! A *staged copy* is a folder of *blobs*, named runs of bytes in the format in which they are
//! used. [`Writer`] creates one and can be killed at any time; [`StagedCopy::lookup`] finds a
//! complete one and rejects a damaged one; [`Reader`] reads parts of blobs directly from the drive
//! into their destination, with many requests in flight, and verifies every block. [`balance`]
//! divides a blob over drives of unequal speed. The crate deals with bytes, names and files, and
//! knows nothing about models.
//!
//! `DIR/NAME/` contains
//! - `weights.bin`: each blob at a multiple of [`BLOB_ALIGN_BYTES`];
//! - `blocks.bin`: the XXH3 checksum (u64, little-endian) of every block of [`BLOCK_BYTES`] of
//!   every blob; the last block of a blob may be shorter;
//! - `index.json`: identity of the weights; offset, size and checksum of every blob; the checksum
//!   of `blocks.bin` and its own.
//!
//! While a copy is being written the folder is called `.NAME.partial` and also contains a `journal`
//! of the blobs that are durable on the drive.

mod aligned_writer;
pub mod balance;
mod buffer;
mod checksum;
pub mod device;
mod disk;
mod error;
mod identity;
mod index;
mod journal;
mod layout;
mod list;
pub mod measure;
mod options;
mod read_queue;
mod reader;
mod staged;
mod verify;
mod writer;

pub use buffer::AlignedBuffer;
pub use device::{BufferRegistration, FaultError, Faults, IoKind};
pub use error::{Difference, OpenStagedError, ReadError, ReaderError, StageError};
pub use identity::Identity;
pub use layout::{BLOB_ALIGN_BYTES, BLOCK_BYTES, BlobSize, PAGE_BYTES, size_bytes};
pub use list::{CopyState, ListedCopy, list, remove};
pub use options::ReaderOptions;
pub use read_queue::ReadEvent;
pub use reader::Reader;
pub use staged::{BlobId, CopyProgress, Lookup, StagedCopy};
pub use verify::{DamagedBlob, VerifyReport};
pub use writer::Writer;
