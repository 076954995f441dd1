//! Arbitrary guest text: boundaries, analysis and slots.
#![no_main]

use exoprobe_probes::insn::{SLOT_SIZE, SlotKind, analyze, check_boundary};
use exoprobe_vmm::Gva;
use libfuzzer_sys::fuzz_target;

const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const SLOT: Gva = Gva(0xffff_ffff_9fe0_2000);

fuzz_target!(|data: &[u8]| {
    let Some((&offset, text)) = data.split_first() else { return };
    let target = TEXT.wrapping_add(u64::from(offset));
    if check_boundary(TEXT, text, target).is_err() {
        return;
    }
    let Ok(insn) = analyze(&text[usize::from(offset)..], target) else { return };
    for kind in [SlotKind::Boosted, SlotKind::Stepped] {
        if let Ok(code) = insn.assemble(kind, SLOT) {
            assert!(code.bytes.len() <= SLOT_SIZE);
            assert_eq!(insn.assemble(kind, SLOT), Ok(code), "the same arguments, the same bytes");
        }
    }
});
