//! How hits of one probe scale from one vCPU to two: by instructions a call, host and guest
//! together, for vCPUs that wait for each other run more of them.

use exoprobe_tests::TestGuest;

use crate::measure::tsc;

/// Calls of the shorter run; the longer has twice as many, so that what comes before and after
/// cancels out.
const CALLS: u64 = 10_000;

/// Ticks that `CALLS` calls take on each of so many vCPUs.
fn ticks(guest: &TestGuest, command: &str, vcpus: u64) -> u64 {
    let run = |calls: u64| {
        let begun = tsc();
        assert_eq!(guest.work(&format!("{command} getpid {calls}")), calls * vcpus);
        tsc() - begun
    };
    run(2 * CALLS).saturating_sub(run(CALLS))
}

/// Measures and prints it.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn run(unit: &str) {
    let guest = TestGuest::restored(2);
    guest.probe("p:getpid __x64_sys_getpid");
    let before = guest.hits("getpid");
    let (one, two) = (ticks(&guest, "spawn 0", 1), ticks(&guest, "par 2", 2));
    assert!(guest.hits("getpid") - before >= 9 * CALLS, "each call is a hit");
    let per_call = |ticks: u64, vcpus: u64| ticks as f64 / (CALLS * vcpus) as f64;
    println!(
        "One probe, {CALLS} calls a vCPU: {:.0} {unit} a call with one vCPU, {:.0} with two at once; \
         scales {:.2} times (asked: 1.8).",
        per_call(one, 1),
        per_call(two, 2),
        2.0 * one as f64 / two as f64
    );
}
