//! Observer of groups that may be run a second time, which reports nothing twice.

use std::ops::ControlFlow;

use engine_api::batch::{GenerationOutput, Observer};

/// Progress of a sequence.
#[derive(Debug, Clone, Copy, Default)]
struct DeliveredEvents {
    /// Number of tokens reported to the observer.
    tokens: usize,
    /// Number of tokens of the current run.
    seen_tokens: usize,
    is_stopped: bool,
    is_finished: bool,
}

/// Reports to an observer only what was not reported before. The tokens of a sequence depend on
/// that sequence alone, so a second run produces the same ones.
pub(super) struct DeduplicatingObserver<'a> {
    observer: &'a mut dyn Observer,
    /// Progress of each sequence.
    delivered: Vec<DeliveredEvents>,
}

impl<'a> DeduplicatingObserver<'a> {
    pub(super) fn new(
        observer: &'a mut dyn Observer,
        sequences: usize,
    ) -> DeduplicatingObserver<'a> {
        DeduplicatingObserver { observer, delivered: vec![DeliveredEvents::default(); sequences] }
    }

    /// Begins another run of all sequences from their beginnings.
    pub(super) fn restart(&mut self) {
        self.delivered.iter_mut().for_each(|delivered| delivered.seen_tokens = 0);
    }
}

impl Observer for DeduplicatingObserver<'_> {
    fn on_prefill_progress(&mut self, computed: u64, tokens: u64) {
        self.observer.on_prefill_progress(computed, tokens);
    }

    fn on_token(&mut self, sequence: usize, token: u32) -> ControlFlow<()> {
        let delivered = &mut self.delivered[sequence];
        delivered.seen_tokens += 1;
        if delivered.seen_tokens > delivered.tokens {
            delivered.tokens = delivered.seen_tokens;
            delivered.is_stopped = self.observer.on_token(sequence, token).is_break();
        }
        // A sequence that was stopped before is stopped again at the same token.
        if delivered.is_stopped && delivered.seen_tokens == delivered.tokens {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn on_finished(&mut self, sequence: usize, generated: GenerationOutput) -> ControlFlow<()> {
        if std::mem::replace(&mut self.delivered[sequence].is_finished, true) {
            return ControlFlow::Continue(());
        }
        self.observer.on_finished(sequence, generated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_api::batch::FinishCause;

    #[derive(Default)]
    struct RecordingObserver {
        tokens: Vec<(usize, u32)>,
        finished: Vec<usize>,
    }

    impl Observer for RecordingObserver {
        fn on_token(&mut self, sequence: usize, token: u32) -> ControlFlow<()> {
            self.tokens.push((sequence, token));
            if token == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }

        fn on_finished(&mut self, sequence: usize, _: GenerationOutput) -> ControlFlow<()> {
            self.finished.push(sequence);
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn a_second_run_tells_what_the_first_did_not() {
        let generated = || GenerationOutput {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: FinishCause::Stop,
        };
        let mut recorded = RecordingObserver::default();
        let mut observer = DeduplicatingObserver::new(&mut recorded, 2);
        assert_eq!(observer.on_token(0, 5), ControlFlow::Continue(()));
        assert_eq!(observer.on_token(0, 9), ControlFlow::Break(()));
        assert_eq!(observer.on_token(1, 7), ControlFlow::Continue(()));
        assert!(observer.on_finished(0, generated()).is_continue());
        observer.restart();
        assert_eq!(observer.on_token(0, 5), ControlFlow::Continue(()));
        assert_eq!(observer.on_token(0, 9), ControlFlow::Break(()), "it stops where it stopped");
        assert_eq!(observer.on_token(1, 7), ControlFlow::Continue(()));
        assert_eq!(observer.on_token(1, 8), ControlFlow::Continue(()));
        assert!(observer.on_finished(0, generated()).is_continue());
        assert!(observer.on_finished(1, generated()).is_continue());
        assert_eq!(recorded.tokens, [(0, 5), (0, 9), (1, 7), (1, 8)]);
        assert_eq!(recorded.finished, [0, 1]);
    }
}
