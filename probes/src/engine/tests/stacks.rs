//! Back-traces, of hits and of a vCPU.

use super::*;
use crate::Selection;
use crate::definition::{Action, ReturnMode};
use crate::engine::{Frame, KeptProbes, NewSampler};
use crate::error::ProbeError;
use crate::events::{Consumer, HitConsumer, MemoryAtHit, RecordedHit};

const BANNER: Gva = Gva(0xffff_ffff_8111_8000);
const ORC_IPS: Gva = Gva(0xffff_ffff_8111_9000);
const ORC_ENTRIES: Gva = Gva(0xffff_ffff_8111_a000);
/// Kernel code, and 64-bit code of user mode.
const KERNEL_CS: u16 = 0x10;
const USER_CS: u16 = 0x33;

/// A consumer that drops its hits.
struct Unread;

impl HitConsumer for Unread {
    fn take(&self, _: usize, _: RecordedHit) {}

    fn take_at_hit(&self, _: usize, _: RecordedHit, _: &mut dyn MemoryAtHit) -> Option<u64> {
        None
    }
}

impl Fake {
    /// Has the kernel call itself Linux 6.1, and have ORC tables: `work` and `caller` return by
    /// RSP, and nobody called `far_off`. Frame pointers are not kept.
    fn with_orc() -> Self {
        let fake = Self::booted();
        fake.write(BANNER, b"Linux version 6.1.0-test (a@b) #1\n\0");
        let rows: [(Gva, [u8; 6]); 6] = [
            (WORK, [8, 0, 0, 0, 0x05, 0]),
            (WORK.wrapping_add(1), [16, 0, 0xf0, 0xff, 0x15, 0]),
            (Gva(RETURN_SITE.0 - 5), [8, 0, 0, 0, 0x05, 0]),
            (STACK_LEFT, [0; 6]),
            (FAR_OFF, [0, 0, 0, 0, 0, 4]),
            (Gva(IMAGE.0 + 0x3000), [0; 6]),
        ];
        for (n, (at, entry)) in (0..).zip(rows) {
            let place = ORC_IPS.wrapping_add(n * 4);
            let distance = i32::try_from(at.0.wrapping_sub(place.0).cast_signed()).unwrap();
            fake.write(place, &distance.to_le_bytes());
            fake.write(ORC_ENTRIES.wrapping_add(n * 6), &entry);
        }
        fake.store_u64(gpa(STACK), RETURN_SITE.0);
        fake.store_u64(gpa(STACK.wrapping_add(8)), FAR_OFF.0 + 3);
        fake
    }

    /// Has its ORC tables as before the kernel sorted them. Returns the sorted bytes, of `ORC_IPS`.
    fn unsort_orc(&self) -> [u8; 4] {
        let mut sorted = [0; 4];
        self.guest.ram.read(gpa(ORC_IPS), &mut sorted).unwrap();
        self.write(ORC_IPS, &0x100_0000_i32.to_le_bytes());
        sorted
    }

    fn trace(&self, line: &str, return_mode: ReturnMode) {
        let definition = parse_line(line).unwrap();
        let actions = vec![Action::Stack];
        let definition = crate::ProbeDefinition { actions, return_mode, ..definition };
        self.engine.register(definition).unwrap();
    }

    /// The back-trace of the one event of that name.
    fn traced(&self, event: &str) -> Vec<String> {
        self.engine.drain();
        let page = self.engine.events().read(1, usize::MAX);
        let mut all = page.events.iter().filter(|found| *found.event == *event);
        let (Some(found), None) = (all.next(), all.next()) else { panic!("one event {event}") };
        let shown = |frame: &crate::StackFrame| {
            format!("{}+{:#x}", frame.symbol_name.as_deref().unwrap_or("?"), frame.offset)
        };
        found.stack.as_ref().unwrap().iter().map(shown).collect()
    }

    /// The back-trace of the vCPU, as it is with these registers.
    fn stack_at(&self, rip: Gva, rsp: Gva, cs: u16) -> Vec<String> {
        let mut registers = Registers { sregs: self.guest.sregs_now(), ..Registers::default() };
        (registers.regs.rip, registers.regs.rsp) = (rip.0, rsp.0);
        registers.sregs.cs.selector = cs;
        *self.guest.registers.lock().unwrap() = registers;
        self.engine.stack(0).unwrap().iter().map(shown).collect()
    }
}

fn shown(frame: &Frame) -> String {
    match (&frame.symbol_name, frame.user) {
        (Some(name), false) => format!("{name}+{:#x}", frame.offset),
        (None, true) => format!("user {}", frame.addr),
        _ => frame.addr.to_string(),
    }
}

#[test]
fn hits_have_their_callers_by_orc_tables_with_true_addresses() {
    const CALLERS: [&str; 3] = ["work+0x0", "caller+0x5", "far_off+0x3"];
    for mode in [ReturnMode::Trampoline, ReturnMode::Site] {
        let fake = Fake::with_orc();
        fake.trace("r:back work", mode);
        fake.trace("p:entry work", ReturnMode::Trampoline);
        fake.call_work(STACK);
        assert_eq!(fake.traced("entry"), CALLERS, "{mode:?}");
        assert_eq!(fake.traced("back"), CALLERS, "{mode:?}");
    }
}

#[test]
fn tables_that_come_later_are_found_and_others_never_asked_for() {
    let fake = Fake::booted();
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    fake.trace("p:entry work", ReturnMode::Trampoline);
    fake.run(WORK);
    assert_eq!(fake.traced("entry"), ["work+0x0", "caller+0x5"], "by frame pointers");
    assert_eq!(fake.engine.running_kernel().banner, None, "it has none");
    let fake = Fake::with_orc();
    let sorted = fake.unsort_orc();
    fake.trace("p:entry work", ReturnMode::Trampoline);
    fake.run(WORK);
    assert_eq!(fake.traced("entry"), ["work+0x0", "caller+0x5"]);
    fake.write(ORC_IPS, &sorted);
    fake.engine.patrol();
    fake.trace("p:inside work+1", ReturnMode::Trampoline);
    let sp = Gva(STACK.0 - 8);
    fake.run_on(WORK.wrapping_add(1), sp);
    assert_eq!(fake.traced("inside"), ["work+0x1", "caller+0x5", "far_off+0x3"]);
    assert_eq!(fake.engine.running_kernel().banner.unwrap().version.to_string(), "6.1.0");
}

#[test]
fn hits_have_the_tables_that_a_sample_loaded() {
    let fake = Fake::with_orc();
    let sorted = fake.unsort_orc();
    fake.trace("p:entry work", ReturnMode::Trampoline);
    let (to, group, event) = (Arc::new(Unread), "g".to_owned(), "s".to_owned());
    let consumer = Consumer { to, probe: 0, at_hit: false, user_stack: false };
    let sampler = NewSampler { group, event, args: Vec::new(), stack: true, consumer };
    let id = fake.engine.add_sampler(sampler).unwrap();
    fake.write(ORC_IPS, &sorted);
    fake.engine.sample(id, 0).unwrap();
    fake.run(WORK);
    assert_eq!(fake.traced("entry"), ["work+0x0", "caller+0x5", "far_off+0x3"]);
}

#[test]
fn the_running_kernel_is_known_while_a_snapshot_or_a_dump_is_written() {
    let fake = Fake::with_orc();
    fake.trace("p:entry work", ReturnMode::Trampoline);
    let _ = fake.engine.unregister(Selection::all());
    let running = fake.engine.running_kernel();
    assert!(running.banner.is_some());
    let of_snapshot: fn(&Engine) -> KeptProbes<'_> = |engine| engine.traceless().unwrap();
    let of_dump: fn(&Engine) -> KeptProbes<'_> = |engine| engine.dump_notes().0;
    for keep in [of_snapshot, of_dump] {
        let (told, heard) = std::sync::mpsc::channel();
        let kept_probes = keep(&fake.engine);
        let engine = Arc::clone(&fake.engine);
        let asking = std::thread::spawn(move || told.send(engine.running_kernel()));
        // Only a hang reaches it.
        let kept = heard.recv_timeout(std::time::Duration::from_secs(60));
        drop(kept_probes);
        asking.join().unwrap().ok();
        assert_eq!(kept, Ok(running.clone()));
        assert_eq!(fake.engine.running_kernel(), running, "asked anew");
    }
}

#[test]
fn a_vcpus_stack_is_shown_from_slots_and_through_trampolines() {
    let fake = Fake::with_orc();
    assert_eq!(fake.stack_at(WORK, STACK, KERNEL_CS), ["work+0x0", "caller+0x5", "far_off+0x3"]);
    fake.register("p:entry work");
    fake.register("r:back work");
    let (_, slot) = fake.run_on(WORK, STACK);
    assert_ne!(slot, WORK);
    let mut word = [0; 8];
    fake.guest.ram.read(gpa(STACK), &mut word).unwrap();
    assert_ne!(u64::from_le_bytes(word), RETURN_SITE.0, "a trampoline is there");
    let expected = ["work+0x0", "caller+0x5", "far_off+0x3"];
    assert_eq!(fake.stack_at(slot, STACK, KERNEL_CS), expected);
    assert_eq!(fake.stack_at(Gva(0x40_1000), Gva(0x7000), USER_CS), ["user 0x401000"]);
    assert_eq!(fake.stack_at(Gva(0xffff_ffff_c000_0000), STACK, KERNEL_CS).len(), 1, "unknown");
}

#[test]
fn a_function_that_has_no_frame_yet_has_its_caller_without_tables() {
    let fake = Fake::booted();
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    fake.register("p:entry work");
    let below = Gva(STACK.0 - 8);
    for (at, rsp) in [(0, STACK), (1, below), (10, STACK)] {
        let frames = fake.stack_at(WORK.wrapping_add(at), rsp, KERNEL_CS);
        assert_eq!(frames, [format!("work+{at:#x}"), "caller+0x5".to_owned()]);
    }
    assert_eq!(fake.stack_at(WORK.wrapping_add(4), below, KERNEL_CS), ["work+0x4"], "RBP is 0");
}

#[test]
fn there_is_no_stack_without_a_vcpu_or_a_kernel() {
    let error = Fake::booted().engine.stack(1).unwrap_err();
    assert!(
        matches!(error, ProbeError::Vcpu(VcpuError::NoSuchVcpu(1))) && error.code() == "ENOENT"
    );
    assert_eq!(Fake::new().engine.stack(0).unwrap_err().code(), "EAGAIN");
}

#[test]
fn tables_that_never_come_are_not_asked_for_for_ever() {
    let fake = Fake::with_orc();
    let mut first = [0; 4];
    fake.guest.ram.read(gpa(ORC_IPS), &mut first).unwrap();
    fake.write(ORC_IPS, &0x100_0000_i32.to_le_bytes());
    for _ in 0..30 {
        assert_eq!(fake.stack_at(WORK, STACK, KERNEL_CS).len(), 2);
    }
    fake.write(ORC_IPS, &first);
    assert_eq!(fake.stack_at(WORK, STACK, KERNEL_CS).len(), 2, "it was unsorted too often");
    fake.hook.reset();
    fake.load_kernel();
    assert!(fake.begin());
    fake.finish_text();
    fake.store_u64(SYSTEM_STATE, 3);
    fake.store_u64(gpa(STACK), RETURN_SITE.0);
    fake.store_u64(gpa(STACK.wrapping_add(8)), FAR_OFF.0 + 3);
    assert_eq!(fake.stack_at(WORK, STACK, KERNEL_CS).len(), 3, "another boot, another kernel");
}
