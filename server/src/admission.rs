//! Admission control: limits on the requests and prompt tokens that are in progress.
//!
//! A request takes a permit once its body is complete, so that a client that sends nothing holds
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
pub enum AdmissionError {
    #[error("The request queue is full. Please try again later.")]
    QueueFull,
    #[error("The queued prompts have too many tokens. Please try again later.")]
    TooManyTokens,
    #[error(
        "The request asks for {answers} choices, but this server accepts at most {most} at a \
         time. Reduce 'n' or the number of prompts."
    )]
    TooManyAnswers { answers: u64, most: u64 },
}

/// Requests that are admitted, and their limits.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    in_progress: Mutex<InProgress>,
}

#[derive(Debug, Default)]
struct InProgress {
    requests: u64,
    answers: u64,
    prompt_tokens: u64,
    /// Moving average of the duration of requests, in which the latest one has a weight of 1/16.
    mean_duration: Option<Duration>,
}

impl Admission {
    /// Creates an admission control without requests.
    pub fn new(limits: AdmissionLimits) -> Admission {
        Admission { limits, in_progress: Mutex::default() }
    }

    /// Admits a request, which counts as one answer.
    ///
    /// # Errors
    /// Too many answers are in progress or queued.
    pub fn admit(self: &Arc<Admission>) -> Result<AdmissionPermit, AdmissionError> {
        let mut in_progress = self.lock();
        if in_progress.answers >= self.max_answers() {
            return Err(AdmissionError::QueueFull);
        }
        in_progress.requests += 1;
        in_progress.answers += 1;
        drop(in_progress);
        let began = Instant::now();
        let admission = Arc::clone(self);
        Ok(AdmissionPermit { admission, answers: 1, prompt_tokens: 0, began, was_answered: false })
    }

    /// Checks whether one more request could be admitted.
    ///
    /// # Errors
    /// Too many answers are in progress or queued.
    pub fn check_capacity(&self) -> Result<(), AdmissionError> {
        if self.lock().answers >= self.max_answers() {
            Err(AdmissionError::QueueFull)
        } else {
            Ok(())
        }
    }

    /// Returns the number of admitted requests.
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// Returns the number of prompt tokens of admitted requests that are not computed yet.
    pub fn prompt_tokens(&self) -> u64 {
        self.lock().prompt_tokens
    }

    /// Returns the estimated time until a request can be admitted, in seconds from 1 to 60.
    pub fn retry_after_s(&self) -> u64 {
        let mean = self.lock().mean_duration.unwrap_or(Duration::from_secs(1));
        let each = mean.as_secs_f64() / self.limits.slots.max(1) as f64;
        (each.ceil() as u64).clamp(1, 60)
    }

    fn max_answers(&self) -> u64 {
        self.limits.slots + self.limits.waiting
    }

    fn lock(&self) -> MutexGuard<'_, InProgress> {
        // A panic while the lock is held cannot corrupt the counts, which are plain integers.
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permit of an admitted request, which is released when it is dropped.
#[derive(Debug)]
pub struct AdmissionPermit {
    admission: Arc<Admission>,
    answers: u64,
    prompt_tokens: u64,
    began: Instant,
    was_answered: bool,
}

impl AdmissionPermit {
    /// Replaces what is counted for the request by its actual numbers of answers and prompt tokens.
    ///
    /// # Errors
    /// The limits do not permit these numbers; what was counted before stays.
    pub fn set_counts(&mut self, answers: u64, prompt_tokens: u64) -> Result<(), AdmissionError> {
        let max = self.admission.max_answers();
        if answers > max {
            return Err(AdmissionError::TooManyAnswers { answers, most: max });
        }
        let mut in_progress = self.admission.lock();
        let (other_answers, other_tokens) =
            (in_progress.answers - self.answers, in_progress.prompt_tokens - self.prompt_tokens);
        if other_answers + answers > max {
            return Err(AdmissionError::QueueFull);
        }
        let tokens_max = self.admission.limits.prompt_tokens;
        if other_tokens > 0 && other_tokens + prompt_tokens > tokens_max {
            return Err(AdmissionError::TooManyTokens);
        }
        (in_progress.answers, in_progress.prompt_tokens) =
            (other_answers + answers, other_tokens + prompt_tokens);
        drop(in_progress);
        (self.answers, self.prompt_tokens) = (answers, prompt_tokens);
        Ok(())
    }

    /// Records that the given number of the request's prompt tokens are computed.
    pub fn release_prompt_tokens(&mut self, prompt_tokens: u64) {
        let released = prompt_tokens.min(self.prompt_tokens);
        self.prompt_tokens -= released;
        self.admission.lock().prompt_tokens -= released;
    }

    /// Divides the request's permit into one place per answer. A place is released when its answer
    /// is computed, no matter how long the client takes to read it.
    pub fn take_answer_slots(&mut self) -> Vec<AnswerSlot> {
        let answers = std::mem::take(&mut self.answers);
        (0..answers).map(|_| AnswerSlot(Arc::clone(&self.admission))).collect()
    }

    /// Records that one of the request's answers has ended.
    pub fn mark_answered(&mut self) {
        self.was_answered = true;
    }
}

/// Permit for one answer, which is released when it is dropped.
#[derive(Debug)]
pub struct AnswerSlot(Arc<Admission>);

impl Drop for AnswerSlot {
    fn drop(&mut self) {
        self.0.lock().answers -= 1;
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        let mut in_progress = self.admission.lock();
        in_progress.requests -= 1;
        in_progress.answers -= self.answers;
        in_progress.prompt_tokens -= self.prompt_tokens;
        if self.was_answered {
            let took = self.began.elapsed();
            in_progress.mean_duration =
                Some(in_progress.mean_duration.map_or(took, |mean| (mean * 15 + took) / 16));
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
        let mut first = admission.admit().expect("empty");
        first.set_counts(1, 5000).expect("alone, whatever its length");
        let mut second = admission.admit().expect("room");
        assert_eq!(second.set_counts(1, 1), Err(AdmissionError::TooManyTokens));
        first.release_prompt_tokens(5000);
        second.set_counts(1, 90).expect("room");
        assert_eq!(second.set_counts(3, 90), Err(AdmissionError::QueueFull));
        assert_eq!(
            second.set_counts(4, 90),
            Err(AdmissionError::TooManyAnswers { answers: 4, most: 3 })
        );
        second.set_counts(2, 95).expect("what was refused counts nothing");
        assert_eq!(admission.admit().map(drop), Err(AdmissionError::QueueFull));
        assert!(admission.check_capacity().is_err());
        let mut places = second.take_answer_slots();
        drop(places.pop());
        let third = admission.admit().expect("an answer has ended");
        assert_eq!((admission.requests(), admission.prompt_tokens()), (3, 95));
        drop((first, second, third));
        assert_eq!(admission.lock().answers, 1, "one is still computed");
        drop(places);
        assert_eq!((admission.requests(), admission.prompt_tokens()), (0, 0));
        assert_eq!(admission.lock().answers, 0);
    }
}
