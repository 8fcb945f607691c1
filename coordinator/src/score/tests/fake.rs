//! An engine without a model: the log-probability of a token follows from the token before it.

use std::sync::{Arc, Mutex};

use grammar::Grammar;

use crate::boundary::engine::{Finish, Logprob};
use crate::boundary::serving::{
    Event, Limits, Listener, PreparedGrammar, Refused, Serving, State, Status, Submission,
    SubmissionId,
};

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
    pub(super) submissions: Mutex<Vec<Submission>>,
}

impl Serving for Fake {
    fn limits(&self) -> Limits {
        Limits { slots: 2, context: 64, logprobs: 4 }
    }

    fn status(&self) -> Status {
        Status::new(State::Ready)
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        PreparedGrammar { grammar, form: None }
    }

    fn submit(
        &self,
        submission: Submission,
        mut listener: Box<dyn Listener>,
    ) -> Result<SubmissionId, Refused> {
        let mut submissions = self.submissions.lock().expect("no thread of a test panics");
        let id = SubmissionId(submissions.len() as u64);
        if self.most.is_some_and(|most| submissions.len() >= most) {
            listener.tell(Event::Failed("The device is on fire.".to_owned()));
            return Ok(id);
        }
        let from = submission.prompt_logprobs_from as usize;
        let broken = self.broken.is_some_and(|token| submission.prompt.contains(&token));
        let likely = usize::from(submission.prompt_logprobs) - 1;
        let of = |place: usize| -> Vec<Logprob> {
            let (before, token) = (submission.prompt[place - 1], submission.prompt[place]);
            let of = |token| Logprob { token, logprob: logprob(before, token) };
            let own = Logprob {
                logprob: if broken { f32::NEG_INFINITY } else { of(token).logprob },
                ..of(token)
            };
            let others = (0..).filter(|other| *other != before).map(of);
            std::iter::once(own).chain([of(before)]).chain(others).take(likely + 1).collect()
        };
        let logprobs = (from..submission.prompt.len()).flat_map(of).collect();
        let cached_tokens = (from as u32 - 1) / 2;
        submissions.push(submission);
        listener.tell(Event::Prompt { cached_tokens, waited: std::time::Duration::ZERO, logprobs });
        listener.tell(Event::Finished(Finish::Length));
        Ok(id)
    }

    fn cancel(&self, _: SubmissionId) {}

    fn drain(&self) {}
}
