//! A script over an engine without a service, for benches.

use std::sync::Arc;

use exoprobe_probes::Engine;

use super::{NewScript, RunningScript, ScriptError, Scripts};

/// A script that runs over an engine. The engine's owner drains it.
pub struct DrivenScript {
    scripts: Scripts,
    script: Arc<RunningScript>,
}

impl DrivenScript {
    /// Starts a script over a guest with one vCPU.
    ///
    /// # Errors
    /// The service's message.
    pub fn start(engine: &Arc<Engine>, text: &str) -> Result<Self, String> {
        let scripts = Scripts::new(Arc::clone(engine), 1);
        let new = NewScript { text: text.to_owned(), ..NewScript::default() };
        let script = scripts.start(&new).map_err(|error: ScriptError| error.to_string())?;
        Ok(Self { scripts, script })
    }

    /// The number of actions that ran.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.script.status(self.scripts.engine()).run
    }

    /// Its maps.
    #[must_use]
    pub fn maps(&self) -> serde_json::Value {
        self.script.maps()
    }
}
