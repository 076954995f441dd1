//! Task fields that only the kernel's types locate: state, parent, threads, address space, saved
//! stack.

use exoprobe_guest::Gva;
use exoprobe_guest::paging::PagingMode;

use crate::btf::{Btf, FieldError};
use crate::task::TaskLayout;
use crate::task_list::{ListReading, TaskListError, each_link, is_linked};
use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

const TASK: &str = "struct task_struct";
const SIGNALS: &str = "struct signal_struct";
const SPACE: &str = "struct mm_struct";
/// Registers that `__switch_to_asm` leaves on the stack of a task
/// (arch/x86/include/asm/switch_to.h).
const SWITCH_FRAME: &str = "struct inactive_task_frame";
/// `TASK_REPORT` of include/linux/sched.h: the state bits that user space is shown.
const REPORTED: u32 = 0x7f;
/// `TASK_UNINTERRUPTIBLE | TASK_NOLOAD`.
const IDLE: u32 = 0x402;
/// Letters by the highest bit set, of no bit first (`task_state_array` of fs/proc/array.c).
const LETTERS: [char; 8] = ['R', 'S', 'D', 'T', 't', 'X', 'Z', 'P'];
const IDLE_LETTER: char = 'I';
const WORD: u64 = 8;

/// Offsets in bytes from the start of their structs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskFields {
    state: u64,
    exit_state: u64,
    parent: u64,
    mm: u64,
    /// `thread.sp`: the stack pointer of a task that does not run.
    saved_sp: u64,
    signal: u64,
    thread_node: u64,
    thread_head: u64,
    pgd: u64,
    frame: SwitchFrame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SwitchFrame {
    bp: u64,
    ret_addr: u64,
    len: u64,
}

/// Where a task goes on when it runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchedOut {
    /// The instruction after `__switch_to_asm` has returned.
    pub ip: Gva,
    /// RSP there.
    pub sp: u64,
    /// RBP there.
    pub bp: u64,
}

impl TaskFields {
    /// Locates the fields by the kernel's types.
    ///
    /// # Errors
    /// [`FieldError`] where the types lack one.
    pub fn find(types: &Btf) -> Result<Self, FieldError> {
        let offset = |of, path| types.field_of(of, path).map(|place| place.offset());
        let frame_type = types.find(SWITCH_FRAME).and_then(|id| types.size_of(id));
        Ok(Self {
            // Renamed by Linux 5.14.
            state: offset(TASK, "__state").or_else(|_| offset(TASK, "state"))?,
            exit_state: offset(TASK, "exit_state")?,
            parent: offset(TASK, "real_parent")?,
            mm: offset(TASK, "mm")?,
            saved_sp: offset(TASK, "thread.sp")?,
            signal: offset(TASK, "signal")?,
            thread_node: offset(TASK, "thread_node")?,
            thread_head: offset(SIGNALS, "thread_head")?,
            pgd: offset(SPACE, "pgd")?,
            frame: SwitchFrame {
                bp: offset(SWITCH_FRAME, "bp")?,
                ret_addr: offset(SWITCH_FRAME, "ret_addr")?,
                len: frame_type.ok_or_else(|| FieldError::NoType(SWITCH_FRAME.to_owned()))?,
            },
        })
    }

    /// Reads the state of a task as the letter that `/proc/PID/stat` shows (proc_pid_stat(5)).
    ///
    /// # Errors
    /// [`VirtualReadError`].
    pub fn state<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        task: Gva,
    ) -> Result<char, VirtualReadError> {
        let half = |offset: u64| -> Result<u32, VirtualReadError> {
            let mut bytes = [0; 4];
            memory.read(task.wrapping_add(offset), &mut bytes)?;
            Ok(u32::from_le_bytes(bytes))
        };
        Ok(letter(half(self.state)?, half(self.exit_state)?))
    }

    /// Reads the process number of a task's parent; 0 for tasks without one.
    ///
    /// # Errors
    /// [`VirtualReadError`].
    pub fn parent<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        layout: &TaskLayout,
        task: Gva,
    ) -> Result<u32, VirtualReadError> {
        let parent = memory.read_u64(task.wrapping_add(self.parent))?;
        Ok(layout.task(memory, Gva(parent))?.tgid)
    }

    /// Lists the threads of the process of which `leader` is the first thread, that one included.
    ///
    /// # Errors
    /// [`TaskListError`].
    pub fn threads<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        leader: Gva,
        reading: ListReading,
    ) -> Result<Vec<Gva>, TaskListError> {
        let signal = Gva(memory.read_u64(leader.wrapping_add(self.signal))?);
        let mut threads = Vec::new();
        each_link(memory, signal.wrapping_add(self.thread_head), reading, |link| {
            threads.push(Gva(link.0.wrapping_sub(self.thread_node)));
            Ok(())
        })?;
        Ok(threads)
    }

    /// Returns true if a task is in the list of its process's threads. The guest must stand still;
    /// false is also returned where it does so in the middle of a change of that list.
    pub fn is_listed<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        task: Gva,
    ) -> bool {
        is_linked(memory, task.wrapping_add(self.thread_node))
    }

    /// Reads the page tables of a task's user memory; `None` for kernel threads.
    ///
    /// # Errors
    /// [`VirtualReadError`].
    pub fn user_tables<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        task: Gva,
    ) -> Result<Option<PagingMode>, VirtualReadError> {
        let mm = memory.read_u64(task.wrapping_add(self.mm))?;
        if mm == 0 {
            return Ok(None);
        }
        let gva = Gva(memory.read_u64(Gva(mm).wrapping_add(self.pgd))?);
        let place = memory.translate(gva);
        let found = place.map_err(|source| VirtualReadError::Unmapped { gva, source })?;
        Ok(Some(PagingMode { cr3: found.gpa.0, ..memory.mode() }))
    }

    /// Reads where a task goes on that does not run.
    ///
    /// # Errors
    /// [`VirtualReadError`].
    pub fn switched_out<V: GuestView + ?Sized>(
        &self,
        memory: &VirtualMemory<'_, V>,
        task: Gva,
    ) -> Result<SwitchedOut, VirtualReadError> {
        let sp = Gva(memory.read_u64(task.wrapping_add(self.saved_sp))?);
        let word = |offset: u64| memory.read_u64(sp.wrapping_add(offset));
        let SwitchFrame { bp, ret_addr, len } = self.frame;
        debug_assert!(ret_addr + WORD <= len, "the members are inside");
        Ok(SwitchedOut { ip: Gva(word(ret_addr)?), sp: sp.0.wrapping_add(len), bp: word(bp)? })
    }
}

fn letter(state: u32, exit_state: u32) -> char {
    if state & IDLE == IDLE {
        return IDLE_LETTER;
    }
    let bits = (state | exit_state) & REPORTED;
    let highest = u32::BITS - bits.leading_zeros();
    LETTERS[highest as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_letters_of_proc() {
        // State, exit state (include/linux/sched.h), letter.
        let cases = [
            (0, 0, 'R'),
            (1, 0, 'S'),
            (2, 0, 'D'),
            (0x102, 0, 'D'),
            (4, 0, 'T'),
            (8, 0, 't'),
            (0x80, 16, 'X'),
            (0x80, 32, 'Z'),
            (0x40, 0, 'P'),
            (0x402, 0, 'I'),
            (u32::MAX, u32::MAX, 'I'),
            (0x8000_0000, 0, 'R'),
        ];
        for (state, exit_state, expected) in cases {
            assert_eq!(letter(state, exit_state), expected, "{state:#x} {exit_state:#x}");
        }
    }
}
