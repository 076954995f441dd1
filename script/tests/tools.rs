//! The tools of Debian's package bpftrace, read from where the package installs them: all are
//! parsed; those of served probes are checked, and the others name what is not there.

use std::sync::Arc;

use exoprobe_script::{AttachmentKind, Kernel, Options, Parameter, RecordRef, Script, Type, check};

/// Structs that the tools use, with members that they use.
const TYPES: &str = r"
struct qstr { unsigned int hash; unsigned int len; unsigned char *name; };
struct nameidata { void *path[2]; struct qstr last; };
struct gendisk { int major; char disk_name[32]; };
struct block_device { long start; struct gendisk *bd_disk; };
struct request_queue { void *last_merge; struct gendisk *disk; };
struct request { struct request_queue *q; };
struct bio { void *bi_next; struct block_device *bi_bdev; };
struct cfs_rq { long load[2]; unsigned int nr_running; };
struct sched_entity { long weight; struct cfs_rq *cfs_rq; };
struct task_struct { long state; struct sched_entity se; int pid; struct task_struct *real_parent; char comm[16]; };
struct oom_control { void *zonelist; struct task_struct *chosen; unsigned long totalpages; };
struct in6_addr { union { unsigned char u6_addr8[16]; unsigned int u6_addr32[4]; } in6_u; };
struct sock_common { unsigned int skc_daddr; unsigned int skc_rcv_saddr; unsigned short skc_dport; unsigned short skc_num; unsigned short skc_family; unsigned char skc_state; struct in6_addr skc_v6_daddr; struct in6_addr skc_v6_rcv_saddr; };
struct sock { struct sock_common __sk_common; unsigned int sk_ack_backlog; unsigned int sk_max_ack_backlog; };
struct tcp_sock { struct sock inet_conn; unsigned long bytes_acked; unsigned long bytes_received; };
struct sk_buff { struct sk_buff *next; struct sock *sk; unsigned int len; unsigned char *data; };
struct timespec { long tv_sec; long tv_nsec; };
";

/// Tools, and a part of the error for those of which a probe is not served.
const NOT_SERVED: [(&str, &str); 10] = [
    ("bashreadline", "uretprobe"),
    ("bitesize", "tracepoint:block:block_rq_issue"),
    ("gethostlatency", "uprobe"),
    ("pidpersec", "tracepoint:sched:sched_process_fork"),
    ("runqlat", "tracepoint:sched:sched_wakeup"),
    ("ssllatency", "uprobe"),
    ("sslsnoop", "uprobe"),
    ("tcpdrop", "tracepoint:skb:kfree_skb"),
    ("threadsnoop", "uprobe"),
    ("writeback", "tracepoint:writeback:writeback_start"),
];

/// Tools that need an exit at a probe, and a part of the reason.
const NEED_EXIT: [(&str, &str); 5] = [
    ("dcsnoop", "address that it computes"),
    ("execsnoop", "list of addresses"),
    ("opensnoop", "address that it computes"),
    ("statsnoop", "address that it computes"),
    ("undump", "length that it computes"),
];

struct AnyFunction;

impl Kernel for AnyFunction {
    fn functions(&self, _: Option<&str>, pattern: &str) -> Vec<Arc<str>> {
        vec![pattern.replace('*', "x").into()]
    }

    fn has_symbol(&self, symbol: &str) -> bool {
        symbol == "avenrun"
    }

    fn syscalls(&self) -> Vec<Arc<str>> {
        let names = [
            "execve",
            "execveat",
            "fdatasync",
            "fsync",
            "kill",
            "msync",
            "nanosleep",
            "newlstat",
            "newstat",
            "open",
            "openat",
            "setfsuid",
            "setresuid",
            "setuid",
            "statfs",
            "statx",
            "sync",
            "sync_file_range",
            "syncfs",
        ];
        names.into_iter().map(Arc::from).collect()
    }

    fn syscall(&self, name: &str) -> Option<Vec<Parameter>> {
        let long = |name: &str| Parameter { name: name.into(), ty: Type::INT64 };
        let text = Type::pointer(Type::Integer { bytes: 1, signed: true });
        let pointer = |name: &str, ty: Type| Parameter { name: name.into(), ty };
        let timespec = Type::pointer(Type::Record(RecordRef::Named("timespec".into())));
        Some(match name {
            "open" | "statx" | "newstat" | "newlstat" => vec![pointer("filename", text)],
            "openat" => vec![long("dfd"), pointer("filename", text)],
            "statfs" => vec![pointer("pathname", text)],
            "execve" | "execveat" => vec![long("filename"), pointer("argv", Type::pointer(text))],
            "nanosleep" => vec![pointer("rqtp", timespec)],
            "kill" => vec![long("pid"), long("sig")],
            "setresuid" => vec![long("ruid"), long("euid"), long("suid")],
            _ => vec![long("uid")],
        })
    }

    fn cpus(&self) -> u32 {
        2
    }
}

fn tools() -> Vec<(String, String)> {
    let mut tools: Vec<(String, String)> = std::fs::read_dir("/usr/sbin")
        .unwrap()
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bt"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    tools.sort();
    assert!(
        tools.len() >= 37,
        "{} tools: install Debian's package bpftrace: scripts/setup.sh --bpftrace",
        tools.len()
    );
    tools
}

#[test]
fn tools_are_checked_or_name_the_probe_that_is_not_served() {
    for (name, text) in tools() {
        // Its first line names the program that runs it.
        let text = format!("{TYPES}{}", text.split_once('\n').unwrap().1);
        let script = Script::parse(&text, &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let checked = check(&script, &AnyFunction, &Options::default());
        let wanted = NOT_SERVED.iter().find(|(tool, _)| *tool == name);
        match (checked, wanted) {
            (Ok(program), None) => {
                let reasons = program.bodies.iter().filter_map(|body| body.needs_exit.as_ref());
                let reasons: Vec<&str> = reasons.map(|reason| &*reason.text).collect();
                match NEED_EXIT.iter().find(|(tool, _)| *tool == name) {
                    Some((_, part)) => {
                        assert!(reasons.iter().all(|reason| reason.contains(part)), "{name}");
                        assert!(!reasons.is_empty(), "{name} needs no exit");
                    }
                    None => assert!(reasons.is_empty(), "{name}: {reasons:?}"),
                }
            }
            (Err(error), Some((_, part))) => {
                let error = error.to_string();
                assert!(error.contains(part), "{name}: {error}");
            }
            (Ok(_), Some(_)) => panic!("{name} is served"),
            (Err(error), None) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn a_system_calls_wildcard_becomes_a_probe_for_each() {
    let tools = tools();
    let (_, text) = tools.iter().find(|(name, _)| name == "execsnoop").unwrap();
    let script = Script::parse(text, &[]).unwrap();
    let program = check(&script, &AnyFunction, &Options::default()).unwrap();
    let kinds: Vec<_> = program.attachments.iter().map(|it| it.kind.clone()).collect();
    let enter = |name: &str| AttachmentKind::SyscallEnter { name: Some(name.into()) };
    assert_eq!(kinds, [AttachmentKind::Begin, enter("execve"), enter("execveat")]);
}
