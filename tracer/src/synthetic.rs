//! Synthetic events: the file `synthetic_events`, and files of such events.

use exoprobe_probes::definition::{
    ParseError, ValueType, Width, definition_lines, without_comment,
};
use exoprobe_probes::synthetic::{
    SYNTHETIC_GROUP, SYNTHETIC_TEXT_MAX, SyntheticCommand, SyntheticDefinition, SyntheticError,
    SyntheticType, parse_synthetic,
};
use exoprobe_probes::{Engine, ProbeError, ProbeStatus, SyntheticStatus};

use crate::commands::check_length;
use crate::error::TracerError;
use crate::format::FormatField;
use crate::log::ErrorLog;

/// Whose faults these are, in error_log.
const PART: &str = "synthetic_events";
/// Identifier of the fault of a definition of another group.
const OTHER_GROUP: &str = "INVALID_DYN_CMD";
/// Faults of a whole command, whose caret is at its begin.
const OF_WHOLE: [&str; 3] = ["INVALID_CMD", OTHER_GROUP, "TOO_MANY_FIELDS"];
/// The begin of definitions in `dynamic_events`.
const LETTER: &str = "s:";

/// The text of synthetic_events.
pub(crate) fn listing(engine: &Engine) -> String {
    engine.synthetics().iter().map(|event| format!("{}\n", event.definition)).collect()
}

/// The lines of dynamic_events, with the events' numbers.
pub(crate) fn dynamic_lines(engine: &Engine) -> impl Iterator<Item = (u32, String)> {
    let line = |event: SyntheticStatus| {
        (event.id, format!("{LETTER}{SYNTHETIC_GROUP}/{}\n", event.definition))
    };
    engine.synthetics().into_iter().map(line)
}

/// A synthetic event, if there is one of this group and name.
pub(crate) fn find(engine: &Engine, group: &str, event: &str) -> Option<SyntheticStatus> {
    engine.synthetic(event).filter(|_| group == SYNTHETIC_GROUP)
}

/// Runs the commands of synthetic_events.
///
/// # Errors
/// [`TracerError`], of the first line that is at fault; what came before stays.
pub(crate) fn write(engine: &Engine, log: &mut ErrorLog, text: &str) -> Result<(), TracerError> {
    for (number, line) in definition_lines(text) {
        let done = check_length(line).and_then(|()| run(engine, log, line, (line, 0)));
        done.map_err(|error| TracerError { line: Some(number), ..error })?;
    }
    Ok(())
}

/// The command of synthetic_events in a line of dynamic_events, and its column; `None` if it is one
/// of kprobe_events.
pub(crate) fn dynamic_command(engine: &Engine, line: &str) -> Option<(String, usize)> {
    let in_group = |name: &str| match name.split_once('/') {
        Some((SYNTHETIC_GROUP, rest)) => name.len() - rest.len(),
        _ => 0,
    };
    let command = line.trim_start();
    let (mark, rest) = match command.strip_prefix('!') {
        Some(rest) => ("!", rest),
        None => ("", command),
    };
    let (mark, name) = match rest.strip_prefix(LETTER) {
        Some(name) => (mark, &name[in_group(name)..]),
        None => {
            let name = command.strip_prefix("-:")?;
            let name = &name[in_group(name)..];
            let word = name.split_whitespace().next().unwrap_or_default();
            ("!", engine.synthetic(word).map(|_| name)?)
        }
    };
    Some((format!("{mark}{name}"), line.len() - name.len()))
}

/// Returns true if a line `-:[GROUP/]NAME` of dynamic_events also names an event of probes.
pub(crate) fn names_probe(engine: &Engine, line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    let Some(name) = word.strip_prefix("-:") else { return false };
    let (group, name) = match name.split_once('/') {
        Some((group, name)) => (Some(group), name),
        None => (None, name),
    };
    let is_it =
        |probe: &ProbeStatus| probe.event == name && group.is_none_or(|group| probe.group == group);
    engine.list().iter().any(is_it)
}

/// Runs a command of `line`, where it begins at a column.
pub(crate) fn run(
    engine: &Engine,
    log: &mut ErrorLog,
    line: &str,
    (command, column): (&str, usize),
) -> Result<(), TracerError> {
    let parsed = check_group(command, column);
    let done = match parsed.and_then(|()| parse_synthetic(without_comment(command))) {
        Ok(SyntheticCommand::Define(definition)) => engine.define_synthetic(definition),
        Ok(SyntheticCommand::Delete(name)) => engine.delete_synthetic(&name),
        Err(error) => Err(error.into()),
    };
    let (id, position) = match &done {
        Err(ProbeError::Syntax(error)) if OF_WHOLE.contains(&error.id) => (error.id, 0),
        Err(ProbeError::Syntax(error)) => (error.id, column + error.position),
        Err(ProbeError::Synthetic(SyntheticError::Exists(_))) => ("EVENT_EXISTS", column),
        _ => return Ok(done?),
    };
    done.map_err(|error| {
        let shown = without_comment(line).to_owned();
        let position = position.min(shown.len());
        log.add(engine.micros(), PART, &error.to_string(), (shown, position));
        TracerError { position: Some(position), id: Some(id), ..TracerError::from(error) }
    })
}

/// Refuses a definition of another group, which only a line of dynamic_events can give: there the
/// command begins after the first column.
fn check_group(command: &str, column: usize) -> Result<(), ParseError> {
    let word = command.split_whitespace().next().unwrap_or_default();
    if column == 0 || word.starts_with('!') || !word.contains('/') {
        return Ok(());
    }
    let message = format!("synthetic events are in the group `{SYNTHETIC_GROUP}`: leave it out");
    Err(ParseError { message, position: 0, id: OTHER_GROUP })
}

/// The text of an event's file `format`, as the kernel has it.
pub(crate) fn format_text(event: &SyntheticStatus) -> String {
    crate::format::of_synthetic(&event.definition.name, event.id, &fields(&event.definition))
}

/// Bytes of a record that a number takes.
const SLOT: usize = 8;

/// The fields of an event as its `format` has them.
pub(crate) fn fields(definition: &SyntheticDefinition) -> Vec<FormatField<'_>> {
    let each = definition.fields.iter().map(|field| {
        let name = field.name.as_str();
        match field.kind {
            SyntheticType::Number(of) => FormatField {
                declaration: format!("{} {name}", of.name),
                name,
                size: of.kind.width().bytes(),
                is_signed: of.kind.is_signed(),
                room: SLOT,
                print: print(of.name, of.kind),
                read: None,
            },
            SyntheticType::Text(Some(size)) => FormatField {
                declaration: format!("char {name}[]"),
                name,
                size: size.into(),
                is_signed: true,
                room: SYNTHETIC_TEXT_MAX.into(),
                print: "%s",
                read: None,
            },
            SyntheticType::Text(None) => FormatField {
                declaration: format!("__data_loc char[] {name}"),
                name,
                size: SLOT,
                is_signed: true,
                room: SLOT,
                print: "%s",
                read: Some("__get_str"),
            },
            SyntheticType::Stack(of) => FormatField {
                declaration: format!("__data_loc {of} {name}"),
                name,
                size: SLOT,
                is_signed: true,
                room: SLOT,
                print: "%s",
                read: Some("__get_stacktrace"),
            },
        }
    });
    each.collect()
}

fn print(name: &str, kind: ValueType) -> &'static str {
    match (kind, kind.width()) {
        (ValueType::Hex(_), _) => "%x",
        (ValueType::Signed(_), Width::Quad) if name == "long" => "%ld",
        (ValueType::Signed(_), Width::Quad) => "%lld",
        (ValueType::Signed(_), _) => "%d",
        (_, Width::Quad) if name == "unsigned long" => "%lu",
        (_, Width::Quad) => "%llu",
        _ => "%u",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of Linux 6.12's own tracer.
    #[test]
    fn a_format_is_laid_out_as_by_the_kernel() {
        let line = "sy int a; unsigned int b; long c; unsigned long d; bool e; char f; unsigned char g; s8 h; char i[3]; \
                    char j[]; u16 k; gfp_t l; unsigned long o[]; u64 m; s64 n";
        let Ok(SyntheticCommand::Define(definition)) = parse_synthetic(line) else { panic!() };
        let (enabled, triggers, is_switched, filter) = (false, 0, false, None);
        let status = SyntheticStatus { id: 7, definition, enabled, triggers, is_switched, filter };
        let text = format_text(&status);
        let fields = "\tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n\
            \tfield:unsigned int b;\toffset:16;\tsize:4;\tsigned:0;\n\
            \tfield:long c;\toffset:24;\tsize:8;\tsigned:1;\n\
            \tfield:unsigned long d;\toffset:32;\tsize:8;\tsigned:0;\n\
            \tfield:bool e;\toffset:40;\tsize:1;\tsigned:1;\n\
            \tfield:char f;\toffset:48;\tsize:1;\tsigned:1;\n\
            \tfield:unsigned char g;\toffset:56;\tsize:1;\tsigned:0;\n\
            \tfield:s8 h;\toffset:64;\tsize:1;\tsigned:1;\n\
            \tfield:char i[];\toffset:72;\tsize:3;\tsigned:1;\n\
            \tfield:__data_loc char[] j;\toffset:328;\tsize:8;\tsigned:1;\n\
            \tfield:u16 k;\toffset:336;\tsize:2;\tsigned:0;\n\
            \tfield:gfp_t l;\toffset:344;\tsize:4;\tsigned:0;\n\
            \tfield:__data_loc unsigned long[] o;\toffset:352;\tsize:8;\tsigned:1;\n";
        assert!(text.starts_with("name: sy\nID: 7\nformat:\n") && text.contains(fields), "{text}");
        let print = "print fmt: \"a=%d, b=%u, c=%ld, d=%lu, e=%d, f=%d, g=%u, h=%d, i=%s, j=%s, k=%u, l=%x, o=%s, m=%llu, n=%lld\", \
            REC->a, REC->b, REC->c, REC->d, REC->e, REC->f, REC->g, REC->h, REC->i, __get_str(j), REC->k, REC->l, \
            __get_stacktrace(o), REC->m, REC->n\n";
        assert!(text.ends_with(print), "{text}");
    }
}
