//! The kernel's lists of tasks: circular, each link with the addresses of the next and of the
//! previous one (`struct list_head`; include/linux/rculist.h).

use exoprobe_guest::Gva;

use crate::view::GuestView;
use crate::virt::{VirtualMemory, VirtualReadError};

/// Most tasks of a list (PID_MAX_DEFAULT of Linux's threads.h, four times).
pub const TASKS_MAX: usize = 128 << 10;
/// Bytes from a link's address of the next one to that of the previous one.
const PREVIOUS: u64 = 8;

/// Reasons why a list of tasks cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskListError {
    /// A task's memory is not there.
    #[error("cannot read a task: {0}")]
    Read(#[from] VirtualReadError),
    /// The list has more than [`TASKS_MAX`] tasks, or does not come back to its beginning.
    #[error("the list of processes is broken: after {0} tasks it does not come to its end")]
    Broken(usize),
    /// The list of a guest that runs changed meanwhile.
    #[error("the list of tasks changed while it was read")]
    Changed,
}

/// Whether a list may change while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListReading {
    /// The guest stands still. It may do so in the middle of a change, so that links back are not
    /// right; those that lead on always are.
    Still,
    /// The guest runs. A link that does not lead back to the one before may be one that was taken
    /// out, and its memory another's: the list is refused.
    Running,
}

/// Calls `found` with the address of each link after `head`, in order, until the list is back
/// there.
///
/// # Errors
/// [`TaskListError`], and those of `found`.
pub(crate) fn each_link<V: GuestView + ?Sized>(
    memory: &VirtualMemory<'_, V>,
    head: Gva,
    reading: ListReading,
    mut found: impl FnMut(Gva) -> Result<(), VirtualReadError>,
) -> Result<(), TaskListError> {
    let (mut before, mut count) = (head, 0);
    loop {
        let at = Gva(memory.read_u64(before)?);
        if reading == ListReading::Running && previous(memory, at)? != before {
            return Err(TaskListError::Changed);
        }
        if at == head {
            return Ok(());
        }
        if count == TASKS_MAX {
            return Err(TaskListError::Broken(count));
        }
        found(at)?;
        (before, count) = (at, count + 1);
    }
}

/// Returns true if the links on both sides of one lead to it: it is in a list. The guest must stand
/// still; false is also returned where it does so in the middle of a change.
pub(crate) fn is_linked<V: GuestView + ?Sized>(memory: &VirtualMemory<'_, V>, link: Gva) -> bool {
    let is_between = || -> Result<bool, VirtualReadError> {
        let next = Gva(memory.read_u64(link)?);
        let before = previous(memory, link)?;
        Ok(previous(memory, next)? == link && memory.read_u64(before)? == link.0)
    };
    is_between().unwrap_or(false)
}

fn previous<V: GuestView + ?Sized>(
    memory: &VirtualMemory<'_, V>,
    link: Gva,
) -> Result<Gva, VirtualReadError> {
    Ok(Gva(memory.read_u64(link.wrapping_add(PREVIOUS))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::MemoryImage;
    use crate::image::sample::{self, KERNEL, MODE};

    const LINKS: [u64; 4] = [0x7000, 0x9008, 0x8ff0, 0x7040];

    /// A list of these links, with the words at some places replaced.
    fn list(changes: &[(u64, u64)], reading: ListReading) -> Result<Vec<u64>, TaskListError> {
        with(changes, |memory| {
            let mut found = Vec::new();
            each_link(memory, Gva(KERNEL + LINKS[0]), reading, |at| {
                found.push(at.0.wrapping_sub(KERNEL));
                Ok(())
            })?;
            Ok(found)
        })
    }

    fn with<T>(
        changes: &[(u64, u64)],
        look: impl FnOnce(&VirtualMemory<'_, MemoryImage>) -> T,
    ) -> T {
        let mut bytes = sample::mapped(0xa000, &[KERNEL]);
        let mut put = |at: u64, word: u64| {
            let at = usize::try_from(at).unwrap();
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        for index in 0..LINKS.len() {
            let [next, back] = [1, 3].map(|step| LINKS[(index + step) % LINKS.len()]);
            put(LINKS[index], KERNEL + next);
            put(LINKS[index] + PREVIOUS, KERNEL + back);
        }
        changes.iter().for_each(|(at, word)| put(*at, *word));
        let image = sample::image(bytes);
        look(&VirtualMemory::with_mode(&image, MODE))
    }

    #[test]
    fn links_are_found_in_order_and_a_list_that_changes_is_refused_while_the_guest_runs() {
        use ListReading::{Running, Still};
        for reading in [Still, Running] {
            assert_eq!(list(&[], reading).unwrap(), LINKS[1..]);
            let unmapped = list(&[(LINKS[2], 0x10)], reading);
            assert!(matches!(unmapped, Err(TaskListError::Read(_))), "{unmapped:?}");
        }
        // The third link is taken out, but the link before still leads to it.
        let half = [(LINKS[3] + PREVIOUS, KERNEL + LINKS[1])];
        assert_eq!(list(&half, Still).unwrap(), LINKS[1..]);
        assert_eq!(list(&half, Running), Err(TaskListError::Changed));
        // The last link leads to the first again.
        let round = [(LINKS[3], KERNEL + LINKS[1])];
        assert_eq!(list(&round, Still), Err(TaskListError::Broken(TASKS_MAX)));
        assert_eq!(list(&round, Running), Err(TaskListError::Changed));
        let round = [round[0], (LINKS[1] + PREVIOUS, KERNEL + LINKS[3])];
        assert_eq!(list(&round, Running), Err(TaskListError::Changed));
    }

    #[test]
    fn a_link_is_in_a_list_if_both_its_neighbours_say_so() {
        let is_in = |changes: &[(u64, u64)]| {
            with(changes, |memory| is_linked(memory, Gva(KERNEL + LINKS[2])))
        };
        assert!(is_in(&[]));
        assert!(!is_in(&[(LINKS[1], KERNEL + LINKS[3])]));
        assert!(!is_in(&[(LINKS[3] + PREVIOUS, KERNEL + LINKS[1])]));
        // LIST_POISON2 of include/linux/poison.h
        assert!(!is_in(&[(LINKS[2] + PREVIOUS, 0xdead_0000_0000_0122)]));
    }
}
