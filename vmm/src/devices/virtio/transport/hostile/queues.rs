//! Queues and chains: every place, every shape.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exoprobe_guest::Gpa;

use super::super::driven::{DrivenPci, Place, SIZE, bar};
use super::super::pci::{COMMON, STATUS};
use super::driver::{
    BLK, BUFFERS, Descriptor, INDIRECT, NET, NEXT, QUEUE, RAM, RNG, SLOTS, WRITE, queues, served,
    until, with_bus,
};

/// Starts a device with its queues at this place, and gives it work.
fn try_place(bus: &DrivenPci, slot: u32, place: Place) {
    bus.agree(slot, 0);
    for queue in 0..queues(slot) {
        bus.enable(slot, queue, SIZE, place);
    }
    bus.write(slot, STATUS, &[0xf]);
    bus.notify(slot, 0);
    bus.notify(slot, 1);
    std::thread::yield_now();
    bus.write(slot, STATUS, &[0]);
}

#[test]
fn queues_outside_ram_wrapping_or_in_a_device_are_not_served() {
    with_bus(|bus| {
        let ends = [RAM - 8, RAM, u64::MAX - 15, u64::MAX - 0xfff, 1 << 63, 0x8000_0000];
        for at in ends.into_iter().chain([bar(RNG), bar(BLK), bar(NET) + 0x3000]) {
            let at = at & !0xf;
            for slot in SLOTS {
                try_place(bus, slot, Place { descriptors: at, ..QUEUE });
                try_place(bus, slot, Place { available: at, ..QUEUE });
                try_place(bus, slot, Place { used: at, ..QUEUE });
            }
        }
    });
}

#[test]
fn queues_that_overlap_damage_themselves_alone() {
    with_bus(|bus| {
        let at = 0x2000;
        // Descriptors that are ring entries that are descriptors.
        for word in [[0, 0], [1, 0], [2, 0], [3, 0], [8, 0], [1, 1]] {
            for slot in SLOTS {
                bus.set(at, &word.repeat(0x800));
                try_place(bus, slot, Place { descriptors: at, available: at, used: at });
                bus.set(at, &word.repeat(0x800));
                try_place(bus, slot, Place { descriptors: at, available: at + 16, used: at + 4 });
                bus.set(0, &word.repeat(0x800));
                try_place(bus, slot, Place { descriptors: 0, available: 0, used: 0 });
            }
        }
    });
}

#[test]
fn sizes_that_are_none_are_not_taken() {
    with_bus(|bus| {
        bus.agree(BLK, 0);
        for size in [0_u16, 3, 255, 257, 512, 0x8000, u16::MAX] {
            bus.write(BLK, COMMON + 0x18, &size.to_le_bytes());
            let mut found = [0; 2];
            bus.read(BLK, COMMON + 0x18, &mut found);
            assert_eq!(u16::from_le_bytes(found), 256, "{size}");
        }
        // Queues that are not there.
        for queue in [1_u16, 2, 0x7fff, u16::MAX] {
            bus.enable(BLK, queue, SIZE, QUEUE);
        }
        bus.write(BLK, STATUS, &[0xf]);
        bus.notify(BLK, 0);
    });
}

/// Chains that no honest driver makes, for a queue of 16 at 0.
fn chains() -> Vec<Vec<Descriptor>> {
    let all: Vec<Descriptor> = (1..=SIZE).map(|next| (BUFFERS, 64, NEXT | WRITE, next)).collect();
    let table = (BUFFERS + 0x8000, 32, INDIRECT, 0);
    vec![
        vec![(BUFFERS, 64, NEXT, 0)],
        vec![(BUFFERS, 64, NEXT, 1), (BUFFERS, 64, NEXT | WRITE, 0)],
        all,
        vec![(BUFFERS, 64, NEXT | WRITE, SIZE)],
        vec![(BUFFERS, 64, NEXT | WRITE, u16::MAX)],
        vec![(BUFFERS, u32::MAX, WRITE, 0)],
        vec![(0, u32::MAX, NEXT, 1), (0, u32::MAX, WRITE | NEXT, 2), (0, u32::MAX, WRITE, 0)],
        vec![(BUFFERS, 16, NEXT, 1), (BUFFERS, u32::MAX, WRITE, 0)],
        vec![(u64::MAX, 2, WRITE, 0)],
        vec![(u64::MAX - 7, 16, NEXT, 1), (RAM - 1, 2, WRITE, 0)],
        vec![(bar(RNG), 64, WRITE, 0)],
        vec![(BUFFERS, 16, NEXT, 1), (bar(BLK) + 0x3000, 513, WRITE, 0)],
        vec![(BUFFERS, 0, NEXT, 1), (BUFFERS, 0, WRITE, 0)],
        // Indirect descriptors are not offered.
        vec![table],
        vec![(BUFFERS, 16, NEXT, 1), table],
        vec![(RAM - 16, 0x8000, INDIRECT, 0)],
        vec![(0, 16, INDIRECT, 0)],
        vec![(0, !15, INDIRECT, 0)],
        vec![(BUFFERS + 0x8000, 15, INDIRECT | NEXT | WRITE, 0)],
        // Its own rings as buffers.
        vec![
            (QUEUE.used, 134, NEXT, 1),
            (QUEUE.available, 38, WRITE | NEXT, 2),
            (0, 256, WRITE, 0),
        ],
        vec![(BUFFERS, 64, u16::MAX, 0)],
    ]
}

#[test]
fn chains_that_no_honest_driver_makes_come_back_or_end_the_queue() {
    with_bus(|bus| {
        for slot in SLOTS {
            for chain in chains() {
                for queue in served(slot) {
                    bus.start(slot);
                    let place = Place::of(queue.into());
                    bus.set(BUFFERS, &[0; 64]);
                    bus.describe(
                        BUFFERS + 0x8000,
                        &[(BUFFERS, 16, NEXT, 1), (BUFFERS, 1, WRITE, 0)],
                    );
                    bus.describe(place.descriptors, &chain);
                    (0..SIZE).for_each(|_| bus.offer(place, 0));
                    bus.something_from_the_host();
                    bus.notify(slot, queue);
                    bus.settle(slot, queue, place);
                }
            }
        }
    });
}

#[test]
fn heads_that_are_not_there_end_the_queue() {
    for_each_served_queue([SIZE, 0x7fff, u16::MAX], |bus, place, head| bus.offer(place, head));
}

#[test]
fn a_ring_that_jumps_is_not_served() {
    for_each_served_queue([SIZE + 1, 0x7fff, 0x8000, u16::MAX], |bus, place, jump| {
        bus.describe(place.descriptors, &[(BUFFERS, 64, WRITE, 0)]);
        bus.set(place.available + 2, &jump.to_le_bytes());
    });
}

/// Has the driver damage each queue, with each of these numbers.
fn for_each_served_queue(
    numbers: impl IntoIterator<Item = u16>,
    damage: fn(&DrivenPci, Place, u16),
) {
    let numbers: Vec<u16> = numbers.into_iter().collect();
    with_bus(move |bus| {
        for slot in SLOTS {
            for queue in served(slot) {
                for number in &numbers {
                    bus.start(slot);
                    let place = Place::of(queue.into());
                    damage(bus, place, *number);
                    bus.something_from_the_host();
                    bus.notify(slot, queue);
                    bus.settle(slot, queue, place);
                    assert!(bus.used(place) == 0 && !bus.is_enabled(slot, queue), "{number}");
                }
            }
        }
    });
}

#[test]
fn a_reset_in_the_middle_of_requests_ends_them() {
    with_bus(|bus| {
        let read = [
            (BUFFERS, 16, NEXT, 1),
            (BUFFERS + 16, 0x7000, WRITE | NEXT, 2),
            (RAM - 1, 1, WRITE, 0),
        ];
        for round in 0..51 {
            bus.start(BLK);
            // Read, write, and a flush, which waits for the disk.
            bus.blk_header([0, 1, 4][round % 3], 0);
            bus.describe(QUEUE.descriptors, &read);
            (0..SIZE).for_each(|_| bus.offer(QUEUE, 0));
            bus.notify(BLK, 0);
            bus.write(BLK, STATUS, &[0]);
            let used = bus.used(QUEUE);
            bus.notify(BLK, 0);
            assert_eq!(bus.status(BLK), 0);
            assert_eq!(bus.used(QUEUE), used, "nothing after the reset");
        }
    });
}

#[test]
fn a_pause_in_the_middle_of_requests_loses_none() {
    with_bus(|bus| {
        let heads = [0, 2, 4, 6];
        for round in 0..50 {
            bus.start(BLK);
            bus.blk_header(4, 0);
            for head in heads {
                let at = QUEUE.descriptors + 16 * u64::from(head);
                bus.describe(at, &[(BUFFERS, 16, NEXT, head + 1), (BUFFERS + 64, 1, WRITE, 0)]);
                bus.offer(QUEUE, head);
            }
            bus.notify(BLK, 0);
            for _ in 0..round % 4 {
                bus.bus.pause();
                let used = bus.used(QUEUE);
                std::thread::yield_now();
                assert_eq!(bus.used(QUEUE), used, "nothing while it stands still");
                bus.bus.resume();
            }
            until("all come back", || bus.used(QUEUE) == 4);
            let mut found = [0, 1, 2, 3].map(|at| bus.used_element(QUEUE, at).0);
            found.sort_unstable();
            assert_eq!(found, heads, "each once");
        }
    });
}

#[test]
fn memory_that_changes_while_it_is_read_harms_the_guest_alone() {
    with_bus(|bus| {
        let (ram, ends) = (bus.ram.clone(), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ends);
        let scribbler = std::thread::spawn(move || {
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
            while !end.load(Ordering::Relaxed) {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                // Table, rings and the header; addresses below 16 MiB, a few in RAM.
                let at = match seed >> 40 & 3 {
                    0 | 1 => seed % 0x400,
                    2 => 0x400 + seed % 64,
                    _ => BUFFERS + seed % 24,
                };
                let value = seed >> (40 + 4 * (seed >> 50 & 3));
                ram.write(Gpa(at & !7), &value.to_le_bytes()).unwrap();
            }
        });
        let kinds = [(RNG, 0), (BLK, 0), (BLK, 1), (BLK, 4), (BLK, 8), (BLK, 11), (BLK, 13)];
        for (slot, kind) in kinds.into_iter().cycle().take(350) {
            bus.start(slot);
            bus.blk_header(kind, 1);
            let chain = [(BUFFERS, 16, NEXT, 1), (BUFFERS + 64, 512, NEXT, 2)];
            bus.describe(QUEUE.descriptors, &chain);
            bus.describe(QUEUE.descriptors + 32, &[(BUFFERS + 0x1000, 513, WRITE, 0)]);
            for _ in 0..8 {
                bus.offer(QUEUE, 0);
                bus.notify(slot, 0);
            }
            bus.bus.pause();
            bus.bus.resume();
        }
        ends.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
    });
}

#[test]
fn requests_that_never_end_do_not_keep_a_device_from_its_end() {
    with_bus(|bus| {
        bus.start(RNG);
        bus.describe(QUEUE.descriptors, &[(BUFFERS, 4096, WRITE, 0)]);
        let (ram, ends) = (bus.ram.clone(), Arc::new(AtomicBool::new(false)));
        let end = Arc::clone(&ends);
        // Another vCPU makes one more for each that comes back.
        let other = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let mut used = [0; 2];
                ram.read(Gpa(QUEUE.used + 2), &mut used).unwrap();
                let more = u16::from_le_bytes(used).wrapping_add(SIZE);
                ram.write(Gpa(QUEUE.available + 2), &more.to_le_bytes()).unwrap();
            }
        });
        until("it is at work", || {
            bus.notify(RNG, 0);
            bus.used(QUEUE) > SIZE
        });
        bus.write(RNG, STATUS, &[0]);
        ends.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
}
