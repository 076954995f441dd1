//! Values of the kernel's types in memory, for `exoprobe x --type`.

use serde_json::{Value, json};

use super::format::printable;

/// Bytes of a value that is shown in hexadecimal; more are left out.
const SHOWN: usize = 16;
/// First words of declarations of numbers with a sign.
const SIGNED: [&str; 4] = ["int", "long", "short", "signed"];

/// A type as `/v1/types/NAME` has it, with `value` and `bytes` added to each member that `memory`
/// has.
pub(super) fn with_values(mut found: Value, memory: &[u8]) -> Value {
    match found["members"].as_array_mut().filter(|members| !members.is_empty()) {
        Some(members) => members.iter_mut().for_each(|member| add_value(member, memory)),
        None => {
            let declaration = found["declaration"].as_str().unwrap_or_default().to_owned();
            found["value"] = value(&declaration, None, memory);
        }
    }
    found
}

fn add_value(member: &mut Value, memory: &[u8]) {
    if let Some(inner) = member.get_mut("members").and_then(Value::as_array_mut)
        && !inner.is_empty()
    {
        return inner.iter_mut().for_each(|member| add_value(member, memory));
    }
    let number = |name: &str| member[name].as_u64().and_then(|n| usize::try_from(n).ok());
    let (Some(offset), Some(size)) = (number("offset"), number("size")) else { return };
    // A flexible array has no bytes of its own.
    let Some(bytes) = offset.checked_add(size).and_then(|end| memory.get(offset..end)) else {
        return;
    };
    let bits = member["bits"].as_u64().zip(member["bit_offset"].as_u64());
    let declaration = member["declaration"].as_str().unwrap_or_default();
    let found = value(declaration, bits, bytes);
    member["value"] = found;
}

/// A value by its declaration: a number, a text, an address, or the bytes in hexadecimal.
fn value(declaration: &str, bits: Option<(u64, u64)>, bytes: &[u8]) -> Value {
    let mut word = [0; 8];
    let is_number = matches!(bytes.len(), 1 | 2 | 4 | 8) && !declaration.contains('[');
    if is_number {
        word[..bytes.len()].copy_from_slice(bytes);
    }
    let number = u64::from_le_bytes(word);
    match bits {
        Some((width @ 1..64, before @ 0..64)) if is_number => {
            json!(number >> before & ((1 << width) - 1))
        }
        _ if declaration.starts_with("char ") && declaration.contains('[') => {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            json!(String::from_utf8_lossy(&bytes[..end]))
        }
        _ if is_number && declaration.contains('*') => json!(format!("{number:#x}")),
        _ if is_number
            && !declaration.starts_with("struct")
            && !declaration.starts_with("union") =>
        {
            let unused = 64 - 8 * bytes.len();
            let is_signed = SIGNED.iter().any(|word| declaration.split(' ').next() == Some(word));
            match is_signed {
                true => json!((number << unused).cast_signed() >> unused),
                false => json!(number),
            }
        }
        _ => json!(hexadecimal(bytes)),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let digits: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let rest = if bytes.len() > SHOWN { " ..." } else { "" };
    digits.join(" ") + rest
}

/// The text of [`with_values`]: a C initializer with the members' declarations.
pub(super) fn text(found: &Value) -> String {
    let declaration = printable(found["declaration"].as_str().unwrap_or_default());
    let members = found["members"].as_array().map_or(&[][..], |members| members);
    if members.is_empty() {
        return format!("{declaration} = {}\n", shown(&found["value"]));
    }
    let mut text = format!("{declaration} {{\n");
    add_members(members, 1, &mut text);
    text + "}\n"
}

fn add_members(members: &[Value], depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    for member in members {
        let declaration = printable(member["declaration"].as_str().unwrap_or_default());
        let width = member["bits"].as_u64().map_or(String::new(), |bits| format!(":{bits}"));
        match member["members"].as_array().filter(|inner| !inner.is_empty()) {
            Some(inner) => {
                let tag = declaration.split("{...}").next().unwrap_or_default();
                text.push_str(&format!("{indent}{tag}{{\n"));
                add_members(inner, depth + 1, text);
                text.push_str(&format!("{indent}}}\n"));
            }
            None => {
                let value = shown(&member["value"]);
                text.push_str(&format!("{indent}{declaration}{width} = {value}\n"));
            }
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        // The text is the guest's: control characters are escaped.
        Value::String(text) => printable(text),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_shown_by_their_declarations() {
        let of = |declaration: &str, bytes: &[u8]| value(declaration, None, bytes);
        assert_eq!(of("int a", &[0xff; 4]), json!(-1));
        assert_eq!(of("unsigned int a", &[0xff; 4]), json!(u32::MAX));
        assert_eq!(of("pid_t pid", &[1, 0, 0, 0]), json!(1));
        assert_eq!(of("char comm[16]", b"init\0\0\0\0\x1b\0\0\0\0\0\0\0"), json!("init"));
        assert_eq!(
            of("struct file *f", &[0, 0x10, 0, 0, 0, 0, 0, 0xff]),
            json!("0xff00000000001000")
        );
        assert_eq!(of("struct list_head l", &[1; 20]), json!("01 ".repeat(16) + "..."));
        assert_eq!(of("u32 a[2]", &[1, 0, 0, 0, 2, 0, 0, 0]), json!("01 00 00 00 02 00 00 00"));
        assert_eq!(value("unsigned int f", Some((3, 1)), &[0b1010, 0, 0, 0]), json!(0b101));
    }

    #[test]
    fn a_struct_is_shown_with_its_values_and_short_memory_is_no_fault() {
        let found = json!({"declaration": "struct s", "size": 16, "members": [
            {"declaration": "int a", "offset": 0, "size": 4},
            {"declaration": "union {...}", "offset": 8, "size": 8, "members": [
                {"declaration": "char *b", "offset": 8, "size": 8}]},
            {"declaration": "int last", "offset": 14, "size": 4},
            {"declaration": "int far", "offset": u64::MAX, "size": 4}]});
        let found = with_values(found, &[7, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
        let expected = "struct s {\n    int a = 7\n    union {\n        char *b = 0x10\n    }\n    int last = -\n    int far = -\n}\n";
        assert_eq!(text(&found), expected);
    }
}
