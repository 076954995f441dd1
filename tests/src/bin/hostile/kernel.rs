//! A guest whose kernel is hostile: it writes anything over the memory that the engine has in it,
//! while its probes are hit.
//!
//! Its `sync` system call is replaced in a snapshot, by code that stores words at random addresses
//! of a range: the rings of records, hidden memory, or the page tables that lead there.

use std::time::{Duration, Instant};

use exoprobe_guest::Gva;
use exoprobe_guest::hidden::RINGS;
use exoprobe_guest::layout::{HIDDEN_GVA, HIDDEN_SIZE, HIDDEN_TABLES, RINGS_SIZE};
use exoprobe_introspect::SymbolTable;
use exoprobe_tests::{Dice, PATIENCE, Service, kernel_symbols};
use iced_x86::code_asm::{
    CodeAssembler, eax, edx, qword_ptr, r12, r12d, rax, rbx, rdi, rdx, rsi, rsp,
};

use crate::attack::{Ground, LOG_MAX, Tally, ask, check_alive, end, holds_soon};
use crate::parts::Parts;

/// The system call that becomes hostile: one jump there leads to the code.
const CALL: &str = "__x64_sys_sync";
/// A function that the attack never calls, 300 bytes long: the code is written over it.
const ROOM: &str = "__do_sys_reboot";
/// Stores eight bytes, or returns an error where nothing is mapped.
const STORE: &str = "copy_to_kernel_nofault";
/// The direct map of RAM of a kernel without KASLR.
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// Page tables of hidden memory.
const TABLES_SIZE: u64 = 2 << 12;
/// Stores of one call.
const STORES: u32 = 2000;
/// Time of one guest.
const ROUND: Duration = Duration::from_millis(1500);
/// Part of the engine's message on a ring that is none.
const NOTICED: &str = "records of optimized probes";
/// Longest wait for the probes to be optimized.
const OPTIMIZED: Duration = Duration::from_secs(30);
/// Most memory that a guest may cost by this, in KiB.
const MOST_KIB: u64 = 64 << 10;

/// Words at random addresses of a range.
struct Scribble {
    base: u64,
    /// Bytes: a power of two.
    size: u64,
    /// Bits that are taken from each random word: few bits make small numbers.
    shift: u32,
}

impl Scribble {
    /// The first is one that the engine must notice: anything in a ring's head and limit.
    fn choose(dice: &mut Dice, is_first: bool) -> Self {
        let rings = RINGS.gva.0;
        if is_first {
            return Self { base: rings, size: 64, shift: 0 };
        }
        let [base, size] = *dice.pick(&[
            [rings, 64],
            [rings, 4096],
            [rings, RINGS_SIZE],
            [HIDDEN_GVA.0, HIDDEN_SIZE],
            [DIRECT_MAP + HIDDEN_TABLES.0, TABLES_SIZE],
        ]);
        Self { base, size, shift: *dice.pick(&[0, 8, 40, 56]) }
    }

    /// A system call that does it, and returns 0.
    fn code(&self, at: Gva, store: Gva) -> Vec<u8> {
        let assembled = self.assemble(store.0).and_then(|mut code| code.assemble(at.0));
        assembled.expect("instructions that there are")
    }

    fn assemble(&self, store: u64) -> Result<CodeAssembler, iced_x86::IcedError> {
        let mut code = CodeAssembler::new(64)?;
        let mut again = code.create_label();
        code.push(rbx)?;
        code.push(r12)?;
        // Room for the word, and a stack that is aligned as calls want it.
        code.sub(rsp, 8)?;
        code.mov(r12d, STORES)?;
        code.rdtsc()?;
        code.shl(rdx, 32)?;
        code.or(rax, rdx)?;
        code.mov(rbx, rax)?;
        code.set_label(&mut again)?;
        // Marsaglia's xorshift64.
        for (left, count) in [(true, 13), (false, 7), (true, 17)] {
            code.mov(rax, rbx)?;
            if left {
                code.shl(rax, count)?
            } else {
                code.shr(rax, count)?
            }
            code.xor(rbx, rax)?;
        }
        code.mov(rax, rbx)?;
        code.shr(rax, self.shift)?;
        code.mov(qword_ptr(rsp), rax)?;
        code.mov(rdi, rbx)?;
        code.shr(rdi, 20)?;
        code.and(rdi, i32::try_from(self.size - 8).expect("some MiB"))?;
        code.mov(rax, self.base)?;
        code.add(rdi, rax)?;
        code.mov(rsi, rsp)?;
        code.mov(edx, 8)?;
        code.mov(rax, store)?;
        code.call(rax)?;
        code.dec(r12d)?;
        code.jnz(again)?;
        code.add(rsp, 8)?;
        code.pop(r12)?;
        code.pop(rbx)?;
        code.xor(eax, eax)?;
        code.ret()?;
        Ok(code)
    }

    /// Writes a snapshot of a guest that does it.
    fn write(&self, parts: &mut Parts, symbols: &SymbolTable, path: &str) {
        let symbol = |name| symbols.lookup(name).expect("the tiny kernel has it");
        let (room, call) = (symbol(ROOM), symbol(CALL).address);
        let code = self.code(room.address, symbol(STORE).address);
        assert!(code.len() as u64 <= room.size, "{} bytes", code.len());
        parts.image(room.address, code.len()).copy_from_slice(&code);
        let mut jump = CodeAssembler::new(64).expect("64 bits");
        jump.jmp(room.address.0).expect("it is near");
        let jump = jump.assemble(call.0).expect("it is near");
        parts.image(call, jump.len()).copy_from_slice(&jump);
        parts.write(path, &parts.meta, |_| ());
    }
}

pub(crate) fn hostile(ground: &mut Ground, tally: &mut Tally) {
    let mut parts = Parts::read(&ground.snapshot);
    let symbols = kernel_symbols();
    let path = ground.path("hostile");
    let mut noticed = 0;
    while ground.goes_on(tally) {
        let is_first = tally.times == 0;
        let scribble = Scribble::choose(&mut ground.dice, is_first);
        scribble.write(&mut parts, &symbols, &path);
        let log = round(&path, is_first, tally);
        noticed += u64::from(log.contains(NOTICED));
        tally.times += 1;
    }
    println!("hostile: {noticed} of {} kernels made a ring that is none", tally.times);
    tally.check(noticed > 0, || "the attack reaches no ring".to_owned());
}

/// One guest: its probes are hit while it scribbles, for [`ROUND`], and where the engine
/// `must_notice` it until it has. Returns the service's messages.
fn round(path: &str, must_notice: bool, tally: &mut Tally) -> String {
    let files = Service::boot_files();
    let files = files.each_ref().map(String::as_str);
    let service = Service::start(&[&["--restore", path][..], &files].concat());
    let text = "text/plain";
    let probes = "p:hit __x64_sys_getpid a=%di\nr:ret __x64_sys_getpid v=$retval\np:io ksys_write";
    let added = ask(&service, "POST", "/v1/probes", text, probes.as_bytes());
    tally.check(added.is_ok_and(|answer| answer.status == 201), || service.log());
    wait_until_optimized(&service, tally);
    let before = service.resident_kib();
    let work = "getpid 300\nsync 3\n".repeat(50);
    drop(ask(&service, "POST", "/v1/vm/serial/1", text, work.as_bytes()));
    let begun = Instant::now();
    let is_awaited =
        || must_notice && begun.elapsed() < PATIENCE && !service.log().contains(NOTICED);
    while begun.elapsed() < ROUND || is_awaited() {
        let questions =
            ["/v1/vm", "/v1/probes", "/v1/events?limit=100", "/v1/tasks", "/v1/vcpus/0/stack"];
        for question in questions {
            match ask(&service, "GET", question, "", b"") {
                Ok(answer) => tally.check(answer.status < 500 || answer.status == 503, || {
                    format!("GET {question}: {answer:?}")
                }),
                Err(error) => tally.found(error),
            }
        }
    }
    // The guest may have harmed itself; its probes can be removed all the same.
    let removed = ask(&service, "DELETE", "/v1/probes", "", b"");
    tally
        .check(removed.as_ref().is_ok_and(|answer| answer.status < 500), || format!("{removed:?}"));
    check_alive(&service, tally);
    let (now, log) = (service.resident_kib(), service.log());
    tally.check(now.saturating_sub(before) < MOST_KIB, || format!("{before} KiB, then {now} KiB"));
    tally.check(log.len() < LOG_MAX, || format!("a log of {} bytes", log.len()));
    end(service, tally);
    log
}

fn wait_until_optimized(service: &Service, tally: &mut Tally) {
    let state = || ask(service, "GET", "/v1/probes/hit", "", b"").map(|answer| answer.json());
    let is_optimized = || state().is_ok_and(|probe| probe.to_string().contains("OPTIMIZED"));
    let is_right = holds_soon(OPTIMIZED, is_optimized);
    tally.check(is_right, || format!("the probe is not optimized: {:?}", state()));
}
