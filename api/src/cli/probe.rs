//! `exoprobe probe`.

use std::str::FromStr;

use clap::{Args, Subcommand};
use exoprobe_probes::Latency;
use exoprobe_probes::definition::DEFAULT_GROUP;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::add::{AddArgs, add};
use super::context::Context;
use super::error::CliError;
use super::format::{members, printable_lines};
use super::kprobes::{Switch, blacklist, switch};
use super::latency::distribution;
use super::show::print_table;
use crate::client::{ApiPath, ClientError, Payload, Problem};

const LIST_EXAMPLES: &str = "\
Examples:
  exoprobe probe list
  exoprobe probe list --json | jq '.[].hits'";

const REMOVE_EXAMPLES: &str = "\
Examples:
  exoprobe probe rm getpid mygroup/open
  exoprobe probe rm 'vfs/*'
  exoprobe probe rm --all";

const SWITCH_EXAMPLES: &str = "\
Examples:
  exoprobe probe switch off
  exoprobe probe switch";

const OPTIMIZATION_EXAMPLES: &str = "\
Examples:
  exoprobe probe optimization
  exoprobe probe optimization off";

/// Commands about probes.
#[derive(Debug, Subcommand)]
pub(super) enum ProbeCommand {
    /// Add probes: all of them, or none when one is wrong
    Add(AddArgs),
    /// List all probes
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Print them as the kernel's kprobes/list does
        #[arg(long)]
        kprobes_list: bool,
    },
    /// Show all about one probe
    #[command(after_help = "Example:\n  exoprobe probe show getpid")]
    Show {
        /// EVENT or GROUP/EVENT
        name: ProbeName,
    },
    /// Arm probes
    #[command(after_help = "Example:\n  exoprobe probe enable getpid mygroup/open")]
    Enable(Names),
    /// Disarm probes and keep them
    #[command(
        after_help = "Examples:\n  exoprobe probe disable getpid\n  exoprobe probe disable 'vfs/*'"
    )]
    Disable(Names),
    /// Remove probes, those that there are
    #[command(after_help = REMOVE_EXAMPLES)]
    Rm {
        /// EVENT or GROUP/EVENT; `*` and `?` may stand for characters
        #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
        names: Vec<ProbeName>,
        /// Remove all
        #[arg(long)]
        all: bool,
    },
    /// Turn the switch over all probes; without an argument, show it
    #[command(after_help = SWITCH_EXAMPLES)]
    Switch {
        /// Off disarms all probes, on arms those that are enabled
        #[arg(value_name = "on|off")]
        to: Option<Switch>,
    },
    /// Turn jump optimization on or off; without an argument, show it
    ///
    /// Optimized probes ([OPTIMIZED] among a probe's flags) have a jmp in place of their int3:
    /// their hits do not leave the guest. `probe list --json` gives the reason why the others are
    /// not optimized.
    #[command(after_help = OPTIMIZATION_EXAMPLES)]
    Optimization {
        /// Off has all hits go through the VMM, on has probes optimized that may be
        #[arg(value_name = "on|off")]
        to: Option<Switch>,
    },
    /// List where no probe may be in the guest's kernel, and why
    #[command(after_help = "Example:\n  exoprobe probe blacklist")]
    Blacklist,
}

/// Names of probes.
#[derive(Debug, Args)]
pub(super) struct Names {
    /// EVENT or GROUP/EVENT; `*` and `?` may stand for characters
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ProbeName>,
}

/// `EVENT` or `GROUP/EVENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProbeName(String);

impl FromStr for ProbeName {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts: Vec<_> = text.split('/').collect();
        if parts.len() > 2 || parts.iter().any(|part| part.is_empty()) {
            return Err("write EVENT or GROUP/EVENT");
        }
        Ok(Self(text.to_owned()))
    }
}

impl ProbeName {
    fn path(&self) -> ApiPath {
        // Always with the group: without it some names are other routes'.
        let (group, event) = self.0.split_once('/').unwrap_or((DEFAULT_GROUP, &self.0));
        ApiPath::new(&["probes", group, event])
    }
}

pub(super) async fn run(context: &mut Context<'_>, command: ProbeCommand) -> Result<(), CliError> {
    match command {
        ProbeCommand::Add(args) => add(context, &args).await,
        ProbeCommand::List { kprobes_list: true } => {
            let list = context.client.get(&ApiPath::new(&["kprobes", "list"])).await?;
            let list = String::from_utf8_lossy(&list);
            Ok(write!(context.out, "{}", printable_lines(&list))?)
        }
        ProbeCommand::List { kprobes_list: false } => {
            let probes = context.client.get(&ApiPath::new(&["probes"])).await?;
            print_table(context, &probes)
        }
        ProbeCommand::Show { name } => show(context, &name).await,
        ProbeCommand::Enable(Names { names }) => set_enabled(context, &names, true).await,
        ProbeCommand::Disable(Names { names }) => set_enabled(context, &names, false).await,
        ProbeCommand::Rm { all: true, .. } => {
            let path = ApiPath::new(&["probes"]);
            context.client.call(Method::DELETE, &path, Payload::Empty).await?;
            Ok(())
        }
        ProbeCommand::Rm { names, .. } => remove(context, &names).await,
        ProbeCommand::Switch { to } => switch(context, "enabled", to).await,
        ProbeCommand::Optimization { to } => switch(context, "optimization", to).await,
        ProbeCommand::Blacklist => blacklist(context).await,
    }
}

async fn show(context: &mut Context<'_>, name: &ProbeName) -> Result<(), CliError> {
    let probe = context.client.get(&name.path()).await?;
    let Some(mut probe) = context.read::<Value>(&probe)? else { return Ok(()) };
    let latency = probe.as_object_mut().and_then(|members| members.remove("latency"));
    let latency = Option::<Latency>::deserialize(latency.unwrap_or_default());
    write!(context.out, "{}", members(&probe))?;
    if let Some(latency) = latency.map_err(ClientError::from)?.filter(|found| found.calls > 0) {
        write!(context.out, "\n{}", distribution(&latency))?;
    }
    Ok(())
}

async fn set_enabled(
    context: &mut Context<'_>,
    names: &[ProbeName],
    enabled: bool,
) -> Result<(), CliError> {
    /// The probes of one name.
    #[derive(Deserialize)]
    struct Changed {
        probes: Vec<Value>,
    }
    let names_given: Vec<&str> = names.iter().map(|name| name.0.as_str()).collect();
    let payload = Payload::Json(json!({ "names": names_given, "enabled": enabled }));
    let answer = context.client.call(Method::PATCH, &ApiPath::new(&["probes"]), payload).await?;
    let changed: Vec<Changed> = serde_json::from_slice(&answer).map_err(ClientError::from)?;
    let mut failures = Failures::default();
    let mut probes = Vec::new();
    for (name, changed) in names.iter().zip(changed) {
        match changed.probes.is_empty() {
            true => failures.add_unknown(name),
            false => probes.extend(changed.probes),
        }
    }
    if !probes.is_empty() {
        print_table(context, Value::Array(probes).to_string().as_bytes())?;
    }
    failures.result(names.len())
}

async fn remove(context: &mut Context<'_>, names: &[ProbeName]) -> Result<(), CliError> {
    /// The service's result for each name.
    #[derive(Deserialize)]
    struct Told {
        addr: Option<String>,
    }
    let path = ApiPath::new(&["probes", "unregister"]);
    let payload = Payload::Json(names.iter().map(|name| name.0.as_str()).collect());
    let told = context.client.call(Method::POST, &path, payload).await?;
    let told: Vec<Told> = serde_json::from_slice(&told).map_err(ClientError::from)?;
    let mut failures = Failures::default();
    for (name, _) in names.iter().zip(&told).filter(|(_, told)| told.addr.is_none()) {
        failures.add_unknown(name);
    }
    failures.result(names.len())
}

/// Names that are no probe's: the others are still changed.
#[derive(Default)]
struct Failures(Vec<(String, Problem)>);

impl Failures {
    fn add_unknown(&mut self, name: &ProbeName) {
        let problem = Problem {
            status: 404,
            title: "Not Found".to_owned(),
            detail: "there is no such probe".to_owned(),
            code: "ENOENT".to_owned(),
            ..Problem::default()
        };
        self.0.push((name.0.clone(), problem));
    }

    fn result(self, of: usize) -> Result<(), CliError> {
        if self.0.is_empty() { Ok(()) } else { Err(CliError::Some { failed: self.0, of }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths() {
        let path = |name: &str| name.parse::<ProbeName>().map(|n| n.path().as_str().to_owned());
        assert_eq!(path("getpid").unwrap(), "/v1/probes/kprobes/getpid");
        assert_eq!(path("g/e?").unwrap(), "/v1/probes/g/e%3F");
        for wrong in ["", "/e", "g/", "a/b/c"] {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
