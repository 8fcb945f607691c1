//! Observer of groups that may be run a second time, which reports nothing twice.

use std::ops::ControlFlow;

use crate::boundary::engine::{Generated, Observer, Verdict};

/// Progress of a sequence.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    /// Number of tokens reported to the observer.
    tokens: usize,
    /// Number of tokens of the current run.
    seen: usize,
    stops: bool,
    finished: bool,
}

/// Reports to an observer only what was not reported before. The tokens of a sequence depend on
/// that sequence alone, so a second run produces the same ones.
pub(super) struct TellingOnce<'a> {
    observer: &'a mut dyn Observer,
    /// Progress of each sequence.
    told: Vec<Told>,
}

impl<'a> TellingOnce<'a> {
    pub(super) fn new(observer: &'a mut dyn Observer, sequences: usize) -> TellingOnce<'a> {
        TellingOnce { observer, told: vec![Told::default(); sequences] }
    }

    /// Begins another run of all sequences from their beginnings.
    pub(super) fn begin_again(&mut self) {
        self.told.iter_mut().for_each(|told| told.seen = 0);
    }
}

impl Observer for TellingOnce<'_> {
    fn prefilled(&mut self, computed: u64, tokens: u64) {
        self.observer.prefilled(computed, tokens);
    }

    fn token(&mut self, sequence: usize, token: u32) -> Verdict {
        let told = &mut self.told[sequence];
        told.seen += 1;
        if told.seen > told.tokens {
            told.tokens = told.seen;
            told.stops = self.observer.token(sequence, token) == Verdict::Stop;
        }
        // A sequence that was stopped before is stopped again at the same token.
        if told.stops && told.seen == told.tokens { Verdict::Stop } else { Verdict::Continue }
    }

    fn finished(&mut self, sequence: usize, generated: Generated) -> ControlFlow<()> {
        if std::mem::replace(&mut self.told[sequence].finished, true) {
            return ControlFlow::Continue(());
        }
        self.observer.finished(sequence, generated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::engine::Finish;

    #[derive(Default)]
    struct Heard {
        tokens: Vec<(usize, u32)>,
        finished: Vec<usize>,
    }

    impl Observer for Heard {
        fn token(&mut self, sequence: usize, token: u32) -> Verdict {
            self.tokens.push((sequence, token));
            if token == 9 { Verdict::Stop } else { Verdict::Continue }
        }

        fn finished(&mut self, sequence: usize, _: Generated) -> ControlFlow<()> {
            self.finished.push(sequence);
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn a_second_run_tells_what_the_first_did_not() {
        let generated = || Generated {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            prompt_logprobs: Vec::new(),
            finish: Finish::Stop,
        };
        let mut heard = Heard::default();
        let mut telling = TellingOnce::new(&mut heard, 2);
        assert_eq!(telling.token(0, 5), Verdict::Continue);
        assert_eq!(telling.token(0, 9), Verdict::Stop);
        assert_eq!(telling.token(1, 7), Verdict::Continue);
        assert!(telling.finished(0, generated()).is_continue());
        telling.begin_again();
        assert_eq!(telling.token(0, 5), Verdict::Continue);
        assert_eq!(telling.token(0, 9), Verdict::Stop, "it stops where it stopped");
        assert_eq!(telling.token(1, 7), Verdict::Continue);
        assert_eq!(telling.token(1, 8), Verdict::Continue);
        assert!(telling.finished(0, generated()).is_continue());
        assert!(telling.finished(1, generated()).is_continue());
        assert_eq!(heard.tokens, [(0, 5), (0, 9), (1, 7), (1, 8)]);
        assert_eq!(heard.finished, [0, 1]);
    }
}
