//! The running kernel as the engine needs it: its phase, the runtime addresses of its symbols, and
//! the instructions that it treats specially.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use exoprobe_guest::paging::PagingMode;
use exoprobe_guest::{Gva, KernelEntry};
use exoprobe_introspect::symbols::TextKind;
use exoprobe_introspect::task_list::ListReading;
use exoprobe_introspect::{
    Banner, BannerError, ExceptionTable, OrcTables, SymbolTable, VirtualMemory,
};

use crate::engine::kernel::error::AttachError;
use crate::engine::kernel::modules::Loaded;
use crate::engine::kernel::orc::OrcCache;
use crate::engine::kernel::patched::Patched;
use crate::engine::kernel::reserved;
use crate::engine::kernel::reserved::Reserved;
use crate::engine::kernel::roots::isolates_page_tables;
use crate::engine::kernel::roots::kernel_paging;
use crate::engine::kernel::roots::own_tables;
use crate::engine::kernel::symbols::SymbolSource;
use crate::engine::kernel::tables::JUMP_LABELS;
use crate::engine::kernel::tables::STATIC_CALLS;
use crate::engine::kernel::tasks::{NoTasks, Tasks, while_running};
use crate::engine::kernel::view::KernelView;
use crate::insn::Assurances;
use exoprobe_guest::Guest;

/// IA32_LSTAR: the system-call entry, set once the kernel has taken over its page tables.
const MSR_LSTAR: u32 = 0xc000_0082;
/// enum system_states: 0 is SYSTEM_BOOTING, left after alternatives have been patched; from 2 on,
/// init text has been freed (1 is SYSTEM_SCHEDULING).
const SYSTEM_STATE: &str = "system_state";
/// The table that NMIs use after they have interrupted an int3 (Linux 4.19 to 5.7): a copy, made
/// while the kernel boots, whose gates have no stubs.
const NMI_TABLE: &str = "debug_idt_table";
/// See [`SYSTEM_STATE`].
const INIT_FREED: u32 = 2;
/// struct pcpu_hot of Linux 6.2 to 6.14: the current task first, then the preemption count.
const HOT: &str = "pcpu_hot";
const HOT_CPU_NUMBER: u64 = 12;
/// Prefix of trampolines' names (STATIC_CALL_TRAMP_PREFIX).
const STATIC_CALL_TRAMPOLINE: &str = "__SCT__";
/// A kernel that can be probed.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) symbols: SymbolTable,
    pub(crate) view: KernelView,
    /// Every page table maps hidden memory, once the kernel's own tables do.
    mapped_everywhere: bool,
    /// Preparation of the guest for probes: see [`Self::prepared`].
    prepared: Preparation,
    entry_text: Range<Gva>,
    extable: Arc<ExceptionTable>,
    /// The target of each, when it is a jmp.
    jump_labels: Arc<HashMap<Gva, Gva>>,
    static_calls: Arc<HashSet<Gva>>,
    /// Text that the kernel will still patch.
    patched: Arc<Patched>,
    init_freed: Arc<AtomicBool>,
    /// The kernel has passed the function that marks its text as final.
    passed_final: Arc<AtomicBool>,
    tasks: Arc<OnceLock<Arc<Tasks>>>,
    banner: Arc<OnceLock<Banner>>,
    orc: Arc<OrcCache>,
    /// Modules that probes may be in. Their symbols are in `symbols`.
    pub(crate) modules: Arc<[Arc<Loaded>]>,
}

/// The preparation of the guest for probes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preparation {
    /// Nothing.
    No,
    /// Hidden memory is mapped.
    Mapped,
    /// Hidden memory is mapped, and a fault in a slot shows the original's address.
    FaultsShowOriginal,
}

impl Kernel {
    /// Examines a guest whose kernel began earlier. This changes nothing in the guest; neither do
    /// [`Self::at_entry`] and [`Self::finish`].
    ///
    /// # Errors
    /// [`AttachError::Booting`] until the kernel's text is final.
    pub(crate) fn attach(
        guest: &dyn Guest,
        source: &mut SymbolSource<'_>,
    ) -> Result<Self, AttachError> {
        let entry = Gva(guest.msr(MSR_LSTAR)?);
        if entry == Gva(0) {
            return Err(AttachError::Booting);
        }
        let sregs = guest.sregs()?;
        let symbols = source.at_syscall_entry(guest, PagingMode::of(&sregs)?, entry)?;
        let mode = kernel_paging(guest, &sregs, &symbols, entry)?;
        let view = KernelView { ram: guest.ram().clone(), mode, early: None };
        let state = system_state(&VirtualMemory::with_mode(&view, mode), &symbols);
        if state == Some(0) {
            return Err(AttachError::Booting);
        }
        Self::final_one(symbols, view, state.is_none_or(|s| s >= INIT_FREED))
    }

    /// Examines a kernel that has stopped, in any phase. Changes nothing in its memory. `entry` is
    /// the kernel's beginning, if the machine reported it.
    ///
    /// # Errors
    /// [`AttachError::NeverBegan`] if it did not reach its own addresses.
    pub(crate) fn of_stopped(
        guest: &dyn Guest,
        source: &mut SymbolSource<'_>,
        entry: Option<&KernelEntry>,
    ) -> Result<Self, AttachError> {
        let sregs = guest.sregs()?;
        let now = PagingMode::of(&sregs)?;
        let (symbols, text) = match (guest.msr(MSR_LSTAR)?, entry) {
            (0, None) => return Err(AttachError::NeverBegan),
            (0, Some(entry)) => {
                let early = PagingMode::of(&entry.sregs)?;
                (source.at_first_code(guest, early, entry.rip)?, entry.rip)
            }
            (lstar, _) => (source.at_syscall_entry(guest, now, Gva(lstar))?, Gva(lstar)),
        };
        let (mode, early) = match kernel_paging(guest, &sregs, &symbols, text) {
            Ok(mode) => (mode, None),
            // The kernel stopped before its own tables were complete.
            Err(_) => (now, Some(now)),
        };
        let view = KernelView { ram: guest.ram().clone(), mode, early };
        let state = system_state(&VirtualMemory::with_mode(&view, mode), &symbols);
        let init_freed = state.is_some_and(|state| state >= INIT_FREED);
        Self::look(symbols, view, false, Patched::NONE, init_freed)
    }

    /// Examines a kernel that runs its first instructions at its own addresses. Its page tables are
    /// the early ones.
    pub(crate) fn at_entry(
        guest: &dyn Guest,
        source: &mut SymbolSource<'_>,
        entry: &KernelEntry,
    ) -> Result<Self, AttachError> {
        let early = PagingMode::of(&entry.sregs)?;
        let symbols = source.at_first_code(guest, early, entry.rip)?;
        let mode = own_tables(guest, early, &symbols, entry.rip)?;
        let view = KernelView { ram: guest.ram().clone(), mode, early: Some(early) };
        let patched = Patched::read(&VirtualMemory::with_mode(&view, early), &symbols);
        Self::look(symbols, view, true, patched, false)
    }

    /// The same kernel in the phase after its text is final.
    pub(crate) fn finish(&self) -> Result<Self, AttachError> {
        let view = KernelView { early: None, ..self.view.clone() };
        let next = Self::final_one(self.symbols.clone(), view, !self.has_init_text());
        let (banner, orc) = (self.banner.clone(), self.orc.clone());
        next.map(|next| Self { banner, orc, ..next })
    }

    fn final_one(
        symbols: SymbolTable,
        view: KernelView,
        init_freed: bool,
    ) -> Result<Self, AttachError> {
        let mapped_everywhere = !isolates_page_tables(&view, &symbols);
        Self::look(symbols, view, mapped_everywhere, Patched::NONE, init_freed)
    }

    /// Returns true if the guest is not prepared for probes.
    pub(crate) fn is_unprepared(&self) -> bool {
        self.prepared == Preparation::No
    }

    /// Returns true if faults of slots can be redirected: its text is final, and every page table
    /// maps hidden memory.
    pub(crate) fn may_redirect_faults(&self) -> bool {
        self.has_booted() && self.mapped_everywhere
    }

    /// The same kernel in a guest that is prepared for probes: hidden memory is mapped, and a fault
    /// in a slot shows the original's address if `faults_show_original`.
    pub(crate) fn prepared(&self, faults_show_original: bool) -> Self {
        let prepared = match faults_show_original {
            true => Preparation::FaultsShowOriginal,
            false => Preparation::Mapped,
        };
        Self { prepared, ..self.clone() }
    }

    /// Facts that displaced instructions may rely on.
    pub(crate) fn assurances(&self) -> Assurances {
        Assurances {
            faults_show_original: self.prepared == Preparation::FaultsShowOriginal,
            mapped_everywhere: self.mapped_everywhere,
        }
    }

    /// Returns true if faults of guarded loads can be passed over at any place: its gates have the
    /// stubs, and it has no second table for NMIs. A kernel that has one (before Linux 5.8) may
    /// also run probed functions at a page fault before it has read CR2.
    pub(crate) fn guards_loads(&self) -> bool {
        self.assurances().faults_show_original && self.symbols.address_of(NMI_TABLE).is_none()
    }

    fn look(
        symbols: SymbolTable,
        view: KernelView,
        mapped_everywhere: bool,
        patched: Patched,
        init_freed: bool,
    ) -> Result<Self, AttachError> {
        let memory = VirtualMemory::with_mode(&view, view.early.unwrap_or(view.mode));
        let entry_text = entry_text(&symbols);
        let extable = ExceptionTable::read(&memory, &symbols)?;
        let jump_labels = JUMP_LABELS.read(&memory, &symbols)?;
        let static_calls: HashSet<Gva> =
            STATIC_CALLS.read(&memory, &symbols)?.into_keys().collect();
        Ok(Self {
            symbols,
            view,
            mapped_everywhere,
            prepared: Preparation::No,
            entry_text,
            extable: Arc::new(extable),
            jump_labels: Arc::new(jump_labels),
            static_calls: Arc::new(static_calls),
            patched: Arc::new(patched),
            init_freed: Arc::new(AtomicBool::new(init_freed)),
            passed_final: Arc::default(),
            tasks: Arc::default(),
            banner: Arc::default(),
            orc: Arc::default(),
            modules: Arc::default(),
        })
    }

    /// The same kernel with other modules.
    pub(crate) fn with_modules(&self, modules: Vec<Arc<Loaded>>) -> Self {
        let symbols =
            self.symbols.with_modules(modules.iter().map(|loaded| loaded.table()).collect());
        Self { symbols, modules: modules.into(), ..self.clone() }
    }

    /// The module that has `at` in its text.
    pub(crate) fn module_at(&self, at: Gva) -> Option<&Arc<Loaded>> {
        self.modules.iter().find(|loaded| loaded.has(at))
    }

    /// Memory as the kernel sees it.
    pub(crate) fn memory(&self) -> VirtualMemory<'_, KernelView> {
        VirtualMemory::with_mode(&self.view, self.mode_now())
    }

    /// The page tables that it runs on.
    pub(crate) fn mode_now(&self) -> PagingMode {
        self.view.early.unwrap_or(self.view.mode)
    }

    /// Returns true if its text is final.
    pub(crate) fn has_booted(&self) -> bool {
        self.view.early.is_none()
    }

    /// Returns true if the kernel's own state says that it is still booting. (Its text may be final
    /// nevertheless.)
    pub(crate) fn is_booting(&self) -> bool {
        system_state(&self.memory(), &self.symbols) == Some(0)
    }

    /// Returns true if the kernel has still to pass the function that marks its text as final.
    pub(crate) fn will_pass_final(&self) -> bool {
        !self.has_booted() && !self.passed_final.load(Ordering::Relaxed)
    }

    pub(crate) fn pass_final(&self) {
        self.passed_final.store(true, Ordering::Relaxed);
    }

    /// Returns true if its init text still exists.
    pub(crate) fn has_init_text(&self) -> bool {
        !self.init_freed.load(Ordering::Relaxed)
    }

    /// Checks whether init text has been freed, in a kernel for which no mark reports it.
    pub(crate) fn learn_init_freed(&self) {
        let state = system_state(&self.memory(), &self.symbols);
        if self.has_booted() && state.is_some_and(|state| state >= INIT_FREED) {
            self.free_init_text();
        }
    }

    pub(crate) fn free_init_text(&self) {
        self.init_freed.store(true, Ordering::Relaxed);
    }

    /// Returns true if the kernel does not keep text of this kind, or has freed it.
    fn is_lost(&self, kind: TextKind) -> bool {
        kind == TextKind::Other || (kind == TextKind::Init && !self.has_init_text())
    }

    /// Returns true if the kernel will still patch any of `len` bytes at `at`.
    pub(crate) fn will_patch(&self, at: Gva, len: u64) -> bool {
        self.patched.covers(at, len)
    }

    /// Returns true if the exception table lists the instruction at `at`.
    pub(crate) fn may_fault(&self, at: Gva) -> bool {
        self.extable.find(at).is_some()
    }

    /// Returns true if the kernel rewrites the instruction at `at` while it runs.
    pub(crate) fn is_rewritten(&self, at: Gva) -> bool {
        self.jump_labels.contains_key(&at) || self.static_calls.contains(&at)
    }

    pub(crate) fn is_entry_text(&self, at: Gva) -> bool {
        self.entry_text.contains(&at)
    }

    /// Targets of jumps according to the kernel's tables: static keys' branches and fix-ups.
    pub(crate) fn jump_targets(&self) -> impl Iterator<Item = Gva> {
        let keys = self.jump_labels.values().copied();
        keys.chain(self.extable.fixups().map(|entry| entry.fixup))
    }

    /// Per-CPU offset of the CPU's number, 32 bits.
    pub(crate) fn cpu_number(&self) -> Option<Gva> {
        self.per_cpu("cpu_number", 0).or_else(|| self.per_cpu(HOT, HOT_CPU_NUMBER))
    }

    /// Per-CPU offset of the current task's address.
    pub(crate) fn current_task(&self) -> Option<Gva> {
        self.per_cpu("current_task", 0).or_else(|| self.per_cpu(HOT, 0))
    }

    fn per_cpu(&self, symbol: &str, offset: u64) -> Option<Gva> {
        Some(self.symbols.address_of(symbol)?.wrapping_add(offset))
    }

    /// The location of its tasks, once that is known.
    pub(crate) fn tasks(&self) -> Option<&Arc<Tasks>> {
        self.tasks.get()
    }

    /// Locates its tasks, if its phase allows.
    pub(crate) fn learn_tasks(&self, vcpus: u8) {
        if !self.has_booted() || self.tasks.get().is_some() {
            return;
        }
        match self.find_tasks(vcpus) {
            Ok(tasks) => drop(self.tasks.set(tasks)),
            Err(error) => tracing::debug!(%error, "events do not name tasks"),
        }
    }

    /// The location of its tasks; looked for now, whatever its phase, if not yet known.
    ///
    /// # Errors
    /// [`NoTasks`].
    pub(crate) fn find_tasks(&self, vcpus: u8) -> Result<Arc<Tasks>, NoTasks> {
        if let Some(known) = self.tasks() {
            return Ok(Arc::clone(known));
        }
        let current = self.current_task();
        Tasks::find(&self.memory(), &self.symbols, current, &self.view.ram, vcpus).map(Arc::new)
    }

    /// Reads a list of its tasks while it runs. `None` if it must stand still for that: its tasks
    /// are not known yet, or the list changed at each try.
    pub(crate) fn read_tasks<T>(
        &self,
        vcpus: u8,
        read: impl Fn(&Tasks, ListReading) -> Result<T, NoTasks>,
    ) -> Option<Result<T, NoTasks>> {
        self.learn_tasks(vcpus);
        let tasks = self.tasks()?;
        while_running(|reading| read(tasks, reading))
    }

    /// Its banner.
    ///
    /// # Errors
    /// [`BannerError`].
    pub(crate) fn banner(&self) -> Result<&Banner, BannerError> {
        if let Some(known) = self.banner.get() {
            return Ok(known);
        }
        let found = Banner::read(&self.memory(), &self.symbols)?;
        Ok(self.banner.get_or_init(|| found))
    }

    /// Its ORC tables, once they have been read.
    pub(crate) fn orc(&self) -> Option<&Arc<OrcTables>> {
        self.orc.tables()
    }

    /// Reads its ORC tables, unless a repeated attempt would give the same.
    pub(crate) fn learn_orc(&self) {
        self.orc
            .learn(|| Ok(OrcTables::read(&self.memory(), &self.symbols, self.banner()?.version)?));
    }

    /// The kernel's special treatment of the instruction at `at`, if it forbids a probe.
    pub(crate) fn reserved(&self, at: Gva) -> Option<Reserved> {
        if self.symbols.text_kind(at).is_some_and(|kind| self.is_lost(kind)) {
            Some(Reserved::InitText)
        } else if self.entry_text.contains(&at) && !self.mapped_everywhere {
            Some(Reserved::EntryText)
        } else if let Some(fixup) = self.extable.find(at)
            && (!self.assurances().faults_show_original || fixup.decodes_text())
        {
            Some(Reserved::ExceptionTable)
        } else if self.jump_labels.contains_key(&at) {
            Some(Reserved::JumpLabel)
        } else if self.static_calls.contains(&at) {
            Some(Reserved::StaticCall)
        } else {
            let is_original = self.assurances().faults_show_original;
            let of_module = self.modules.iter().find_map(|it| it.reserved(at, is_original));
            of_module.or_else(|| self.function_name(at).and_then(by_name))
        }
    }

    /// The reason why the function that starts at `at` takes no return probe.
    pub(crate) fn reserved_for_returns(&self, at: Gva) -> Option<Reserved> {
        if self.entry_text.contains(&at) {
            return Some(Reserved::NoReturnAddress);
        }
        self.function_name(at).and_then(reserved::return_by_name)
    }

    /// Text that no probe may be in, ascending: functions by name, and ranges.
    pub(crate) fn blacklist(&self) -> Vec<reserved::BlacklistEntry> {
        let mut entries = reserved::named_entries(&self.symbols);
        let mut range = |symbol: &str, start: Gva, end: Gva, reason| {
            let symbol = symbol.to_owned();
            entries.push(reserved::BlacklistEntry { start, end, symbol, reason });
        };
        if self.entry_text.start != self.entry_text.end {
            let reason = match self.mapped_everywhere {
                true => Reserved::NoReturnAddress,
                false => Reserved::EntryText,
            };
            range("(entry text)", self.entry_text.start, self.entry_text.end, reason);
        }
        for text in self.symbols.text_ranges() {
            if self.is_lost(text.kind) {
                range("(init text)", text.start, text.end, Reserved::InitText);
            }
        }
        for symbol in self.symbols.iter().filter(|s| s.name.starts_with(STATIC_CALL_TRAMPOLINE)) {
            if let Some(bounds) = self.symbols.function_at(symbol.address) {
                range(symbol.name, bounds.start, bounds.end, Reserved::StaticCall);
            }
        }
        entries.sort_by(|a, b| (a.start, &a.symbol).cmp(&(b.start, &b.symbol)));
        entries
    }

    fn function_name(&self, at: Gva) -> Option<&str> {
        self.symbols.function_at(at).map(|function| function.name)
    }
}

fn by_name(name: &str) -> Option<Reserved> {
    let trampoline = name.starts_with(STATIC_CALL_TRAMPOLINE);
    trampoline.then_some(Reserved::StaticCall).or_else(|| reserved::by_name(name))
}

/// Linux's section of entry code; empty when the symbols do not name it.
fn entry_text(symbols: &SymbolTable) -> Range<Gva> {
    match (symbols.address_of("__entry_text_start"), symbols.address_of("__entry_text_end")) {
        (Some(start), Some(end)) => start..end,
        _ => Gva(0)..Gva(0),
    }
}

fn system_state(memory: &VirtualMemory<'_, KernelView>, symbols: &SymbolTable) -> Option<u32> {
    let state = symbols.address_of(SYSTEM_STATE)?;
    let mut word = [0; 4];
    memory.read(state, &mut word).ok()?;
    Some(u32::from_le_bytes(word))
}
