//! Of values as events have them.

use std::sync::Arc;

use exoprobe_guest::{GuestClock, Gva};
use exoprobe_introspect::{SymbolTable, TaskId};
use serde_json::json;

use super::*;
use crate::definition::{Argument, FetchArg, parse_line};

fn symbols() -> SymbolTable {
    let map = "ffffffff81000000 T _stext\nffffffff81000000 T do_sys_open\nffffffff810000d6 T sys_open\nffffffff81000100 T _etext\n";
    SymbolTable::from_system_map(map).unwrap()
}

fn args(line: &str, change: impl FnOnce(&mut Record)) -> serde_json::Value {
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
        event_id: 1,
        synthetic: None,
        user_texts: Arc::default(),
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
    let page = store.read(1, 1);
    serde_json::Value::Object(page.events[0].args.clone())
}

#[test]
fn values_are_numbers_or_text() {
    let line = "p:my do_sys_open a=%di:s32 b=%si c=%dx:char d=%dx:symbol e=%di:u8 f=$comm g=\\\"x\" h=%cx:b4@4/8";
    let args = args(line, |record| {
        record.args[0] = Some(u64::MAX);
        record.args[1] = None;
        record.args[3] = Some(0xffff_ffff_8100_00d9);
    });
    let expected = json!({
        "a": -1, "b": "(fault)", "c": "A", "d": "sys_open+0x3/0x2a", "e": 65, "f": "bash",
        "g": "x", "h": 4,
    });
    assert_eq!(args, expected);
}

#[test]
fn arrays_and_texts_are_taken_from_the_records_bytes() {
    let found =
        args("p:e do_sys_open a=+0(%di):x16[3] b=+0(%di):string[2] c=+0(%di):string", |record| {
            let mut texts = TextList::default();
            texts.push(Some(b"one\ntwo"));
            texts.push(None);
            let texts = texts.into_bytes();
            record.text = [&[1, 0, 2, 0, 0xff, 0xff][..], &texts, b"end"].concat().into();
            let place = |start, len| Some(TextPlace::new(start, len).unwrap().word());
            let end = 6 + texts.len();
            record.args = vec![place(0, 6), place(6, texts.len()), place(end, 3)];
        });
    let expected = json!({"a": ["0x1", "0x2", "0xffff"], "b": ["one\ntwo", "(fault)"], "c": "end"});
    assert_eq!(found, expected);
    let broken = args("p:e do_sys_open a=+0(%di):string[2]", |record| {
        record.text = vec![200, 0, b'x', 0, 0, 0, 0, 0].into();
        record.args = vec![Some(TextPlace::new(0, 8).unwrap().word())];
    });
    assert!(broken["a"].is_array(), "{broken}");
}
