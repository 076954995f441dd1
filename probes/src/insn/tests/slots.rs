//! Slot code byte by byte, at kernel addresses.

use exoprobe_guest::Gva;
use iced_x86::{Decoder, DecoderOptions};

use super::super::{AssembleError, Displaced, SLOT_ADDRESS_OFFSET, SLOT_SIZE, SlotKind};
use super::{analyze, hex};

const AT: Gva = Gva(0xffff_ffff_8100_0000);
const SLOT: Gva = Gva(0xffff_ffff_9fe0_0020);

fn displaced(bytes: &str) -> Displaced {
    analyze(&hex(bytes), AT).expect("may be probed")
}

/// The boosted slot code as text, one instruction each.
fn boosted(bytes: &str) -> Vec<String> {
    let code = displaced(bytes).assemble(SlotKind::Boosted, SLOT).expect("has boosted code");
    assert_eq!(code.stop_offset, None);
    disassemble(&code.bytes)
}

fn disassemble(code: &[u8]) -> Vec<String> {
    assert!(code.len() <= SLOT_ADDRESS_OFFSET);
    Decoder::with_ip(64, code, SLOT.0, DecoderOptions::NONE)
        .iter()
        .map(|insn| insn.to_string().to_lowercase())
        .collect()
}

#[test]
fn fall_through_code_jumps_back() {
    assert_eq!(boosted("55"), ["push rbp", "jmp 0ffffffff81000001h"]);
    let load = boosted("48 8b 05 00 10 00 00");
    assert_eq!(load, ["mov rax,[rel 0ffffffff81001007h]", "jmp 0ffffffff81000007h"]);
    let code = displaced("55").assemble(SlotKind::Boosted, SLOT).expect("has boosted code");
    assert_eq!(code.bytes, hex("55 e9 db ff 1f e1"));
}

#[test]
fn an_immediate_behind_the_displacement_counts() {
    let code = boosted("81 3d 00 10 00 00 78 56 34 12");
    assert_eq!(code, ["cmp dword [rel 0ffffffff8100100ah],12345678h", "jmp 0ffffffff8100000ah"]);
}

#[test]
fn per_cpu_operands_wrap_around_the_address_space() {
    // mov rax,gs:[rip+x] to per-CPU offset 0x1f000, as kernels are built today.
    let code = boosted("65 48 8b 05 f8 ef 01 7f");
    assert_eq!(code[0], "mov rax,[rel gs:1f000h]");
}

#[test]
fn calls_push_the_true_return_address() {
    let call = boosted("e8 fb 0f 00 00");
    assert_eq!(call, ["push 0ffffffff81000005h", "jmp 0ffffffff81001000h"]);
}

/// The slot code of an indirect call whose operand is pushed by `push`.
fn call(push: &str, return_address: u64) -> [String; 4] {
    let address = format!("mov qword [rsp+8],0{return_address:x}h");
    [push.to_owned(), "push qword [rsp]".to_owned(), address, "ret".to_owned()]
}

#[test]
fn indirect_calls_read_their_operand_first() {
    assert_eq!(boosted("ff d0"), call("push rax", 0xffff_ffff_8100_0002));
    assert_eq!(boosted("ff d4"), call("push rsp", 0xffff_ffff_8100_0002));
    assert_eq!(boosted("2e 41 ff d3"), call("push r11", 0xffff_ffff_8100_0004));
    assert_eq!(boosted("3e ff d0"), call("push rax", 0xffff_ffff_8100_0003));
    assert_eq!(boosted("ff 50 18"), call("push qword [rax+18h]", 0xffff_ffff_8100_0003));
    let through = boosted("ff 15 fa 0f 00 00");
    assert_eq!(through, call("push qword [rel 0ffffffff81001000h]", 0xffff_ffff_8100_0006));
    // RSP of before the push is meant (SDM vol. 2, PUSH), so nothing is added.
    assert_eq!(boosted("ff 14 24"), call("push qword [rsp]", 0xffff_ffff_8100_0003));
    assert_eq!(boosted("ff 54 24 f8"), call("push qword [rsp-8]", 0xffff_ffff_8100_0004));
    assert_eq!(boosted("65 ff 14 25 08 00 00 00")[0], "push qword [gs:8]");
    let code = displaced("ff d0").assemble(SlotKind::Boosted, SLOT).expect("has boosted code");
    assert_eq!(code.bytes, hex("ff f0 ff 34 24 48 c7 44 24 08 02 00 00 81 c3"));
    // What does not fit has more useless prefixes than any assembler makes.
    let fits = displaced("2e 2e 2e 2e ff 94 24 f8 ff ff 7f").assemble(SlotKind::Boosted, SLOT);
    assert_eq!(fits.map(|code| code.bytes.len()), Ok(SLOT_ADDRESS_OFFSET));
    let padded = displaced("2e 2e 2e 2e 2e ff 94 24 f8 ff ff 7f");
    assert_eq!(padded.assemble(SlotKind::Boosted, SLOT), Err(AssembleError::TooLong));
}

#[test]
fn what_leaves_is_copied() {
    assert_eq!(boosted("ff 24 24"), ["jmp qword [rsp]"]);
    assert_eq!(boosted("3e ff e0"), ["notrack jmp rax"]);
    for bytes in ["c3", "f3 c3", "c2 08 00", "48 cf", "0f 07", "48 0f 07", "cb", "48 cb"] {
        let code = displaced(bytes).assemble(SlotKind::Boosted, SLOT).expect("has boosted code");
        assert_eq!(code.bytes, hex(bytes));
    }
}

#[test]
fn a_slot_ends_with_the_address_of_its_instruction() {
    let code = displaced("c3").assemble(SlotKind::Boosted, SLOT).expect("has boosted code");
    let mut expected = [0xcc; SLOT_SIZE];
    expected[0] = 0xc3;
    expected[24..].copy_from_slice(&[0, 0, 0, 0x81, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(code.image(AT), expected);
}

#[test]
fn stepped_code_stops_behind_the_copy() {
    let code = displaced("48 8b 05 00 10 00 00").assemble(SlotKind::Stepped, SLOT);
    let code = code.expect("can be stepped");
    assert_eq!(code.stop_offset, Some(7));
    // The jmp is for a guest that passes over the int3 without the engine.
    let expected = ["mov rax,[rel 0ffffffff81001007h]", "int3", "jmp 0ffffffff81000007h"];
    assert_eq!(disassemble(&code.bytes), expected);
}

#[test]
fn a_stepped_call_stops_with_its_return_address_pushed() {
    let call = displaced("e8 fb 0f 00 00");
    let code = call.assemble(SlotKind::Stepped, SLOT).expect("can be stepped");
    assert_eq!(code.stop_offset, Some(5));
    let expected = ["push 0ffffffff81000005h", "int3", "jmp 0ffffffff81001000h"];
    assert_eq!(disassemble(&code.bytes), expected);
    assert_eq!(call.after_step(), Gva(0xffff_ffff_8100_1000));
    assert!(call.supports_post().is_ok() && call.pushes_return_address());
}

#[test]
fn what_leaves_cannot_be_stepped() {
    let calls = "indirect call";
    for (bytes, what) in [
        ("ff d0", calls),
        ("ff 15 00 00 00 00", calls),
        ("ff e0", "indirect jmp"),
        ("c3", "return"),
        ("cb", "return"),
        ("48 cf", "return"),
        ("48 0f 07", "return"),
    ] {
        let displaced = displaced(bytes);
        let post = displaced.supports_post().expect_err("no post-handler");
        assert!(post.to_string().contains(&format!("after a {what}:")), "{post}");
        let stepped = displaced.assemble(SlotKind::Stepped, SLOT);
        assert_eq!(stepped, Err(AssembleError::PostUnsupported(post)));
        assert_eq!(displaced.pushes_return_address(), what == calls);
    }
}

#[test]
fn direct_branches_are_emulated_only() {
    for bytes in ["eb 00", "e9 00 00 00 00", "74 00", "0f 84 00 00 00 00", "e2 00", "e3 00"] {
        let displaced = displaced(bytes);
        assert!(displaced.emulation().is_some() && displaced.supports_post().is_ok());
        for kind in [SlotKind::Boosted, SlotKind::Stepped] {
            assert_eq!(displaced.assemble(kind, SLOT), Err(AssembleError::EmulatedOnly));
        }
    }
}

#[test]
fn slots_out_of_reach() {
    let far = Gva(0xffff_8880_0000_0000);
    let back = displaced("55").assemble(SlotKind::Boosted, far);
    assert_eq!(back, Err(AssembleError::OutOfReach { slot: far, to: Gva(AT.0 + 1) }));
    let stepped = displaced("55").assemble(SlotKind::Stepped, far);
    assert_eq!(stepped, Err(AssembleError::OutOfReach { slot: far, to: Gva(AT.0 + 1) }));
    let load = displaced("48 8b 05 00 10 00 00").assemble(SlotKind::Stepped, far);
    assert_eq!(load, Err(AssembleError::OutOfReach { slot: far, to: Gva(AT.0 + 0x1007) }));
    assert!(displaced("c3").assemble(SlotKind::Boosted, far).is_ok());
    // 2 GiB - 1 is in reach, 2 GiB is not.
    let slot = |distance: u64| Gva(AT.wrapping_add(1).0.wrapping_sub(6 + distance));
    assert!(displaced("55").assemble(SlotKind::Boosted, slot(0x7fff_ffff)).is_ok());
    assert!(displaced("55").assemble(SlotKind::Boosted, slot(0x8000_0000)).is_err());
}

#[test]
fn accessors() {
    let displaced = displaced("48 89 e5 90 90");
    assert_eq!((displaced.at(), displaced.len()), (AT, 3));
    assert_eq!(displaced.original(), hex("48 89 e5"));
    assert_eq!((displaced.next(), displaced.after_step()), (Gva(AT.0 + 3), Gva(AT.0 + 3)));
    assert_eq!(displaced.text(), "mov rbp,rsp");
}
