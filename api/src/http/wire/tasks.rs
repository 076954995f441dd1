//! Processes of the guest.

use serde::Serialize;
use utoipa::ToSchema;

use super::Hex;

/// A process of the guest, by its first thread.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Process {
    /// Its number.
    #[schema(example = 1)]
    pub pid: u32,
    /// Its name; what is no text in it is replaced.
    #[schema(example = "init")]
    pub comm: String,
    /// The vCPUs that run one of its threads now.
    pub vcpus: Vec<u8>,
    /// State of its first thread, as the letter in `/proc/PID/stat`; null without the kernel's
    /// types.
    #[schema(example = "S", min_length = 1, max_length = 1)]
    pub state: Option<char>,
    /// Number of its parent, 0 of those that the kernel made; null without the kernel's types.
    pub parent: Option<u32>,
    /// Where the kernel has its first thread (`struct task_struct`).
    pub task: Hex,
}

impl From<exoprobe_probes::Process> for Process {
    fn from(process: exoprobe_probes::Process) -> Self {
        let exoprobe_probes::Process { task, vcpus, state, parent } = process;
        Self { pid: task.tgid, comm: task.id.name(), vcpus, state, parent, task: Hex(task.at.0) }
    }
}
