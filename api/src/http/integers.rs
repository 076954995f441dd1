//! Whole numbers in JSON bodies.

use serde_json::Value;

/// JSON with its whole numbers written as integers: `7.0` is one to JSON Schema, and not to serde.
/// `None` where there is none.
pub(super) fn with_integers(body: &[u8]) -> Option<Vec<u8>> {
    let mut json: Value = serde_json::from_slice(body).ok()?;
    write_integers(&mut json).then(|| json.to_string().into_bytes())
}

/// Returns true if something changed.
fn write_integers(json: &mut Value) -> bool {
    /// From here on a double does not hold every integer.
    const LIMIT: f64 = 9_007_199_254_740_992.0;
    match json {
        Value::Array(items) => items.iter_mut().fold(false, |any, item| write_integers(item) | any),
        Value::Object(fields) => {
            fields.values_mut().fold(false, |any, value| write_integers(value) | any)
        }
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < LIMIT);
            let Some(whole) = whole.and_then(|n| format!("{n:.0}").parse::<i64>().ok()) else {
                return false;
            };
            *json = whole.into();
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_become_integers_and_others_stay() {
        let body = br#"{"a":[20.0,-0.0,7.5],"b":{"c":4096.0}}"#;
        let integers = with_integers(body).unwrap();
        assert_eq!(str::from_utf8(&integers).unwrap(), r#"{"a":[20,0,7.5],"b":{"c":4096}}"#);
        for none in [&b"{}"[..], b"[7, 7.5, 1e300]", b"20.0 x"] {
            assert_eq!(with_integers(none), None);
        }
    }
}
