//! Dates for templates that request the current one, in UTC and in the format of Python's
//! `strftime`.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Returns `format` with its directives replaced. Unknown directives are left unchanged.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let (flag, directive) = match after.strip_prefix('-') {
            Some(unpadded) => ("-", unpadded),
            None => ("", after),
        };
        let mut letters = directive.chars();
        match letters.next().and_then(|letter| field(letter, seconds)) {
            Some(Field::Text(field)) => text.push_str(&field),
            Some(Field::Number(number, _)) if flag == "-" => text.push_str(&number.to_string()),
            Some(Field::Number(number, width)) => {
                text.push_str(&format!("{number:0width$}"));
            }
            None => {
                text.push('%');
                rest = after;
                continue;
            }
        }
        rest = letters.as_str();
    }
    text + rest
}

/// Replacement of a directive.
enum Field {
    Text(String),
    /// A number and its minimum number of digits.
    Number(u64, usize),
}

fn field(letter: char, seconds: u64) -> Option<Field> {
    let days = seconds / 86400;
    let (year, month, day) = civil(days);
    let hour = seconds / 3600 % 24;
    let (day_name, month_name) = (DAYS[((days + 4) % 7) as usize], MONTHS[month as usize - 1]);
    let text = |text: &str| Some(Field::Text(text.to_owned()));
    match letter {
        'A' => text(day_name),
        'a' => text(&day_name[..3]),
        'B' => text(month_name),
        'b' | 'h' => text(&month_name[..3]),
        'p' => text(if hour < 12 { "AM" } else { "PM" }),
        'e' => text(&format!("{day:2}")),
        'F' => text(&format!("{year}-{month:02}-{day:02}")),
        'T' => text(&format!("{hour:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60)),
        '%' => text("%"),
        'd' => Some(Field::Number(day, 2)),
        'm' => Some(Field::Number(month, 2)),
        'Y' => Some(Field::Number(year, 1)),
        'y' => Some(Field::Number(year % 100, 2)),
        'j' => Some(Field::Number(days - first_day(year) + 1, 3)),
        'H' => Some(Field::Number(hour, 2)),
        'I' => Some(Field::Number((hour + 11) % 12 + 1, 2)),
        'M' => Some(Field::Number(seconds / 60 % 60, 2)),
        'S' => Some(Field::Number(seconds % 60, 2)),
        _ => None,
    }
}

/// Returns the first day of a year, in days since 1970-01-01.
fn first_day(year: u64) -> u64 {
    let before = year - 1;
    before * 365 + before / 4 - before / 100 + before / 400 - 719_162
}

/// Returns year, month and day of the Gregorian calendar for a day counted from 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_of_all_kinds_of_years() {
        let at = |days: u64| UNIX_EPOCH + Duration::from_secs(days * 86400 + 3600);
        assert_eq!(strftime("%d %b %Y %j", at(0)), "01 Jan 1970 001");
        assert_eq!(strftime("%d %B %Y", at(19_782)), "29 February 2024");
        assert_eq!(strftime("%Y-%m-%d %A", at(20_819)), "2027-01-01 Friday");
        assert_eq!(strftime("%F %j", at(20_818)), "2026-12-31 365");
        assert_eq!(strftime("%j", at(20_088)), "366");
        assert_eq!(strftime("%F %-d %-m", at(47_540)), "2100-02-28 28 2");
        assert_eq!(strftime("%F", at(47_541)), "2100-03-01");
    }

    #[test]
    fn what_is_no_directive_stays() {
        let now = UNIX_EPOCH + Duration::from_secs(13 * 3600 + 62);
        assert_eq!(strftime("%I %p %T %Q %-Q 100%", now), "01 PM 13:01:02 %Q %-Q 100%");
        assert_eq!(strftime("%%d é%d", now), "%d é01");
        assert_eq!(strftime("%I", UNIX_EPOCH), "12");
    }
}
