//! A hit's actions: handlers as data.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use exoprobe_guest::Gva;
use exoprobe_introspect::unwind::{Place, Walk, user_frames};
use exoprobe_introspect::{SymbolTable, TaskId};

use crate::definition::{Action, Argument, Fetch, Field, FieldValue, Filter, ValueType};
use crate::engine::arguments::list::Arguments;
use crate::engine::hit::addresses::CallTracker;
use crate::engine::hit::stack::ProbedStack;
use crate::engine::hit::table::Table;
use crate::engine::probe::fetch::{Bytes, place, read_text, text_at, word};
use crate::engine::probe::handlers::{Hit, Verdict};
use crate::engine::probe::registered::RETURN_ADDRESS_LEN;
use crate::engine::probe::registered::{Probe, count};
use crate::events::{
    Consumer, Record, RecordedHit, Returned, Ring, STACK_DEPTH, Shape, TextPlace, Writer,
    show_symbol,
};

/// The result of the actions of one hit.
pub(crate) struct Done {
    pub(crate) verdict: Verdict,
    pub(crate) stop: bool,
}

impl Done {
    /// The guest goes on.
    pub(crate) const CONTINUE: Self = Self { verdict: Verdict::Continue, stop: false };
}

/// A hit of one probe: the contents of its record.
pub(crate) struct HitInfo<'a> {
    pub(crate) probe: &'a Probe,
    pub(crate) arguments: &'a Arguments,
    /// The address probed.
    pub(crate) at: Gva,
    /// For a return probe.
    pub(crate) returned: Option<Returned>,
}

impl HitInfo<'_> {
    /// Returns true if its record has neither texts nor arrays nor a back-trace, and is for no
    /// consumer.
    #[inline]
    fn is_of_words(&self) -> bool {
        !self.probe.records_more() && !self.arguments.has_bytes && self.probe.consumer.is_none()
    }

    /// Returns true for a kprobe at a function's entry.
    fn is_entry(&self) -> bool {
        self.returned.is_none() && self.probe.is_entry
    }
}

/// A probe that stops the guest at a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Group of its event.
    pub group: Arc<str>,
    /// Name of its event.
    pub event: Arc<str>,
    /// The address probed.
    pub at: Gva,
}

/// Runs actions and writes records.
pub(crate) struct Recorder {
    /// One per vCPU.
    pub(crate) rings: Box<[Ring]>,
    /// By vCPU: the probe that stopped the guest there last.
    pub(crate) holders: Box<[ArcSwapOption<Holder>]>,
}

impl Recorder {
    /// Notes which probe stops the guest, for later queries.
    fn note_holder(&self, info: &HitInfo<'_>, vcpu: u8) {
        let Some(of_vcpu) = self.holders.get(usize::from(vcpu)) else { return };
        let (group, event) = (&info.probe.group, &info.probe.event);
        let (group, event) = (Arc::clone(group), Arc::clone(event));
        of_vcpu.store(Some(Arc::new(Holder { group, event, at: info.at })));
    }

    /// Runs a probe's actions in order, if its filter accepts the hit.
    #[inline(always)]
    pub(crate) fn act(
        &self,
        calls: &CallTracker,
        table: &Table,
        info: &HitInfo<'_>,
        hit: &mut Hit<'_>,
    ) -> Done {
        let probe = info.probe;
        count(&probe.counters.hits);
        if let Some(filter) = probe.filter()
            && !passes(&filter, table, info, hit)
        {
            count(&probe.counters.filtered);
            return Done::CONTINUE;
        }
        // Most probes have one of these alone: the others' code costs them nothing here.
        match &*probe.actions {
            [Action::Count] => {
                count(&probe.counters.filtered);
                Done::CONTINUE
            }
            [Action::Record] if info.is_of_words() => {
                self.record_words(info, hit);
                Done::CONTINUE
            }
            _ => self.act_each(calls, table, info, hit),
        }
    }

    /// Runs the actions of a probe that has several, or whose record is of more than words.
    #[inline(never)]
    fn act_each(
        &self,
        calls: &CallTracker,
        table: &Table,
        info: &HitInfo<'_>,
        hit: &mut Hit<'_>,
    ) -> Done {
        let probe = info.probe;
        let mut done = Done::CONTINUE;
        let mut records = false;
        let (symbols, texts) = (table.symbols.as_ref(), probe.user_texts.recorded());
        let texts = texts.as_ref().map_or(&[][..], |texts| texts.as_slice());
        for action in &probe.actions {
            match action {
                Action::Record | Action::Stack => {
                    records = true;
                    let result = if matches!(action, Action::Stack) || probe.wants_stack() {
                        let (frames, depth) = back_trace(calls, table, info, hit);
                        self.record(symbols, info, hit, &frames[..depth], texts)
                    } else {
                        self.record(symbols, info, hit, &[], texts)
                    };
                    if let Some(value) = result.filter(|_| info.is_entry()) {
                        done.verdict = leave(hit, value);
                    }
                }
                Action::Count => {}
                Action::SetReg { reg, value } => *reg.of_mut(hit.regs) = *value,
                Action::WriteMem { to, size, value } => write_memory(hit, to, *size, *value),
                Action::Return(value) => done.verdict = leave(hit, *value),
                Action::Stop => {
                    done.stop = true;
                    self.note_holder(info, hit.vcpu);
                }
            }
        }
        if !records {
            count(&probe.counters.filtered);
        }
        done
    }

    /// Counts and records a sample of a vCPU that stands still.
    pub(crate) fn sample(
        &self,
        symbols: &SymbolTable,
        probe: &Probe,
        hit: &mut Hit<'_>,
        stack: &[u64],
    ) {
        count(&probe.counters.hits);
        let at = Gva(hit.regs.rip);
        let arguments = &probe.arguments();
        let info = HitInfo { probe, arguments, at, returned: None };
        let _ = self.record(Some(symbols), &info, hit, stack, &[]);
    }

    /// Writes the record of a hit that is of words alone, as most are: the hit has no instructions
    /// for others' parts.
    #[inline(never)]
    fn record_words(&self, info: &HitInfo<'_>, hit: &mut Hit<'_>) {
        let Arguments { list, may_fault, .. } = info.arguments;
        let Some(mut writer) = self.begin(info, hit, list.len(), (0, 0)) else { return };
        writer.args(*may_fault, list.iter().map(|arg| word(arg, hit)));
        // Before the consumer sees the record and may undo the count.
        count(&info.probe.counters.recorded);
        writer.finish();
    }

    /// Begins a record of so many values, and of so many words of back-trace and of texts. Writes
    /// the part before the values; returns `None` if the record is lost.
    #[inline(always)]
    fn begin(
        &self,
        info: &HitInfo<'_>,
        hit: &Hit<'_>,
        values: usize,
        (stack, text): (usize, u16),
    ) -> Option<Writer<'_>> {
        let HitInfo { probe, arguments, returned, .. } = *info;
        let task = current_words(hit);
        let shape = Shape {
            has_task: task.is_some(),
            is_return: returned.is_some(),
            may_fault: arguments.may_fault,
            args: u16::try_from(values).unwrap_or(u16::MAX),
            stack: u16::try_from(stack).unwrap_or(u16::MAX),
            text,
        };
        let ring = self.rings.get(usize::from(hit.vcpu))?;
        let Some(mut writer) = ring.begin(probe.id, hit.time.0, shape) else {
            count(&probe.counters.lost);
            return None;
        };
        if let Some(task) = task {
            writer.task(task);
        }
        if let Some(returned) = returned {
            writer.returned(returned);
        }
        Some(writer)
    }

    /// Writes a record with these users' texts after its values, or gives it to the probe's
    /// consumer. Returns the consumer's result for the function.
    #[inline(never)]
    fn record(
        &self,
        symbols: Option<&SymbolTable>,
        info: &HitInfo<'_>,
        hit: &mut Hit<'_>,
        stack: &[u64],
        texts: &[Argument],
    ) -> Option<u64> {
        let HitInfo { probe, arguments, .. } = *info;
        let Arguments { list, may_fault, has_bytes, .. } = arguments;
        if let Some(Consumer { at_hit: true, .. }) = &probe.consumer {
            return hand_over(symbols, info, hit, stack);
        }
        let (mut bytes, mut bytes_at, mut texts_at) = (Bytes::default(), Vec::new(), Vec::new());
        // First: a filter that finds no text refuses the hit.
        if !texts.is_empty() {
            texts_at = bytes.fetch_all(texts, hit);
        }
        if *has_bytes {
            bytes_at = bytes.fetch_all(list, hit);
        }
        let values_len = list.len() + texts_at.len();
        let mut writer = self.begin(info, hit, values_len, (stack.len(), bytes.words()))?;
        match has_bytes {
            true => writer.args(*may_fault, values(list, &bytes_at, hit)),
            false => writer.args(*may_fault, list.iter().map(|arg| word(arg, hit))),
        }
        if !texts_at.is_empty() {
            // Of these, `may_fault` has no bits.
            writer.args(false, texts_at.iter().map(|place| Some(TextPlace::word_of(*place))));
        }
        writer.stack(stack);
        writer.text(bytes.as_slice());
        // Before the consumer sees the record and may undo the count.
        count(&probe.counters.recorded);
        writer.finish();
        None
    }
}

/// The words of all arguments; `bytes_at` has the places of those that are text or arrays.
fn values(
    list: &[Argument],
    bytes_at: &[Option<TextPlace>],
    hit: &mut Hit<'_>,
) -> impl Iterator<Item = Option<u64>> {
    let value = |(arg, place): (&Argument, &Option<TextPlace>)| match arg.is_in_bytes() {
        true => place.map(TextPlace::word),
        false => word(arg, hit),
    };
    list.iter().zip(bytes_at).map(value)
}

/// Gives a record to the probe's consumer within the hit. Returns its result for the function.
#[inline(never)]
fn hand_over(
    symbols: Option<&SymbolTable>,
    info: &HitInfo<'_>,
    hit: &mut Hit<'_>,
    stack: &[u64],
) -> Option<u64> {
    let HitInfo { probe, arguments, returned, .. } = *info;
    let Consumer { to, probe: number, .. } = probe.consumer.as_ref()?;
    let (mut bytes, list) = (Bytes::default(), &arguments.list);
    let bytes_at = bytes.fetch_all(list, hit);
    let record = Record {
        probe: probe.id,
        time: hit.time.0,
        task: current(hit),
        returned,
        args: values(list, &bytes_at, hit).collect(),
        stack: stack.to_vec(),
        text: bytes.as_slice().into(),
    };
    count(&probe.counters.recorded);
    let (fields, symbols) = (Arc::clone(list), symbols.cloned());
    let recorded = RecordedHit { vcpu: hit.vcpu, fields, record, symbols };
    to.take_at_hit(*number, recorded, hit)
}

/// Returns true if a filter accepts the hit.
#[inline(never)]
fn passes(filter: &Filter<Field>, table: &Table, info: &HitInfo<'_>, hit: &mut Hit<'_>) -> bool {
    let HitInfo { probe, arguments, returned, .. } = *info;
    let list = &arguments.list;
    filter.holds(&mut |field| match field {
        Field::Arg { index, .. } => Some(FieldValue::Word(word(list.get(index)?, hit)?)),
        Field::Event => Some(FieldValue::Word(probe.event_id().into())),
        Field::Cpu => Some(FieldValue::Word(hit.vcpu.into())),
        Field::UserText { index } => {
            let at = word(list.get(index)?, hit)?;
            Some(FieldValue::Text(text_at(Gva(at), ValueType::UserText, hit)?))
        }
        Field::Pid => Some(FieldValue::Word(current(hit)?.pid.into())),
        Field::Comm => Some(FieldValue::Text(current(hit)?.name().into_bytes())),
        Field::At => Some(FieldValue::Word(probe.at().0)),
        Field::ReturnedTo => Some(FieldValue::Word(returned?.to.0)),
        Field::Known(number) => Some(FieldValue::Word(number)),
        Field::Text { index } => {
            let arg = list.get(index)?;
            let text = match &arg.fetch {
                Fetch::Comm => current(hit)?.name().into_bytes(),
                Fetch::ConstantText(text) => text.clone().into_bytes(),
                _ if arg.kind.is_text() => read_text(arg, hit)?,
                _ => show_symbol(table.symbols.as_ref(), word(arg, hit)?).into_bytes(),
            };
            Some(FieldValue::Text(text))
        }
    })
}

/// The back-trace of a hit: the place itself, for a return the return address, then the callers;
/// then those of user mode, if the consumer asks for them.
fn back_trace(
    calls: &CallTracker,
    table: &Table,
    info: &HitInfo<'_>,
    hit: &Hit<'_>,
) -> ([u64; 2 * STACK_DEPTH], usize) {
    let ret_addr = info.returned.map(|returned| returned.to);
    let from = match ret_addr {
        Some(ret_addr) => Place::at(ret_addr, hit.regs).returned(),
        // At a function's entry its own frame does not exist yet.
        None if info.probe.is_entry => Place::at(info.at, hit.regs).without_frame(0),
        None => Place::at(info.at, hit.regs),
    };
    let stack = ProbedStack { calls, table, memory: hit.memory };
    let mut callers = Walk::new(table.orc.as_deref(), &stack, from);
    let all = std::iter::once(info.at).chain(ret_addr).chain(callers.by_ref());
    let (mut frames, mut depth) = ([0; 2 * STACK_DEPTH], 0);
    for (frame, at) in frames.iter_mut().take(STACK_DEPTH).zip(all) {
        (*frame, depth) = (at.0, depth + 1);
    }
    if info.probe.consumer.as_ref().is_some_and(|consumer| consumer.user_stack) {
        // The walk comes to user mode at its end.
        callers.by_ref().for_each(drop);
        let user = callers.user().into_iter().flat_map(|user| user_frames(&stack, user));
        let room = frames[depth..].iter_mut().take(STACK_DEPTH);
        for (frame, at) in room.zip(user) {
            (*frame, depth) = (at.0, depth + 1);
        }
    }
    (frames, depth)
}

/// The current task, if the kernel's tasks are known.
#[inline(never)]
fn current(hit: &Hit<'_>) -> Option<TaskId> {
    current_words(hit).map(TaskId::of_words)
}

/// The same as [`TaskId::words`].
#[inline(always)]
fn current_words(hit: &Hit<'_>) -> Option<[u64; 3]> {
    hit.memory.tasks?.words_on(hit.memory.view, hit.vcpu)
}

fn write_memory(hit: &mut Hit<'_>, to: &Fetch, size: u8, value: u64) {
    let Some(at) = place(to, hit) else { return };
    let bytes = value.to_le_bytes();
    // As documented for the action, nothing is written if nothing is mapped.
    let _ = hit.write(at, &bytes[..usize::from(size).min(bytes.len())]);
}

/// Leaves the function whose entry was hit. Continues in the function if its return address cannot
/// be read.
#[inline(never)]
fn leave(hit: &mut Hit<'_>, value: u64) -> Verdict {
    let Some(ret_addr) = hit.memory.word(Gva(hit.regs.rsp)) else { return Verdict::Continue };
    hit.regs.rax = value;
    hit.regs.rsp = hit.regs.rsp.wrapping_add(RETURN_ADDRESS_LEN);
    hit.regs.rip = ret_addr;
    Verdict::Done
}
