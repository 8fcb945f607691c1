//! Sequences that lose their slots: they wait again unless they have all of their tokens.

use program::plan::Plan;
use workers::shared::table::StepTable;

use super::{Caches, Desk, Going, Seated, Shelf};
use crate::boundary::serving::{self, Event};

/// Number of losses of workers during the computation of a sequence after which the sequence is
/// considered the cause.
const LOSSES_MAX: u8 = 3;

impl Desk {
    /// Returns a sequence to the waiting ones, in the order of arrival. A sequence that has all of
    /// its tokens is answered instead: if it were computed further, it would have more tokens than
    /// requested.
    pub(super) fn put_back(&mut self, mut going: Going, eos: &[u32]) {
        if let Some(finish) = going.finish(eos) {
            going.tell(Event::Finished(finish));
            self.end(&going);
            return;
        }
        let place = self.waiting.iter().position(|other| other.id > going.id);
        self.waiting.insert(place.unwrap_or(self.waiting.len()), going);
    }

    /// Removes all sequences from their slots after their workers were lost and [`Desk::observe`]
    /// has read `table` for the last time. Sequences that have ended are answered, those that may
    /// be the cause are failed, and the others wait again.
    pub(in super::super) fn unseat(&mut self, table: &StepTable, plan: &Plan, reason: &str) {
        let eos = plan.config.eos_token_ids.as_slice();
        self.caches = Caches::new(plan);
        self.messages.clear();
        self.forms.lose();
        self.shelf.iter_mut().for_each(Shelf::lose);
        let seated = std::mem::take(&mut self.seated).into_iter();
        let mut unseated: Vec<(Going, Option<serving::Finish>)> = seated
            .map(|seated| {
                let finish = seated.finish_of_lost(table, eos);
                (seated.going, finish)
            })
            .collect();
        // The slots of these sequences do not contain anything of theirs yet.
        let fetching = std::mem::take(&mut self.fetching).into_iter();
        unseated.extend(fetching.map(|one| (one.seated.going, None)));
        for (mut going, finish) in unseated {
            going.losses += 1;
            if going.is_left {
                self.end(&going);
            } else if let Some(finish) = finish {
                going.tell(Event::Finished(finish));
                self.end(&going);
            } else if going.losses >= LOSSES_MAX {
                going.tell(Event::Failed(format!(
                    "The model's workers were lost {LOSSES_MAX} times while this was computed: \
                     {reason}."
                )));
                self.end(&going);
            } else {
                self.put_back(going, eos);
            }
        }
    }

    /// Fails all sequences.
    pub(in super::super) fn fail_all(&mut self, reason: &str) {
        self.seated.extend(self.fetching.drain(..).map(|one| one.seated));
        let seated = self.seated.drain(..).map(|seated: Seated| seated.going);
        for mut going in seated.chain(self.waiting.drain(..)) {
            going.tell(Event::Failed(reason.to_owned()));
        }
    }
}
