//! Layout of the step table: the only data that changes between two runs of the same program.
//!
//! Pure index arithmetic over u32 words; the words themselves are in the control segment. The
//! coordinator fills the table before it releases a group; from then on only `Sample` writes it
//! (and the coordinator the `Cancel` field), ordered by the lanes' timelines.

use serde::{Deserialize, Serialize};

use crate::ir::ProgramId;

/// A per-sequence field of one u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// Tokens of the prompt; 0 marks a slot without a sequence in this group.
    PromptLen,
    /// Number of tokens that prefill computes, the last ones of the prompt; 0 for a sequence that
    /// was started in an earlier group.
    Fresh,
    /// If other tokens precede them: the slot, counted from 1, of the sequence that computes those
    /// tokens, with which the prompt shares a prefix.
    Owner,
    /// Number of new tokens still allowed.
    Remaining,
    /// Number of new tokens written to the output, including a final EOS.
    Generated,
    /// First position of the sequence's extent, in positions of the batch's cache.
    KvStart,
    /// Capacity of the extent in positions: prompt length + maximum number of new tokens.
    KvCapacity,
    /// f32 bits; 0 is greedy.
    Temperature,
    /// f32 bits.
    TopP,
    /// 0 keeps every token.
    TopK,
    /// f32 bits.
    MinP,
    /// f32 bits; 0 keeps every token.
    TopNSigma,
    /// f32 bits; 0 has no effect, like 1.
    Repetition,
    /// f32 bits.
    Presence,
    /// f32 bits.
    Frequency,
    /// Minimum number of new tokens before an EOS token may end the sequence.
    MinTokens,
    /// Number of tokens with a bias, at most [`LOGIT_BIASES_MAX`].
    LogitBiases,
    /// Number of tokens that end the sequence in addition to EOS tokens, at most
    /// [`STOP_TOKENS_MAX`].
    StopTokens,
    /// Maximum number of tokens of the reasoning plus 1; 0 without a limit.
    ReasoningMax,
    /// Token that begins the reasoning, plus 1; 0 if the prompt ends within reasoning.
    ReasoningOpen,
    /// Token that ends the reasoning.
    ReasoningClose,
    SeedLow,
    SeedHigh,
    IdHashLow,
    IdHashHigh,
    /// Number of log-probabilities to keep for each new token.
    Logprobs,
    /// Serving runs: number of log-probabilities to keep for each prompt token after the position
    /// in `LogitsFrom`. They share the storage of those of new tokens, from the last entry
    /// downwards.
    PromptLogprobs,
    /// Serving runs: first prompt position whose logits are computed for log-probabilities.
    LogitsFrom,
    /// Serving runs: a [`PoolingMode`], which selects the rows that are pooled.
    Pooling,
    /// Output grammar, an index counted from 1 into the sampler's grammars; 0 for none.
    Grammar,
    /// 1: EOS tokens do not end the sequence (benchmarks).
    IgnoreEos,
    /// 1: logits that are not finite do not end the sequence and select token 0 (for measurements,
    /// whose programs compute on uninitialised memory).
    AnyLogits,
    /// A [`EndReason`] code.
    Finish,
    /// 1: the coordinator has found a stop string; the sequence ends at the next `Sample`.
    Cancel,
    /// Serving runs: a [`SlotState`].
    State,
    /// Serving runs: number of positions whose keys and values are cached.
    Computed,
    /// Serving runs: number of positions for which the coordinator has allocated caches; it grows
    /// while the sequence runs.
    Capacity,
    /// Serving runs: arrival number of the sequence, which may wrap around.
    Arrival,
    /// Serving runs: 1 if the sequence's rows yield to those of other sequences.
    Background,
    /// Serving runs: number of drafted tokens in the output after the sampled ones. The next step
    /// may verify some of them.
    Drafts,
    /// Serving runs: f32 bits of the estimated probability that a drafted token is accepted; 0 if
    /// nothing is known yet.
    Acceptance,
    /// Serving runs: f32 bits of the weight of the estimate, once there is one.
    AcceptanceWeight,
    /// Serving runs: f32 bits of the moving average of accepted drafts, once there is an estimate.
    RecentAcceptance,
    /// Serving runs: number of drafted tokens that were verified.
    Verified,
    /// Serving runs: number of drafted tokens that were accepted.
    Accepted,
    /// Serving runs: number of tokens of the predicted answer, which follow those of the prompt.
    PredictionLen,
    /// Serving runs: place in the predicted answer of what was last drafted from it, less the place
    /// in the answer; it wraps around.
    PredictionShift,
    /// If sequences have owners: the owner, a [`KvTier`].
    Tier,
    /// If sequences have owners: the extent in the device's caches, while the sequence has or had
    /// one.
    Allocation,
    /// If sequences have owners: the position in its owner's queue.
    Turn,
    /// If sequences have owners: number of steps since the sequence was last computed.
    Waited,
    /// If sequences have owners: number of layers of its newest token that were computed in earlier
    /// steps; 0 if it is not deferred.
    Layer,
}

const FIELDS: usize = Field::Layer as usize + 1;

/// Owner of a slot in a serving run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// The coordinator: the slot holds no sequence.
    Free = 0,
    /// The coordinator has written a sequence, and the sampler may take it.
    Offered = 1,
    /// The sampler, from step to step.
    Running = 2,
    /// The coordinator: the sequence has ended and no work list refers to the slot.
    Ended = 3,
}

/// Rows of a prompt after the final norm that are added to the pooled ones of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PoolingMode {
    NoRows = 0,
    LastRow = 1,
    /// All rows, whose logits are then computed too.
    AllRows = 2,
}

/// Location of the caches of a sequence that has an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum KvTier {
    /// Nothing of the sequence is cached.
    Nowhere = 0,
    Device = 1,
    Host = 2,
}

/// A work list of a batch. The lists of a group's first program are written before the group is
/// released; each `Sample` lists the rows of the following step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    pub program: ProgramId,
    pub stream: u16,
}

impl List {
    /// Returns the prefill list of a stream.
    pub const fn prefill(stream: u16) -> List {
        List { program: ProgramId::PREFILL, stream }
    }

    /// The decode list.
    pub const DECODE: List = List { program: ProgramId::DECODE, stream: 0 };
}

/// Sizes of the work lists of a program in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListSize {
    /// Number of streams, each with its own list.
    pub streams: u32,
    /// Maximum number of items in a list.
    pub items: u32,
}

impl ListSize {
    /// Returns the words of a list: a count and the items.
    const fn list_words(self) -> usize {
        1 + self.items as usize * ITEM_WORDS
    }

    const fn words(self) -> usize {
        self.streams as usize * self.list_words()
    }
}

/// Words of an item of a work list: its slot, its first position, its rows, the row counted from 1
/// from which the positions before it are in the same stream (0: in the cache), twice the number of
/// its last rows whose logits are computed, plus 1 if the last row is sampled, and the number of
/// its last rows whose tokens are drafts.
pub const ITEM_WORDS: usize = 6;

/// Words of the step budget of a serving run: target duration of a step in microseconds, cost of a
/// row per position in picoseconds, cost of the logits of a prompt's row and of a draft's row in
/// nanoseconds, maximum number of drafts of a sequence, up to eight pairs of rows and the duration
/// of a step with that many rows, in microseconds, and 1 if tokens of all sequences are drafted.
pub const BUDGET_WORDS: usize = 22;

/// Words of the iteration parameters if sequences have owners: policy, limits, costs, the programs
/// of up to two following stages (counted from 1), and how often each program ran.
pub const OWNERS_WORDS: usize = 40;

/// Maximum number of checkpoints of a sequence that are planned at a time.
pub const PLANNED_CHECKPOINTS: u32 = 4;

/// Words of a planned checkpoint: the position at which it is taken, its number among those of the
/// batch, and the last position at which it was taken.
pub const CHECKPOINT_WORDS: usize = 3;

/// Maximum number of tokens of a sequence with a bias.
pub const LOGIT_BIASES_MAX: usize = 1024;

/// Maximum number of tokens that end a sequence in addition to EOS tokens.
pub const STOP_TOKENS_MAX: usize = 128;

/// Words of a sequence's rules about single tokens: pairs of a token and the f32 bits of its bias,
/// then the tokens that end the sequence.
const TOKEN_RULES_WORDS: usize = 2 * LOGIT_BIASES_MAX + STOP_TOKENS_MAX;

/// Words of a log-probability.
pub const LOGPROB_WORDS: usize = 2;

/// Reason for which a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum EndReason {
    Running = 0,
    /// An EOS token, or a stop string.
    Stop = 1,
    Length = 2,
    /// The next logits contained infinities or NaN.
    NotFinite = 3,
}

/// Word offsets of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTableLayout {
    pub batches: u32,
    pub batch_size: u32,
    /// Sizes of the work lists, by program.
    pub lists: Vec<ListSize>,
    pub max_prompt: u32,
    pub max_new: u32,
    /// See [`crate::plan::RunShape::logprobs`].
    pub logprobs: u32,
    /// Number of parts of split attention; 1 if it is not split.
    pub chunks: u32,
    /// Distinct windows of layers whose caches are smaller than the longest sequence.
    pub windows: Vec<u32>,
    pub routers: Routers,
    /// Maximum number of pages of a sequence; 0 if caches are not paged.
    pub pages: u32,
    /// Number of checkpoints of a sequence that can be planned; 0 if none are taken.
    pub planned_checkpoints: u32,
    /// True if sequences are owned by the device or by the host.
    pub has_owners: bool,
    /// Elements of the pooled hidden states of a sequence; 0 if none are pooled.
    #[serde(default)]
    pub pooled: u32,
}

/// Words of the KV selection statistics: number of positions read, then number of positions
/// available, over all layers and KV heads, two words each, the lower one first.
pub const SELECTED_WORDS: usize = 4;

/// Routers whose choices are counted; all 0 if no layer has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Routers {
    pub layers: u32,
    /// Number of experts of each layer.
    pub experts: u32,
    /// Maximum number of uses of a cache of experts that are logged (`crate::routing_log`); 0
    /// without a cache.
    #[serde(default)]
    pub logged: u32,
}

/// Words of a router before those of its experts: number of decode steps of a batch, number of
/// their rows, and over all steps the number of distinct experts, and of those among them that no
/// cache had.
pub const ROUTER_SUMS: usize = 4;

impl StepTableLayout {
    fn batch_words(&self) -> usize {
        let size = self.batch_size as usize;
        self.lists_words()
            + size * FIELDS
            + (self.chunks as usize + 1)
            + size * self.windows.len()
            + size * (self.max_prompt as usize + self.max_new as usize)
            + size * self.logprobs_words()
            + size * self.pages as usize
            + size * TOKEN_RULES_WORDS
            + size * self.planned_checkpoints as usize * CHECKPOINT_WORDS
            + size * self.pooled as usize
    }

    /// Returns the words of the work lists of a batch.
    fn lists_words(&self) -> usize {
        self.lists.iter().map(|list| list.words()).sum()
    }

    /// Returns the words of the log-probabilities of a sequence.
    fn logprobs_words(&self) -> usize {
        LOGPROB_WORDS * self.logprobs as usize * self.max_new as usize
    }

    /// Returns the size of the whole table in words.
    pub fn words(&self) -> usize {
        self.owners() + if self.has_owners { OWNERS_WORDS } else { 0 }
    }

    /// Returns the first of [`OWNERS_WORDS`] words, if sequences have owners.
    pub fn owners(&self) -> usize {
        self.selected() + SELECTED_WORDS
    }

    /// Returns the first of [`BUDGET_WORDS`] words.
    pub fn budget(&self) -> usize {
        let log_words = if self.routers.logged > 0 { 1 + self.routers.logged as usize } else { 0 };
        self.routing_log() + log_words
    }

    /// Returns the first word of the log of a cache of experts, if there is one: the number of
    /// entries, followed by them.
    pub fn routing_log(&self) -> usize {
        self.router(self.routers.layers as usize)
    }

    /// Returns the first of [`SELECTED_WORDS`] words.
    pub fn selected(&self) -> usize {
        self.budget() + BUDGET_WORDS
    }

    /// Returns the first word of a layer's router: [`ROUTER_SUMS`] words, then for each expert the
    /// number of rows of all programs routed to it.
    pub fn router(&self, layer: usize) -> usize {
        self.enough() + 1 + layer * (ROUTER_SUMS + self.routers.experts as usize)
    }

    /// Returns the word with the number of running sequences in all batches at which the group ends
    /// early, so that other sequences can take the slots of ended ones; 0: the group continues
    /// until all have ended.
    pub fn enough(&self) -> usize {
        self.batches as usize * self.batch_words()
    }

    fn batch(&self, batch: usize) -> usize {
        assert!(batch < self.batches as usize, "batch {batch} of {}", self.batches);
        batch * self.batch_words()
    }

    /// Returns the maximum number of items in a list.
    pub fn items_max(&self, list: List) -> usize {
        self.lists[list.program.index()].items as usize
    }

    /// Returns the word with the number of items of a list; its items follow, [`ITEM_WORDS`] each.
    pub fn list(&self, batch: usize, list: List) -> usize {
        let own = self.lists[list.program.index()];
        assert!(u32::from(list.stream) < own.streams, "{list:?} of {} streams", own.streams);
        let others: usize = self.lists[..list.program.index()].iter().map(|l| l.words()).sum();
        self.batch(batch) + others + usize::from(list.stream) * own.list_words()
    }

    /// Returns the word of a field of a sequence.
    pub fn field(&self, batch: usize, sequence: usize, field: Field) -> usize {
        let size = self.batch_size as usize;
        assert!(sequence < size, "sequence {sequence} of {size}");
        self.batch(batch) + self.lists_words() + sequence * FIELDS + field as usize
    }

    /// Returns the first of `chunks + 1` words: chunk `c` covers units `[word c, word c + 1)`,
    /// where a unit is `sequence * kv_heads + head`.
    pub fn chunk_bounds(&self, batch: usize) -> usize {
        self.batch(batch) + self.lists_words() + self.batch_size as usize * FIELDS
    }

    /// Returns the word with the first position of a sequence's extent in the caches of the layers
    /// with one of `windows`; [`Field::KvStart`] is that of the layers without a window.
    pub fn windowed_start(&self, batch: usize, sequence: usize, window: usize) -> usize {
        let first = self.chunk_bounds(batch) + self.chunks as usize + 1;
        first + window * self.batch_size as usize + sequence
    }

    /// Returns the first of `max_prompt` words with the prompt's tokens.
    pub fn prompt(&self, batch: usize, sequence: usize) -> usize {
        self.windowed_start(batch, 0, self.windows.len()) + sequence * self.max_prompt as usize
    }

    /// Returns the first of `max_new` words with the sampled tokens.
    pub fn output(&self, batch: usize, sequence: usize) -> usize {
        self.prompt(batch, self.batch_size as usize) + sequence * self.max_new as usize
    }

    /// Returns the first of `logprobs` entries of an output token, [`LOGPROB_WORDS`] each: a token,
    /// and the f32 bits of its log-probability.
    pub fn logprobs(&self, batch: usize, sequence: usize, position: usize) -> usize {
        let first = self.output(batch, self.batch_size as usize);
        let of_token = LOGPROB_WORDS * self.logprobs as usize;
        first + sequence * self.logprobs_words() + position * of_token
    }

    /// Returns the first of `pages` words with the pages of a sequence, in the order of its
    /// positions.
    pub fn pages(&self, batch: usize, sequence: usize) -> usize {
        self.logprobs(batch, self.batch_size as usize, 0) + sequence * self.pages as usize
    }

    /// Returns the first of two words for each of [`LOGIT_BIASES_MAX`] tokens: the token, and the
    /// f32 bits of its bias.
    pub fn logit_biases(&self, batch: usize, sequence: usize) -> usize {
        self.pages(batch, self.batch_size as usize) + sequence * TOKEN_RULES_WORDS
    }

    /// Returns the first of [`STOP_TOKENS_MAX`] words with tokens that end the sequence.
    pub fn stop_tokens(&self, batch: usize, sequence: usize) -> usize {
        self.logit_biases(batch, sequence) + 2 * LOGIT_BIASES_MAX
    }

    /// Returns the first of [`CHECKPOINT_WORDS`] words of a planned checkpoint of a sequence.
    pub fn checkpoint(&self, batch: usize, sequence: usize, index: usize) -> usize {
        let planned = self.planned_checkpoints as usize;
        assert!(index < planned, "checkpoint {index} of {planned}");
        let first = self.logit_biases(batch, self.batch_size as usize);
        first + (sequence * planned + index) * CHECKPOINT_WORDS
    }

    /// Returns the first of `pooled` words, the f32 bits of the pooled hidden states of a sequence.
    pub fn pooled(&self, batch: usize, sequence: usize) -> usize {
        let planned = self.batch_size as usize * self.planned_checkpoints as usize;
        let first = self.logit_biases(batch, self.batch_size as usize) + planned * CHECKPOINT_WORDS;
        first + sequence * self.pooled as usize
    }
}

/// Computes unit boundaries of `chunks` parts balanced by KV bytes. `capacities[s]` is the extent
/// of sequence `s` in positions (0 for an empty slot); each sequence has `kv_heads` equal units. No
/// part exceeds [`chunk_positions_max`].
pub fn balance_units(capacities: &[u32], kv_heads: u32, chunks: u32) -> Vec<u32> {
    let total: u64 = capacities.iter().map(|c| u64::from(*c)).sum::<u64>() * u64::from(kv_heads);
    let units = capacities.len() as u32 * kv_heads;
    let mut bounds = Vec::with_capacity(chunks as usize + 1);
    bounds.push(0);
    let mut unit = 0u32;
    let mut before = 0u64;
    for chunk in 1..chunks {
        let target = total * u64::from(chunk) / u64::from(chunks);
        while unit < units && before < target {
            before += u64::from(capacities[(unit / kv_heads) as usize]);
            unit += 1;
        }
        bounds.push(unit);
    }
    bounds.push(units);
    bounds
}

/// Returns the maximum number of (unit, position) pairs in one part of [`balance_units`].
pub fn chunk_positions_max(batch_size: u64, max_context: u64, kv_heads: u64, chunks: u64) -> u64 {
    let total = batch_size * max_context * kv_heads;
    if chunks == 1 { total } else { total.div_ceil(chunks) + max_context }
}

#[cfg(test)]
mod tests;
