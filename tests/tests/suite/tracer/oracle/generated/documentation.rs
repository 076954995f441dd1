//! Sessions of the kernel's documentation (`documentation.txt`). No shell hits the events.

use super::super::session::{Operation, Session};

/// The commands.
const BLOCKS: &str = include_str!("../documentation.txt");

/// Events with the fields of the tracepoints that the documentation has, and of system calls.
const EVENTS: [(&str, &str); 18] = [
    ("kmalloc", "call_site=%di ptr=%si bytes_req=%dx:u64 bytes_alloc=%cx:u64 gfp_flags=%r8:u32"),
    ("netif_rx", "skbaddr=%di len=%si:u32 name=+0(%dx):string"),
    ("netif_receive_skb", "skbaddr=%di len=%si:u32 name=+0(%dx):string"),
    ("sys_enter", "id=%di:s64"),
    ("sys_enter_read", "fd=%di:u64 buf=%si:u64 count=%dx:u64"),
    ("sys_exit_read", "ret=%ax:s64"),
    ("sys_enter_openat", "dfd=%di:u64 filename=%si:u64"),
    ("sys_enter_recvfrom", "fd=%di:u64 size=%dx:u64"),
    ("sched_process_fork", "parent_pid=%di:s32 child_comm=+0(%si):string child_pid=%dx:s32"),
    ("sched_process_exec", "filename=+0(%di):string pid=%si:s32"),
    ("sched_process_exit", "pid=%di:s32 prio=%si:s32"),
    ("sched_wakeup", "pid=%di:s32 prio=%si:s32 target_cpu=%dx:s32"),
    ("sched_wakeup_new", "pid=%di:s32 prio=%si:s32 target_cpu=%dx:s32"),
    ("sched_waking", "pid=%di:s32 prio=%si:s32 target_cpu=%dx:s32"),
    (
        "sched_switch",
        "prev_comm=+0(%di):string prev_pid=%si:s32 prev_prio=%dx:s32 prev_state=%cx:s64 \
         next_comm=+0(%r8):string next_pid=%r9:s32 next_prio=%bx:s32",
    ),
    ("block_unplug", "nr_rq=%di:s32 name=+0(%si):string"),
    ("signal_generate", "sig=%di:s32 pid=%si:s32"),
    ("tcp_probe", "dport=%di:u16 snd_cwnd=%si:u32 snd_wnd=%dx:u32 srtt=%cx:u32 rcv_wnd=%r8:u32"),
];

/// The event of texts of trace_marker.
const PRINT: (&str, &str) = ("print", "ip=%di buf=+0(%si):string");

/// All sessions.
pub(super) fn all() -> Vec<Session> {
    let mut blocks: Vec<Vec<&str>> = vec![Vec::new()];
    for line in BLOCKS.lines().filter(|line| !line.starts_with('#')) {
        match (line, blocks.last_mut()) {
            ("", _) => blocks.push(Vec::new()),
            (line, Some(block)) => block.push(line),
            (_, None) => {}
        }
    }
    blocks.iter().filter(|block| !block.is_empty()).map(|block| session(block)).collect()
}

/// The session of the commands of a block.
fn session(lines: &[&str]) -> Session {
    let of_event = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = lines.iter().flat_map(|line| line.split(|c| !is_part(c)));
        let mut pairs = words.clone().zip(words.skip(1));
        pairs.any(|(group, event)| group == "kprobes" && event == name)
    };
    // A switch of all has some to switch.
    let is_of_all = |line: &&str| line.starts_with("kprobes/enable") || line.contains("kprobes:*");
    let of_all = lines.iter().any(is_of_all);
    let mut session = Session::of_definitions(&[]);
    for (name, fields) in EVENTS.iter().chain([&PRINT]) {
        let is_needed = of_event(name)
            || (of_all && ["sched_wakeup", "sched_switch"].contains(name))
            || lines[0].starts_with("set_event") && *name == "sched_wakeup";
        if is_needed {
            let line = format!("p:{name} __x64_sys_sethostname {fields}");
            session = session.prepare("kprobe_events", &line);
        }
    }
    lines.iter().fold(session, |session, line| written(session, line))
}

/// Adds a line's write, and reads of the files that it is about.
fn written(session: Session, line: &str) -> Session {
    let (file, rest) = line.split_once(" >").expect("a write");
    let file = if file.contains('/') { format!("events/{file}") } else { file.to_owned() };
    let (operation, text) = match rest.strip_prefix('>') {
        Some(text) => (Operation::Append, text.trim_start()),
        None => (Operation::Replace, rest.trim_start()),
    };
    let session = session.write(&file, operation, text);
    // A group's filter shows a comment.
    if session.reads.contains(&file) || file == "events/kprobes/filter" {
        return session;
    }
    match file.strip_suffix("/trigger") {
        Some(event) => {
            let session = session.read(&file).read(&format!("{event}/hist"));
            session.read(&format!("{event}/enable"))
        }
        None => session.read(&file),
    }
}
