//! Answers of `/v1/embeddings`.

use serde::{Deserialize, Serialize};

use super::request::{EmbeddingRequest, VectorEncoding};
use super::vector::to_base64;

/// Answer to a request: a list of vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingList {
    pub object: String,
    /// One vector for each input, in their order.
    pub data: Vec<EmbeddingObject>,
    pub model: String,
    /// Fingerprint of the system, which only lines of a job have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    pub usage: EmbeddingUsage,
}

/// Embedding of an input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingObject {
    pub object: String,
    pub index: usize,
    pub embedding: EncodedVector,
}

/// A vector as the request has it encoded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EncodedVector {
    Float(Vec<f32>),
    Base64(String),
}

/// Number of tokens of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingUsage {
    pub prompt_tokens: u64,
    pub total_tokens: u64,
}

impl EmbeddingList {
    /// Creates the answer to a request from the vectors of its inputs, by the model with this name.
    pub fn new(request: &EmbeddingRequest, vectors: Vec<Vec<f32>>, model: &str) -> EmbeddingList {
        let encode = |vector: Vec<f32>| match request.encoding {
            VectorEncoding::Float => EncodedVector::Float(vector),
            VectorEncoding::Base64 => EncodedVector::Base64(to_base64(&vector)),
        };
        let object = |(index, vector)| EmbeddingObject {
            object: "embedding".to_owned(),
            index,
            embedding: encode(vector),
        };
        let tokens = request.prompt_tokens();
        EmbeddingList {
            object: "list".to_owned(),
            data: vectors.into_iter().enumerate().map(object).collect(),
            model: model.to_owned(),
            system_fingerprint: None,
            usage: EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens },
        }
    }
}
