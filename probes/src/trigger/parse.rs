//! Reads commands of the file `trigger`. Positions are columns of the text, from 0.

use super::command::{
    Hist, HistChange, HistField, Modifier, SIZE_DEFAULT, SortKey, Trigger, TriggerCommand,
    TriggerKind,
};
use crate::definition::{ParseError, WrittenFilter, parse_number};

/// Most keys of a histogram, values beside the hits, and sort keys (histogram.rst).
const KEYS_MAX: usize = 3;
/// See [`KEYS_MAX`].
const VALUES_MAX: usize = 2;
/// See [`KEYS_MAX`].
const SORT_MAX: usize = 2;
/// Entries of a histogram.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 7..=1 << 17;
/// Sort key that is no field.
const HITS: &str = "hitcount";

fn fault(id: &'static str, position: usize, message: impl Into<String>) -> ParseError {
    ParseError { message: message.into(), position, id }
}

/// A part of a text, and where it begins.
#[derive(Clone, Copy)]
struct Part<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Part<'a> {
    fn whole(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The part from byte `from` on.
    fn from(self, from: usize) -> Self {
        Self { text: &self.text[from..], at: self.at + from }
    }

    fn to(self, to: usize) -> Self {
        Self { text: &self.text[..to], at: self.at }
    }

    fn trim(self) -> Self {
        let start = self.text.len() - self.text.trim_start().len();
        let text = self.text.trim();
        Self { text, at: self.at + start }
    }

    /// Splits at the first `separator`.
    fn cut(self, separator: &str) -> (Self, Option<Self>) {
        match self.text.find(separator) {
            Some(at) => (self.to(at), Some(self.from(at + separator.len()))),
            None => (self, None),
        }
    }

    fn split(self, separator: &'static str) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let (first, after) = rest?.cut(separator);
            rest = after;
            Some(first)
        })
    }
}

/// Reads a command.
///
/// # Errors
/// [`ParseError`], with the tracer's identifier.
pub fn parse_trigger(text: &str) -> Result<TriggerCommand, ParseError> {
    let whole = Part::whole(text).trim();
    let removes = whole.text.starts_with('!');
    let command = if removes { whole.from(1).trim() } else { whole };
    // The first word is the trigger: a blank ends it.
    let blank = command.text.find(char::is_whitespace).unwrap_or(command.text.len());
    let (trigger, condition) = (command.to(blank), command.from(blank).trim());
    let filter = condition_of(condition)?;
    let (name, params) = trigger.cut(":");
    let kind = match name.text {
        "traceon" => TriggerKind::TraceOn,
        "traceoff" => TriggerKind::TraceOff,
        "snapshot" => TriggerKind::Snapshot,
        "stacktrace" => TriggerKind::Stacktrace,
        "hist" => {
            let kind = TriggerKind::Hist(hist(params.unwrap_or(trigger.from(trigger.text.len())))?);
            return Ok(command_of(removes, Trigger { kind, count: None, filter }));
        }
        other => {
            let shown: String = other.chars().take(20).collect();
            let message = format!(
                "`{shown}` is no trigger: write traceon, traceoff, snapshot, stacktrace or hist"
            );
            return Err(fault("HIST_NOT_FOUND", name.at, message));
        }
    };
    let count = match params {
        // Which of them is removed does not depend on its count, as in the kernel.
        Some(_) if removes => None,
        // The file lists it in this form, too.
        None | Some(Part { text: "unlimited", .. }) => None,
        Some(count) => {
            let number = count.text.strip_prefix("count=").unwrap_or(count.text);
            let found = parse_number(number).filter(|count| *count > 0);
            let message = "how often it is set off at most is a number, 1 or more";
            Some(found.ok_or_else(|| fault("EXPECT_NUMBER", count.at, message))?)
        }
    };
    Ok(command_of(removes, Trigger { kind, count, filter }))
}

fn command_of(removes: bool, trigger: Trigger) -> TriggerCommand {
    if removes { TriggerCommand::Remove(trigger) } else { TriggerCommand::Add(trigger) }
}

/// Parses the filter after `if`.
fn condition_of(condition: Part<'_>) -> Result<Option<WrittenFilter>, ParseError> {
    if condition.text.is_empty() {
        return Ok(None);
    }
    let filter =
        condition.text.strip_prefix("if").filter(|rest| rest.starts_with(char::is_whitespace));
    let Some(filter) = filter else {
        let message = "after a trigger may be a condition alone: `if FILTER`";
        return Err(fault("NO_FILTER", condition.at, message));
    };
    let at = condition.at + (condition.text.len() - filter.len());
    match filter.parse::<WrittenFilter>() {
        Ok(filter) => Ok(Some(filter)),
        Err(error) => Err(ParseError { position: at + error.position, ..error }),
    }
}

fn hist(params: Part<'_>) -> Result<Hist, ParseError> {
    let (mut keys, mut values, mut sort) = (Vec::new(), Vec::new(), Vec::new());
    let (mut size, mut change) = (SIZE_DEFAULT, None);
    for param in params.split(":") {
        let (name, value) = param.cut("=");
        match (name.text, value) {
            ("keys" | "key", Some(list)) => keys = fields(list, KEYS_MAX, "keys")?,
            ("values" | "vals" | "val", Some(list)) => {
                let is_sum = |part: &Part<'_>| part.text != HITS;
                values = each(list, is_sum, VALUES_MAX, "values beside hitcount")?;
            }
            ("sort", Some(list)) => sort = sorted_by(list)?,
            ("size", Some(number)) => size = entries(number)?,
            ("pause", None) => change = Some(HistChange::Pause),
            ("continue" | "cont", None) => change = Some(HistChange::Continue),
            ("clear", None) => change = Some(HistChange::Clear),
            _ => {
                let shown: String = param.text.chars().take(20).collect();
                let message = format!(
                    "`{shown}` is none of keys=, values=, sort=, size=, pause, continue, clear"
                );
                return Err(fault("HIST_CREATE_FAIL", param.at, message));
            }
        }
    }
    if keys.is_empty() {
        let message = "a histogram needs keys: `hist:keys=FIELD`";
        return Err(fault("HIST_CREATE_FAIL", params.at, message));
    }
    if sort.is_empty() {
        sort.push(SortKey { field: HITS.to_owned(), descending: false });
    }
    let known = |name: &str| {
        let mut all = keys.iter().chain(&values);
        name == HITS || all.any(|field: &HistField| field.name == name)
    };
    if let Some(wrong) = sort.iter().find(|key| !known(&key.field)) {
        let at = params.at + params.text.find("sort=").unwrap_or_default();
        let message = format!("`{}` is neither hitcount nor a key or value", wrong.field);
        return Err(fault("INVALID_SORT_FIELD", at, message));
    }
    Ok(Hist { keys, values, sort, size, change })
}

fn fields(list: Part<'_>, most: usize, what: &str) -> Result<Vec<HistField>, ParseError> {
    each(list, |_| true, most, what)
}

fn each(
    list: Part<'_>,
    wanted: impl Fn(&Part<'_>) -> bool,
    most: usize,
    what: &str,
) -> Result<Vec<HistField>, ParseError> {
    let found: Vec<HistField> =
        list.split(",").filter(wanted).map(field).collect::<Result<_, _>>()?;
    match found.len() <= most {
        true => Ok(found),
        false => {
            let message = format!("a histogram has at most {most} {what}");
            Err(fault("HIST_CREATE_FAIL", list.at, message))
        }
    }
}

fn field(part: Part<'_>) -> Result<HistField, ParseError> {
    let (name, modifier) = part.cut(".");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.text.is_empty() || !name.text.chars().all(is_name) {
        return Err(fault("FIELD_NOT_FOUND", name.at, "a field's name belongs here"));
    }
    let Some(modifier) = modifier else {
        return Ok(HistField { name: name.text.to_owned(), modifier: Modifier::None });
    };
    let found = match modifier.text {
        "hex" => Some(Modifier::Hex),
        "sym" => Some(Modifier::Sym),
        "sym-offset" => Some(Modifier::SymOffset),
        "execname" => Some(Modifier::Execname),
        "log2" => Some(Modifier::Log2),
        "usecs" => Some(Modifier::Usecs),
        other => {
            let size = other.strip_prefix("buckets=").and_then(parse_number);
            size.filter(|size| *size > 0).map(Modifier::Buckets)
        }
    };
    let message = "write .hex, .sym, .sym-offset, .execname, .log2, .buckets=N or .usecs";
    let modifier = found.ok_or_else(|| fault("BAD_FIELD_MODIFIER", modifier.at, message))?;
    Ok(HistField { name: name.text.to_owned(), modifier })
}

fn sorted_by(list: Part<'_>) -> Result<Vec<SortKey>, ParseError> {
    let mut sort = Vec::new();
    for part in list.split(",") {
        let (name, order) = part.cut(".");
        if name.text.is_empty() {
            return Err(fault("EMPTY_SORT_FIELD", part.at, "a field's name belongs here"));
        }
        let descending = match order.map(|order| order.text) {
            None | Some("ascending") => false,
            Some("descending") => true,
            Some(_) => {
                let message = "sort by FIELD, FIELD.ascending or FIELD.descending";
                return Err(fault("INVALID_SORT_MODIFIER", part.at, message));
            }
        };
        sort.push(SortKey { field: name.text.to_owned(), descending });
    }
    match sort.len() <= SORT_MAX {
        true => Ok(sort),
        false => Err(fault("TOO_MANY_SORT_FIELDS", list.at, "sort by one field or two")),
    }
}

fn entries(number: Part<'_>) -> Result<u32, ParseError> {
    let found = parse_number(number.text).and_then(u64::checked_next_power_of_two);
    let found = found.filter(|size| SIZES.contains(size)).and_then(|size| u32::try_from(size).ok());
    let message = "a histogram has 128 to 131072 entries";
    found.ok_or_else(|| fault("EXPECT_NUMBER", number.at, message))
}
