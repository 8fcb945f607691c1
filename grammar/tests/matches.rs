//! Tests of checking whole texts without a vocabulary.

use grammar::{Checker, Grammar};

#[test]
fn a_text_matches_as_a_whole() {
    let mut checker = Checker::new().unwrap();
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}"#;
    let json = Grammar::json_schema(schema.to_owned());
    let regex = Grammar::Regex("a+b".to_owned());
    let choice = Grammar::Choice(vec!["yes".to_owned(), "yes!".to_owned()]);
    for (grammar, text, expected) in [
        (&json, r#"{"a": 1}"#, true),
        (&json, r#"{"a": "#, false),
        (&json, r#"{"a": 1}}"#, false),
        (&regex, "aab", true),
        (&regex, "aa", false),
        (&choice, "yes", true),
        (&choice, "yes!", true),
        (&choice, "ye", false),
        (&choice, "yes?", false),
    ] {
        assert_eq!(checker.check_text(grammar, text.as_bytes()).is_ok(), expected, "{text}");
    }
}

/// The states of a lexer are bounded, but valid texts are accepted however many were checked
/// before.
#[test]
fn texts_are_right_however_many_were_checked() {
    let mut checker = Checker::new().unwrap();
    // The lexer needs a state for each combination of the last 17 letters.
    let form = Grammar::Regex("(a|b)*a(a|b){16}".to_owned());
    let mut state = 7_u64;
    for count in 0..400 {
        let mut letter = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if state >> 33 & 1 == 1 { 'a' } else { 'b' }
        };
        let begun: String = (0..300).map(|_| letter()).collect();
        let text = begun + "a" + &(0..16).map(|_| letter()).collect::<String>();
        checker.check_text(&form, text.as_bytes()).unwrap_or_else(|e| panic!("{count}: {e}"));
    }
}
