//! Mixture of experts: feed-forward networks of which a router selects a few for each row.

use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::layers::FeedForward;

/// Maximum number of groups that experts are divided into, which are identified by the bits of a
/// word. Published models have 8.
pub const EXPERT_GROUPS_MAX: usize = 64;

/// Experts of a layer.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    pub count: usize,
    /// Number of experts that compute a row.
    pub per_token: usize,
    /// Width of an expert's network.
    pub ffn_size: usize,
    pub scoring: ExpertScoring,
    /// The router and the three linears of an expert have biases.
    pub bias: bool,
    pub selection: ExpertSelection,
    /// Each expert has a factor of its weights.
    pub has_factors: bool,
    /// Factor of the router's logits.
    pub logit_factor: f32,
    /// Width of the rows that experts read and write, if it is not that of the hidden state: a
    /// linear before the experts and one after their sum change it.
    pub latent_size: Option<usize>,
    /// Layers without experts; `None` if all layers have experts.
    pub dense: Option<DenseLayers>,
}

/// Layers without experts, in a model in which others have experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenseLayers {
    /// Width of their network, which is not that of a shared expert.
    pub ffn_size: usize,
    /// Second half of the layers with experts, by whose operations placements are specified.
    pub others: FeedForward,
}

impl Experts {
    /// Creates experts without biases that are selected by their scores alone, for a model whose
    /// layers all have experts.
    pub fn new(count: usize, per_token: usize, ffn_size: usize, scoring: ExpertScoring) -> Experts {
        Experts {
            count,
            per_token,
            ffn_size,
            scoring,
            bias: false,
            selection: ExpertSelection::default(),
            has_factors: false,
            logit_factor: 1.0,
            latent_size: None,
            dense: None,
        }
    }

    /// Returns the width of the network of the layers without experts; 0 if there are none.
    pub fn dense_ffn_size(&self) -> usize {
        self.dense.map_or(0, |dense| dense.ffn_size)
    }

    /// Returns true if each row of a table of the experts of tokens names different experts of a
    /// layer.
    pub fn has_rows(&self, table: &[f32]) -> bool {
        let exists = |expert: &f32| (0..self.count).contains(&(*expert as usize)) && *expert >= 0.0;
        let mut rows = table.chunks_exact(self.per_token.max(1));
        let is_whole = rows.remainder().is_empty();
        is_whole
            && rows.all(|row| {
                let differs = |(place, expert): (usize, &f32)| !row[..place].contains(expert);
                row.iter().all(exists) && row.iter().enumerate().all(differs)
            })
    }

    /// Returns the expected number of distinct experts that `rows` rows select if all experts are
    /// equally likely: if a row selects `k` of `E` experts, each expert is missed by all rows with
    /// probability `(1 - k/E)^rows`.
    pub fn expected_distinct(&self, rows: f64) -> f64 {
        let missed = 1.0 - self.per_token as f64 / self.count as f64;
        self.count as f64 * (1.0 - missed.powf(rows))
    }

    /// Returns the expected fraction of the experts that `rows` rows select, which is also the
    /// fraction of the experts' weights that is read.
    pub fn expected_share(&self, rows: f64) -> f64 {
        self.expected_distinct(rows) / self.count as f64
    }
}

/// Prints the fields of a plain router alone, since keys of stored data are derived from this text:
/// a field that a model does not use must not change them.
impl Debug for Experts {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Experts { count, per_token, ffn_size, scoring, bias, selection, dense, .. } = self;
        let mut fields = f.debug_struct("Experts");
        fields.field("count", count).field("per_token", per_token).field("ffn_size", ffn_size);
        fields.field("scoring", scoring).field("bias", bias);
        if *selection != ExpertSelection::default() {
            fields.field("selection", selection);
        }
        if let Some(dense) = dense {
            fields.field("dense", dense);
        }
        if self.has_factors || self.logit_factor != 1.0 {
            fields.field("has_factors", &self.has_factors);
            fields.field("logit_factor", &self.logit_factor);
        }
        if let Some(latent_size) = &self.latent_size {
            fields.field("latent_size", latent_size);
        }
        fields.finish()
    }
}

/// Derivation of a row's experts and their weights from the router's logits. Among equal scores,
/// the expert with the lower index takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertScoring {
    /// Softmax over all experts in f32, of which the largest values are selected and, if
    /// `renormalise`, divided by their sum.
    SoftmaxTopK { renormalise: bool },
    /// The largest logits, with a softmax over these alone.
    TopKSoftmax,
    /// Sigmoid of each logit in f32, of which the largest values are selected and divided by their
    /// sum as specified.
    SigmoidTopK { sum: ScoreSum },
    /// Square root of `ln(1 + e^logit)` in f32, of which the largest values are selected and
    /// divided by their sum as specified.
    SqrtSoftplusTopK { sum: ScoreSum },
}

/// Division of the selected scores by their sum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreSum {
    /// The scores are the weights.
    Unused,
    /// Divides by the sum plus this number, which keeps a sum of zero from dividing by zero.
    Plus(f32),
}

/// Rules for the selection of experts and for their weights, in addition to their scores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExpertSelection {
    /// Each expert has a number that is added to its score for the selection, but not for its
    /// weight.
    pub bias: bool,
    /// Groups of experts; `None` if all experts are eligible.
    pub groups: Option<ExpertGroups>,
    /// Factor of the weights.
    pub scale: f32,
    /// The router's matrix is kept and multiplied in f32, whatever the run's type. Files have such
    /// matrices where a small difference of the scores would select other experts.
    pub is_f32: bool,
}

impl Default for ExpertSelection {
    fn default() -> ExpertSelection {
        ExpertSelection { bias: false, groups: None, scale: 1.0, is_f32: false }
    }
}

/// Consecutive groups of experts of equal size. A row selects its experts from the groups with the
/// largest scores.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    pub count: usize,
    /// Number of groups that a row selects from.
    pub per_token: usize,
    pub score: GroupScore,
    pub excluded: ExcludedExperts,
}

/// Score of a group of experts, by the numbers that select experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupScore {
    /// Sum of the two largest ones.
    #[default]
    SumOfTwo,
    /// The largest one.
    Largest,
}

/// Treatment of the experts in groups that a row does not select from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExcludedExperts {
    /// They are not selected.
    #[default]
    Ineligible,
    /// Zero takes the place of their score and bias in the selection, so that they precede experts
    /// below zero. Their weights are those of their scores.
    ZeroInSelection,
    /// Zero takes the place of their score, bias and weight.
    ZeroScore,
}

impl ExpertGroups {
    /// Creates groups by the sums of two scores, of which only the selected ones have eligible
    /// experts.
    pub fn new(count: usize, per_token: usize) -> ExpertGroups {
        let (score, excluded) = (GroupScore::default(), ExcludedExperts::default());
        ExpertGroups { count, per_token, score, excluded }
    }

    /// Returns what is required of the number of groups if `per_token` of `experts` experts cannot
    /// be selected from these groups; `None` if they can.
    pub fn error(self, experts: usize, per_token: usize) -> Option<&'static str> {
        let ExpertGroups { count, per_token: selected, score, .. } = self;
        if !(1..=EXPERT_GROUPS_MAX).contains(&count) || !experts.is_multiple_of(count) {
            return Some("a divisor of the number of experts, at most 64,");
        }
        let size = experts / count;
        let has_room = selected <= count && per_token <= size * selected;
        match score {
            GroupScore::SumOfTwo => (size < 2 || !has_room).then_some(
                "groups of two experts or more, of which the selected ones have the experts of a \
                 row,",
            ),
            GroupScore::Largest => (!has_room)
                .then_some("groups of which the selected ones have the experts of a row,"),
        }
    }
}

/// Prints the fields of groups with the default rules alone; see [`Experts`].
impl Debug for ExpertGroups {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let ExpertGroups { count, per_token, score, excluded } = self;
        let mut fields = f.debug_struct("ExpertGroups");
        fields.field("count", count).field("per_token", per_token);
        if *score != GroupScore::default() {
            fields.field("score", score);
        }
        if *excluded != ExcludedExperts::default() {
            fields.field("excluded", excluded);
        }
        fields.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize, per_token: usize) -> Experts {
        Experts::new(count, per_token, 1, ExpertScoring::TopKSoftmax)
    }

    #[test]
    fn few_rows_hit_few_experts() {
        let distinct = |experts: Experts| {
            [1.0, 8.0, 16.0, 60.0].map(|rows| experts.expected_distinct(rows).round() as usize)
        };
        // Qwen3-30B-A3B, gpt-oss-20b, OLMoE-1B-7B.
        assert_eq!(distinct(of(128, 8)), [8, 52, 82, 125]);
        assert_eq!(distinct(of(32, 4)), [4, 21, 28, 32]);
        assert_eq!(distinct(of(64, 8)), [8, 42, 56, 64]);
        assert_eq!(of(8, 8).expected_share(1.0), 1.0);
        assert_eq!(of(8, 2).expected_share(0.0), 0.0);
    }

    #[test]
    fn rows_of_tables_have_different_experts() {
        let experts = of(4, 2);
        assert!(experts.has_rows(&[0.0, 3.0, 2.0, 1.0]));
        for table in [[0.0, 4.0], [-1.0, 1.0], [2.0, 2.0]] {
            assert!(!experts.has_rows(&table), "{table:?}");
        }
        assert!(!experts.has_rows(&[0.0, 1.0, 2.0]));
    }

    #[test]
    fn groups_have_the_experts_of_a_row() {
        let largest = |groups: ExpertGroups| ExpertGroups { score: GroupScore::Largest, ..groups };
        for (groups, experts, per_token, is_valid) in [
            (ExpertGroups::new(4, 2), 8, 4, true),
            (ExpertGroups::new(4, 2), 8, 5, false),
            (ExpertGroups::new(4, 5), 8, 4, false),
            (ExpertGroups::new(3, 2), 8, 2, false),
            (ExpertGroups::new(0, 0), 8, 2, false),
            (ExpertGroups::new(128, 64), 256, 8, false),
            // A group of one expert has no two scores to be summed.
            (ExpertGroups::new(8, 4), 8, 4, false),
            (largest(ExpertGroups::new(8, 4)), 8, 4, true),
            (largest(ExpertGroups::new(8, 3)), 8, 4, false),
        ] {
            let context = format!("{groups:?} {experts} {per_token}");
            assert_eq!(groups.error(experts, per_token).is_none(), is_valid, "{context}");
        }
    }

    /// Keys of stored weights and prompts are derived from this text.
    #[test]
    fn unused_fields_are_not_printed() {
        let plain = "Experts { count: 8, per_token: 2, ffn_size: 1, scoring: TopKSoftmax, \
                     bias: false }";
        assert_eq!(format!("{:?}", of(8, 2)), plain);
        let selection = ExpertSelection { scale: 2.5, ..ExpertSelection::default() };
        let dense = Some(DenseLayers { ffn_size: 3, others: FeedForward::Experts });
        let text = format!("{:?}", Experts { selection, dense, ..of(8, 2) });
        assert!(text.contains("scale: 2.5") && text.contains("ffn_size: 3"), "{text}");
        let text = format!("{:?}", Experts { latent_size: Some(5), ..of(8, 2) });
        assert!(text.contains("latent_size: 5"), "{text}");
        let groups = ExpertGroups::new(8, 4);
        assert_eq!(format!("{groups:?}"), "ExpertGroups { count: 8, per_token: 4 }");
        let other = ExpertGroups { score: GroupScore::Largest, ..groups };
        assert!(format!("{other:?}").contains("score: Largest"));
        let other = ExpertGroups { excluded: ExcludedExperts::ZeroScore, ..groups };
        assert!(format!("{other:?}").contains("excluded: ZeroScore"));
    }
}
