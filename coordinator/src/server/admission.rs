//! Admission control: limits on the requests and prompt tokens that are in progress.
//!
//! A request takes a ticket once its body is complete, so that a client that sends nothing holds
//! none, and before the body is processed. Its answers and prompt tokens are counted once they are
//! known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits on the work that is in progress at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Number of answers that are computed at a time, at least 1.
    pub slots: u64,
    /// Number of further answers that may be queued.
    pub waiting: u64,
    /// Maximum number of prompt tokens that are not computed yet. A request that is alone may
    /// exceed it.
    pub prompt_tokens: u64,
}

/// Reason for which a request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    #[error("The request queue is full. Please try again later.")]
    Requests,
    #[error("The queued prompts have too many tokens. Please try again later.")]
    Tokens,
    #[error(
        "The request asks for {answers} choices, but this server accepts at most {most} at a \
         time. Reduce 'n' or the number of prompts."
    )]
    TooLarge { answers: u64, most: u64 },
}

/// Requests that are admitted, and their limits.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    requests: u64,
    answers: u64,
    prompt_tokens: u64,
    /// Moving average of the duration of requests, in which the latest one has a weight of 1/16.
    mean: Option<Duration>,
}

impl Admission {
    /// Creates an admission control without requests.
    pub fn new(limits: AdmissionLimits) -> Admission {
        Admission { limits, held: Mutex::default() }
    }

    /// Admits a request, which counts as one answer.
    ///
    /// # Errors
    /// Too many answers are in progress or queued.
    pub fn enter(self: &Arc<Admission>) -> Result<Ticket, Full> {
        let mut held = self.held();
        if held.answers >= self.most() {
            return Err(Full::Requests);
        }
        held.requests += 1;
        held.answers += 1;
        drop(held);
        let began = Instant::now();
        let admission = Arc::clone(self);
        Ok(Ticket { admission, answers: 1, prompt_tokens: 0, began, was_answered: false })
    }

    /// Checks whether one more request could be admitted.
    ///
    /// # Errors
    /// Too many answers are in progress or queued.
    pub fn check_room(&self) -> Result<(), Full> {
        if self.held().answers >= self.most() { Err(Full::Requests) } else { Ok(()) }
    }

    /// Returns the number of admitted requests.
    pub fn requests(&self) -> u64 {
        self.held().requests
    }

    /// Returns the number of prompt tokens of admitted requests that are not computed yet.
    pub fn prompt_tokens(&self) -> u64 {
        self.held().prompt_tokens
    }

    /// Returns the estimated time until a request can be admitted, in seconds from 1 to 60.
    pub fn retry_after_s(&self) -> u64 {
        let mean = self.held().mean.unwrap_or(Duration::from_secs(1));
        let each = mean.as_secs_f64() / self.limits.slots.max(1) as f64;
        (each.ceil() as u64).clamp(1, 60)
    }

    fn most(&self) -> u64 {
        self.limits.slots + self.limits.waiting
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A panic while the lock is held cannot corrupt the counts, which are plain integers.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permit of an admitted request, which is released when it is dropped.
#[derive(Debug)]
pub struct Ticket {
    admission: Arc<Admission>,
    answers: u64,
    prompt_tokens: u64,
    began: Instant,
    was_answered: bool,
}

impl Ticket {
    /// Replaces what is counted for the request by its actual numbers of answers and prompt tokens.
    ///
    /// # Errors
    /// The limits do not permit these numbers; what was counted before stays.
    pub fn count(&mut self, answers: u64, prompt_tokens: u64) -> Result<(), Full> {
        let most = self.admission.most();
        if answers > most {
            return Err(Full::TooLarge { answers, most });
        }
        let mut held = self.admission.held();
        let (of_others, tokens_of_others) =
            (held.answers - self.answers, held.prompt_tokens - self.prompt_tokens);
        if of_others + answers > most {
            return Err(Full::Requests);
        }
        let tokens_max = self.admission.limits.prompt_tokens;
        if tokens_of_others > 0 && tokens_of_others + prompt_tokens > tokens_max {
            return Err(Full::Tokens);
        }
        (held.answers, held.prompt_tokens) =
            (of_others + answers, tokens_of_others + prompt_tokens);
        drop(held);
        (self.answers, self.prompt_tokens) = (answers, prompt_tokens);
        Ok(())
    }

    /// Records that the given number of the request's prompt tokens are computed.
    pub fn computed(&mut self, prompt_tokens: u64) {
        let less = prompt_tokens.min(self.prompt_tokens);
        self.prompt_tokens -= less;
        self.admission.held().prompt_tokens -= less;
    }

    /// Divides the request's permit into one place per answer. A place is released when its answer
    /// is computed, no matter how long the client takes to read it.
    pub fn places(&mut self) -> Vec<AnswerPlace> {
        let answers = std::mem::take(&mut self.answers);
        (0..answers).map(|_| AnswerPlace(Arc::clone(&self.admission))).collect()
    }

    /// Records that one of the request's answers has ended.
    pub fn ended(&mut self) {
        self.was_answered = true;
    }
}

/// Permit for one answer, which is released when it is dropped.
#[derive(Debug)]
pub struct AnswerPlace(Arc<Admission>);

impl Drop for AnswerPlace {
    fn drop(&mut self) {
        self.0.held().answers -= 1;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut held = self.admission.held();
        held.requests -= 1;
        held.answers -= self.answers;
        held.prompt_tokens -= self.prompt_tokens;
        if self.was_answered {
            let took = self.began.elapsed();
            held.mean = Some(held.mean.map_or(took, |mean| (mean * 15 + took) / 16));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Arc<Admission> {
        let limits = AdmissionLimits { slots: 1, waiting: 2, prompt_tokens: 100 };
        Arc::new(Admission::new(limits))
    }

    #[test]
    fn tickets_are_counted_before_and_corrected_after() {
        let admission = admission();
        let mut first = admission.enter().expect("empty");
        first.count(1, 5000).expect("alone, whatever its length");
        let mut second = admission.enter().expect("room");
        assert_eq!(second.count(1, 1), Err(Full::Tokens));
        first.computed(5000);
        second.count(1, 90).expect("room");
        assert_eq!(second.count(3, 90), Err(Full::Requests));
        assert_eq!(second.count(4, 90), Err(Full::TooLarge { answers: 4, most: 3 }));
        second.count(2, 95).expect("what was refused counts nothing");
        assert_eq!(admission.enter().map(drop), Err(Full::Requests));
        assert!(admission.check_room().is_err());
        let mut places = second.places();
        drop(places.pop());
        let third = admission.enter().expect("an answer has ended");
        assert_eq!((admission.requests(), admission.prompt_tokens()), (3, 95));
        drop((first, second, third));
        assert_eq!(admission.held().answers, 1, "one is still computed");
        drop(places);
        assert_eq!((admission.requests(), admission.prompt_tokens()), (0, 0));
        assert_eq!(admission.held().answers, 0);
    }
}
