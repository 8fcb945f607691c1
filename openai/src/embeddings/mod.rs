//! Embeddings of texts, in the format of `/v1/embeddings`: the hidden states of a prompt after the
//! final norm, pooled to one vector of length 1.

pub mod line;
pub mod model;
pub mod request;
pub mod response;
pub mod vector;

#[cfg(test)]
mod tests;
