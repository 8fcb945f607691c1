//! Sanitised output to terminals. Names and messages come from files, hubs and requests, and a
//! terminal obeys the control characters in them: all text that a terminal may show passes through
//! [`printable`].
//!
//! The macros `eprintln!` and `eprint!` below shadow those of the standard library, here and in
//! every crate that says `#[macro_use] extern crate session`, so that no message can bypass it.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

/// Replaces characters that control a terminal with their escapes, as in `\u{1b}`. Line ends and
/// tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_control(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Returns true for control characters, and for those that reorder or hide adjacent text.
fn is_control(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        _ => character.is_control(),
    }
}

/// Writes sanitised text to stdout.
///
/// # Errors
/// An error of the write.
pub fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(printable(text).as_bytes())
}

/// Writes a message to stderr, ignoring errors: if stderr is closed, there is no reader to report
/// them to.
pub fn report(message: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(printable(&message.to_string()).as_bytes());
}

/// Writes a sanitised message and a line end to stderr.
#[macro_export]
macro_rules! eprintln {
    () => { $crate::terminal::report(::std::format_args!("\n")) };
    ($($message:tt)*) => {
        $crate::terminal::report(::std::format_args!(
            "{}\n",
            ::std::format_args!($($message)*)
        ))
    };
}

/// Writes a sanitised message to stderr.
#[macro_export]
macro_rules! eprint {
    ($($message:tt)*) => { $crate::terminal::report(::std::format_args!($($message)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_is_shown_as_an_escape() {
        let title = "\u{1b}]0;owned\u{7}";
        assert_eq!(printable(title), "\\u{1b}]0;owned\\u{7}");
        assert_eq!(printable("a\rb\u{9b}2J\u{7f}\0"), "a\\u{d}b\\u{9b}2J\\u{7f}\\u{0}");
        assert_eq!(printable("gnp.\u{202e}exe\u{61c}"), "gnp.\\u{202e}exe\\u{61c}");
        let plain = "| Modell | 3 µs |\n\tfür 漢字 \u{1f600}";
        assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
    }
}
