//! The synthetic events that exist. Their hits are made when those of probes are drained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use exoprobe_guest::GuestClock;
use exoprobe_introspect::TaskId;

use crate::budget::Share;
use crate::definition::Argument;
use crate::engine::arguments::list::Arguments;
use crate::engine::probe::event_filter::EventFilter;
use crate::events::{Hit, Origin, Record, TextPlace};
use crate::synthetic::{SYNTHETIC_GROUP, SYNTHETIC_TEXT_MAX, SyntheticDefinition, SyntheticType};
use crate::trigger::{SavedValue, Triggers, holds};

/// A synthetic event.
pub(crate) struct Synthetic {
    pub(crate) id: u32,
    pub(crate) definition: Arc<SyntheticDefinition>,
    pub(crate) event: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) arguments: Arguments,
    pub(crate) enabled: AtomicBool,
    pub(crate) filter: EventFilter,
    triggers: ArcSwapOption<Triggers>,
    origin: ArcSwap<Origin>,
    _room: Share,
}

/// The vCPU, time and task of the hit that causes a synthetic event, which has them too.
pub(crate) struct Cause {
    vcpu: u8,
    time: u64,
    task: Option<TaskId>,
    origin: Arc<Origin>,
}

impl Cause {
    pub(crate) fn vcpu(&self) -> u8 {
        self.vcpu
    }
}

impl From<&Hit> for Cause {
    fn from(Hit { vcpu, record, origin }: &Hit) -> Self {
        Self { vcpu: *vcpu, time: record.time, task: record.task, origin: Arc::clone(origin) }
    }
}

impl Synthetic {
    pub(crate) fn new(
        id: u32,
        definition: SyntheticDefinition,
        clock: GuestClock,
        room: Share,
    ) -> Self {
        let (group, event): (Arc<str>, Arc<str>) =
            (SYNTHETIC_GROUP.into(), (*definition.name).into());
        let arguments = Arguments { list: definition.arguments().into(), ..Arguments::default() };
        let name = (Arc::clone(&group), Arc::clone(&event), id);
        let fields = Arc::clone(&arguments.list);
        let definition = Arc::new(definition);
        let synthetic = Some(Arc::clone(&definition));
        let origin = Origin { synthetic, ..Origin::of_no_place(name, fields, clock) };
        let origin = Arc::new(origin);
        Self {
            id,
            definition,
            event,
            group,
            arguments,
            enabled: AtomicBool::new(false),
            filter: EventFilter::default(),
            triggers: ArcSwapOption::empty(),
            origin: origin.into(),
            _room: room,
        }
    }

    /// The common part of its hits, with the symbols of their cause for back-traces.
    fn origin(&self, cause: &Origin) -> Arc<Origin> {
        let known = self.origin.load_full();
        let has_stack = self.arguments.list.iter().any(Argument::is_stack);
        if !has_stack || known.has_symbols(cause.symbols.as_ref()) {
            return known;
        }
        let (group, event) = (Arc::clone(&known.group), Arc::clone(&known.event));
        let fields = Arc::clone(&known.fields);
        let origin = Arc::new(Origin {
            synthetic: known.synthetic.clone(),
            symbols: cause.symbols.clone(),
            ..Origin::of_no_place((group, event, known.event_id), fields, known.clock)
        });
        self.origin.store(Arc::clone(&origin));
        origin
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    pub(crate) fn triggers(&self) -> Option<Arc<Triggers>> {
        self.triggers.load_full()
    }

    pub(crate) fn set_triggers(&self, triggers: Option<Arc<Triggers>>) {
        self.triggers.store(triggers);
    }

    /// Returns true if a hit becomes an event.
    pub(crate) fn shows(&self, hit: &Hit) -> bool {
        self.is_enabled() && self.filter.found().is_none_or(|filter| holds(&filter, hit))
    }

    /// Makes a hit of these values.
    pub(crate) fn hit(&self, values: Vec<SavedValue>, cause: &Cause) -> Hit {
        let (mut args, mut texts) = (Vec::with_capacity(values.len()), Vec::new());
        for (field, value) in self.definition.fields.iter().zip(values) {
            args.push(match value {
                SavedValue::Number(number) => Some(number),
                SavedValue::Text(text) => {
                    let text = cut(&text, field.kind).as_bytes();
                    TextPlace::append(&mut texts, text).map(TextPlace::word)
                }
                SavedValue::Stack(stack) => {
                    let words: Vec<u8> =
                        stack.iter().flat_map(|frame| frame.to_le_bytes()).collect();
                    TextPlace::append(&mut texts, &words).map(TextPlace::word)
                }
            });
        }
        let record = Record {
            probe: self.id,
            time: cause.time,
            task: cause.task,
            returned: None,
            args,
            stack: Vec::new(),
            text: texts.into(),
        };
        Hit { origin: self.origin(&cause.origin), vcpu: cause.vcpu, record }
    }
}

/// The part of a text for which a field has room.
fn cut(text: &str, kind: SyntheticType) -> &str {
    let size = match kind {
        SyntheticType::Text(Some(size)) => size,
        SyntheticType::Text(None) | SyntheticType::Number(_) | SyntheticType::Stack(_) => {
            SYNTHETIC_TEXT_MAX
        }
    };
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end < usize::from(size)).last().unwrap_or_default();
    &text[..end]
}
