//! Arbitrary guest text: boundaries, analysis and slots.

use exoprobe_guest::Gva;
use exoprobe_probes::insn::{Assurances, SLOT_ADDRESS_OFFSET, SlotKind, analyze, check_boundary};

const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const SLOT: Gva = Gva(0xffff_ffff_9fe0_2000);

pub(crate) fn run(data: &[u8]) {
    let Some((&offset, text)) = data.split_first() else { return };
    let target = TEXT.wrapping_add(u64::from(offset));
    if check_boundary(TEXT, text, target).is_err() {
        return;
    }
    let text = &text[usize::from(offset)..];
    let Ok(insn) = analyze(text, target, Assurances::ALL) else {
        assert!(analyze(text, target, Assurances::NONE).is_err(), "less assured, more allowed");
        return;
    };
    for kind in [SlotKind::Boosted, SlotKind::Stepped] {
        if let Ok(code) = insn.assemble(kind, SLOT) {
            assert!(code.bytes.len() <= SLOT_ADDRESS_OFFSET);
            assert!(code.image(target).starts_with(&code.bytes));
            assert_eq!(insn.assemble(kind, SLOT), Ok(code), "the same arguments, the same bytes");
        }
    }
}
