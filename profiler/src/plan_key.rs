//! A short name that distinguishes plans.

use program::plan::Plan;
use sha2::{Digest, Sha256};

/// Returns the first 16 bytes of the SHA-256 of the plan.
pub fn plan_key(plan: &Plan) -> String {
    Sha256::digest(format!("{plan:?}")).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
