//! The step table as the workers see it: named words of the control segment.
//!
//! Loads and stores are relaxed; the lanes' timelines order them, since every instruction lists the
//! table among its regions. Fields that are also read without waiting for a lane, such as the
//! number of generated tokens, are published after the data that they describe. Offsets of KV units
//! and of their scores are computed only here, so that every lane of every process agrees on them.

mod cache_layout;
mod checkpoints;
mod head_sizes;
mod kv_owner;
mod logprobs;
mod pooled;
mod routing;
mod token_rules;
mod token_view;

use std::ops::Range;

use model::layers::LayerKind;
use model::ops::Kv;
use model::rope::{Rope, SequenceLength};
use program::ir::{At, ProgramId, ProgramShape, Rows};
use program::map::{Chunk, Chunking};
use program::plan::Plan;
use program::step_table::{EndReason, Field, ITEM_WORDS, List, SELECTED_WORDS, StepTableLayout};
use scheduler::{StepCostCurve, StepLimits};
use shm::SharedU32s;

use head_sizes::HeadSizes;

pub use kv_owner::HybridPolicy;

/// A view of the step table with the sizes that its arithmetic needs.
#[derive(Debug, Clone)]
pub struct StepTable {
    words: SharedU32s,
    layout: StepTableLayout,
    /// Shape for which each program is compiled.
    programs: Vec<ProgramShape>,
    /// Sizes of the model, by which units are assigned to chunks.
    heads: HeadSizes,
    /// Sizes of each layer.
    layer_heads: Vec<HeadSizes>,
    /// Index of each layer's window among the layout's windows, if its caches keep no more than the
    /// window.
    windows: Vec<Option<u8>>,
    /// Ropes whose frequencies depend on a sequence's length.
    ropes: Vec<Rope>,
    /// See [`StepTable::can_share_prefixes`].
    shares: bool,
    micro_sequences: usize,
    serves: bool,
    device_slots: usize,
    page_positions: u32,
    chunking: Option<Chunking>,
    selects: bool,
}

/// Rows of one sequence in a work list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkItem {
    /// Slot in the batch.
    pub slot: usize,
    /// Position of the first row.
    pub first: usize,
    pub rows: usize,
    /// Row of the same stream at which the preceding positions begin, for a shared prefix; `None`
    /// if they are in the cache.
    pub shared_row: Option<usize>,
    /// True if the sequence's next token is drawn from the logits of the last row that is no draft.
    pub samples: bool,
    /// Number of rows whose logits are computed, the last ones: for drawing, and for
    /// log-probabilities of prompts.
    pub logits_rows: usize,
    /// Number of rows whose tokens are drafts, the last ones. A token is drawn from each of them,
    /// which counts only if the drafts up to this row are what was drawn before.
    pub drafts: usize,
}

impl WorkItem {
    /// Returns the number of rows from which tokens are drawn, the last ones.
    pub fn drawn_rows(&self) -> usize {
        if self.samples { 1 + self.drafts } else { 0 }
    }
}

impl StepTable {
    /// Returns the table of `plan` over `words`.
    ///
    /// # Panics
    /// Panics if there are fewer words than the layout needs.
    pub fn new(words: SharedU32s, plan: &Plan) -> StepTable {
        assert!(words.len() >= plan.table.words(), "the control segment holds the step table");
        let rope = |kind: &LayerKind| kind.rope.clone().filter(Rope::depends_on_length);
        StepTable {
            words,
            layout: plan.table.clone(),
            programs: plan.programs.iter().map(|program| program.shape).collect(),
            heads: HeadSizes::new(&plan.config, plan.shape.max_context as usize),
            layer_heads: (0..plan.config.num_layers)
                .map(|layer| plan.config.of_layer(layer))
                .map(|model| HeadSizes::new(model, plan.shape.max_context as usize))
                .collect(),
            windows: (0..plan.config.num_layers).map(|layer| window_of(plan, layer)).collect(),
            ropes: plan.config.layers.kinds().iter().filter_map(rope).collect(),
            shares: !plan.config.layers.has_states(),
            micro_sequences: usize::from(plan.shape.micro_sequences),
            serves: plan.shape.serves,
            device_slots: plan.shape.device_slots.into(),
            page_positions: plan.shape.page_positions,
            chunking: plan.map.chunking,
            selects: plan.map.kv_select.is_some(),
        }
    }

    /// Returns true if a sequence can begin after rows of another one. A state depends on all rows
    /// of its own sequence and rules this out.
    pub fn can_share_prefixes(&self) -> bool {
        self.shares
    }

    /// Returns true if new tokens select what they attend to.
    pub fn selects_positions(&self) -> bool {
        self.selects
    }

    /// Returns true if sequences arrive during the run.
    pub fn serves(&self) -> bool {
        self.serves
    }

    /// Returns the number of positions that new tokens have attended to since the run began, if
    /// they select, and the number of all positions that they could have attended to.
    pub fn selected_positions(&self) -> (u64, u64) {
        let first = self.layout.selected();
        let count = |word: usize| {
            let [low, high] = [word, word + 1].map(|word| u64::from(self.words.load(word)));
            high << 32 | low
        };
        (count(first), count(first + 2))
    }

    /// Counts the positions that new tokens attended to, of `all` positions.
    pub fn count_selected(&self, read: u64, all: u64) {
        let first = self.layout.selected();
        let (was_read, was_all) = self.selected_positions();
        for (word, sum) in [(first, was_read + read), (first + 2, was_all + all)] {
            // Only one lane attends if positions are selected.
            self.words.store(word, sum as u32);
            self.words.store(word + 1, (sum >> 32) as u32);
        }
    }

    /// Returns the number of batches.
    pub fn batches(&self) -> usize {
        self.layout.batches as usize
    }

    /// Returns the number of sequence slots of a batch.
    pub fn batch_size(&self) -> usize {
        self.layout.batch_size as usize
    }

    fn heads_of(&self, layer: Option<u16>) -> HeadSizes {
        layer.map_or(self.heads, |layer| self.layer_heads[usize::from(layer)])
    }

    /// Returns the number of KV heads of a layer, or of the model.
    pub fn kv_heads(&self, layer: Option<u16>) -> usize {
        self.heads_of(layer).kv_heads
    }

    /// Returns the number of elements of one head of a layer.
    pub fn head_dim(&self, layer: Option<u16>) -> usize {
        self.heads_of(layer).head_dim
    }

    /// Returns the number of elements of a place in a layer's cache for one KV head.
    pub fn place_dim(&self, layer: Option<u16>, kv: Kv) -> usize {
        self.heads_of(layer).place_dims[kv as usize]
    }

    /// Returns the number of positions for which a layer's cache has one place.
    pub fn cache_rate(&self, layer: Option<u16>, kv: Kv) -> usize {
        if kv == Kv::V { self.heads_of(layer).rate } else { 1 }
    }

    /// Returns the number of query heads of a layer that share a KV head.
    pub fn group(&self, layer: Option<u16>) -> usize {
        self.heads_of(layer).group
    }

    /// Returns a field of a sequence.
    pub fn field(&self, batch: usize, sequence: usize, field: Field) -> u32 {
        let index = self.layout.field(batch, sequence, field);
        match field {
            Field::Generated | Field::State | Field::Capacity | Field::Computed => {
                self.words.acquire(index)
            }
            _ => self.words.load(index),
        }
    }

    /// Sets a field of a sequence.
    pub fn set_field(&self, batch: usize, sequence: usize, field: Field, value: u32) {
        let index = self.layout.field(batch, sequence, field);
        match field {
            Field::Generated | Field::State | Field::Capacity | Field::Computed => {
                self.words.publish(index, value);
            }
            _ => self.words.store(index, value),
        }
    }

    /// Returns two fields as the low and the high half of a u64.
    pub fn field_u64(&self, batch: usize, sequence: usize, low: Field, high: Field) -> u64 {
        u64::from(self.field(batch, sequence, low))
            | u64::from(self.field(batch, sequence, high)) << 32
    }

    /// Returns the maximum number of positions that a sequence can reach, which never changes.
    pub fn length(&self, batch: usize, sequence: usize) -> SequenceLength {
        let field = |field| self.field(batch, sequence, field);
        SequenceLength(field(Field::PromptLen) + field(Field::Generated) + field(Field::Remaining))
    }

    /// Returns true if two sequences of a batch rotate the same position equally.
    pub fn rotate_equally(&self, batch: usize, a: usize, b: usize) -> bool {
        let (a, b) = (self.length(batch, a), self.length(batch, b));
        self.ropes.iter().all(|rope| rope.frequency_class(a) == rope.frequency_class(b))
    }

    /// Returns all slots, as batch and slot.
    pub fn slots(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let size = self.batch_size();
        (0..self.batches()).flat_map(move |batch| (0..size).map(move |slot| (batch, slot)))
    }

    /// Returns true if a slot has a sequence that has not ended.
    pub fn is_running(&self, batch: usize, sequence: usize) -> bool {
        self.field(batch, sequence, Field::PromptLen) > 0
            && self.field(batch, sequence, Field::Finish) == EndReason::Running as u32
    }

    /// Returns the number of tokens of a new sequence's prompt that prefill computes as rows of
    /// their owner; 0 for a sequence that continues.
    pub fn shared_prefix_len(&self, batch: usize, sequence: usize) -> usize {
        let load = |field| self.field(batch, sequence, field) as usize;
        match load(Field::Fresh) {
            0 => 0,
            fresh => load(Field::PromptLen) - fresh,
        }
    }

    /// Returns the number of running sequences with which the group ends early, see
    /// [`StepTableLayout::enough`].
    pub fn early_end_running(&self) -> u32 {
        self.words.load(self.layout.enough())
    }

    /// Sets the number of running sequences with which the group ends early.
    pub fn set_early_end_running(&self, running: u32) {
        self.words.store(self.layout.enough(), running);
    }

    /// Returns the budget of a step in a serving run.
    pub fn step_budget(&self) -> StepLimits {
        let first = self.layout.budget();
        let word = |offset: usize| self.words.load(first + offset);
        let point = |point: usize| (word(5 + 2 * point), word(6 + 2 * point));
        StepLimits {
            rows: self.program(ProgramId::STEP).stream_rows,
            logits_rows: self.program(ProgramId::STEP).logits_rows,
            target_ns: u64::from(word(0)) * 1000,
            costs: StepCostCurve {
                points: std::array::from_fn(point),
                position_ps: word(1),
                logits_row_ns: word(2),
                draft_row_ns: word(3),
            },
        }
    }

    /// Returns the maximum number of drafted tokens of a sequence in a step; 0 if none are drafted.
    pub fn max_drafts(&self) -> u32 {
        self.words.load(self.layout.budget() + 4)
    }

    /// Sets the maximum number of drafted tokens of a sequence in a step.
    pub fn set_max_drafts(&self, drafts: u32) {
        self.words.store(self.layout.budget() + 4, drafts);
    }

    /// Returns true if tokens of all sequences are drafted, and not only of those whose answer is
    /// predicted.
    pub fn drafts_all(&self) -> bool {
        self.words.load(self.layout.budget() + 21) != 0
    }

    /// Sets if tokens of all sequences are drafted.
    pub fn set_drafts_all(&self, drafts_all: bool) {
        self.words.store(self.layout.budget() + 21, u32::from(drafts_all));
    }

    /// Sets the budget of a step; its number of rows is the program's.
    pub fn set_step_budget(&self, aim_us: u32, costs: &StepCostCurve) {
        let first = self.layout.budget();
        let rows = [aim_us, costs.position_ps, costs.logits_row_ns, costs.draft_row_ns];
        (first..).zip(rows).for_each(|(word, value)| self.words.store(word, value));
        let points = costs.points.iter().flat_map(|(rows, us)| [*rows, *us]);
        (first + 5..).zip(points).for_each(|(word, value)| self.words.store(word, value));
    }

    /// Returns the number of items of a work list.
    pub fn item_count(&self, batch: usize, list: List) -> usize {
        let items = self.words.load(self.layout.list(batch, list)) as usize;
        assert!(items <= self.layout.items_max(list), "{items} items of {list:?}");
        items
    }

    /// Sets the number of items of a work list, which must have been written.
    pub fn set_item_count(&self, batch: usize, list: List, items: usize) {
        let most = self.layout.items_max(list);
        assert!(items <= most, "{items} of {most} items of {list:?}");
        self.words.store(self.layout.list(batch, list), items as u32);
    }

    /// Returns an item of a work list.
    pub fn item(&self, batch: usize, list: List, index: usize) -> WorkItem {
        let at = self.item_at(batch, list, index);
        let word = |offset| self.words.load(at + offset) as usize;
        WorkItem {
            slot: word(0),
            first: word(1),
            rows: word(2),
            shared_row: word(3).checked_sub(1),
            samples: word(4) & 1 > 0,
            logits_rows: word(4) >> 1,
            drafts: word(5),
        }
    }

    /// Writes an item of a work list.
    pub fn set_item(&self, batch: usize, list: List, index: usize, item: WorkItem) {
        assert!(item.slot < self.batch_size(), "slot {} of {}", item.slot, self.batch_size());
        let at = self.item_at(batch, list, index);
        let shared_row = item.shared_row.map_or(0, |row| row + 1);
        let logits = usize::from(item.samples) | item.logits_rows << 1;
        let words = [item.slot, item.first, item.rows, shared_row, logits, item.drafts];
        for (offset, word) in words.into_iter().enumerate() {
            self.words.store(at + offset, word as u32);
        }
    }

    /// Appends an item to a work list.
    pub fn push_item(&self, batch: usize, list: List, item: WorkItem) {
        let items = self.item_count(batch, list);
        self.set_item(batch, list, items, item);
        self.set_item_count(batch, list, items + 1);
    }

    fn item_at(&self, batch: usize, list: List, index: usize) -> usize {
        let most = self.layout.items_max(list);
        assert!(index < most, "item {index} of {most} of {list:?}");
        self.layout.list(batch, list) + 1 + index * ITEM_WORDS
    }

    /// Returns the token at a position of a sequence, from its prompt or sampled.
    pub fn token(&self, batch: usize, sequence: usize, position: usize) -> u32 {
        let prompt = self.field(batch, sequence, Field::PromptLen) as usize;
        match position.checked_sub(prompt) {
            None => self.prompt_token(batch, sequence, position),
            Some(sampled) => self.output(batch, sequence, sampled),
        }
    }

    /// Returns a token of a prompt.
    pub fn prompt_token(&self, batch: usize, sequence: usize, position: usize) -> u32 {
        assert!(position < self.layout.max_prompt as usize, "prompt position {position}");
        self.words.load(self.layout.prompt(batch, sequence) + position)
    }

    /// Returns the tokens of a prompt.
    pub fn prompt(&self, batch: usize, sequence: usize) -> Vec<u32> {
        let tokens = self.field(batch, sequence, Field::PromptLen) as usize;
        (0..tokens).map(|position| self.prompt_token(batch, sequence, position)).collect()
    }

    /// Writes a prompt, before a group is released.
    pub fn set_prompt(&self, batch: usize, sequence: usize, tokens: &[u32]) {
        assert!(tokens.len() <= self.layout.max_prompt as usize, "a prompt of {}", tokens.len());
        let first = self.layout.prompt(batch, sequence);
        for (i, token) in tokens.iter().enumerate() {
            self.words.store(first + i, *token);
        }
    }

    /// Returns a sampled token.
    pub fn output(&self, batch: usize, sequence: usize, position: usize) -> u32 {
        assert!(position < self.layout.max_new as usize, "output position {position}");
        self.words.load(self.layout.output(batch, sequence) + position)
    }

    /// Writes a sampled token.
    pub fn set_output(&self, batch: usize, sequence: usize, position: usize, token: u32) {
        assert!(position < self.layout.max_new as usize, "output position {position}");
        self.words.store(self.layout.output(batch, sequence) + position, token);
    }

    /// Sets the unit boundaries of the chunks of split attention; there are `chunks + 1` of them.
    pub fn set_chunk_bounds(&self, batch: usize, bounds: &[u32]) {
        assert_eq!(bounds.len(), self.layout.chunks as usize + 1, "a boundary around each chunk");
        let first = self.layout.chunk_bounds(batch);
        for (i, bound) in bounds.iter().enumerate() {
            self.words.store(first + i, *bound);
        }
    }

    /// Sets all words to 0, before a group is written, except those that count for the whole run.
    pub fn clear(&self) {
        let layout = &self.layout;
        let before_routers = 0..layout.router(0);
        let before_selected = layout.budget()..layout.selected();
        let after_selected = layout.selected() + SELECTED_WORDS..layout.words();
        let cleared = [before_routers, before_selected, after_selected];
        cleared.into_iter().flatten().for_each(|word| self.words.store(word, 0));
    }

    /// Returns the shape for which a program is compiled.
    pub fn program(&self, id: ProgramId) -> &ProgramShape {
        &self.programs[id.index()]
    }

    /// Returns the number of streams of a batch in prefill.
    pub fn streams(&self) -> u16 {
        self.program(ProgramId::PREFILL).streams
    }

    /// Returns the maximum number of rows of a stream of prefill if prompts are split into chunks;
    /// `None` if they are whole.
    pub fn prefill_chunk(&self) -> Option<usize> {
        let prefill = self.program(ProgramId::PREFILL);
        (prefill.rows == Rows::Chunks).then_some(prefill.stream_rows as usize)
    }

    /// Returns the slots whose prompts form a stream of prefill, if prompts are whole.
    pub fn stream_slots(&self, stream: u16) -> Range<usize> {
        let first = usize::from(stream) * self.micro_sequences;
        first.min(self.batch_size())..(first + self.micro_sequences).min(self.batch_size())
    }

    /// Returns the units (`sequence slot * kv_heads + head`) of a chunk of a layer, or all units of
    /// the batch without a chunk. In a layer with another number of heads than the model, a chunk
    /// has the same share of each sequence.
    ///
    /// # Panics
    /// Panics if the chunk belongs to a split other than the table's.
    pub fn chunk_units(&self, at: At, chunk: Option<Chunk>) -> Range<usize> {
        let batch = usize::from(at.batch);
        let (of_model, own) = (self.heads.kv_heads, self.kv_heads(at.layer));
        let units = self.batch_size() * own;
        match chunk {
            None | Some(Chunk { of: 1, .. }) => 0..units,
            Some(Chunk { index, of }) => {
                assert_eq!(
                    u32::from(of),
                    self.layout.chunks,
                    "the table holds this split's bounds"
                );
                assert!(index < of, "chunk {index} of {of}");
                let first = self.layout.chunk_bounds(batch) + usize::from(index);
                let bound = |word| {
                    let unit = self.words.load(word) as usize;
                    unit / of_model * own + unit % of_model * own / of_model
                };
                let range = bound(first)..bound(first + 1);
                assert!(range.start <= range.end && range.end <= units, "chunk bounds {range:?}");
                range
            }
        }
    }
}

fn window_of(plan: &Plan, layer: usize) -> Option<u8> {
    let window = plan.config.layers.kind(layer).cached_window()?;
    let windows = plan.table.windows.iter();
    let place = windows.map(|kept| *kept as usize).position(|kept| kept == window)?;
    u8::try_from(place).ok()
}
