//! The tasks of the guest, and the task that runs on each vCPU.

use std::sync::atomic::Ordering;

use exoprobe_guest::{Gpa, GuestRam, Gva};
use exoprobe_introspect::btf::FieldError;
use exoprobe_introspect::task_fields::TaskFields;
use exoprobe_introspect::task_list::{ListReading, TaskListError};
use exoprobe_introspect::{
    SymbolTable, Task, TaskError, TaskLayout, VirtualMemory, VirtualReadError,
};

use crate::engine::kernel::mapped::{Direct, direct_map};
use crate::engine::kernel::view::KernelView;

/// Bytes of an entry of `__per_cpu_offset`.
const OFFSET_LEN: u64 = 8;

/// The location of the running kernel's tasks.
pub(crate) struct Tasks {
    pub(crate) layout: TaskLayout,
    /// By vCPU (Linux numbers its CPUs as the machine does): address of its current task's pointer.
    current: Box<[Gpa]>,
    /// The direct map: tasks are found in it without a walk of the page tables.
    direct: Vec<Direct>,
    /// The place of number and name; `None` if these are not aligned as in every Linux.
    place: Option<TaskPlace>,
}

/// Words of a task's memory with its number and name, read in one access.
struct TaskPlace {
    /// Bytes from the task's start to the first.
    first: u64,
    count: usize,
    /// The word with the number, and its place there.
    pid: usize,
    shift: u32,
    /// The first word of the name.
    comm: usize,
}

impl TaskPlace {
    fn of(layout: &TaskLayout) -> Option<Self> {
        const WORD: u64 = 8;
        let (pid, comm) = (u64::from(layout.pid), u64::from(layout.comm));
        if !comm.is_multiple_of(WORD) || !pid.is_multiple_of(WORD / 2) {
            return None;
        }
        let first = pid.min(comm) & !(WORD - 1);
        let index = |offset: u64| usize::try_from((offset - first) / WORD).ok();
        Some(Self {
            first,
            count: index(pid.max(comm + WORD))? + 1,
            pid: index(pid)?,
            shift: if pid.is_multiple_of(WORD) { 0 } else { 32 },
            comm: index(comm)?,
        })
    }

    /// Number and name, as [`exoprobe_introspect::TaskId::words`].
    #[inline]
    fn read(&self, ram: &GuestRam, task: Gpa) -> Option<[u64; 3]> {
        let words = ram.words(task.wrapping_add(self.first), self.count)?;
        let word = |index: usize| Some(words.get(index)?.load(Ordering::Relaxed));
        let (number, low, high) = (word(self.pid)?, word(self.comm)?, word(self.comm + 1)?);
        Some([number >> self.shift & u64::from(u32::MAX), low, high])
    }
}

/// Times that a list is read while the guest runs, before it is stopped for that.
const TRIES: u32 = 8;

/// Reads a list while the guest runs. `None` if it changed meanwhile each time: it is to be read
/// while the vCPUs stand still, for as long as that takes.
pub(crate) fn while_running<T>(
    read: impl Fn(ListReading) -> Result<T, NoTasks>,
) -> Option<Result<T, NoTasks>> {
    (0..TRIES).find_map(|_| match read(ListReading::Running) {
        Err(NoTasks::List(TaskListError::Changed | TaskListError::Read(_)) | NoTasks::Read(_)) => {
            None
        }
        done => Some(done),
    })
}

/// Why tasks are not known.
#[derive(Debug, thiserror::Error)]
pub enum NoTasks {
    /// Their fields cannot be located or read.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A list of them cannot be read.
    #[error(transparent)]
    List(#[from] TaskListError),
    /// A symbol is missing.
    #[error("the kernel has no symbol for {0}")]
    Symbol(&'static str),
    /// The per-CPU data of a CPU is missing.
    #[error("the per-CPU data of CPU {0} is not there")]
    PerCpu(u8),
    /// A task's memory is not mapped.
    #[error("cannot read a task: {0}")]
    Read(#[from] VirtualReadError),
    /// The kernel's types do not locate a field.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// No task has this number.
    #[error("there is no task {0}: `exoprobe ps` lists the processes")]
    NoSuch(u32),
}

/// A process of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its first thread.
    pub task: Task,
    /// The vCPUs that run one of its threads.
    pub vcpus: Vec<u8>,
    /// State of its first thread, as the letter in `/proc/PID/stat`; `None` without the kernel's
    /// types.
    pub state: Option<char>,
    /// Process number of its parent; `None` without the kernel's types.
    pub parent: Option<u32>,
}

fn idle_task(symbols: &SymbolTable) -> Result<Gva, NoTasks> {
    symbols.address_of("init_task").ok_or(NoTasks::Symbol("init_task"))
}

impl Tasks {
    /// Locates the tasks of a kernel that has made its first threads.
    pub(crate) fn find(
        memory: &VirtualMemory<'_, KernelView>,
        symbols: &SymbolTable,
        current_task: Option<Gva>,
        ram: &GuestRam,
        vcpus: u8,
    ) -> Result<Self, NoTasks> {
        let layout = TaskLayout::find(memory, idle_task(symbols)?)?;
        let current = current_task.ok_or(NoTasks::Symbol("the current task"))?;
        let offsets = symbols.address_of("__per_cpu_offset");
        let place = |vcpu: u8| {
            // A kernel for one CPU has the data itself in place of an offset.
            let base = match offsets {
                Some(table) => {
                    memory.read_u64(table.wrapping_add(u64::from(vcpu) * OFFSET_LEN)).ok()?
                }
                None => 0,
            };
            Some(memory.translate(Gva(base).wrapping_add(current.0)).ok()?.gpa)
        };
        let current = (0..vcpus).map(|vcpu| place(vcpu).ok_or(NoTasks::PerCpu(vcpu)));
        let direct = direct_map(memory, symbols, ram);
        let (current, place) = (current.collect::<Result<_, _>>()?, TaskPlace::of(&layout));
        Ok(Self { layout, current, direct, place })
    }

    /// The first threads of all processes.
    pub(crate) fn leaders(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        symbols: &SymbolTable,
        reading: ListReading,
    ) -> Result<Vec<Task>, NoTasks> {
        Ok(self.layout.processes(memory, idle_task(symbols)?, reading)?)
    }

    /// The vCPU on which a task runs.
    pub(crate) fn vcpu_of(&self, ram: &GuestRam, task: Gva) -> Option<u8> {
        let current = |at: &Gpa| Some(ram.word(*at)?.load(Ordering::Relaxed));
        (0..).zip(&self.current).find(|(_, at)| current(at) == Some(task.0)).map(|(vcpu, _)| vcpu)
    }

    /// All processes, with state and parent by `fields`, and without vCPUs.
    pub(crate) fn processes(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        symbols: &SymbolTable,
        fields: Option<&TaskFields>,
        reading: ListReading,
    ) -> Result<Vec<Process>, NoTasks> {
        let mut processes = Vec::new();
        self.layout.each_process(memory, idle_task(symbols)?, reading, |task| {
            let state = fields.and_then(|it| it.state(memory, task.at).ok());
            let parent = fields.and_then(|it| it.parent(memory, &self.layout, task.at).ok());
            processes.push(Process { task, vcpus: Vec::new(), state, parent });
        })?;
        Ok(processes)
    }

    /// The vCPUs, with the number of the process that each runs. They should stand still.
    pub(crate) fn running(
        &self,
        memory: &VirtualMemory<'_, KernelView>,
        ram: &GuestRam,
    ) -> Vec<(u8, u32)> {
        let current = |(vcpu, at): (u8, &Gpa)| {
            let task = ram.word(*at)?.load(Ordering::Relaxed);
            Some((vcpu, self.layout.task(memory, Gva(task)).ok()?.tgid))
        };
        (0..).zip(&self.current).filter_map(current).collect()
    }

    /// The address of the task that runs on a vCPU.
    #[inline]
    pub(crate) fn address_on(&self, view: &KernelView, vcpu: u8) -> Option<Gva> {
        let task = view.ram.word(*self.current.get(usize::from(vcpu))?)?;
        Some(Gva(task.load(Ordering::Relaxed)))
    }

    /// Number and name of the task that runs on a vCPU, as
    /// [`exoprobe_introspect::TaskId::words`]; `None` if they cannot be read.
    #[inline]
    pub(crate) fn words_on(&self, view: &KernelView, vcpu: u8) -> Option<[u64; 3]> {
        let task = self.address_on(view, vcpu)?;
        let direct = self.direct.iter().find_map(|range| range.place(task));
        match direct.and_then(|at| self.place.as_ref()?.read(&view.ram, at)) {
            Some(found) => Some(found),
            None => self.words_of(view, task),
        }
    }

    /// The same of a task that is not in the direct map.
    #[inline(never)]
    fn words_of(&self, view: &KernelView, task: Gva) -> Option<[u64; 3]> {
        let memory = VirtualMemory::with_mode(view, view.mode);
        Some(self.layout.read(&memory, task).ok()?.words())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The result of a list that is read with these outcomes, one after the other, and how often it
    /// was read.
    fn read(outcomes: &[Result<u32, NoTasks>]) -> (Option<Result<u32, String>>, usize) {
        let tries = Cell::new(0);
        let found = while_running(|reading| {
            assert_eq!(reading, ListReading::Running);
            let outcome = &outcomes[tries.replace(tries.get() + 1)];
            outcome.as_ref().copied().map_err(|error| match error {
                NoTasks::List(error) => NoTasks::List(*error),
                NoTasks::NoSuch(pid) => NoTasks::NoSuch(*pid),
                other => panic!("{other}"),
            })
        });
        (found.map(|result| result.map_err(|error| error.to_string())), tries.get())
    }

    fn changed() -> Result<u32, NoTasks> {
        Err(TaskListError::Changed.into())
    }

    #[test]
    fn a_list_that_changes_is_read_again_and_at_last_left_to_a_stop() {
        assert_eq!(read(&[Ok(1)]), (Some(Ok(1)), 1));
        assert_eq!(read(&[changed(), changed(), Ok(3)]), (Some(Ok(3)), 3));
        let tries = usize::try_from(TRIES).unwrap();
        let always: Vec<_> = std::iter::repeat_with(changed).take(tries).collect();
        assert_eq!(read(&always), (None, tries));
        // These are not changes.
        let missing = Some(Err(NoTasks::NoSuch(7).to_string()));
        assert_eq!(read(&[changed(), Err(NoTasks::NoSuch(7))]), (missing, 2));
        let broken = TaskListError::Broken(3);
        assert_eq!(read(&[Err(broken.into())]), (Some(Err(broken.to_string())), 1));
    }
}
