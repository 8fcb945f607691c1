//! `--kv-select`: selection of the cached positions that new tokens attend to.

use session::values::KvSelectRule;

/// Maximum of alpha: a position whose score is lower than the largest by more adds nothing in any
/// number format.
const MAX_ALPHA: f64 = 1000.0;

/// Parses `alpha=A,max=M`, each once, in any order.
///
/// # Errors
/// Anything else, with a message for the user.
pub fn parse_kv_select(text: &str) -> Result<KvSelectRule, String> {
    let refused = || {
        format!(
            "{text} is not a selection rule; write alpha=A,max=M with A from 0 to {MAX_ALPHA} and \
             M above 0 and at most 1, for example alpha=4,max=0.2"
        )
    };
    let (mut alpha, mut max) = (None, None);
    for part in text.split(',') {
        let (name, number) = part.split_once('=').ok_or_else(refused)?;
        let number: f64 = number.trim().parse().map_err(|_| refused())?;
        let slot = match name.trim() {
            "alpha" => &mut alpha,
            "max" => &mut max,
            _ => return Err(refused()),
        };
        if slot.replace(number).is_some() {
            return Err(refused());
        }
    }
    let thousandths = |number: f64| (number * 1000.0).round();
    match (alpha, max) {
        (Some(alpha), Some(max))
            if (0.0..=MAX_ALPHA).contains(&alpha) && max <= 1.0 && thousandths(max) >= 1.0 =>
        {
            Ok(KvSelectRule {
                alpha_thousandths: thousandths(alpha) as u32,
                max_thousandths: thousandths(max) as u16,
            })
        }
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_two_numbers_in_any_order() {
        let rule = |alpha_thousandths, max_thousandths| KvSelectRule {
            alpha_thousandths,
            max_thousandths,
        };
        assert_eq!(parse_kv_select("alpha=4,max=0.2"), Ok(rule(4000, 200)));
        assert_eq!(parse_kv_select("max=1, alpha=0.5"), Ok(rule(500, 1000)));
        for wrong in [
            "",
            "alpha=4",
            "max=0.2",
            "alpha=4,max=0",
            "alpha=4,max=1.1",
            "alpha=-1,max=0.2",
            "alpha=4,max=0.2,max=0.3",
            "alpha=x,max=0.2",
            "alpha=4;max=0.2",
            "alpha=nan,max=0.2",
            "alpha=4,max=nan",
            "beta=4,max=0.2",
            "alpha=4,max=0.0004",
        ] {
            let sentence = parse_kv_select(wrong).expect_err(wrong);
            assert!(sentence.contains("alpha=4,max=0.2"), "{sentence}");
        }
    }
}
