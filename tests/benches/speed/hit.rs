//! An int3 hit against an empty port-I/O exit of the same guest.
//!
//! Both are loops in the guest's kernel mode, written over a function that the workload never calls;
//! a probe's handler sends the guest there. The loops have the same number of guest instructions a
//! turn: `out` on one side stands against the int3 on the other.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use exoprobe_probes::{Kprobe, ProbeDefinition, Verdict, parse_line};
use exoprobe_tests::{TestGuest, kernel_symbols};
use exoprobe_vmm::{Gpa, Gva};

use crate::figure;

const TURNS: u64 = 20_000;
const ROUNDS: usize = 5;
/// A function that is overwritten: 300 bytes that run only when the guest reboots.
const SCRATCH: &str = "__do_sys_reboot";
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// One way of leaving the guest: the loop's code, and the offset of the probed instruction.
struct Loop {
    name: &'static str,
    body: &'static [u8],
    probed: bool,
}

const OUT: Loop = Loop { name: "out", body: &[0xee], probed: false };
/// xor edx,edx: emulated by the VMM.
const EMULATED: Loop = Loop { name: "int3, emulated", body: &[0x31, 0xd2], probed: true };
/// out; bswap rax; jmp +0: what a boosted bswap runs in its slot.
const OUT_AND_SLOT: Loop =
    Loop { name: "out, bswap, jmp", body: &[0xee, 0x48, 0x0f, 0xc8, 0xeb, 0], probed: false };
/// bswap rax: boosted.
const BOOSTED: Loop = Loop { name: "int3, boosted", body: &[0x48, 0x0f, 0xc8], probed: true };

struct Outcome {
    time: Duration,
    exits: u64,
    hits: u64,
}

fn place() -> Gva {
    kernel_symbols().lookup_function(SCRATCH).expect("the kernel has it").address
}

/// start: nop; loop: BODY; dec rcx; jnz loop; end: nop; jmp end
fn code(body: &[u8]) -> (Vec<u8>, u64) {
    let mut code = vec![0x90];
    code.extend_from_slice(body);
    code.extend_from_slice(&[0x48, 0xff, 0xc9]);
    let back = u8::try_from(body.len() + 5).expect("a short loop").wrapping_neg();
    code.extend_from_slice(&[0x75, back]);
    let end = code.len() as u64;
    code.extend_from_slice(&[0x90, 0xeb, 0xfd]);
    (code, end)
}

fn at(
    address: Gva,
    handler: impl Fn(&mut exoprobe_vmm::kvm_regs) -> Verdict + Send + Sync + 'static,
) -> Kprobe {
    let definition = ProbeDefinition { addr: Some(address), ..ProbeDefinition::default() };
    Kprobe { definition, pre_handler: Some(Box::new(handler)), post_handler: None }
}

fn measure(which: &Loop) -> Outcome {
    let guest = TestGuest::restored(1);
    let start = place();
    let (bytes, end) = code(which.body);
    guest.vm.ram().write(Gpa(start.0 - KERNEL_MAP), &bytes).expect("kernel text is in RAM");
    let (send, moments) = channel();
    let ended = send.clone();
    let begin = at(start, move |_| {
        let _ = send.send(Instant::now());
        Verdict::Continue
    });
    let finish = at(start.wrapping_add(end), move |_| {
        let _ = ended.send(Instant::now());
        Verdict::Continue
    });
    let enter = Kprobe {
        definition: parse_line("p:enter __x64_sys_getpid").expect("a definition"),
        pre_handler: Some(Box::new(move |regs| {
            regs.rip = start.0;
            regs.rcx = TURNS;
            // A port without a device, and no interrupts.
            regs.rdx = 0xe9;
            regs.rflags &= !0x200;
            Verdict::Done
        })),
        post_handler: None,
    };
    let mut probes = vec![begin, finish, enter];
    if which.probed {
        // Registers recorded, as the target has it.
        let mut probe =
            Kprobe::from(parse_line("p:body 0x1 %di %si %dx %cx").expect("a definition"));
        probe.definition.addr = Some(start.wrapping_add(1));
        probes.push(probe);
    }
    guest.engine.register_kprobes(probes).unwrap_or_else(|e| panic!("{}: {e}", which.name));
    let exits = guest.vm.exits();
    guest.vm.serial(1).expect("port 1").send(b"getpid 1\n").expect("the workload reads");
    let first = moments.recv_timeout(Duration::from_secs(60)).expect("the loop begins");
    let last = moments.recv_timeout(Duration::from_secs(60)).expect("the loop ends");
    let exits = guest.vm.exits() - exits;
    let hits = if which.probed { guest.hits("body") } else { 0 };
    Outcome { time: last - first, exits, hits }
}

fn compare(exit: &Loop, hit: &Loop) {
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
    // What both loops share (entering, the port's own exits, two markers) cancels out.
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
