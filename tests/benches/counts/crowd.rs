//! Many other probes, all armed, of which the loop hits none.

use exoprobe_guest::Gva;
use exoprobe_probes::insn::{Assurances, analyze};
use exoprobe_probes::{Action, NewProbe, ProbeDefinition};
use exoprobe_tests::{TestGuest, kernel_symbols};

/// Largest function whose instructions are probed, in bytes: registering decodes all of it each
/// time.
const SMALL: u64 = 128;

/// Registers `count` kprobes on instructions of small functions; they go with the guest.
///
/// # Panics
/// When the kernel has not so many.
pub(crate) fn register(guest: &TestGuest, count: usize) {
    let symbols = kernel_symbols();
    let mut left = count;
    for symbol in symbols.iter() {
        if left == 0 {
            return;
        }
        let Some(bounds) = symbols.function_at(symbol.address) else { continue };
        let size = bounds.end.0 - bounds.start.0;
        if bounds.start != symbol.address || size > SMALL {
            continue;
        }
        let batch: Vec<NewProbe> =
            instructions(guest, bounds.start, size).into_iter().take(left).map(probe).collect();
        let taken = batch.len();
        // One that is refused takes its function with it.
        if guest.engine.register(batch).is_ok() {
            left -= taken;
        }
    }
    assert_eq!(left, 0, "the kernel has fewer instructions than probes are wanted");
}

fn instructions(guest: &TestGuest, start: Gva, size: u64) -> Vec<Gva> {
    let bytes = guest.bytes(start, usize::try_from(size).expect("small"));
    let (mut found, mut offset) = (Vec::new(), 0);
    while let Ok(insn) =
        analyze(&bytes[offset..], start.wrapping_add(offset as u64), Assurances::NONE)
    {
        found.push(insn.at());
        offset += usize::from(insn.len());
        if offset >= bytes.len() {
            break;
        }
    }
    found
}

/// It only counts: the guest's own business, its timer's ticks above all, hits some of them, and
/// their records would fill the ring.
fn probe(at: Gva) -> NewProbe {
    let (addr, actions) = (Some(at), vec![Action::Count]);
    ProbeDefinition { addr, actions, ..ProbeDefinition::default() }.into()
}
