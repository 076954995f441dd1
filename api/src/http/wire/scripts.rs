//! Scripts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::scripts;

/// A script to run.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewScript {
    /// Its text, in the bpftrace language.
    #[schema(example = "kprobe:vfs_read { @[comm] = hist(arg2); }")]
    pub text: String,
    /// Values of `$1`, `$2` and on.
    #[serde(default)]
    pub params: Vec<String>,
    /// The form of its output.
    #[serde(default)]
    pub format: OutputFormat,
    /// Only check it: nothing runs, and the number in the answer is 0.
    #[serde(default)]
    pub dry_run: bool,
    /// Allow `override()`, which changes what the guest does, and `system()`, whose commands
    /// `exoprobe trace` runs on its host. They may have text of the guest's.
    #[serde(default, rename = "unsafe")]
    pub allow_unsafe: bool,
}

/// The form of a script's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// Text, as bpftrace writes it.
    #[default]
    Text,
    /// A JSON object a line, as `bpftrace -f json`.
    Json,
}

impl From<NewScript> for scripts::NewScript {
    fn from(new: NewScript) -> Self {
        let format = match new.format {
            OutputFormat::Text => exoprobe_script::Format::Text,
            OutputFormat::Json => exoprobe_script::Format::Json,
        };
        let allow_unsafe = new.allow_unsafe;
        Self { text: new.text, params: new.params, format, allow_unsafe }
    }
}

/// Commands of a script's `system()`. The service runs none of them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScriptCommands {
    /// The number of the first, from 0. If it is not the one that was asked for, those between are
    /// gone: the last 256 KiB are kept.
    pub first: u64,
    /// In the order in which they were called.
    pub commands: Vec<ScriptCommand>,
}

/// A command of a script's `system()`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScriptCommand {
    /// Bytes of output before it.
    pub at: u64,
    /// Its text, for a shell.
    #[schema(example = "echo hit")]
    pub text: String,
}

impl From<scripts::ShellCommands> for ScriptCommands {
    fn from(found: scripts::ShellCommands) -> Self {
        let command = |scripts::ShellCommand { at, text }| ScriptCommand { at, text };
        Self { first: found.first, commands: found.kept.into_iter().map(command).collect() }
    }
}

/// How far a script is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScriptState {
    /// It was only checked.
    Checked,
    /// Its probes are armed.
    Running,
    /// It has called exit(), and is about to end.
    Ending,
    /// Its probes are gone, and its output is whole.
    Ended,
}

/// A script, and its counts. For each probe and action, `hits = run + filtered + limited + late +
/// lost`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Script {
    /// Its number; 0 if it was only checked.
    #[schema(example = 1)]
    pub id: u32,
    /// How far it is.
    pub state: ScriptState,
    /// Its text.
    pub text: String,
    /// The status that it gave exit(); 0 without one.
    pub exit_status: i32,
    /// The number of its probes in the guest; samples of `profile` need none.
    pub probes: usize,
    /// The number of those whose hits do not leave the guest.
    pub optimized: usize,
    /// Functions of a pattern that cannot be probed, each with the reason.
    pub refused: Vec<String>,
    /// Actions that ran.
    pub run: u64,
    /// Actions that their filter kept from running.
    pub filtered: u64,
    /// Actions that ended at a limit, which `warnings` name.
    pub limited: u64,
    /// Hits after exit().
    pub late: u64,
    /// Hits whose record had no room, and samples that were due and not taken.
    pub lost: u64,
    /// Calls that return probes could not follow.
    pub nmissed: u64,
    /// Warnings, each once.
    pub warnings: Vec<String>,
    /// The number of further warnings, and of the same again.
    pub more_warnings: u64,
    /// How each of its probes is read and armed; only if it was only checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub explained: Vec<ScriptProbe>,
}

/// A server-sent event of a script's output, by its fields.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "only its schema is used: the fields are text of a stream")]
pub struct ScriptEvent {
    /// Offset after the line, for `Last-Event-ID`; absent of a gap.
    pub id: Option<u64>,
    /// Kind of `data`.
    pub event: ScriptEventName,
    /// As JSON in one line: of a script with the format `json` the line itself, of text a string,
    /// of a gap a `Lost` in bytes.
    pub data: serde_json::Value,
}

/// Name of a server-sent event of a script.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScriptEventName {
    /// `data` is a line.
    Line,
    /// `data` is a `Lost`.
    Lost,
}

/// How a probe of a script is read and armed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScriptProbe {
    /// The probe, as bpftrace writes it.
    #[schema(example = "kprobe:vfs_read")]
    pub probe: String,
    /// The names that its actions can use, each as `TYPE NAME`: of a function by the kernel's
    /// types, of a system call the fields of its tracepoint.
    #[schema(example = json!(["struct file * file"]))]
    pub arguments: Vec<String>,
    /// The values that are read at its hits; the rest is computed from these afterwards.
    pub reads: Vec<String>,
    /// Why its actions run at the hits themselves, which takes an exit; null if they run
    /// afterwards. If one of a script's actions does, all do.
    pub exit: Option<String>,
    /// How its places in the guest would be armed; empty for a probe that has none. More than one
    /// where a probe has several places, or would be left out at some.
    pub armed: Vec<ScriptArming>,
}

/// How places of a probe of a script would be armed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScriptArming {
    /// How they are armed.
    pub by: ArmedBy,
    /// For an int3, why it is no jmp: the rule's name first. For places without either, what they
    /// wait for, or why they are left out.
    #[schema(example = "text: faults of the code in the guest cannot be caught")]
    pub reason: Option<String>,
    /// The number of such places.
    #[schema(example = 1)]
    pub places: u32,
}

/// How a probe of a script is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArmedBy {
    /// A jmp to a detour in the guest, which reads the values: hits take no exit.
    Jmp,
    /// An int3: each hit takes an exit, in which the VMM reads the values.
    Int3,
    /// Nothing yet: its text does not exist, or is not final.
    Pending,
    /// Nothing: it cannot be probed, and is left out.
    Refused,
}

impl From<&scripts::Arming> for ScriptArming {
    fn from(arming: &scripts::Arming) -> Self {
        let by = match arming.by {
            scripts::ArmedBy::Jmp => ArmedBy::Jmp,
            scripts::ArmedBy::Int3 => ArmedBy::Int3,
            scripts::ArmedBy::Pending => ArmedBy::Pending,
            scripts::ArmedBy::Refused => ArmedBy::Refused,
        };
        Self { by, reason: arming.reason.clone(), places: arming.places }
    }
}

impl From<scripts::ScriptStatus> for Script {
    fn from(status: scripts::ScriptStatus) -> Self {
        Self {
            id: status.id,
            state: match status.state {
                scripts::ScriptState::Running => ScriptState::Running,
                scripts::ScriptState::Ending => ScriptState::Ending,
                scripts::ScriptState::Ended => ScriptState::Ended,
            },
            text: status.text,
            exit_status: status.exit_status,
            probes: status.probes,
            optimized: status.optimized,
            refused: status.refused,
            run: status.run,
            filtered: status.filtered,
            limited: status.limited,
            late: status.late,
            lost: status.lost,
            nmissed: status.nmissed,
            warnings: status.warnings.kept,
            more_warnings: status.warnings.more,
            explained: Vec::new(),
        }
    }
}

impl Script {
    /// A script that was only checked.
    pub(crate) fn checked(text: String, checked: &scripts::CheckedScript) -> Self {
        let scripts::CheckedScript { program, arguments, arming } = checked;
        let reads = |attachment: &exoprobe_script::Attachment| {
            let bodies = attachment.bodies.iter().filter_map(|number| program.bodies.get(*number));
            bodies.flat_map(|body| &body.reads).map(ToString::to_string).collect()
        };
        let exit = |attachment: &exoprobe_script::Attachment| {
            let mut bodies =
                attachment.bodies.iter().filter_map(|number| program.bodies.get(*number));
            let own = bodies.find_map(|body| body.needs_exit.as_ref());
            let is_sample =
                matches!(attachment.kind, exoprobe_script::AttachmentKind::Profile { .. });
            match own {
                _ if is_sample => Some("a sample takes each vCPU out of the guest".to_owned()),
                Some(reason) => Some(reason.text.clone()),
                None => {
                    program.runs_at_hits().then(|| "another action of the script does".to_owned())
                }
            }
        };
        let explained = program.attachments.iter().zip(arguments).zip(arming);
        let explained = explained.map(|((attachment, arguments), arming)| ScriptProbe {
            probe: attachment.name.to_string(),
            arguments: arguments.clone(),
            reads: reads(attachment),
            exit: exit(attachment),
            armed: arming.iter().map(ScriptArming::from).collect(),
        });
        Self {
            id: 0,
            state: ScriptState::Checked,
            text,
            exit_status: 0,
            probes: 0,
            optimized: 0,
            refused: Vec::new(),
            run: 0,
            filtered: 0,
            limited: 0,
            late: 0,
            lost: 0,
            nmissed: 0,
            warnings: Vec::new(),
            more_warnings: 0,
            explained: explained.collect(),
        }
    }
}
