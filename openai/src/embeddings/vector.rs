//! Vectors of embeddings: their length, and their encodings.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns the first `dimensions` elements of a pooled hidden state, scaled to a length of 1;
/// `None` if an element is infinite or NaN, or if all are 0. The squares are summed in f64 in their
/// order.
pub fn embedding(hidden: &[f32], dimensions: Option<usize>) -> Option<Vec<f32>> {
    let elements = &hidden[..dimensions.unwrap_or(hidden.len()).min(hidden.len())];
    let square: f64 = elements.iter().map(|element| f64::from(*element).powi(2)).sum();
    let length = square.sqrt();
    let is_usable = length.is_finite() && length > 0.0;
    is_usable.then(|| elements.iter().map(|e| (f64::from(*e) / length) as f32).collect())
}

/// Returns the base64 of the little-endian bytes of a vector.
pub fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|element| element.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}
