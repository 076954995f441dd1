//! The probes of a script.

use std::sync::Arc;

use exoprobe_probes::definition::NAME_MAX;
use exoprobe_probes::{
    Action, Batch, BatchError, Consumer, Engine, FetchArg, HitConsumer, Kprobe, Kretprobe,
    NewProbe, NewSampler, ProbeDefinition, ProbeKind, Registration,
};
use exoprobe_script::{Attachment, AttachmentKind, Body, Program};

use super::error::ScriptError;
use super::fetch::{Fetches, Layouts, Source};
use super::fixed::FixedRead;
use super::syscalls;

/// Calls of a function that a return probe of a script follows at a time.
const MAXACTIVE: u32 = 1024;
/// Most samples a second that a script takes of each vCPU.
const SAMPLES_MAX: u64 = 1000;

/// An attachment that is to be armed, and the sources of what its bodies read.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// For each body of the attachment, in order: its number, and the sources.
    pub(super) bodies: Vec<(usize, Vec<Source>)>,
    /// The same for an attachment without a place in the guest.
    pub(super) timed: Vec<(usize, Vec<FixedRead>)>,
    /// Its probes are left out where they cannot be armed.
    is_optional: bool,
    /// None for an attachment without a place in the guest.
    definitions: Vec<ProbeDefinition>,
    /// Of a `profile`.
    samples: Option<Samples>,
    /// Back-traces go on in user mode.
    user_stack: bool,
}

impl Plan {
    /// The names of its probes' events.
    pub(super) fn events(&self) -> impl Iterator<Item = &str> {
        self.definitions.iter().filter_map(|definition| definition.event.as_deref())
    }
}

/// The values that are sampled of each vCPU, and how often.
#[derive(Clone, Debug)]
struct Samples {
    group: String,
    event: String,
    nanoseconds: u64,
    args: Vec<FetchArg>,
    stack: bool,
}

/// Plans the probes of a program; by attachment. Changes nothing.
///
/// # Errors
/// [`ScriptError::Unserved`], [`ScriptError::Unknown`], [`ScriptError::TooManyValues`],
/// [`ScriptError::TooManySamples`].
pub(super) fn plan(
    engine: &Engine,
    group: &str,
    program: &Program,
) -> Result<Vec<Plan>, ScriptError> {
    let types = engine.types().ok();
    let layouts = Layouts { task: engine.task_layout().ok(), types: types.as_deref() };
    let syscalls = || {
        let symbols = engine.symbols().ok();
        let pattern = format!("{}*", syscalls::PREFIX);
        let names = symbols.iter().flat_map(|symbols| symbols.search(&pattern));
        let calls =
            names.filter(|symbol| syscalls::is_call(&symbol.name[syscalls::PREFIX.len()..]));
        calls.map(|symbol| symbol.name.to_owned()).collect::<Vec<_>>()
    };
    check_rate(program)?;
    let attachments = program.attachments.iter().enumerate();
    let planned = attachments.map(|(index, attachment)| {
        plan_one(Named { group, index }, attachment, &program.bodies, layouts, &syscalls)
    });
    planned.collect()
}

/// The names of an attachment's probes: their group, and the attachment's index.
#[derive(Clone, Copy)]
struct Named<'a> {
    group: &'a str,
    index: usize,
}

fn plan_one(
    named: Named<'_>,
    attachment: &Attachment,
    program_bodies: &[Body],
    layouts: Layouts<'_>,
    syscalls: &dyn Fn() -> Vec<String>,
) -> Result<Plan, ScriptError> {
    let mut fetches = Fetches::new(attachment, layouts);
    let (mut bodies, mut timed) = (Vec::new(), Vec::new());
    for number in &attachment.bodies {
        let reads = &program_bodies[*number].reads;
        match has_hits(&attachment.kind) {
            true => bodies.push((*number, fetches.add(reads)?)),
            false => timed.push((*number, FixedRead::plan(attachment, reads)?)),
        }
    }
    let Fetches { args, wants_stack, user_stack, .. } = fetches;
    let group = || Some(named.group.to_owned());
    let definitions = places(&attachment.kind, syscalls).into_iter().map(|place| ProbeDefinition {
        group: group(),
        event: Some(event_name(named.index, &place)),
        args: args.clone(),
        actions: if wants_stack { vec![Action::Stack] } else { Vec::new() },
        maxactive: (place.kind == ProbeKind::Kretprobe).then_some(MAXACTIVE),
        ..place
    });
    let definitions = definitions.collect();
    let samples = match attachment.kind {
        AttachmentKind::Profile { nanoseconds } => Some(Samples {
            group: named.group.to_owned(),
            event: format!("s{}_profile", named.index),
            nanoseconds,
            args,
            stack: wants_stack,
        }),
        _ => None,
    };
    let is_optional = attachment.is_of_pattern || is_every_call(&attachment.kind);
    Ok(Plan { bodies, timed, is_optional, definitions, samples, user_stack })
}

/// Refuses more samples than the service's timers, of a millisecond, can take.
fn check_rate(program: &Program) -> Result<(), ScriptError> {
    let periods = program.attachments.iter().filter_map(|attachment| match attachment.kind {
        AttachmentKind::Profile { nanoseconds } => Some((attachment, nanoseconds)),
        _ => None,
    });
    let mut rate = 0;
    for (attachment, nanoseconds) in periods {
        rate += 1_000_000_000 / nanoseconds.max(1);
        if rate > SAMPLES_MAX {
            let place = attachment.name.to_string();
            return Err(ScriptError::TooManySamples { place, rate, max: SAMPLES_MAX });
        }
    }
    Ok(())
}

/// Returns true for what is hit in the guest, or sampled of it.
fn has_hits(kind: &AttachmentKind) -> bool {
    use AttachmentKind as Kind;
    !matches!(kind, Kind::Begin | Kind::End | Kind::Interval { .. })
}

fn is_every_call(kind: &AttachmentKind) -> bool {
    use AttachmentKind as Kind;
    matches!(kind, Kind::SyscallEnter { name: None } | Kind::SyscallExit { name: None })
}

/// The places of an attachment in the guest.
fn places(kind: &AttachmentKind, syscalls: &dyn Fn() -> Vec<String>) -> Vec<ProbeDefinition> {
    use AttachmentKind as Kind;
    let place = |kind, symbol: String, offset| ProbeDefinition {
        kind,
        symbol_name: Some(symbol),
        offset,
        ..ProbeDefinition::default()
    };
    let of_module = |module: &Option<Arc<str>>, symbol: &Arc<str>| match module {
        Some(module) => format!("{module}:{symbol}"),
        None => symbol.to_string(),
    };
    let of_call = |name: &Option<Arc<str>>| match name {
        Some(name) => vec![format!("{}{name}", syscalls::PREFIX)],
        None => syscalls(),
    };
    let all = |kind, symbols: Vec<String>| {
        symbols.into_iter().map(|symbol| place(kind, symbol, 0)).collect()
    };
    match kind {
        Kind::Begin | Kind::End | Kind::Interval { .. } | Kind::Profile { .. } => Vec::new(),
        Kind::Kprobe { module, symbol, offset } => {
            vec![place(ProbeKind::Kprobe, of_module(module, symbol), *offset)]
        }
        Kind::Kretprobe { module, symbol } => {
            vec![place(ProbeKind::Kretprobe, of_module(module, symbol), 0)]
        }
        Kind::Fentry { symbol } => vec![place(ProbeKind::Kprobe, symbol.to_string(), 0)],
        Kind::Fexit { symbol } => vec![place(ProbeKind::Kretprobe, symbol.to_string(), 0)],
        Kind::SyscallEnter { name } => all(ProbeKind::Kprobe, of_call(name)),
        Kind::SyscallExit { name } => all(ProbeKind::Kretprobe, of_call(name)),
    }
}

/// A name of its own for each probe of a script, by which users find it.
fn event_name(index: usize, place: &ProbeDefinition) -> String {
    let symbol = place.symbol_name.as_deref().unwrap_or_default();
    let letter = if place.kind == ProbeKind::Kretprobe { 'r' } else { 'p' };
    let named: String =
        symbol.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut name = format!("{letter}{index}_{named}");
    name.truncate(NAME_MAX);
    name
}

/// Arms the probes of all plans in one change of the guest. `to` takes their hits, by attachment.
/// Of several functions those that cannot be probed are left out. With `at_hit`, hits are taken at
/// once: all of them, so that all actions of a script run in order.
///
/// # Errors
/// [`ScriptError::Refused`], [`ScriptError::AllRefused`]; nothing is armed.
pub(super) fn arm(
    engine: &Engine,
    plans: &[Plan],
    to: &Arc<dyn HitConsumer>,
    at_hit: bool,
) -> Result<Armed, ScriptError> {
    let admission = engine.admit(batch(plans, to, at_hit))?;
    check_refused(admission.registered.len(), &admission.refused)?;
    let refused = admission.refused.iter().map(ToString::to_string).collect();
    Ok(Armed { registered: admission.registered, refused, samplers: Vec::new() })
}

/// The probes of all plans. Of several functions those that cannot be probed may be left out.
pub(super) fn batch(plans: &[Plan], to: &Arc<dyn HitConsumer>, at_hit: bool) -> Batch {
    let new = |number: usize, definition: &ProbeDefinition| -> NewProbe {
        let user_stack = plans[number].user_stack;
        let consumer = Some(Consumer { to: Arc::clone(to), probe: number, at_hit, user_stack });
        let definition = definition.clone();
        match definition.kind {
            ProbeKind::Kprobe => Kprobe { consumer, ..Kprobe::from(definition) }.into(),
            ProbeKind::Kretprobe => Kretprobe { consumer, ..Kretprobe::from(definition) }.into(),
        }
    };
    let probes = |is_optional: bool| {
        let plans = plans.iter().enumerate();
        let plans = plans.filter(move |(_, plan)| plan.is_optional == is_optional);
        let definitions =
            plans.flat_map(|(number, plan)| plan.definitions.iter().map(move |it| (number, it)));
        let probes = definitions.map(|(number, definition)| new(number, definition));
        Batch::from(probes.collect::<Vec<_>>())
    };
    probes(false).and(probes(true).optional())
}

/// Checks that probes are left if some are left out.
///
/// # Errors
/// [`ScriptError::AllRefused`].
pub(super) fn check_refused(armed: usize, refused: &[BatchError]) -> Result<(), ScriptError> {
    match refused.first() {
        Some(first) if armed == 0 => {
            let first = first.to_string();
            Err(ScriptError::AllRefused { count: refused.len(), first })
        }
        _ => Ok(()),
    }
}

/// Adds the samplers of all plans, each with the time between its samples. `to` takes the samples,
/// by attachment.
///
/// # Errors
/// [`ScriptError::Sampler`]; none is added.
pub(super) fn add_samplers(
    engine: &Engine,
    plans: &[Plan],
    to: &Arc<dyn HitConsumer>,
    at_hit: bool,
) -> Result<Vec<Sampler>, ScriptError> {
    let mut added: Vec<Sampler> = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        let Some(samples) = plan.samples.clone() else { continue };
        let Samples { group, event, nanoseconds, args, stack } = samples;
        let user_stack = plan.user_stack;
        let consumer = Consumer { to: Arc::clone(to), probe: number, at_hit, user_stack };
        match engine.add_sampler(NewSampler { group, event, args, stack, consumer }) {
            Ok(id) => added.push(Sampler { id, nanoseconds }),
            Err(error) => {
                added.iter().for_each(|sampler| _ = engine.remove_sampler(sampler.id));
                return Err(error.into());
            }
        }
    }
    Ok(added)
}

/// A sampler that was added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    pub(super) id: u32,
    /// Between two samples.
    pub(super) nanoseconds: u64,
}

/// The probes of a script that runs.
#[derive(Debug, Default)]
pub(super) struct Armed {
    pub(super) registered: Vec<Registration>,
    /// Functions that were left out, each with the reason.
    pub(super) refused: Vec<String>,
    pub(super) samplers: Vec<Sampler>,
}
