//! A guest that chooses the lengths of all that its probes read: each hit has as much text as a hit
//! may have, and everything keeps it.

use exoprobe_tests::{Service, kernel_symbols};

use crate::attack::{Ground, Tally, ask, check_alive, end, work};
use crate::parts::Parts;

/// 8 KiB that the tiny kernel reads while it boots, and not after.
const TEXT: &str = "mp_irqs";
/// Budget of the events, in MiB.
const EVENTS_MIB: u64 = 16;
/// Hits of one round: twice the budget of texts.
const HITS: u64 = 2000;
/// Entries of the histogram, each of a text and a number.
const ENTRIES: u64 = 65_536;
/// The most that they take, in KiB (docs/limits.md).
const HISTOGRAM_KIB: u64 = (ENTRIES * (176 + 288 + 32)) >> 10;
/// Most memory above the events' budget, in KiB (docs/limits.md): a script whose maps are full, an
/// answer with them, the histogram, and an answer with that.
const MOST_KIB: u64 = (48 << 10) + (64 << 10) + HISTOGRAM_KIB + ((ENTRIES * 176) >> 10);

/// Answers that have all of it.
const QUESTIONS: [&str; 5] = [
    "/v1/events?limit=10000",
    "/v1/tracefs/trace",
    "/v1/tracefs/events/kprobes/long/hist",
    "/v1/scripts/1/maps",
    "/v1/scripts/1/output",
];

pub(crate) fn hostile(ground: &mut Ground, tally: &mut Tally) {
    let path = ground.path("long");
    write(ground, &path);
    let budget = EVENTS_MIB.to_string();
    let service = Service::start(&["--restore", &path, "--events-memory", &budget]);
    let post = |path: &str, body: &str| ask(&service, "POST", path, "text/plain", body.as_bytes());
    let texts = (0..4).map(|at| format!(" t{at}=@{TEXT}+{at}:string")).collect::<String>();
    let added = post("/v1/probes", &format!("p:long __x64_sys_getpid{texts}"));
    tally.check(added.as_ref().is_ok_and(|answer| answer.status == 201), || format!("{added:?}"));
    let hist = format!("hist:keys=t0,common_timestamp:size={ENTRIES}");
    let trigger = post("/v1/tracefs/events/kprobes/long/trigger", &hist);
    tally.check(trigger.as_ref().is_ok_and(|a| a.status < 300), || format!("{trigger:?}"));
    let script = format!(
        "kprobe:__x64_sys_getpid {{ $t = str(kaddr(\"{TEXT}\") + 1, 1024); @[$t, nsecs] = $t; \
         printf(\"%s\\n\", $t); }}"
    );
    let started = post("/v1/scripts", &script);
    tally.check(started.as_ref().is_ok_and(|a| a.status == 201), || format!("{started:?}"));
    let before = service.resident_kib();
    service.reset_peak();
    while ground.goes_on(tally) {
        if let Err(error) = work(&service, &format!("getpid {HITS}")) {
            return tally.found(error);
        }
        for question in QUESTIONS {
            match ask(&service, "GET", question, "", b"") {
                Ok(answer) => {
                    let is_long = answer.body.contains("AAAAAAAA");
                    tally.check(is_long, || format!("GET {question}: {}", answer.status));
                }
                Err(error) => tally.found(error),
            }
        }
        tally.times += HITS;
    }
    let (peak, most) = (service.peak_kib(), (EVENTS_MIB << 10) + MOST_KIB);
    println!("hostile: texts of a guest's choice: {before} KiB, at most {peak} KiB");
    tally.check(peak.saturating_sub(before) < most, || format!("{before} KiB, then {peak} KiB"));
    check_alive(&service, tally);
    end(service, tally);
}

/// Writes a snapshot of a guest that has a text without an end.
fn write(ground: &Ground, path: &str) {
    let mut parts = Parts::read(&ground.snapshot);
    let symbols = kernel_symbols();
    let text = symbols.lookup(TEXT).expect("the tiny kernel has it");
    let len = usize::try_from(text.size).expect("8 KiB");
    parts.image(text.address, len).fill(b'A');
    parts.write(path, &parts.meta, |_| ());
}
