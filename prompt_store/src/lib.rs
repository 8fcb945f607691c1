//! Keys and values of prompts' beginnings on disk: written once, read by later runs and by others.
//!
//! A *page* is the keys and values of some consecutive positions of a prompt, and a file of its
//! own. Its [`Name`] says all that its bytes depend on: their [`Origin`] (weights, formats,
//! kernels), and every token up to its end. So prompts that begin alike have the pages of their
//! beginning in common, whoever writes a page writes the same bytes, and pages are found without an
//! index.
//!
//! `DIR/MODEL-FINGERPRINT/`, one for each origin, holds
//! - `NAME.kv`: a page, its header, tokens and checksums (`entry.rs`), then its bytes;
//! - `origin.json`: what the origin is, for people;
//! - `NAME.kv.PROCESS-RANDOM.tmp`: a page that is being written, which its writer has locked.
//!
//! A page is whole or not there: it gets its name once it is on the drive. When it was last used is
//! the time of its last change; where the store would pass its bound, the longest unused go first.
//! Files and folders are their owner's alone (0600, 0700), since they hold prompts, and no link is
//! followed below `DIR`. The crate knows names, bytes and files, and nothing of models.

mod bound;
mod entry;
mod error;
mod files;
mod list;
mod name;
mod origin;
mod page;
mod read;
mod store;
mod write;

pub use error::{OpenError, Refused, WriteError};
pub use list::{Beginning, Listed, Listing, list, remove};
pub use name::Name;
pub use origin::Origin;
pub use page::{Page, PageMemory, Withdrawn};
pub use store::{Store, Wrote};
