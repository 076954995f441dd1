//! Tasks: numbers and names.
//!
//! The offsets in `struct task_struct` depend on the kernel's configuration. They are found by the
//! content of the first tasks of every Linux: the idle task ("swapper", number 0), the first
//! process (1), and the thread that makes kernel threads ("kthreadd", 2), which follow one another
//! in the list of all tasks (`init_task.tasks`).

use exoprobe_guest::Gva;

use crate::task_list::{ListReading, TaskListError, each_link};
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

/// Bytes of a task's name (TASK_COMM_LEN).
pub const COMM_LEN: usize = 16;
/// Bytes of a task that are looked through: more than any configuration's.
const TASK_MAX: usize = 16 << 10;
/// Read at a time.
const PIECE: usize = 512;
const WORD: usize = 8;
/// Bytes of `pid`, which `tgid` follows.
const PID: usize = 4;
/// The idle task's name begins so; on kernels for several CPUs the CPU's number follows.
const IDLE: &[u8] = b"swapper";
const KTHREADD: &[u8] = b"kthreadd\0";

/// Reasons why tasks cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// A task's memory is not there.
    #[error("cannot read a task: {0}")]
    Read(#[from] VirtualReadError),
    /// There is no name in the idle task.
    #[error("the task at {0} is not the idle task: it is not named `swapper`")]
    NotIdle(Gva),
    /// The kernel has not made its first threads yet, or hides them.
    #[error("the list of tasks does not begin with the idle task, the first process and kthreadd")]
    NoList,
    /// No two words count the first tasks.
    #[error("the first tasks have no numbers 0, 1 and 2 at one place")]
    NoPid,
}

/// Offsets of a task's number and name, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLayout {
    /// `pid`: the thread's number, 32 bits.
    pub pid: u32,
    /// `comm`: its name, [`COMM_LEN`] bytes.
    pub comm: u32,
    /// `tasks`: where it is in the list of all processes, two addresses.
    pub tasks: u32,
}

/// A task, and the process that it is a thread of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its address.
    pub at: Gva,
    /// Number and name.
    pub id: TaskId,
    /// `tgid`: the process's number, that of its first thread.
    pub tgid: u32,
}

/// A task's number and name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskId {
    /// The thread's number, as in all of the guest.
    pub pid: u32,
    /// Its name as the kernel has it, which need not be text or end.
    pub comm: [u8; COMM_LEN],
}

impl TaskId {
    /// The number, and two words of the name, as in memory.
    #[must_use]
    pub fn words(&self) -> [u64; 3] {
        let name = u128::from_le_bytes(self.comm);
        let half = |shift: u32| u64::try_from(name >> shift & u128::from(u64::MAX));
        let [low, high] = [0, 64].map(|shift| half(shift).expect("64 bits"));
        [self.pid.into(), low, high]
    }

    /// Undoes [`Self::words`]. The upper half of the first word is ignored.
    #[must_use]
    pub fn of_words([pid, low, high]: [u64; 3]) -> Self {
        let comm = u128::from(low) | u128::from(high) << 64;
        let pid = u32::try_from(pid & u64::from(u32::MAX)).expect("32 bits");
        Self { pid, comm: comm.to_le_bytes() }
    }

    /// The name as text, up to its end; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn name(&self) -> String {
        let end = self.comm.iter().position(|byte| *byte == 0).unwrap_or(COMM_LEN);
        String::from_utf8_lossy(&self.comm[..end]).into_owned()
    }
}

impl TaskLayout {
    /// Finds the places in a kernel that has made its first threads; `init_task` is the idle task's
    /// address.
    ///
    /// # Errors
    /// [`TaskError`].
    pub fn find<V: GuestView + ?Sized>(
        memory: &VirtualMemory<'_, V>,
        init_task: Gva,
    ) -> Result<Self, TaskError> {
        let idle = read_task(memory, init_task)?;
        let named = |at: &usize| idle[*at..].starts_with(IDLE) && at + COMM_LEN <= idle.len();
        let comm = (0..idle.len()).step_by(PID).find(named).ok_or(TaskError::NotIdle(init_task))?;
        let words = (0..idle.len().saturating_sub(2 * WORD)).step_by(WORD);
        let mut lists =
            words.filter_map(|at| Some((at, first_two(memory, init_task, &idle, at, comm)?)));
        let (list, (first, second)) = lists.next().ok_or(TaskError::NoList)?;
        let tasks = [idle, read_task(memory, first)?, read_task(memory, second)?];
        let numbered = |at: &usize| {
            let is_number = |(number, task): (u32, &Vec<u8>)| {
                [0, PID].iter().all(|next| half(task, at + next) == Some(number))
            };
            (0..).zip(&tasks).all(is_number)
        };
        let pid = (0..TASK_MAX).step_by(PID).find(numbered).ok_or(TaskError::NoPid)?;
        let narrow = |at: usize| u32::try_from(at).expect("at most TASK_MAX");
        Ok(Self { pid: narrow(pid), comm: narrow(comm), tasks: narrow(list) })
    }

    /// The task at an address.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn task<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        at: Gva,
    ) -> Result<Task, VirtualReadError> {
        let mut tgid = [0; PID];
        memory.read(at.wrapping_add(u64::from(self.pid) + PID as u64), &mut tgid)?;
        Ok(Task { at, id: self.read(memory, at)?, tgid: u32::from_le_bytes(tgid) })
    }

    /// Calls `found` with all processes but the idle task at `init_task`, in the order in which
    /// they began: their first threads. Without an error, each was in the list until `found` had
    /// returned.
    ///
    /// # Errors
    /// [`TaskListError`].
    pub fn each_process<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        init_task: Gva,
        reading: ListReading,
        mut found: impl FnMut(Task),
    ) -> Result<(), TaskListError> {
        let offset = u64::from(self.tasks);
        each_link(memory, init_task.wrapping_add(offset), reading, |link| {
            found(self.task(memory, Gva(link.0.wrapping_sub(offset)))?);
            Ok(())
        })
    }

    /// The processes, as [`Self::each_process`].
    ///
    /// # Errors
    /// [`TaskListError`].
    pub fn processes<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        init_task: Gva,
        reading: ListReading,
    ) -> Result<Vec<Task>, TaskListError> {
        let mut tasks = Vec::new();
        self.each_process(memory, init_task, reading, |task| tasks.push(task))?;
        Ok(tasks)
    }

    /// Reads the number and name of the task at an address.
    ///
    /// # Errors
    /// [`VirtualReadError`] where nothing is mapped.
    pub fn read<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        task: Gva,
    ) -> Result<TaskId, VirtualReadError> {
        let (mut pid, mut comm) = ([0; PID], [0; COMM_LEN]);
        memory.read(task.wrapping_add(self.pid.into()), &mut pid)?;
        memory.read(task.wrapping_add(self.comm.into()), &mut comm)?;
        Ok(TaskId { pid: u32::from_le_bytes(pid), comm })
    }
}

/// The two tasks after the idle one, if its list of tasks is at `at`.
fn first_two<V: GuestView + ?Sized>(
    memory: &VirtualMemory<'_, V>,
    init_task: Gva,
    idle: &[u8],
    at: usize,
    comm: usize,
) -> Option<(Gva, Gva)> {
    let offset = at as u64;
    let head = init_task.wrapping_add(offset);
    let next = u64::from_le_bytes(*idle.get(at..)?.first_chunk()?);
    // Without this, each word of the idle task would be followed.
    if next.cast_signed() >= 0 || next % WORD as u64 != 0 || next == head.0 {
        return None;
    }
    let back = memory.read_u64(Gva(next).wrapping_add(WORD as u64)).ok()?;
    if back != head.0 {
        return None;
    }
    let second = memory.read_u64(Gva(next)).ok()?.wrapping_sub(offset);
    let mut name = [0; KTHREADD.len()];
    memory.read(Gva(second).wrapping_add(comm as u64), &mut name).ok()?;
    (name == *KTHREADD).then_some((Gva(next.wrapping_sub(offset)), Gva(second)))
}

/// As much of a task as there is.
fn read_task<V: GuestView + ?Sized>(
    memory: &VirtualMemory<'_, V>,
    at: Gva,
) -> Result<Vec<u8>, VirtualReadError> {
    let mut task = vec![0; TASK_MAX];
    for start in (0..TASK_MAX).step_by(PIECE) {
        let piece = &mut task[start..start + PIECE];
        match memory.read(at.wrapping_add(start as u64), piece) {
            Ok(()) => {}
            Err(error) if start == 0 => return Err(error),
            Err(_) => {
                task.truncate(start);
                break;
            }
        }
    }
    Ok(task)
}

fn half(task: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*task.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::sample::{self, KERNEL, MODE};
    use crate::task_list::TASKS_MAX;

    const TASKS: [u64; 3] = [0x2000, 0x8000, 0x7000];
    const LIST: u64 = 0x310;
    const NUMBER: u64 = 0x3a8;
    const NAME: u64 = 0x508;

    struct Image(Vec<u8>);

    impl Image {
        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = usize::try_from(at).unwrap();
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn word(&mut self, at: u64, word: u64) {
            self.put(at, &word.to_le_bytes());
        }

        /// Three tasks, as a kernel has them once it has booted.
        fn booted() -> Self {
            let mut image = Self(sample::mapped(0xa000, &[KERNEL]));
            for (number, name) in [(0, "swapper/0"), (1, "init"), (2, "kthreadd")] {
                let at = TASKS[number];
                let (next, back) = (TASKS[(number + 1) % 3], TASKS[(number + 2) % 3]);
                image.word(at + LIST, KERNEL + next + LIST);
                image.word(at + LIST + 8, KERNEL + back + LIST);
                let number = u32::try_from(number).unwrap().to_le_bytes();
                image.put(at + NUMBER, &[number, number].concat());
                image.put(at + NAME, name.as_bytes());
            }
            // Of children and siblings, a list like that of tasks.
            image.word(TASKS[0] + 0x100, KERNEL + TASKS[1] + 0x120);
            image.word(TASKS[1] + 0x120 + 8, KERNEL + TASKS[0] + 0x100);
            image.word(TASKS[1] + 0x120, KERNEL + TASKS[2] + 0x120);
            image
        }

        fn find(self) -> Result<TaskLayout, TaskError> {
            let image = sample::image(self.0);
            let memory = VirtualMemory::with_mode(&image, MODE);
            TaskLayout::find(&memory, Gva(KERNEL + TASKS[0]))
        }
    }

    #[test]
    fn the_first_tasks_tell_where_number_and_name_are() {
        let image = Image::booted();
        let found = image.find().unwrap();
        assert_eq!(found, TaskLayout { pid: 0x3a8, comm: 0x508, tasks: 0x310 });
        let image = sample::image(Image::booted().0);
        let memory = VirtualMemory::with_mode(&image, MODE);
        let id = found.read(&memory, Gva(KERNEL + TASKS[2])).unwrap();
        assert_eq!((id.pid, &*id.name()), (2, "kthreadd"));
        assert!(found.read(&memory, Gva(0x1000)).is_err());
    }

    #[test]
    fn processes_are_listed_to_the_end_of_their_list_or_it_is_broken() {
        let layout = TaskLayout { pid: 0x3a8, comm: 0x508, tasks: 0x310 };
        let idle = Gva(KERNEL + TASKS[0]);
        let list = |image: Image| {
            let image = sample::image(image.0);
            layout.processes(&VirtualMemory::with_mode(&image, MODE), idle, ListReading::Still)
        };
        let found = list(Image::booted()).unwrap();
        let found: Vec<(u64, u32, u32, String)> =
            found.iter().map(|t| (t.at.0 - KERNEL, t.id.pid, t.tgid, t.id.name())).collect();
        let expected = [(TASKS[1], 1, 1, "init"), (TASKS[2], 2, 2, "kthreadd")];
        assert_eq!(found, expected.map(|(at, pid, tgid, name)| (at, pid, tgid, name.to_owned())));
        let mut image = Image::booted();
        image.word(TASKS[2] + LIST, KERNEL + TASKS[1] + LIST);
        assert_eq!(list(image), Err(TaskListError::Broken(TASKS_MAX)));
        let mut image = Image::booted();
        image.word(TASKS[1] + LIST, 0x10);
        assert!(matches!(list(image), Err(TaskListError::Read(_))));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut image = Image::booted();
        image.put(TASKS[0] + NAME, b"idle\0\0\0\0");
        assert_eq!(image.find(), Err(TaskError::NotIdle(Gva(KERNEL + TASKS[0]))));
        let mut image = Image::booted();
        image.word(TASKS[1] + LIST, KERNEL + TASKS[1] + LIST);
        assert_eq!(image.find(), Err(TaskError::NoList));
        let mut image = Image::booted();
        image.put(TASKS[2] + NUMBER, &[3, 0, 0, 0]);
        assert_eq!(image.find(), Err(TaskError::NoPid));
        let image = sample::image(Image::booted().0);
        let memory = VirtualMemory::with_mode(&image, MODE);
        assert!(matches!(TaskLayout::find(&memory, Gva(0x1000)), Err(TaskError::Read(_))));
    }

    #[test]
    fn a_name_is_whatever_the_guest_says() {
        let name = |comm: &[u8; COMM_LEN]| TaskId { pid: 1, comm: *comm }.name();
        assert_eq!(name(b"sixteen letters!"), "sixteen letters!");
        assert_eq!(name(b"\xffx\0hidden behind"), "\u{fffd}x");
        assert_eq!(name(&[0; COMM_LEN]), "");
    }
}
