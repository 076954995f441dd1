//! Tests of variables and parameters that are texts or back-traces.

use std::cell::RefCell;

use super::*;
use crate::synthetic::{SyntheticCommand, parse_synthetic};

/// Histograms of one event, and a synthetic event.
struct Setting {
    tables: RefCell<Vec<HistTable>>,
    synthetic: &'static str,
}

impl Variables for Setting {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        let tables = self.tables.borrow();
        let found = tables.iter().find_map(|table| table.variable(&name.name));
        found.ok_or_else(|| VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, group: &str, event: &str) -> bool {
        (group, event) == ("g", "e")
    }

    fn synthetic(&self, name: &str) -> Option<Arc<SyntheticDefinition>> {
        let Ok(SyntheticCommand::Define(found)) = parse_synthetic(self.synthetic) else { panic!() };
        (found.name == name).then(|| Arc::new(found))
    }

    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError> {
        Ok(self.find(&field.variable())?)
    }
}

impl Setting {
    fn of(synthetic: &'static str, commands: &[&str]) -> Self {
        let new = Self { tables: RefCell::default(), synthetic };
        commands.iter().for_each(|command| new.add(command).unwrap());
        new
    }

    fn add(&self, command: &str) -> Result<(), TriggerError> {
        let TriggerKind::Hist(hist) = added(&format!("hist:{command}")).kind else { panic!() };
        let table = HistTable::new(&hist, &fields(LINE), true, self)?;
        self.tables.borrow_mut().push(table);
        Ok(())
    }

    /// The values of the event that a hit makes.
    fn made(&self, fd: u64, pid: u32) -> Vec<SavedValue> {
        let mut made = Vec::new();
        let hit = hit([fd, 5, 0], pid, 0);
        for table in self.tables.borrow().iter() {
            table.add(&hit, &mut made);
        }
        made.pop().map(|made| made.values).unwrap_or_default()
    }
}

const EVENT: &str = "sy char aa[]; char bb[3]; unsigned long cc[]; char dd[]; u64 ee";

fn text(text: &str) -> SavedValue {
    SavedValue::Text(text.to_owned())
}

fn stack() -> SavedValue {
    SavedValue::Stack(vec![0xffff_ffff_8100_0008, 0xffff_ffff_8100_0104])
}

#[test]
fn texts_and_back_traces_are_values_of_variables() {
    let commands = [
        "keys=fd:c=comm,n=common_pid.execname,st=common_stacktrace,l=len",
        "keys=fd:d=$c:tt=$st:own=comm:onmatch(g.e).sy($d,$n,$tt,$own,$l)",
    ];
    let all = Setting::of(EVENT, &commands);
    let expected = [text("sh"), text("sh"), stack(), text("sh"), SavedValue::Number(5)];
    assert_eq!(all.made(3, 7), expected);
    let tables = all.tables.borrow();
    assert!(tables[0].wants_stack() && !tables[1].wants_stack(), "it has that of the other one");
}

#[test]
fn fields_of_the_event_of_onmatch_are_variables_of_it() {
    let commands = [
        "keys=fd:synthetic_comm=comm,synthetic_none=common_stacktrace,synthetic_len=len",
        "keys=fd:onmatch(g.e).sy(g.e.comm,comm,none,g.e.comm,g.e.len)",
    ];
    let all = Setting::of(EVENT, &commands);
    let expected = [text("sh"), text("sh"), stack(), text("sh"), SavedValue::Number(5)];
    assert_eq!(all.made(3, 7), expected);
    // The other histogram has no entry of these keys.
    all.tables.borrow()[0].clear();
    all.tables.borrow()[0].paused.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(all.made(3, 7), []);
}

#[test]
fn texts_and_back_traces_are_no_numbers() {
    let all = Setting::of(EVENT, &["keys=fd:c=comm,st=common_stacktrace"]);
    for (command, id, part) in [
        ("vals=$c", "INVALID_STR_OPERAND", "c"),
        ("vals=$st", "INVALID_STR_OPERAND", "st"),
        ("y=$c+1", "INVALID_STR_OPERAND", "c"),
        ("y=1-$st", "INVALID_STR_OPERAND", "st"),
        ("y=-(comm)", "INVALID_STR_OPERAND", "comm"),
        ("y=$c:onmax($y).save(len)", "INVALID_STR_OPERAND", "y"),
        ("y=comm:onchange($y).snapshot()", "INVALID_STR_OPERAND", "y"),
        ("y=len:onmax($y).save($st)", "BAD_FIELD_MODIFIER", "$st"),
        ("y=len:onmax($y).save(common_stacktrace)", "BAD_FIELD_MODIFIER", "common_stacktrace"),
        ("keys=fd.stacktrace", "BAD_FIELD_MODIFIER", "fd.stacktrace"),
        ("y=comm.stacktrace", "BAD_FIELD_MODIFIER", "comm.stacktrace"),
        ("y=common_stacktrace.stacktrace", "BAD_FIELD_MODIFIER", "common_stacktrace.stacktrace"),
        ("onmatch(g.e).sy($c,$c,$c,$c,$c)", "SYNTH_TYPE_MISMATCH", "$c"),
        ("onmatch(g.e).sy($st,$c,$st,$c,10)", "SYNTH_TYPE_MISMATCH", "$st"),
        ("onmatch(g.e).sy($c,$c,$st,$c,$c)", "SYNTH_TYPE_MISMATCH", "$c"),
    ] {
        let error = all.add(&format!("keys=fd:{command}")).unwrap_err();
        assert_eq!((error.code(), error.fault()), ("EINVAL", (id, Some(part))), "{command}");
    }
}

#[test]
fn a_saved_variable_of_another_histogram_may_be_text() {
    let all = Setting::of(EVENT, &["keys=fd:c=comm", "keys=fd:m=len:onmax($m).save($c,len)"]);
    all.made(3, 7);
    let tables = all.tables.borrow();
    let shown = tables[1].at_once("LINE", &fields(LINE), None);
    let saved = &shown.entries[0].tracked.as_ref().unwrap().saved;
    assert_eq!(*saved, [text("sh"), SavedValue::Number(5)]);
}

#[test]
fn texts_and_back_traces_are_of_the_histograms_memory() {
    let bytes = |command: &str| {
        let TriggerKind::Hist(hist) = added(&format!("hist:keys=fd:{command}")).kind else {
            panic!()
        };
        HistTable::new(&hist, &fields(LINE), true, &NoVariables).unwrap().most_bytes()
    };
    assert!(bytes("x=comm") >= bytes("x=len") + 2048 * 255);
    assert!(bytes("x=common_stacktrace") >= bytes("x=len") + 2048 * 32 * 8);
}

/// The fields of a synthetic event with a back-trace.
fn made_fields() -> Vec<Argument> {
    let Ok(SyntheticCommand::Define(made)) = parse_synthetic("sy u64 aa; unsigned long[] st")
    else {
        panic!()
    };
    made.arguments()
}

#[test]
fn a_back_trace_of_a_synthetic_event_is_a_key() {
    let list = made_fields();
    let mut hit = hit_of(&list, [9, 0, 0], 7, 0);
    let frames = [0xffff_ffff_8100_0104_u64, 0x10];
    hit.record.text = frames.iter().flat_map(|frame| frame.to_le_bytes()).collect();
    hit.record.args = vec![Some(9), Some(16 << 32)];
    for command in ["keys=st.stacktrace", "keys=st"] {
        let TriggerKind::Hist(hist) = added(&format!("hist:{command}:x=st:sort=st")).kind else {
            panic!()
        };
        let table = HistTable::new(&hist, &list, false, &NoVariables).unwrap();
        assert!(!table.wants_stack());
        table.add(&hit, &mut Vec::new());
        let shown = table.at_once("LINE", &list, Some(&symbols()));
        assert_eq!(shown.keys[0].field.to_string(), "st.stacktrace");
        assert_eq!(&*shown.entries[0].keys, [HistogramKey::Stack(frames.to_vec())]);
        let listed = "keys=st.stacktrace:vals=hitcount:x=st:sort=st:size=2048";
        assert_eq!(table.hist.to_string(), listed);
    }
    let refused = |command: &str| {
        let TriggerKind::Hist(hist) = added(command).kind else { panic!() };
        HistTable::new(&hist, &list, false, &NoVariables).unwrap_err().fault().0
    };
    assert_eq!(refused("hist:keys=aa:vals=st"), "BAD_FIELD_MODIFIER");
    assert_eq!(refused("hist:keys=st.hex"), "BAD_FIELD_MODIFIER");
}
