//! A script over an engine without a service, for benches and tests. Its intervals do not run.

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

    /// Ends it. Returns its output.
    #[must_use]
    pub fn end(self) -> String {
        self.scripts.engine().drain();
        self.script.end(self.scripts.engine());
        let (_, bytes) = self.script.output().read(0);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its maps.
    ///
    /// # Panics
    /// When they are no JSON.
    #[must_use]
    pub fn maps(&self) -> serde_json::Value {
        serde_json::from_str(&self.script.maps()).expect("maps are JSON")
    }
}
