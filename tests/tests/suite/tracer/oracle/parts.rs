//! Parts of sessions: lists of texts.

/// The lists of [`list`].
const PARTS: &str = include_str!("parts.txt");

/// A list of `parts.txt` by its name.
pub(super) fn list(name: &str) -> Vec<String> {
    let after = PARTS.split_once(&format!("\n[{name}]\n")).expect("there is one").1;
    let lines = after.lines().take_while(|line| !line.is_empty());
    lines.map(|line| line.replace('\u{b7}', " ").replace('\u{2205}', "")).collect()
}
