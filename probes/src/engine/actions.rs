//! A hit's actions: handlers as data.

use exoprobe_introspect::unwind::{Place, Walk};
use exoprobe_vmm::Gva;

use super::arguments::{Argument, Arguments};
use super::backtrace::ProbedStack;
use super::handlers::{Hit, Verdict};
use super::hit::HitPath;
use super::memory::KERNEL_HALF;
use super::probe::{Probe, count};
use super::returns::RETURN_ADDRESS_LEN;
use super::table::Table;
use crate::definition::{Action, Fetch, Field, TEXT_MAX, ValueType};
use crate::events::{Shape, TextPlace};

/// Most places of a back-trace.
const STACK_DEPTH: usize = 32;

/// Bytes of a record's word.
const WORD: usize = 8;
/// Most bytes of all texts of one hit.
const TEXTS_MAX: usize = 4 * TEXT_MAX;

/// What the actions of one hit came to.
pub(super) struct Done {
    pub(super) verdict: Verdict,
    pub(super) stop: bool,
}

/// A hit of one probe: what its record says of it.
pub(super) struct Occasion<'a> {
    pub(super) probe: &'a Probe,
    /// The address probed.
    pub(super) at: Gva,
    /// Where the function returned to, of a return probe.
    pub(super) ret_addr: Option<Gva>,
}

impl HitPath {
    /// Runs a probe's actions in order.
    pub(super) fn act(&self, table: &Table, occasion: &Occasion<'_>, hit: &mut Hit<'_>) -> Done {
        let probe = occasion.probe;
        let mut done = Done { verdict: Verdict::Continue, stop: false };
        let mut records = false;
        count(&probe.books.hits);
        if !self.is_wanted(table, probe, hit) {
            count(&probe.books.filtered);
            return done;
        }
        for action in &probe.actions {
            match action {
                Action::Record => {
                    self.record(table, occasion, hit, &[]);
                    records = true;
                }
                Action::Stack => {
                    records = true;
                    let (frames, depth) = self.back_trace(table, occasion, hit);
                    self.record(table, occasion, hit, &frames[..depth]);
                }
                Action::Count => {}
                Action::SetReg { reg, value } => *reg.of_mut(hit.regs) = *value,
                Action::WriteMem { to, size, value } => write_memory(hit, to, *size, *value),
                Action::Return(value) => done.verdict = leave(hit, *value),
                Action::Stop => done.stop = true,
            }
        }
        if !records {
            count(&probe.books.filtered);
        }
        done
    }

    /// Whether the probe's filter lets the hit through.
    fn is_wanted(&self, table: &Table, probe: &Probe, hit: &mut Hit<'_>) -> bool {
        let Some(filter) = &probe.arguments().filter else { return true };
        let list = &probe.arguments().list;
        filter.holds(&mut |field| match field {
            Field::Arg { index, .. } => fetch(&list.get(index)?.fetch, hit),
            Field::Pid => {
                let tasks = table.tasks.as_ref()?;
                Some(tasks.on(hit.memory.view, hit.vcpu)?.pid.into())
            }
        })
    }

    fn record(&self, table: &Table, occasion: &Occasion<'_>, hit: &mut Hit<'_>, stack: &[u64]) {
        let Occasion { probe, ret_addr, .. } = *occasion;
        let Some(ring) = self.rings.get(usize::from(hit.vcpu)) else { return };
        let Arguments { list, may_fault, has_text, .. } = probe.arguments();
        let mut texts = Texts::default();
        let texts_at = if *has_text { texts.fetch_all(list, hit) } else { Vec::new() };
        let task = table.tasks.as_ref().and_then(|tasks| tasks.on(hit.memory.view, hit.vcpu));
        let shape = Shape {
            has_task: task.is_some(),
            is_return: ret_addr.is_some(),
            may_fault: *may_fault,
            args: u16::try_from(list.len()).unwrap_or(u16::MAX),
            stack: u16::try_from(stack.len()).unwrap_or(u16::MAX),
            text: texts.words(),
        };
        let Some(mut writer) = ring.begin(probe.id, hit.time.0, shape) else {
            return count(&probe.books.lost);
        };
        if let Some(task) = &task {
            writer.task(task);
        }
        if let Some(ret_addr) = ret_addr {
            writer.ret_addr(ret_addr.0);
        }
        let value = |(index, arg): (usize, &Argument)| match arg.kind.is_text() {
            true => texts_at[index].map(TextPlace::word),
            false => fetch(&arg.fetch, hit),
        };
        writer.args(*may_fault, list.iter().enumerate().map(value));
        writer.stack(stack);
        writer.text(&texts.bytes);
        writer.finish();
        count(&probe.books.recorded);
    }

    /// The way to a hit: the place itself, of a return where it led to, and the callers above.
    fn back_trace(
        &self,
        table: &Table,
        occasion: &Occasion<'_>,
        hit: &Hit<'_>,
    ) -> ([u64; STACK_DEPTH], usize) {
        let from = match occasion.ret_addr {
            Some(ret_addr) => Place::at(ret_addr, hit.regs).returned(),
            // At a function's entry its own frame is not made yet.
            None if occasion.probe.is_entry => Place::at(occasion.at, hit.regs).without_frame(0),
            None => Place::at(occasion.at, hit.regs),
        };
        let stack = ProbedStack { path: self, table, memory: hit.memory };
        let callers = Walk::new(table.orc.as_deref(), &stack, from);
        let all = std::iter::once(occasion.at).chain(occasion.ret_addr).chain(callers);
        let (mut frames, mut depth) = ([0; STACK_DEPTH], 0);
        for (frame, at) in frames.iter_mut().zip(all) {
            (*frame, depth) = (at.0, depth + 1);
        }
        (frames, depth)
    }
}

/// The value of a fetch argument; `None` where memory cannot be read.
fn fetch(body: &Fetch, hit: &mut Hit<'_>) -> Option<u64> {
    match body {
        Fetch::Register(register) => Some(register.of(hit.regs)),
        Fetch::StackPointer => Some(hit.regs.rsp),
        Fetch::ReturnValue => Some(hit.return_value()),
        // Registration has found where it is.
        Fetch::Parameter(_) => None,
        Fetch::Stack(_) | Fetch::Memory(_) | Fetch::Deref { .. } => {
            let at = place(body, hit)?;
            hit.read_u64(at).ok()
        }
    }
}

/// Where a fetch argument that reads memory does so.
fn place(body: &Fetch, hit: &mut Hit<'_>) -> Option<Gva> {
    match body {
        Fetch::Stack(n) => Some(Gva(hit.regs.rsp).wrapping_add(u64::from(*n) * 8)),
        Fetch::Memory(addr) => Some(*addr),
        Fetch::Deref { offset, base } => {
            Some(Gva(fetch(base, hit)?).wrapping_add(offset.cast_unsigned()))
        }
        Fetch::Register(_) | Fetch::StackPointer | Fetch::ReturnValue | Fetch::Parameter(_) => None,
    }
}

/// The texts of one hit.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
}

impl Texts {
    /// Reads those arguments that are text; gives where each is, by argument, and `None` of those that cannot be
    /// read.
    fn fetch_all(&mut self, list: &[Argument], hit: &mut Hit<'_>) -> Vec<Option<TextPlace>> {
        let mut one = |arg: &Argument| {
            if !arg.kind.is_text() {
                return None;
            }
            let at = place(&arg.fetch, hit)?;
            if arg.kind == ValueType::UserText && at.0 & KERNEL_HALF != 0 {
                return None;
            }
            let text = hit.read_text(at, TEXT_MAX - 1).ok()?.bytes;
            if self.bytes.len() + text.len() > TEXTS_MAX {
                return None;
            }
            let found = TextPlace::new(self.bytes.len(), text.len())?;
            self.bytes.extend_from_slice(&text);
            Some(found)
        };
        list.iter().map(&mut one).collect()
    }

    fn words(&self) -> u16 {
        u16::try_from(self.bytes.len().div_ceil(WORD)).expect("at most TEXTS_MAX")
    }
}

fn write_memory(hit: &mut Hit<'_>, to: &Fetch, size: u8, value: u64) {
    let Some(at) = place(to, hit) else { return };
    let bytes = value.to_le_bytes();
    // Where nothing is mapped nothing is written, as the action promises.
    let _ = hit.write(at, &bytes[..usize::from(size).min(bytes.len())]);
}

/// Leaves the function whose entry was hit; goes on into it where its return address cannot be read.
fn leave(hit: &mut Hit<'_>, value: u64) -> Verdict {
    let Some(ret_addr) = hit.memory.word(Gva(hit.regs.rsp)) else { return Verdict::Continue };
    hit.regs.rax = value;
    hit.regs.rsp = hit.regs.rsp.wrapping_add(RETURN_ADDRESS_LEN);
    hit.regs.rip = ret_addr;
    Verdict::Done
}
