//! What is counted: one entry a row.

use exoprobe_probes::DisplacedBy;

/// Bodies of the loops: instructions of which the first is probed, or which exit by themselves.
pub(crate) const BODIES: [&[u8]; 4] = [NOTHING, OUT, XOR, BSWAP];
const NOTHING: &[u8] = &[];
/// out dx,al: to a port without a device.
const OUT: &[u8] = &[0xee];
/// xor edx,edx: the VMM emulates it.
const XOR: &[u8] = &[0x31, 0xd2];
/// bswap rax: runs in a slot.
const BSWAP: &[u8] = &[0x48, 0x0f, 0xc8];

/// Four registers to record.
const FOUR: [&str; 4] = ["%di", "%si", "%dx", "%cx"];

/// A loop, and the loop to compare it with.
pub(crate) struct Row {
    /// Name in the table and in the JSON.
    pub(crate) name: &'static str,
    /// Body without what is counted.
    pub(crate) plain: &'static [u8],
    /// Body with it.
    pub(crate) body: &'static [u8],
    /// The probe on the body.
    pub(crate) probe: Option<Probe>,
    /// Guest instructions, where steps do not tell: KVM counts an OUT that goes to user space as no step
    /// (its emulator) or as two (kvm_intel in Bochs).
    pub(crate) guest: Option<f64>,
}

/// A probe on a body's first instruction.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    /// How the instruction must turn out to run.
    pub(crate) displaced: DisplacedBy,
    /// Registers that each hit records, beside its time and place.
    pub(crate) args: &'static [&'static str],
    /// With a post-handler that does nothing.
    pub(crate) post_handler: bool,
}

const fn probed(
    name: &'static str,
    body: &'static [u8],
    displaced: DisplacedBy,
    args: &'static [&'static str],
) -> Row {
    let post_handler = matches!(displaced, DisplacedBy::Step);
    let probe = Some(Probe { displaced, args, post_handler });
    Row { name, plain: body, body, probe, guest: None }
}

pub(crate) const ROWS: [Row; 7] = [
    Row { name: "out, no probe", plain: NOTHING, body: OUT, probe: None, guest: Some(1.0) },
    probed("int3, emulated", XOR, DisplacedBy::Emulation, &[]),
    probed("int3, emulated, 4 registers", XOR, DisplacedBy::Emulation, &FOUR),
    probed("int3, boosted", BSWAP, DisplacedBy::Boost, &[]),
    probed("int3, boosted, 4 registers", BSWAP, DisplacedBy::Boost, &FOUR),
    probed("int3, stepped", BSWAP, DisplacedBy::Step, &[]),
    probed("int3, stepped, 4 registers", BSWAP, DisplacedBy::Step, &FOUR),
];
