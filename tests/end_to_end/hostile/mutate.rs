//! Seeded mutations of bytes and of JSON.

use serde_json::{Value, json};

/// Deterministic pseudo-random number generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Returns a value that parsers may not expect.
fn hostile(random: &mut Random) -> Value {
    match random.below(16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(0),
        4 => json!(2_147_483_647_u32),
        5 => json!(u64::MAX),
        6 => json!(i64::MIN),
        7 => json!(1e300),
        8 => json!(-0.5),
        9 => json!(""),
        10 => json!("\u{0}\u{feff}\u{10ffff}"),
        11 => json!("x".repeat(1 << random.below(17))),
        12 => json!([]),
        13 => json!({}),
        14 => (0..100).fold(json!([1]), |inner, _| json!([inner])),
        _ => json!({"type": "Sequence", "decoders": [], "pattern": {"Regex": "(a*)*$"}}),
    }
}

/// Returns the number of values within a JSON value, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns the value with this number, in the order in which they are written.
fn nth(value: &mut Value, number: usize) -> Option<&mut Value> {
    if number == 0 {
        return Some(value);
    }
    let inner: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => return None,
    };
    let mut left = number - 1;
    for value in inner {
        let within = count(value);
        if left < within {
            return nth(value, left);
        }
        left -= within;
    }
    None
}

/// Changes one random value. Most values are in large tables, so fields of the outer objects are as
/// likely as everything within them.
pub fn json(value: &mut Value, random: &mut Random) {
    let place = match value {
        Value::Object(fields) if !fields.is_empty() && random.below(2) == 0 => {
            let key = random.below(fields.len());
            let inner = fields.values_mut().nth(key).expect("below the length");
            return if random.below(3) == 0 { json(inner, random) } else { change(inner, random) };
        }
        value => value,
    };
    let number = random.below(count(place));
    if let Some(found) = nth(place, number) {
        change(found, random);
    }
}

fn change(value: &mut Value, random: &mut Random) {
    match (value, random.below(6)) {
        (Value::Object(fields), 0) if !fields.is_empty() => {
            let key = fields.keys().nth(random.below(fields.len())).cloned();
            fields.shift_remove(&key.expect("below the length"));
        }
        (Value::Object(fields), 1) => {
            fields.insert("type".to_owned(), hostile(random));
        }
        (Value::Array(items), 0) if !items.is_empty() => {
            items.remove(random.below(items.len()));
        }
        (Value::Array(items), 1) if !items.is_empty() => {
            let twice = items[random.below(items.len())].clone();
            items.push(twice);
        }
        (Value::Number(number), 0..3) => {
            let near = number.as_i64().unwrap_or(0).wrapping_add([1, -1, 1 << 31][random.below(3)]);
            *number = near.into();
        }
        (Value::String(text), 0..2) => {
            let more: [&str; 7] = ["\u{2581}", "<0xFF>", "{{", "a", "(", "\\", "☃"];
            text.push_str(random.pick::<&str>(&more));
        }
        (value, _) => *value = hostile(random),
    }
}

/// Changes one byte, several bytes, or the length.
pub fn bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        bytes.push(random.next() as u8);
        return;
    }
    match random.below(5) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let at = random.below(bytes.len());
            let piece: Vec<u8> = bytes[at..].iter().take(random.below(64) + 1).copied().collect();
            bytes.splice(at..at, piece);
        }
        _ => {
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = match random.below(3) {
                    0 => bytes[at] ^ (1 << random.below(8)),
                    1 => *random.pick(b"{}[]\",:0-9eE\\\x00\xff"),
                    _ => random.next() as u8,
                };
            }
        }
    }
}
