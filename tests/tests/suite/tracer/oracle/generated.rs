//! Sessions: written ones, and those made of parts by a fixed seed.

mod documentation;
mod instance_triggers;
mod instances;
mod synthetic;
mod variables;

use std::collections::HashSet;

use exoprobe_tests::Dice;

use super::parts::list;
use super::session::Session;

const SEED: u64 = 22;
/// Definitions of several parts, chosen at random.
const MIXED: usize = 400;
/// Filters of two conditions, chosen at random.
const JOINED: usize = 60;

const FUNCTION: &str = "do_sys_openat2";

/// All sessions, the same each time.
pub(super) fn all() -> Vec<Session> {
    let mut sessions = definitions();
    sessions.extend(mixed(&mut Dice(SEED)));
    sessions.extend(sequences());
    sessions.extend(filters(&mut Dice(SEED)));
    sessions.extend(triggers());
    sessions.extend(triggers_of_other_events());
    sessions.extend(variables::of_other_events("", list("variables of other events").into_iter()));
    sessions.extend(handlers());
    sessions.extend(synthetic::definitions());
    sessions.extend(synthetic::filters());
    sessions.extend(synthetic::made_events());
    sessions.extend(synthetic::values_of_other_events());
    sessions.extend(switches());
    sessions.extend(files_of_all_events());
    sessions.extend(files_of_the_trace());
    sessions.extend(instances::all());
    sessions.extend(instance_triggers::all());
    sessions.extend(documentation::all());
    let mut titles = HashSet::new();
    sessions.retain(|session| titles.insert(session.title()));
    sessions
}

fn definitions() -> Vec<Session> {
    let mut sessions = Vec::new();
    let mut add = |line: String| sessions.push(Session::of_definitions(&[&line]));
    list("definitions").into_iter().for_each(&mut add);
    for head in list("heads") {
        add(format!("{head} {FUNCTION} a=%di"));
    }
    for place in list("places") {
        add(format!("p:e {place} a=%di"));
        add(format!("r:e {place} a=%ax"));
    }
    for argument in [list("arguments"), list("typed")].concat() {
        add(format!("p:e {FUNCTION} {argument}"));
        add(format!("r:e {FUNCTION} {argument}"));
    }
    for line in [
        "p",
        "r",
        "p:e",
        "-",
        "-:",
        "-:e",
        "e",
        "",
        " ",
        "#x",
        "p:e\tvfs_read\ta=%di",
        "  p:e   vfs_read   a=%di  ",
        "p:e vfs_read # a=%zz",
        "p:e vfs_read#a=%di",
    ] {
        add(line.to_owned());
    }
    let many = |count: usize| (0..count).map(|n| format!("a{n}=%di")).collect::<Vec<_>>().join(" ");
    [127, 128, 129].iter().for_each(|count| add(format!("p:e {FUNCTION} {}", many(*count))));
    for depth in [12, 13, 14, 15] {
        add(format!("p:e {FUNCTION} {}%di{}", "+0(".repeat(depth), ")".repeat(depth)));
    }
    for length in [31, 32, 33, 62, 63, 64] {
        add(format!("p:e {FUNCTION} {}=%di", "n".repeat(length)));
        add(format!("p:e {FUNCTION} a=\\\"{}\":string", "t".repeat(length)));
    }
    add(format!("p:e {FUNCTION} a=%di a=%si"));
    add(format!("p:e {FUNCTION} arg1=%di %si"));
    add(format!("p:e {FUNCTION} %di arg1=%si"));
    sessions
}

fn mixed(dice: &mut Dice) -> Vec<Session> {
    let arguments = list("arguments");
    let one = |dice: &mut Dice| {
        let mut line = format!(
            "{}:e {}",
            dice.pick(&["p", "p", "r", "r8"]),
            dice.pick(&[FUNCTION, "vfs_read", "ksys_write"])
        );
        for number in 0..1 + dice.below(4) {
            let argument = dice.pick(&arguments);
            let named = argument.contains('=') || dice.one_in(2);
            line += &if named { format!(" {argument}") } else { format!(" n{number}={argument}") };
        }
        Session::of_definitions(&[&line])
    };
    (0..MIXED).map(|_| one(dice)).collect()
}

fn sequences() -> Vec<Session> {
    let lists: [&[&str]; 26] = [
        &["p:e vfs_read", "p:e vfs_write"],
        &["p:e vfs_read", "p:e vfs_read"],
        &["p:e vfs_read a=%di", "p:e vfs_write a=%si"],
        &["p:e vfs_read a=%di", "p:e vfs_write b=%si"],
        &["p:e vfs_read a=%di", "p:e vfs_write a=%si:u8"],
        &["p:e vfs_read a=%di", "p:e vfs_write"],
        &["p:e vfs_read a=%di", "r:e vfs_write a=%ax"],
        &["p:e vfs_read", "-:e"],
        &["p:e vfs_read", "-:kprobes/e"],
        &["p:e vfs_read", "-:g/e"],
        &["p:g/e vfs_read", "-:e"],
        &["p:g/e vfs_read", "p:e vfs_read", "-:e"],
        &["p:g/e vfs_read", "-:g/"],
        &["p:e vfs_read", "-:"],
        &["p:e vfs_read", "-:e vfs_read"],
        &["p:e vfs_read", "-:e vfs_write"],
        &["p:e vfs_read a=%di", "-:e vfs_read"],
        &["p:e vfs_read a=%di", "-:e vfs_read a=%di"],
        &["p:e vfs_read a=%di", "-:e vfs_read a=%si"],
        &["p:e vfs_read", "p:e vfs_write", "-:e vfs_read"],
        &["p:e vfs_read", "p:e vfs_write", "-:e"],
        &["p:e vfs_read", "-:f"],
        &["p:e vfs_read", "-:e x y z"],
        &["p:e vfs_read\np:f vfs_write"],
        &["p:e vfs_read\np:f no_such\np:h vfs_write"],
        &["p:e vfs_read\n-:e\n"],
    ];
    let mut sessions: Vec<Session> =
        lists.iter().map(|lines| Session::of_definitions(lines)).collect();
    let define = || Session::of_definitions(&["p:e vfs_read a=%di"]);
    sessions.push(define().replace("kprobe_events", ""));
    sessions.push(define().replace("kprobe_events", "p:f vfs_write"));
    sessions.push(define().append("events/kprobes/e/enable", "1").replace("kprobe_events", ""));
    sessions.push(define().append("events/kprobes/e/enable", "1").append("kprobe_events", "-:e"));
    sessions.push(
        define().append("events/kprobes/e/trigger", "stacktrace").append("kprobe_events", "-:e"),
    );
    sessions
}

/// Writes to switches.
fn switches() -> Vec<Session> {
    let mut sessions = Vec::new();
    let values =
        ["0", "1", "2", "", " ", "x", "on", "off", "y", "n", "01", "-1", " 1", "1 ", "1\n", "10"];
    for file in ["events/kprobes/e/enable", "events/kprobes/enable", "events/enable", "tracing_on"]
    {
        for value in values {
            let session = Session::of_definitions(&["p:e vfs_read"]).append(file, value).read(file);
            sessions.push(session.append("tracing_on", "1"));
        }
    }
    for value in values {
        sessions
            .push(Session::of_definitions(&[]).replace("snapshot", value).replace("snapshot", "0"));
    }
    sessions
}

/// Writes to the files that are about all events, or those of a group.
fn files_of_all_events() -> Vec<Session> {
    let define = || {
        let events = ["p:e vfs_read a=%di", "p:g/e vfs_write a=%si", "p:f vfs_write b=%si"];
        Session::of_definitions(&events)
    };
    let set = "set_event";
    let read = |session: Session| session.read(set).read("available_events");
    let mut sessions = Vec::new();
    for word in list("event words") {
        sessions.push(read(define().append(set, &word)));
        let enabled = define().append("events/kprobes/enable", "1");
        sessions.push(read(enabled.append(set, &format!("!{word}"))));
    }
    sessions.push(read(define().append(set, "e\nf\n")));
    for text in ["", "g:e"] {
        sessions.push(read(define().append("events/kprobes/enable", "1").replace(set, text)));
    }
    sessions.push(read(define().append("events/kprobes/e/trigger", "stacktrace")));
    for line in
        ["p:e vfs_read", "r:e vfs_read", "-:e", "x", "", "p:e no_such", "p:e vfs_read a=%zz"]
    {
        let session = |define: Session| define.read("dynamic_events");
        sessions.push(session(define().append("dynamic_events", line)));
        sessions.push(session(define().replace("dynamic_events", line)));
    }
    for text in list("group filters") {
        let filtered = define().append("events/kprobes/filter", &text).read("error_log");
        sessions.push(filtered.read("events/kprobes/e/filter").read("events/kprobes/f/filter"));
    }
    for text in ["nop", "nop\n", " nop ", "nopx", "no_such_tracer", ""] {
        sessions.push(define().append("current_tracer", text).read("current_tracer"));
    }
    let described = define().append("events/g/enable", "0");
    sessions.push(described.read("events/header_page").read("events/header_event"));
    sessions
}

/// Triggers of an event that switch other events. No shell hits them.
fn triggers_of_other_events() -> Vec<Session> {
    let (trigger, delete) = ("events/kprobes/e/trigger", "kprobe_events");
    let define = || {
        Session::of_definitions(&[
            "p:e __x64_sys_sethostname a=%di",
            "p:f __x64_sys_setdomainname b=%di",
            "p:g/e __x64_sys_sethostname b=%di",
        ])
    };
    let read = |session: Session| {
        let session = session.read(trigger).read("events/kprobes/f/trigger").read("set_event");
        let session = session.read("events/kprobes/e/enable").read("events/kprobes/f/enable");
        session.read("events/g/e/enable").read("events/kprobes/f/hist")
    };
    let mut sessions = Vec::new();
    for text in list("switches of events") {
        let words: Vec<&str> = text.split(" ; ").collect();
        let written = define().append_each(trigger, words);
        sessions.push(read(written));
    }
    let switched = || define().append(trigger, "enable_event:kprobes:f");
    sessions.push(read(switched().append(delete, "-:f").append(delete, "-:g/e")));
    sessions.push(read(switched().append(delete, "-:e")));
    let removed = |session: Session| session.append(trigger, "!enable_event:kprobes:f");
    for values in [&["1"][..], &["1", "0"]] {
        let enable = "events/kprobes/f/enable";
        let set = switched().append_each(enable, values);
        sessions.push(read(set.clone()));
        sessions.push(read(removed(set)));
    }
    let other = "events/g/e/trigger";
    for text in list("histograms of one name") {
        let two = ["p:e __x64_sys_sethostname a=%di", "p:g/e __x64_sys_setdomainname a=%di b=%si"];
        let defined = Session::of_definitions(&two);
        let named = defined.append(other, "hist:name=foo:keys=a").append(trigger, &text);
        sessions.push(read(named.read(other).read("events/kprobes/e/hist").read("error_log")));
    }
    let paused = define().append("events/kprobes/f/trigger", "hist:keys=b:pause");
    sessions.push(read(paused.append(trigger, "enable_hist:kprobes:f")));
    sessions
}

/// Histograms with handlers. No shell hits them.
fn handlers() -> Vec<Session> {
    const HIST: &str = "hist:keys=a1:mx=i1:onmax($mx).save(i1)";
    const SNAPSHOT: &str = "hist:keys=a1:mx=i1:onmax($mx).snapshot()";
    let (trigger, other) = ("events/kprobes/e/trigger", "events/kprobes/f/trigger");
    let define = || {
        let events = [
            "p:e __x64_sys_sethostname a1=%di s1=+0(%si):string i1=%di:s32 u1=%di:u8 c1=%di:char \
             y1=%ip:symbol r1=+0(%si):u8[4] b1=%di:b4@2/32",
            "p:f __x64_sys_setdomainname a1=%di i1=%di:s32",
        ];
        Session::of_definitions(&events).append(other, "hist:keys=a1:fx=i1")
    };
    let read = |session: Session| session.read(trigger).read(other).read("events/kprobes/e/hist");
    let mut sessions = Vec::new();
    for text in list("handlers") {
        let command = format!("hist:keys=a1:mx=i1:{text}");
        sessions.push(read(define().append(trigger, &command)));
    }
    for texts in [
        &[HIST, HIST][..],
        &[HIST, "hist:keys=a1:my=i1:onmax($my).save(i1)"],
        &[HIST, "!hist:keys=a1:mx=i1"],
        &[HIST, "!hist:keys=a1:mx=i1:onchange($mx).save(i1)"],
        &[HIST, "!hist:keys=a1:mx=i1:onmax($mx).save(u1)"],
        &[HIST, &format!("!{HIST}")],
        &[SNAPSHOT, "hist:keys=a1:my=i1:onmax($my).snapshot()"],
        &[SNAPSHOT, &format!("!{SNAPSHOT}"), "hist:keys=a1:my=i1:onmax($my).snapshot()"],
    ] {
        let written = define().append_each(trigger, texts);
        sessions.push(read(written));
    }
    for value in ["0", "1", "2", "x"] {
        let taking = define().append(trigger, SNAPSHOT).replace("snapshot", value);
        sessions.push(taking.append(trigger, &format!("!{SNAPSHOT}")).replace("snapshot", "0"));
    }
    sessions
}

/// Writes to the files about the events that are kept.
fn files_of_the_trace() -> Vec<Session> {
    let none = || Session::of_definitions(&[]);
    let marked = |session: Session| {
        let marked = session.append("trace_marker", "mark");
        marked.read("trace").read("per_cpu/cpu0/trace").read("per_cpu/cpu0/stats")
    };
    let mut sessions = vec![marked(none())];
    for text in ["a b\n", " a ", "\n", "a\nb"] {
        sessions.push(none().append("trace_marker", text).read("trace"));
    }
    let off = marked(none().append("tracing_on", "0"));
    sessions.push(off.append("tracing_on", "1"));
    sessions.push(marked(none()).replace("per_cpu/cpu0/trace", ""));
    sessions.push(marked(none()).append("per_cpu/cpu1/trace", "x").read("per_cpu/cpu1/stats"));
    for option in ["sym-offset", "sym-addr", "context-info", "irq-info", "markers"] {
        let (file, default) = (format!("options/{option}"), !option.starts_with("sym"));
        let restored = |session: Session| session.append(&file, &u8::from(default).to_string());
        for text in [option, &format!("no{option}"), &format!(" {option} \n")] {
            let written = none().append("trace_options", text).read("trace_options").read(&file);
            sessions.push(restored(marked(written)));
        }
        for value in ["0", "1", "2", "x", " 1", "1\n"] {
            sessions.push(restored(none().append(&file, value).read(&file)));
        }
    }
    for option in ["no_such_option", "no", "overwrite", "0"] {
        sessions.push(none().append("trace_options", option).read("trace_options"));
    }
    for clock in ["local", " local\n", "no_such_clock", "loc", "global"] {
        let written = none().append("trace_marker", "mark").append("trace_clock", clock);
        let written = written.read("trace_clock").read("trace");
        sessions.push(written.append("trace_clock", "local"));
    }
    for size in ["64", "0", "x", "-1", " 64", "64\n"] {
        let written = none().append("buffer_size_kb", size);
        sessions.push(written.append("buffer_size_kb", "1408"));
    }
    sessions
}

fn filters(dice: &mut Dice) -> Vec<Session> {
    let (conditions, faults) = (list("conditions"), list("faults of conditions"));
    let mut texts = conditions.clone();
    let joined = |dice: &mut Dice, from: &[String]| {
        let [one, other] = [dice.pick(from), dice.pick(from)];
        format!("{one} {} {other}", dice.pick(&["&&", "||", "&& !"]))
    };
    texts.extend((0..JOINED).map(|_| joined(dice, &conditions)));
    let all = [conditions, faults.clone()].concat();
    texts.extend((0..JOINED).map(|_| joined(dice, &all)));
    texts.extend(faults.iter().cloned());
    // Operands that are as long as they may be, and longer ones.
    texts.extend([255, 256].map(|length| format!("s == \"{}\"", "x".repeat(length))));
    let mut sessions: Vec<Session> = texts.iter().map(|text| filtered(&[text])).collect();
    sessions.extend(conditions_of_triggers(&faults));
    for texts in [
        &["a == 1", "zz == 1"][..],
        &["zz == 1", "a == 1"],
        &["zz == 1", "0"],
        &["zz == 1", " 0 "],
        &["a == 1", "zz == 1", "yy == 1"],
        &["a == 1", &" ".repeat(4096)],
        &["a == 1\n&& zz == 1\n"],
    ] {
        sessions.push(filtered(texts));
    }
    sessions
}

/// Filters of an event, one after the other.
fn filtered(texts: &[&str]) -> Session {
    let filter = "events/kprobes/e/filter";
    let of_event = Session::of_event();
    let written = of_event.append_each(filter, texts);
    written.read(filter).read("error_log")
}

/// Triggers with conditions that are refused as a rule.
fn conditions_of_triggers(faults: &[String]) -> Vec<Session> {
    let trigger = "events/kprobes/e/trigger";
    let session =
        |text: String| Session::of_event().append(trigger, &text).read(trigger).read("error_log");
    let named = ["stacktrace", "hist:keys=a", "traceoff:5"].iter().cycle();
    let of_each = faults.iter().zip(named).map(|(text, name)| format!("{name} if {text}"));
    let others = list("triggers with conditions");
    of_each.chain(others).map(session).collect()
}

fn triggers() -> Vec<Session> {
    let trigger = "events/kprobes/e/trigger";
    let session = |texts: &[&str]| {
        let written = Session::of_event().append_each(trigger, texts);
        written
            .read(trigger)
            .read("events/kprobes/e/hist")
            .read("error_log")
            .read("events/kprobes/e/enable")
    };
    let mut sessions: Vec<Session> = list("triggers").iter().map(|text| session(&[text])).collect();
    for texts in [
        &["stacktrace", "stacktrace"][..],
        &["stacktrace:5", "!stacktrace"],
        &["stacktrace:5", "!stacktrace:0"],
        &["stacktrace:5", "!stacktrace:5"],
        &["stacktrace", "!stacktrace if a == 1"],
        &["traceon", "traceoff"],
        &["traceoff", "!traceoff:0"],
        &["hist:keys=a", "hist:keys=i"],
        &["hist:keys=a", "hist:keys=a"],
        &["hist:keys=a", "!hist:keys=a"],
        &["hist:keys=a", "!hist:keys=i"],
        &["hist:keys=a", "!hist"],
        &["hist:keys=a", "hist:keys=a:pause"],
        &["hist:keys=a", "hist:keys=a:pause", "hist:keys=a:continue"],
        &["hist:keys=a", "hist:keys=a:clear"],
        &["hist:keys=a", "!hist:keys=a:vals=i"],
    ] {
        sessions.push(session(texts));
    }
    sessions
}
