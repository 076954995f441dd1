//! Targets of branches: those that are found function by function are those of the whole text.

use std::ops::Range;

use exoprobe_guest::Gva;
use proptest::prelude::*;

use crate::detour::{BRANCHES_MAX, JMP_LEN, Targets};

const START: Gva = Gva(0xffff_ffff_8100_0000);

fn at(offset: u64) -> Gva {
    START.wrapping_add(offset)
}

/// The bytes of a range of a text that begins at [`START`].
fn bytes_of(text: &[u8], range: &Range<Gva>) -> Vec<u8> {
    let offset = |at: Gva| usize::try_from(at.0 - START.0).unwrap();
    text[offset(range.start)..offset(range.end)].to_vec()
}

/// Targets of a text and its functions, as a scan has them.
fn scanned(text: &[u8], functions: &[Range<Gva>]) -> Targets {
    let mut targets = Targets::new(START..at(text.len() as u64), functions.iter().cloned());
    targets.scan(BRANCHES_MAX, |function| Some(bytes_of(text, &function)));
    targets
}

#[test]
fn targets_are_those_of_branches_and_what_is_added() {
    let mut targets = Targets::new(START..at(0x100), [START..at(11), at(0x40)..at(0x42)]);
    // jz +2; jmp rax; nop; nop; call start+0x20
    let bytes = [0x74, 0x02, 0xff, 0xe0, 0x90, 0x90, 0xe8, 0x15, 0, 0, 0];
    assert_eq!(targets.function_from(START), Some(START..at(11)));
    targets.decode(START, &bytes, |_| false);
    assert_eq!(targets.function_from(START), None, "it is decoded");
    targets.add(at(0xff));
    targets.add(at(0x100));
    let found: Vec<u64> = (0..0x200).filter(|offset| targets.contains(at(*offset))).collect();
    assert_eq!(found, [0, 0x04, 0x20, 0x40, 0xff], "with the functions' starts");
    assert!(targets.follows_call(at(0x0b)));
    assert_eq!(targets.indirect_jump(START), Some(at(2)));
    // jmp to a thunk
    targets.decode(at(0x40), &[0xeb, 0x10], |to| to == at(0x52));
    assert_eq!(targets.indirect_jump(at(0x40)), Some(at(0x40)));
}

/// jmp from the last byte of a far function into the middle of another.
#[test]
fn a_long_branch_is_found_from_its_target() {
    let mut text = vec![0x90; 0x1000];
    text[0xffb..].copy_from_slice(&[0xe9, 0x03, 0xf0, 0xff, 0xff]);
    let functions = [START..at(0x100), at(0x100)..at(0xff0), at(0xff0)..at(0x1000)];
    let mut targets = scanned(&text, &functions);
    assert_eq!(targets.functions_near(START), [functions[0].clone(), functions[2].clone()]);
    targets.decode(at(0xff0), &text[0xff0..], |_| false);
    assert!(targets.contains(at(3)));
    assert_eq!(targets.functions_near(START), [functions[0].clone()]);
    assert_eq!(targets.functions_near(at(3)), [functions[0].clone()], "of its own start");
    assert_eq!(targets.functions_near(at(0x1000)), []);
}

#[test]
fn with_too_many_branches_control_may_come_anywhere() {
    let text = [0xe9, 3, 0, 0, 0, 0x90, 0xe9, 0, 0, 0, 0, 0x90, 0x90];
    let scan = |most| {
        let mut targets = Targets::new(START..at(13), [START..at(13)]);
        targets.scan(most, |function| Some(bytes_of(&text, &function)));
        targets
    };
    let (all, fewer) = (scan(2), scan(1));
    assert!(!all.contains(at(12)) && fewer.contains(at(12)) && !fewer.contains(at(13)));
    assert_eq!(fewer.functions_near(at(0)), [START..at(13)]);
}

/// Bytes of which many are branches, short and long, within a text of 1.5 KiB.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let short = prop_oneof![Just(0xeb_u8), Just(0x74), Just(0xe2), Just(0xe3)];
    let long = prop_oneof![
        Just(vec![0xe8_u8]),
        Just(vec![0xe9]),
        Just(vec![0x0f, 0x84]),
        Just(vec![0xc7, 0xf8])
    ];
    let insn = prop_oneof![
        (short, any::<u8>()).prop_map(|(opcode, displacement)| vec![opcode, displacement]),
        (long, -1500_i32..1500).prop_map(|(opcode, displacement)| [
            opcode,
            displacement.to_le_bytes().into()
        ]
        .concat()),
        prop::collection::vec(any::<u8>(), 1..6),
        Just(vec![0x90]),
        Just(vec![0xff, 0xe0]),
    ];
    prop::collection::vec(insn, 1..400).prop_map(|all| all.concat())
}

proptest! {
    #[test]
    fn what_is_asked_about_is_known_as_of_the_whole_text(
        text in text(),
        mut cuts in prop::collection::vec(0_usize..1500, 1..12),
        nested in any::<bool>(),
        asked in prop::collection::vec(0_u64..1500, 1..12),
    ) {
        cuts.push(0);
        cuts.push(text.len());
        cuts.sort_unstable();
        cuts.dedup();
        cuts.retain(|cut| *cut <= text.len());
        let offset = |cut: usize| at(cut as u64);
        let mut functions: Vec<_> =
            cuts.windows(2).map(|pair| offset(pair[0])..offset(pair[1])).collect();
        if nested {
            // The first has all others within.
            functions[0].end = offset(text.len());
        }
        let mut whole = scanned(&text, &functions);
        for function in &functions {
            whole.decode(function.start, &bytes_of(&text, function), |_| false);
        }
        let mut lazy = scanned(&text, &functions);
        for asked in asked {
            for function in lazy.functions_near(at(asked)) {
                lazy.decode(function.start, &bytes_of(&text, &function), |_| false);
            }
            for inside in 1..JMP_LEN as u64 {
                let inside = at(asked + inside);
                prop_assert_eq!(lazy.contains(inside), whole.contains(inside), "{}", inside);
            }
            prop_assert_eq!(lazy.follows_call(at(asked)), whole.follows_call(at(asked)));
        }
    }

    /// Wherever its instructions begin.
    #[test]
    fn text_of_no_function_may_lead_wherever_a_branch_in_it_does(
        text in text(),
        from in 0_usize..16,
    ) {
        let (end, from) = (at(text.len() as u64), from.min(text.len()));
        let mut any = Targets::new(START..end, []);
        let jmp = any.add_any(START, &text);
        let mut decoded = Targets::new(START..end, []);
        decoded.decode(at(from as u64), &text[from..], |_| false);
        for offset in (0..text.len() as u64).map(at) {
            prop_assert!(any.contains(offset) || !decoded.contains(offset), "{}", offset);
        }
        prop_assert!(jmp.is_some() || decoded.indirect_jump(at(from as u64)).is_none());
    }
}

#[test]
fn padding_leads_nowhere() {
    let mut padding: Vec<u8> = [0x90, 0xcc, 0].into_iter().flat_map(|byte| [byte; 40]).collect();
    for nop in [
        &[0x66, 0x90][..],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0],
        &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    ] {
        padding.extend_from_slice(nop);
    }
    let mut targets = Targets::new(START..at(0x1000), []);
    assert_eq!(targets.add_any(at(0x400), &padding), None);
    assert!((0..0x1000).all(|offset| !targets.contains(at(offset))));
    // jmp far [rax] and jmp [rip], but not call [rip], nor the ends of two calls' displacements.
    let jmp = |bytes: &[u8]| Targets::new(START..at(0x1000), []).add_any(START, bytes);
    assert_eq!(jmp(&[0x90, 0xff, 0x28]), Some(at(1)));
    assert_eq!(jmp(&[0xff, 0x25, 0, 0, 0, 0]), Some(START));
    assert_eq!(jmp(&[0xff, 0x15, 0, 0, 0, 0]), None);
    assert_eq!(jmp(&[0xe8, 0, 0, 0xff, 0xff, 0xe8, 0, 0, 0xff, 0xff]), None);
}
