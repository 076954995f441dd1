//! The calls of handlers, and their abilities.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{Gpa, GuestRam, Gva};
use exoprobe_probes::{
    DisplacedBy, FaultHandler, Hit, Kprobe, PreHandler, Recovery, Selection, Verdict,
};
use exoprobe_tests::harness::Case;
use exoprobe_tests::{TestGuest, address, cases, definition};

use crate::support::returned::{By, events_of, follow};

pub(crate) const CASES: &[Case] = cases![
    a_handler_that_chose_where_to_go_on_is_the_last_of_its_hit(vcpus),
    post_handlers_see_what_the_instruction_did(vcpus),
    handlers_read_the_memory_of_the_task_that_hit(vcpus),
    the_guest_sees_the_writes_of_handlers(vcpus),
    memory_that_is_not_there_is_an_error_and_no_harm(vcpus),
    a_fault_handler_may_give_up_or_have_it_tried_once_more(vcpus),
    a_fault_handler_is_asked_for_its_own_probe_alone(vcpus),
];

/// Where the kernel's image may be mapped and is not: by this entry of its page directory.
const SPARE_ENTRY: u64 = 400;
const SPARE: Gva = Gva(KERNEL_IMAGE_BASE.0 + (SPARE_ENTRY << 21));
/// Present, writable, accessed, dirty, 2 MiB: the first of RAM.
const SPARE_MAPPING: u64 = 0xe3;

fn counter() -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let counter = Arc::new(AtomicU64::new(0));
    (Arc::clone(&counter), counter)
}

fn register(guest: &TestGuest, line: &str, pre_handler: PreHandler, fault: Option<FaultHandler>) {
    let definition = definition(line);
    let pre_handler = Some(pre_handler);
    let probe = Kprobe { definition, pre_handler, fault_handler: fault, ..Kprobe::default() };
    guest.engine.register(probe).unwrap_or_else(|e| panic!("{line}: {e}"));
}

fn a_handler_that_chose_where_to_go_on_is_the_last_of_its_hit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let target = address("__x64_sys_getppid");
    let (late, late_calls) = counter();
    let post = |event: &str, verdict| {
        let late = Arc::clone(&late);
        Kprobe {
            definition: definition(&format!("p:{event} __x64_sys_getpid")),
            pre_handler: Some(Box::new(move |hit| {
                if verdict == Verdict::Done {
                    hit.regs.rip = target.0;
                }
                verdict
            })),
            post_handler: Some(Box::new(move |_| _ = late.fetch_add(1, Ordering::SeqCst))),
            ..Kprobe::default()
        }
    };
    let probes = vec![post("first", Verdict::Continue), post("diverts", Verdict::Done)];
    guest.engine.register(probes).unwrap();
    guest.probe("p:after __x64_sys_getpid");
    follow(&guest, "r:followed __x64_sys_getpid", By::Trampoline);
    guest.probe("p:target __x64_sys_getppid");
    assert_eq!(guest.work("getpid 20"), 20);
    assert_eq!((guest.hits("first"), guest.hits("diverts"), guest.hits("target")), (20, 20, 20));
    assert_eq!(guest.hits("after"), 0);
    assert_eq!((guest.hits("followed"), guest.status("followed").nmissed), (0, 0));
    assert_eq!(late_calls.load(Ordering::SeqCst), 0, "the instruction did not run");
    guest.engine.unregister(Selection::kprobe("kprobes", "diverts")).unwrap();
    assert_eq!(guest.work("getpid 20"), 20);
    assert_eq!((guest.hits("after"), guest.hits("followed")), (20, 20));
    assert_eq!(late_calls.load(Ordering::SeqCst), 20);
    guest.assert_unharmed();
}

/// Probes one instruction of getpid with a post-handler that `check`s what it left.
fn assert_post(
    vcpus: u8,
    offset: u64,
    (text, way): (&str, DisplacedBy),
    check: impl Fn(&mut Hit<'_>) + Send + Sync + 'static,
) {
    let guest = TestGuest::restored(vcpus);
    let (calls, count) = counter();
    let probe = Kprobe {
        definition: definition(&format!("p:post __x64_sys_getpid+{offset}")),
        post_handler: Some(Box::new(move |hit| {
            check(hit);
            count.fetch_add(1, Ordering::SeqCst);
        })),
        ..Kprobe::default()
    };
    guest.engine.register(probe).unwrap();
    assert_eq!(guest.work("getpid 50"), 50);
    let status = guest.status("post");
    let instruction = status.instruction.unwrap();
    assert!(instruction.starts_with(text), "{instruction}");
    assert_eq!(status.displaced, Some(way));
    assert_eq!((status.hits, calls.load(Ordering::SeqCst)), (50, 50), "{text}");
    guest.assert_unharmed();
}

fn post_handlers_see_what_the_instruction_did(vcpus: u8) {
    let top = |hit: &mut Hit<'_>| hit.read_u64(Gva(hit.regs.rsp)).expect("the stack");
    let entry = address("__x64_sys_getpid").0;
    assert_post(vcpus, 0, ("push rbp", DisplacedBy::Step), move |hit| {
        assert_eq!(hit.regs.rip, entry + 1);
        assert_eq!(top(hit), hit.regs.rbp);
    });
    assert_post(vcpus, 1, ("xor edx", DisplacedBy::Emulation), move |hit| {
        assert_eq!((hit.regs.rip, hit.regs.rdx), (entry + 3, 0));
    });
    let callee = address("__task_pid_nr_ns").0;
    assert_post(vcpus, 20, ("call", DisplacedBy::Step), move |hit| {
        assert_eq!(hit.regs.rip, callee, "the first instruction of what it calls is next");
        assert_eq!(top(hit), entry + 25);
    });
}

fn handlers_read_the_memory_of_the_task_that_hit(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let (right, count) = counter();
    let read_path = move |hit: &mut Hit<'_>| {
        let mut path = [0; 10];
        hit.read(Gva(hit.regs.rsi), &mut path).expect("the caller has just written it");
        assert_eq!(&path, b"/dev/null\0");
        assert!(hit.regs.rsi >> 63 == 0, "user memory");
        count.fetch_add(1, Ordering::SeqCst);
        Verdict::Continue
    };
    register(&guest, "p:path do_sys_openat2 first=+0(%si)", Box::new(read_path), None);
    assert_eq!(guest.work("par 3 open /dev/null 30"), 90);
    assert_eq!((guest.hits("path"), right.load(Ordering::SeqCst)), (90, 90));
    let word = format!("{:#x}", u64::from_le_bytes(*b"/dev/nul"));
    assert!(events_of(&guest, "path").iter().all(|event| event.args["first"] == word.as_str()));
    guest.assert_unharmed();
}

fn the_guest_sees_the_writes_of_handlers(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let answer = guest.answer_line(guest.send("open /dev/nulx 1"), "open");
    assert!(answer.starts_with("error open: ") && answer.contains("(0 done)"), "{answer}");
    // In the kernel's copy: struct filename begins with the pointer to the name.
    let correct_copy = |hit: &mut Hit<'_>| {
        let name = hit.read_u64(Gva(hit.regs.rsi)).expect("struct filename");
        hit.write(Gva(name + 8), b"l").expect("the name");
        Verdict::Continue
    };
    register(&guest, "p:copy do_filp_open", Box::new(correct_copy), None);
    assert_eq!(guest.work("open /dev/nulx 5"), 5);
    guest.engine.unregister(Selection::kprobe("kprobes", "copy")).unwrap();
    let answer = guest.answer_line(guest.send("open /dev/nulx 1"), "open");
    assert!(answer.starts_with("error open: "), "the caller's own was not changed: {answer}");
    // In the caller's memory, which stays changed.
    let (writes, count) = counter();
    let correct = move |hit: &mut Hit<'_>| {
        let at = Gva(hit.regs.rsi + 8);
        let mut letter = [0];
        hit.read(at, &mut letter).expect("the path");
        if letter == *b"x" {
            count.fetch_add(1, Ordering::SeqCst);
            hit.write(at, b"l").expect("the path");
        }
        Verdict::Continue
    };
    register(&guest, "p:user do_sys_openat2", Box::new(correct), None);
    assert_eq!(guest.work("open /dev/nulx 5"), 5);
    assert_eq!(writes.load(Ordering::SeqCst), 1, "one path for all five");
    guest.assert_unharmed();
}

/// Entry of the kernel's page directory for [`SPARE`].
fn spare_entry() -> Gpa {
    let directory = exoprobe_tests::kernel_symbols().lookup("level2_kernel_pgt").unwrap().address;
    Gpa(directory.0 - KERNEL_IMAGE_BASE.0 + SPARE_ENTRY * 8)
}

/// Maps 2 MiB there for the engine; the guest does not look there.
fn map_spare(ram: &GuestRam, entry: Gpa) {
    ram.store_u64(entry, SPARE_MAPPING).expect("the page directory");
}

fn memory_that_is_not_there_is_an_error_and_no_harm(vcpus: u8) {
    const NOWHERE: [u64; 9] = [
        0,
        8,
        0x7fff_ffff_fffc,
        0x8000_0000_0000,
        0x7fff_ffff_ffff_fffc,
        0xffff_7fff_ffff_ffff,
        SPARE.0 - 4,
        u64::MAX - 3,
        u64::MAX,
    ];
    let guest = TestGuest::restored(vcpus);
    let (calls, count) = counter();
    map_spare(guest.vm.ram(), spare_entry());
    let end = SPARE.wrapping_add(1 << 21);
    let touch = move |hit: &mut Hit<'_>| {
        for at in NOWHERE.map(Gva) {
            assert!(hit.read(at, &mut [0; 8]).is_err(), "{at}");
            assert!(hit.read_u64(at).is_err(), "{at}");
            assert!(hit.write(at, &[0xff; 8]).is_err(), "{at}");
        }
        // Half of it is there: nothing is written.
        let half = Gva(end.0 - 4);
        let (mut before, mut after) = ([0; 4], [0; 4]);
        hit.read(half, &mut before).expect("it is mapped");
        let other = before.map(|byte| !byte);
        assert!(hit.write(half, &[other, other].concat()).is_err());
        hit.read(half, &mut after).expect("it is mapped");
        assert_eq!(before, after);
        assert!(hit.read(half, &mut [0; 8]).is_err());
        count.fetch_add(1, Ordering::SeqCst);
        Verdict::Continue
    };
    register(&guest, "p:wild __x64_sys_getpid a=@0x10 b=+0(%di)", Box::new(touch), None);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(calls.load(Ordering::SeqCst), 10);
    for event in events_of(&guest, "wild") {
        assert_eq!(event.args["a"], "(fault)");
        assert_ne!(event.args["b"], "(fault)", "struct pt_regs");
    }
    guest.engine.unregister(Selection::all()).unwrap();
    guest.vm.ram().store_u64(spare_entry(), 0).unwrap();
    guest.assert_unharmed();
}

fn a_fault_handler_may_give_up_or_have_it_tried_once_more(vcpus: u8) {
    for recovery in [Recovery::GiveUp, Recovery::Retry] {
        let guest = TestGuest::restored(vcpus);
        let (faults, count) = counter();
        let fault = move |_: &mut _, error: &_| {
            assert!(format!("{error}").contains(&format!("{:x}", SPARE.0 + 16)), "{error}");
            count.fetch_add(1, Ordering::SeqCst);
            recovery
        };
        let fails = |hit: &mut Hit<'_>| {
            assert!(hit.read_u64(SPARE.wrapping_add(16)).is_err());
            assert!(hit.write(SPARE.wrapping_add(16), &[0]).is_err());
            Verdict::Continue
        };
        register(&guest, "p:fails __x64_sys_getpid", Box::new(fails), Some(Box::new(fault)));
        assert_eq!(guest.work("getpid 10"), 10);
        assert_eq!(faults.load(Ordering::SeqCst), 20, "once for each access: {recovery:?}");
        guest.assert_unharmed();
    }
    let guest = TestGuest::restored(vcpus);
    let (faults, count) = counter();
    let (ram, entry) = (guest.vm.ram().clone(), spare_entry());
    let mend = move |_: &mut _, _: &_| {
        count.fetch_add(1, Ordering::SeqCst);
        map_spare(&ram, entry);
        Recovery::Retry
    };
    let reads = |hit: &mut Hit<'_>| {
        assert!(hit.read_u64(SPARE.wrapping_add(16)).is_ok(), "the second try");
        Verdict::Continue
    };
    register(&guest, "p:mends __x64_sys_getpid", Box::new(reads), Some(Box::new(mend)));
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(faults.load(Ordering::SeqCst), 1, "mended for good");
    guest.engine.unregister(Selection::all()).unwrap();
    guest.vm.ram().store_u64(spare_entry(), 0).unwrap();
    guest.assert_unharmed();
}

fn a_fault_handler_is_asked_for_its_own_probe_alone(vcpus: u8) {
    let guest = TestGuest::restored(vcpus);
    let (asked, count) = counter();
    let fault: FaultHandler = Box::new(move |regs, _| {
        count.fetch_add(1, Ordering::SeqCst);
        regs.rax = 0;
        Recovery::GiveUp
    });
    let fails = |hit: &mut Hit<'_>| {
        assert!(hit.read_u64(SPARE).is_err());
        Verdict::Continue
    };
    register(&guest, "p:asks __x64_sys_getpid", Box::new(|_| Verdict::Continue), Some(fault));
    register(&guest, "p:silent __x64_sys_getpid", Box::new(fails), None);
    assert_eq!(guest.work("getpid 10"), 10);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    guest.engine.unregister(Selection::all()).unwrap();
    // A fault of the guest's own is no concern of a probe's: the kernel reads a path that is not
    // there.
    let (asked, count) = counter();
    let fault: FaultHandler = Box::new(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        Recovery::GiveUp
    });
    let spoil = |hit: &mut Hit<'_>| {
        hit.regs.rsi = 0x10;
        Verdict::Continue
    };
    register(&guest, "p:spoil do_sys_openat2", Box::new(spoil), Some(fault));
    let answer = guest.answer_line(guest.send("open /dev/null 1"), "open");
    assert!(answer.starts_with("error open: ") && answer.contains("14"), "EFAULT: {answer}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    guest.assert_unharmed();
}
