//! The tracer's files: definitions by one write, and lines of `trace_pipe`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use exoprobe_tests::TestGuest;
use exoprobe_tracer::Tracer;

use crate::figure::{figure, least};

const ROUNDS: usize = 5;
const EVENTS: usize = 1000;
const CALLS: u64 = 20_000;

pub(crate) fn run() {
    let guest = TestGuest::restored(1);
    let tracer = Tracer::new(Arc::clone(&guest.engine), 1);
    let line = |n: usize| format!("p:e{n} __x64_sys_getpid a=%di b=+8(%si):x32\n");
    let text: String = (0..EVENTS).map(line).collect();
    let defined = least(ROUNDS, || {
        tracer.truncate("kprobe_events").expect("none is enabled");
        let begun = Instant::now();
        tracer.write("kprobe_events", &text).expect("they are right");
        begun.elapsed().as_secs_f64() * 1e3
    });
    figure("1,000 events defined by one write", &format!("{defined:.1} ms"), "< 1000 ms");
    tracer.truncate("kprobe_events").expect("none is enabled");
    guest.probe("p:getpid __x64_sys_getpid a=%di b=%si:s32 c=$comm d=%ip:symbol");
    guest.optimize("getpid");
    assert_eq!(guest.work(&format!("getpid {CALLS}")), CALLS);
    guest.engine.drain();
    let lines = least(ROUNDS, || {
        let begun = Instant::now();
        let page = black_box(guest.engine.events().trace());
        let seconds = begun.elapsed().as_secs_f64();
        let events = u32::try_from(page.events).expect("some thousand");
        assert!(events > 10_000, "{events} were kept");
        seconds / f64::from(events)
    });
    let per_second = format!("{:.0}", 1.0 / lines);
    figure("lines of trace_pipe with four values, a second, one core", &per_second, ">= 500000");
}
