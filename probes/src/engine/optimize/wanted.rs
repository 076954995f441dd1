//! Decides whether detours can do the work of a site's probes, and describes this work.

use std::convert::Infallible;
use std::sync::Arc;

use exoprobe_guest::Gva;

use crate::definition::{
    Action, Argument, Fetch, Field, FieldUse, Filter, Register, ReturnMode, ValueType,
};
use crate::detour::{BlockAction, DetourEnv, RETURN_VALUES, Value};
use crate::engine::arguments::legacy::argument as place_of_argument;
use crate::engine::kernel::running::Kernel;
use crate::engine::optimize::filter::SplitFilter;
use crate::engine::probe::registered::{Probe, Role};
use crate::engine::probe::site::Site;
use crate::engine::probe::site::is_internal;
use crate::engine::probe::user_texts::compared;

/// The work of a probe.
pub(crate) enum Wanted {
    /// A task at each hit.
    AtHit(BlockAction),
    /// A task at the function's return.
    AtReturn {
        /// The task.
        task: BlockAction,
        /// Values of the entry that are kept for it.
        kept: Vec<Value>,
    },
}

/// The work of each probe of a site.
pub(crate) type Work = Vec<(Arc<Probe>, Wanted)>;

/// The work of the site's probes, or the reason why a detour cannot do it.
pub(crate) fn wanted(
    allowed: bool,
    switched_on: bool,
    kernel: &Kernel,
    site: &Site,
    env: &DetourEnv,
) -> Result<Work, Arc<str>> {
    if !allowed {
        return Err("off: optimization is switched off".into());
    }
    if !switched_on || !site.armed || site.enabled().next().is_none() {
        return Err("disabled: nothing there is enabled".into());
    }
    if site.clobbered {
        return Err("clobbered: the guest rewrote its text".into());
    }
    if site.guest_int3 {
        return Err("guest: a breakpoint of the guest's own is there".into());
    }
    if !site.returning.is_empty() || !site.marks.is_empty() || is_internal(&kernel.symbols, site.at)
    {
        return Err("watched: the engine has a breakpoint of its own there".into());
    }
    if site.has_post_handler() {
        return Err("post-handler: it runs after the instruction".into());
    }
    let all = site.enabled().map(|probe| Ok((Arc::clone(probe), want(probe, env)?)));
    all.collect::<Result<_, &str>>().map_err(Arc::from)
}

/// The work of one probe.
fn want(probe: &Probe, env: &DetourEnv) -> Result<Wanted, &'static str> {
    let returns = match &probe.role {
        Role::Kprobe { pre_handler: Some(_), .. } => {
            return Err("handler: its pre-handler runs in the VMM");
        }
        Role::Kprobe { .. } => false,
        Role::Kretprobe(returns) if returns.mode == ReturnMode::Site => {
            return Err("return-mode: the places that its calls return to have int3s");
        }
        Role::Kretprobe(returns)
            if returns.handler.is_some() || returns.entry_handler.is_some() =>
        {
            return Err("handler: its handlers run in the VMM");
        }
        Role::Kretprobe(_) => true,
    };
    if probe.consumer.as_ref().is_some_and(|consumer| consumer.at_hit) {
        return Err("script: its action reads the guest's memory at the hit");
    }
    let task = match probe.actions.as_slice() {
        [Action::Count] => BlockAction::Count,
        [Action::Record] if probe.wants_stack() => {
            return Err("trigger: it records back-traces, which the VMM takes");
        }
        [Action::Record] => {
            let arguments = probe.arguments();
            let at = if returns { At::Return(&arguments.kept) } else { At::Hit };
            let list = arguments.list.iter();
            let values = list.map(|arg| argument(arg, at, env));
            let split = split_filter(probe, env)?;
            let later = split.later.as_ref();
            let compares = later.is_some_and(|filter| !compared(filter).is_empty());
            let more_texts = arguments.list.iter().flat_map(|arg| more_texts(arg, at, env));
            let texts = match compares || probe.user_texts.recorded().is_some() {
                true => probe.user_texts.arguments(&arguments.list),
                false => Vec::new(),
            };
            let texts = texts.iter().map(|text| argument(text, at, env));
            let shown = returns.then_some([Ok(Value::ReturnAddress), Ok(Value::Entered)]);
            let shown = shown.into_iter().flatten();
            let values = shown.chain(values).chain(texts).chain(more_texts);
            let values = values.collect::<Result<_, _>>()?;
            let filter = split.in_guest.map(|filter| in_guest(&filter, probe.at(), returns));
            BlockAction::Record { values, filter }
        }
        _ => return Err("actions: only `record` and `count` are done within the guest"),
    };
    Ok(match (returns, &task) {
        (false, _) => Wanted::AtHit(task),
        (true, BlockAction::Record { .. }) => Wanted::AtReturn { task, kept: kept(probe, env)? },
        (true, _) => Wanted::AtReturn { task, kept: Vec::new() },
    })
}

/// The values of the entry that a return probe records.
fn kept(probe: &Probe, env: &DetourEnv) -> Result<Vec<Value>, &'static str> {
    let arguments = probe.arguments();
    let kept = arguments.kept.iter().map(|n| {
        let place = place_of_argument(n - 1).expect("it was found");
        value(&place, At::Hit, env)
    });
    kept.collect()
}

/// The moment at which a value is read.
#[derive(Clone, Copy)]
enum At<'a> {
    /// The hit.
    Hit,
    /// The return of a call, of whose entry these arguments are kept, from 1.
    Return(&'a [u16]),
}

impl At<'_> {
    /// An argument of the entry, from 1, if it is kept.
    fn kept(self, n: u16) -> Option<Value> {
        let Self::Return(kept) = self else { return None };
        let at = kept.iter().position(|of| *of == n)?;
        u16::try_from(at).ok().map(Value::Kept)
    }
}

/// A probe's filter in its parts.
fn split_filter(probe: &Probe, env: &DetourEnv) -> Result<SplitFilter, &'static str> {
    let filter = probe.filter();
    let split = SplitFilter::of(filter.as_deref());
    let is_of_task = |field| matches!(field, Field::Pid | Field::Comm);
    if env.current.is_none() && filter.is_some_and(|filter| filter.asks_for(&is_of_task)) {
        return Err("filter: the address of the current task is not known");
    }
    Ok(split)
}

/// Moves the filter of a probe at `probed` to the values of its records: those of returns begin
/// with [`RETURN_VALUES`], of which the return address is the first.
fn in_guest(filter: &Filter<Field>, probed: Gva, returns: bool) -> Filter<Field> {
    let before = if returns { RETURN_VALUES } else { 0 };
    let place = |field: &Field| match field {
        Field::Arg { index, kind } => Field::Arg { index: index + before, kind: *kind },
        Field::Text { index } => Field::Text { index: index + before },
        Field::UserText { index } => Field::UserText { index: index + before },
        Field::At => Field::Known(probed.0),
        Field::ReturnedTo => Field::Arg { index: 0, kind: ValueType::default() },
        Field::Pid | Field::Cpu | Field::Event | Field::Comm | Field::Known(_) => *field,
    };
    let mut find = |field: &Field, _: FieldUse| Ok::<_, Infallible>(place(field));
    let Ok(moved) = filter.resolve(&mut find, &mut |_, function| match *function {});
    moved
}

/// Where code in the guest finds an argument; of an array of texts, the first
/// ([`super::text_arrays`]).
fn argument(arg: &Argument, at: At<'_>, env: &DetourEnv) -> Result<Value, &'static str> {
    if !arg.is_in_bytes() {
        return value(&arg.fetch, at, env);
    }
    if arg.is_text_array() {
        return text_of_array(arg, 0, at, env);
    }
    let array = arg.count.map(|count| usize::from(count) * arg.kind.width().bytes());
    let (offset, base, user) = match &arg.fetch {
        Fetch::Deref { offset, base, user } => (*offset, value(base, at, env)?, *user),
        Fetch::Memory(address) => (0, Value::Constant(address.0), false),
        Fetch::Stack(n) => (i64::from(*n) * 8, Value::StackPointer, false),
        _ => return Err("memory: its place is not known yet"),
    };
    let (base, user) = (Box::new(base), user || arg.kind == ValueType::UserText);
    let Some(bytes) = array else { return text((offset, base, user), env) };
    can_load(user, env)?;
    let bytes = u16::try_from(bytes).expect("64 words at most");
    Ok(Value::Array { offset, base, user, bytes })
}

/// The text at a value plus an offset, of the kernel or of a user.
fn text(
    (offset, base, user): (i64, Box<Value>, bool),
    env: &DetourEnv,
) -> Result<Value, &'static str> {
    match env.guards_loads {
        true => Ok(Value::Text { offset, base, user }),
        false => Err("text: faults of the code in the guest cannot be caught"),
    }
}

/// The texts of an array after its first; none of any other argument.
fn more_texts(
    arg: &Argument,
    at: At<'_>,
    env: &DetourEnv,
) -> impl Iterator<Item = Result<Value, &'static str>> {
    let count = if arg.is_text_array() { arg.count.unwrap_or_default() } else { 0 };
    (1..count).map(move |n| text_of_array(arg, n, at, env))
}

/// Text `n` of an argument that is an array of their addresses.
fn text_of_array(
    arg: &Argument,
    n: u8,
    at: At<'_>,
    env: &DetourEnv,
) -> Result<Value, &'static str> {
    let address = match &arg.fetch {
        Fetch::Deref { offset, base, user } => {
            let offset = offset.wrapping_add(i64::from(n) * 8);
            Fetch::Deref { offset, base: base.clone(), user: *user }
        }
        Fetch::Memory(first) => Fetch::Memory(first.wrapping_add(u64::from(n) * 8)),
        Fetch::Stack(first) => Fetch::Stack(first.saturating_add(u16::from(n))),
        _ => return Err("memory: its place is not known yet"),
    };
    let base = Box::new(value(&address, at, env)?);
    text((0, base, arg.kind == ValueType::UserText), env)
}

/// Checks whether code in the guest can load from memory of a user, or of the kernel.
fn can_load(user: bool, env: &DetourEnv) -> Result<(), &'static str> {
    if user && !env.guards_loads {
        return Err("memory: faults of the code in the guest cannot be caught");
    }
    if !user && env.mapped.is_empty() {
        return Err("memory: the kernel's permanently mapped memory is not known");
    }
    Ok(())
}

/// Where code in the guest finds the value of a fetch argument.
fn value(fetch: &Fetch, at: At<'_>, env: &DetourEnv) -> Result<Value, &'static str> {
    Ok(match fetch {
        Fetch::Register(Register::Ip) if matches!(at, At::Return(_)) => Value::ReturnAddress,
        Fetch::Register(register) => Value::Register(*register),
        Fetch::Segment(segment) => Value::Segment(*segment),
        Fetch::OrigAx => Value::Constant(u64::MAX),
        Fetch::StackPointer => Value::StackPointer,
        Fetch::ReturnValue => Value::Register(Register::Ax),
        Fetch::Stack(n) => Value::Stack(*n),
        Fetch::Memory(at) if env.mapped.iter().any(|range| range.has_word(*at)) => {
            Value::Fixed(*at)
        }
        Fetch::Constant(number) => Value::Constant(*number),
        Fetch::CurrentTask if env.current.is_some() => Value::CurrentTask,
        Fetch::CurrentTask => return Err("task: the address of the current task is not known"),
        // The value is shown from elsewhere.
        Fetch::Comm | Fetch::ConstantText(_) => Value::Constant(0),
        Fetch::Argument(n) => at.kept(*n).ok_or("parameter: its place is not known yet")?,
        Fetch::Parameter(_)
        | Fetch::AllParameters
        | Fetch::Symbol { .. }
        | Fetch::Member { .. }
        | Fetch::NameOf { .. } => return Err("parameter: its place is not known yet"),
        Fetch::Memory(_) => {
            return Err("memory: an argument reads an address that may not be mapped");
        }
        Fetch::Deref { offset, base, user } => {
            can_load(*user, env)?;
            let base = Box::new(value(base, at, env)?);
            Value::Deref { offset: *offset, base, user: *user }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detour::Mapped;

    #[test]
    fn the_texts_of_an_array_are_at_addresses_that_follow_one_another() {
        let mapped = vec![Mapped { start: Gva(0x1000), len: 0x100 }];
        let env = DetourEnv {
            rings: Gva(0),
            stride: 0,
            mask: 0,
            cpu: None,
            current: None,
            mapped,
            hidden: Mapped { start: Gva(0), len: 8 },
            guards_loads: true,
            in_kernel: true,
        };
        let texts = |fetch: Fetch, kind| {
            let arg = Argument { name: String::new(), fetch, kind, count: Some(3) };
            let first = argument(&arg, At::Hit, &env);
            let all = std::iter::once(first).chain(more_texts(&arg, At::Hit, &env));
            all.collect::<Result<Vec<_>, _>>().unwrap()
        };
        let text = |base, user| Value::Text { offset: 0, base: Box::new(base), user };
        let at = |offset| Value::Deref {
            offset,
            base: Box::new(Value::Register(Register::Si)),
            user: true,
        };
        let base = Box::new(Fetch::Register(Register::Si));
        let users = Fetch::Deref { offset: -8, base, user: true };
        assert_eq!(texts(users, ValueType::UserText), [-8, 0, 8].map(|n| text(at(n), true)));
        let fixed = [0x10e8, 0x10f0, 0x10f8].map(|at| text(Value::Fixed(Gva(at)), false));
        assert_eq!(texts(Fetch::Memory(Gva(0x10e8)), ValueType::Text), fixed);
        let stack = [7, 8, 9].map(|n| text(Value::Stack(n), false));
        assert_eq!(texts(Fetch::Stack(7), ValueType::Text), stack);
    }
}
