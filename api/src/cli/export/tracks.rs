//! Which line of a viewer an event stands on.

use std::collections::HashMap;

use clap::ValueEnum;

use crate::client::EventRecord;

/// Tracks remembered. A guest with more tasks than that has some of them described twice.
const MOST: usize = 65_536;

/// Unit that has a track of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TrackBy {
    /// Each task
    Task,
    /// Each vCPU
    Cpu,
}

impl TrackBy {
    /// Parent of all tracks.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Task => "Tasks",
            Self::Cpu => "CPUs",
        }
    }
}

/// Track of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    /// A thread; under another name it is another track, for a viewer keeps a track's first name.
    Task {
        /// Its number, not 0.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// The idle task of a vCPU: the number of all of them is 0.
    Idle(u32),
    /// A vCPU in a kernel whose tasks are unknown.
    NoTask(u32),
    /// A vCPU.
    Cpu(u32),
}

impl Track {
    /// The track of an event.
    pub(super) fn of(event: &EventRecord, by: TrackBy) -> Self {
        match (by, event.pid) {
            (TrackBy::Cpu, _) => Self::Cpu(event.vcpu),
            (TrackBy::Task, None) => Self::NoTask(event.vcpu),
            (TrackBy::Task, Some(0)) => Self::Idle(event.vcpu),
            (TrackBy::Task, Some(pid)) => {
                Self::Task { pid, comm: event.comm.clone().unwrap_or_else(|| "<...>".to_owned()) }
            }
        }
    }

    /// Whether all that stands on it was done by one task, one thing after the other.
    pub(super) fn is_of_one_task(&self) -> bool {
        matches!(self, Self::Task { .. } | Self::Idle(_))
    }

    /// As a viewer shows it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Task { pid, comm } => format!("{comm}-{pid}"),
            Self::Idle(cpu) => format!("idle, CPU {cpu}"),
            Self::NoTask(cpu) => format!("unknown task, CPU {cpu}"),
            Self::Cpu(cpu) => format!("CPU {cpu}"),
        }
    }

    /// Its place among the others.
    pub(super) fn rank(&self) -> u32 {
        match self {
            Self::Task { pid, .. } => *pid,
            Self::Idle(cpu) | Self::NoTask(cpu) | Self::Cpu(cpu) => *cpu,
        }
    }
}

/// Tracks that were described, by number.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    known: HashMap<Track, u64>,
    next: u64,
}

impl Tracks {
    /// The number of a track, from 0, and whether it is a new one.
    pub(super) fn number(&mut self, track: &Track) -> (u64, bool) {
        if let Some(number) = self.known.get(track) {
            return (*number, false);
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let number = self.next;
        self.next += 1;
        self.known.insert(track.clone(), number);
        (number, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: u32, comm: &str) -> Track {
        Track::Task { pid, comm: comm.to_owned() }
    }

    #[test]
    fn a_track_is_new_once_and_few_are_remembered() {
        let mut tracks = Tracks::default();
        assert_eq!(tracks.number(&task(7, "sh")), (0, true));
        assert_eq!(tracks.number(&task(7, "sh")), (0, false));
        assert_eq!(tracks.number(&task(7, "ls")), (1, true), "it has another name now");
        assert_eq!(tracks.number(&Track::Idle(0)), (2, true));
        for pid in 0..u32::try_from(MOST).unwrap() {
            tracks.number(&task(pid, "many"));
        }
        assert!(tracks.known.len() <= MOST);
        let (number, new) = tracks.number(&task(7, "sh"));
        assert!(new && number > u64::try_from(MOST).unwrap(), "no number is used twice: {number}");
    }
}
