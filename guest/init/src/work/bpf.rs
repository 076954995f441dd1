//! BPF programs that count the calls of a function.

use core::cell::Cell;

use exoprobe_guest_init::command::End;

use super::{Failure, Outcome, call};
use crate::sys::{self, Errno, Fd, bpf};

/// `EBUSY`: there is one at this end already.
const BUSY: Errno = Errno(16);
/// `ENOENT`: there is none at this end.
const NONE: Errno = Errno(2);

/// A program at one end of functions, and at the other.
#[derive(Default)]
pub(crate) struct CallCounters {
    fentry: Cell<Option<CallCounter>>,
    fexit: Cell<Option<CallCounter>>,
}

/// A program that is attached, with its counter.
#[derive(Clone, Copy)]
struct CallCounter {
    map: Fd,
    /// Keeps the program attached.
    link: Fd,
}

impl CallCounter {
    fn attach(end: End, function: u32) -> Result<Self, Failure> {
        let at = match end {
            End::Fentry => bpf::AT_ENTRY,
            End::Fexit => bpf::AT_EXIT,
        };
        let map = call("bpf: map", bpf::new_map())?;
        let link = call("bpf: load", bpf::load_counter(map, at, function)).and_then(|program| {
            let link = call("bpf: attach", bpf::attach(program));
            bpf::release(program);
            link
        });
        if link.is_err() {
            bpf::release(map);
        }
        Ok(Self { map, link: link? })
    }

    fn detach(self) {
        bpf::release(self.link);
        bpf::release(self.map);
    }
}

impl CallCounters {
    fn at(&self, end: End) -> &Cell<Option<CallCounter>> {
        match end {
            End::Fentry => &self.fentry,
            End::Fexit => &self.fexit,
        }
    }

    /// Attaches a program that counts, from 0, to a function, by its number among the kernel's
    /// types.
    pub(crate) fn attach(&self, end: End, function: u32) -> Outcome {
        let counter = self.at(end);
        let attach = || match counter.get() {
            Some(_) => Err(Failure::Call("attach", BUSY)),
            None => CallCounter::attach(end, function),
        };
        Outcome::of_one(attach().map(|new| counter.set(Some(new))))
    }

    /// The calls that were counted since [`Self::attach`].
    pub(crate) fn calls(&self, end: End) -> Outcome {
        let counter = self.at(end).get().ok_or(Failure::Call("calls", NONE));
        Outcome::of(counter.and_then(|counter| call("bpf: lookup", bpf::value(counter.map))))
    }

    /// Detaches the program.
    pub(crate) fn detach(&self, end: End) -> Outcome {
        let counter = self.at(end).take().ok_or(Failure::Call("detach", NONE));
        Outcome::of_one(counter.map(CallCounter::detach))
    }
}

/// Attaches such a program and detaches it, so many times. Sleeps meanwhile.
pub(crate) fn reattach(end: End, function: u32, times: u64) -> Result<(), Failure> {
    const MS: u64 = 20;
    (0..times).try_for_each(|_| {
        let counter = CallCounter::attach(end, function)?;
        let slept = call("nanosleep", sys::sleep_ms(MS));
        counter.detach();
        slept
    })
}
