//! Sink of groups that may be run a second time, which reports nothing twice.

use std::ops::ControlFlow;

use engine_api::event::{BatchSink, EngineEvent};

/// Events of a request that were reported.
#[derive(Debug, Clone, Copy, Default)]
struct DeliveredEvents {
    has_prompt: bool,
    tokens: usize,
    /// Number of tokens of the current run.
    seen_tokens: usize,
    /// No more events are expected.
    has_ended: bool,
}

/// Reports to a sink only what was not reported before. The tokens of a sequence depend on that
/// sequence alone, so a second run produces the same ones.
pub(super) struct DeduplicatingSink<'a> {
    sink: &'a mut dyn BatchSink,
    /// Events of each request.
    delivered: Vec<DeliveredEvents>,
}

impl<'a> DeduplicatingSink<'a> {
    pub(super) fn new(sink: &'a mut dyn BatchSink, requests: usize) -> DeduplicatingSink<'a> {
        DeduplicatingSink { sink, delivered: vec![DeliveredEvents::default(); requests] }
    }

    /// Begins another run of all requests from their beginnings.
    pub(super) fn restart(&mut self) {
        self.delivered.iter_mut().for_each(|delivered| delivered.seen_tokens = 0);
    }
}

impl BatchSink for DeduplicatingSink<'_> {
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
        let delivered = &mut self.delivered[request];
        if delivered.has_ended {
            return ControlFlow::Break(());
        }
        let is_new = match event {
            EngineEvent::Prompt { .. } => !std::mem::replace(&mut delivered.has_prompt, true),
            EngineEvent::Token { .. } => {
                delivered.seen_tokens += 1;
                let is_new = delivered.seen_tokens > delivered.tokens;
                delivered.tokens = delivered.tokens.max(delivered.seen_tokens);
                is_new
            }
            EngineEvent::Pooled(_)
            | EngineEvent::Drafts(_)
            | EngineEvent::Finished(_)
            | EngineEvent::Failed(_) => true,
        };
        if !is_new {
            return ControlFlow::Continue(());
        }
        delivered.has_ended = matches!(event, EngineEvent::Finished(_) | EngineEvent::Failed(_));
        let answer = self.sink.on_event(request, event);
        delivered.has_ended |= answer.is_break();
        answer
    }

    fn on_prefill_progress(&mut self, computed: u64, tokens: u64) {
        self.sink.on_prefill_progress(computed, tokens);
    }

    fn has_failed(&self) -> bool {
        self.sink.has_failed()
    }
}

#[cfg(test)]
mod tests {
    use engine_api::event::FinishCause;

    use super::*;

    #[derive(Default)]
    struct RecordingSink(Vec<(usize, EngineEvent)>);

    impl BatchSink for RecordingSink {
        fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
            let is_last = event == token(9);
            self.0.push((request, event));
            if is_last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    fn token(token: u32) -> EngineEvent {
        EngineEvent::Token { token, logprobs: Vec::new() }
    }

    #[test]
    fn a_second_run_tells_what_the_first_did_not() {
        let finished = || EngineEvent::Finished(FinishCause::Stop);
        let mut recorded = RecordingSink::default();
        let mut sink = DeduplicatingSink::new(&mut recorded, 3);
        assert!(sink.on_event(0, token(5)).is_continue());
        assert!(sink.on_event(0, token(9)).is_break());
        assert!(sink.on_event(1, token(7)).is_continue());
        assert!(sink.on_event(2, token(6)).is_continue());
        assert!(sink.on_event(2, finished()).is_continue());
        sink.restart();
        assert!(sink.on_event(0, token(5)).is_break(), "it was stopped");
        assert!(sink.on_event(1, token(7)).is_continue());
        assert!(sink.on_event(1, token(8)).is_continue());
        assert!(sink.on_event(2, token(6)).is_break(), "it has ended");
        assert!(sink.on_event(1, finished()).is_continue());
        let expected = [
            (0, token(5)),
            (0, token(9)),
            (1, token(7)),
            (2, token(6)),
            (2, finished()),
            (1, token(8)),
            (1, finished()),
        ];
        assert_eq!(recorded.0, expected);
    }
}
