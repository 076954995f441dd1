//! Probes: their kinds, periods, parameters and number.

use std::sync::Arc;

use exoprobe_script::{AttachmentKind, Kernel, NoKernel, Options, Script, check};

use crate::common::{Functions, program, wrong};

/// The kinds of a script's probes.
fn kinds(text: &str) -> Vec<AttachmentKind> {
    program(text).attachments.into_iter().map(|it| it.kind).collect()
}

/// The names of a script's probes with parameters, or the error.
fn names(text: &str, params: &[&str]) -> Result<Vec<String>, String> {
    let params: Vec<String> = params.iter().map(|param| (*param).to_owned()).collect();
    let script = Script::parse(text, &params).map_err(|error| error.to_string())?;
    let program = check(&script, &Functions, &Options::default());
    let program = program.map_err(|error| error.to_string())?;
    Ok(program.attachments.iter().map(|it| it.name.to_string()).collect())
}

#[test]
fn begin_and_end_may_be_lower_case() {
    let text = "begin { @ = 1; } end { @ = 2; }";
    assert_eq!(kinds(text), [AttachmentKind::Begin, AttachmentKind::End]);
    assert_eq!(kinds(text), kinds("BEGIN { @ = 1; } END { @ = 2; }"));
}

#[test]
fn periods_have_units() {
    for (period, nanoseconds) in [
        ("hz:100", 10_000_000),
        ("hz:99", 10_101_010),
        ("s:2", 2_000_000_000),
        ("ms:5", 5_000_000),
        ("us:50", 50_000),
        ("100ms", 100_000_000),
        ("500us", 500_000),
        ("3s", 3_000_000_000),
    ] {
        let interval = [AttachmentKind::Interval { nanoseconds }];
        let profile = [AttachmentKind::Profile { nanoseconds }];
        assert_eq!(kinds(&format!("interval:{period} {{ }}")), interval, "{period}");
        assert_eq!(kinds(&format!("i:{period} {{ }}")), interval, "{period}");
        assert_eq!(kinds(&format!("profile:{period} {{ }}")), profile, "{period}");
        assert_eq!(kinds(&format!("p:{period} {{ }}")), profile, "{period}");
    }
    for period in ["hz:0", "s:0", "0ms", "5", "days:1", "s:99999999999", "hz:-1"] {
        let error = wrong(&format!("interval:{period} {{ }}"));
        assert!(error.contains(&format!("`interval` has no period: `{period}`")), "{error}");
    }
}

#[test]
fn kinds_have_short_and_old_names() {
    let symbol: Arc<str> = "vfs_read".into();
    let entry = [AttachmentKind::Fentry { symbol: Arc::clone(&symbol) }];
    let exit = [AttachmentKind::Fexit { symbol: Arc::clone(&symbol) }];
    let kretprobe = [AttachmentKind::Kretprobe { module: None, symbol }];
    for (kind, wanted) in [
        ("fentry", &entry),
        ("kfunc", &entry),
        ("f", &entry),
        ("fexit", &exit),
        ("kretfunc", &exit),
        ("fr", &exit),
        ("kretprobe", &kretprobe),
        ("kr", &kretprobe),
    ] {
        assert_eq!(kinds(&format!("{kind}:vfs_read {{ }}")), *wanted, "{kind}");
    }
    let enter = AttachmentKind::SyscallEnter { name: None };
    let exit = AttachmentKind::SyscallExit { name: None };
    for kind in ["rawtracepoint:", "rt:", "rawtracepoint:raw_syscalls:", "tracepoint:raw_syscalls:"]
    {
        let text = format!("{kind}sys_enter, {kind}sys_exit {{ }}");
        assert_eq!(kinds(&text), [enter.clone(), exit.clone()], "{kind}");
    }
}

#[test]
fn parameters_stand_in_probes() {
    assert_eq!(names("interval:s:$1 { }", &["3"]).unwrap(), ["interval:s:3"]);
    assert_eq!(
        names("kprobe:vfs_$2, kprobe:$1 { }", &["xfs_open", "read"]).unwrap(),
        ["kprobe:vfs_read", "kprobe:xfs_open"]
    );
    let error = names("interval:s:$2 { }", &["3"]).unwrap_err();
    assert!(error.contains("`interval` has no period"), "{error}");
    let script = Script::parse("interval:hz:$1 { }", &["50".to_owned()]).unwrap();
    let program = check(&script, &NoKernel, &Options::default()).unwrap();
    let wanted = AttachmentKind::Interval { nanoseconds: 20_000_000 };
    assert_eq!(program.attachments[0].kind, wanted);
}

#[test]
fn kinds_that_are_not_served_are_named() {
    for (probe, reason) in [
        ("uprobe:/bin/sh:main", "probes of processes are not served yet"),
        ("uretprobe:/bin/sh:main", "probes of processes are not served yet"),
        ("watchpoint:0x1000:8:w", "watchpoints are not served yet"),
        ("asyncwatchpoint:0x1000:8:w", "watchpoints are not served yet"),
        ("usdt:/bin/sh:x", "this kind of probe is not there"),
        ("hardware:cache-misses:1000", "this kind of probe is not there"),
        ("software:faults:1", "this kind of probe is not there"),
        ("iter:task", "this kind of probe is not there"),
        ("self:signal:SIGUSR1", "this kind of probe is not there"),
    ] {
        let error = wrong(&format!("{probe} {{ }}"));
        let kind = probe.split(':').next().unwrap();
        assert!(error.contains(&format!("`{kind}`: {reason}")), "{error}");
        assert!(error.contains("help: served are kprobe"), "{error}");
    }
    for tracepoint in ["tracepoint:sched:sched_switch", "rawtracepoint:sched_switch"] {
        let error = wrong(&format!("{tracepoint} {{ }}"));
        assert!(
            error.contains(&format!("`{tracepoint}`: this tracepoint is not there")),
            "{error}"
        );
    }
}

/// A kernel with as many functions as a pattern's first digits say.
struct Many;

impl Kernel for Many {
    fn functions(&self, _: Option<&str>, pattern: &str) -> Vec<Arc<str>> {
        let count: usize = pattern.trim_end_matches('*').parse().unwrap();
        (0..count).map(|index| format!("{count}_{index}").into()).collect()
    }
}

#[test]
fn a_script_has_a_limit_of_probes() {
    let probes = |text: &str| {
        let script = Script::parse(text, &[]).unwrap();
        let program = check(&script, &Many, &Options::default());
        program.map(|it| it.attachments.len()).map_err(|error| error.to_string())
    };
    assert_eq!(probes("kprobe:20000* { }").unwrap(), 20_000);
    for text in [
        "kprobe:20001* { }",
        "kprobe:12000*, kprobe:8001* { }",
        "kprobe:12000* { } kretprobe:8001* { } kprobe:3* { }",
    ] {
        let error = probes(text).unwrap_err();
        assert_eq!(error.matches("limit `probes` of 20000 reached").count(), 1, "{error}");
    }
}

#[test]
fn kprobes_share_a_body_unless_it_overrides() {
    let program = program("kprobe:vfs_read+4, kprobe:vfs_open { @ = arg0; }");
    assert_eq!(program.bodies.len(), 1);
    assert_eq!(program.attachments[0].bodies, program.attachments[1].bodies);
}
