//! Slot code byte by byte, at kernel addresses.

use exoprobe_vmm::addr::Gva;
use iced_x86::{Decoder, DecoderOptions};

use super::super::{AssembleError, Displaced, SLOT_SIZE, SlotKind, analyze};
use super::hex;

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
    assert!(code.len() <= SLOT_SIZE);
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
    assert_eq!(boosted("ff d0"), ["push 0ffffffff81000002h", "jmp rax"]);
    assert_eq!(boosted("2e 41 ff d3")[0], "push 0ffffffff81000004h");
    assert_eq!(boosted("3e ff d0"), ["push 0ffffffff81000003h", "notrack jmp rax"]);
    assert_eq!(boosted("ff 50 18"), ["push 0ffffffff81000003h", "jmp qword [rax+18h]"]);
    let through = boosted("ff 15 fa 0f 00 00");
    assert_eq!(through, ["push 0ffffffff81000006h", "jmp qword [rel 0ffffffff81001000h]"]);
    assert_eq!(boosted("ff 24 24"), ["jmp qword [rsp]"]);
}

#[test]
fn calls_through_the_stack_look_8_higher() {
    assert_eq!(boosted("ff 14 24")[1], "jmp qword [rsp+8]");
    assert_eq!(boosted("ff 54 24 7f")[1], "jmp qword [rsp+87h]");
    assert_eq!(boosted("ff 94 24 00 01 00 00")[1], "jmp qword [rsp+108h]");
    assert_eq!(boosted("3e ff 54 24 08")[1], "notrack jmp qword [rsp+10h]");
    let far = displaced("ff 94 24 f8 ff ff 7f").assemble(SlotKind::Boosted, SLOT);
    assert_eq!(far, Err(AssembleError::TooLong));
    // With padding prefixes the longer displacement does not fit any more.
    let padded = "2e 2e 2e 2e 2e 2e 2e 2e 2e 2e ff 54 24 08";
    let padded = displaced(padded).assemble(SlotKind::Boosted, SLOT);
    assert_eq!(padded, Err(AssembleError::TooLong));
}

#[test]
fn stepped_code_stops_behind_the_copy() {
    let code = displaced("48 8b 05 00 10 00 00").assemble(SlotKind::Stepped, SLOT);
    let code = code.expect("can be stepped");
    assert_eq!(code.stop_offset, Some(7));
    // The jmp is for whoever passes over the int3 without knowing the probe.
    let expected = ["mov rax,[rel 0ffffffff81001007h]", "int3", "jmp 0ffffffff81000007h"];
    assert_eq!(disassemble(&code.bytes), expected);
}

#[test]
fn what_leaves_cannot_be_stepped() {
    for (bytes, what) in
        [("e8 00 00 00 00", "call"), ("ff d0", "call"), ("ff e0", "indirect jmp"), ("c3", "ret")]
    {
        let displaced = displaced(bytes);
        let post = displaced.supports_post().expect_err("no post-handler");
        assert!(post.to_string().contains(&format!("behind a {what},")), "{post}");
        let stepped = displaced.assemble(SlotKind::Stepped, SLOT);
        assert_eq!(stepped, Err(AssembleError::PostUnsupported(post)));
        assert_eq!(displaced.pushes_return_address(), what == "call");
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
    assert_eq!(displaced.next(), Gva(AT.0 + 3));
    assert_eq!(displaced.text(), "mov rbp,rsp");
}
