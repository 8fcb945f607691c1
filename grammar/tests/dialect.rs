//! Tests that expressions have the meaning that ECMA 262 gives them.

use grammar::{Checker, Grammar};

fn matches(checker: &mut Checker, expression: &str, text: &str) -> bool {
    let grammar = Grammar::Regex(expression.to_owned());
    checker.check(&grammar).unwrap_or_else(|error| panic!("{expression}: {error}"));
    checker.check_text(&grammar, text.as_bytes()).is_ok()
}

#[test]
fn classes_are_ascii() {
    let mut checker = Checker::new().unwrap();
    for (expression, inside, outside) in [
        (r"\d", "7", "٣"),
        (r"\D", "٣", "7"),
        (r"[\d]", "7", "٣"),
        (r"[^\d]", "٣", "7"),
        (r"[\D]", "٣", "7"),
        (r"[^\D]", "7", "٣"),
        (r"[a\d-]", "-", "٣"),
        (r"[\w--\d]", "a", "7"),
        (r"[\w&&[^_]]", "a", "_"),
        (r"\w", "_", "é"),
        (r"\W", "é", "k"),
        (r"\s", "\u{feff}", "\u{85}"),
        (r"\S", "\u{85}", "\u{a0}"),
        (r"(?x) \d \s # a digit and a space", "7 ", "٣ "),
        (r"\\d", r"\d", "7"),
        (r"(?-u:\d)", "7", "٣"),
        (r"\p{Nd}", "٣", "x"),
        (r"(?P<stop>a)b", "ab", "a"),
    ] {
        assert!(matches(&mut checker, expression, inside), "{expression} {inside}");
        assert!(!matches(&mut checker, expression, outside), "{expression} {outside}");
    }
}

#[test]
fn ascii_letters_fold_to_ascii() {
    let mut checker = Checker::new().unwrap();
    for (expression, inside, outside) in [
        ("(?i)k", "K", "\u{212a}"),
        ("(?i)s", "S", "ſ"),
        ("(?i:s)s", "Ss", "SS"),
        ("((?i)s)s", "Ss", "sS"),
        ("(?i)a|b", "B", "C"),
        ("(?i)a(?-i)b", "Ab", "AB"),
        ("(?is-x)k.", "K\n", "\u{212a}\n"),
        ("(?i)[k]", "K", "\u{212a}"),
        ("(?i)[a-z]", "K", "\u{212a}"),
        ("(?i)[Y-b]", "z", "c"),
        ("(?i)[^k]", "\u{212a}", "K"),
        ("(?i)[[:lower:]]", "K", "\u{212a}"),
        ("(?i)[[:^lower:]]", "7", "K"),
        ("(?i)\\w", "K", "\u{212a}"),
        ("(?i)\\x6b", "K", "\u{212a}"),
        ("(?i)é", "É", "e"),
        ("(?i)[à-é]", "É", "e"),
        ("(?i)[é]", "É", "e"),
        ("(?i)ſ", "s", "t"),
        ("(?i)\\p{Lu}", "k", "7"),
        ("(?i)[\\p{Lu}7]", "k", "8"),
        ("(?i)[^\\P{Lu}]", "k", "7"),
        ("(?i-u:k)", "K", "\u{212a}"),
    ] {
        assert!(matches(&mut checker, expression, inside), "{expression} {inside}");
        assert!(!matches(&mut checker, expression, outside), "{expression} {outside}");
    }
}

#[test]
fn what_would_be_read_as_something_else_is_refused() {
    let checker = Checker::new().unwrap();
    for (expression, words) in [
        ("(?x) a # letters\n b", "one line"),
        ("a(?x: \n)", "one line"),
        ("(?=a)", "look-around"),
        ("(a", "unclosed group"),
    ] {
        let told = checker.check(&Grammar::Regex(expression.to_owned())).unwrap_err().to_string();
        assert!(told.contains(words) && told.lines().count() == 1, "{expression}: {told}");
    }
    checker.check(&Grammar::Regex("a\nb".to_owned())).unwrap();
}
