//! Of the language.

use exoprobe_guest::Gva;
use proptest::prelude::*;

use super::*;
use crate::definition::{
    Fetch, FetchArg, Named, ProbeDefinition, ProbeKind, RECORD_MAX, Register, Segment, ValueType,
};

#[test]
fn the_demo_line() {
    let probe = parse_line("p:getpid __x64_sys_getpid").unwrap();
    assert_eq!(probe.event.as_deref(), Some("getpid"));
    assert_eq!(probe.symbol_name.as_deref(), Some("__x64_sys_getpid"));
    let full = parse_line("p:my/ev vfs_read+0x10 file=%di %si").unwrap();
    assert_eq!((full.group(), full.offset), ("my", 16));
    assert_eq!(full.args[0].name.as_deref(), Some("file"));
    assert_eq!(full.args[1].body, Fetch::Register(Register::Si));
    assert_eq!(full.to_string(), "p:my/ev vfs_read+16 file=%di arg2=%si");
    let typed = parse_line("p:open do_sys_openat2 dfd filename:string a=+8(how):x32").unwrap();
    let (name, kind) = (typed.arg_name(1), typed.args[1].kind);
    assert_eq!((&*name, kind), ("filename", Some(ValueType::Text)));
    assert_eq!((typed.args[0].kind, typed.args[2].body.parameter()), (None, Some("how")));
    let text = "p:kprobes/open do_sys_openat2 dfd=dfd filename=filename:string a=+8(how):x32";
    assert_eq!(typed.to_string(), text);
    assert_eq!(parse_line("p 0xffffffff81000000").unwrap().addr, Some(Gva(0xffff_ffff_8100_0000)));
}

/// A command, the tracer's identifier for what is wrong with it, and the caret's column.
const FAULTS: &[(&str, &str, usize)] = &[
    ("", "NO_EVENT_INFO", 0),
    ("x:a b", "BAD_PROBE_TYPE", 0),
    ("p10:a b", "BAD_MAXACT_TYPE", 1),
    ("p:a", "NO_EVENT_INFO", 3),
    ("p:e /bin/sh:0x10", "BAD_PROBE_TYPE", 4),
    ("r5000000000:e sym", "BAD_MAXACT", 1),
    ("p: sym", "NO_EVENT_NAME", 2),
    ("p:/e sym", "NO_GROUP_NAME", 2),
    ("p:1g/e sym", "BAD_GROUP_NAME", 2),
    ("p:g/1e sym", "BAD_EVENT_NAME", 4),
    ("p:foo.1/bar sym", "BAD_GROUP_NAME", 2),
    ("p:e sym+zz", "BAD_PROBE_ADDR", 4),
    ("p:e sym+-4", "BAD_PROBE_ADDR", 4),
    ("p:e 1+0", "BAD_PROBE_ADDR", 4),
    ("p:e sym%returns", "BAD_ADDR_SUFFIX", 7),
    ("r0:e sym", "BAD_MAXACT", 1),
    ("rx:e sym", "BAD_MAXACT", 1),
    ("r+5:e sym", "BAD_MAXACT", 1),
    ("r4097:e sym", "MAXACT_TOO_BIG", 1),
    ("r99999999999999999999:e sym", "BAD_MAXACT", 1),
    ("p:e sym $foo", "BAD_VAR", 8),
    ("p:e sym args=$arg*", "BAD_VAR", 13),
    ("p:e sym $arg0", "BAD_ARG_NUM", 8),
    ("p:e sym a=$argx", "BAD_VAR", 10),
    ("p:e sym $arg* %di $arg*", "DOUBLE_ARGS", 18),
    ("p:e sym $stack2048", "BAD_STACK_NUM", 8),
    ("p:e sym x=$retval", "RETVAL_ON_PROBE", 10),
    ("p:e sym x=+4($retval)", "RETVAL_ON_PROBE", 13),
    ("p:e sym @", "BAD_MEM_ADDR", 8),
    ("p:e sym @0zz", "BAD_MEM_ADDR", 8),
    ("p:e sym @sym+zz", "BAD_MEM_ADDR", 8),
    ("p:e sym @+10", "FILE_ON_KPROBE", 8),
    ("p:e sym \\zz", "BAD_IMM", 9),
    ("p:e sym \\--5", "BAD_IMM", 9),
    ("p:e sym \\\"abc", "IMMSTR_NO_CLOSE", 13),
    ("p:e sym +8", "DEREF_NEED_BRACE", 8),
    ("p:e sym +u8", "DEREF_NEED_BRACE", 8),
    ("p:e sym +8(%di", "DEREF_OPEN_BRACE", 14),
    ("p:e sym a=+zz(%di)", "BAD_DEREF_OFFS", 10),
    ("p:e sym +0x10+4(%di)", "BAD_DEREF_OFFS", 8),
    ("p:e sym +8(-8(%zz))", "BAD_REG_NAME", 14),
    ("p:e sym +0($comm)", "COMM_CANT_DEREF", 11),
    ("p:e sym +0(+0(\\\"x\"))", "COMM_CANT_DEREF", 14),
    ("p:e  sym %zz", "BAD_REG_NAME", 9),
    ("p:e sym a=%zz", "BAD_REG_NAME", 10),
    ("p:e sym =%di", "NO_ARG_NAME", 8),
    ("p:e sym a=", "NO_ARG_BODY", 10),
    ("p:e sym 1a=%di", "BAD_ARG_NAME", 8),
    ("p:e sym common_pid=%di", "USED_ARG_NAME", 8),
    ("p:e sym a=%di a=%si", "USED_ARG_NAME", 14),
    ("p:e sym arg2=%di %si", "USED_ARG_NAME", 17),
    ("p:e sym 9x", "BAD_FETCH_ARG", 8),
    ("p:e sym +0(9x)", "BAD_FETCH_ARG", 11),
    ("p:e sym a=di.b", "NOSUP_DAT_ARG", 13),
    ("p:e sym a=di-b", "BAD_HYPHEN", 12),
    ("p:e sym a=di->b-c", "BAD_HYPHEN", 15),
    ("p:e sym a=di->", "NO_BTF_FIELD", 14),
    ("p:e sym a=di->b..c", "NO_BTF_FIELD", 14),
    ("p:e sym %di:int", "BAD_TYPE", 12),
    ("p:e sym %di:", "BAD_TYPE", 12),
    ("p:e sym %di:b8@4/8", "BAD_BITFIELD", 12),
    ("p:e sym a=%di:string", "BAD_STRING", 14),
    ("p:e sym $stack0:ustring", "BAD_STRING", 16),
    ("p:e sym %di:x8[4]", "BAD_STRING", 12),
    ("p:e sym +0(%di):x8[4", "ARRAY_NO_CLOSE", 20),
    ("p:e sym +0(%di):x8[4]b", "BAD_ARRAY_SUFFIX", 21),
    ("p:e sym +0(%di):x8[0]", "BAD_ARRAY_NUM", 19),
    ("p:e sym +0(%di):x8[]", "BAD_ARRAY_NUM", 19),
    ("p:e sym +0(%di):x8[65]", "ARRAY_TOO_BIG", 19),
    ("p:e sym $comm:u8", "NEED_STRING_TYPE", 14),
    ("p:e sym \\\"a:b\":string[2]", "NEED_STRING_TYPE", 15),
    ("p:e sym $comm:%pd", "COMM_CANT_DEREF", 8),
    ("p:e sym %di:%pd[2]", "BAD_TYPE", 12),
    ("p:e sym %di:%pe", "BAD_TYPE", 12),
    ("p:e sym $retval:%pd", "RETVAL_ON_PROBE", 8),
    ("p:e sym \\5:symstr", "BAD_SYMSTRING", 11),
    ("p:e sym +u0(%di):symstr", "BAD_SYMSTRING", 17),
];

#[test]
fn each_fault_has_its_identifier_and_column() {
    for (line, id, position) in FAULTS {
        let error = parse_line(line).unwrap_err();
        assert_eq!((error.id, error.position), (*id, *position), "{line}: {error}");
    }
}

/// Characters that are no part of any name, and what they are else: `+` is none, ` ` is a blank,
/// and so on.
fn odd_characters() -> impl Iterator<Item = char> {
    let others = "\u{80}\u{a0}\u{ad}\u{300}\u{2028}\u{202e}\u{feff}\u{fffd}é\u{df}Ω漢٣０😀";
    (0..=127u8).map(char::from).chain(others.chars())
}

#[test]
fn names_have_no_odd_characters() {
    let fault = |line: &str| parse_command(line).err().map(|error| (error.id, error.position));
    for c in odd_characters() {
        let is_part = c.is_ascii_alphanumeric() || c == '_';
        let unless = |ok: bool, id, at| (!ok).then_some((id, at));
        let starts = is_part && !c.is_ascii_digit();
        let (event, group, arg) = match c {
            '#' => (Some(("NO_EVENT_INFO", 3)), Some(("NO_EVENT_INFO", 3)), None),
            // Two words: a place, and what is after it.
            _ if c.is_whitespace() => (None, None, None),
            '/' => (None, Some(("BAD_EVENT_NAME", 4)), Some(("BAD_ARG_NAME", 8))),
            '.' => (None, Some(("BAD_GROUP_NAME", 2)), Some(("BAD_ARG_NAME", 8))),
            // An argument of another name, or no name.
            '=' => (
                Some(("BAD_EVENT_NAME", 2)),
                Some(("BAD_GROUP_NAME", 2)),
                Some(("BAD_FETCH_ARG", 10)),
            ),
            '"' => (
                Some(("BAD_EVENT_NAME", 2)),
                Some(("BAD_GROUP_NAME", 2)),
                Some(("BAD_FETCH_ARG", 8)),
            ),
            _ => (
                unless(is_part, "BAD_EVENT_NAME", 2),
                unless(is_part, "BAD_GROUP_NAME", 2),
                unless(is_part, "BAD_ARG_NAME", 8),
            ),
        };
        assert_eq!(fault(&format!("p:a{c}b sym")), event, "{c:?}");
        assert_eq!(fault(&format!("p:g{c}h/e sym")), group, "{c:?}");
        assert_eq!(fault(&format!("p:e sym a{c}b=%di")), arg, "{c:?}");
        if !c.is_whitespace() && !"#/.=\"".contains(c) {
            let first = |id| unless(starts, id, 2);
            assert_eq!(fault(&format!("p:{c}b sym")), first("BAD_EVENT_NAME"), "{c:?}");
            assert_eq!(fault(&format!("p:{c}h/e sym")), first("BAD_GROUP_NAME"), "{c:?}");
            let arg = unless(starts, "BAD_ARG_NAME", 8);
            assert_eq!(fault(&format!("p:e sym {c}b=%di")), arg, "{c:?}");
        }
    }
}

#[test]
fn what_is_too_long_or_too_much_is_refused() {
    let fault = |line: &str| {
        let error = parse_line(line).unwrap_err();
        (error.id, error.position, error.errno())
    };
    let many = format!("p:e sym{}", " %di".repeat(129));
    assert_eq!(fault(&many), ("TOO_MANY_ARGS", 8, "E2BIG"));
    let deep = format!("p:e sym {}%di{}", "+1(".repeat(13), ")".repeat(13));
    let array = " +0(%di):u64[64]".repeat(6);
    let line = format!("p:e sym{array} a=$comm b=+0(%si):string[1]");
    assert_eq!(fault(&line), ("EVENT_TOO_BIG", 7 + 6 * 16 + 3, "E2BIG"));
    let line = format!("p:e sym{} b=+0(%si):string[64] c=%ax d=%di:u8", &array[..5 * 16]);
    parse_line(&format!("{line} e=+0(%di):u8[64] f=+0(%di):u8[64] g=+0(%di):u8[64] x")).unwrap();
    assert_eq!(fault(&deep), ("TOO_MANY_OPS", 8 + 3 * 13, "E2BIG"));
    let deep = format!("p:e sym a={}%di{}:%pD", "+1(".repeat(10), ")".repeat(10));
    assert_eq!(fault(&deep), ("TOO_MANY_OPS", 10, "E2BIG"));
    parse_line(&deep.replace("%pD", "%pd")).unwrap();
    let members = format!("p:e sym x{}", "->a".repeat(13));
    assert_eq!(fault(&members), ("TOO_MANY_OPS", 8, "E2BIG"));
    let long = "a".repeat(64);
    assert_eq!(fault(&format!("p:{long} sym")), ("EVENT_TOO_LONG", 2, "EINVAL"));
    assert_eq!(fault(&format!("p:{long}/e sym")), ("GROUP_TOO_LONG", 2, "EINVAL"));
    assert_eq!(fault(&format!("p:e sym b=@{long}")), ("ARG_TOO_LONG", 10, "E2BIG"));
    let name = format!("p:e sym {}=%di", &long[..33]);
    assert_eq!(fault(&name), ("ARG_NAME_TOO_LONG", 8, "EINVAL"));
}

#[test]
fn columns_of_error_log_count_in_the_command_as_it_is_shown() {
    let shown = |line: &str| normalised(line, parse_command(line).unwrap_err().position);
    assert_eq!(shown("  p:e   sym  %zz "), ("p:e sym %zz".to_owned(), 8));
    assert_eq!(shown("p:e\tsym a=%di  a=%si"), ("p:e sym a=%di a=%si".to_owned(), 14));
    assert_eq!(shown(" p:a "), ("p:a".to_owned(), 3));
    assert_eq!(normalised("", 7), (String::new(), 0));
}

#[test]
fn commands_delete_by_name_group_and_words() {
    let delete = |line: &str| match parse_command(line) {
        Ok(Command::Delete(it)) => (it.group, it.event, it.words.join(" ")),
        other => panic!("{line}: {other:?}"),
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(delete("-:e"), (None, some("e"), String::new()));
    assert_eq!(
        delete("-:g/e vfs_read a=%di # why"),
        (some("g"), some("e"), "vfs_read a=%di".to_owned())
    );
    assert_eq!(delete("-:g/"), (some("g"), None, String::new()));
    assert_eq!(parse_command("-e").unwrap_err().id, "BAD_PROBE_TYPE");
    assert_eq!(parse_command("-:").unwrap_err().id, "NO_EVENT_NAME");
    let defined = parse_command("p:e sym %di # %zz").unwrap();
    assert!(matches!(defined, Command::Define(probe) if probe.args.len() == 1));
}

#[test]
fn every_kind_of_argument_is_read_and_printed() {
    let line = "r:g/e mod:sym+4 a=$comm b=\\16 c=\\\"x:y\":string d=@jiffies e=@init_task+8:s32 f=+u16(%di):ustring \
        g=a0 h=file->f_path.dentry->d_name.name:string i=$retval->len j=+0(%si):x8[16] k=%ax:b3@5/16 l=%cx:symbol \
        m=%dx:symstr n=+8(%di):char o=+0(%bx):string[3] p=@init_task-8 q=%cs r=%ss:u16 s=%orig_ax t=file:%pD \
        u=+8(%di):%pd";
    let probe = parse_line(line).unwrap();
    assert_eq!(probe.to_string(), line);
    let probe = parse_line("p e file:%pD $arg1:%pd").unwrap();
    assert_eq!(probe.to_string(), "p:kprobes/p_e_0 e arg1=file:%pD arg2=$arg1:%pd");
    let probe = parse_line("p e $arg3 $arg* \\-1 rv").unwrap();
    assert_eq!(probe.to_string(), "p:kprobes/p_e_0 e arg1=$arg3 $arg* arg3=\\-1 rv=rv");
    let long = "n".repeat(33);
    let probe = parse_line(&format!("p e {long}")).unwrap();
    assert_eq!(probe.to_string(), format!("p:kprobes/p_e_0 e arg1={long}"));
    let spaces = parse_line("p:e\u{a0}sym\u{b}fd=%di").unwrap();
    assert_eq!(spaces.to_string(), "p:kprobes/e sym fd=%di");
    let probe = parse_line("p e common_pid").unwrap();
    assert_eq!(probe.to_string(), "p:kprobes/p_e_0 e arg1=common_pid", "each event has one");
    assert_eq!(parse_line("p e @010").unwrap().args[0].body, Fetch::Memory(Gva(8)), "octal");
}

#[test]
fn return_probes_have_two_spellings() {
    let probe = parse_line("r20:e vfs_read $retval").unwrap();
    assert_eq!((probe.kind, probe.maxactive), (ProbeKind::Kretprobe, Some(20)));
    assert_eq!(probe.args[0].body, Fetch::ReturnValue);
    assert_eq!(probe.to_string(), "r20:kprobes/e vfs_read arg1=$retval");
    let suffix = parse_line("p:e vfs_read%return").unwrap();
    assert_eq!((suffix.kind, suffix.maxactive), (ProbeKind::Kretprobe, None));
    assert_eq!(parse_line("r vfs_read").unwrap().event_name(), "r_vfs_read_0");
}

fn any_fetch() -> impl Strategy<Value = Fetch> {
    let leaf = prop_oneof![
        (0..18usize).prop_map(|r| Fetch::Register(Register::ALL[r])),
        (0..2048u16).prop_map(Fetch::Stack),
        prop::sample::select(Segment::ALL).prop_map(Fetch::Segment),
        Just(Fetch::OrigAx),
        Just(Fetch::CurrentTask),
        Just(Fetch::StackPointer),
        Just(Fetch::ReturnValue),
        any::<u64>().prop_map(|addr| Fetch::Memory(Gva(addr))),
        (1..2048u16).prop_map(Fetch::Argument),
        any::<u64>().prop_map(Fetch::Constant),
        ("[a-z_][a-z0-9_]{0,9}", -999_999i64..=999_999)
            .prop_map(|(name, offset)| Fetch::Symbol { name, offset }),
        "[a-z_][a-z0-9_]{0,9}".prop_map(Fetch::Parameter),
        "[a-z_]{1,5}(->|\\.)[a-z_]{1,5}".prop_map(|path| Fetch::Member {
            base: Box::new(Fetch::Parameter("it".to_owned())),
            path
        }),
    ];
    leaf.prop_recursive(3, 8, 1, |inner| {
        (-999_999i64..=999_999, inner, any::<bool>())
            .prop_map(|(offset, base, user)| Fetch::Deref { offset, base: Box::new(base), user })
    })
}

/// `%pd` and `%pD` take no other type.
fn any_name() -> impl Strategy<Value = Fetch> {
    (prop::sample::select(Named::ALL), any_fetch())
        .prop_map(|(what, base)| Fetch::NameOf { what, base: Box::new(base) })
}

fn any_type() -> impl Strategy<Value = Option<ValueType>> {
    let names = ["u8", "s16", "x32", "u64", "char", "symbol", "b3@2/16", "string", "ustring"];
    prop::option::of(
        prop::sample::select(names.to_vec()).prop_map(|name: &str| name.parse().unwrap()),
    )
}

proptest! {
    #[test]
    fn no_text_panics(line: String) {
        let _ = parse_line(&line);
    }

    #[test]
    fn what_is_printed_parses_to_the_same(
        group in "[a-z_][a-z0-9_]{0,10}", event in "[a-z_][a-z0-9_]{0,10}",
        symbol in "[a-z_][a-z0-9_.]{0,20}", offset: u32,
        bodies in prop::collection::vec(prop_oneof![3 => any_fetch(), 1 => any_name()], 0..8), kind in any_type(), maxactive in 1..4097u32,
        count in prop::option::of(1..65u8),
    ) {
        let args = bodies.into_iter().enumerate().map(|(i, body)| FetchArg {
            name: Some(format!("n{i}")), kind: kind.filter(|k| match body {
                Fetch::Deref { .. } => true,
                Fetch::NameOf { .. } => false,
                _ => !k.is_text(),
            }),
            count: count.filter(|_| kind.is_some() && matches!(body, Fetch::Deref { .. })), body,
        }).collect();
        let probe = ProbeDefinition {
            kind: ProbeKind::Kretprobe, maxactive: Some(maxactive),
            group: Some(group), event: Some(event), symbol_name: Some(symbol),
            offset: offset.into(), args, ..ProbeDefinition::default()
        };
        prop_assume!(probe.args.iter().map(FetchArg::least_record_bytes).sum::<usize>() <= RECORD_MAX);
        prop_assert_eq!(parse_line(&probe.to_string()).unwrap(), probe);
    }
}
