//! Integers beyond 2^53. The parser computes bounds in 64-bit floating point, which has gaps there.
//! A bound is moved inwards to the next representable number, so that no generated number is out of
//! bounds, and a single value becomes the only multiple of a divisor between two such numbers.

use serde_json::{Map, Number, Value, json};

use crate::error::GrammarError;

/// Maximum up to which every integer has its own floating-point number.
const MAX_EXACT: i128 = 1 << 53;
/// Maximum integer that the parser can generate.
const MAX_INTEGER: i128 = i64::MAX as i128;
/// Minimum integer that the parser can generate; it computes with absolute values.
const MIN_INTEGER: i128 = -((1 << 63) - 1024);
/// Absolute value from which the parser needs a second bound.
const MIN_TWO_BOUNDS: i128 = 1_000_000_000_000_000_000;
/// Exclusive upper bound of the divisors that are tried.
const DIVISORS: i128 = 1 << 16;

/// Returns an integer that may have no exact floating-point number; `None` for anything else.
fn large(value: &Value) -> Option<i128> {
    let Value::Number(number) = value else { return None };
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))?;
    (whole.abs() > MAX_EXACT).then_some(whole)
}

/// Returns the largest floating-point number that does not exceed an integer.
fn floor(whole: i128) -> i128 {
    let near = whole as f64 as i128;
    if near <= whole { near } else { (whole as f64).next_down() as i128 }
}

fn ceil(whole: i128) -> i128 {
    -floor(-whole)
}

fn number(whole: i128) -> Value {
    i64::try_from(whole).map_or(Value::Null, |whole| Value::Number(Number::from(whole)))
}

/// Moves the bounds of a schema to numbers that the parser can represent.
///
/// # Errors
/// Returns an error if there is no representable number between the bounds.
pub(crate) fn write_bounds(schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
    let bounds = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    let is_large = |name: &&str| schema.get(*name).and_then(large).is_some();
    if !bounds.iter().any(is_large) {
        return Ok(());
    }
    let refused = |name: &str| {
        Err(GrammarError(format!(
            "`{name}` permits only integers beyond {}, which cannot be distinguished",
            if name.ends_with("inimum") { MAX_INTEGER } else { MIN_INTEGER }
        )))
    };
    let take = |schema: &mut Map<String, Value>, name: &str| {
        let found = schema.get(name).and_then(large)?;
        schema.shift_remove(name);
        Some(found)
    };
    let least = take(schema, "minimum");
    let above = take(schema, "exclusiveMinimum").map(|whole| whole + 1);
    let most = take(schema, "maximum");
    let below = take(schema, "exclusiveMaximum").map(|whole| whole - 1);
    let mut set = |name: &str, exclusive: &str, whole: i128, is_tighter: fn(f64, f64) -> bool| {
        // A small bound in addition to a large one is exact; it is kept if it is tighter.
        let others = [schema.get(name), schema.get(exclusive)].into_iter().flatten();
        if !others.filter_map(Value::as_f64).any(|other| is_tighter(other, whole as f64)) {
            schema.insert(name.to_owned(), number(whole));
        }
    };
    if let Some(least) = least.max(above) {
        if least > MAX_INTEGER {
            return refused("minimum");
        }
        // The parser uses 2^63 as its largest number.
        let from = ceil(least.max(MIN_INTEGER)).min(MAX_INTEGER);
        set("minimum", "exclusiveMinimum", from, |other, whole| other >= whole);
        if least >= MIN_TWO_BOUNDS {
            set("maximum", "exclusiveMaximum", MAX_INTEGER, |other, whole| other <= whole);
        }
    }
    if let Some(most) = [most, below].into_iter().flatten().min() {
        if most < MIN_INTEGER {
            return refused("maximum");
        }
        let most = if most >= MAX_INTEGER { MAX_INTEGER } else { floor(most) };
        set("maximum", "exclusiveMaximum", most, |other, whole| other <= whole);
        if most <= -MIN_TWO_BOUNDS {
            set("minimum", "exclusiveMinimum", MIN_INTEGER, |other, whole| other >= whole);
        }
    }
    Ok(())
}

/// Returns true if the parser would generate another number instead of this value or of one within
/// it.
pub(crate) fn is_inexact(value: &Value) -> bool {
    match value {
        Value::Number(_) => large(value).is_some_and(|whole| {
            floor(whole) != whole || !(MIN_INTEGER..=MAX_INTEGER).contains(&whole)
        }),
        Value::Array(items) => items.iter().any(is_inexact),
        Value::Object(fields) => fields.values().any(is_inexact),
        _ => false,
    }
}

/// Returns a schema that only this integer satisfies; `None` if the parser has none.
pub(crate) fn single_value(value: &Value) -> Option<Value> {
    let whole = large(value).filter(|whole| (MIN_INTEGER..=MAX_INTEGER).contains(whole))?;
    let (least, most) = (floor(whole), ceil(whole));
    if least == whole {
        return Some(json!({"const": value}));
    }
    let gap = (whole - least).max(most - whole);
    let divides = |divisor: &i128| whole % divisor == 0;
    let divisor = (gap + 1..DIVISORS).find(divides)?;
    let most = most.min(MAX_INTEGER);
    Some(json!({"type": "integer", "minimum": number(least), "maximum": number(most),
        "multipleOf": number(divisor)}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_move_inwards() {
        for (given, expected) in [
            (json!({"maximum": 9007199254740995_u64}), json!({"maximum": 9007199254740994_u64})),
            (json!({"minimum": 9007199254740995_u64}), json!({"minimum": 9007199254740996_u64})),
            (
                json!({"exclusiveMaximum": 9007199254740996_u64}),
                json!({"maximum": 9007199254740994_u64}),
            ),
            (
                json!({"minimum": i64::MIN, "maximum": i64::MAX}),
                json!({"minimum": -9223372036854774784_i64, "maximum": i64::MAX}),
            ),
            (
                json!({"minimum": 0, "maximum": u64::MAX}),
                json!({"minimum": 0, "maximum": i64::MAX}),
            ),
            (json!({"minimum": 3, "maximum": 7}), json!({"minimum": 3, "maximum": 7})),
            (json!({"maximum": 5, "exclusiveMaximum": u64::MAX}), json!({"maximum": 5})),
            (
                json!({"minimum": 2_000_000_000_000_000_000_u64}),
                json!({"minimum": 2_000_000_000_000_000_000_u64, "maximum": i64::MAX}),
            ),
        ] {
            let Value::Object(mut schema) = given.clone() else { panic!("an object") };
            write_bounds(&mut schema).expect("bounds");
            assert_eq!(Value::Object(schema), expected, "{given}");
        }
        let Value::Object(mut schema) = json!({"minimum": u64::MAX}) else { panic!("an object") };
        write_bounds(&mut schema).expect_err("no number is left");
    }

    #[test]
    fn a_single_value_is_the_only_multiple() {
        let odd = json!(9007199254740995_u64);
        assert!(is_inexact(&odd) && !is_inexact(&json!(9007199254740994_u64)));
        let schema = single_value(&odd).expect("5 divides it");
        assert_eq!(schema["multipleOf"], 5);
        assert_eq!(schema["minimum"], 9007199254740994_u64);
        assert_eq!(schema["maximum"], 9007199254740996_u64);
        assert_eq!(single_value(&json!(u64::MAX)), None);
    }
}
