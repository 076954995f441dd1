//! An int3 hit against an empty port-I/O exit of the same guest.
//!
//! The loops have the same number of guest instructions a turn: `out` on one side stands against the
//! int3 on the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exoprobe_tests::loops::Loops;
use exoprobe_tests::{TestGuest, definition};
use exoprobe_vmm::ExitCounts;

use crate::figure::figure;

const TURNS: u64 = 20_000;
const ROUNDS: usize = 5;

/// One way of leaving the guest: the loop's body, whose first instruction may be probed.
struct Way {
    name: &'static str,
    body: &'static [u8],
    probed: bool,
}

const OUT: Way = Way { name: "out", body: &[0xee], probed: false };
/// xor edx,edx: emulated by the VMM.
const EMULATED: Way = Way { name: "int3, emulated", body: &[0x31, 0xd2], probed: true };
/// out; bswap rax; jmp +0: what a boosted bswap runs in its slot.
const OUT_AND_SLOT: Way =
    Way { name: "out, bswap, jmp", body: &[0xee, 0x48, 0x0f, 0xc8, 0xeb, 0], probed: false };
/// bswap rax: boosted.
const BOOSTED: Way = Way { name: "int3, boosted", body: &[0x48, 0x0f, 0xc8], probed: true };

struct Outcome {
    time: Duration,
    exits: u64,
    hits: u64,
}

fn measure(way: &Way) -> Outcome {
    let guest = TestGuest::restored(1);
    let vm = Arc::clone(&guest.vm);
    let observe = move || -> (Instant, ExitCounts) { (Instant::now(), vm.exit_counts()) };
    let loops = Loops::new(guest, &[way.body], observe);
    if way.probed {
        // Registers recorded, as the target has it.
        loops.probe_body(0, definition("p:body 0x1 %di %si %dx %cx"), false);
    }
    let ((first, before), (last, after)) = loops.run(0, TURNS);
    let hits = if way.probed { loops.guest().hits("body") } else { 0 };
    Outcome { time: last - first, exits: after.since(&before).total(), hits }
}

fn compare(exit: &Way, hit: &Way) {
    let (mut exits, mut hits) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        exits.push(measure(exit));
        hits.push(measure(hit));
    }
    let best = |all: &[Outcome]| all.iter().map(|o| o.time).min().expect("rounds").as_secs_f64();
    let (plain, probed) = (best(&exits), best(&hits));
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let turns = TURNS as f64;
    figure(
        &format!("{} to `{}`, time ratio", hit.name, exit.name),
        &format!("{:.2}", probed / plain),
        "<= 1.5",
    );
    let micros = |seconds: f64| format!("{:.2} us", seconds / turns * 1e6);
    figure(&format!("  `{}` loop, a turn", exit.name), &micros(plain), "");
    figure(&format!("  `{}` loop, a turn", hit.name), &micros(probed), "");
    // The exit at the end of the loop is in both.
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let extra = hits[0].exits as f64 - exits[0].exits as f64;
    figure(
        &format!("  {} hits, exits more than `out`s", hits[0].hits),
        &format!("{extra:+.0}"),
        "about 0",
    );
    assert!(hits.iter().all(|o| o.hits == TURNS), "every turn is a hit");
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let per_hit = (hits[0].exits as f64 / turns * 100.0).round() / 100.0;
    figure("  exits per hit", &format!("{per_hit:.2}"), "1");
}

pub(crate) fn run() {
    compare(&OUT, &EMULATED);
    compare(&OUT_AND_SLOT, &BOOSTED);
}
