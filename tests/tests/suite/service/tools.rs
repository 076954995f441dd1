//! The tools of Debian's package bpftrace (0.17), unmodified, over a guest of Linux 6.12. Their
//! counts are compared with the workload's own.

use exoprobe_tests::Service;
use exoprobe_tests::cases;
use exoprobe_tests::harness::Case;
use tempfile::TempDir;

use super::scripts::{end, trace};
use crate::support::devices::Sides;
use crate::support::histograms::sum;

pub(crate) const CASES: &[Case] = cases![
    each_system_call_has_a_row needs [Kvm, BpftraceTools, Repeat],
    each_lookup_of_a_name_has_a_row needs [Kvm, BpftraceTools, Repeat],
    each_connection_and_message_has_a_row needs [Kvm, BpftraceTools, QuickKernel],
    each_syn_that_is_sent_again_has_a_row needs [Kvm, BpftraceTools, QuickKernel],
    a_task_that_is_killed_for_its_memory_has_a_row needs [Kvm, BpftraceTools, QuickKernel],
    functions_that_the_kernel_has_not_are_named needs [Kvm, BpftraceTools, Repeat],
    probes_that_are_not_served_are_named needs [Kvm, BpftraceTools, Repeat],
];

/// Tools that are refused for a probe, and a part of the error.
const NOT_SERVED: [(&str, &str); 10] = [
    ("bashreadline", "`uretprobe`: probes of processes are not served yet"),
    ("bitesize", "`tracepoint:block:block_rq_issue`: this tracepoint is not there"),
    ("gethostlatency", "`uprobe`: probes of processes are not served yet"),
    ("pidpersec", "`tracepoint:sched:sched_process_fork`: this tracepoint is not there"),
    ("runqlat", "`tracepoint:sched:sched_wakeup`: this tracepoint is not there"),
    ("ssllatency", "`uprobe`: probes of processes are not served yet"),
    ("sslsnoop", "`uprobe`: probes of processes are not served yet"),
    ("tcpdrop", "`tracepoint:skb:kfree_skb`: this tracepoint is not there"),
    ("threadsnoop", "`uprobe`: probes of processes are not served yet"),
    ("writeback", "`tracepoint:writeback:writeback_start`: this tracepoint is not there"),
];

/// Tools of functions that Linux 6.12 has not, or not with this configuration.
const MISSING: [(&str, &[&str]); 6] = [
    ("biolatency", &["blk_account_io_start", "__blk_account_io_start"]),
    ("biosnoop", &["blk_account_io_start", "__blk_account_io_start"]),
    ("biostacks", &["blk_account_io_start", "__blk_account_io_start"]),
    ("mdflush", &["md_flush_request"]),
    ("swapin", &["swap_readpage"]),
    ("xfsdist", &["xfs_file_read_iter", "xfs_file_fsync"]),
];

/// A service with a guest of Linux 6.12.
struct Guest {
    service: Service,
    _sides: Sides,
    _folder: TempDir,
}

fn path(tool: &str) -> String {
    format!("/usr/sbin/{tool}.bt")
}

impl Guest {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sides = Sides::new(folder.path(), 1);
        let arguments = sides.arguments(1);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self { service: Service::start(&arguments), _sides: sides, _folder: folder }
    }

    /// Runs a tool while the guest works. Returns its output.
    fn run(&self, tool: &str, work: &str) -> String {
        let text = self.service.ok(&["trace", &path(tool), "-c", work]);
        assert!(text.starts_with("Attaching "), "{tool}: {text}");
        text
    }

    /// Runs a tool while the guest works, and counts the rows of its output that are meant.
    fn count(&self, tool: &str, work: &str, is_meant: impl Fn(&str) -> bool) -> usize {
        let text = self.run(tool, work);
        let count = text.lines().filter(|line| is_meant(line.trim_end())).count();
        println!("{tool}, {work}: {count} rows");
        if count == 0 {
            println!("{text}");
        }
        count
    }

    /// The error that a tool ends with.
    fn refusal(&self, tool: &str) -> String {
        let output = self.service.client(&["trace", &path(tool)]);
        assert_eq!(output.status.code(), Some(1), "{tool}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn each_system_call_has_a_row() {
    let guest = Guest::new();
    for (tool, work, end, calls) in [
        ("opensnoop", "open /dev/null 3", " /dev/null", 3),
        ("statsnoop", "stat /dev 7", " 0 /dev", 7),
        ("execsnoop", "exec /none 4", " /none", 4),
        ("setuids", "setuid 5", " setuid    uid=0 (0)", 5),
        ("killsnoop", "kill 6", " 0    1      0", 6),
        ("syncsnoop", "sync 3", " tracepoint:syscalls:sys_enter_sync", 3),
        ("naptime", "par 3 sleep 30", " init             0.030", 3),
    ] {
        let rows = guest.count(tool, work, |line| line.ends_with(end));
        assert_eq!(rows, calls, "{tool}");
    }
    let rows = guest.count("capable", "setuid 5", |line| line.contains(" 7    CAP_SETUID "));
    assert_eq!(rows, 5, "capable");
    let calls = guest.run("syscount", "open /dev/null 30");
    assert!(calls.contains("@syscall[257]: 30\n"), "{calls}");
    let functions = guest.run("vfscount", "open /dev/null 40");
    assert!(functions.contains("@[vfs_open]: 40\n"), "{functions}");
    // Both have an interval of a second.
    let loads = guest.run("loads", "sleep 1500");
    assert!(loads.contains("load averages: "), "{loads}");
    let running = trace(&guest.service, &[&path("vfsstat")]);
    let answer = guest.service.work("open /dev/null 40");
    assert!(answer.starts_with("done"), "{answer}");
    let _ = guest.service.work("sleep 1500");
    let functions = end(&guest.service, running);
    let opens = functions.lines().filter_map(|line| line.strip_prefix("@[vfs_open]: "));
    let opens: u64 = opens.map(|count| count.parse::<u64>().expect("a count")).sum();
    assert_eq!(opens, 40, "{functions}");
}

fn each_lookup_of_a_name_has_a_row() {
    let guest = Guest::new();
    let found = guest.run("dcsnoop", "open /dev/null 40");
    for name in ["dev/null", "null"] {
        let rows = found.lines().filter(|line| line.ends_with(&format!(" R {name}")));
        assert_eq!(rows.count(), 40, "{name}: {found}");
    }
    let rows = guest.count("dcsnoop", "mkdir /dev 9", |line| line.ends_with(" M dev"));
    assert_eq!(rows, 9);
}

fn each_connection_and_message_has_a_row() {
    let guest = Guest::new();
    let local = |line: &str, port: &str| {
        line.matches("127.0.0.1").count() == 2 && line.split_whitespace().any(|word| word == port)
    };
    let rows = guest.count("tcpconnect", "tcp 1 8", |line| local(line, "7777"));
    assert_eq!(rows, 8, "tcpconnect");
    let accepted = |line: &str| local(line, "7777") && line.ends_with(" 0/1");
    assert_eq!(guest.count("tcpaccept", "tcp 1 6", accepted), 6, "tcpaccept");
    // Both ends of each connection.
    let lives = |line: &str| local(line, "7777") && line.contains("     3     3 ");
    assert_eq!(guest.count("tcplife", "tcp 3 5", lives), 10, "tcplife");
    let backlog = guest.run("tcpsynbl", "tcp 1 7");
    assert!(backlog.contains("@backlog[1]:") || backlog.contains("@backlog[1]: "), "{backlog}");
    assert_eq!(sum(&backlog), 7, "{backlog}");
    let message = |line: &str| line.contains(" init             1        100      xxxxxxxx");
    assert_eq!(guest.count("undump", "unix 100 12", message), 12, "undump");
}

fn each_syn_that_is_sent_again_has_a_row() {
    let guest = Guest::new();
    let running = trace(&guest.service, &[&path("tcpretrans")]);
    let answer = guest.service.work("tcp-full 2500");
    let text = end(&guest.service, running);
    let again = answer.trim_end().rsplit(' ').next().and_then(|count| count.parse::<usize>().ok());
    let rows = text.lines().filter(|line| line.contains(":7777") && line.ends_with("SYN_SENT"));
    assert_eq!(Some(rows.count()), again, "{answer}: {text}");
    assert!(again > Some(0), "{answer}");
}

fn a_task_that_is_killed_for_its_memory_has_a_row() {
    let guest = Guest::new();
    // Much of the memory: to take all would last a minute where KVM emulates the guest's kernel. Of
    // what is left the task must take more than half as much: less does not bring the free memory
    // over its high mark (min_free_kbytes and a half, vm.rst) when the task is killed, and the
    // kernel panics as it finds no other.
    let reserved = guest.service.work("put /proc/sys/vm/min_free_kbytes 24000");
    assert_eq!(reserved.trim_end(), "done put 1");
    let text = guest.run("oomkill", "oom 1");
    let row = text.lines().filter(|line| line.contains("OOM kill of PID ")).collect::<Vec<_>>();
    let [row] = row[..] else { panic!("{text}") };
    assert!(row.contains("(\"init\"), ") && row.contains(" pages, loadavg: "), "{row}");
    let loads = row.rsplit(": ").next().unwrap_or_default().split(' ');
    let loads: Vec<f64> = loads.map(|load| load.parse().expect("a load")).collect();
    assert_eq!(loads.len(), 3, "{row}");
}

fn functions_that_the_kernel_has_not_are_named() {
    let guest = Guest::new();
    for (tool, functions) in MISSING {
        let error = guest.refusal(tool);
        for function in functions {
            let message = format!("no function matches `{function}`");
            assert!(error.contains(&message), "{tool}: {error}");
        }
    }
}

fn probes_that_are_not_served_are_named() {
    let guest = Guest::new();
    for (tool, part) in NOT_SERVED {
        let error = guest.refusal(tool);
        assert!(error.contains(part), "{tool}: {error}");
    }
}
