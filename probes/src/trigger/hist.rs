//! Histograms: hits counted by the values of their fields.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::command::{
    HITCOUNT_FIELD, Hist, HistChange, HistField, LATENCY_FIELD, Modifier, TIME_FIELD, TriggerError,
    TriggerKind,
};
use crate::budget::Share;
use crate::definition::{Argument, COMM_FIELD, CPU_FIELD, PID_FIELD, ValueType};
use crate::events::{Hit, RecordedValue, STACK_DEPTH};

/// Longest text of a key, in bytes.
const TEXT_MAX: usize = 255;
/// Longest name of a task (TASK_COMM_LEN), each byte as three of UTF-8.
const NAME_MAX: usize = 3 * 16;
/// Bytes of an entry beside its keys and sums: its place in a table that is half full at worst, and
/// the allocator's part of three blocks.
const ENTRY: usize = 176;

/// Name of the CPU, as histograms list it.
const CPU_NAME: &str = "common_cpu";
/// Name of the back-trace, as histograms list it.
const STACK_NAME: &str = "common_stacktrace";
/// Other names of fields, unless the event has an argument of the name.
const OTHER_NAMES: [(&str, &str); 3] =
    [(CPU_FIELD, CPU_NAME), ("cpu", CPU_NAME), ("stacktrace", STACK_NAME)];

/// The source of a field in a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldSource {
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
    Stack,
}

/// A field of a histogram, resolved in the event.
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

/// One key of an entry, as hits are counted by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HistogramKey {
    /// A number: with `.log2` the power, with `.buckets=N` the first of its bucket.
    Number(u64),
    /// The same, of a signed number.
    Signed(i64),
    /// A task's name, and its number.
    Task(String, u32),
    /// Text of the guest's.
    Text(String),
    /// Addresses of a back-trace, the probed place first.
    Stack(Vec<u64>),
    /// It could not be read.
    Fault,
}

/// Sums of the hits of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySums {
    pub(crate) hits: u64,
    /// The sum of each value, modulo 2^64.
    pub(crate) sums: Vec<u64>,
}

/// A histogram of an event.
#[derive(Debug)]
pub(crate) struct HistTable {
    pub(crate) hist: Hist,
    pub(crate) keys: Vec<HistColumn>,
    pub(crate) values: Vec<HistColumn>,
    pub(crate) paused: AtomicBool,
    /// Those of one name have it together.
    counted: Arc<Mutex<Counted>>,
}

/// The entries of a histogram.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Keys are shared with answers that show them.
    pub(crate) entries: HashMap<Arc<[HistogramKey]>, KeySums>,
    pub(crate) hits: u64,
    /// Hits whose key had no room.
    pub(crate) dropped: u64,
    /// The memory that the entries may take.
    _room: Option<Share>,
}

impl HistColumn {
    fn of(field: &HistField, list: &[Argument], is_return: bool) -> Result<Self, TriggerError> {
        let index = list.iter().position(|arg| arg.name == field.name);
        let name = listed_name(&field.name, list);
        let source = match (index, name) {
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
        if arg.is_some_and(|arg| arg.count.is_some()) {
            return Err(bad(field, "it is an array, which is not counted by"));
        }
        let found = Self {
            field: HistField { name: name.to_owned(), ..*field },
            is_signed: arg.is_some_and(|arg| arg.is_number() && arg.kind.is_signed()),
            is_text: arg.is_some_and(|arg| !arg.is_number()),
            kind: arg.map(|arg| arg.kind),
            source,
        };
        match found.takes(field.modifier, arg) {
            true => Ok(found),
            false => Err(bad_modifier(field, "this field has no such modifier")),
        }
    }

    fn is_number(&self, arg: Option<&Argument>) -> bool {
        match self.source {
            FieldSource::Arg(_) => arg.is_some_and(Argument::is_number),
            FieldSource::Pid
            | FieldSource::Cpu
            | FieldSource::Hits
            | FieldSource::Latency
            | FieldSource::Time => true,
            FieldSource::Comm | FieldSource::Stack => false,
        }
    }

    fn takes(&self, modifier: Modifier, arg: Option<&Argument>) -> bool {
        match modifier {
            Modifier::None => true,
            Modifier::Execname => self.source == FieldSource::Pid,
            Modifier::Usecs => matches!(self.source, FieldSource::Latency | FieldSource::Time),
            Modifier::Hex
            | Modifier::Sym
            | Modifier::SymOffset
            | Modifier::Log2
            | Modifier::Buckets(_)
            | Modifier::Syscall
            | Modifier::Percent
            | Modifier::Graph => self.is_number(arg),
        }
    }

    /// The number of a hit, sign-extended; `None` if it could not be read.
    fn number(&self, hit: &Hit) -> Option<u64> {
        let record = &hit.record;
        let nanos = |ticks| hit.origin.clock.nanos(ticks);
        let number = match self.source {
            FieldSource::Arg(index) => {
                let kind = hit.origin.fields.get(index)?.kind;
                kind.narrow((*record.args.get(index)?)?)
            }
            FieldSource::Pid => record.task?.pid.into(),
            FieldSource::Cpu => hit.vcpu.into(),
            FieldSource::Hits => 1,
            FieldSource::Latency => nanos(record.duration()?),
            FieldSource::Time => nanos(record.time),
            FieldSource::Comm | FieldSource::Stack => return None,
        };
        Some(if self.field.modifier == Modifier::Usecs { number / 1000 } else { number })
    }

    fn key(&self, hit: &Hit) -> HistogramKey {
        let cut = |text: &str| {
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let end = ends.take_while(|end| *end <= TEXT_MAX).last().unwrap_or_default();
            HistogramKey::Text(text[..end].to_owned())
        };
        match self.source {
            FieldSource::Stack => return HistogramKey::Stack(hit.record.stack.clone()),
            FieldSource::Comm => {
                return hit.record.task.map_or(HistogramKey::Fault, |task| cut(&task.name()));
            }
            FieldSource::Arg(index) => {
                let shown = hit
                    .origin
                    .fields
                    .get(index)
                    .map(|arg| RecordedValue::of(arg, &hit.record, index));
                match shown {
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
            | FieldSource::Time => {}
        }
        let Some(number) = self.number(hit) else { return HistogramKey::Fault };
        match self.field.modifier {
            Modifier::Execname => {
                let name = hit.record.task.map(|task| task.name()).unwrap_or_default();
                HistogramKey::Task(name, u32::try_from(number).unwrap_or(u32::MAX))
            }
            // The least power of two that is not below it.
            Modifier::Log2 => {
                let above = u64::BITS - number.saturating_sub(1).leading_zeros();
                HistogramKey::Number(above.into())
            }
            Modifier::Buckets(size) => HistogramKey::Number(number / size * size),
            _ if self.is_signed => HistogramKey::Signed(number.cast_signed()),
            _ => HistogramKey::Number(number),
        }
    }

    /// The most bytes of a key.
    fn most_bytes(&self) -> usize {
        size_of::<HistogramKey>()
            + match self.source {
                FieldSource::Stack => STACK_DEPTH * size_of::<u64>(),
                FieldSource::Arg(_) if self.is_text => TEXT_MAX,
                FieldSource::Comm | FieldSource::Pid => NAME_MAX,
                FieldSource::Arg(_)
                | FieldSource::Cpu
                | FieldSource::Hits
                | FieldSource::Latency
                | FieldSource::Time => 0,
            }
    }

    /// Returns true if it is a back-trace.
    pub(crate) fn is_stack(&self) -> bool {
        self.source == FieldSource::Stack
    }
}

/// The name by which a field of an event is listed.
fn listed_name<'a>(name: &'a str, list: &[Argument]) -> &'a str {
    let is_arg = list.iter().any(|arg| arg.name == name);
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name && !is_arg);
    other.map_or(name, |(_, listed)| listed)
}

impl TriggerKind {
    /// The same one with the names of fields by which triggers of the event are listed.
    pub(crate) fn with_listed_names(self, list: &[Argument]) -> Self {
        match self {
            Self::Hist(hist) => Self::Hist(hist.with_listed_names(list)),
            _ => self,
        }
    }
}

impl Hist {
    fn with_listed_names(mut self, list: &[Argument]) -> Self {
        let rename = |name: &mut String| *name = listed_name(name, list).to_owned();
        let fields = self.keys.iter_mut().chain(&mut self.values).map(|field| &mut field.name);
        fields.chain(self.sort.iter_mut().map(|key| &mut key.field)).for_each(rename);
        self
    }
}

impl HistTable {
    /// An empty one over the fields of an event.
    ///
    /// # Errors
    /// [`TriggerError::NoField`], [`TriggerError::BadField`].
    pub(crate) fn new(
        hist: &Hist,
        list: &[Argument],
        is_return: bool,
    ) -> Result<Self, TriggerError> {
        let find = |all: &[HistField]| -> Result<Vec<HistColumn>, TriggerError> {
            all.iter().map(|field| HistColumn::of(field, list, is_return)).collect()
        };
        let (keys, values) = (find(&hist.keys)?, find(&hist.values)?);
        for (value, written) in values.iter().zip(&hist.values) {
            let arg = list.iter().find(|arg| arg.name == value.field.name);
            if !value.is_number(arg) {
                return Err(bad(written, "only numbers are summed up"));
            }
            if !value.field.modifier.is_of_values() {
                let why = "a sum is shown as it is, or by .hex, .usecs, .percent or .graph";
                return Err(bad(written, why));
            }
        }
        for key in &keys {
            if !key.field.modifier.is_of_keys() {
                let why = "this modifier is for values: write it after `values=`";
                return Err(bad_modifier(&key.field, why));
            }
        }
        if hist.no_hitcount && values.is_empty() {
            return Err(TriggerError::NoValue);
        }
        Ok(Self {
            paused: AtomicBool::new(hist.change == Some(HistChange::Pause)),
            hist: hist.clone().with_listed_names(list),
            keys,
            values,
            counted: Arc::default(),
        })
    }

    /// The same one, with memory that is given back with its entries.
    pub(crate) fn within(self, room: Share) -> Self {
        self.counted()._room = Some(room);
        self
    }

    /// The same one, with the entries of another of its name.
    ///
    /// # Errors
    /// [`TriggerError::OtherOfName`].
    pub(crate) fn sharing(mut self, other: &Self) -> Result<Self, TriggerError> {
        let is_same = (&self.keys, &self.values, &self.hist.sort)
            == (&other.keys, &other.values, &other.hist.sort);
        if !is_same {
            return Err(TriggerError::OtherOfName(self.hist.name.unwrap_or_default()));
        }
        self.counted = Arc::clone(&other.counted);
        self.hist.size = other.hist.size;
        Ok(self)
    }

    /// The entries.
    pub(crate) fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most memory that the entries may take, in bytes.
    pub(crate) fn most_bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(HistColumn::most_bytes).sum();
        let sums = self.values.len() * size_of::<u64>();
        let size = usize::try_from(self.hist.size).unwrap_or(usize::MAX);
        size.saturating_mul(ENTRY + keys + sums)
    }

    /// Drops all hits.
    pub(crate) fn clear(&self) {
        let mut counted = self.counted();
        counted.entries = HashMap::new();
        (counted.hits, counted.dropped) = (0, 0);
    }

    /// Returns true if it needs the back-trace of each hit.
    pub(crate) fn wants_stack(&self) -> bool {
        self.keys.iter().any(HistColumn::is_stack)
    }

    /// Counts a hit.
    pub(crate) fn add(&self, hit: &Hit) {
        if self.paused.load(Ordering::Relaxed) {
            return;
        }
        let key: Vec<HistogramKey> = self.keys.iter().map(|key| key.key(hit)).collect();
        let Counted { entries, hits, dropped, .. } = &mut *self.counted();
        *hits += 1;
        let has_room = entries.len() < usize::try_from(self.hist.size).unwrap_or(usize::MAX);
        if !has_room && !entries.contains_key(key.as_slice()) {
            *dropped += 1;
            return;
        }
        let entry = match entries.get_mut(key.as_slice()) {
            Some(entry) => entry,
            None => entries.entry(key.into()).or_default(),
        };
        entry.hits += 1;
        entry.sums.resize(self.values.len(), 0);
        for (sum, value) in entry.sums.iter_mut().zip(&self.values) {
            *sum = sum.wrapping_add(value.number(hit).unwrap_or_default());
        }
    }
}

fn bad_modifier(field: &HistField, why: &'static str) -> TriggerError {
    TriggerError::BadModifier { field: field.clone(), why }
}

fn bad(field: &HistField, why: &'static str) -> TriggerError {
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
