//! System calls one by one, and a child that takes all memory.

use exoprobe_guest_init::cause::Cause;
use exoprobe_guest_init::command::SystemCall;

use super::{Failure, Name, Tally, call, named, signal};
use crate::sys::{self, Errno, Forked};

const ENOENT: u16 = 2;
const EEXIST: u16 = 17;

/// Counts the calls that had their result.
pub(super) fn make(which: SystemCall<'_>, count: u64, tally: &Tally) -> Result<(), Failure> {
    let mut name = [0; size_of::<Name>()];
    let (name_of_call, path) = match which {
        SystemCall::Stat(path) => ("stat", named(path, &mut name)?),
        SystemCall::Mkdir(path) => ("mkdir", named(path, &mut name)?),
        SystemCall::Exec(path) => ("execve", named(path, &mut name)?),
        SystemCall::Setuid => {
            return tally.repeat(count, || call("setuid", sys::become_root()));
        }
        SystemCall::Kill => {
            let init = call("getpid", sys::getpid())?;
            return tally.repeat(count, || call("kill", sys::kill_without_signal(init)));
        }
        SystemCall::Sync => {
            return tally.repeat(count, || {
                sys::sync();
                Ok(())
            });
        }
    };
    tally.repeat(count, || {
        let result = match which {
            SystemCall::Mkdir(_) => refused(sys::mkdir(path), EEXIST),
            SystemCall::Exec(_) => refused(sys::exec(path), ENOENT),
            _ => sys::stat(path),
        };
        call(name_of_call, result)
    })
}

/// Turns the error that a call must give into success, and success into error 0.
fn refused(result: sys::Result<()>, errno: u16) -> sys::Result<()> {
    match result {
        Err(Errno(found)) if found == errno => Ok(()),
        Err(other) => Err(other),
        Ok(()) => Err(Errno(0)),
    }
}

/// A child that takes memory until the kernel kills it.
pub(super) fn run_out_of_memory() -> Result<(), Failure> {
    const SIGKILL: u8 = 9;
    match call("fork", sys::fork())? {
        Forked::Child => {
            while sys::take_memory().is_ok() {}
            sys::exit(1)
        }
        Forked::Parent(child) => match signal(call("wait4", sys::wait(child))?) {
            SIGKILL => Ok(()),
            other => Err(Failure::Child(Cause::Signal(other))),
        },
    }
}
