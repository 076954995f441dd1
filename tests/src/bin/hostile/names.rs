//! A guest whose tasks and files have names that steer terminals.

use std::process::Output;
use std::time::Duration;

use exoprobe_tests::{Service, exoprobe, finish};

use crate::attack::{Ground, Tally, ask, end, work};

/// Control sequences by ESC and by U+009B, a bell, and what reorders or hides text.
const NAMES: [&str; 4] =
    ["\u{1b}[2J\u{7}x", "\u{9b}2J\u{9d}0;y", "\u{202e}gnp\u{200b}", "\u{2066}\u{e0041}z"];

const COMMANDS: [&[&str]; 12] = [
    &["ps"],
    &["--json", "ps"],
    &["vm", "status"],
    &["--json", "vm", "status"],
    &["events", "--color", "never"],
    &["--json", "events"],
    &["export", "--format", "chrome"],
    &["stack", "--pid", "1"],
    &["probe", "list"],
    &["top", "--once", "--color", "never"],
    &["symbols", "\u{1b}[2J"],
    &["probe", "add", "p:\u{9b}2J \u{202e}"],
];

/// Longest that a command may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn client(service: &Service, args: &[&str]) -> Output {
    finish(exoprobe().arg("--socket").arg(service.socket()).args(args), PATIENCE)
}

/// Characters of a text that a terminal obeys, or that change how the rest is shown.
fn raw(text: &str) -> Vec<char> {
    let is_raw = |c: &char| {
        c.is_control() && !['\n', '\t'].contains(c)
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            || ('\u{e0000}'..='\u{e007f}').contains(c)
    };
    text.chars().filter(is_raw).collect()
}

pub(crate) fn hostile(ground: &mut Ground, tally: &mut Tally) {
    let service = ground.service();
    drop(work(&service, "mount proc /proc"));
    let line = b"p:opened do_sys_openat2 file=+0(%si):ustring comm=$comm";
    let added = ask(&service, "POST", "/v1/probes", "text/plain", line);
    tally.check(added.is_ok_and(|answer| answer.status == 201), || service.log());
    while ground.goes_on(tally) {
        let name = *ground.dice.pick(&NAMES);
        // What the guest says of it is shown raw by `vm send` only where that is its own text.
        for command in [format!("put /proc/self/comm {name}"), format!("open /{name} 1")] {
            let body = format!("{command}\n");
            let sent = ask(&service, "POST", "/v1/vm/serial/1", "text/plain", body.as_bytes());
            tally.check(sent.is_ok_and(|answer| answer.status == 204), || command.clone());
        }
        if let Err(error) = work(&service, "getpid 1") {
            return tally.found(error);
        }
        for command in COMMANDS {
            let output = client(&service, command);
            for bytes in [&output.stdout, &output.stderr] {
                let text = String::from_utf8_lossy(bytes);
                let raw = raw(&text);
                tally.check(raw.is_empty(), || format!("{command:?} prints {raw:?}: {text:?}"));
            }
            tally.times += 1;
        }
    }
    // In the API's own JSON the name is what it is.
    let tasks = ask(&service, "GET", "/v1/tasks", "", b"").map(|answer| answer.json());
    let comm = tasks.as_ref().ok().and_then(|tasks| tasks[0]["comm"].as_str());
    let is_hostile = comm.is_some_and(|comm| !raw(comm).is_empty());
    tally.check(is_hostile, || format!("the attack shows nothing: {tasks:?}"));
    tally.check(raw(&service.log()).is_empty(), || service.log());
    end(service, tally);
}
