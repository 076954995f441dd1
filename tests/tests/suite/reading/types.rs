//! The kernel's types: read from BTF, and what probes make of them.

use std::path::Path;

use exoprobe_introspect::Btf;
use exoprobe_introspect::btf::sample::Sample;
use exoprobe_tests::harness::Case;
use exoprobe_tests::{PATIENCE, Service, TestGuest, cases, guest_file, http};
use serde_json::{Value, json};

use crate::support::pahole::assert_matches_pahole;

pub(crate) const CASES: &[Case] = cases![
    types_match_paholes_output needs [DebugInfo],
    parameters_have_names_and_types needs [Kvm, Repeat],
    definitions_are_shown_as_the_types_have_them needs [Kvm, Repeat],
    types_are_shown_and_faults_are_reported needs [Kvm, Repeat],
    foreign_types_are_not_used_and_the_error_names_a_source needs [Kvm, QuickKernel],
];

fn types_match_paholes_output() {
    let types = Btf::open(&guest_file("vmlinux.btf")).unwrap();
    assert_matches_pahole(&types, &guest_file("pahole.txt"));
}

fn service(types_given: bool) -> Service {
    let (snapshot, types) = (TestGuest::snapshot(1), guest_file("vmlinux.btf"));
    let (snapshot, types) = (snapshot.to_str().unwrap(), types.to_str().unwrap());
    match types_given {
        true => Service::start(&["--restore", snapshot, "--btf", types]),
        // The types beside its kernel are found.
        false => Service::start(&["--restore", snapshot]),
    }
}

fn events(service: &Service, event: &str) -> Vec<Value> {
    let lines = http::ask(service.socket(), "GET", "/v1/events?from=1&limit=10000", &[], b"").body;
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|hit| hit["event"] == event).collect()
}

fn add(service: &Service, probes: &Value) {
    let _ = service.ok(&["probe", "add", &probes.to_string()]);
}

fn parameters_have_names_and_types() {
    let service = service(true);
    add(
        &service,
        &json!([
            {"event": "opens", "symbol_name": "do_sys_openat2",
                "args": ["dfd", "filename:string", "how", "flags=+0(how):u32"], "filter": "dfd < 0"},
            {"event": "none", "symbol_name": "do_sys_openat2", "args": ["dfd"], "filter": "dfd > 0"},
        ]),
    );
    assert!(service.work("open /dev/null 10").starts_with("done "));
    let hits = events(&service, "opens");
    assert_eq!(hits.len(), 10);
    for hit in &hits {
        let args = &hit["args"];
        assert_eq!((&args["dfd"], &args["filename"]), (&json!(-100), &json!("/dev/null")), "{hit}");
        assert!(args["how"].as_str().is_some_and(|at| at.starts_with("0xffff")), "{hit}");
        assert!(args["flags"].is_u64(), "{hit}");
        assert_eq!(hit["comm"], "init");
    }
    let none: Value =
        serde_json::from_str(&service.ok(&["--json", "probe", "show", "none"])).unwrap();
    assert_eq!((&none["hits"], &none["filtered"]), (&json!(10), &json!(10)));
    let shown = service.ok(&["events", "--limit", "1"]);
    assert!(shown.contains(" dfd=-100 filename=\"/dev/null\" how=0xffff"), "{shown}");
    let _ = service.ok(&["probe", "rm", "--all"]);
    // In the guest's own code, too: the filter's number has a sign, and 32 of the register's bits.
    add(
        &service,
        &json!([
            {"event": "own", "symbol_name": "do_sys_openat2", "args": ["dfd"], "filter": "dfd == -100"},
            {"event": "other", "symbol_name": "do_sys_openat2", "args": ["dfd"], "filter": "dfd >= 0"},
        ]),
    );
    wait_optimized(&service, "own");
    assert!(service.work("open /dev/null 10").starts_with("done "));
    let own = events(&service, "own");
    assert_eq!(own.len(), 10);
    assert!(own.iter().all(|hit| hit["args"]["dfd"] == -100), "{own:?}");
    assert_eq!(events(&service, "other").len(), 0);
}

fn definitions_are_shown_as_the_types_have_them() {
    let service = service(false);
    let add = |line: &str| service.ok(&["probe", "add", line]);
    let shown = |event: &str| {
        let shown = service.ok(&["--json", "probe", "show", event]);
        let probe: Value = serde_json::from_str(&shown).unwrap();
        probe["definition"].as_str().unwrap().to_owned()
    };
    add("p:w ksys_write $arg1 n=$arg3 $arg3:u32");
    assert_eq!(shown("w"), "p:kprobes/w ksys_write fd=fd n=$arg3 count=count:u32");
    add("p:close filp_close $arg1:%pD d=filp->f_path.dentry:%pd");
    add("r:closed filp_close name=filp:%pD $arg*");
    let text = shown("close");
    let begin = "p:kprobes/close filp_close filp=+0(+";
    assert!(text.starts_with(begin) && text.contains("(filp))):string d=+0(+"), "{text}");
    assert!(text.ends_with("(filp->f_path.dentry)):string"), "{text}");
    add("r:opened do_sys_openat2 filename:string $arg1 how=+0(how):u64 fd=$retval:s32");
    assert!(service.work("open /dev/null 10").starts_with("done "));
    let named = |event: &str, name: &str| {
        let hits = events(&service, event).into_iter();
        hits.filter(|hit| hit["args"][name] == "null").collect::<Vec<_>>()
    };
    let closes = named("close", "filp");
    assert_eq!((closes.len(), named("closed", "name").len()), (10, 10));
    assert!(closes.iter().all(|hit| hit["args"]["d"] == "null"), "{closes:?}");
    let opened = events(&service, "opened");
    assert_eq!(opened.len(), 10);
    for hit in opened {
        let args = &hit["args"];
        assert_eq!((&args["filename"], &args["dfd"]), (&json!("/dev/null"), &json!(-100)), "{hit}");
        assert!(args["fd"].as_i64().is_some_and(|fd| fd > 2), "{hit}");
    }
}

fn wait_optimized(service: &Service, event: &str) {
    let begun = std::time::Instant::now();
    loop {
        let probe = service.ok(&["--json", "probe", "show", event]);
        if probe.contains("\"OPTIMIZED\"") {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{probe}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn types_are_shown_and_faults_are_reported() {
    let service = service(false);
    let shown = service.ok(&["types", "struct file"]);
    assert!(shown.starts_with("struct file {\n") && shown.contains("f_op;"), "{shown}");
    let function = service.ok(&["types", "do_sys_openat2"]);
    let expected = "long do_sys_openat2(int dfd, const char *filename, struct open_how *how);\n";
    assert_eq!(function.replace("long int", "long"), expected);
    let listed = service.ok(&["types", "task_struc?"]);
    assert!(listed.lines().any(|line| line.trim_end().ends_with("task_struct")), "{listed}");
    let refused = |args: &[&str]| {
        let output = service.client(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused(&["types", "struct no_such"]);
    assert!(error.contains("no type or function \"struct no_such\""), "{error}");
    let error = refused(&["probe", "add", "p:a do_sys_openat2 fd"]);
    assert!(error.contains("no parameter `fd`: it has `dfd`, `filename`, `how`"), "{error}");
    let error = refused(&["probe", "add", "p:a do_sys_openat2+1 dfd"]);
    assert!(error.contains("parameters are known at a function's entry only"), "{error}");
    let error = refused(&["probe", "add", "p:a do_sys_openat2 dfd:string"]);
    assert!(error.contains("`dfd` is `int dfd`, not the address of text"), "{error}");
    let error = refused(&["probe", "add", "r:a do_sys_openat2 fd"]);
    assert!(error.contains("no parameter `fd`: it has `dfd`, `filename`, `how`"), "{error}");
    let error = refused(&["probe", "add", "p:a do_sys_openat2 $arg4"]);
    assert!(error.contains("no parameter `$arg4`: it has `dfd`, `filename`, `how`"), "{error}");
    assert_eq!(service.ok(&["--json", "probe", "list"]).trim(), "[]");
}

/// Boots the tiny guest from a folder where types of another kernel lie beside the kernel.
fn boot_beside_foreign_types(dir: &Path) -> Service {
    let mut foreign = Sample::default();
    let int = foreign.int("int", 4, true);
    foreign.function("no_function_of_this_kernel", int, &[]);
    std::fs::write(dir.join("vmlinux.btf"), foreign.bytes()).unwrap();
    let kernel = dir.join("vmlinux");
    std::fs::copy(guest_file("vmlinux"), &kernel).unwrap();
    let initramfs = guest_file("initramfs.cpio");
    let cmdline = std::fs::read_to_string(guest_file("../cmdline")).unwrap();
    let [kernel, initramfs] = [&kernel, &initramfs].map(|path| path.to_str().unwrap());
    let mut args = vec!["--kernel", kernel, "--initramfs", initramfs];
    args.extend(["--memory", "32", "--cmdline", cmdline.trim_end()]);
    let service = Service::start(&args);
    assert!(service.work("ping").starts_with("done "));
    service
}

fn foreign_types_are_not_used_and_the_error_names_a_source() {
    let dir = tempfile::tempdir().unwrap();
    let service = boot_beside_foreign_types(dir.path());
    for args in [&["types", "file"][..], &["probe", "add", "p:a do_sys_openat2 dfd"]] {
        let output = service.client(args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("CONFIG_DEBUG_INFO_BTF") && error.contains("--btf FILE"), "{error}");
    }
    let definition = b"p:e __x64_sys_getpid %di:%pd";
    let file = "/v1/tracefs/kprobe_events";
    let refused =
        http::ask(service.socket(), "POST", file, &["content-type: text/plain"], definition);
    let problem = refused.json();
    let expected = (&json!("ENODATA"), &json!("NOSUP_BTFARG"), &json!(21));
    assert_eq!((&problem["code"], &problem["id"], &problem["position"]), expected, "{problem}");
    let log = service.log();
    let warnings = log.lines().filter(|line| line.contains("no_function_of_this_kernel"));
    assert_eq!(warnings.count(), 1, "{log}");
    let _ = service.ok(&["probe", "add", "p:a do_sys_openat2 name=+0(%si):string dfd=%di:s32"]);
    assert!(service.work("open /dev/null 3").starts_with("done "));
    let hits = events(&service, "a");
    assert_eq!(hits.len(), 3);
    assert!(
        hits.iter().all(|hit| hit["args"] == json!({"name": "/dev/null", "dfd": -100})),
        "{hits:?}"
    );
}
