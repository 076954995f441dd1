//! Any bytes at any address: no panic, and lengths as iced has them.

use exoprobe_guest::Gva;
use iced_x86::{Decoder, DecoderOptions};
use kvm_bindings::kvm_regs;
use proptest::prelude::*;

use super::super::{Assurances, SLOT_ADDRESS_OFFSET, SlotKind, analyze, check_boundary};

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0xffff_ffff_8000_0000..=u64::MAX,
        0_u64..0x8000_0000,
        Just(u64::MAX),
        Just(0)
    ]
}

fn assurances() -> impl Strategy<Value = Assurances> {
    any::<(bool, bool)>().prop_map(|(faults_show_original, mapped_everywhere)| Assurances {
        faults_show_original,
        mapped_everywhere,
    })
}

/// Bytes, often with the beginning of instructions that analysis treats specially.
fn code(len: usize) -> impl Strategy<Value = Vec<u8>> {
    let starts = prop_oneof![
        Just(vec![]),
        Just(vec![0xff]),
        Just(vec![0xe8]),
        Just(vec![0x0f]),
        Just(vec![0x0f, 0x01]),
        Just(vec![0x48, 0x8d]),
        Just(vec![0x67]),
        Just(vec![0x66]),
        Just(vec![0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0xff]),
        Just(vec![0x62]),
        Just(vec![0xc4]),
    ];
    (starts, prop::collection::vec(any::<u8>(), 0..len)).prop_map(|(mut start, rest)| {
        start.extend(rest);
        start
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn analysis_never_panics(
        bytes in code(24),
        at in address(),
        slot in address(),
        assurances in assurances(),
    ) {
        let at = Gva(at);
        match analyze(&bytes, at, assurances) {
            Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
            Ok(displaced) => {
                let iced = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode();
                prop_assert_eq!(usize::from(displaced.len()), iced.len());
                prop_assert_eq!(displaced.original(), &bytes[..iced.len()]);
                prop_assert_eq!(displaced.next().0, at.0.wrapping_add(iced.len() as u64));
                // Alone it decodes to the same: nothing after it was looked at.
                let alone = analyze(displaced.original(), at, assurances);
                prop_assert_eq!(alone.map(|alone| alone.text()), Ok(displaced.text()));
                // More assurances never refuse what fewer allow.
                prop_assert!(analyze(&bytes, at, Assurances::ALL).is_ok());
                if let Some(emulation) = displaced.emulation() {
                    let mut regs = kvm_regs { rcx: slot, rsp: at.0, ..Default::default() };
                    let _ = emulation.apply(&mut regs);
                }
                for slot in [Gva(slot), at.wrapping_add(slot & 0xffff_ffff)] {
                    for kind in [SlotKind::Boosted, SlotKind::Stepped] {
                        if let Ok(code) = displaced.assemble(kind, slot) {
                            prop_assert!(code.bytes.len() <= SLOT_ADDRESS_OFFSET);
                            let stepped = kind == SlotKind::Stepped;
                            prop_assert_eq!(code.stop_offset.is_some(), stepped);
                            let image = code.image(at);
                            prop_assert!(image.starts_with(&code.bytes));
                            prop_assert!(image.ends_with(&at.0.to_le_bytes()));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn boundaries_never_panic(bytes in code(64), start in address(), offset in 0_u64..80) {
        let start = Gva(start);
        let result = check_boundary(start, &bytes, start.wrapping_add(offset));
        let inside = usize::try_from(offset).is_ok_and(|offset| offset < bytes.len());
        if offset == 0 && inside {
            prop_assert!(result.is_ok());
        }
        if !inside {
            prop_assert!(result.is_err());
        }
    }
}
