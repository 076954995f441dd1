//! Reads commands of the file `trigger`. Positions are columns of the text, from 0.

use super::command::{
    CLOCK, EventSwitch, Hist, HistChange, SIZE_DEFAULT, SortKey, SwitchSubject, Trigger,
    TriggerCommand, TriggerKind, sort_field,
};
use super::expression::Expression;
use super::field::{HITCOUNT_FIELD, Modifier};
use super::parse_expression::Definitions;
use super::parse_handler::{handlers, is_handler};
use super::part::{Part, modifier_of};
use crate::definition::{FieldKinds, ParseError, WrittenFilter, fault, parse_number};

/// Most keys of a histogram, values beside the hits, and sort keys (histogram.rst).
const KEYS_MAX: usize = 3;
/// See [`KEYS_MAX`].
const VALUES_MAX: usize = 2;
/// See [`KEYS_MAX`].
const SORT_MAX: usize = 2;
/// Entries of a histogram.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 7..=1 << 17;

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
    let (trigger, rest) = (command.to(blank), command.from(blank).trim());
    let (name, params) = trigger.cut(":");
    let end = trigger.from(trigger.text.len());
    let (kind, count) = match name.text {
        "traceon" => (TriggerKind::TraceOn, params),
        "traceoff" => (TriggerKind::TraceOff, params),
        "snapshot" => (TriggerKind::Snapshot, params),
        "stacktrace" => (TriggerKind::Stacktrace, params),
        "enable_event" | "disable_event" | "enable_hist" | "disable_hist" => {
            let (switch, count) = event_switch(name, params.unwrap_or(end))?;
            (TriggerKind::Switch(switch), count)
        }
        "hist" => {
            let kind = TriggerKind::Hist(hist(params.unwrap_or(end))?);
            return Ok(command_of(
                removes,
                Trigger { kind, count: None, filter: filter_of(rest)? },
            ));
        }
        other => {
            let shown: String = other.chars().take(20).collect();
            let message = format!(
                "`{shown}` is no trigger: write traceon, traceoff, snapshot, stacktrace, enable_event, \
                 disable_event, enable_hist, disable_hist or hist"
            );
            return Err(fault("HIST_NOT_FOUND", name.at, message));
        }
    };
    let count = match count {
        // Which of them is removed does not depend on its count, as in the kernel.
        Some(_) if removes => None,
        Some(count) => count_of(count)?,
        None => None,
    };
    // Nor on its condition.
    let filter = if removes { None } else { filter_of(rest)? };
    Ok(command_of(removes, Trigger { kind, count, filter }))
}

/// Parses how often a trigger is set off; `None` is without a limit.
fn count_of(count: Part<'_>) -> Result<Option<u64>, ParseError> {
    // The file lists it in these forms, too.
    if count.text == "unlimited" {
        return Ok(None);
    }
    let number = count.text.strip_prefix("count=").unwrap_or(count.text);
    let found = parse_number(number).filter(|count| *count > 0);
    let message = "how often it is set off at most is a number, 1 or more";
    found.map(Some).ok_or_else(|| fault("EXPECT_NUMBER", count.at, message))
}

/// Parses `GROUP:EVENT[:COUNT]` of a trigger that switches an event.
fn event_switch<'a>(
    name: Part<'_>,
    of: Part<'a>,
) -> Result<(EventSwitch, Option<Part<'a>>), ParseError> {
    let (group, rest) = of.cut(":");
    let (event, count) = rest.map_or((of.from(of.text.len()), None), |rest| rest.cut(":"));
    if let Some(lacking) = [group, event].iter().find(|part| part.text.is_empty()) {
        let message = format!("write which event: `{}:GROUP:EVENT`", name.text);
        return Err(fault("HIST_CREATE_FAIL", lacking.at, message));
    }
    let subject = match name.text.ends_with("_hist") {
        true => SwitchSubject::Histograms,
        false => SwitchSubject::Event,
    };
    let (group, event) = (group.text.to_owned(), event.text.to_owned());
    let on = name.text.starts_with("enable");
    Ok((EventSwitch { subject, on, group, event }, count))
}

fn command_of(removes: bool, trigger: Trigger) -> TriggerCommand {
    if removes { TriggerCommand::Remove(trigger) } else { TriggerCommand::Add(trigger) }
}

/// A command without its condition, and the filter of that, with its column; `None` without one.
#[must_use]
pub fn split_trigger(text: &str) -> Option<(&str, (usize, &str))> {
    let command = Part::whole(text).trim();
    let command = if command.text.starts_with('!') { command.from(1).trim() } else { command };
    let rest = command.from(command.text.find(char::is_whitespace)?).trim();
    let condition = condition_of(rest)?;
    Some((&text[..rest.at], (condition.at, condition.text)))
}

/// The filter after `if` and one blank.
fn condition_of(rest: Part<'_>) -> Option<Part<'_>> {
    const IF: &str = "if";
    let is_it = rest.text.strip_prefix(IF)?.starts_with([' ', '\t']);
    is_it.then(|| rest.from(IF.len() + 1))
}

/// Parses what is after a trigger: nothing, or its condition.
fn filter_of(rest: Part<'_>) -> Result<Option<WrittenFilter>, ParseError> {
    if rest.text.is_empty() {
        return Ok(None);
    }
    let Some(Part { text, at }) = condition_of(rest) else {
        let message = "after a trigger may be a condition alone: `if FILTER`";
        return Err(fault("NO_FILTER", rest.at, message));
    };
    match WrittenFilter::parse(text, &FieldKinds::Unknown).map_err(ParseError::from) {
        Ok(filter) => Ok(Some(filter)),
        Err(error) => Err(ParseError { position: at + error.position, ..error }),
    }
}

/// Parameters of a histogram that are read once all variables are known.
#[derive(Default)]
struct Lists<'a> {
    keys: Option<Part<'a>>,
    values: Option<Part<'a>>,
    variables: Definitions<'a>,
    handlers: Vec<Part<'a>>,
}

fn hist(params: Part<'_>) -> Result<Hist, ParseError> {
    let mut lists = Lists::default();
    let (mut size, mut change, mut no_hitcount) = (SIZE_DEFAULT, None, false);
    let (mut shared_name, mut sort, mut clock) = (None, Vec::new(), None);
    for param in params.split(":") {
        let (name, value) = param.cut("=");
        if value.is_some_and(|value| value.text.is_empty()) {
            return Err(fault("EMPTY_ASSIGNMENT", param.at, "nothing follows the `=`"));
        }
        match (name.text, value) {
            ("keys" | "key", Some(list)) => lists.keys = Some(list),
            ("values" | "vals" | "val", Some(list)) => lists.values = Some(list),
            ("sort", Some(list)) => sort = sorted_by(list, param.at)?,
            ("clock", Some(name)) => clock = Some(name),
            ("name", Some(name)) => shared_name = Some(name.text.to_owned()),
            ("size", Some(number)) => size = entries(number)?,
            ("pause", None) => change = Some(HistChange::Pause),
            ("continue" | "cont", None) => change = Some(HistChange::Continue),
            ("clear", None) => change = Some(HistChange::Clear),
            ("nohitcount" | "NOHC", None) => no_hitcount = true,
            (_, Some(_)) => lists.variables.add(param)?,
            (_, None) if is_handler(param) => lists.handlers.push(param),
            _ => return Err(unknown(param)),
        }
    }
    let handlers = handlers(&lists.handlers, lists.variables.len())?;
    let (keys, values) = lists.keys_and_values(params)?;
    let variables = lists.variables.variables()?;
    if sort.is_empty() {
        let field = HITCOUNT_FIELD.to_owned();
        sort.push((SortKey { field, descending: false }, SortPlace::default()));
    }
    let sort = sort.into_iter().map(|(key, place)| place.check(key, &keys, &values));
    let sort = sort.collect::<Result<_, _>>()?;
    let name = shared_name;
    let hist = Hist { name, keys, values, variables, handlers, sort, size, no_hitcount, change };
    match clock {
        // All times are those of the guest's clock.
        Some(Part { text, at }) if text != CLOCK && hist.has_time() => {
            Err(fault("SET_CLOCK_FAIL", at, format!("there is one clock: `{CLOCK}`")))
        }
        // As in the kernel, a histogram without times has no clock, whatever is written.
        _ => Ok(hist),
    }
}

fn unknown(param: Part<'_>) -> ParseError {
    let shown: String = param.text.chars().take(20).collect();
    let message = format!(
        "`{shown}` is none of name=, keys=, values=, sort=, size=, pause, continue, clear, nohitcount, no variable \
         `NAME=EXPRESSION`, and no handler `onmax($VAR)` or `onchange($VAR)`"
    );
    fault("HIST_CREATE_FAIL", param.at, message)
}

impl Lists<'_> {
    fn keys_and_values(
        &self,
        params: Part<'_>,
    ) -> Result<(Vec<Expression>, Vec<Expression>), ParseError> {
        let mut values = Vec::new();
        if let Some(list) = self.values {
            values = self.expressions(list, VALUES_MAX + 1, "values with hitcount")?;
            // One of them is there anyhow.
            let hits = values.iter().position(Expression::is_hitcount);
            hits.map(|at| values.remove(at));
            if values.len() > VALUES_MAX {
                return Err(too_many(list, VALUES_MAX, "values beside hitcount"));
            }
        }
        let Some(list) = self.keys else {
            let message = "a histogram needs keys: `hist:keys=FIELD`";
            return Err(fault("HIST_CREATE_FAIL", params.at, message));
        };
        Ok((self.expressions(list, KEYS_MAX, "keys")?, values))
    }

    fn expressions(
        &self,
        list: Part<'_>,
        most: usize,
        what: &str,
    ) -> Result<Vec<Expression>, ParseError> {
        let found = list.split(",").map(|part| self.variables.expression(part));
        let found: Vec<Expression> = found.collect::<Result<_, _>>()?;
        match found.len() <= most {
            true => Ok(found),
            false => Err(too_many(list, most, what)),
        }
    }
}

fn too_many(list: Part<'_>, most: usize, what: &str) -> ParseError {
    fault("HIST_CREATE_FAIL", list.at, format!("a histogram has at most {most} {what}"))
}

/// Where a sort key is in a command, and the modifier that it has there.
#[derive(Default)]
struct SortPlace {
    field: usize,
    modifier: Option<(Modifier, usize)>,
}

impl SortPlace {
    /// The key, if there is such a field. It may have that field's modifier: the file lists it so.
    fn check(
        self,
        key: SortKey,
        keys: &[Expression],
        values: &[Expression],
    ) -> Result<SortKey, ParseError> {
        let found = sort_field(&key.field, keys, values);
        if found.is_none() && key.field != HITCOUNT_FIELD {
            let message = format!("`{}` is neither hitcount nor a key or value", key.field);
            return Err(fault("INVALID_SORT_FIELD", self.field, message));
        }
        match self.modifier {
            Some((modifier, at)) if found.is_none_or(|found| found.modifier() != modifier) => {
                Err(wrong_order(at))
            }
            _ => Ok(SortKey { field: found.map_or(key.field, Expression::name), ..key }),
        }
    }
}

fn wrong_order(at: usize) -> ParseError {
    let message = "sort by FIELD, FIELD.ascending or FIELD.descending";
    fault("INVALID_SORT_MODIFIER", at, message)
}

/// Parses sort keys; `at` is where their parameter begins.
fn sorted_by(list: Part<'_>, at: usize) -> Result<Vec<(SortKey, SortPlace)>, ParseError> {
    let mut sort = Vec::new();
    for part in list.split(",") {
        let (name, order) = part.cut(".");
        if name.text.is_empty() {
            return Err(fault("EMPTY_SORT_FIELD", at, "a field's name belongs here"));
        }
        let (modifier, descending) = match order {
            None => (None, false),
            Some(order) => sort_order(order)?,
        };
        let place = SortPlace { field: part.at, modifier };
        sort.push((SortKey { field: name.text.to_owned(), descending }, place));
    }
    match sort.len() <= SORT_MAX {
        true => Ok(sort),
        false => Err(fault("TOO_MANY_SORT_FIELDS", at, "sort by one field or two")),
    }
}

/// Parses `[MODIFIER.][ascending|descending]` of a sort key: returns true if it is descending.
fn sort_order(order: Part<'_>) -> Result<(Option<(Modifier, usize)>, bool), ParseError> {
    let cut = order.text.rfind('.').map_or(0, |dot| dot + 1);
    let (modifier, descending) = match &order.text[cut..] {
        "ascending" => (order.to(cut.saturating_sub(1)), false),
        "descending" => (order.to(cut.saturating_sub(1)), true),
        _ => (order, false),
    };
    if modifier.text.is_empty() && !order.text.is_empty() {
        return Ok((None, descending));
    }
    let found = modifier_of(modifier).map_err(|_| wrong_order(modifier.at))?;
    Ok((Some((found, modifier.at)), descending))
}

fn entries(number: Part<'_>) -> Result<u32, ParseError> {
    let found = parse_number(number.text).and_then(u64::checked_next_power_of_two);
    let found = found.filter(|size| SIZES.contains(size)).and_then(|size| u32::try_from(size).ok());
    let message = "a histogram has 128 to 131072 entries";
    found.ok_or_else(|| fault("EXPECT_NUMBER", number.at, message))
}
