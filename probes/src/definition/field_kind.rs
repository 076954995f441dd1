//! Kinds of fields: what a filter may compare them with.

use super::argument::Argument;
use super::filter::Field;
use super::kind::ProbeKind;
use super::names::{
    COMM_FIELD, CPU_FIELD, FUNCTION_FIELD, IP_FIELD, PID_FIELD, RETURN_IP_FIELD, is_event_name,
};
use super::value::{ValueType, Width};

/// Kind of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// It is not known: every comparison is taken.
    Unknown,
    /// Text.
    Text,
    /// A number.
    Number {
        /// It has a sign.
        is_signed: bool,
        /// It has 64 bits.
        is_quad: bool,
    },
}

/// The fields of an event that its filter may compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldKinds {
    /// They are not known.
    Unknown,
    /// Those of a probe, or of a synthetic event.
    Known {
        /// The probe's kind; a synthetic event has none.
        probe: Option<ProbeKind>,
        /// The arguments; the fields of a synthetic event.
        arguments: Vec<(String, FieldKind)>,
        /// The last CPU that exists.
        last_cpu: u8,
    },
}

impl FieldKinds {
    /// Those of a probe of this kind, or of a synthetic event, in a guest with so many vCPUs.
    pub(crate) fn of(probe: Option<ProbeKind>, arguments: &[Argument], vcpus: u8) -> Self {
        let kind = |arg: &Argument| match arg.kind {
            ValueType::Char if arg.count.is_some() => FieldKind::Text,
            kind if kind.shows_text() => FieldKind::Text,
            kind => FieldKind::Number {
                is_signed: kind.is_signed(),
                is_quad: arg.record_bytes() == Width::Quad.bytes(),
            },
        };
        let arguments = arguments.iter().map(|arg| (arg.name.clone(), kind(arg)));
        Self::Known { probe, arguments: arguments.collect(), last_cpu: vcpus.saturating_sub(1) }
    }

    /// The last CPU that may exist.
    pub(super) fn last_cpu(&self) -> u8 {
        match self {
            Self::Unknown => u8::MAX,
            Self::Known { last_cpu, .. } => *last_cpu,
        }
    }

    /// The kind of a field; `None` if there is no such field.
    pub(super) fn find(&self, name: &str) -> Option<FieldKind> {
        let Self::Known { probe, arguments, .. } = self else {
            return is_event_name(name).then_some(FieldKind::Unknown);
        };
        if let Some((_, kind)) = arguments.iter().find(|(argument, _)| argument == name) {
            return Some(*kind);
        }
        Some(match common_field(*probe, name)? {
            Field::Comm => FieldKind::Text,
            Field::Pid | Field::Cpu => FieldKind::Number { is_signed: true, is_quad: false },
            _ => FieldKind::Number { is_signed: false, is_quad: true },
        })
    }
}

/// A field that every event of a kind has; a synthetic event has no kind.
pub(crate) fn common_field(kind: Option<ProbeKind>, name: &str) -> Option<Field> {
    Some(match (name, kind) {
        (PID_FIELD, _) => Field::Pid,
        (CPU_FIELD | "cpu" | "common_cpu", _) => Field::Cpu,
        (COMM_FIELD | "COMM", _) => Field::Comm,
        (IP_FIELD, Some(ProbeKind::Kprobe)) | (FUNCTION_FIELD, Some(ProbeKind::Kretprobe)) => {
            Field::At
        }
        (RETURN_IP_FIELD, Some(ProbeKind::Kretprobe)) => Field::ReturnedTo,
        _ => return None,
    })
}
