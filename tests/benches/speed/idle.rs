//! CPU time of an idle service: its own threads', and its guest's.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use exoprobe_tests::{Service, TestGuest, http};

use crate::figure::figure;

const PROBES: [&str; 3] = ["getpid", "getppid", "gettid"];
const ROUNDS: usize = 3;
const SPAN: Duration = Duration::from_secs(10);
/// After so long without a hit, the service wakes less often.
const QUIET: Duration = Duration::from_secs(1);

/// CPU time in percent of one core.
#[derive(Clone, Copy)]
struct Shares {
    /// Of all threads but the vCPUs'.
    own: f64,
    /// Of the vCPUs' threads: the guest's time, and exits.
    vcpus: f64,
}

impl Shares {
    const MOST: Self = Self { own: f64::INFINITY, vcpus: f64::INFINITY };

    fn least(self, other: Self) -> Self {
        Self { own: self.own.min(other.own), vcpus: self.vcpus.min(other.vcpus) }
    }
}

/// Nanoseconds on a CPU: of all threads but the vCPUs', and of these.
fn cpu_time(pid: u32) -> [u64; 2] {
    let mut times = [0; 2];
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("it runs") {
        let task = task.expect("a thread's folder").path();
        let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
        let spent = read("schedstat");
        let spent: u64 = spent.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
        times[usize::from(read("comm").starts_with("vcpu"))] += spent;
    }
    times
}

fn shares(service: &Service) -> Shares {
    sleep(QUIET);
    let before = cpu_time(service.pid());
    sleep(SPAN);
    let after = cpu_time(service.pid());
    let [own, vcpus] = [0, 1].map(|of| {
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let spent = after[of].saturating_sub(before[of]) as f64;
        spent * 1e-7 / SPAN.as_secs_f64()
    });
    Shares { own, vcpus }
}

fn optimize_all(service: &Service) {
    for name in PROBES {
        let line = format!("p:{name} __x64_sys_{name}");
        let kind = ["content-type: text/plain"];
        let answer = http::ask(service.socket(), "POST", "/v1/probes", &kind, line.as_bytes());
        assert_eq!(answer.status, 201, "{}", answer.body);
    }
    let listed = || http::ask(service.socket(), "GET", "/v1/kprobes/list", &[], b"").body;
    while listed().matches("[OPTIMIZED]").count() < PROBES.len() {
        sleep(Duration::from_millis(20));
    }
}

pub(crate) fn run() {
    let snapshot = TestGuest::snapshot(1);
    let service = Service::start(&["--restore", snapshot.to_str().expect("a path in UTF-8")]);
    let (mut without, mut with) = (Shares::MOST, Shares::MOST);
    for _ in 0..ROUNDS {
        without = without.least(shares(&service));
        optimize_all(&service);
        with = with.least(shares(&service));
        assert_eq!(http::ask(service.socket(), "DELETE", "/v1/probes", &[], b"").status, 204);
    }
    let percent = |share: f64| format!("{share:.2} %");
    figure("an idle service's own threads, of a core", &percent(without.own), "");
    figure("  with three optimized probes", &percent(with.own), "< 0.5 %");
    let ratio = format!("{:.2}", with.vcpus / without.vcpus);
    figure("  its guest's CPU time, beside that without", &ratio, "1");
}
