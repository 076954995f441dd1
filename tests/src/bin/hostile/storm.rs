//! Clients that reboot, pause, snapshot and dump the guest, all at once.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exoprobe_tests::{Dice, Service};
use serde_json::json;

use crate::attack::{Ground, Tally, ask, check_alive, end, work};

const CLIENTS: u64 = 4;
/// Longest boot of the guest after the storm.
const BOOT: Duration = Duration::from_secs(300);

/// One request. Returns an answer that none may have.
fn one(service: &Service, folder: &Path, dice: &mut Dice) -> Option<String> {
    let file = |name: String| json!({"path": folder.join(name), "force": true}).to_string();
    let snapshot = json!({"path": folder.join(format!("s{}", dice.below(2)))}).to_string();
    let dump = file(format!("d{}", dice.below(2)));
    let (method, path, body) = match dice.below(12) {
        0 | 1 => ("POST", "/v1/vm/reboot", ""),
        2 => ("POST", "/v1/vm/snapshot", &*snapshot),
        3 => ("POST", "/v1/vm/dump", &*dump),
        4 => ("POST", "/v1/vm/pause", ""),
        5 | 6 => ("POST", "/v1/vm/resume", ""),
        7 => ("POST", "/v1/vm/power-button", ""),
        8 => ("GET", "/v1/vm/registers/0", ""),
        9 => ("GET", "/v1/tasks", ""),
        10 => ("GET", "/v1/symbols?name=vfs_*&limit=3", ""),
        _ => ("GET", "/v1/vm", ""),
    };
    match ask(service, method, path, "application/json", body.as_bytes()) {
        Ok(answer) if answer.status < 500 || [503, 507].contains(&answer.status) => None,
        Ok(answer) => Some(format!("{method} {path}: {answer:?}")),
        Err(error) => Some(error),
    }
}

pub(crate) fn storm(ground: &mut Ground, tally: &mut Tally) {
    let service = ground.service();
    let (times, until) = (AtomicU64::new(0), ground.end());
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut dice = Dice(ground.dice.roll());
                let (service, times, folder) = (&service, &times, ground.folder.path());
                scope.spawn(move || {
                    let mut odd = Vec::new();
                    loop {
                        odd.extend(one(service, folder, &mut dice));
                        times.fetch_add(1, Ordering::Relaxed);
                        if Instant::now() >= until {
                            return odd;
                        }
                    }
                })
            })
            .collect();
        for client in clients {
            let odd = client.join().unwrap_or_else(|_| vec!["a client panicked".to_owned()]);
            odd.into_iter().for_each(|answer| tally.found(answer));
        }
    });
    tally.times = times.load(Ordering::Relaxed);
    calm(&service, ground, tally);
    end(service, tally);
}

/// After the storm the guest boots and works, and no file is left half done.
fn calm(service: &Service, ground: &Ground, tally: &mut Tally) {
    check_alive(service, tally);
    for path in ["/v1/vm/resume", "/v1/vm/reboot"] {
        let answer = ask(service, "POST", path, "", b"");
        let taken =
            answer.as_ref().is_ok_and(|answer| answer.status == 200 || path.ends_with("resume"));
        tally.check(taken, || format!("{path}: {answer:?}"));
    }
    let deadline = Instant::now() + BOOT;
    while let Err(error) = work(service, "getpid 10") {
        if Instant::now() > deadline {
            return tally.found(error);
        }
    }
    for entry in std::fs::read_dir(ground.folder.path()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = ["s0", "s1", "d0", "d1"].iter().any(|ours| name == *ours);
        tally.check(is_ours, || format!("{name:?} is left"));
    }
    let snapshot = ["s0", "s1"].map(|name| ground.path(name));
    if let Some(path) = snapshot.iter().find(|path| Path::new(path).exists()) {
        let restored = Service::start(&["--restore", path]);
        check_alive(&restored, tally);
        end(restored, tally);
    }
}
