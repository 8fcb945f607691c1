//! Injected faults and their textual syntax: for tests, and to make one drive behave like several.

use std::fmt;
use std::str::FromStr;

/// Fault of a single request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFault {
    /// The request fails with an I/O error.
    Error,
    /// The request reads only half of its pages.
    Short,
    /// One bit of the bytes read is inverted.
    Flip,
    /// The request never completes.
    Silence,
}

const NAMES: [(&str, ReadFault); 4] = [
    ("eio", ReadFault::Error),
    ("short", ReadFault::Short),
    ("flip", ReadFault::Flip),
    ("silence", ReadFault::Silence),
];

/// Faults of a device and the limit of its rate. In text, parts are separated by commas:
/// `rate=100M` (bytes/s, with K, M or G for powers of 1000), and `eio@20`, `short@20`, `flip@20`
/// and `silence@20` for the 20th request since the reader was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Maximum rate in bytes per second.
    pub bytes_per_s: Option<u64>,
    /// Faults, each with the number of its request, counted from 1.
    pub at: Vec<(u64, ReadFault)>,
}

impl Faults {
    /// Returns the fault of the request with this number.
    pub fn for_request(&self, number: u64) -> Option<ReadFault> {
        self.at.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault)
    }
}

/// Error of parsing [`Faults`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is not a fault: use rate=100M, or eio, short, flip or silence with the number of \
     the request, as in eio@20"
)]
pub struct FaultError {
    /// The part that could not be parsed.
    pub part: String,
}

fn rate(text: &str) -> Option<u64> {
    let factors = [('K', 1_000), ('M', 1_000_000), ('G', 1_000_000_000_u64)];
    let unit = factors.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, factor)));
    let (digits, factor) = unit.unwrap_or((text, &1));
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(*factor).filter(|rate| *rate > 0)
}

fn fault(text: &str) -> Option<(u64, ReadFault)> {
    let (name, number) = text.split_once('@')?;
    let (_, fault) = NAMES.iter().find(|(other, _)| *other == name)?;
    let number = number.parse().ok().filter(|number| *number > 0)?;
    Some((number, *fault))
}

impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Faults, FaultError> {
        let mut faults = Faults::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let failed = || FaultError { part: part.to_owned() };
            match part.strip_prefix("rate=") {
                Some(text) => faults.bytes_per_s = Some(rate(text).ok_or_else(failed)?),
                None => faults.at.push(fault(part).ok_or_else(failed)?),
            }
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bytes_per_s.map(|rate| format!("rate={rate}"));
        let faults = self.at.iter().filter_map(|(number, fault)| {
            let (name, _) = NAMES.iter().find(|(_, other)| other == fault)?;
            Some(format!("{name}@{number}"))
        });
        f.write_str(&rate.into_iter().chain(faults).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let text = "rate=100000000,eio@20,short@3,flip@1,silence@9";
        let faults: Faults = "rate=100M,eio@20,short@3,flip@1,silence@9".parse().unwrap();
        assert_eq!(faults.to_string(), text);
        assert_eq!(text.parse(), Ok(faults.clone()));
        assert_eq!(faults.for_request(3), Some(ReadFault::Short));
        assert_eq!(faults.for_request(4), None);
        assert_eq!("".parse(), Ok(Faults::default()));
        assert_eq!("rate=2G".parse::<Faults>().unwrap().bytes_per_s, Some(2_000_000_000));
        for bad in ["eio", "eio@0", "eio@x", "rate=0", "rate=", "rate=99999999999G", "boom@1"] {
            let error = bad.parse::<Faults>().unwrap_err();
            assert!(error.to_string().contains(bad), "{error}");
        }
    }
}
