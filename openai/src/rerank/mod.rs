//! Ranking of documents by their relevance to a query, in the format that Jina and Cohere defined:
//! the probability that a model answers "yes" instead of "no" when it judges a document, with the
//! prompt that Qwen3-Reranker was trained for.

pub mod prompt;
pub mod request;
pub mod response;

#[cfg(test)]
mod tests;
