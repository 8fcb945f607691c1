//! A source of drafted tokens, which only the lane that samples uses.

use std::sync::{Arc, Mutex};

use protocol::drafts::Drafter;

/// See the module documentation.
pub type SharedDrafter = Arc<Mutex<dyn Drafter>>;
