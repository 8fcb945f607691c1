//! Answers of `/v1/rerank`.

use serde::Serialize;

use super::request::RerankBody;

/// Ranked documents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RerankList {
    pub id: String,
    pub object: &'static str,
    pub model: String,
    pub usage: RerankUsage,
    /// The most relevant documents, the best first; equal ones in the order of the request.
    pub results: Vec<RerankResult>,
}

/// Number of tokens of the prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RerankUsage {
    pub prompt_tokens: u64,
    pub total_tokens: u64,
}

/// Relevance of a document.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RerankResult {
    /// Index of the document in the request.
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RankedDocument>,
    /// Probability of relevance, from 0 to 1.
    pub relevance_score: f64,
}

/// A document as the request has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankedDocument {
    pub text: String,
}

impl RerankList {
    /// Ranks the documents of a request by their scores, which are numbers.
    pub fn new(
        id: String,
        body: RerankBody,
        scores: &[f64],
        prompt_tokens: u64,
        model: &str,
    ) -> RerankList {
        let RerankBody { documents, top_n, returns_documents, .. } = body;
        let to_result = |(index, (text, score)): (usize, (String, &f64))| RerankResult {
            index,
            document: returns_documents.then_some(RankedDocument { text }),
            relevance_score: *score,
        };
        let scored = documents.into_iter().zip(scores).enumerate();
        let mut results: Vec<RerankResult> = scored.map(to_result).collect();
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(top_n.unwrap_or(usize::MAX));
        let usage = RerankUsage { prompt_tokens, total_tokens: prompt_tokens };
        RerankList { id, object: "list", model: model.to_owned(), usage, results }
    }
}
