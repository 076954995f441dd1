//! Of events as they are shown.

use std::sync::Arc;

use exoprobe_guest::{GuestClock, GuestTime, Gva};
use exoprobe_introspect::{SymbolTable, TaskId, printable_lines};

use super::*;
use crate::definition::{Argument, FetchArg, parse_line};

fn symbols() -> SymbolTable {
    let map = "ffffffff81000000 T _stext\nffffffff81000000 T do_sys_open\nffffffff810000d6 T sys_open\nffffffff81000100 T _etext\n";
    SymbolTable::from_system_map(map).unwrap()
}

fn shown(line: &str, change: impl FnOnce(&mut Record)) -> String {
    let kind = |arg: &FetchArg| arg.kind.unwrap_or_default();
    let definition = parse_line(line).unwrap();
    let fields = definition.args.iter().enumerate().map(|(index, arg)| Argument {
        name: definition.arg_name(index),
        fetch: arg.body.clone(),
        kind: kind(arg),
        count: arg.count,
    });
    let origin = Origin {
        group: "kprobes".into(),
        event: definition.event_name().into(),
        symbol_name: None,
        offset: 0,
        at: Gva(0xffff_ffff_8100_0000),
        addr: "".into(),
        fields: fields.collect(),
        symbols: Some(symbols()),
        clock: GuestClock::default(),
    };
    let task = TaskId { pid: 1447, comm: *b"bash\0\0\0\0\0\0\0\0\0\0\0\0" };
    let mut record = Record {
        probe: 1,
        time: 0,
        task: Some(task),
        returned: None,
        args: vec![Some(0x41); definition.args.len()],
        stack: Vec::new(),
        text: Box::default(),
    };
    change(&mut record);
    let store = EventStore::new(EventLimits::default());
    store.append(std::iter::once(Step::Keep(Hit { origin: Arc::new(origin), vcpu: 1, record })));
    let page = store.trace();
    assert_eq!((page.events, page.written), (1, 1));
    page.text
}

#[test]
fn a_line_of_the_tracer_cannot_steer_a_terminal() {
    let hostile = "\u{1b}[2J\u{9b}\n\u{202e}\u{200b}\u{e0041}";
    let text = shown("p:my do_sys_open a=$comm c=+0(%di):string", |record| {
        let comm = *b"\x1b\xc2\x9b\xe2\x80\xae\n\0\0\0\0\0\0\0\0\0";
        record.task = Some(TaskId { pid: 1, comm });
        record.text = hostile.as_bytes().into();
        record.args[1] = Some(TextPlace::new(0, hostile.len()).unwrap().word());
    });
    assert_eq!(printable_lines(&text), text);
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(text.contains("\\u{1b}[2J\\u{9b}\\n\\u{202e}"), "{text:?}");
}

#[test]
fn lines_are_those_of_the_tracer() {
    let prefix = "            bash-1447    [001] .....     0.000000:";
    let line = "p:my do_sys_open a=%di:s32 b=%si c=%dx:char d=%dx:symbol e=%di:u8 f=$comm g=\\\"x\" h=%cx:b4@4/8";
    let text = shown(line, |record| {
        record.args[0] = Some(u64::MAX);
        record.args[1] = None;
        record.args[3] = Some(0xffff_ffff_8100_00d9);
    });
    let values = "a=-1 b=(fault) c='A' d=sys_open+0x3/0x2a e=65 f=\"bash\" g=\"x\" h=4";
    assert_eq!(text, format!("{prefix} my: (do_sys_open+0x0/0xd6) {values}\n"));
    let text = shown("r:ret do_sys_open rv", |record| {
        let to = Gva(0xffff_ffff_8100_00f1);
        record.returned = Some(Returned { to, entered: GuestTime(1) });
        record.stack = vec![0xffff_ffff_8100_0000, 0x10];
    });
    let call = "ret: (sys_open+0x1b/0x2a <- do_sys_open) rv=0x41";
    let stack = format!("{prefix} <stack trace>\n => do_sys_open\n => 0x10\n");
    assert_eq!(text, format!("{prefix} {call}\n{stack}"));
}

#[test]
fn arrays_and_texts_are_taken_from_the_records_bytes() {
    let text =
        shown("p:e do_sys_open a=+0(%di):x16[3] b=+0(%di):string[2] c=+0(%di):string", |record| {
            let mut texts = TextList::default();
            texts.push(Some(b"one\ntwo"));
            texts.push(None);
            let texts = texts.into_bytes();
            record.text = [&[1, 0, 2, 0, 0xff, 0xff][..], &texts, b"end"].concat().into();
            let place = |start, len| Some(TextPlace::new(start, len).unwrap().word());
            let end = 6 + texts.len();
            record.args = vec![place(0, 6), place(6, texts.len()), place(end, 3)];
        });
    assert!(text.ends_with(") a={0x1,0x2,0xffff} b={\"one\\ntwo\",(fault)} c=\"end\"\n"), "{text}");
    let broken = shown("p:e do_sys_open a=+0(%di):string[2]", |record| {
        record.text = vec![200, 0, b'x', 0, 0, 0, 0, 0].into();
        record.args = vec![Some(TextPlace::new(0, 8).unwrap().word())];
    });
    assert!(broken.contains("e: (do_sys_open+0x0/0xd6) a="), "{broken}");
}
