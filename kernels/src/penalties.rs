//! Changes to the logits of single tokens before one is drawn: penalties for tokens that occurred
//! before, and bans.

/// Penalties for tokens that occurred before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Divides the logits of tokens of prompt and answer that are above 0, and multiplies others
    /// (Keskar et al., CTRL, 2019); 1 has no effect.
    pub repetition: f32,
    /// Subtracted once from the logit of each token of the answer (`OpenAI`'s definition).
    pub presence: f32,
    /// Subtracted from the logit of each token of the answer once per occurrence.
    pub frequency: f32,
}

impl Penalties {
    /// No penalties.
    pub const NONE: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// Returns the change of a token of the prompt or the answer that occurs `occurrences` times in
    /// the answer.
    pub fn change(self, token: u32, occurrences: u32) -> LogitChange {
        let presence = if occurrences > 0 { self.presence } else { 0.0 };
        LogitChange {
            token,
            repetition: self.repetition,
            subtracted: presence + self.frequency * occurrences as f32,
        }
    }
}

/// Change of one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitChange {
    pub token: u32,
    /// See [`Penalties::repetition`].
    pub repetition: f32,
    /// Value subtracted after the repetition penalty; infinity excludes the token.
    pub subtracted: f32,
}

impl LogitChange {
    /// Returns the change that excludes a token.
    pub const fn exclude(token: u32) -> LogitChange {
        LogitChange { token, repetition: 1.0, subtracted: f32::INFINITY }
    }

    /// Returns the change that adds `bias` to a token's logit.
    pub const fn bias(token: u32, bias: f32) -> LogitChange {
        LogitChange { token, repetition: 1.0, subtracted: -bias }
    }

    /// Returns the changed logit.
    pub fn apply(self, logit: f32) -> f32 {
        let repeated = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        repeated - self.subtracted
    }
}

/// Writes a row's logits into `changed`, with `changes` applied in order.
pub(crate) fn apply_changes(logits: &[f32], changes: &[LogitChange], changed: &mut Vec<f32>) {
    changed.clear();
    changed.extend_from_slice(logits);
    for one in changes {
        if let Some(logit) = changed.get_mut(one.token as usize) {
            *logit = one.apply(*logit);
        }
    }
}
