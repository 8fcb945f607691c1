//! A short name that tells plans from each other.

use program::plan::Plan;
use sha2::{Digest, Sha256};

/// SHA-256 of what is run, its first 16 bytes.
pub fn plan_key(plan: &Plan) -> String {
    Sha256::digest(format!("{plan:?}")).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
