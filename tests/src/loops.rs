//! Loops of a few instructions in the guest's kernel mode, with interrupts off: a known piece of
//! code that a probe can be put on, run so many times, and observed from its first instruction to
//! its last.
//!
//! The loops are written over a function that the workload never calls. A probe on getpid sends the
//! guest to a parking place before them, and it never comes back: its vCPU then runs loops on
//! request.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::{Gpa, Gva, kvm_regs};
use exoprobe_probes::{Action, Kprobe, ProbeDefinition, Selection, Verdict};
use exoprobe_vmm::VmState;

use crate::patience::is_over;
use crate::{TestGuest, definition};

/// A function that is overwritten: 300 bytes that run only when the guest reboots.
const SCRATCH: &str = "__do_sys_reboot";
/// park: nop; out 0xe9,al; jmp park. The nop is probed; the `out` exits also when the probe has
/// gone: Bochs does not interrupt a guest that spins with interrupts off, and its vCPU could not be
/// stopped.
const PARK: [u8; 5] = [0x90, 0xe6, 0xe9, 0xeb, 0xfb];
/// A loop's body that has the guest's timer expire, where it is one of deadlines (CPUID.1:ECX bit
/// 24; Intel SDM vol. 3, 11.5.4.1): cpuid; bt ecx,24; jnc end; rdtsc; mov ecx,0x6e0; wrmsr;
/// end: mov ecx,1.
const EXPIRE: [u8; 27] = [
    0xb8, 1, 0, 0, 0, 0x0f, 0xa2, 0x0f, 0xba, 0xe1, 24, 0x73, 9, 0x0f, 0x31, 0xb9, 0xe0, 6, 0, 0,
    0x0f, 0x30, 0xb9, 1, 0, 0, 0,
];
/// RDX of every loop: a port without a device, for `out dx, al` in a body.
const PORT: u64 = 0xe9;
const RFLAGS_IF: u64 = 1 << 9;
/// How long a parked vCPU waits in its probe before it looks for commands.
const WAIT: Duration = Duration::from_millis(1);
/// How often is looked whether the guest still runs.
const LOOK: Duration = Duration::from_millis(100);

/// Instructions that end each turn of a loop (`dec rcx; jnz`), beside its body.
pub const TURN_INSNS: u64 = 2;

/// A body that calls a function of the kernel.
///
/// # Panics
/// Never: kernel text is in the last 2 GiB.
#[must_use]
pub fn call(function: Gva) -> Vec<u8> {
    // mov rax, imm32; call rax. The immediate is sign-extended.
    let low = u32::try_from(function.0 & 0xffff_ffff).expect("32 bits").to_le_bytes();
    [&[0x48, 0xc7, 0xc0][..], &low, &[0xff, 0xd0]].concat()
}

/// The next command of the parked vCPU.
#[derive(Clone, Copy)]
struct LoopRequest {
    start: Gva,
    turns: u64,
    /// Turns of a loop of the vCPU's thread before it.
    pauses: u32,
}

/// Shared by the caller and the vCPU's thread.
struct ParkedVcpu<T> {
    request: Mutex<Option<LoopRequest>>,
    changed: Condvar,
    /// The observation when the running loop began.
    begun: Mutex<Option<T>>,
    results: Sender<(T, T)>,
}

impl<T> ParkedVcpu<T> {
    fn wait_for_request(&self) -> Option<LoopRequest> {
        let request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(request, WAIT, |request| request.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }

    fn begun(&self) -> std::sync::MutexGuard<'_, Option<T>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest is at the parking place: with the result of a loop, or for a request.
    fn park(&self, observe: &impl Fn() -> T, regs: &mut kvm_regs) -> Verdict {
        if self.begun().is_some() {
            let ended = observe();
            let begun = self.begun().take().expect("only this thread takes it");
            let _ = self.results.send((begun, ended));
        }
        let Some(request) = self.wait_for_request() else { return Verdict::Continue };
        regs.rip = request.start.0;
        regs.rcx = request.turns;
        regs.rdx = PORT;
        // Not a range, which has calls in it where it is not optimized.
        let mut left = request.pauses;
        while left > 0 {
            std::hint::spin_loop();
            left -= 1;
        }
        *self.begun() = Some(observe());
        Verdict::Done
    }
}

/// A guest whose first vCPU runs loops. Dropping it removes all probes.
pub struct Loops<T> {
    guest: TestGuest,
    bodies: Vec<Gva>,
    parked: Arc<ParkedVcpu<T>>,
    results: Receiver<(T, T)>,
}

impl<T: Send + 'static> Loops<T> {
    /// Writes a loop around each of `bodies` into `guest` and takes its vCPU there, whose timer's
    /// interrupt then waits for ever: each entry to a guest for which one waits takes KVM some 180
    /// instructions more, and it would come in the middle of the loops. `observe` is
    /// called on the vCPU's thread, last thing before a loop and first thing after it. A body may
    /// use RAX; RDX is a port without a device when the loop begins.
    ///
    /// # Panics
    /// When the guest does not go there, or the bodies are too long.
    #[must_use]
    pub fn new(
        guest: TestGuest,
        bodies: &[&[u8]],
        observe: impl Fn() -> T + Send + Sync + 'static,
    ) -> Self {
        let symbols = guest.engine.symbols().expect("the guest's kernel runs");
        let park = symbols.lookup_function(SCRATCH).expect("every kernel has it").address;
        let (code, offsets) = assemble(&[bodies, &[&EXPIRE]].concat());
        let bounds = symbols.function_at(park).expect("it is a function");
        assert!(code.len() as u64 <= bounds.end.0 - park.0, "the bodies are too long");
        guest
            .vm
            .ram()
            .write(Gpa(park.0 - KERNEL_IMAGE_BASE.0), &code)
            .expect("kernel text is in RAM");
        let (sender, results) = channel();
        let parked = Arc::new(ParkedVcpu {
            request: Mutex::new(None),
            changed: Condvar::new(),
            begun: Mutex::new(None),
            results: sender,
        });
        let handler = Arc::clone(&parked);
        // Every look for a request is a hit: its records would fill the ring.
        let (addr, actions) = (Some(park), vec![Action::Count]);
        let parking = Kprobe {
            definition: ProbeDefinition { addr, actions, ..ProbeDefinition::default() },
            pre_handler: Some(Box::new(move |hit| handler.park(&observe, hit.regs))),
            ..Kprobe::default()
        };
        let probes = vec![parking, enter(park)];
        guest.engine.register(probes).unwrap_or_else(|e| panic!("{e}"));
        let _ = guest.send("getpid 1");
        let timer = bodies.len();
        let bodies = offsets.into_iter().map(|offset| park.wrapping_add(offset)).collect();
        let loops = Self { guest, bodies, parked, results };
        // It is there once it has run one.
        drop(loops.run(timer, 1));
        loops
    }

    /// The guest.
    #[must_use]
    pub fn guest(&self) -> &TestGuest {
        &self.guest
    }

    /// Address of the first instruction of a body.
    #[must_use]
    pub fn body(&self, index: usize) -> Gva {
        self.bodies[index]
    }

    /// Puts a probe on the first instruction of a body; its own place is not used.
    ///
    /// # Panics
    /// When it is refused.
    pub fn probe_body(&self, index: usize, definition: ProbeDefinition, post_handler: bool) {
        let mut probe = Kprobe::from(definition);
        (probe.definition.symbol_name, probe.definition.offset) = (None, 0);
        probe.definition.addr = Some(self.body(index));
        if post_handler {
            probe.post_handler = Some(Box::new(|_| {}));
        }
        self.guest.engine.register(probe).unwrap_or_else(|e| panic!("body {index}: {e}"));
    }

    /// Runs a loop `turns` times (at least once). Returns the observations before and after.
    ///
    /// # Panics
    /// When the guest does not come to its end.
    #[must_use]
    pub fn run(&self, index: usize, turns: u64) -> (T, T) {
        self.run_later(index, turns, 0)
    }

    /// As [`Self::run`], but the vCPU's thread first pauses (`PAUSE`) so many times. Loops that
    /// begin when the thread is woken all have the same place between two ticks of the host's
    /// timer, and the tick may be in each of them.
    ///
    /// # Panics
    /// When the guest does not come to its end.
    #[must_use]
    pub fn run_later(&self, index: usize, turns: u64, pauses: u32) -> (T, T) {
        assert!(turns > 0, "RCX is counted down before it is looked at");
        let request = LoopRequest { start: self.body(index), turns, pauses };
        *self.parked.request.lock().unwrap_or_else(PoisonError::into_inner) = Some(request);
        self.parked.changed.notify_one();
        let begun = Instant::now();
        loop {
            if let Ok(result) = self.results.recv_timeout(LOOK) {
                return result;
            }
            let state = self.guest.vm.state();
            let alive = matches!(state, VmState::Running) && !is_over(begun);
            assert!(alive, "no end of a loop; the guest is {state:?}");
        }
    }
}

impl<T> Drop for Loops<T> {
    fn drop(&mut self) {
        // Handlers may hold the machine, which holds them.
        if let Err(error) = self.guest.engine.unregister(Selection::all()) {
            eprintln!("probes stay: {error}");
        }
    }
}

/// Takes the guest from getpid to the parking place, with interrupts off.
fn enter(park: Gva) -> Kprobe {
    Kprobe {
        definition: definition("p:enter __x64_sys_getpid"),
        pre_handler: Some(Box::new(move |hit| {
            hit.regs.rip = park.0;
            hit.regs.rflags &= !RFLAGS_IF;
            Verdict::Done
        })),
        ..Kprobe::default()
    }
}

/// The parking place, then each body with `dec rcx; jnz body; jmp park`; and the bodies' offsets.
fn assemble(bodies: &[&[u8]]) -> (Vec<u8>, Vec<u64>) {
    let mut code = PARK.to_vec();
    let mut offsets = Vec::new();
    for body in bodies {
        offsets.push(code.len() as u64);
        code.extend_from_slice(body);
        let back = u8::try_from(body.len() + 5).expect("a short loop").wrapping_neg();
        code.extend_from_slice(&[0x48, 0xff, 0xc9, 0x75, back]);
        let home = u32::try_from(code.len() + 5).expect("short code").wrapping_neg();
        code.push(0xe9);
        code.extend_from_slice(&home.to_le_bytes());
    }
    (code, offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loop_goes_back_to_its_body_and_ends_at_the_parking_place() {
        let (code, offsets) = assemble(&[&[], &[0x31, 0xd2]]);
        assert_eq!(offsets, [5, 15]);
        assert_eq!(code[15..22], [0x31, 0xd2, 0x48, 0xff, 0xc9, 0x75, 0xf9]);
        assert_eq!(22 + i64::from(0xf9_u8.cast_signed()), 15);
        assert_eq!(code[22], 0xe9);
        let home = i32::from_le_bytes(code[23..27].try_into().unwrap());
        assert_eq!(27 + home, 0);
    }
}
