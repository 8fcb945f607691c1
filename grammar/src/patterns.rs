//! Patterns of keys, which the parser supports if no key matches two of them.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

use crate::bounds::MAX_PATTERN_PAIRS;

/// Maximum number of automaton steps spent on checking whether a key matches two patterns.
const STEPS: u64 = 10_000;

/// Returns true if no key matches two of the patterns, as far as the parser can find out.
pub(crate) fn are_disjoint(patterns: &[&String]) -> bool {
    if patterns.len() < 2 {
        return true;
    }
    if patterns.len().pow(2) / 2 > MAX_PATTERN_PAIRS {
        return false;
    }
    let mut builder = RegexBuilder::new();
    let mut search = |pattern: &&String| {
        let written = crate::regex::pattern(pattern).ok()?;
        builder.mk_regex_for_serach(&regex_to_lark(&written, "dw")).ok()
    };
    let Some(all) = patterns.iter().map(&mut search).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let mut builder = builder;
    (0..all.len()).all(|first| {
        (first + 1..all.len()).all(|second| {
            let both = [all[first], all[second]].map(RegexAst::ExprRef).to_vec();
            let regex = builder.mk(&RegexAst::And(both));
            let regex = regex.and_then(|regex| builder.to_regex_limited(regex, STEPS));
            regex.is_ok_and(|mut regex| regex.always_empty())
        })
    })
}
