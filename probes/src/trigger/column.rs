//! Keys and values of histograms, resolved in an event.

use super::entries::{HistogramKey, SavedValue};
use super::error::TriggerError;
use super::expression::Operator;
use super::field::{HITCOUNT_FIELD, HistField, LATENCY_FIELD, Modifier, TIME_FIELD};
use crate::definition::{Argument, COMM_FIELD, CPU_FIELD, PID_FIELD, ValueType, Width};
use crate::events::{Hit, RecordedValue, STACK_DEPTH};
use crate::synthetic::TypeName;

/// Longest text of a key, in bytes.
pub(super) const TEXT_MAX: usize = 255;
/// Longest name of a task (TASK_COMM_LEN), each byte as three of UTF-8.
const NAME_MAX: usize = 3 * 16;
/// Name of the CPU, as histograms list it.
const CPU_NAME: &str = "common_cpu";
/// Name of the back-trace, as histograms list it.
const STACK_NAME: &str = "common_stacktrace";
/// Other names of fields, unless the event has an argument of the name.
const OTHER_NAMES: [(&str, &str); 3] =
    [(CPU_FIELD, CPU_NAME), ("cpu", CPU_NAME), ("stacktrace", STACK_NAME)];

/// The source of a field in a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldSource {
    Arg(usize),
    Pid,
    Cpu,
    Comm,
    /// The hit itself, as a value: 1.
    Hits,
    /// Duration of a return probe's call, in nanoseconds.
    Latency,
    /// The guest's time, in nanoseconds.
    Time,
    /// The back-trace of the hit.
    Stack,
    /// A back-trace that is a field.
    StackField(usize),
    /// An expression.
    Computed(Box<Formula>),
}

/// An expression over an event's fields and a histogram's references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Formula {
    Constant(u64),
    Field(HistColumn),
    /// An index of the references.
    Reference(usize),
    Negated(Box<Formula>),
    Operation(Box<Formula>, Operator, Box<Formula>),
}

impl Formula {
    /// Evaluates it for a hit; `read` are the values of the references. Fields that could not be
    /// read count as 0, as in the kernel.
    pub(super) fn number(&self, hit: &Hit, read: &[SavedValue]) -> u64 {
        match self {
            Self::Constant(number) => *number,
            Self::Field(column) => column.operand(hit).unwrap_or_default(),
            Self::Reference(index) => read.get(*index).map_or(0, SavedValue::number),
            Self::Negated(operand) => operand.number(hit, read).wrapping_neg(),
            Self::Operation(one, operator, other) => {
                operator.apply(one.number(hit, read), other.number(hit, read))
            }
        }
    }
}

/// A field or an expression of a histogram, resolved in the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistColumn {
    pub(crate) field: HistField,
    /// Its numbers are signed.
    pub(crate) is_signed: bool,
    /// It is an argument that is text.
    is_text: bool,
    /// An argument's type.
    kind: Option<ValueType>,
    source: FieldSource,
}

impl HistColumn {
    pub(super) fn of(
        field: &HistField,
        list: &[Argument],
        is_return: bool,
    ) -> Result<Self, TriggerError> {
        let index = list.iter().position(|arg| arg.name == field.name);
        let name = listed_name(&field.name, list);
        let source = match (index, name) {
            (Some(index), _) if list[index].is_stack() => FieldSource::StackField(index),
            (Some(index), _) => FieldSource::Arg(index),
            (None, PID_FIELD) => FieldSource::Pid,
            (None, CPU_NAME) => FieldSource::Cpu,
            (None, COMM_FIELD | "COMM") => FieldSource::Comm,
            (None, HITCOUNT_FIELD) => FieldSource::Hits,
            (None, LATENCY_FIELD) if is_return => FieldSource::Latency,
            (None, TIME_FIELD) => FieldSource::Time,
            (None, STACK_NAME) => FieldSource::Stack,
            _ => return Err(no_field(field, list, is_return)),
        };
        let arg = index.map(|index| &list[index]);
        if arg.is_some_and(|arg| arg.count.is_some() && !arg.is_stack()) {
            return Err(bad(field, "it is an array, which is not counted by"));
        }
        let found = Self {
            field: HistField { name: name.to_owned(), modifier: listed_modifier(field, &source) },
            is_signed: arg.is_some_and(|arg| arg.is_number() && arg.kind.is_signed()),
            is_text: arg.is_some_and(|arg| !arg.is_number()),
            kind: arg.map(|arg| arg.kind),
            source,
        };
        match found.takes(field.modifier) {
            true => Ok(found),
            // As in the kernel, the field is at fault.
            false if field.modifier == Modifier::Stacktrace => {
                Err(bad(field, "only back-traces of synthetic events have this modifier"))
            }
            false => Err(bad_modifier(field, "this field has no such modifier")),
        }
    }

    pub(super) fn computed(field: HistField, formula: Formula) -> Self {
        let source = FieldSource::Computed(Box::new(formula));
        Self { field, is_signed: false, is_text: false, kind: None, source }
    }

    pub(super) fn is_number(&self) -> bool {
        match self.source {
            FieldSource::Arg(_) => !self.is_text,
            FieldSource::Pid
            | FieldSource::Cpu
            | FieldSource::Hits
            | FieldSource::Latency
            | FieldSource::Time
            | FieldSource::Computed(_) => true,
            FieldSource::Comm | FieldSource::Stack | FieldSource::StackField(_) => false,
        }
    }

    /// Checks that a variable may be this field as it is.
    pub(super) fn check_variable(&self) -> Result<(), TriggerError> {
        match self.field.modifier {
            Modifier::Log2 | Modifier::Buckets(_) => {
                Err(bad(&self.field, "a variable has a number as it is, not a group of numbers"))
            }
            Modifier::Percent | Modifier::Graph => {
                Err(bad_modifier(&self.field, "this modifier is for values"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that handlers may save it.
    pub(super) fn check_saved(&self) -> Result<(), TriggerError> {
        match (self.is_stack(), self.field.modifier.is_of_keys()) {
            (true, _) => Err(bad(&self.field, "a back-trace is not saved")),
            (false, true) => Ok(()),
            (false, false) => Err(bad_modifier(&self.field, "this modifier is for values")),
        }
    }

    /// The type of its numbers, for fields of synthetic events.
    pub(super) fn type_name(&self) -> TypeName {
        let kind = match (&self.source, self.kind) {
            (FieldSource::Arg(_), Some(kind)) => kind,
            (FieldSource::Pid, _) => return TypeName::INT,
            (FieldSource::Cpu, _) => ValueType::Unsigned(Width::Double),
            _ => ValueType::Unsigned(Width::Quad),
        };
        TypeName::of(kind)
    }

    /// Returns true if both are of one type, as the kernel names it.
    pub(super) fn is_compared_as(&self, other: &Self) -> bool {
        let kind = |column: &Self| {
            let number = column.is_number().then(|| column.type_name());
            (number, column.is_stack())
        };
        kind(self) == kind(other)
    }

    fn takes(&self, modifier: Modifier) -> bool {
        match modifier {
            Modifier::None => true,
            // Not from a command: nothing is divided by it.
            Modifier::Buckets(0) => false,
            Modifier::Execname => self.source == FieldSource::Pid,
            Modifier::Stacktrace => matches!(self.source, FieldSource::StackField(_)),
            Modifier::Usecs => matches!(self.source, FieldSource::Latency | FieldSource::Time),
            Modifier::Hex
            | Modifier::Sym
            | Modifier::SymOffset
            | Modifier::Log2
            | Modifier::Buckets(_)
            | Modifier::Syscall
            | Modifier::Percent
            | Modifier::Graph => self.is_number(),
        }
    }

    /// The number of a hit, sign-extended; `None` if it could not be read. `read` are the values of
    /// the references.
    pub(super) fn number(&self, hit: &Hit, read: &[SavedValue]) -> Option<u64> {
        let record = &hit.record;
        let nanos = |ticks| hit.origin.clock.nanos(ticks);
        let number = match &self.source {
            FieldSource::Arg(index) => {
                let kind = hit.origin.fields.get(*index)?.kind;
                kind.narrow((*record.args.get(*index)?)?)
            }
            FieldSource::Pid => record.task?.pid.into(),
            FieldSource::Cpu => hit.vcpu.into(),
            FieldSource::Hits => 1,
            FieldSource::Latency => nanos(record.duration()?),
            FieldSource::Time => nanos(record.time),
            FieldSource::Computed(formula) => formula.number(hit, read),
            FieldSource::Comm | FieldSource::Stack | FieldSource::StackField(_) => return None,
        };
        Some(if self.field.modifier == Modifier::Usecs { number / 1000 } else { number })
    }

    /// The number of a hit as an operand: of `.log2` and `.buckets=N` that of its group.
    pub(super) fn operand(&self, hit: &Hit) -> Option<u64> {
        self.number(hit, &[]).map(|number| self.grouped(number))
    }

    fn grouped(&self, number: u64) -> u64 {
        match self.field.modifier {
            // The least power of two that is not below it.
            Modifier::Log2 => (u64::BITS - number.saturating_sub(1).leading_zeros()).into(),
            Modifier::Buckets(size) => number / size * size,
            _ => number,
        }
    }

    /// The bits of its numbers that the kernel compares among several keys.
    pub(super) fn mask(&self) -> u64 {
        let bits = match (&self.source, self.kind) {
            (FieldSource::Arg(_), Some(kind)) => kind.width().bits(),
            (FieldSource::Pid | FieldSource::Cpu, _) => u32::BITS,
            _ => u64::BITS,
        };
        u64::MAX >> (u64::BITS - bits)
    }

    pub(super) fn key(&self, hit: &Hit) -> HistogramKey {
        let cut = |text: &str| {
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let end = ends.take_while(|end| *end <= TEXT_MAX).last().unwrap_or_default();
            HistogramKey::Text(text[..end].to_owned())
        };
        match self.source {
            FieldSource::Stack => return HistogramKey::Stack(hit.record.stack.clone()),
            FieldSource::StackField(index) => {
                let bytes = hit.record.bytes(index).unwrap_or_default();
                return HistogramKey::Stack(frames_of(bytes));
            }
            FieldSource::Comm => {
                return hit.record.task.map_or(HistogramKey::Fault, |task| cut(&task.name()));
            }
            FieldSource::Arg(index) => {
                let arg = hit.origin.fields.get(index);
                match arg.map(|arg| RecordedValue::of(arg, &hit.record, index)) {
                    Some(RecordedValue::Text(text)) => return cut(&text),
                    Some(RecordedValue::Number(..)) => {}
                    Some(RecordedValue::Fault | RecordedValue::Array(_)) | None => {
                        return HistogramKey::Fault;
                    }
                }
            }
            FieldSource::Pid
            | FieldSource::Cpu
            | FieldSource::Hits
            | FieldSource::Latency
            | FieldSource::Time
            | FieldSource::Computed(_) => {}
        }
        let Some(number) = self.number(hit, &[]) else { return HistogramKey::Fault };
        match self.field.modifier {
            Modifier::Execname => {
                let name = hit.record.task.map(|task| task.name()).unwrap_or_default();
                HistogramKey::Task(name, u32::try_from(number).unwrap_or(u32::MAX))
            }
            Modifier::Log2 | Modifier::Buckets(_) => HistogramKey::Number(self.grouped(number)),
            _ if self.is_signed => HistogramKey::Signed(number.cast_signed()),
            _ => HistogramKey::Number(number),
        }
    }

    /// The most bytes of a key.
    pub(super) fn most_bytes(&self) -> usize {
        size_of::<HistogramKey>()
            + match self.source {
                FieldSource::Stack | FieldSource::StackField(_) => STACK_DEPTH * size_of::<u64>(),
                FieldSource::Arg(_) if self.is_text => TEXT_MAX,
                FieldSource::Comm | FieldSource::Pid => NAME_MAX,
                FieldSource::Arg(_)
                | FieldSource::Cpu
                | FieldSource::Hits
                | FieldSource::Latency
                | FieldSource::Time
                | FieldSource::Computed(_) => 0,
            }
    }

    /// Checks that hits can be counted by it.
    pub(super) fn check_key(&self) -> Result<(), TriggerError> {
        let why = "this modifier is for values: write it after `values=`";
        match self.field.modifier.is_of_keys() {
            true => Ok(()),
            false => Err(bad_modifier(&self.field, why)),
        }
    }

    /// Checks that it can be summed up; `written` is its form in the command.
    pub(super) fn check_value(&self, written: &HistField) -> Result<(), TriggerError> {
        let why = match (self.is_number(), self.field.modifier.is_of_values()) {
            (true, true) => return Ok(()),
            (false, _) => "only numbers are summed up",
            (true, false) => "a sum is shown as it is, or by .hex, .usecs, .percent or .graph",
        };
        Err(bad(written, why))
    }

    /// Returns true if it is an expression with an operator: listings leave such values out.
    pub(crate) fn is_operation(&self) -> bool {
        let FieldSource::Computed(formula) = &self.source else { return false };
        matches!(**formula, Formula::Negated(_) | Formula::Operation(..))
    }

    /// Returns true if it is an argument of the event.
    pub(crate) fn is_arg(&self) -> bool {
        matches!(self.source, FieldSource::Arg(_))
    }

    /// Returns true if it is a back-trace.
    pub(crate) fn is_stack(&self) -> bool {
        matches!(self.source, FieldSource::Stack | FieldSource::StackField(_))
    }

    /// Returns true if it is the back-trace of the hit.
    pub(super) fn takes_stack(&self) -> bool {
        self.source == FieldSource::Stack
    }
}

/// The addresses in the bytes of a field that is a back-trace.
fn frames_of(bytes: &[u8]) -> Vec<u64> {
    let (frames, _) = bytes.as_chunks();
    frames.iter().map(|frame| u64::from_le_bytes(*frame)).collect()
}

/// The modifier by which a field of an event is listed.
fn listed_modifier(field: &HistField, source: &FieldSource) -> Modifier {
    match (source, field.modifier) {
        (FieldSource::StackField(_), Modifier::None) => Modifier::Stacktrace,
        (_, modifier) => modifier,
    }
}

/// The name by which a field of an event is listed.
pub(super) fn listed_name<'a>(name: &'a str, list: &[Argument]) -> &'a str {
    let is_arg = list.iter().any(|arg| arg.name == name);
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name && !is_arg);
    other.map_or(name, |(_, listed)| listed)
}

/// Returns true if this is the name of a field that is a back-trace.
pub(super) fn is_stack_field(name: &str, list: &[Argument]) -> bool {
    list.iter().any(|arg| arg.name == name && arg.is_stack())
}

pub(super) fn bad_modifier(field: &HistField, why: &'static str) -> TriggerError {
    TriggerError::BadModifier { field: field.clone(), why }
}

pub(super) fn bad(field: &HistField, why: &'static str) -> TriggerError {
    TriggerError::BadField { field: field.to_string(), why }
}

fn no_field(field: &HistField, list: &[Argument], is_return: bool) -> TriggerError {
    let args = list.iter().map(|arg| arg.name.as_str());
    let latency = is_return.then_some(LATENCY_FIELD);
    let common = [PID_FIELD, CPU_FIELD, COMM_FIELD, TIME_FIELD, "common_stacktrace"];
    let known: Vec<&str> = args.chain(common).chain(latency).collect();
    TriggerError::NoField { name: field.name.clone(), known: known.join(", ") }
}

/// Returns true if numbers of this type are shown as symbols.
pub(crate) fn is_symbol(kind: ValueType) -> bool {
    matches!(kind, ValueType::Symbol | ValueType::SymbolText)
}
