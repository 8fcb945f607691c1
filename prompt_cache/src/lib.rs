//! Prompt cache on disk: keys and values of prompt prefixes, written once and read by later runs
//! and other processes.
//!
//! A *page* is the keys and values of some consecutive positions of a prompt, stored as one file.
//! Its [`PageHash`] is a hash of everything that its bytes depend on: its [`PageOrigin`] (weights,
//! formats, kernels), and every token up to its end. Therefore prompts with a common prefix share
//! the pages of this prefix, all writers of a page write the same bytes, and pages are found
//! without an index.
//!
//! If layers of a model overwrite what they keep of a sequence, a run can continue after a page
//! only if a *checkpoint* of them at the end of the page is stored too: a file like that of a page,
//! but without tokens, named by [`PageHash::checkpoint`] and preceded by its page.
//!
//! Each origin has a folder `DIR/MODEL-FINGERPRINT/`, which contains
//! - `NAME.kv`: a page: header, tokens and checksums (`page_header.rs`), then its bytes;
//! - `origin.json`: a description of the origin for people;
//! - `NAME.kv.PROCESS-RANDOM.tmp`: a page that is being written, locked by its writer.
//!
//! A page is either complete or absent: it gets its name once it is durable on the drive. Its
//! modification time is the time of its last use; when the store would exceed its maximum size, the
//! least recently used pages are removed. Files and folders are accessible only to their owner
//! (0600, 0700), since they contain prompts, and no link is followed below `DIR`. The crate deals
//! with names, bytes and files, and knows nothing about models.

mod error;
mod files;
mod list;
mod page;
mod page_hash;
mod page_header;
mod page_origin;
mod page_reader;
mod page_store;
mod page_writer;
mod size_limit;

pub use error::{PageWriteError, PromptCacheOpenError, RejectedPage};
pub use list::{CachedPrefix, OriginPages, StoreListing, list_store, remove_prefixes};
pub use page::{MemoryWithdrawn, PageKey, PageMemory};
pub use page_hash::PageHash;
pub use page_origin::PageOrigin;
pub use page_store::{PageStore, WriteOutcome};
