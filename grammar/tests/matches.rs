//! Whole texts are checked without a vocabulary.

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
