//! Samples of the vCPU, taken without a place in the guest.

use std::sync::Mutex;

use super::*;
use crate::engine::{NewSampler, SampleCounts};
use crate::events::{Consumer, HitConsumer, MemoryAtHit, RawValue, RecordedHit};

const KERNEL_CS: u16 = 0x10;
const USER_CS: u16 = 0x33;
const USER_IP: u64 = 0x40_1000;

/// Keeps the samples, and what it could read of the stack at each.
#[derive(Default)]
struct Taken {
    later: Mutex<Vec<RecordedHit>>,
    at_once: Mutex<Vec<(RecordedHit, bool)>>,
}

impl HitConsumer for Taken {
    fn take(&self, probe: usize, hit: RecordedHit) {
        assert_eq!(probe, 7);
        self.later.lock().unwrap().push(hit);
    }

    fn take_at_hit(&self, _: usize, hit: RecordedHit, memory: &mut dyn MemoryAtHit) -> Option<u64> {
        let has_read = memory.read(STACK, &mut [0; 8]);
        self.at_once.lock().unwrap().push((hit, has_read));
        None
    }
}

fn sampler(taken: &Arc<Taken>, at_hit: bool) -> NewSampler {
    let args = parse_line("p:any work ip=%ip:u64 top=+0(%sp):u64").unwrap().args;
    let to = Arc::clone(taken) as Arc<dyn HitConsumer>;
    let consumer = Consumer { to, probe: 7, at_hit, user_stack: true };
    NewSampler { group: "g".to_owned(), event: "s".to_owned(), args, stack: true, consumer }
}

impl Fake {
    /// Its vCPU is in `work`, called by `caller`, in a frame of its own.
    fn in_work(&self, cs: u16) {
        let mut registers = Registers { sregs: self.guest.sregs_now(), ..Registers::default() };
        let regs = &mut registers.regs;
        (regs.rip, regs.rsp, regs.rbp) = (WORK.0 + 4, STACK.0, STACK.0);
        if cs == USER_CS {
            (regs.rip, regs.rbp) = (USER_IP, 0);
        }
        registers.sregs.cs.selector = cs;
        self.store_u64(gpa(STACK), 0);
        self.store_u64(gpa(STACK.wrapping_add(8)), RETURN_SITE.0);
        *self.guest.registers.lock().unwrap() = registers;
    }
}

#[test]
fn a_sample_has_registers_memory_and_the_kernels_stack() {
    let (fake, taken) = (Fake::booted(), Arc::new(Taken::default()));
    let id = fake.engine.add_sampler(sampler(&taken, false)).unwrap();
    fake.in_work(KERNEL_CS);
    fake.engine.sample(id, 0).unwrap();
    fake.in_work(USER_CS);
    fake.engine.sample(id, 2).unwrap();
    assert_eq!(taken.later.lock().unwrap().len(), 0, "they wait for the drain, as hits do");
    let counts = fake.engine.remove_sampler(id);
    assert_eq!(counts, SampleCounts { taken: 2, lost: 2 });
    let samples = taken.later.lock().unwrap();
    let ip = WORK.0 + 4;
    assert_eq!(samples[0].value(0), Some(RawValue::Word(ip)));
    assert_eq!(samples[0].value(1), Some(RawValue::Word(0)));
    assert_eq!(samples[0].stack(), [ip, RETURN_SITE.0]);
    assert_eq!(samples[0].user_stack(), [] as [u64; 0]);
    assert_eq!(samples[1].stack(), [] as [u64; 0], "user mode has no stack of the kernel's");
    assert_eq!(samples[1].user_stack(), [USER_IP]);
    fake.engine.sample(id, 0).unwrap();
    assert_eq!(fake.engine.sample_counts(id), SampleCounts::default(), "it is gone");
}

#[test]
fn a_consumer_at_hits_has_the_memory_at_once() {
    let (fake, taken) = (Fake::booted(), Arc::new(Taken::default()));
    let id = fake.engine.add_sampler(sampler(&taken, true)).unwrap();
    fake.in_work(KERNEL_CS);
    fake.engine.sample(id, 0).unwrap();
    let samples = taken.at_once.lock().unwrap();
    assert!(matches!(samples.as_slice(), [(_, true)]), "{}", samples.len());
}

#[test]
fn a_guest_that_does_not_run_has_no_samples() {
    let (fake, taken) = (Fake::new(), Arc::new(Taken::default()));
    let id = fake.engine.add_sampler(sampler(&taken, false)).unwrap();
    let count = || {
        fake.engine.sample(id, 1).unwrap();
        let SampleCounts { taken, lost } = fake.engine.sample_counts(id);
        (taken, lost)
    };
    assert_eq!(count(), (0, 0), "before its kernel begins");
    fake.load_kernel();
    assert!(fake.begin());
    fake.finish_text();
    fake.store_u64(SYSTEM_STATE, 3);
    fake.in_work(KERNEL_CS);
    fake.engine.patrol();
    assert_eq!(count(), (1, 1), "the patrol has found the kernel");
    fake.guest.paused.store(true, Ordering::SeqCst);
    assert_eq!(count(), (1, 1), "paused");
    fake.guest.paused.store(false, Ordering::SeqCst);
    assert_eq!(count(), (2, 2));
    fake.guest.registers.lock().unwrap().sregs.cr0 = 0;
    assert_eq!(count().0, 2, "a vCPU that was not started");
    fake.guest.stopped.store(true, Ordering::SeqCst);
    assert_eq!(count().0, 2, "stopped");
}
