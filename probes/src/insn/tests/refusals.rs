//! Refused instructions, and the reasons.

use exoprobe_guest::Gva;

use super::super::{Assurances, Refusal};
use super::{analyze, hex};

const AT: Gva = Gva(0xffff_ffff_8100_0000);

/// Why `bytes` are refused even where all is assured.
fn refusal(bytes: &str) -> Refusal {
    match analyze(&hex(bytes), AT) {
        Ok(displaced) => panic!("{bytes} ({}) is not refused", displaced.text()),
        Err(refusal) => refusal,
    }
}

/// Asserts that each of `encodings` (separated by `/`) is refused as `expected`.
macro_rules! refused {
    ($encodings:expr, $expected:pat) => {
        for bytes in $encodings.split('/') {
            let refusal = refusal(bytes);
            assert!(matches!(refusal, $expected), "{bytes}: {refusal:?}");
        }
    };
}

#[test]
fn bytes_that_are_no_certain_instruction() {
    refused!("06 00 / 0f 0a 00 / f0 90 00 / d5 00 00", Refusal::Undecodable { at: AT });
    // 16 bytes.
    refused!("66 66 66 66 66 66 66 66 66 66 66 66 66 66 66 90", Refusal::Undecodable { at: AT });
    refused!("48 8b / e8 00 00 00 / 48 / 0f", Refusal::Truncated { at: AT });
    assert_eq!(analyze(&[], AT).err(), Some(Refusal::Truncated { at: AT }));
    // AMD: 16-bit distance.
    refused!(
        "66 e8 00 00 00 00 / 66 e9 00 00 00 00 / 66 0f 84 00 00 00 00 / 66 c3",
        Refusal::VendorDependent { at: AT }
    );
    refused!("0f ff c0", Refusal::VendorDependent { at: AT });
}

#[test]
fn breakpoints_and_traps() {
    refused!("cc / 66 cc", Refusal::GuestBreakpoint { at: AT });
    refused!("0f 0b / 0f b9 c0 / 67 0f b9 40 12", Refusal::Trap { .. });
    refused!("cd 80 / cd 03 / f1", Refusal::SoftwareInterrupt { .. });
}

#[test]
fn interrupt_windows() {
    refused!("f4 / 0f 01 c9 / 0f 01 fb", Refusal::Wait { .. });
    refused!("8e d0 / 8e 10 / 48 8e d0", Refusal::InterruptShadow { .. });
}

#[test]
fn entry_code() {
    refused!("0f 05 / 0f 34 / 0f 35 / 48 0f 35 / cf / 66 cf / 0f aa", Refusal::Unvetted { .. });
    refused!("f3 0f 01 ca / f2 0f 01 ca", Refusal::Unvetted { .. });
    refused!("ff 18 / ff 28", Refusal::FarTransfer { .. });
}

/// Asserts that what is allowed of `encodings` needs `page_tables`, `faults`, or both of them.
fn needs(encodings: &str, page_tables: bool, faults: bool) {
    for bytes in encodings.split('/') {
        for (mapped_everywhere, faults_show_original) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let assurances = Assurances { faults_show_original, mapped_everywhere };
            let verdict = super::super::analyze(&hex(bytes), AT, assurances);
            let enough = (mapped_everywhere || !page_tables) && (faults_show_original || !faults);
            assert_eq!(verdict.is_ok(), enough, "{bytes} {assurances:?}: {verdict:?}");
            if let Err(refusal) = verdict {
                let expected =
                    matches!(refusal, Refusal::EntryCode { .. } | Refusal::ControlRegister { .. });
                assert!(expected, "{bytes}: {refusal:?}");
            }
        }
    }
}

#[test]
fn what_is_allowed_where_it_is_assured() {
    needs("0f 01 f8 / 0f 07 / 48 0f 07", true, false);
    needs("0f 22 c0 / 0f 22 d8 / 0f 22 e0 / 41 0f 22 d8 / 0f 01 f0 / 0f 01 30", true, false);
    needs("48 cf", true, true);
    needs("cb / 48 cb / ca 08 00 / fb / fa / 9d / 0f 20 d8", false, false);
}

#[test]
fn transactions_and_virtualization() {
    refused!("c7 f8 00 00 00 00 / c6 f8 01 / 0f 01 d5 / 0f 01 d6", Refusal::Transaction { .. });
    refused!(
        "0f 01 c1 / 0f 01 d9 / 0f 01 c2 / 0f 01 c3 / 0f 01 c4",
        Refusal::Virtualization { .. }
    );
    refused!(
        "0f 01 d8 / 0f 01 da / 0f 01 dd / 0f 78 c3 / 0f 79 c3",
        Refusal::Virtualization { .. }
    );
    refused!("0f c7 30 / 0f 01 d4 / 0f 37 / 0f 01 d7 / 0f 01 cf", Refusal::Virtualization { .. });
    refused!("66 0f 38 80 03 / f3 0f 01 d9 / 66 0f 01 cc", Refusal::Virtualization { .. });
}

#[test]
fn privileged_state() {
    // INVD, RSTORSSP, INCSSPQ, PCONFIG.
    refused!("0f 08 / f3 0f 01 28 / f3 48 0f ae e8 / 0f 01 c5", Refusal::Unvetted { .. });
}

#[test]
fn operands_that_cannot_move() {
    refused!("67 48 8b 05 00 00 00 00 / 67 8d 05 00 00 00 00", Refusal::EipRelative { .. });
    refused!(
        "67 ff 10 / 66 cb / f2 ff d0 / f2 e8 00 00 00 00 / f3 74 00 / f2 eb 00",
        Refusal::Prefix { .. }
    );
}

#[test]
fn addresses_out_of_range() {
    let refused = |bytes: &str, at| analyze(&hex(bytes), Gva(at)).err();
    // A call in code that is not in the top (or bottom) 2 GiB.
    for call in ["e8 00 00 00 00", "ff d0", "ff 10"] {
        let refusal = refused(call, 0xffff_8880_0000_0000);
        assert!(matches!(refusal, Some(Refusal::ReturnAddress { .. })), "{call}: {refusal:?}");
    }
    assert!(refused("e8 00 00 00 00", 0x7fff_fff0).is_none());
    assert!(refused("e8 00 00 00 00", 0x7fff_fffb).is_some());
    assert!(refused("e8 00 00 00 00", 0xffff_ffff_8000_0000).is_none());
    assert!(refused("e8 00 00 00 00", 0xffff_ffff_7fff_fffa).is_some());
    // A branch to where no address is, with 4- and 5-level paging.
    for at in [0xffff_8000_0000_0000, 0xff00_0000_0000_0000] {
        let refusal = refused("e9 00 00 ff ff", at);
        assert!(matches!(refusal, Some(Refusal::Target { .. })), "{refusal:?}");
        assert!(refused("e9 00 01 00 00", at).is_none());
    }
}

#[test]
fn what_is_near_a_refused_one_is_not_refused() {
    let allowed = "fa / 0f 06 / 0f 20 d8 / 0f 20 c0 / 0f 22 d0 / 44 0f 22 c0 / 0f 23 f8 / 0f 32 / \
        0f 30 / 0f 31 / 0f a2 / 0f 01 38 / 0f 01 10 / 0f 01 18 / 0f 00 d8 / ec / ef / e4 60 / 6e / \
        8e d8 / 8e e0 / 0f a1 / 0f b2 00 / 9c / 9d / 0f 09 / 0f 01 d1 / 0f 01 ca / 0f 01 cb / 0f ae 00 / \
        48 0f c7 18 / f3 48 0f ae d8 / 9b / db e3 / 0f 01 c8 / 66 0f 38 82 00 / f3 c3 / ff e4 / ff d4 / ff 54 24 f8 / ff 54 04 08 / \
        ff 54 24 00 / f3 0f 1e c8 / 0f 0d c0";
    for bytes in allowed.split('/') {
        if let Err(refusal) = analyze(&hex(bytes), AT) {
            // RDSSP is the one exception.
            assert!(bytes.contains("1e c8"), "{bytes}: {refusal}");
        }
    }
}

#[test]
fn texts_say_what_why_and_what_instead() {
    let samples = "06 / 48 / 66 c3 / cc / 0f 0b / f4 / 8e d0 / cf / ff 18 / cd 80 / 0f 01 d5 / 0f 01 c1 / \
        0f 08 / 67 48 8b 05 00 00 00 00 / f2 ff d0";
    for bytes in samples.split('/') {
        let text = refusal(bytes).to_string();
        assert!(text.contains("probe"), "{text}");
        assert!(text.contains(&AT.to_string()) || text.contains('`'), "{text}");
    }
    assert_eq!(
        refusal("8e d0").to_string(),
        "`mov ss,eax` keeps interrupts off until the next instruction has run; displaced, that would be \
         another one; probe the instruction after it"
    );
}
