//! Logits changed for single tokens before one is drawn: those that were said become less likely.

/// How much less likely tokens become that were said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Divides the logits of tokens of prompt and answer that are above 0, and multiplies others
    /// (Keskar et al., CTRL, 2019); 1 changes nothing.
    pub repetition: f32,
    /// Taken from the logit of each token of the answer (`OpenAI`'s).
    pub presence: f32,
    /// The same, as often as the token was said.
    pub frequency: f32,
}

impl Penalties {
    /// Nothing changes.
    pub const NONE: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// Of a token that the answer said so often, and the prompt or the answer at all.
    pub fn change(self, token: u32, said: u32) -> Change {
        let presence = if said > 0 { self.presence } else { 0.0 };
        Change { token, repetition: self.repetition, less: presence + self.frequency * said as f32 }
    }
}

/// What becomes of one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    pub token: u32,
    /// See [`Penalties::repetition`].
    pub repetition: f32,
    /// Taken away then; infinity: it cannot follow.
    pub less: f32,
}

impl Change {
    /// A token that cannot follow.
    pub const fn never(token: u32) -> Change {
        Change { token, repetition: 1.0, less: f32::INFINITY }
    }

    /// The logit as it is changed.
    pub fn of(self, logit: f32) -> f32 {
        let repeated = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        repeated - self.less
    }
}

/// Writes a row's logits into `changed`, those of `changes` changed; each token has one at most.
pub(crate) fn change(logits: &[f32], changes: &[Change], changed: &mut Vec<f32>) {
    changed.clear();
    changed.extend_from_slice(logits);
    for one in changes {
        if let Some(logit) = changed.get_mut(one.token as usize) {
            *logit = one.of(*logit);
        }
    }
}
