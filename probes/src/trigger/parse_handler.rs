//! Reads the handlers of histograms: `onmax($VAR).ACTION`, `onchange($VAR).ACTION` and
//! `onmatch(GROUP.EVENT).ACTION`.

use super::expression::{Expression, VariableName};
use super::handler::{ActionParam, FieldOf, Handler, HandlerAction, HandlerCondition};
use super::parse_expression::{VARIABLES_MAX, constant, event_of};
use super::part::{Part, field};
use crate::definition::{ParseError, fault};

/// Most handlers of a histogram (HIST_ACTIONS_MAX).
const HANDLERS_MAX: usize = 8;
/// Most parameters of an action (SYNTH_FIELDS_MAX).
const PARAMS_MAX: usize = 64;
/// The actions, for messages.
const ACTIONS: &str = "write an action after the handler: `.save(FIELD,...)`, `.snapshot()`, `.trace(EVENT,VALUE,...)` or \
                       `.EVENT(VALUE,...)`";

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
    let saves = |handler: &Handler| matches!(handler.action, HandlerAction::Save(_));
    let (mut all, mut used) = (Vec::<Handler>::new(), variables);
    for param in params {
        let new = handler(*param)?;
        if saves(&new) && all.iter().any(saves) {
            let message = "one handler of a histogram saves fields, not several";
            return Err(fault("TOO_MANY_SAVE_ACTIONS", param.at, message));
        }
        for (more, id) in variables_of(&new) {
            used += more;
            if used > VARIABLES_MAX {
                let message = format!(
                    "a histogram has at most {VARIABLES_MAX} variables, handlers of variables, saved and traced \
                     fields together"
                );
                return Err(fault(id, param.at, message));
            }
        }
        all.push(new);
    }
    Ok(all)
}

/// The numbers of variables that the kernel keeps for a handler and for its action, each with the
/// fault of one too many.
fn variables_of(Handler { condition, action }: &Handler) -> [(usize, &'static str); 2] {
    let is_kept = |param: &&ActionParam| match action {
        HandlerAction::Trace { .. } => {
            let of_others = matches!(param.of, FieldOf::Event(..));
            !of_others && !matches!(param.value, Expression::Variable(_))
        }
        HandlerAction::Save(_) | HandlerAction::Snapshot => true,
    };
    let of_action = action.params().iter().filter(is_kept).count();
    let of_condition = usize::from(condition.variable().is_some());
    [(of_condition, "ONX_VAR_CREATE_FAIL"), (of_action, "VAR_CREATE_FIND_FAIL")]
}

fn handler(param: Part<'_>) -> Result<Handler, ParseError> {
    let (name, rest) = param.cut("(");
    let end = param.from(param.text.len());
    let (of, Some(action)) = rest.unwrap_or(end).cut(")") else {
        let id = if name.text == "onmatch" { "NO_CLOSING_PAREN" } else { "HIST_CREATE_FAIL" };
        return Err(fault(id, end.at, "a `)` belongs after what the handler is of"));
    };
    let condition = match name.text {
        "onmax" => HandlerCondition::Max,
        "onchange" => HandlerCondition::Change,
        _ => {
            let (condition, at) = (match_of(of)?, action);
            let action = action_of(action)?;
            return match action {
                HandlerAction::Trace { .. } => Ok(Handler { condition, action }),
                HandlerAction::Save(_) | HandlerAction::Snapshot => {
                    let message = "`onmatch` has the action `trace` alone";
                    Err(fault("ACTION_MISMATCH", at.at + 1, message))
                }
            };
        }
    };
    let action = action_of(action)?;
    match of.text.strip_prefix('$') {
        Some(name) => Ok(Handler { condition: condition(name.to_owned()), action }),
        None => {
            let message = "a handler is of a variable of its histogram: write `$VAR`";
            Err(fault("ONX_NOT_VAR", of.at, message))
        }
    }
}

/// Parses `GROUP.EVENT` of `onmatch`.
fn match_of(of: Part<'_>) -> Result<HandlerCondition, ParseError> {
    match of.cut(".") {
        (group, Some(event)) => {
            let (group, event) = (group.text.to_owned(), event.text.to_owned());
            Ok(HandlerCondition::Match { group, event })
        }
        _ => Err(fault("SUBSYS_NOT_FOUND", of.at, "write `onmatch(GROUP.EVENT)`")),
    }
}

/// Parses `.NAME(PARAMETERS)`.
fn action_of(part: Part<'_>) -> Result<HandlerAction, ParseError> {
    let (before, action) = part.cut(".");
    let (name, params) = action.map_or((part, None), |action| action.cut("("));
    let (true, false, Some(params)) = (before.text.is_empty(), name.text.is_empty(), params) else {
        return Err(fault("ACTION_NOT_FOUND", part.at, ACTIONS));
    };
    let (list, Some(rest)) = params.cut(")") else {
        let message = "a `)` belongs after the action's parameters";
        return Err(fault("NO_CLOSING_PAREN", params.at + params.text.len(), message));
    };
    if !rest.text.is_empty() {
        return Err(fault("ACTION_NOT_FOUND", rest.at, "nothing may follow an action's `)`"));
    }
    let has_keyword = name.text == "trace";
    match name.text {
        "save" => Ok(HandlerAction::Save(action_params(list, saved_param)?)),
        "snapshot" if list.text.is_empty() => Ok(HandlerAction::Snapshot),
        "snapshot" => Err(fault("INVALID_PARAM", list.at, "`snapshot()` has no parameters")),
        "trace" => {
            let (event, rest) = list.cut(",");
            let event = checked(event.trim())?.text.to_owned();
            let params = rest.map_or(Ok(Vec::new()), |rest| action_params(rest, traced_param))?;
            Ok(HandlerAction::Trace { event, has_keyword, params })
        }
        event => {
            let (event, params) = (event.to_owned(), action_params(list, traced_param)?);
            Ok(HandlerAction::Trace { event, has_keyword, params })
        }
    }
}

fn action_params(
    list: Part<'_>,
    parse: impl Fn(Part<'_>) -> Result<ActionParam, ParseError>,
) -> Result<Vec<ActionParam>, ParseError> {
    let params: Vec<Part<'_>> = list.split(",").collect();
    if let Some(more) = params.get(PARAMS_MAX) {
        let message = format!("an action has at most {PARAMS_MAX} parameters");
        return Err(fault("TOO_MANY_PARAMS", more.at, message));
    }
    params.into_iter().map(|part| parse(checked(part.trim())?)).collect()
}

/// Checks a parameter by the kernel's rule.
fn checked(part: Part<'_>) -> Result<Part<'_>, ParseError> {
    let message = "a parameter of an action has two characters at least";
    (part.text.len() >= 2).then_some(part).ok_or_else(|| fault("INVALID_PARAM", part.at, message))
}

/// Parses a parameter of `save`. As in the kernel, the event of a field does not count.
fn saved_param(part: Part<'_>) -> Result<ActionParam, ParseError> {
    let (_, last) = event_of(part);
    Ok(ActionParam {
        name: part.text.to_owned(),
        of: FieldOf::Any,
        value: param_value(part, last)?,
    })
}

/// Parses a parameter of an action that makes an event.
fn traced_param(part: Part<'_>) -> Result<ActionParam, ParseError> {
    let (event, last) = event_of(part);
    if event.is_none() && part.text.contains('.') {
        let message = "a modifier is only for `GROUP.EVENT.FIELD`";
        return Err(fault("PARAM_NOT_FOUND", part.at, message));
    }
    let value = param_value(part, last)?;
    let of = match (&value, event) {
        (Expression::Field(_), Some((group, event))) => FieldOf::Event(group, event),
        _ => FieldOf::Any,
    };
    Ok(ActionParam { name: part.text.to_owned(), of, value })
}

/// Parses the value of a parameter; `last` is it without an event before it.
fn param_value(part: Part<'_>, last: Part<'_>) -> Result<Expression, ParseError> {
    Ok(match last.text.strip_prefix('$') {
        Some(name) => {
            let (event, _) = event_of(part);
            Expression::Variable(VariableName { event, name: name.to_owned() })
        }
        None if part.text.starts_with(|c: char| c.is_ascii_digit()) => {
            Expression::Constant(constant(part)?)
        }
        None => Expression::Field(field(last)?),
    })
}
