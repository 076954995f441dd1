//! Reads the handlers of histograms: `onmax($VAR).ACTION` and `onchange($VAR).ACTION`.

use super::expression::{Expression, VariableName};
use super::handler::{Handler, HandlerAction, HandlerCondition, SavedField};
use super::parse_expression::{VARIABLES_MAX, constant};
use super::part::{Part, fault, field};
use crate::definition::ParseError;

/// Most handlers of a histogram (HIST_ACTIONS_MAX).
const HANDLERS_MAX: usize = 8;
/// The actions, for messages.
const ACTIONS: &str = "write an action after the handler: `.save(FIELD,...)` or `.snapshot()`";

/// Returns true for a parameter that is a handler.
pub(super) fn is_handler(param: Part<'_>) -> bool {
    ["onmatch(", "onmax(", "onchange("].iter().any(|name| param.text.starts_with(name))
}

/// Parses the handlers of a histogram that has so many variables.
///
/// # Errors
/// [`ParseError`], with the tracer's identifier.
pub(super) fn handlers(params: &[Part<'_>], variables: usize) -> Result<Vec<Handler>, ParseError> {
    if let Some(more) = params.get(HANDLERS_MAX) {
        let message = format!("a histogram has at most {HANDLERS_MAX} handlers");
        return Err(fault("HIST_CREATE_FAIL", more.at, message));
    }
    let (mut all, mut used) = (Vec::<Handler>::new(), variables);
    for param in params {
        let new = handler(*param)?;
        if !new.saved().is_empty() && all.iter().any(|other| !other.saved().is_empty()) {
            let message = "one handler of a histogram saves fields, not several";
            return Err(fault("TOO_MANY_SAVE_ACTIONS", param.at, message));
        }
        // As in the kernel, which keeps all of them as variables.
        used += 1 + new.saved().len();
        if used > VARIABLES_MAX {
            let message = format!(
                "a histogram has at most {VARIABLES_MAX} variables, handlers and saved fields together"
            );
            return Err(fault("VAR_CREATE_FIND_FAIL", param.at, message));
        }
        all.push(new);
    }
    Ok(all)
}

fn handler(param: Part<'_>) -> Result<Handler, ParseError> {
    let (name, rest) = param.cut("(");
    let condition = match name.text {
        "onmax" => HandlerCondition::Max,
        "onchange" => HandlerCondition::Change,
        _ => {
            let message = "there is no handler `onmatch`: write onmax($VAR) or onchange($VAR)";
            return Err(fault("HIST_CREATE_FAIL", param.at, message));
        }
    };
    let end = param.from(param.text.len());
    let (variable, Some(action)) = rest.unwrap_or(end).cut(")") else {
        let message = "a `)` belongs after the handler's variable";
        return Err(fault("HIST_CREATE_FAIL", end.at, message));
    };
    let action = action_of(action)?;
    match variable.text.strip_prefix('$') {
        Some(name) => Ok(Handler { condition, variable: name.to_owned(), action }),
        None => {
            let message = "a handler is of a variable of its histogram: write `$VAR`";
            Err(fault("ONX_NOT_VAR", variable.at, message))
        }
    }
}

/// Parses `.NAME(PARAMETERS)`.
fn action_of(part: Part<'_>) -> Result<HandlerAction, ParseError> {
    let (before, action) = part.cut(".");
    let (name, params) = action.map_or((part, None), |action| action.cut("("));
    let (true, Some(params)) = (before.text.is_empty(), params) else {
        return Err(fault("ACTION_NOT_FOUND", part.at, ACTIONS));
    };
    let (list, Some(rest)) = params.cut(")") else {
        let message = "a `)` belongs after the action's parameters";
        return Err(fault("NO_CLOSING_PAREN", params.at + params.text.len(), message));
    };
    if !rest.text.is_empty() {
        return Err(fault("ACTION_NOT_FOUND", rest.at, "nothing may follow an action's `)`"));
    }
    match name.text {
        "save" => Ok(HandlerAction::Save(saved(list)?)),
        "snapshot" if list.text.is_empty() => Ok(HandlerAction::Snapshot),
        "snapshot" => Err(fault("INVALID_PARAM", list.at, "`snapshot()` has no parameters")),
        _ => Err(fault("ACTION_NOT_FOUND", name.at, ACTIONS)),
    }
}

/// Parses the parameters of `save`.
fn saved(list: Part<'_>) -> Result<Vec<SavedField>, ParseError> {
    list.split(",").map(|part| saved_field(part.trim())).collect()
}

fn saved_field(part: Part<'_>) -> Result<SavedField, ParseError> {
    // The kernel's rule.
    if part.text.len() < 2 {
        let message = "a parameter of an action has two characters at least";
        return Err(fault("INVALID_PARAM", part.at, message));
    }
    let value = match part.text.strip_prefix('$') {
        Some(name) => Expression::Variable(VariableName { event: None, name: name.to_owned() }),
        None if part.text.starts_with(|c: char| c.is_ascii_digit()) => {
            Expression::Constant(constant(part)?)
        }
        None => Expression::Field(field(part)?),
    };
    Ok(SavedField { name: part.text.to_owned(), value })
}
