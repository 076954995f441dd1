//! Of arguments.

use exoprobe_introspect::btf::sample::{POINTER, STRUCT, Sample, kernel};

use std::sync::Arc;

use exoprobe_introspect::btf::NoTypes;
use exoprobe_introspect::{Btf, SymbolTable};

use super::finder::ResolveContext;
use super::list::Arguments;
use super::rewrite;
use crate::definition::{FieldValue, ProbeDefinition, parse_line};
use crate::error::ProbeError;

const MAP: &str =
    "ffffffff81000000 T _stext\nffffffff81000100 T _etext\nffffffff82000010 D jiffies\n";

/// As at the entry of a function, with types or without.
fn find(
    definition: &ProbeDefinition,
    function: Option<&str>,
    types: Option<&Arc<Btf>>,
) -> Result<Arguments, ProbeError> {
    let symbols = SymbolTable::from_system_map(MAP).unwrap();
    let types = types.map(Arc::clone).ok_or(NoTypes::None);
    Arguments::find(definition, &ResolveContext { symbols: &symbols, function, types })
}

fn found(line: &str, types: &Arc<Btf>) -> Result<Vec<String>, String> {
    let found = find(&parse_line(line).unwrap(), Some("get"), Some(types));
    let found = found.map_err(|e| e.to_string())?;
    Ok(found.list.iter().map(|arg| format!("{}:{}", arg.fetch, arg.kind)).collect())
}

#[test]
fn parameters_are_found_with_their_types() {
    let types = Arc::new(kernel().btf());
    let line = "p get fd name:string task x=+8(task):u32 a=fd:x16 b=name raw=%di";
    let expected =
        ["%di:s32", "+0(%si):string", "%dx:x64", "+8(%dx):u32", "%di:x16", "%si:x64", "%di:x64"];
    assert_eq!(found(line, &types).unwrap(), expected);
}

#[test]
fn what_is_no_parameter_is_told() {
    let types = Arc::new(kernel().btf());
    let error = |line| found(line, &types).unwrap_err();
    let text = "get has no parameter `x`: it has `fd`, `name`, `task`";
    assert_eq!(error("p get x"), text);
    assert_eq!(error("p get a=+8(x)"), text);
    let text =
        "`task` is `struct task *task`, not the address of text: `string` cannot be its type";
    assert_eq!(error("p get task:string"), text);
    let definition = parse_line("p get+4 fd").unwrap();
    let within = find(&definition, None, Some(&types)).unwrap_err();
    assert!(within.to_string().starts_with("`fd` is taken for a parameter's name"), "{within}");
    let other = find(&definition, Some("put"), Some(&types)).unwrap_err();
    assert!(other.to_string().contains("no function put"), "{other}");
    let mut sample = Sample::default();
    let large = sample.composite(STRUCT, "large", 24, &[]);
    let place = sample.to(POINTER, large);
    sample.function("get", 0, &[("by_value", large), ("at", place)]);
    let types = Arc::new(sample.btf());
    assert!(found("p get by_value", &types).unwrap_err().contains("struct by value"));
    assert_eq!(found("p get at", &types).unwrap(), ["%di:x64"]);
}

#[test]
fn filters_go_by_the_types_that_are_found() {
    let types = Arc::new(kernel().btf());
    let holds = |filter: &str, word: u64| {
        let mut definition = parse_line("p get fd name:string").unwrap();
        definition.filter = Some(filter.parse().unwrap());
        let filter = find(&definition, Some("get"), Some(&types))
            .and_then(|found| found.filter(Some(definition.kind), definition.filter.as_ref(), None))
            .map_err(|e| e.to_string())?;
        Ok::<bool, String>(filter.unwrap().holds(&mut |_| Some(word)))
    };
    assert_eq!(holds("fd == -100", 0x7_ffff_ff9c), Ok(true));
    assert_eq!(holds("fd < 0", 5), Ok(false));
    let text = "the filter's `name` is text: compare it by `==`, `!=` or `~` with a \"text\": it has `fd`, `name`, \
        `common_pid`, `comm`, `CPU`";
    assert_eq!(holds("name == 1", 0), Err(text.to_owned()));
}

#[test]
fn members_are_found_behind_pointers() {
    let types = Arc::new(kernel().btf());
    let line = "p get task->pid n=task->comm:string t=task->text:string task->b a=task->next p=+4(task->text):u8";
    let expected = [
        "+0(%dx):s32",
        "+4(%dx):string",
        "+0(+40(%dx)):string",
        "+28(%dx):s32",
        "+32(%dx):x64",
        "+4(+40(%dx)):u8",
    ];
    assert_eq!(found(line, &types).unwrap(), expected);
    let error = |line| found(line, &types).unwrap_err();
    assert_eq!(
        error("p get a=fd->x"),
        "`fd` is `int fd`, which points to no struct: it has no members"
    );
    let text =
        "`task->comm` is `char task->comm[16]`, which points to no struct: it has no members";
    assert_eq!(error("p get a=task->comm->x"), text);
    assert_eq!(error("p get a=task->nope"), "`task->nope`: struct task has no member \"nope\"");
    assert!(error("p get a=task->pid:string").contains("not the address of text"));
}

#[test]
fn what_is_returned_has_members_and_bit_fields() {
    let mut sample = Sample::default();
    let (int, char) = (sample.int("int", 4, true), sample.int("char", 1, false));
    // Members with widths: kind_flag.
    let fields = [("a", char, 0), ("b", int, 9 << 24 | 13)];
    let packed = sample.composite(STRUCT | 0x80, "packed", 8, &fields);
    let packed = sample.to(POINTER, packed);
    sample.function("get", packed, &[]);
    sample.function("put", 0, &[]);
    let types = Arc::new(sample.btf());
    let bits = ["+1($retval):b9@5/16", "+0(+0($retval)):x64"];
    assert_eq!(found("r get x=$retval->b y=+0($retval->a)", &types).unwrap(), bits);
    let void = find(&parse_line("r put x=$retval->b").unwrap(), Some("put"), Some(&types));
    assert_eq!(void.unwrap_err().to_string(), "put returns nothing (void)");
}

#[test]
fn all_parameters_are_several_values() {
    let types = Arc::new(kernel().btf());
    let all = find(&parse_line("p get $arg* ip=%ip").unwrap(), Some("get"), Some(&types)).unwrap();
    let names: Vec<&str> = all.list.iter().map(|arg| arg.name.as_str()).collect();
    assert_eq!(names, ["fd", "name", "task", "ip"]);
    assert_eq!(found("p get $arg*", &types).unwrap(), ["%di:s32", "%si:x64", "%dx:x64"]);
    let twice = find(&parse_line("p get fd $arg*").unwrap(), Some("get"), Some(&types));
    assert!(matches!(twice, Err(ProbeError::DuplicateArg(name)) if name == "fd"));
    let within = find(&parse_line("p get+4 $arg*").unwrap(), None, Some(&types)).unwrap_err();
    assert!(within.to_string().starts_with("`$arg*`: arguments are known"), "{within}");
}

/// Values, without any types.
fn without_types(line: &str) -> Result<Vec<String>, String> {
    let found = find(&parse_line(line).unwrap(), Some("get"), None).map_err(|e| e.to_string())?;
    Ok(found.list.iter().map(|arg| format!("{}={}", arg.name, arg.fetch)).collect())
}

#[test]
fn the_first_versions_names_are_known_without_types() {
    let entry = ["a0=%di", "a5=%r9", "a6=$stack1", "sa=$stack", "s3=$stack3", "deep=+8(%si)"];
    assert_eq!(without_types("p get a0 a5 a6 sa s3 deep=+8(a1)").unwrap(), entry);
    let text = found("p get x=a1:string", &Arc::new(kernel().btf())).unwrap();
    assert_eq!(text, ["+0(%si):string"]);
    assert_eq!(without_types("r get rv ra").unwrap(), ["rv=$retval", "ra=%ip"]);
    assert!(without_types("p get rv").unwrap_err().contains("no BTF"));
    assert!(without_types("p get a9999").unwrap_err().contains("no BTF"));
    let types = Arc::new(kernel().btf());
    assert!(found("p get rv", &types).unwrap_err().contains("no parameter `rv`"));
    let mut sample = Sample::default();
    let int = sample.int("int", 4, true);
    sample.function("get", int, &[("x", int), ("a0", int)]);
    let types = Arc::new(sample.btf());
    assert_eq!(found("p get a0", &types).unwrap(), ["%si:s32"], "a parameter comes first");
}

#[test]
fn numbered_arguments_and_symbols_are_found() {
    let entry = ["arg1=%di", "arg2=$stack2", "arg3=@0xffffffff82000018", "arg4=$comm"];
    assert_eq!(without_types("p get $arg1 $arg8 @jiffies+8 $comm").unwrap(), entry);
    assert!(without_types("p get @nope").unwrap_err().contains("nope"));
    let within = find(&parse_line("p get+4 $arg1").unwrap(), None, None).unwrap_err();
    assert!(within.to_string().starts_with("`$arg1`: arguments are known"), "{within}");
}

#[test]
fn values_have_room_in_a_record_of_the_tracers() {
    let types = Arc::new(kernel().btf());
    let arrays = "+0(%di):u64[64] ".repeat(5) + "+0(%di):u32[64] +0(%di):u32[62]";
    // 3064 bytes, and one of four and one of eight.
    assert_eq!(found(&format!("p get {arrays} fd x=fd"), &types).unwrap().len(), 9);
    let line = format!("p get {arrays} fd name");
    let error = find(&parse_line(&line).unwrap(), Some("get"), Some(&types)).unwrap_err();
    assert!(matches!(error, ProbeError::EventTooBig { index: 8, bytes: 3076 }), "{error}");
    assert_eq!(error.code(), "E2BIG");
    let mut definition = parse_line("p get +0(%di):u64[64] +0(%di):u64[64]").unwrap();
    definition.args = vec![definition.args[0].clone(); 7];
    let error = Arguments::check(&definition, None).unwrap_err();
    assert!(matches!(error, ProbeError::EventTooBig { index: 6, bytes: 3584 }), "{error}");
}

#[test]
fn a_return_has_the_arguments_of_its_entry() {
    let types = Arc::new(kernel().btf());
    let line = "r get fd name:string a=+8(task):u32 $arg3 rv task->pid b=+u4(+0($arg2)):ustring";
    let expected = [
        "$arg1:s32",
        "+0($arg2):string",
        "+8($arg3):u32",
        "$arg3:x64",
        "$retval:x64",
        "+0($arg3):s32",
        "+u4(+0($arg2)):ustring",
    ];
    assert_eq!(found(line, &types).unwrap(), expected);
    let kept = |line: &str, types| {
        let found = find(&parse_line(line).unwrap(), Some("get"), types);
        found.map(|found| found.kept.to_vec())
    };
    assert_eq!(kept("r get task $retval $arg*", Some(&types)).err().unwrap().code(), "EINVAL");
    assert_eq!(kept("r get $retval $arg*", Some(&types)).unwrap(), [1, 2, 3]);
    assert_eq!(kept("r get a=+4($arg8) $arg2 b=$arg8 a1 %di", None).unwrap(), [2, 8]);
    assert!(kept("p get $arg* $arg8", Some(&types)).unwrap().is_empty());
    kept("r get $arg16", None).unwrap();
    match kept("r get a=+4($arg17)", None).unwrap_err() {
        ProbeError::Parameter(error) => {
            assert_eq!((error.id(), error.body()), ("TOO_MANY_EARGS", Some("$arg17")));
        }
        other => panic!("{other}"),
    }
    assert!(found("r get x", &types).unwrap_err().contains("no parameter `x`"));
}

fn rewritten(line: &str, types: &Btf) -> Result<String, ProbeError> {
    let mut definition = parse_line(line).unwrap();
    assert!(rewrite::is_due(&definition));
    let function = definition.symbol_name.clone();
    rewrite::rewrite(&mut definition, function.as_deref(), types)?;
    Ok(definition.to_string())
}

#[test]
fn bare_arguments_are_called_by_their_parameters_names() {
    let types = kernel().btf();
    assert_eq!(
        rewritten("p:e get $arg1 $arg2 x=$arg3 $arg3:x32 +8($arg3)", &types).unwrap(),
        "p:kprobes/e get fd=fd name=name x=$arg3 task=task:x32 arg5=+8($arg3)"
    );
    assert_eq!(rewritten("p:e put $arg1", &types).unwrap(), "p:kprobes/e put arg1=$arg1");
    let error = rewritten("p:e get $arg1 $arg4", &types).unwrap_err();
    let text = "get has no parameter `$arg4`: it has `fd`, `name`, `task`";
    assert_eq!((error.to_string().as_str(), error.code()), (text, "ENOENT"));
    assert!(!rewrite::is_due(&parse_line("p:e get x=$arg1 +0($arg2) fd").unwrap()));
}

#[test]
fn names_of_files_are_where_the_types_say() {
    let mut sample = kernel();
    let int = sample.int("int", 4, true);
    let char = sample.int("char", 1, true);
    let text = sample.to(POINTER, char);
    let qstr = sample.composite(STRUCT, "qstr", 16, &[("len", int, 0), ("name", text, 64)]);
    let dentry = sample.composite(STRUCT, "dentry", 64, &[("d_name", qstr, 256)]);
    let dentry = sample.to(POINTER, dentry);
    let path = sample.composite(STRUCT, "path", 16, &[("mnt", text, 0), ("dentry", dentry, 64)]);
    let file = sample.composite(STRUCT, "file", 64, &[("f_path", path, 128)]);
    let file = sample.to(POINTER, file);
    sample.function("open", int, &[("file", file), ("dentry", dentry)]);
    let types = Arc::new(sample.btf());
    let line = "p:e open file:%pD x=$arg2:%pd $arg1:%pD +8(%cx):%pd";
    let expected = "p:kprobes/e open arg1=+0(+40(+24(file))):string x=+0(+40($arg2)):string \
        file=+0(+40(+24(file))):string arg4=+0(+40(+8(%cx))):string";
    assert_eq!(rewritten(line, &types).unwrap(), expected);
    assert_eq!(parse_line(expected).unwrap().to_string(), expected);
    let fetched = |line: &str| {
        let found = find(&parse_line(line).unwrap(), Some("open"), Some(&types)).unwrap();
        found.list.iter().map(|arg| format!("{}:{}", arg.fetch, arg.kind)).collect::<Vec<_>>()
    };
    // What was defined before the types were known is fetched all the same.
    let values = ["+0(+40(+24(%di))):string", "+0(+40(%si)):string"];
    assert_eq!(fetched("p:e open file:%pD x=$arg2:%pd"), values);
    let values = ["+0(+40(+24($arg1))):string", "+0(+40($retval)):string"];
    assert_eq!(fetched("r:e open file:%pD $retval:%pd"), values);
    let long = format!("p:e open x={}file->f_path.dentry{}:%pd", "+999(".repeat(5), ")".repeat(5));
    assert_eq!(rewritten(&long, &types).unwrap(), long.replace("p:e", "p:kprobes/e"));
    let error = rewritten("p:e get x=%di:%pd", &kernel().btf()).unwrap_err();
    assert!(error.to_string().contains("no type \"dentry\""), "{error}");
    let error = find(&parse_line("p:e get x=%di:%pd").unwrap(), Some("get"), None).unwrap_err();
    assert!(matches!(error, ProbeError::Types(NoTypes::None)), "{error}");
}

#[test]
fn what_is_no_parameters_place_keeps_its_number() {
    let mut sample = Sample::default();
    let int = sample.int("int", 4, true);
    let pair = sample.composite(STRUCT, "pair", 16, &[]);
    let params = [("first", int), ("both", pair), ("third", int), ("common_pid", int), ("", 0)];
    sample.function("get", int, &params);
    let types = sample.btf();
    assert_eq!(
        rewritten("p:e get $arg1 $arg2 $arg3 $arg4 $arg9", &types).unwrap(),
        "p:kprobes/e get first=first arg2=$arg2 arg3=$arg3 arg4=$arg4 arg5=$arg9"
    );
}

#[test]
fn filters_compare_text_with_text() {
    let resolve = |filter: &str| {
        let mut definition =
            parse_line("p get $comm a=+0(%di):x8[4] s=%si:symstr n=%dx w=%dx:x32").unwrap();
        definition.filter = Some(filter.parse().unwrap());
        find(&definition, Some("get"), None)
            .and_then(|found| found.filter(Some(definition.kind), definition.filter.as_ref(), None))
            .map(Option::unwrap)
            .map_err(|e| e.to_string())
    };
    let holds = |filter: &str, text: &str| {
        resolve(filter).unwrap().holds(&mut |_| Some(FieldValue::Text(text.as_bytes().to_vec())))
    };
    for (filter, expected) in [
        ("arg1 == \"init\"", true),
        ("arg1 != \"init\"", false),
        ("comm ~ \"in*\"", true),
        ("comm !~ \"*x*\"", true),
        ("s ~ \"i[a-z]?t\"", true),
        ("comm ~ \"i[!n]it\"", false),
        ("n.ustring == \"init\"", true),
        ("arg1.ustring == \"init\"", true),
    ] {
        assert_eq!(holds(filter, "init"), expected, "{filter}");
    }
    for (filter, error) in [
        ("a == 1", "array"),
        ("n ~ \"x\"", "is a number"),
        ("comm == 1", "is text"),
        ("common_pid == \"1\"", "is a number"),
        ("s == 1", "is text"),
        ("CPU == \"1\"", "is a number"),
        ("x.ustring ~ \"x\"", "no field"),
        ("a.ustring ~ \"x\"", "no 64-bit address"),
        ("w.ustring ~ \"x\"", "no 64-bit address"),
        ("comm.ustring ~ \"x\"", "no field"),
    ] {
        assert!(resolve(filter).unwrap_err().contains(error), "{filter}");
    }
}
