//! Kinds of fields: what a filter may compare them with.

use exoprobe_introspect::SymbolTable;

use super::argument::Argument;
use super::filter::Field;
use super::filter_function::FilterFunction;
use super::kind::ProbeKind;
use super::names::{
    COMM_FIELD, CPU_FIELD, FUNCTION_FIELD, IP_FIELD, PID_FIELD, RETURN_IP_FIELD, TYPE_FIELD,
    is_event_name,
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
#[derive(Clone, Debug)]
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
        /// The kernel's functions, once these are known.
        symbols: Option<SymbolTable>,
    },
}

impl FieldKinds {
    /// Those of a probe of this kind, or of a synthetic event, in a guest with so many vCPUs and
    /// these functions.
    pub(crate) fn of(
        probe: Option<ProbeKind>,
        arguments: &[Argument],
        vcpus: u8,
        symbols: Option<SymbolTable>,
    ) -> Self {
        let kind = |arg: &Argument| match arg.kind {
            ValueType::Char if arg.count.is_some() => FieldKind::Text,
            kind if kind.shows_text() => FieldKind::Text,
            kind => FieldKind::Number {
                is_signed: kind.is_signed(),
                is_quad: arg.record_bytes() == Width::Quad.bytes(),
            },
        };
        let arguments = arguments.iter().map(|arg| (arg.name.clone(), kind(arg)));
        let (arguments, last_cpu) = (arguments.collect(), vcpus.saturating_sub(1));
        Self::Known { probe, arguments, last_cpu, symbols }
    }

    /// Returns false if it is known that there is no such function.
    pub(super) fn has_function(&self, function: &FilterFunction) -> bool {
        match self {
            Self::Known { symbols: Some(symbols), .. } => function.addresses(symbols).is_some(),
            Self::Known { symbols: None, .. } | Self::Unknown => true,
        }
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
            Field::Event => FieldKind::Number { is_signed: false, is_quad: false },
            Field::Pid | Field::Cpu => FieldKind::Number { is_signed: true, is_quad: false },
            _ => FieldKind::Number { is_signed: false, is_quad: true },
        })
    }
}

/// A field that every event of a kind has; a synthetic event has no kind.
pub(crate) fn common_field(kind: Option<ProbeKind>, name: &str) -> Option<Field> {
    Some(match (name, kind) {
        (TYPE_FIELD, _) => Field::Event,
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
