//! Instruction boundaries.

use exoprobe_guest::Gva;

use super::super::{BoundaryError, check_boundary};
use super::hex;

const START: Gva = Gva(0xffff_ffff_8123_4560);

fn check(bytes: &str, offset: u64) -> Result<(), BoundaryError> {
    check_boundary(START, &hex(bytes), START.wrapping_add(offset))
}

fn undecodable(offset: u64) -> Result<(), BoundaryError> {
    Err(BoundaryError::Undecodable { at: START.wrapping_add(offset) })
}

#[test]
fn starts_and_insides() {
    // endbr64; push rbp; mov rbp,rsp; mov rax,gs:[0]; ret
    let function = "f3 0f 1e fa 55 48 89 e5 65 48 8b 04 25 00 00 00 00 c3";
    let starts = [0, 4, 5, 8, 17];
    for offset in 0..18 {
        let result = check(function, offset);
        if starts.contains(&offset) {
            assert_eq!(result, Ok(()), "{offset}");
            continue;
        }
        let start = *starts.iter().filter(|start| **start < offset).max().expect("0 is one");
        let Err(BoundaryError::Inside { insn_start, insn_text, insn_len }) = result else {
            panic!("{offset}: {result:?}");
        };
        assert_eq!(insn_start, START.wrapping_add(start));
        assert!(u64::from(insn_len) > offset - start);
        assert!(!insn_text.is_empty());
    }
    let text = check(function, 6).expect_err("inside").to_string();
    assert_eq!(
        text,
        "the address is inside the 3-byte instruction `mov rbp,rsp` at 0xffffffff81234565: a \
         breakpoint there would change it; use 0xffffffff81234565 instead"
    );
}

#[test]
fn outside() {
    let end = START.wrapping_add(2);
    let outside = Err(BoundaryError::OutsideFunction { start: START, end });
    assert_eq!(check("90 c3", 2), outside);
    assert_eq!(check("90 c3", u64::MAX), outside);
    assert_eq!(check("90 c3", 1 << 40), outside);
    let end = START;
    assert_eq!(check("", 0), Err(BoundaryError::OutsideFunction { start: START, end }));
}

#[test]
fn undecided() {
    assert_eq!(check("90 06 90", 2), undecodable(1));
    // The last instruction is cut off.
    assert_eq!(check("90 48 b8 00 00", 3), undecodable(1));
    // Intel reads 6 bytes, AMD 4.
    assert_eq!(check("66 e8 00 00 00 00 90", 6), undecodable(0));
    // What comes after the target does not matter.
    assert_eq!(check("90 90 06 06", 1), Ok(()));
}

#[test]
fn breakpoints_of_the_guest() {
    // mov eax,imm32 with an int3 on it: the rest decodes as other instructions.
    assert_eq!(check("90 cc 90 90 90 90 c3", 6), undecodable(1));
    assert_eq!(check("cc 90", 1), undecodable(0));
    // On the target itself it hides nothing in front of it.
    assert_eq!(check("90 cc 90", 1), Ok(()));
}

#[test]
fn padding_behind_what_never_falls_through() {
    for tail in ["c3", "eb 05", "ff e0", "41 ff e3", "0f 0b", "c2 08 00", "e9 00 01 00 00"] {
        let function = format!("90 {tail} cc cc cc 90 90 90 90 90 90 90 90");
        let behind = 1 + hex(tail).len() as u64 + 3;
        assert_eq!(check(&function, behind), Ok(()), "{tail}");
        assert_eq!(check(&function, behind + 2), Ok(()), "{tail}");
    }
    // A call returns.
    assert_eq!(check("e8 00 00 00 00 cc 90", 6), undecodable(5));
}

#[test]
fn padding_that_a_branch_leads_to_is_a_breakpoint() {
    // je +1 (to the int3); ret; int3 over a nop; nop
    assert_eq!(check("74 01 c3 cc 90", 4), undecodable(3));
    // The branch may be after it, and after the target.
    assert_eq!(check("90 c3 cc 90 90 74 fb", 4), undecodable(2));
}

#[test]
fn a_branch_into_an_instruction_is_a_contradiction() {
    // jmp +1 into the middle of mov eax,imm32.
    assert_eq!(check("eb 01 b8 90 90 90 90 90", 7), undecodable(2));
    assert_eq!(check("eb 01 b8 90 90 90 90 90", 2), Ok(()));
    // Behind the target it proves nothing about it.
    assert_eq!(check("90 90 b8 90 90 90 90 eb fa", 1), Ok(()));
}
