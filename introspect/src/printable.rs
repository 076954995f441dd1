//! Escapes guest text for printing.
//!
//! The guest chooses the names of tasks, the strings that arguments fetch, and its console's bytes.
//! All of it passes [`printable`] before a terminal shows it, or [`printable_json`] within JSON.

use std::borrow::Cow;

/// Shows unprintable characters as escapes of Rust's (`\u{1b}`, `\n`): the text is on one line
/// then.
#[must_use]
pub fn printable(text: &str) -> String {
    escaped(text, is_unprintable, |c, out| out.extend(c.escape_default())).into_owned()
}

/// As [`printable`], but keeps line feeds and tabs.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable_in_lines, |c, out| out.extend(c.escape_default()))
}

/// Escapes the unprintable characters of a JSON document as `\u` and four digits: its value stays
/// the same. Line feeds and tabs are left, for between tokens they are blank space, and within
/// strings there are none (RFC 8259, 7).
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(json, is_unprintable_in_lines, |c, out| match c {
        // Only blank space can be a raw carriage return; it would overwrite its line.
        '\r' => out.push(' '),
        _ => {
            let units = c
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>();
            out.push_str(&units);
        }
    })
}

fn escaped(
    text: &str,
    unwanted: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&unwanted) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if unwanted(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn is_unprintable_in_lines(c: char) -> bool {
    is_unprintable(c) && !matches!(c, '\n' | '\t')
}

/// Control characters (Unicode's category Cc), those of format (Cf: direction, zero width, tags),
/// and separators of lines and paragraphs (Zl, Zp): they steer a terminal, reorder text, or hide
/// it. Source: Unicode 16.0, DerivedGeneralCategory.txt.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind.
    const HOSTILE: &str = "\0\x07\x1b\x7f\u{80}\u{9b}\u{9f}\u{ad}\u{61c}\u{200b}\u{200d}\u{200f}\u{2028}\u{202a}\
                           \u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{e0001}\u{e0041}\u{e007f}";

    #[test]
    fn nothing_steers_a_terminal() {
        assert_eq!(printable("a\x1b[31m\nb\u{9b}é"), "a\\u{1b}[31m\\nb\\u{9b}é");
        assert_eq!(printable("a\u{202e}b\u{2069}"), "a\\u{202e}b\\u{2069}", "nor reorders text");
        for c in HOSTILE.chars() {
            let shown = printable(c.encode_utf8(&mut [0; 4]));
            assert!(shown.is_ascii() && shown.starts_with('\\') && shown.len() > 1, "{shown:?}");
        }
        let plain = "plain text, naïve 中文 ☃";
        assert_eq!(printable(plain), plain);
    }

    #[test]
    fn lines_and_tabs_stay_where_they_are_wanted() {
        assert_eq!(printable_lines("a\tb\n\rc\x1b"), "a\tb\n\\rc\\u{1b}");
    }

    #[test]
    fn json_keeps_its_value() {
        let shown = printable_json("{\"comm\":\n\t\"\u{9b}2J\u{7f}\u{2028}é\u{e0041}\"}\r");
        assert_eq!(shown, "{\"comm\":\n\t\"\\u009b2J\\u007f\\u2028é\\udb40\\udc41\"} ");
        assert!(matches!(printable_json(r#"{"a":"é\u001b"}"#), Cow::Borrowed(_)));
    }
}
