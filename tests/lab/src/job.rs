//! The work of one run, given to `lab-init` in the initramfs, and what it answers on ttyS1.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where `lab-init` finds its [`Job`], as JSON.
pub const JOB_FILE: &str = "/job.json";
/// Where it, and the programs it starts, write results: one JSON object a line.
pub const RESULTS: &str = "/dev/ttyS1";

/// Programs to run, one after the other; a failure does not keep the next from running.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    /// In order.
    pub steps: Vec<Step>,
}

impl Job {
    /// The same with these environment variables, by name and value, for each program.
    #[must_use]
    pub fn with_env(mut self, settings: &[(String, String)]) -> Self {
        for step in &mut self.steps {
            step.env.extend(settings.iter().cloned());
        }
        self
    }
}

/// One program to run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Step {
    /// Its name on the command line.
    pub name: String,
    /// Its path in the lab.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables, besides PATH.
    pub env: BTreeMap<String, String>,
    /// Text files that it leaves and that are to be sent back.
    pub collect: Vec<PathBuf>,
}

/// A line of `lab-init` on [`RESULTS`]. The tests write their own lines there between those.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "lab", rename_all = "snake_case")]
pub enum Record {
    /// A step begins.
    Begin {
        /// Its name.
        step: String,
    },
    /// A file that a step left.
    File {
        /// Name of the step.
        step: String,
        /// The file's name, without its folder.
        name: String,
        /// Its whole text.
        text: String,
    },
    /// A step has ended.
    End {
        /// Its name.
        step: String,
        /// Whether it succeeded.
        ok: bool,
        /// How it ended, in words.
        how: String,
    },
    /// All steps have run; the machine restarts, which ends Bochs.
    Done,
}
