//! Takes the numbers.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::exoprobe::Exoprobe;
use crate::options::Options;
use crate::qemu::{Qemu, Setup};
use crate::report::{Cost, Report, Row};
use crate::subject::{Statistics, Subject, tsc};

/// Requests that are compared: the name, and the workload's command without the number of requests.
const ROWS: [(&str, &str); 7] = [
    ("read 4 KiB", "diskio read /dev/vda 4"),
    ("read 64 KiB", "diskio read /dev/vda 64"),
    ("write 4 KiB", "diskio write /dev/vda 4"),
    ("write 64 KiB", "diskio write /dev/vda 64"),
    ("write 4 KiB, fsync", "diskio sync /dev/vda 4"),
    ("read 4 KiB, 4 at once", "par 4 diskio read /dev/vda 4"),
    ("write 4 KiB, 4 at once", "par 4 diskio write /dev/vda 4"),
];
/// Most bytes of a request.
const LARGEST: u64 = 64 << 10;

/// Measures all rows with each VMM, one after the other, each with the file as new.
pub(crate) fn all(options: &Options) -> Report {
    let setup = |has_thread| Setup { folder: &options.qemu, cpu: &options.cpu, has_thread };
    let dir = tempfile::tempdir().expect("a folder");
    let disk = dir.path().join("disk");
    let measured = |name: &str, boot: &dyn Fn(&Path) -> Box<dyn Subject>| {
        eprintln!("{name}: booting");
        fill(&disk, 2 * options.requests * LARGEST);
        let begun = tsc();
        let mut subject = boot(&disk);
        let boot = tsc() - begun;
        let costs = ROWS.map(|(row, command)| {
            eprintln!("{name}: {row}");
            per_request(subject.as_mut(), command, options)
        });
        (boot, costs)
    };
    let (boot, exoprobe) = measured("exoprobe", &|disk| Box::new(Exoprobe::boot(disk)));
    let (qemu_boot, qemu) = measured("QEMU", &|disk| Box::new(Qemu::boot(&setup(false), disk)));
    let (_, qemu_thread) =
        measured("QEMU, iothread", &|disk| Box::new(Qemu::boot(&setup(true), disk)));
    let costs = exoprobe.into_iter().zip(qemu).zip(qemu_thread);
    let row = |((name, _), ((exoprobe, qemu), qemu_thread)): ((&str, &str), _)| Row {
        request: name.to_owned(),
        exoprobe,
        qemu,
        qemu_thread,
    };
    Report {
        requests: options.requests,
        rounds: options.rounds,
        boot,
        qemu_boot,
        rows: ROWS.into_iter().zip(costs).map(row).collect(),
    }
}

/// Writes a file of so many bytes, all of which are there.
fn fill(path: &Path, len: u64) {
    let mut file = File::create(path).expect("a file");
    let part = [0x5a; 1 << 16];
    for _ in 0..len.div_ceil(LARGEST) {
        file.write_all(&part).expect("there is space");
    }
}

/// The cost of one request.
fn per_request(subject: &mut dyn Subject, command: &str, options: &Options) -> Cost {
    let mut least = |count: u64| {
        let command = format!("{command} {count}");
        let mut requests = 0;
        let mut round = || {
            let before = subject.statistics();
            let begun = tsc();
            requests = subject.work(&command);
            let ticks = tsc() - begun;
            (ticks, increase(&before, &subject.statistics()))
        };
        let first = round();
        let least = (1..options.rounds).fold(first, |(ticks, kvm), _| {
            let (others, other) = round();
            (ticks.min(others), lower(kvm, &other))
        });
        (requests, least)
    };
    let (few, (few_ticks, few_kvm)) = least(options.requests);
    let (many, (many_ticks, many_kvm)) = least(2 * options.requests);
    let requests = precise(many - few);
    let per_request = |many: u64, few: u64| precise(many.saturating_sub(few)) / requests;
    let kvm = increase(&few_kvm, &many_kvm).into_iter();
    let kvm = kvm.map(|(name, increase)| (name, precise(increase) / requests));
    Cost {
        instructions: per_request(many_ticks, few_ticks),
        kvm: kvm.filter(|(_, count)| *count > 0.0).collect(),
    }
}

fn increase(before: &Statistics, after: &Statistics) -> Statistics {
    let of = |name: &String| before.get(name).copied().unwrap_or(0);
    after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(of(name)))).collect()
}

/// The least of both, each by itself.
fn lower(mut one: Statistics, other: &Statistics) -> Statistics {
    for (name, value) in &mut one {
        *value = other.get(name).map_or(0, |other| (*value).min(*other));
    }
    one
}

/// A count that a floating-point number holds exactly.
#[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn precise(count: u64) -> f64 {
    count as f64
}
