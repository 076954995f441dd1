//! The engine over a guest made by hand: RAM, page tables and a kernel of a few functions, whose
//! moments come when a test wants them.

mod batches;
mod boot;
mod contention;
mod guest_patches;
mod guest_steps;
mod instance_triggers;
mod instances;
mod many;
mod modules;
mod optimize;
mod patrol;
mod places;
mod returns;
mod samples;
mod scoped;
mod search;
mod siblings;
mod stacks;
mod synthetic;
mod tick;
mod triggers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use exoprobe_guest::layout::KERNEL_IMAGE_BASE;
use exoprobe_guest::paging::{PAGE_SIZE, PTE_PRESENT, PTE_WRITE};
use exoprobe_guest::testing::FakeGuest;
use exoprobe_guest::{
    BreakpointAction, ExitHook, Gpa, GuestClock, GuestTime, Gva, HitContext, KernelEntry,
    Registers, VcpuError, kvm_regs,
};
use exoprobe_introspect::{Btf, SymbolTable};

use super::Limits;
use super::{Engine, FoundTypes, Guest, KernelHints};
use crate::definition::parse_line;
use crate::events::EventLimits;
use crate::status::{ProbeState, ProbeStatus, StatusFlag};

const MIB: u64 = 32;
/// Where the kernel's image is: its first 2 MiB by pages, which map to the same offset in RAM.
const IMAGE: Gva = Gva(0xffff_ffff_8100_0000);
const SYMBOLS: &str = "\
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000100 T secondary_startup_64
ffffffff81000200 T entry_SYSCALL_64
ffffffff81001000 T work
ffffffff81001100 T rest_init
ffffffff81001200 T free_initmem
ffffffff81001300 T do_task_dead
ffffffff81001400 T patched
ffffffff81001500 T caller
ffffffff81001600 T put_task_stack
ffffffff81001700 t do_init_module
ffffffff81001800 t do_free_init
ffffffff81001900 t free_module
ffffffff81002000 T far_off
ffffffff81003000 T _etext
ffffffff81008000 T _sinittext
ffffffff81008000 T once
ffffffff81009000 T _einittext
ffffffff81100000 D early_top_pgt
ffffffff81110000 D system_state
ffffffff81110100 D __start___ex_table
ffffffff81110100 D __stop___ex_table
ffffffff81110200 D __alt_instructions
ffffffff8111020c D __alt_instructions_end
ffffffff81118000 D linux_banner
ffffffff81119000 D __start_orc_unwind_ip
ffffffff81119018 D __stop_orc_unwind_ip
ffffffff8111a000 D __start_orc_unwind
ffffffff8111a024 D __stop_orc_unwind
";
/// swapgs
const ENTRY: Gva = Gva(0xffff_ffff_8100_0200);
const WORK: Gva = Gva(0xffff_ffff_8100_1000);
const REST_INIT: Gva = Gva(0xffff_ffff_8100_1100);
const FREE_INITMEM: Gva = Gva(0xffff_ffff_8100_1200);
const TASK_DEAD: Gva = Gva(0xffff_ffff_8100_1300);
const PATCHED: Gva = Gva(0xffff_ffff_8100_1400);
const STACK_LEFT: Gva = Gva(0xffff_ffff_8100_1600);
/// Behind the call in `caller`.
const RETURN_SITE: Gva = Gva(0xffff_ffff_8100_1505);
const FAR_OFF: Gva = Gva(0xffff_ffff_8100_2000);
const ONCE: Gva = Gva(0xffff_ffff_8100_8000);
const MODULE_BEGINS: Gva = Gva(0xffff_ffff_8100_1700);
const MODULE_INIT_FREED: Gva = Gva(0xffff_ffff_8100_1800);
const MODULE_ENDS: Gva = Gva(0xffff_ffff_8100_1900);
const FUNCTIONS: [Gva; 11] = [
    WORK,
    REST_INIT,
    FREE_INITMEM,
    TASK_DEAD,
    PATCHED,
    STACK_LEFT,
    MODULE_BEGINS,
    MODULE_INIT_FREED,
    MODULE_ENDS,
    FAR_OFF,
    ONCE,
];
const TEXT_LEN: usize = 0x9000;
/// push rbp; mov rbp, rsp; 5-byte nop; pop rbp; ret
const BODY: [u8; 11] = [0x55, 0x48, 0x89, 0xe5, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x5d, 0xc3];
/// call work; nop; ret
const CALLER: [u8; 7] = [0xe8, 0xfb, 0xfa, 0xff, 0xff, 0x90, 0xc3];
const INT3: u8 = 0xcc;
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

const EARLY_ROOT: u64 = 0x110_0000;
/// The kernel's own root; Linux aligns it to one page where it does not isolate page tables.
const ROOT: u64 = 0x110_1000;
/// Where it does, the first of a pair.
const PAIRED_ROOT: u64 = 0x110_2000;
const UPPER: u64 = 0x110_4000;
const DIRECTORY: u64 = 0x110_5000;
const FIXMAP: u64 = 0x110_6000;
const PAGES: u64 = 0x110_7000;
const SYSTEM_STATE: Gpa = Gpa(0x111_0000);
const ALTERNATIVES: Gpa = Gpa(0x111_0200);
/// Top of a kernel stack.
const STACK: Gva = Gva(0xffff_ffff_8118_3f00);

/// Where the image is in RAM.
fn gpa(at: Gva) -> Gpa {
    Gpa(at.0 - KERNEL_IMAGE_BASE.0)
}

fn page_entry(at: Gva) -> Gpa {
    Gpa(PAGES + (at.0 - IMAGE.0) / PAGE_SIZE * 8)
}

/// A guest with its engine.
struct Fake {
    own_root: u64,
    guest: Arc<FakeGuest>,
    engine: Arc<Engine>,
    hook: Arc<dyn ExitHook>,
}

impl Fake {
    /// A guest that has not run yet.
    fn new() -> Self {
        Self::with_root(ROOT)
    }

    fn with_root(own_root: u64) -> Self {
        Self::with(own_root, "", None)
    }

    fn with(own_root: u64, more_symbols: &str, types: Option<Btf>) -> Self {
        Self::with_types(own_root, more_symbols, types, None)
    }

    /// One with types that were given, and types that were found near its kernel.
    fn with_types(
        own_root: u64,
        more_symbols: &str,
        types: Option<Btf>,
        found_types: Option<FoundTypes>,
    ) -> Self {
        let guest = Arc::new(FakeGuest::new(MIB));
        guest.root.store(EARLY_ROOT, Ordering::SeqCst);
        let root = KERNEL_IMAGE_BASE.wrapping_add(own_root);
        let root = format!("{:x} D init_top_pgt\n", root.0);
        let symbols = SYMBOLS.to_owned() + more_symbols + &root;
        let symbols = SymbolTable::from_system_map(&symbols).unwrap();
        let machine = Arc::clone(&guest) as Arc<dyn Guest>;
        let given = KernelHints { symbols: Some(symbols), types, found_types };
        let engine = Arc::new(Engine::new(
            machine,
            GuestClock::default(),
            given,
            Limits {
                events: EventLimits { count: 1000, ..EventLimits::default() },
                ..Limits::default()
            },
        ));
        let hook = engine.exit_hook();
        Self { own_root, guest, engine, hook }
    }

    /// One whose kernel has begun.
    fn begun() -> Self {
        Self::begun_with("")
    }

    fn begun_with(more_symbols: &str) -> Self {
        let fake = Self::with(ROOT, more_symbols, None);
        fake.load_kernel();
        assert!(fake.begin());
        fake
    }

    /// One that has booted.
    fn booted() -> Self {
        Self::booted_with("")
    }

    fn booted_with(more_symbols: &str) -> Self {
        let fake = Self::begun_with(more_symbols);
        fake.finish_text();
        fake.store_u64(SYSTEM_STATE, 3);
        fake
    }

    fn store_u64(&self, at: Gpa, word: u64) {
        self.guest.ram.store_u64(at, word).unwrap();
    }

    fn write(&self, at: Gva, bytes: &[u8]) {
        self.guest.ram.write(gpa(at), bytes).unwrap();
    }

    /// What the loader and the kernel's first code do.
    fn load_kernel(&self) {
        const RW: u64 = PTE_PRESENT | PTE_WRITE;
        for root in [EARLY_ROOT, self.own_root] {
            self.store_u64(Gpa(root + 511 * 8), UPPER | RW);
        }
        self.store_u64(Gpa(UPPER + 510 * 8), DIRECTORY | RW);
        self.store_u64(Gpa(UPPER + 511 * 8), FIXMAP | RW);
        self.store_u64(Gpa(DIRECTORY + 8 * 8), PAGES | RW);
        for page in 0..512 {
            self.map(IMAGE.wrapping_add(page * PAGE_SIZE));
        }
        self.write(IMAGE, &[0x90; TEXT_LEN]);
        for function in FUNCTIONS {
            self.write(function, &BODY);
        }
        self.write(Gva(RETURN_SITE.0 - 5), &CALLER);
        self.write(ENTRY, &[0x0f, 0x01, 0xf8]);
        self.store_u64(SYSTEM_STATE, 0);
        // struct alt_instr: the 5-byte nop of `patched`.
        let place = PATCHED.0 + 4;
        let at = KERNEL_IMAGE_BASE.0 + ALTERNATIVES.0;
        let offset = u32::try_from(place.wrapping_sub(at) & 0xffff_ffff).unwrap();
        let mut entry = [0; 12];
        entry[..4].copy_from_slice(&offset.to_le_bytes());
        entry[10] = 5;
        self.guest.ram.write(ALTERNATIVES, &entry).unwrap();
        self.guest.root.store(EARLY_ROOT, Ordering::SeqCst);
    }

    fn map(&self, at: Gva) {
        self.store_u64(page_entry(at), gpa(at).0 & !(PAGE_SIZE - 1) | PTE_PRESENT | PTE_WRITE);
    }

    fn unmap(&self, at: Gva) {
        self.store_u64(page_entry(at), 0);
    }

    /// The kernel's beginning, told to the engine; whether it took notice.
    fn begin(&self) -> bool {
        let rip = IMAGE.wrapping_add(0x180);
        self.hook.kernel_entered(&KernelEntry { rip, sregs: self.guest.sregs_now() })
    }

    /// The kernel goes over to its own tables, sets its system-call entry, and has patched its
    /// text.
    fn finish_text(&self) {
        self.guest.root.store(self.own_root, Ordering::SeqCst);
        self.guest.lstar.store(ENTRY.0, Ordering::SeqCst);
        self.run(REST_INIT);
        self.store_u64(SYSTEM_STATE, 1);
    }

    fn byte(&self, at: Gva) -> u8 {
        self.guest.ram.load_byte(gpa(at)).unwrap()
    }

    fn text(&self) -> Vec<u8> {
        let mut text = vec![0; TEXT_LEN];
        self.guest.ram.read(gpa(IMAGE), &mut text).unwrap();
        text
    }

    /// One breakpoint exit, of a vCPU whose stack is at `rsp`.
    fn breakpoint(&self, at: Gva, rsp: Gva) -> (BreakpointAction, kvm_regs) {
        self.breakpoint_of(kvm_regs { rip: at.0, rsp: rsp.0, rflags: 2, ..kvm_regs::default() })
    }

    fn breakpoint_of(&self, mut regs: kvm_regs) -> (BreakpointAction, kvm_regs) {
        let source: &FakeGuest = &self.guest;
        let mut context = HitContext::new(0, &mut regs, GuestTime(1), source);
        let action = self.hook.breakpoint(&mut context);
        (action, regs)
    }

    /// Runs the instruction at `at` as a CPU does: again while it stays there. Gives how often the
    /// breakpoint there was hit.
    fn run(&self, at: Gva) -> u32 {
        self.run_on(at, STACK).0
    }

    fn run_on(&self, at: Gva, rsp: Gva) -> (u32, Gva) {
        const TOO_OFTEN: u32 = 1_000_000;
        let mut hits = 0;
        while self.byte(at) == INT3 {
            hits += 1;
            assert!(hits < TOO_OFTEN, "the vCPU never gets past {at}");
            let (action, regs) = self.breakpoint(at, rsp);
            assert_eq!(action, BreakpointAction::Resume, "{at} is ours");
            if regs.rip != at.0 {
                return (hits, Gva(regs.rip));
            }
        }
        (hits, at)
    }

    /// Calls `work` and returns from it, by way of whatever the engine put on the stack.
    fn call_work(&self, stack: Gva) {
        let returns_to = self.enter_work(stack);
        self.return_to(returns_to, stack);
    }

    /// A call of `work`: what is its return address when its first instruction has run.
    fn enter_work(&self, stack: Gva) -> Gva {
        self.store_u64(gpa(stack), RETURN_SITE.0);
        self.run_on(WORK, stack);
        let mut word = [0; 8];
        self.guest.ram.read(gpa(stack), &mut word).unwrap();
        Gva(u64::from_le_bytes(word))
    }

    fn return_to(&self, returns_to: Gva, stack: Gva) {
        let popped = stack.wrapping_add(8);
        if returns_to == RETURN_SITE {
            self.run_on(RETURN_SITE, popped);
            return;
        }
        let (action, regs) = self.breakpoint(returns_to, popped);
        assert_eq!((action, regs.rip), (BreakpointAction::Resume, RETURN_SITE.0));
    }

    fn register(&self, line: &str) {
        let definition = parse_line(line).unwrap();
        self.engine.register(definition).unwrap_or_else(|e| panic!("{line}: {e}"));
    }

    fn status(&self, event: &str) -> ProbeStatus {
        self.engine.show("kprobes", event).unwrap()
    }

    fn flags(&self, event: &str) -> Vec<StatusFlag> {
        self.status(event).flags
    }

    fn hits(&self, event: &str) -> u64 {
        self.status(event).hits
    }
}
