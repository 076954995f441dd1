//! Code blocks of a Markdown text.

/// The use of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Language `sh`: run.
    Shell,
    /// Marked by `<!-- output -->`: what the shell block before it writes to standard output.
    Output,
    /// Marked by `<!-- not run: REASON -->`.
    NotRun(String),
    /// Any other language.
    Other,
}

/// A code block between fences.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Line of its first fence, from 1.
    pub(super) line: usize,
    pub(super) kind: Kind,
    pub(super) text: String,
}

const FENCE: &str = "```";
const OUTPUT: &str = "<!-- output -->";
const NOT_RUN: &str = "<!-- not run:";

/// Reads all blocks.
///
/// # Errors
/// Text that cannot be checked where it is: indented blocks, fences without a language, marks of
/// nothing.
pub(super) fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut mark = None;
    let mut lines = text.lines().enumerate();
    let mut after_blank = true;
    while let Some((at, line)) = lines.next() {
        let fault = |what: &str| Err(format!("line {}: {what}: {line}", at + 1));
        if let Some(language) = line.strip_prefix(FENCE) {
            let body = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != FENCE);
            let text = body.collect::<Vec<_>>().join("\n") + "\n";
            let kind = match (language, mark.take()) {
                ("", _) => return fault("a block without a language"),
                ("sh", None) => Kind::Shell,
                (_, Some(kind)) => kind,
                _ => Kind::Other,
            };
            if kind == Kind::Output && blocks.last().is_none_or(|block| block.kind != Kind::Shell) {
                return fault("an output of no shell block");
            }
            blocks.push(Block { line: at + 1, kind, text });
        } else if line == OUTPUT {
            mark = Some(Kind::Output);
        } else if let Some(reason) = line.strip_prefix(NOT_RUN) {
            let reason = reason.trim_end_matches("-->").trim();
            if reason.is_empty() {
                return fault("no reason");
            }
            mark = Some(Kind::NotRun(reason.to_owned()));
        } else if !line.is_empty() && mark.is_some() {
            return fault("a mark is for a block, which is to follow");
        } else if after_blank && line.starts_with("    ") {
            return fault("an indented block: put it between fences, with its language");
        }
        after_blank = line.is_empty();
    }
    let is_closed = text.lines().filter(|line| line.starts_with(FENCE)).count().is_multiple_of(2);
    if is_closed { Ok(blocks) } else { Err("a block has no end".to_owned()) }
}
