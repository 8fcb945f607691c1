//! Properties of a model's embeddings.

use engine_api::request::Pooling;

use crate::input_line::{ErrorCode, Rejection};

/// Properties of a model's embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingModel {
    /// Pooling that the model's files or the command line specify, or the sentence that refuses
    /// embeddings of this model.
    pub pooling: Result<Pooling, String>,
    /// Number of elements of a whole vector.
    pub hidden_size: usize,
    /// The model was trained so that the first elements of a vector are an embedding too.
    pub is_matryoshka: bool,
}

impl EmbeddingModel {
    /// Returns the pooling.
    ///
    /// # Errors
    /// Returns a rejection if the model has no embeddings that can be computed.
    pub fn require_pooling(&self) -> Result<Pooling, Rejection> {
        let refuse = |sentence: &String| Rejection::new(ErrorCode::UnsupportedField, sentence);
        self.pooling.as_ref().copied().map_err(refuse)
    }

    /// Checks the number of elements to which vectors are cut.
    ///
    /// # Errors
    /// Returns a rejection if the first elements of a vector are no embedding, or if there are not
    /// as many.
    pub fn check_dimensions(&self, dimensions: Option<usize>) -> Result<(), Rejection> {
        let Some(dimensions) = dimensions.filter(|count| *count != self.hidden_size) else {
            return Ok(());
        };
        let message = if self.is_matryoshka {
            let max = self.hidden_size;
            if (1..=max).contains(&dimensions) {
                return Ok(());
            }
            format!(
                "Invalid value for 'dimensions': must be between 1 and {max}, got {dimensions}."
            )
        } else {
            "This model does not support matryoshka representation, changing output dimensions \
             will lead to poor results. Remove 'dimensions'."
                .to_owned()
        };
        Err(Rejection::new(ErrorCode::InvalidValue, message).with_param("dimensions"))
    }
}
