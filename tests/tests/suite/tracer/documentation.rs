//! Examples of the kernel's documentation, pasted into a shell over a mount.

use exoprobe_tests::harness::Case;
use exoprobe_tests::{Service, cases};

use crate::support::tracer::{Mount, cat, events, total, work};

pub(crate) const CASES: &[Case] = cases![
    the_examples_of_kprobetrace_run_in_a_shell needs [Kvm, Fuse],
    the_examples_of_two_events_run_in_a_shell needs [Kvm, Fuse],
];

/// The folder in the documentation's commands.
const FOLDER: &str = "/sys/kernel/tracing";

/// A shell into which commands are pasted.
struct Shell(Mount);

impl Shell {
    fn of(service: &Service) -> Self {
        Self(Mount::of(service))
    }

    /// Runs commands, which end at the first that fails, and returns what they print.
    fn paste(&self, commands: &str) -> String {
        let text = self.0.shell(&format!("set -e\n{}", commands.replace(FOLDER, self.0.point())));
        assert!(!text.contains("error: "), "{commands}: {text}");
        text
    }
}

/// The calls of a kind that the guest has made since boot, by its own count.
fn made(service: &Service, name: &str) -> u64 {
    let counters = service.work("counters");
    let count = counters.split_whitespace().find_map(|word| word.strip_prefix(name));
    let count = count.and_then(|count| count.strip_prefix('='));
    count.unwrap_or_else(|| panic!("{name} in {counters}")).parse().unwrap()
}

fn the_examples_of_kprobetrace_run_in_a_shell() {
    let service = Service::restored(1);
    let shell = Shell::of(&service);
    shell.paste(
        "echo 'p:myprobe do_sys_openat2 dfd=%ax filename=%dx flags=%cx mode=+4($stack)' > /sys/kernel/tracing/kprobe_events\n\
         echo 'r:myretprobe do_sys_openat2 $retval' >> /sys/kernel/tracing/kprobe_events",
    );
    let format = shell.paste("cat /sys/kernel/tracing/events/kprobes/myprobe/format");
    let print = "REC->__probe_ip, REC->dfd, REC->filename, REC->flags, REC->mode\n";
    assert!(format.starts_with("name: myprobe\nID: ") && format.ends_with(print), "{format}");
    shell.paste(
        "echo 1 > /sys/kernel/tracing/events/kprobes/myprobe/enable\n\
         echo 1 > /sys/kernel/tracing/events/kprobes/myretprobe/enable\n\
         cd /sys/kernel/tracing\n\
         echo 1 > tracing_on",
    );
    let before = made(&service, "open");
    work(&service, "open /dev/null 7");
    let shown = made(&service, "open") - before;
    shell.paste("echo 0 > tracing_on");
    work(&service, "open /dev/null 2");
    let trace = shell.paste("cat /sys/kernel/tracing/trace");
    let hits = |of: &str| events(&trace).iter().filter(|line| line.contains(of)).count() as u64;
    assert_eq!((shown, hits(": myprobe: (do_sys_openat2+0x0/")), (7, 7), "{trace}");
    assert_eq!(hits(" <- do_sys_openat2) arg1=0x"), shown, "{trace}");
    let profile = shell.paste("cat /sys/kernel/tracing/kprobe_profile");
    let counts: Vec<&str> = profile.split_whitespace().collect();
    assert_eq!(counts, ["myprobe", "9", "0", "myretprobe", "9", "0"], "also what is not shown");
    shell.paste(
        "echo 0 > /sys/kernel/tracing/events/kprobes/enable\n\
         cd /sys/kernel/tracing\n\
         echo -:myprobe >> kprobe_events",
    );
    assert!(cat(&service, "kprobe_events").starts_with("r:kprobes/myretprobe "));
    shell.paste("echo > /sys/kernel/tracing/kprobe_events");
    assert_eq!(cat(&service, "kprobe_events"), "");
}

/// Functions that run where a task is woken for the first time, and where it begins, stand for the
/// tracepoints of the scheduler.
fn the_examples_of_two_events_run_in_a_shell() {
    let service = Service::restored(1);
    let shell = Shell::of(&service);
    shell.paste(
        "cd /sys/kernel/tracing\n\
         echo 'p:sched_waking wake_up_new_task pid=p->pid prio=p->prio' >> kprobe_events\n\
         echo 'p:sched_switch schedule_tail prev_pid=prev->pid prev_prio=prev->prio prev_comm=prev->comm:string' >> kprobe_events\n\
         echo 'wakeup_latency u64 lat; pid_t pid; s32 prio' >> \\\n\
             /sys/kernel/tracing/synthetic_events\n\
         echo 'hist:keys=$saved_pid:saved_pid=pid:ts0=common_timestamp.usecs if comm==\"init\"' >> \\\n\
             /sys/kernel/tracing/events/kprobes/sched_waking/trigger\n\
         echo 'hist:keys=common_pid:wakeup_lat=common_timestamp.usecs-$ts0:onmatch(kprobes.sched_waking).wakeup_latency($wakeup_lat,$saved_pid,prev_prio)' >> \\\n\
             /sys/kernel/tracing/events/kprobes/sched_switch/trigger\n\
         echo 'hist:keys=pid,prio,lat:sort=pid,lat' >> \\\n\
             /sys/kernel/tracing/events/synthetic/wakeup_latency/trigger",
    );
    let forks = |count: u64| {
        let before = made(&service, "fork");
        work(&service, &format!("fork {count}"));
        made(&service, "fork") - before
    };
    let made_events = forks(5);
    let hist = shell.paste("cat /sys/kernel/tracing/events/synthetic/wakeup_latency/hist");
    assert_eq!((made_events, total(&hist, "Hits:")), (5, 5), "{hist}");
    assert!(hist.contains(":sort=pid,lat:size=2048 [active]"), "{hist}");
    // The other example has variables of the same names.
    shell.paste(
        "cd /sys/kernel/tracing\n\
         echo '!hist:keys=common_pid:wakeup_lat=common_timestamp.usecs-$ts0:onmatch(kprobes.sched_waking).wakeup_latency($wakeup_lat,$saved_pid,prev_prio)' >> \\\n\
             events/kprobes/sched_switch/trigger\n\
         echo 'hist:keys=common_pid:wakeup_lat=common_timestamp.usecs-$ts0:onmax($wakeup_lat).save(prev_comm,prev_pid,prev_prio)' >> \\\n\
             events/kprobes/sched_switch/trigger",
    );
    let kept = forks(3);
    let hist = shell.paste("cat /sys/kernel/tracing/events/kprobes/sched_switch/hist");
    assert_eq!((kept, total(&hist, "Hits:")), (3, 3), "{hist}");
    let lines = |of: &str| hist.lines().filter(|line| line.contains(of)).count();
    assert_eq!((lines("max: "), lines("prev_comm: ")), (3, 3), "{hist}");
}
