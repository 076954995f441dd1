//! Every instruction of a real kernel: the text of the tests' own guest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use exoprobe_guest::Gva;
use exoprobe_introspect::SymbolTable;
use exoprobe_introspect::symbols::SymbolKind;

use super::super::decode::decode;
use super::super::{Assurances, Displaced, Refusal, SLOT_ADDRESS_OFFSET, SLOT_SIZE, SlotKind};

/// In the kernel-image GiB at its end, as far from the text as hidden memory can be.
const SLOTS: u64 = 0xffff_ffff_ff20_0000;
const SLOT_COUNT: u64 = 32_512;

/// A part of the kernel's image as it is linked.
struct Segment<'a> {
    start: u64,
    bytes: &'a [u8],
}

/// The PT_LOAD segments of an ELF64 file (its specification, "Program Header").
fn segments(elf: &[u8]) -> Vec<Segment<'_>> {
    let number = |at: usize, len: usize| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&elf[at..at + len]);
        u64::from_le_bytes(word)
    };
    let size = |at, len| usize::try_from(number(at, len)).expect("64-bit host");
    let (table, entry, count) = (size(32, 8), size(54, 2), size(56, 2));
    let headers = (0..count).map(|index| table + index * entry);
    headers
        .filter(|header| number(*header, 4) == 1)
        .map(|header| {
            let (offset, len) = (size(header + 8, 8), size(header + 32, 8));
            Segment { start: number(header + 16, 8), bytes: &elf[offset..offset + len] }
        })
        .collect()
}

/// Counts of the instructions' outcomes.
#[derive(Default)]
struct Verdicts {
    all: usize,
    emulated: usize,
    /// In a slot, and where a post-handler can be, stepped.
    boosted: usize,
    stepped: usize,
    refused: BTreeMap<String, (usize, String)>,
}

impl Verdicts {
    fn add(&mut self, bytes: &[u8], at: Gva, assurances: Assurances) {
        self.all += 1;
        let displaced = match super::super::analyze(bytes, at, assurances) {
            Ok(displaced) => displaced,
            Err(refusal) => return self.refuse(&refusal),
        };
        if displaced.emulation().is_some() {
            assert!(displaced.supports_post().is_ok());
            self.emulated += 1;
            return;
        }
        let slot = Gva(SLOTS + (self.all as u64 % SLOT_COUNT) * SLOT_SIZE as u64);
        self.boosted += 1;
        check_slot(&displaced, SlotKind::Boosted, slot);
        if displaced.supports_post().is_ok() {
            self.stepped += 1;
            check_slot(&displaced, SlotKind::Stepped, slot);
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let name = format!("{refusal:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
        let entry = self.refused.entry(name).or_insert_with(|| (0, refusal.to_string()));
        entry.0 += 1;
    }

    fn refused(&self) -> usize {
        self.refused.values().map(|(count, _)| count).sum()
    }

    fn print(&self, title: &str) {
        println!("{title}: {} instructions", self.all);
        let row = |what: &str, count: usize| {
            let share = count * 100_000 / self.all;
            println!("  {count:8} {:3}.{:03} % {what}", share / 1000, share % 1000);
        };
        row("emulated", self.emulated);
        row("boosted", self.boosted);
        row("of these, stepped as well", self.stepped);
        for (name, (count, example)) in &self.refused {
            row(&format!("refused, {name}: {example}"), *count);
        }
    }
}

fn check_slot(displaced: &Displaced, kind: SlotKind, slot: Gva) {
    let code = displaced.assemble(kind, slot);
    let code = code.unwrap_or_else(|e| panic!("{}: {}: {e}", displaced.at(), displaced.text()));
    assert!(code.bytes.len() <= SLOT_ADDRESS_OFFSET);
    assert_eq!(code.stop_offset.is_some(), kind == SlotKind::Stepped);
}

/// Calls `visit` with each instruction of each function, but for the int3s between them.
fn each_instruction(symbols: &SymbolTable, elf: &[u8], mut visit: impl FnMut(&[u8], Gva)) {
    let segments = segments(elf);
    let mut seen = BTreeSet::new();
    for symbol in symbols.iter().filter(|symbol| symbol.kind == SymbolKind::Function) {
        let Some(bounds) = symbols.function_at(symbol.address) else { continue };
        let segment = segments.iter().find(|segment| {
            bounds.start.0 >= segment.start
                && bounds.end.0 - segment.start <= segment.bytes.len() as u64
        });
        // Other names of the same function, and per-CPU data, which is linked at 0.
        let Some(segment) = segment.filter(|_| seen.insert(bounds.start)) else { continue };
        let offset = |at: Gva| usize::try_from(at.0 - segment.start).expect("in the file");
        let mut rest = &segment.bytes[offset(bounds.start)..offset(bounds.end)];
        let mut at = bounds.start;
        while !rest.is_empty() {
            if rest[0] != 0xcc {
                visit(rest, at);
            }
            let len = decode(rest, at).map_or(1, |decoded| decoded.insn.len());
            rest = &rest[len..];
            at = at.wrapping_add(len as u64);
        }
    }
}

#[test]
fn every_instruction_of_a_kernel_has_a_verdict() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/out/vmlinux");
    let Ok(elf) = std::fs::read(&path) else {
        println!("skipped: there is no {} (guest/build.sh makes it)", path.display());
        return;
    };
    let symbols = SymbolTable::from_elf(&elf).expect("the guest's kernel has symbols");
    let (mut none, mut all) = (Verdicts::default(), Verdicts::default());
    each_instruction(&symbols, &elf, |bytes, at| {
        none.add(bytes, at, Assurances::NONE);
        all.add(bytes, at, Assurances::ALL);
    });
    none.print("nothing assured");
    all.print("all assured");
    for verdicts in [&none, &all] {
        assert!(verdicts.all > 100_000, "that is no kernel");
        let sum = verdicts.emulated + verdicts.boosted + verdicts.refused();
        assert_eq!(sum, verdicts.all);
        assert!(verdicts.emulated > verdicts.all / 4 && verdicts.stepped > verdicts.all / 4);
    }
    assert!(all.refused() < none.refused());
    // Nearly all of them BUG and WARN.
    let traps = all.refused["Trap"].0;
    assert!((all.refused() - traps) * 2_000 < all.all, "less than 0.05 % besides");
    assert!(all.refused() * 100 < all.all);
}
