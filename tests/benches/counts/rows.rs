//! The rows that are counted: one entry each.

use exoprobe_guest::Gva;
use exoprobe_probes::DisplacedBy;
use exoprobe_tests::counts::{self, KRETPROBE};
use exoprobe_tests::loops;

/// A loop's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Nothing,
    /// An exit by itself.
    Out,
    /// The VMM emulates it.
    Xor,
    /// It runs in a slot.
    Bswap,
    /// A call of [`CALLEE`].
    Call,
    /// An int3 that no engine knows.
    Int3,
}

/// All of them, in the order of the loops.
pub(crate) const BODIES: [Body; 6] =
    [Body::Nothing, Body::Out, Body::Xor, Body::Bswap, Body::Call, Body::Int3];
/// A function that does nothing but return.
pub(crate) const CALLEE: &str = "sys_ni_syscall";

impl Body {
    /// Its code; `callee` is the address of [`CALLEE`].
    pub(crate) fn code(self, callee: Gva) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            // out dx,al: to a port without a device.
            Self::Out => vec![0xee],
            // xor edx,edx
            Self::Xor => vec![0x31, 0xd2],
            // bswap rax
            Self::Bswap => vec![0x48, 0x0f, 0xc8],
            Self::Int3 => vec![0xcc],
            Self::Call => loops::call(callee),
        }
    }

    /// Which loop it is in.
    pub(crate) fn index(self) -> usize {
        BODIES.iter().position(|body| *body == self).expect("all are there")
    }
}

/// Four registers to record.
pub(crate) const FOUR: [&str; 4] = ["%di", "%si", "%dx", "%cx"];

/// A loop, and the loop to compare it with.
pub(crate) struct Row {
    /// Name in the table and in the JSON.
    pub(crate) name: &'static str,
    /// Body without what is counted.
    pub(crate) plain: Body,
    /// Body with it.
    pub(crate) body: Body,
    /// The probe on the body.
    pub(crate) probe: Option<Probe>,
    /// Guest instructions, where steps do not show them: KVM counts an OUT that goes to user space
    /// as no step (its emulator) or as two (kvm_intel in Bochs).
    pub(crate) guest: Option<f64>,
}

/// Where a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A kprobe on a body's first instruction.
    Body,
    /// A kprobe at the entry of [`CALLEE`].
    Entry,
    /// A return probe of [`CALLEE`].
    Return,
}

/// A probe whose hits are counted.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) place: Place,
    /// How the instruction must turn out to run.
    pub(crate) displaced: DisplacedBy,
    /// Registers that each hit records, beside its time and place.
    pub(crate) args: &'static [&'static str],
    /// With a post-handler that does nothing.
    pub(crate) post_handler: bool,
    /// Beside so many others in the kernel.
    pub(crate) others: usize,
    /// A jmp is in place of its int3.
    pub(crate) optimized: bool,
    /// Hits are counted, and no event is written.
    pub(crate) counts_only: bool,
    /// A script's: see [`crate::script`].
    pub(crate) script: bool,
}

impl Probe {
    /// One that records its hits by an int3.
    const fn new(place: Place, displaced: DisplacedBy) -> Self {
        Self {
            place,
            displaced,
            args: &[],
            post_handler: false,
            others: 0,
            optimized: false,
            counts_only: false,
            script: false,
        }
    }
}

const fn probed(
    name: &'static str,
    body: Body,
    displaced: DisplacedBy,
    args: &'static [&'static str],
) -> Row {
    let post_handler = matches!(displaced, DisplacedBy::Step);
    let probe = Some(Probe { args, post_handler, ..Probe::new(Place::Body, displaced) });
    Row { name, plain: body, body, probe, guest: None }
}

/// As [`probed`], where hits are only counted.
const fn counted(name: &'static str, body: Body, displaced: DisplacedBy) -> Row {
    let probe = Some(Probe { counts_only: true, ..Probe::new(Place::Body, displaced) });
    Row { name, plain: body, body, probe, guest: None }
}

/// A probe of [`CALLEE`], which begins with a mov.
const fn called(name: &'static str, probe: Probe) -> Row {
    Row { name, plain: Body::Call, body: Body::Call, probe: Some(probe), guest: None }
}

const ENTRY: Probe = Probe::new(Place::Entry, DisplacedBy::Emulation);
const SCRIPT: Probe = Probe { optimized: true, script: true, ..ENTRY };
const RETURN: Probe = Probe::new(Place::Return, DisplacedBy::Emulation);

/// The cost of a hit among [`CROWD`] others.
const fn crowded(name: &'static str) -> Row {
    let probe = Probe { others: CROWD, ..Probe::new(Place::Body, DisplacedBy::Emulation) };
    Row { name, plain: Body::Xor, body: Body::Xor, probe: Some(probe), guest: None }
}

const CROWD: usize = 10_000;

/// The least that a breakpoint can cost: a hook that reads and writes RIP. Counted in a guest of
/// its own.
pub(crate) const BARE: Row = Row {
    name: counts::BARE,
    plain: Body::Nothing,
    body: Body::Int3,
    probe: None,
    guest: Some(0.0),
};

/// The jump-optimized kprobe event of a guest's own kernel. Counted in a guest of its own.
pub(crate) const OWN_EVENT: Row =
    Row { name: counts::OWN_EVENT, plain: Body::Call, body: Body::Call, probe: None, guest: None };

/// A hit as the service has it, with filters of system calls. Counted in a guest of its own.
pub(crate) const FILTERED: Row = called(counts::FILTERED, Probe { args: &FOUR, ..ENTRY });

impl Row {
    /// How many registers each hit records.
    pub(crate) fn registers(&self) -> usize {
        let own = if self.name == counts::OWN_EVENT { FOUR.len() } else { 0 };
        self.probe.map_or(own, |probe| probe.args.len())
    }
}

pub(crate) const ROWS: [Row; 19] = [
    Row {
        name: "out, no probe",
        plain: Body::Nothing,
        body: Body::Out,
        probe: None,
        guest: Some(1.0),
    },
    counted("int3, emulated, count only", Body::Xor, DisplacedBy::Emulation),
    probed("int3, emulated", Body::Xor, DisplacedBy::Emulation, &[]),
    probed("int3, emulated, 4 registers", Body::Xor, DisplacedBy::Emulation, &FOUR),
    counted("int3, boosted, count only", Body::Bswap, DisplacedBy::Boost),
    probed("int3, boosted", Body::Bswap, DisplacedBy::Boost, &[]),
    probed("int3, boosted, 4 registers", Body::Bswap, DisplacedBy::Boost, &FOUR),
    probed("int3, stepped", Body::Bswap, DisplacedBy::Step, &[]),
    probed("int3, stepped, 4 registers", Body::Bswap, DisplacedBy::Step, &FOUR),
    called("kprobe at an entry", ENTRY),
    called(counts::BY_INT3, Probe { args: &FOUR, ..ENTRY }),
    called("optimized", Probe { optimized: true, ..ENTRY }),
    called(counts::OPTIMIZED, Probe { optimized: true, args: &FOUR, ..ENTRY }),
    called("optimized, count only", Probe { optimized: true, counts_only: true, ..ENTRY }),
    called(counts::SCRIPTS[0], SCRIPT),
    called(counts::SCRIPTS[1], Probe { args: &["%dx"], ..SCRIPT }),
    called(KRETPROBE, RETURN),
    called("kretprobe, optimized", Probe { optimized: true, ..RETURN }),
    crowded("int3, emulated, 1 of 10,001"),
];
