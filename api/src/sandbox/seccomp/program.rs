//! Filters of kinds of threads, compiled for the kernel.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

use super::call::{Arguments, Call};
use super::kind::Kind;
use super::policy::{self, Policy, Refused};

/// The filters of a thread, in the order in which they are installed: those that make a call fail
/// allow all others; of several outcomes the kernel takes the most severe.
#[derive(Debug)]
pub(super) struct Program(Vec<BpfProgram>);

impl Program {
    /// Compiles the filters of a kind.
    ///
    /// # Errors
    /// seccompiler's: a table is wrong.
    pub(super) fn of(kind: Kind) -> Result<Self, BackendError> {
        let policy = policy::of(kind);
        let mut all = Vec::new();
        for Refused { calls, errno, .. } in policy.refused {
            let errno = SeccompAction::Errno(errno.unsigned_abs());
            all.push(compile(calls.iter(), SeccompAction::Allow, errno)?);
        }
        all.push(compile(allowed(policy), SeccompAction::Trap, SeccompAction::Allow)?);
        Ok(Self(all))
    }

    /// Installs the filters for this thread, and those that it starts.
    ///
    /// # Errors
    /// The kernel's. Some may be installed.
    pub(super) fn install(&self) -> seccompiler::Result<()> {
        self.0.iter().try_for_each(|program| apply_filter(program))
    }
}

/// Calls that do not end the service: those of the kind, and of the kinds that it starts.
fn allowed(policy: Policy) -> impl Iterator<Item = &'static Call> {
    let started = policy.starts.iter().map(|kind| policy::of(*kind));
    std::iter::once(policy).chain(started).flat_map(|policy| {
        let allowed = policy.allowed.iter().flat_map(|table| table.calls);
        allowed.chain(policy.refused.iter().flat_map(|refused| refused.calls))
    })
}

fn compile(
    calls: impl Iterator<Item = &'static Call>,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    // Without rules, a call has any arguments.
    let mut all: BTreeMap<i64, Option<Vec<SeccompRule>>> = BTreeMap::new();
    for call in calls {
        let rules = all.entry(call.number).or_insert_with(|| Some(Vec::new()));
        match (rules.as_mut(), rules_of(call.arguments)?) {
            (Some(known), Some(more)) => known.extend(more),
            _ => *rules = None,
        }
    }
    let rules = all.into_iter().map(|(number, rules)| (number, rules.unwrap_or_default()));
    let filter = SeccompFilter::new(rules.collect(), otherwise, action, TargetArch::x86_64)?;
    filter.try_into()
}

/// Rules of which one must hold; `None` for any arguments.
fn rules_of(arguments: Arguments) -> Result<Option<Vec<SeccompRule>>, BackendError> {
    // The kernel looks at the lower half of all arguments that are compared.
    let rule = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        SeccompRule::new(vec![condition])
    };
    let rules = match arguments {
        Arguments::Any => return Ok(None),
        Arguments::OneOf(argument, values) => {
            let rules = values.iter().map(|it| rule(argument, SeccompCmpOp::Eq, it.value));
            rules.collect::<Result<_, _>>()?
        }
        Arguments::Without(argument, bits) => {
            vec![rule(argument, SeccompCmpOp::MaskedEq(bits.value), 0)?]
        }
        Arguments::OwnProcess => vec![rule(0, SeccompCmpOp::Eq, std::process::id().into())?],
    };
    Ok(Some(rules))
}
