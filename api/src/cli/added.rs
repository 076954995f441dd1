//! The answer to `probe add`.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Deserialize;
use serde_json::Value;

use super::context::Context;
use super::error::CliError;
use super::format::printable;
use super::show::{PENDING, print_table};
use crate::client::{ApiPath, Client, ClientError};
use crate::log::say;

/// Delay between two polls of pending probes.
const POLL: Duration = Duration::from_millis(200);
/// Most refusals that are shown one by one.
const SHOWN: usize = 20;

/// Use of the service's answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Nothing was to be added.
    pub(super) dry_run: bool,
    /// How long to wait for probes that are pending, in seconds.
    pub(super) wait: u64,
}

/// A probe of a pattern that was refused.
#[derive(Debug, Deserialize)]
struct Refused {
    place: String,
    rule: String,
    code: String,
    detail: String,
}

/// Prints the probes that were added, or that would be, and reports those that were left out.
pub(super) async fn print_answer(
    context: &mut Context<'_>,
    wish: Wish,
    answer: &[u8],
) -> Result<(), CliError> {
    let mut value: Value = serde_json::from_slice(answer).map_err(ClientError::from)?;
    let Some(refused) = value.get_mut("refused").map(Value::take) else {
        return print_added(context, wish, answer).await;
    };
    let refused = Vec::<Refused>::deserialize(refused).map_err(ClientError::from)?;
    let probes = value["probes"].take();
    let found = probes.as_array().map_or(0, Vec::len);
    report(&refused, found);
    if found == 0 && !wish.dry_run {
        return Err(CliError::AllRefused(refused.len()));
    }
    if context.json && (wish.dry_run || wish.wait == 0) {
        return Ok(context.print_json(&String::from_utf8_lossy(answer))?);
    }
    if wish.dry_run {
        for probe in probes.as_array().into_iter().flatten() {
            let line = probe["definition"].as_str().unwrap_or_default();
            writeln!(context.out, "{}", printable(line))?;
        }
        return Ok(());
    }
    print_added(context, wish, probes.to_string().as_bytes()).await
}

/// Reports refusals: the first ones with their reasons, and how many there are by each rule.
fn report(refused: &[Refused], found: usize) {
    refused.iter().take(SHOWN).for_each(|one| say!("{}", line(one)));
    if refused.len() > SHOWN {
        say!("{}", summary(refused, found));
    }
}

fn line(Refused { place, code, detail, .. }: &Refused) -> String {
    printable(&format!("left out: {place}: {detail} ({code})"))
}

fn summary(refused: &[Refused], found: usize) -> String {
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    for one in refused {
        *rules.entry(&one.rule).or_default() += 1;
    }
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rules: Vec<_> = rules.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
    let (left_out, all) = (refused.len(), refused.len() + found);
    let rules = rules.join(", ");
    printable(&format!("left out: {left_out} of {all}: {rules}; --json lists all"))
}

async fn print_added(context: &mut Context<'_>, wish: Wish, added: &[u8]) -> Result<(), CliError> {
    if wish.wait == 0 {
        return print_table(context, added);
    }
    let added = serde_json::from_slice(added).map_err(ClientError::from)?;
    wait_and_print(context, added, wish.wait).await
}

/// Prints probes once none of them is pending, or the time is over.
async fn wait_and_print(
    context: &mut Context<'_>,
    added: Value,
    seconds: u64,
) -> Result<(), CliError> {
    let (started, limit) = (Instant::now(), Duration::from_secs(seconds));
    let mut probes = match added {
        Value::Array(probes) => probes,
        one => vec![one],
    };
    let ids: HashSet<u64> = probes.iter().filter_map(|probe| probe["id"].as_u64()).collect();
    let mut progress = None;
    loop {
        let reasons: Vec<String> = probes.iter().filter_map(pending_reason).collect();
        let left = limit.saturating_sub(started.elapsed());
        if reasons.is_empty() || left.is_zero() {
            drop(progress);
            let of = probes.len();
            print_table(context, Value::Array(probes).to_string().as_bytes())?;
            let count = reasons.len();
            return match reasons.into_iter().next() {
                Some(reason) => Err(CliError::StillPending { count, of, seconds, reason }),
                None => Ok(()),
            };
        }
        progress.get_or_insert_with(|| Progress::start(seconds)).show(reasons.len());
        tokio::time::sleep(POLL.min(left)).await;
        probes = list(context.client).await?;
        probes.retain(|probe| probe["id"].as_u64().is_some_and(|id| ids.contains(&id)));
    }
}

async fn list(client: &Client) -> Result<Vec<Value>, ClientError> {
    Ok(serde_json::from_slice(&client.get(&ApiPath::new(&["probes"])).await?)?)
}

/// Reason that a probe is pending, if it is.
fn pending_reason(probe: &Value) -> Option<String> {
    let reason = probe["reason"].as_str().unwrap_or_default();
    (probe["state"] == PENDING).then(|| reason.to_owned())
}

/// A line on standard error that goes away when the wait ends.
struct Progress(ProgressBar);

impl Progress {
    fn start(seconds: u64) -> Self {
        let target = ProgressDrawTarget::stderr();
        if target.is_hidden() {
            say!("waiting for the probes' text (at most {seconds} s)");
        }
        let bar = ProgressBar::with_draw_target(None, target);
        bar.enable_steady_tick(POLL);
        Self(bar)
    }

    fn show(&self, pending: usize) {
        self.0.set_message(format!("waiting for the text of {pending} probe(s)"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(place: &str, rule: &str) -> Refused {
        let (place, rule) = (place.to_owned(), rule.to_owned());
        Refused { place, rule, code: "EINVAL".to_owned(), detail: "no\u{1b}".to_owned() }
    }

    #[test]
    fn refusals_are_counted_by_rule() {
        let all = ["blacklist", "boundary", "boundary"].map(|rule| refused("f", rule));
        assert_eq!(
            summary(&all, 7),
            "left out: 3 of 10: boundary 2, blacklist 1; --json lists all"
        );
        assert_eq!(line(&all[0]), "left out: f: no\\u{1b} (EINVAL)");
    }
}
