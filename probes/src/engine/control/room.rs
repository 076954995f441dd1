//! The host's memory that probes and histograms may take, reckoned when they are registered: for
//! each the most that it may ever take.

use crate::budget::Exceeded;
use crate::definition::{ProbeKind, ReturnMode};
use crate::error::ProbeError;
use crate::events::EventLimits;
use crate::synthetic::SyntheticDefinition;

use crate::engine::probe::handlers::NewProbe;
use crate::engine::probe::registered::maxactive;

/// Bytes of a probe with its entries in the registry and its site: 4.2 KB were measured for a probe
/// of three arguments.
const PROBE: usize = 4096;
/// An argument, in bytes.
const ARGUMENT: usize = 256;
/// Bytes of an instance of a return probe without data of its own: 332 were measured.
const INSTANCE: usize = 352;
/// Bytes of the return addresses that a return probe in the mode `site` keeps.
const SITES: usize = 64 << 10;

/// Bounds on the host's memory that an engine takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events kept for readers.
    pub events: EventLimits,
    /// Most bytes that all probes, with the histograms of triggers, may take together. One beyond
    /// that is refused with [`ProbeError::NoMemory`].
    pub memory: usize,
}

impl Limits {
    /// Default memory for probes, in MiB: enough for 4,194,304 instances of return probes, for
    /// example.
    pub const DEFAULT_MIB: usize = 1536;
}

impl Default for Limits {
    fn default() -> Self {
        Self { events: EventLimits::default(), memory: Self::DEFAULT_MIB << 20 }
    }
}

impl From<Exceeded> for ProbeError {
    fn from(Exceeded { wanted, taken, most }: Exceeded) -> Self {
        Self::NoMemory { wanted, taken, most }
    }
}

/// The most memory that a trace instance may take whose events have so many bytes: a snapshot keeps
/// as many.
pub(crate) fn of_instance(bytes: usize) -> usize {
    PROBE.saturating_add(bytes.saturating_mul(2))
}

/// The most memory that a synthetic event may take, in bytes.
pub(crate) fn of_synthetic(definition: &SyntheticDefinition) -> usize {
    PROBE + definition.fields.len() * ARGUMENT
}

/// The most memory that a probe may take, in bytes.
pub(crate) fn cost(probe: &NewProbe, vcpus: u8) -> usize {
    let (definition, data_size) = match probe {
        NewProbe::Kprobe(probe) => (&probe.definition, 0),
        NewProbe::Kretprobe(probe) => (&probe.definition, probe.data_size),
    };
    let probe = PROBE + definition.args.len() * ARGUMENT;
    let instances = match definition.kind {
        ProbeKind::Kprobe => 0,
        ProbeKind::Kretprobe => maxactive(definition, vcpus) as usize * (INSTANCE + data_size),
    };
    let of_sites =
        definition.kind == ProbeKind::Kretprobe && definition.return_mode == ReturnMode::Site;
    probe + instances + if of_sites { SITES } else { 0 }
}
