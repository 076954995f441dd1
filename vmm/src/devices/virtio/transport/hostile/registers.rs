//! Registers: every place, every width.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::driven::{DrivenPci, Place, SIZE};
use super::super::pci::{BAR_LEN, COMMON, MSIX_PENDING, MSIX_TABLE, NOTIFY, STATUS};
use super::driver::{BLK, BUFFERS, QUEUE, RAM, RNG, SLOTS, WRITE, bar, until, with_bus};
use crate::devices::pci::{CONFIG_ADDRESS, CONFIG_DATA, lock};

const WIDTHS: [usize; 5] = [1, 2, 4, 8, 3];

static BUS: LazyLock<DrivenPci> = LazyLock::new(DrivenPci::default);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// Accesses of all kinds in any order, resets, pauses and RAM that changes meanwhile: no panic,
    /// no device that starts twice, and what is saved can be restored.
    #[test]
    fn any_driver_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
        BUS.drive(&bytes);
    }
}

#[test]
fn every_place_is_read_and_written_in_every_width() {
    with_bus(|bus| {
        for slot in SLOTS {
            bus.start(slot);
            for offset in 0..=u8::MAX {
                // A string instruction has many.
                for len in WIDTHS.into_iter().chain([64]) {
                    let mut found = vec![0x5a; len];
                    bus.read_config(slot, offset, &mut found);
                    bus.write_config(slot, offset, &vec![offset; len]);
                }
            }
            // The memory is somewhere else now.
            bus.bus.reset();
            bus.start(slot);
            for offset in (0..BAR_LEN).filter(|offset| offset % 0x1000 < 0x180) {
                for len in WIDTHS {
                    bus.read(slot, offset, &mut vec![0x5a; len]);
                    bus.write(slot, offset, &vec![offset.to_le_bytes()[0]; len]);
                }
            }
            // Across its end.
            bus.read(slot, BAR_LEN - 1, &mut [0; 8]);
            bus.write(slot, BAR_LEN - 1, &[0xff; 8]);
        }
    });
}

#[test]
fn configuration_ports_have_no_other_functions_and_no_other_widths() {
    with_bus(|bus| {
        for address in [0, u32::MAX, 1 << 31 | 9 << 11, 1 << 31 | 1 << 8, 1 << 31 | 0xff << 16] {
            assert!(bus.bus.write_port(CONFIG_ADDRESS, &address.to_le_bytes()));
            let mut found = [0; 4];
            assert!(bus.bus.read_port(CONFIG_DATA, &mut found));
            assert_eq!(found, [0xff; 4], "{address:#x}");
            assert!(bus.bus.write_port(CONFIG_DATA, &[0; 4]));
        }
        for len in [1, 2, 3, 8, 400] {
            assert!(!bus.bus.write_port(CONFIG_ADDRESS, &vec![0; len]));
            bus.bus.read_port(CONFIG_ADDRESS, &mut vec![0; len]);
        }
    });
}

#[test]
fn features_that_are_not_offered_start_no_device() {
    with_bus(|bus| {
        for slot in SLOTS {
            for feature in (0..64).filter(|feature| *feature != 32) {
                let mut offered = [0; 4];
                bus.agree(slot, 0);
                bus.write(slot, COMMON, &u32::from(feature > 31).to_le_bytes());
                bus.read(slot, COMMON + 4, &mut offered);
                if u32::from_le_bytes(offered) >> (feature % 32) & 1 == 1 {
                    continue;
                }
                bus.agree(slot, 1 << feature);
                assert_eq!(bus.status(slot), 3, "feature {feature} of slot {slot}");
                bus.enable(slot, 0, SIZE, QUEUE);
                bus.write(slot, STATUS, &[0xf]);
                assert_eq!(bus.status(slot), 7);
                bus.notify(slot, 0);
            }
        }
    });
}

#[test]
fn a_driver_that_sets_and_clears_driver_ok_starts_a_device_once() {
    with_bus(|bus| {
        bus.start(RNG);
        for status in [0xf, 1, 0xf, 0xb, 4, 0xf, 0x80, 0xf] {
            // The bus panics when a device starts that runs.
            bus.write(RNG, STATUS, &[status]);
            bus.notify(RNG, 0);
        }
        assert_eq!(bus.status(RNG), 0x8f);
    });
}

#[test]
fn a_reset_frees_the_queues() {
    with_bus(|bus| {
        let enabled = || {
            let mut found = [0; 2];
            bus.read(RNG, COMMON + 0x1c, &mut found);
            u16::from_le_bytes(found)
        };
        bus.start(RNG);
        assert_eq!(enabled(), 1);
        bus.write(RNG, STATUS, &[0]);
        assert_eq!(enabled(), 0, "Linux gives a device up whose queue is enabled already");
        // Another place: the device must not serve the old one.
        let place = Place::of(5);
        bus.clear(QUEUE);
        bus.clear(place);
        bus.set_up(RNG, &[place]);
        bus.describe(QUEUE.descriptors, &[(BUFFERS, 64, WRITE, 0)]);
        bus.offer(QUEUE, 0);
        bus.describe(place.descriptors, &[(BUFFERS + 64, 64, WRITE, 0)]);
        bus.offer(place, 0);
        bus.notify(RNG, 0);
        until("the new queue is served", || bus.used(place) == 1);
        assert_eq!((bus.used(QUEUE), bus.bytes(BUFFERS, 64)), (0, vec![0; 64]));
    });
}

#[test]
fn vectors_and_messages_are_those_of_the_table_or_none() {
    with_bus(|bus| {
        bus.start(RNG);
        for vector in [2_u16, 3, 0x800, 0xfffe] {
            for register in [0x10, 0x1a] {
                bus.write(RNG, COMMON + register, &vector.to_le_bytes());
                let mut found = [0; 2];
                bus.read(RNG, COMMON + register, &mut found);
                assert_eq!(found, [0xff; 2], "vector {vector}");
            }
        }
        bus.start(RNG);
        // All on, all unmasked, to addresses that no interrupt controller has.
        bus.write_config(RNG, msix_control(bus), &[0, 0x80]);
        for at in (0..0x4000).step_by(8) {
            bus.write(RNG, MSIX_TABLE + at, &(0xffff_ffff_ffff_ff00 + at % 16).to_le_bytes());
            bus.write(RNG, MSIX_TABLE + at + 4, &[0; 4]);
            bus.write(RNG, MSIX_PENDING + at, &[0xff; 8]);
        }
        bus.write(RNG, MSIX_TABLE + 12, &[0; 4]);
        let mut pending = [0xff; 8];
        bus.read(RNG, MSIX_PENDING, &mut pending);
        assert_eq!(pending, [0; 8], "they are only read");
        bus.describe(QUEUE.descriptors, &[(BUFFERS, 64, WRITE, 0)]);
        bus.offer(QUEUE, 0);
        bus.notify(RNG, 0);
        until("the interrupt of its queue", || !lock(&bus.messages).is_empty());
        assert_eq!(lock(&bus.messages).len(), 1);
    });
}

/// Offset of the control word of MSI-X.
fn msix_control(bus: &DrivenPci) -> u8 {
    let mut at = [0];
    bus.read_config(RNG, 0x34, &mut at);
    loop {
        let mut head = [0; 2];
        bus.read_config(RNG, at[0], &mut head);
        if head[0] == 0x11 {
            return at[0] + 2;
        }
        at = [head[1]];
    }
}

#[test]
fn memory_that_is_moved_over_ram_or_another_device_is_where_it_says() {
    with_bus(|bus| {
        bus.start(RNG);
        let places = [0, RAM - 0x1_0000, bar(BLK), bar(0), u64::MAX - 0xffff, 0xfee0_0000, 1 << 52];
        for at in places {
            bus.write_config(RNG, 0x10, &at.to_le_bytes()[..4]);
            bus.write_config(RNG, 0x14, &at.to_le_bytes()[4..]);
            for end in [at, at + (BAR_LEN - 1)] {
                assert!(bus.bus.write_memory(end, &[0; 8]), "{at:#x}");
                assert!(bus.bus.read_memory(end, &mut [0; 8]), "{at:#x}");
            }
            assert!(!bus.bus.read_memory(bar(RNG) + NOTIFY, &mut [0; 4]), "{at:#x}");
        }
        assert_eq!(bus.bytes(0, 16), [0; 16], "of RAM KVM knows, not the bus");
    });
}
