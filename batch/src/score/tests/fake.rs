//! An engine without a model: the log-probability of a token follows from the token before it.

use std::sync::{Arc, Mutex};

use engine_api::event::{FinishCause, Logprob};
use engine_api::serving::{
    Engine, EngineEvent, EngineLimits, EngineState, EngineStatus, EventSink, GenerationId,
    GenerationRequest, PreparedGrammar, SubmitError,
};
use grammar::Grammar;

/// Log-probability of a token that equals the one before it, which is the most likely token.
pub(super) const LIKELY: f32 = -0.25;

/// Returns the log-probability of `token` after `before`.
pub(super) fn logprob(before: u32, token: u32) -> f32 {
    if token == before { LIKELY } else { -1.0 - token as f32 / 64.0 }
}

/// Engine that answers a submission at once.
#[derive(Debug, Default)]
pub(super) struct Fake {
    /// Token that makes the logits of its sequence infinite.
    pub(super) broken: Option<u32>,
    /// Number of sequences that are scored before the engine fails.
    pub(super) most: Option<usize>,
    pub(super) submissions: Mutex<Vec<GenerationRequest>>,
}

impl Engine for Fake {
    fn limits(&self) -> EngineLimits {
        EngineLimits { slots: 2, context: 64, logprobs: 4 }
    }

    fn status(&self) -> EngineStatus {
        EngineStatus::new(EngineState::Ready)
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        PreparedGrammar { grammar, compiled: None }
    }

    fn submit(
        &self,
        submission: GenerationRequest,
        mut listener: Box<dyn EventSink>,
    ) -> Result<GenerationId, SubmitError> {
        let mut submissions = self.submissions.lock().expect("no thread of a test panics");
        let id = GenerationId(submissions.len() as u64);
        if self.most.is_some_and(|most| submissions.len() >= most) {
            let _ = listener.on_event(EngineEvent::Failed("The device is on fire.".to_owned()));
            return Ok(id);
        }
        let from = submission.prompt_logprobs_from as usize;
        let broken = self.broken.is_some_and(|token| submission.prompt.contains(&token));
        let likely = usize::from(submission.prompt_logprobs) - 1;
        let logprobs_at = |place: usize| -> Vec<Logprob> {
            let (before, token) = (submission.prompt[place - 1], submission.prompt[place]);
            let candidate = |token| Logprob { token, logprob: logprob(before, token) };
            let own = Logprob {
                logprob: if broken { f32::NEG_INFINITY } else { candidate(token).logprob },
                ..candidate(token)
            };
            let others = (0..).filter(|other| *other != before).map(candidate);
            std::iter::once(own).chain([candidate(before)]).chain(others).take(likely + 1).collect()
        };
        let logprobs = (from..submission.prompt.len()).flat_map(logprobs_at).collect();
        let cached_tokens = (from as u32 - 1) / 2;
        submissions.push(submission);
        let _ = listener.on_event(EngineEvent::Prompt {
            cached_tokens,
            queue_time: std::time::Duration::ZERO,
            logprobs,
        });
        let _ = listener.on_event(EngineEvent::Finished(FinishCause::Length));
        Ok(id)
    }

    fn cancel(&self, _: GenerationId) {}

    fn drain(&self) {}
}
