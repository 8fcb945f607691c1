//! Provenance of the answers in an output.

use openai::output::{OutputLine, PartialResponse, ResponseBody};
use openai::responses::line::RecordedResponse;

use super::resume::complete_lines;

/// Properties of the job that wrote an output, taken from its first answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedProvenance {
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
}

impl RecordedProvenance {
    /// Returns `None` if there is no answer. Foreign lines are ignored here, and reported when the
    /// job is resumed.
    pub fn from_output(existing: &[u8]) -> Option<RecordedProvenance> {
        let lines = complete_lines(existing).split_inclusive(|byte| *byte == b'\n');
        lines.filter_map(RecordedProvenance::from_line).next()
    }

    fn from_line(bytes: &[u8]) -> Option<RecordedProvenance> {
        let Ok(line) = serde_json::from_slice::<OutputLine>(bytes) else {
            let RecordedResponse { created, model, system_fingerprint, .. } =
                RecordedResponse::parse(bytes)?;
            return Some(RecordedProvenance { created, model, system_fingerprint });
        };
        if let Some(response) = line.response {
            let ResponseBody { created, model, system_fingerprint, .. } = response.body;
            return Some(RecordedProvenance { created, model, system_fingerprint });
        }
        let PartialResponse { created, model, system_fingerprint, .. } = *line.error?.made?;
        Some(RecordedProvenance { created, model, system_fingerprint })
    }
}
