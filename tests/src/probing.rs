//! Probes at many places of a guest.

use std::collections::BTreeSet;

use exoprobe_guest::Gva;
use exoprobe_probes::insn::SLOT_SIZE;
use exoprobe_probes::{Batch, StatusFlag};

use crate::{TestGuest, definition, kernel_symbols};

/// jmp rel8 and jmp rel32, and the nops of their lengths (x86_nops).
const JMP_SHORT: u8 = 0xeb;
const JMP_NEAR: u8 = 0xe9;
const NOP_SHORT: [u8; 2] = [0x66, 0x90];
const NOP_NEAR: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Where the kernel's resident text begins.
fn text_start() -> Gva {
    kernel_symbols().lookup("_stext").expect("every kernel has it").address
}

/// All addresses in a function of the guest's, with the names of their probes; none if the kernel
/// does not have it.
fn bytes_of(function: &str) -> Vec<(String, Gva)> {
    let symbols = kernel_symbols();
    let Ok(symbol) = symbols.lookup_function(function) else { return Vec::new() };
    let bounds = symbols.function_at(symbol.address).expect("it is a function");
    let name = function.replace('.', "_");
    let place = |offset| (format!("{name}_{offset}"), bounds.start.wrapping_add(offset));
    (0..bounds.end.0 - bounds.start.0).map(place).collect()
}

impl TestGuest {
    /// Puts a probe `NAME_OFFSET` on each instruction of functions that takes one, where the kernel
    /// has the function. Returns their names (a dot in the function's becomes `_`) and places.
    ///
    /// # Panics
    /// When a name is the guest's symbols' and no function's.
    pub fn probe_each_instruction(
        &self,
        functions: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Vec<(String, Gva)> {
        let places = functions.into_iter().flat_map(|function| bytes_of(function.as_ref()));
        let places: Vec<(String, Gva)> = places.collect();
        let probe = |(event, at): &(String, Gva)| definition(&format!("p:{event} {at}"));
        let batch = Batch::from(places.iter().map(probe).collect::<Vec<_>>());
        let admission = self.engine.admit(batch.optional()).expect("each may be left out");
        let refused: BTreeSet<usize> = admission.refused.iter().map(|error| error.index).collect();
        let taken = places.into_iter().enumerate().filter(|(at, _)| !refused.contains(at));
        taken.map(|(_, place)| place).collect()
    }

    /// Has the optimizer pass until a probe has its jmp.
    ///
    /// # Panics
    /// When that does not come.
    pub fn optimize(&self, event: &str) {
        self.wait_until("it is optimized", |guest| {
            guest.engine.optimize();
            guest.status(event).flags.contains(&StatusFlag::Optimized)
        });
    }

    /// Probes by name count so many calls of getpid, and ten opens: by breakpoints, and then of
    /// getpid by a detour, without an exit. They stay.
    ///
    /// # Panics
    /// When they count otherwise.
    pub fn assert_counts_by_name(&self, calls: u64) {
        let getpid = || assert_eq!(self.work(&format!("getpid {calls}")), calls);
        self.probe("p:getpid __x64_sys_getpid %di");
        self.probe("r:open do_sys_openat2 $retval");
        getpid();
        assert_eq!(self.work("open /dev/null 10"), 10);
        assert_eq!((self.hits("getpid"), self.hits("open")), (calls, 10));
        self.optimize("getpid");
        let before = self.vm.exit_counts().breakpoint;
        getpid();
        assert_eq!((self.hits("getpid"), self.vm.exit_counts().breakpoint), (2 * calls, before));
    }

    /// The kernel's resident text as it is now.
    ///
    /// # Panics
    /// When it is not mapped.
    #[must_use]
    pub fn kernel_text(&self) -> Vec<u8> {
        let symbols = kernel_symbols();
        let edge = |name| symbols.lookup(name).expect("every kernel has it").address;
        let (start, end) = (edge("_stext"), edge("_etext"));
        self.bytes(start, usize::try_from(end.0 - start.0).expect("a few MiB"))
    }

    /// That the kernel's text is as it was, byte for byte.
    ///
    /// # Panics
    /// When it is not, with the places that differ.
    pub fn assert_text(&self, before: &[u8]) {
        const SHOWN: usize = 64;
        let now = self.kernel_text();
        if now == before {
            return;
        }
        let (symbols, start) = (kernel_symbols(), text_start());
        let both = (0u64..).zip(before.iter().zip(&now)).filter(|(_, (before, now))| before != now);
        let lines = both.take(SHOWN).map(|(offset, (before, now))| {
            let at = start.wrapping_add(offset);
            let place =
                symbols.resolve(at).map(|found| format!("{}+{:#x}", found.name, found.offset));
            format!("\n{at} {}: {before:02x} is {now:02x}", place.unwrap_or_default())
        });
        let lines: String = lines.collect();
        panic!("the guest's text is not as it was:{lines}");
    }

    /// A text of before with the branches of static keys as they are now, which the kernel itself
    /// turns (its random numbers' key when they are ready, some minutes after boot): from the nop
    /// to the jmp to where the key's table says, or back. What is neither stays as it was.
    #[must_use]
    pub fn with_turned_branches(&self, before: &[u8]) -> Vec<u8> {
        let (mut text, now, start) = (before.to_vec(), self.kernel_text(), text_start());
        for (at, target) in self.static_branches() {
            let Ok(offset) = usize::try_from(at.0.wrapping_sub(start.0)) else { continue };
            let distance = |len: u64| target.0.wrapping_sub(at.0.wrapping_add(len));
            let short = [JMP_SHORT, distance(2).to_le_bytes()[0]];
            let [low @ .., _, _, _, _] = distance(5).to_le_bytes();
            let near = [&[JMP_NEAR][..], &low].concat();
            let forms: [&[u8]; 4] = [&NOP_SHORT, &short, &NOP_NEAR, &near];
            let form = |bytes: &[u8]| forms.into_iter().find(|form| bytes.starts_with(form));
            if let (Some(was), Some(is)) =
                (before.get(offset..).and_then(form), now.get(offset..).and_then(form))
                && was.len() == is.len()
            {
                text[offset..offset + is.len()].copy_from_slice(is);
            }
        }
        text
    }

    /// Where the kernel has static keys' branches, and where these lead
    /// (include/linux/jump_label.h: entries of 16 bytes that begin with both, each as a distance
    /// from its own place).
    fn static_branches(&self) -> Vec<(Gva, Gva)> {
        let symbols = kernel_symbols();
        let edges = ["__start___jump_table", "__stop___jump_table"].map(|s| symbols.address_of(s));
        let [Some(start), Some(stop)] = edges else { return Vec::new() };
        let table = self.bytes(start, usize::try_from(stop.0 - start.0).expect("some KiB"));
        let entries = (0u64..).step_by(16).zip(table.chunks_exact(16));
        let both = |(offset, entry): (u64, &[u8])| {
            let place = |field: usize| {
                let distance = i32::from_le_bytes(*entry[field..].first_chunk().expect("16 bytes"));
                let own = start.wrapping_add(offset + field as u64);
                own.wrapping_add(i64::from(distance).cast_unsigned())
            };
            (place(0), place(4))
        };
        entries.map(both).collect()
    }

    /// Slots of hidden memory that hold code.
    ///
    /// # Panics
    /// When hidden memory is not mapped.
    #[must_use]
    pub fn slots_in_use(&self) -> usize {
        let hidden = self.vm.hidden();
        let window = hidden.code_window().expect("hidden memory is mapped");
        let mut code = vec![0; usize::try_from(window.len).expect("below 2 MiB")];
        hidden.read(window.offset, &mut code);
        code.chunks_exact(SLOT_SIZE).filter(|slot| slot.iter().any(|byte| *byte != 0)).count()
    }
}
