//! Vectors of embeddings: their length, and their encodings.

/// Alphabet of base64 (RFC 4648).
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

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
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
