//! Run without input: seeded random token ids, greedy sampling, EOS ignored.

use std::ops::ControlFlow;

use batch::eta::PlannedSequence;
use batch::progress::JobProgress;
use engine_api::batch::{BatchEngine, EngineError};
use engine_api::event::{BatchSink, EngineEvent};
use engine_api::request::GenerationRequest;

/// Workload of a benchmark. All sequences have the same lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Benchmark {
    pub sequences: usize,
    pub prompt_len: u32,
    pub gen_len: u32,
    pub vocab_size: usize,
    pub seed: u64,
}

impl Benchmark {
    /// Returns the token ids of every prompt, from a counter-based hash of seed, sequence and
    /// position.
    pub fn prompts(&self) -> Vec<Vec<u32>> {
        let token = |sequence: u64, position: u64| {
            let word = mix(self.seed ^ mix(sequence << 32 | position));
            (word % self.vocab_size as u64) as u32
        };
        let prompt = |sequence| {
            (0..u64::from(self.prompt_len)).map(|position| token(sequence, position)).collect()
        };
        (0..self.sequences as u64).map(prompt).collect()
    }

    /// Runs all sequences.
    ///
    /// # Errors
    /// An error of the engine.
    pub fn run(
        &self,
        engine: &mut dyn BatchEngine,
        progress: &mut dyn JobProgress,
    ) -> Result<(), EngineError> {
        let planned = PlannedSequence { prompt_tokens: self.prompt_len, max_new: self.gen_len };
        progress.begin(vec![planned; self.sequences]);
        let mut sink = ProgressSink { progress, gen_len: self.gen_len };
        let prompts = self.prompts().into_iter().zip(0..);
        let requests = prompts.map(|(prompt, id_hash)| GenerationRequest {
            seed: self.seed,
            id_hash,
            any_logits: false,
            ..GenerationRequest::greedy(prompt, self.gen_len)
        });
        let outcome = engine.run(&requests.collect::<Vec<_>>(), &mut sink);
        sink.progress.end();
        outcome
    }
}

/// Finaliser of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Reports the progress of the sequences, whose tokens nothing reads.
struct ProgressSink<'p> {
    progress: &'p mut dyn JobProgress,
    gen_len: u32,
}

impl BatchSink for ProgressSink<'_> {
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
        match event {
            EngineEvent::Token { .. } => self.progress.token(request),
            EngineEvent::Finished(_) => self.progress.finished(request, self.gen_len),
            EngineEvent::Prompt { .. }
            | EngineEvent::Pooled(_)
            | EngineEvent::Drafts(_)
            | EngineEvent::Failed(_) => {}
        }
        ControlFlow::Continue(())
    }

    fn on_prefill_progress(&mut self, computed: u64, tokens: u64) {
        self.progress.prefilled(computed, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_seeded_and_inside_the_vocabulary() {
        let prompts = |seed| {
            Benchmark { sequences: 3, prompt_len: 50, gen_len: 4, vocab_size: 97, seed }.prompts()
        };
        assert_eq!(prompts(1), prompts(1));
        assert_ne!(prompts(1)[0], prompts(2)[0]);
        assert_ne!(prompts(1)[0], prompts(1)[1]);
        assert!(
            prompts(1).iter().all(|prompt| prompt.len() == 50 && prompt.iter().all(|t| *t < 97))
        );
    }
}
