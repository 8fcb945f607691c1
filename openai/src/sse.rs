//! Server-sent events with names.

use serde::Serialize;

/// Appends an event of the type `name` to `bytes`.
pub fn write_named_event(name: &str, data: &impl Serialize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"event: ");
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b"\ndata: ");
    serde_json::to_writer(&mut *bytes, data).expect("a list of bytes takes everything");
    bytes.extend_from_slice(b"\n\n");
}
