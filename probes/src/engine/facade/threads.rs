//! Stacks and memory of single tasks, running or not.

use std::sync::Arc;

use exoprobe_guest::paging::{PagingError, PagingMode};
use exoprobe_guest::{Gva, Registers, VcpuError, kvm_regs};
use exoprobe_introspect::task_fields::{SwitchedOut, TaskFields};
use exoprobe_introspect::task_list::{ListReading, TASKS_MAX, TaskListError};
use exoprobe_introspect::{Btf, Task, VirtualMemory};

use crate::definition::{Register, parse_place};
use crate::engine::control::state::Control;
use crate::engine::facade::backtrace::Frame;
use crate::engine::facade::engine::Engine;
use crate::engine::kernel::memory::KERNEL_HALF;
use crate::engine::kernel::running::Kernel;
use crate::engine::kernel::tasks::{NoTasks, Tasks};
use crate::error::ProbeError;

/// The page tables for an address in user mode's half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// Those that a vCPU has loaded.
    Vcpu(u8),
    /// Those of the task of this number, running or not.
    Task(u32),
}

/// A task, and the registers that its memory and stack are found by.
struct Stopped {
    registers: Registers,
    /// Where the task was switched out; `None` while it runs.
    out: Option<SwitchedOut>,
}

impl Engine {
    /// Returns the address that a text names: `%REG[+OFFSET]`, a register of a vCPU, or as
    /// [`Self::address_of`].
    ///
    /// # Errors
    /// As [`Self::address_of`]; [`ProbeError::Place`] for a wrong register or offset;
    /// [`ProbeError::Vcpu`].
    pub fn address_at(&self, place: &str, vcpu: u8) -> Result<Gva, ProbeError> {
        let Some(register) = place.strip_prefix('%') else { return self.address_of(place) };
        let (name, offset) = register.split_once('+').unwrap_or((register, "0"));
        let register: Register = name.parse()?;
        let offset = parse_place(offset)?.addr;
        let offset =
            offset.ok_or(ProbeError::Place("a register's offset is a number: %di+0x10"))?;
        let value = self.with_vcpu(vcpu, |registers| register.of(&registers.regs))?;
        Ok(Gva(value).wrapping_add(offset.0))
    }

    /// Reads memory as it would be without probes: the kernel's, or for an address of the user half
    /// that of a vCPU or task.
    ///
    /// # Errors
    /// [`ProbeError::Read`] where nothing is mapped; as [`Self::task_stack`] for a task.
    pub fn read_in(&self, space: AddressSpace, at: Gva, buf: &mut [u8]) -> Result<(), ProbeError> {
        if at.0 & KERNEL_HALF != 0 {
            return self.read_without_probes(at, buf);
        }
        let view = self.look()?.1.view.clone();
        let mut read = |registers: &Registers| -> Result<(), ProbeError> {
            let mode = PagingMode::of(&registers.sregs).map_err(|e| unmapped(at, e))?;
            Ok(VirtualMemory::with_mode(&view, mode).read(at, buf)?)
        };
        match space {
            AddressSpace::Vcpu(vcpu) => self.with_vcpu(vcpu, read)?,
            AddressSpace::Task(pid) => {
                self.with_task(pid, |_, _, stopped| read(&stopped.registers))?
            }
        }
    }

    /// Returns the back-trace of a task by its number, running or not, while all vCPUs stand still:
    /// the kernel's part, then the user's by frame pointers.
    ///
    /// # Errors
    /// [`ProbeError::Types`] without the kernel's types, [`ProbeError::Tasks`] where there is no
    /// such task, [`ProbeError::Attach`].
    pub fn task_stack(&self, pid: u32) -> Result<Vec<Frame>, ProbeError> {
        self.with_task(pid, |control, kernel, stopped| {
            let Stopped { registers, out } = stopped;
            self.stack_of(control, kernel, registers, out.is_some())
        })
    }

    /// Calls `use_it` with the registers of a vCPU.
    fn with_vcpu<T>(
        &self,
        vcpu: u8,
        use_it: impl FnOnce(&Registers) -> T,
    ) -> Result<T, ProbeError> {
        let (mut use_it, mut found) = (Some(use_it), None);
        self.guest.with_vcpus_still(&mut |all| {
            if let (Some(registers), Some(use_it)) = (all.get(usize::from(vcpu)), use_it.take()) {
                found = Some(use_it(registers));
            }
        })?;
        found.ok_or_else(|| VcpuError::NoSuchVcpu(vcpu).into())
    }

    /// Calls `use_it` with a task, while all vCPUs stand still.
    fn with_task<T>(
        &self,
        pid: u32,
        use_it: impl FnOnce(&Control, &Kernel, &Stopped) -> T,
    ) -> Result<T, ProbeError> {
        let (mut control, kernel) = self.look()?;
        let types: Arc<Btf> = control.kernel.types(&kernel)?;
        let fields = TaskFields::find(&types).map_err(NoTasks::from)?;
        kernel.learn_orc();
        let find = |tasks: &Tasks, it| find_task(tasks, &kernel, &fields, pid, it);
        let task = kernel.read_tasks(self.guest.vcpus(), find).transpose()?;
        let (mut use_it, mut found) = (Some(use_it), None);
        self.guest.with_vcpus_still(&mut |all| {
            let stopped = Stopped::find(&kernel, &fields, (pid, task), all);
            found = use_it.take().map(|use_it| stopped.map(|it| use_it(&control, &kernel, &it)));
        })?;
        Ok(found.expect("the vCPUs stood still once")?)
    }
}

fn unmapped(gva: Gva, source: PagingError) -> ProbeError {
    exoprobe_introspect::VirtualReadError::Unmapped { gva, source }.into()
}

impl Stopped {
    /// The task of this number; `task` is where it was found while the guest ran.
    fn find(
        kernel: &Kernel,
        fields: &TaskFields,
        (pid, task): (u32, Option<Gva>),
        vcpus: &[Registers],
    ) -> Result<Self, NoTasks> {
        let tasks = kernel.find_tasks(u8::try_from(vcpus.len()).unwrap_or(u8::MAX))?;
        let memory = kernel.memory();
        // Its memory may have become another's since.
        let is_there = |task: &Gva| {
            let id = tasks.layout.read(&memory, *task);
            id.is_ok_and(|id| id.pid == pid) && fields.is_listed(&memory, *task)
        };
        let task = match task.filter(is_there) {
            Some(task) => task,
            None => find_task(&tasks, kernel, fields, pid, ListReading::Still)?,
        };
        let running =
            tasks.vcpu_of(&kernel.view.ram, task).and_then(|vcpu| vcpus.get(usize::from(vcpu)));
        let first = vcpus.first().ok_or(NoTasks::NoSuch(pid))?;
        let mut registers = *running.unwrap_or(first);
        let tables = fields.user_tables(&memory, task)?;
        // A vCPU that has just entered the kernel from user mode may have other tables (KPTI).
        registers.sregs.cr3 = tables.unwrap_or(memory.mode()).cr3;
        if running.is_some() {
            return Ok(Self { registers, out: None });
        }
        let out = fields.switched_out(&memory, task)?;
        let SwitchedOut { ip, sp, bp } = out;
        registers.regs = kvm_regs { rip: ip.0, rsp: sp, rbp: bp, ..kvm_regs::default() };
        // It was switched out in kernel mode, whatever the vCPU that lends the registers does.
        registers.sregs.cs.selector = 0;
        Ok(Self { registers, out: Some(out) })
    }
}

/// The thread of this number, looked for among processes first, and among so many threads as there
/// can be.
fn find_task(
    tasks: &Tasks,
    kernel: &Kernel,
    fields: &TaskFields,
    pid: u32,
    reading: ListReading,
) -> Result<Gva, NoTasks> {
    let memory = kernel.memory();
    let leaders = tasks.leaders(&memory, &kernel.symbols, reading)?;
    if let Some(task) = leaders.iter().find(|task| task.id.pid == pid) {
        return Ok(task.at);
    }
    let mut left = TASKS_MAX;
    for Task { at: leader, .. } in leaders {
        let threads = fields.threads(&memory, leader, reading)?;
        left = left.checked_sub(threads.len()).ok_or(TaskListError::Broken(TASKS_MAX))?;
        for thread in threads {
            if tasks.layout.read(&memory, thread)?.pid == pid {
                return Ok(thread);
            }
        }
    }
    Err(NoTasks::NoSuch(pid))
}
