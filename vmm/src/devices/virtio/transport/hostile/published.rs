//! The drivers of published vulnerabilities of other machines, with these devices:
//! docs/threat-model.md has the table, with sources.

use std::io::Read as _;

use super::super::driven::{DISK, DrivenPci, Place, SIZE, bar};
use super::super::pci::{COMMON, MSIX_PENDING, MSIX_TABLE, NOTIFY, STATUS};
use super::driver::{BLK, BUFFERS, NET, NEXT, QUEUE, RNG, SLOTS, WRITE, until, with_bus};
use crate::devices::pci::lock;

/// Frames of a flood.
const FRAMES: u16 = 300;

/// Firecracker: the size of a queue is changed once the device works with it.
#[test]
fn cve_2026_5747_a_queue_in_use_keeps_its_size_and_places() {
    with_bus(|bus| {
        bus.start(BLK);
        let registers = || {
            let mut found = [0; 32];
            for (at, part) in (0x18..0x38).step_by(2).zip(found.chunks_mut(2)) {
                bus.read(BLK, COMMON + at, part);
            }
            found
        };
        let before = registers();
        for size in [0_u16, 1, 0x100, 0x8000, u16::MAX] {
            bus.write(BLK, COMMON + 0x18, &size.to_le_bytes());
            bus.write(BLK, COMMON + 0x1c, &[0, 0]);
            for at in [0x20, 0x24, 0x28, 0x2c, 0x30, 0x34] {
                bus.write(BLK, COMMON + at, &u32::MAX.to_le_bytes());
                bus.write(BLK, COMMON + at, &u64::MAX.to_le_bytes());
            }
            assert_eq!(registers(), before, "{size}");
        }
        // A queue that was left out is not added later.
        bus.agree(NET, 0);
        bus.enable(NET, 0, SIZE, QUEUE);
        bus.write(NET, STATUS, &[0xf]);
        bus.enable(NET, 1, SIZE, Place::of(1));
        assert!(!bus.is_enabled(NET, 1));
    });
}

/// Firecracker: a flood from the host while the driver's queue is full. QEMU: frames that no buffer
/// holds (CVE-2015-7295).
#[test]
fn cve_2020_16843_frames_arrive_again_after_a_flood() {
    with_bus(|bus| {
        bus.start(NET);
        let buffers: Vec<_> = (0..4).map(|at| (BUFFERS + 0x1000 * at, 100, WRITE, 0)).collect();
        bus.describe(QUEUE.descriptors, &buffers);
        let mut flood = Vec::new();
        for number in 0..FRAMES {
            flood.push(vec![number.to_le_bytes()[0]; 60]);
            if number % 5 == 0 {
                flood.push(vec![0xee; 900]);
            }
        }
        bus.frames_from_the_host(&flood.iter().map(Vec::as_slice).collect::<Vec<_>>());
        (0..4).for_each(|head| bus.offer(QUEUE, head));
        bus.notify(NET, 0);
        let mut found = 0;
        for taken in 0_u16.. {
            if found == FRAMES {
                break;
            }
            until("a frame", || bus.used(QUEUE) != taken);
            let (head, len) = bus.used_element(QUEUE, taken);
            if len != 0 {
                let at = BUFFERS + 0x1000 * u64::from(head);
                assert_eq!((len, bus.bytes(at + 12, 1)[0]), (72, found.to_le_bytes()[0]));
                found += 1;
            }
            bus.offer(QUEUE, head);
            bus.notify(NET, 0);
        }
    });
}

/// cloud-hypervisor: the same head twice, with requests under way at once.
#[test]
fn cve_2026_45782_a_head_that_is_offered_twice_comes_back_twice() {
    with_bus(|bus| {
        bus.start(BLK);
        bus.blk_header(0, 2);
        bus.describe(
            QUEUE.descriptors,
            &[(BUFFERS, 16, NEXT, 1), (BUFFERS + 0x1000, 513, WRITE, 0)],
        );
        (0..SIZE).for_each(|_| bus.offer(QUEUE, 0));
        bus.notify(BLK, 0);
        until("all come back", || bus.used(QUEUE) == SIZE);
        assert!((0..SIZE).all(|at| bus.used_element(QUEUE, at) == (0, 513)));
    });
}

/// QEMU: more requests than the queue holds.
#[test]
fn cve_2016_5403_no_more_requests_than_the_queue_holds_are_taken() {
    with_bus(|bus| {
        bus.start(BLK);
        bus.describe(QUEUE.descriptors, &[(BUFFERS, 16, NEXT, 1), (BUFFERS, 513, WRITE, 0)]);
        bus.set(QUEUE.available + 2, &0x4000_u16.to_le_bytes());
        bus.notify(BLK, 0);
        bus.settle(BLK, 0, QUEUE);
        assert_eq!((bus.used(QUEUE), bus.is_enabled(BLK, 0)), (0, false));
    });
}

/// QEMU: a kick of a queue with a number that is none.
#[test]
fn cve_2011_2512_kicks_of_no_queue_are_nothing() {
    with_bus(|bus| {
        bus.start(RNG);
        for offset in (0..0x5000).step_by(2) {
            for value in [0_u64, 1, 0x8000, 0xffff, u64::MAX] {
                bus.write(RNG, NOTIFY + offset, &value.to_le_bytes()[..4]);
                bus.write(RNG, NOTIFY + offset, &value.to_le_bytes());
            }
        }
        // Of a device that is not set up.
        bus.write(RNG, STATUS, &[0]);
        bus.notify(RNG, 0);
    });
}

/// QEMU: descriptors of no length, and of more than there is (CVE-2016-7422).
#[test]
fn cve_2016_6490_descriptors_of_no_length_and_of_too_much_come_back() {
    with_bus(|bus| {
        let empty: Vec<_> = (1..=SIZE).map(|next| (BUFFERS, 0, NEXT, next % SIZE)).collect();
        assert_eq!(bus.request(BLK, &empty), 0);
        let empty: Vec<_> =
            (1..=SIZE).map(|next| (BUFFERS, 0, NEXT | WRITE, next % SIZE)).collect();
        assert_eq!((bus.request(BLK, &empty), bus.request(RNG, &empty)), (0, 0));
        bus.blk_header(0, 0);
        let read = [(BUFFERS, 16, NEXT, 1), (BUFFERS + 16, u32::MAX, WRITE, 0)];
        assert_eq!((bus.request(BLK, &read), bus.request(RNG, &[(0, u32::MAX, WRITE, 0)])), (0, 0));
    });
}

/// QEMU: requests that are not whole sectors, and SCSI commands (CVE-2026-48914).
#[test]
fn cve_2011_1750_odd_requests_and_scsi_commands_are_refused() {
    with_bus(|bus| {
        let before = disk(bus);
        for (kind, outcome) in [(0, 1), (1, 1), (2, 2)] {
            for len in [1, 511, 513, 0x7001] {
                bus.blk_header(kind, 0);
                bus.set(BUFFERS + 16, &[0xaa; 600]);
                let (reads, writes) = if kind == 0 { (0, len) } else { (len, 0) };
                let length = bus.request(
                    BLK,
                    &[
                        (BUFFERS, 16, NEXT, 1),
                        (BUFFERS + 16, reads, NEXT, 2),
                        (BUFFERS + 0x8000, writes, NEXT | WRITE, 3),
                        (BUFFERS + 0x7ff0, 1, WRITE, 0),
                    ],
                );
                assert_eq!((length, bus.bytes(BUFFERS + 0x7ff0, 1)), (1, vec![outcome]), "{kind}");
            }
        }
        assert!(disk(bus) == before);
    });
}

fn disk(bus: &DrivenPci) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let mut found = vec![0; usize::try_from(DISK).unwrap()];
    bus.disk.read_exact_at(&mut found, 0).unwrap();
    found
}

/// QEMU: accesses of the table of MSI-X past its end (also CVE-2020-27821), and writes of what is
/// only read (CVE-2015-7549).
#[test]
fn cve_2020_13754_the_table_of_msix_ends() {
    with_bus(|bus| {
        bus.start(RNG);
        // Two vectors.
        for offset in (32..0x4000).chain([0x3fff, 0x3ffc]) {
            for len in [1, 4, 8] {
                let mut found = vec![0xff; len];
                bus.write(RNG, MSIX_TABLE + offset, &vec![0xff; len]);
                bus.read(RNG, MSIX_TABLE + offset, &mut found);
                // An access of the last register may reach the pending bits.
                assert!(found.iter().all(|byte| *byte == 0), "{offset:#x}");
            }
        }
        for offset in (0..0x4000).chain([0x3fff]) {
            let mut found = [0xff; 8];
            bus.write(RNG, MSIX_PENDING + offset, &[0xff; 8]);
            bus.read(RNG, MSIX_PENDING + offset, &mut found);
            assert_eq!(found, [0; 8], "{offset:#x}");
        }
        assert!(lock(&bus.messages).is_empty());
    });
}

/// QEMU: buffers to receive that are a device's registers (CVE-2022-26353 is of its fix).
#[test]
fn cve_2021_3748_buffers_that_are_registers_receive_nothing() {
    with_bus(|bus| {
        bus.start(NET);
        bus.describe(QUEUE.descriptors, &[(bar(NET), 2048, WRITE, 0), (BUFFERS, 2048, WRITE, 0)]);
        (0..2).for_each(|head| bus.offer(QUEUE, head));
        (0..2).for_each(|_| bus.frame_from_the_host(&[7; 60]));
        bus.notify(NET, 0);
        until("both come back", || bus.used(QUEUE) == 2);
        assert_eq!(bus.used_element(QUEUE, 0), (0, 0), "it holds none");
        assert_eq!((bus.used_element(QUEUE, 1), bus.status(NET)), ((1, 72), 0xf));
    });
}

/// QEMU: a device that is made to write to registers, its own among them.
#[test]
fn cve_2024_3446_no_device_writes_to_registers() {
    with_bus(|bus| {
        for slot in SLOTS {
            for register in [COMMON, COMMON + STATUS, NOTIFY, MSIX_TABLE] {
                bus.blk_header(0, 0);
                let read = [(BUFFERS, 16, NEXT, 1), (bar(slot) + register, 513, WRITE, 0)];
                assert_eq!((bus.request(BLK, &read), bus.status(BLK)), (0, 0xf));
                let random = [(bar(slot) + register, 64, WRITE, 0)];
                assert_eq!((bus.request(RNG, &random), bus.status(RNG)), (0, 0xf));
            }
        }
    });
}

/// QEMU: a length that says more than was written, with memory of the host in between.
#[test]
fn cve_2024_8612_a_request_that_fails_says_that_it_wrote_its_outcome_alone() {
    with_bus(|bus| {
        bus.disk.set_len(512).unwrap();
        bus.blk_header(0, 1);
        bus.set(BUFFERS + 0x1000, &[0x77; 513]);
        let read = [(BUFFERS, 16, NEXT, 1), (BUFFERS + 0x1000, 513, WRITE, 0)];
        let length = bus.request(BLK, &read);
        bus.disk.set_len(DISK).unwrap();
        assert_eq!(length, 1);
        assert_eq!(bus.bytes(BUFFERS + 0x1000, 512), [0x77; 512]);
        assert_eq!(bus.bytes(BUFFERS + 0x1200, 1), [1], "an I/O error");
    });
}

/// QEMU: reports of hashes (CVE-2024-6505: their table of queues) and mergeable buffers together.
#[test]
fn cve_2023_6693_features_that_were_not_offered_are_refused() {
    with_bus(|bus| {
        // VIRTIO_NET_F_HASH_REPORT, VIRTIO_NET_F_RSS, VIRTIO_NET_F_MRG_RXBUF.
        for features in [1_u64 << 57 | 1 << 15, 1 << 57, 1 << 60, 1 << 15] {
            bus.agree(NET, features);
            assert_eq!(bus.status(NET), 3, "{features:#x}");
            bus.enable(NET, 0, SIZE, QUEUE);
            bus.enable(NET, 1, SIZE, Place::of(1));
            bus.write(NET, STATUS, &[0xf]);
            bus.notify(NET, 1);
        }
        // Offloads that an honest header has not.
        bus.start(NET);
        let place = Place::of(1);
        bus.set(BUFFERS, &[0xff; 12]);
        bus.set(BUFFERS + 12, &[5; 60]);
        bus.describe(place.descriptors, &[(BUFFERS, 72, 0, 0)]);
        bus.offer(place, 0);
        bus.notify(NET, 1);
        until("it is sent", || bus.used(place) == 1);
        let mut sent = [0; 100];
        let len = (&bus.peer).read(&mut sent).unwrap();
        assert_eq!(sent[..len], [&60_u32.to_be_bytes()[..], &[5; 60]].concat());
    });
}

/// QEMU: vectors that are taken away and given back while the device starts and stops.
#[test]
fn cve_2024_4693_vectors_come_and_go() {
    with_bus(|bus| {
        for vector in [0_u16, 1, u16::MAX, 0] {
            bus.start(RNG);
            bus.write(RNG, COMMON + 0x10, &vector.to_le_bytes());
            bus.write(RNG, COMMON + 0x1a, &vector.to_le_bytes());
            bus.describe(QUEUE.descriptors, &[(BUFFERS, 64, WRITE, 0)]);
            bus.offer(QUEUE, 0);
            bus.notify(RNG, 0);
            bus.write(RNG, COMMON + 0x1a, &u16::MAX.to_le_bytes());
            until("it comes back", || bus.used(QUEUE) == 1);
            bus.write(RNG, STATUS, &[0]);
            bus.write(RNG, COMMON + 0x1a, &vector.to_le_bytes());
        }
    });
}
