//! Tests of handlers.

use super::*;
use crate::synthetic::{SyntheticCommand, parse_synthetic};

#[test]
fn handlers_are_listed_as_by_the_kernel() {
    let cases = [
        ("keys=kk:mx=vv:onmax($mx).save(vv,uu)", "mx=vv|:onmax($mx).save(vv,uu)"),
        ("keys=kk:onchange($mx).save(vv.hex,0x10):mx=vv", "mx=vv|:onchange($mx).save(vv.hex,0x10)"),
        ("onmax($mx).snapshot():keys=kk:mx=hitcount", "mx=hitcount|:onmax($mx).snapshot()"),
        (
            "keys=kk:mx=vv:onmax($mx).save($ts):onchange($mx).snapshot():onmax($mx).snapshot()",
            "mx=vv|:onmax($mx).save($ts):onchange($mx).snapshot():onmax($mx).snapshot()",
        ),
        (
            "keys=kk:mx=vv:onmax($mx).save(common_timestamp)",
            "mx=vv|:clock=global:onmax($mx).save(common_timestamp)",
        ),
    ];
    for (written, listed) in cases {
        let listed = listed.replace('|', ":sort=hitcount:size=2048");
        let listed = format!("hist:keys=kk:vals=hitcount:{listed}");
        assert_eq!(added(&format!("hist:{written}")).to_string(), listed, "{written}");
        assert_eq!(added(&listed).to_string(), listed, "{written}");
    }
    for action in ["sy(vv,$ts,10)", "trace(sy,kprobes.f.$ts,vv,kprobes.f.vv.hex)", "trace(sy)"] {
        for condition in ["onmatch(kprobes.f)", "onmax($mx)", "onchange($mx)"] {
            let parts = "sort=hitcount:size=2048";
            let command = format!("hist:keys=kk:vals=hitcount:mx=vv:{parts}:{condition}.{action}");
            assert_eq!(added(&command).to_string(), command);
        }
    }
    // The kernel's order of parts.
    let all = "hist:keys=kk:vals=vv:mx=vv:sort=vv:size=256:nohitcount:onchange($mx).save(vv)";
    assert_eq!(added(all).to_string(), all);
    // The event's own variable by its whole name is the field that it stands for.
    let own = parse_trigger("hist:keys=kk:mx=vv:onmax($mx).save(kprobes.e.$mx)").unwrap();
    let TriggerCommand::Add(own) = own.of_event("kprobes", "e") else { panic!("it is set") };
    let TriggerKind::Hist(own) = own.kind else { panic!("it is a histogram") };
    let HandlerAction::Save(saved) = &own.handlers[0].action else { panic!("it saves") };
    assert!(matches!(saved[0].value, Expression::Field(_)), "{saved:?}");
    let kind = |command: &str| added(&format!("hist:keys=kk:mx=vv{command}")).kind;
    let (max, change) = (":onmax($mx).save(vv)", ":onchange($mx).save(vv)");
    assert!(kind(max).is_same(&kind(max)));
    assert!(![change, "", ":onmax($mx).save(kk)"].iter().any(|o| kind(max).is_same(&kind(o))));
}

#[test]
fn faults_of_handlers_have_their_place() {
    let cases = [
        ("onmax(mx).save(vv)", "ONX_NOT_VAR", "mx).save(vv)"),
        ("onmax().save(vv)", "ONX_NOT_VAR", ").save(vv)"),
        ("onmax($mx", "HIST_CREATE_FAIL", ""),
        ("onmax($mx)", "ACTION_NOT_FOUND", ""),
        ("onmax($mx).save", "ACTION_NOT_FOUND", ".save"),
        ("onmax($mx)x.save(vv)", "ACTION_NOT_FOUND", "x.save(vv)"),
        ("onmax($mx).save(vv)x", "ACTION_NOT_FOUND", "x"),
        ("onmax($mx).save(vv", "NO_CLOSING_PAREN", ""),
        ("onmax($mx).snapshot(vv)", "INVALID_PARAM", "vv)"),
        ("onmax($mx).save()", "INVALID_PARAM", ")"),
        ("onmax($mx).save(vv,v)", "INVALID_PARAM", "v)"),
        ("onmax($mx).save(vv,,kk)", "INVALID_PARAM", ",kk)"),
        ("onmax($mx).save(1x)", "EXPECT_NUMBER", "1x)"),
        ("onmax($mx).save(vv+1)", "FIELD_NOT_FOUND", "vv+1)"),
        ("onmax($mx).save(vv.zz)", "BAD_FIELD_MODIFIER", "zz)"),
        ("onmatch(g.e).save(vv)", "ACTION_MISMATCH", "save(vv)"),
        ("onmatch(g.e", "NO_CLOSING_PAREN", ""),
        ("onmatch(g).sy(vv)", "SUBSYS_NOT_FOUND", "g).sy(vv)"),
        ("onmatch(g.e).sy", "ACTION_NOT_FOUND", ".sy"),
        ("onmatch(g.e).sy()", "INVALID_PARAM", ")"),
        ("onmatch(g.e).trace()", "INVALID_PARAM", ")"),
        ("onmax($mx).trace(sy,vv.hex)", "PARAM_NOT_FOUND", "vv.hex)"),
        ("onmax($mx).save(vv):onmax($mx).save(kk)", "TOO_MANY_SAVE_ACTIONS", "onmax($mx).save(kk)"),
    ];
    for (written, id, rest) in cases {
        let command = format!("hist:keys=kk:mx=vv:{written}");
        let error = parse_trigger(&command).unwrap_err();
        assert_eq!((error.id, &command[error.position..]), (id, rest), "{written}: {error}");
    }
}

#[test]
fn handlers_and_saved_fields_are_among_sixteen_variables() {
    let saving = |number: usize| {
        let fields = vec!["vv"; number].join(",");
        parse_trigger(&format!("hist:keys=kk:mx=vv:onmax($mx).save({fields})"))
    };
    assert!(saving(14).is_ok());
    assert_eq!(saving(15).unwrap_err().id, "VAR_CREATE_FIND_FAIL");
    let variables = |number: usize| {
        let all: Vec<String> = (0..number).map(|at| format!("v{at}=vv")).collect();
        parse_trigger(&format!("hist:keys=kk:{}:onmax($v0).snapshot()", all.join(",")))
    };
    assert!(variables(15).is_ok());
    assert_eq!(variables(16).unwrap_err().id, "ONX_VAR_CREATE_FAIL");
    let handlers = |number: usize| {
        parse_trigger(&format!("hist:keys=kk:mx=vv{}", ":onmax($mx).snapshot()".repeat(number)))
    };
    assert!(handlers(8).is_ok());
    assert_eq!(handlers(9).unwrap_err().id, "HIST_CREATE_FAIL");
}

fn refused(command: &str) -> TriggerError {
    let TriggerKind::Hist(hist) = added(&format!("hist:keys=fd:{command}")).kind else { panic!() };
    HistTable::new(&hist, &fields(LINE), true, &NoVariables).unwrap_err()
}

#[test]
fn handlers_are_of_their_histograms_variables_and_save_what_is_there() {
    let cases = [
        ("onmax($mx).snapshot()", "ONX_VAR_NOT_FOUND", Some("mx")),
        ("mx=len:onmax($other).save(len)", "ONX_VAR_NOT_FOUND", Some("other")),
        ("mx=len:onmax($mx).save(none)", "FIELD_NOT_FOUND", Some("none")),
        ("mx=len:onmax($mx).save($none)", "VAR_NOT_FOUND", Some("none")),
        ("mx=len:onmax($mx).save($mx)", "VAR_NOT_FOUND", Some("mx")),
        ("mx=len:onmax($mx).save(len.percent)", "BAD_FIELD_MODIFIER", Some("percent")),
        (
            "mx=len:onmax($mx).save(common_stacktrace)",
            "BAD_FIELD_MODIFIER",
            Some("common_stacktrace"),
        ),
    ];
    for (command, id, part) in cases {
        let error = refused(command);
        assert_eq!((error.code(), error.fault()), ("EINVAL", (id, part)), "{command}");
    }
}

#[test]
fn texts_are_saved_and_are_of_the_histograms_memory() {
    let command = "hist:keys=fd:mx=len:onmax($mx).save(comm,len)";
    let hits = [hit([1, 0, 0], 7, 0), hit([2, 5, 0], 8, 0), hit([2, 4, 0], 9, 0)];
    let tracked: Vec<Option<Arc<Tracked>>> =
        counted(command, &hits).entries.into_iter().map(|entry| entry.tracked).collect();
    let entry = |value: u64, text: &str| {
        let saved = vec![SavedValue::Text(text.to_owned()), SavedValue::Number(value)];
        Some(Arc::new(Tracked { values: vec![value], saved }))
    };
    assert_eq!(tracked, [entry(0, ""), entry(5, "sh")]);
    let bytes = |command: &str| {
        let TriggerKind::Hist(hist) = added(command).kind else { panic!() };
        HistTable::new(&hist, &fields(LINE), true, &NoVariables).unwrap().most_bytes()
    };
    let without = bytes("hist:keys=fd:mx=len");
    assert!(bytes(command) >= without + 2048 * (3 * 16 + 2 * size_of::<SavedValue>()));
}

#[test]
fn the_hit_of_a_snapshot_is_in_it() {
    let all = triggers(&["snapshot:1", "hist:keys=fd:mx=fd:onchange($mx).snapshot()", "traceoff"]);
    let outcome = |fd: u64, is_shown: bool| {
        let mut steps = Vec::new();
        all.apply(
            hit([fd, 0, 0], 1, 0),
            &NoEvents,
            |_| is_shown,
            false,
            &mut steps,
            &mut Vec::new(),
        );
        let shown = |step: Step| match step {
            Step::Keep(_) | Step::Unmade { .. } => None,
            Step::Control(control) => Some(control),
        };
        steps.into_iter().map(shown).collect::<Vec<_>>()
    };
    let [snapshot, off] = [Some(Control::Snapshot), Some(Control::Off)];
    assert_eq!(outcome(3, true), [snapshot, None, snapshot, off]);
    assert_eq!(outcome(3, true), [None, off]);
    assert_eq!(outcome(4, false), [snapshot, off]);
    let table = all.list()[1].table().unwrap();
    let taken = || table.at_once("LINE", &fields(LINE), None).snapshot;
    let keys = |fd| [HistogramKey::Signed(fd)].into();
    assert_eq!(taken(), Some(SnapshotTaken { value: 4, keys: keys(4) }));
    table.clear();
    assert_eq!(taken(), None);
}

/// One synthetic event.
struct OneSynthetic(&'static str);

impl Variables for OneSynthetic {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        Err(VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, group: &str, event: &str) -> bool {
        (group, event) == ("g", "e")
    }

    fn synthetic(&self, name: &str) -> Option<Arc<SyntheticDefinition>> {
        let Ok(SyntheticCommand::Define(found)) = parse_synthetic(self.0) else { panic!() };
        (found.name == name).then(|| Arc::new(found))
    }

    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError> {
        Err(HandlerError::NoKeys(field.field.to_string()).into())
    }
}

#[test]
fn values_of_synthetic_events_have_the_number_and_the_types_of_its_fields() {
    let made = |definition, handler: &str| {
        let command = format!("hist:keys=fd:mx=len:{handler}");
        let TriggerKind::Hist(hist) = added(&command).kind else { panic!() };
        HistTable::new(&hist, &fields(LINE), true, &OneSynthetic(definition)).map(|table| {
            let mut made = Vec::new();
            table.add(&hit([u64::from(u32::MAX), 8, 0], 7, 250), &mut made);
            made.pop().map(|made| made.values).unwrap_or_default()
        })
    };
    let number = SavedValue::Number;
    let values = made("sy u64 aa; s32 bb; char cc[8]; long dd", "onmax($mx).sy($mx,fd,comm,len)");
    assert_eq!(values.unwrap_err().fault(), ("SYNTH_TYPE_MISMATCH", Some("len")));
    let values =
        made("sy u64 aa; s32 bb; char cc[]; int dd", "onmax($mx).sy($mx,fd,comm,common_pid)");
    let expected = [number(8), number(u64::MAX), SavedValue::Text("sh".to_owned()), number(7)];
    assert_eq!(values.unwrap(), expected);
    for (handler, id, part) in [
        ("onmatch(g.none).sy($mx)", "INVALID_SUBSYS_EVENT", "none"),
        ("onmatch(g.e).sz($mx)", "SYNTH_EVENT_NOT_FOUND", "sz"),
        ("onmatch(g.e).trace(sz,$mx)", "SYNTH_EVENT_NOT_FOUND", "sz"),
        ("onmatch(g.e).sy($my)", "PARAM_NOT_FOUND", "my"),
        ("onmatch(g.e).sy(g.e.$mx)", "PARAM_NOT_FOUND", "mx"),
        ("onmatch(g.e).sy(none)", "HIST_NOT_FOUND", "none"),
        ("onmatch(g.e).sy(g.f.fd)", "HIST_NOT_FOUND", "fd"),
        ("onmax($mx).sy(none)", "FIELD_NOT_FOUND", "none"),
        ("onmax($mx).sy(kprobes.e.none)", "HIST_NOT_FOUND", "none"),
        ("onmatch(g.e).sy(comm)", "SYNTH_TYPE_MISMATCH", "comm"),
        ("onmatch(g.e).sy($mx,$mx)", "SYNTH_TYPE_MISMATCH", "$mx"),
        ("onmatch(g.e).trace(sy)", "SYNTH_COUNT_MISMATCH", "sy"),
        ("onmatch(g.e).sy(common_stacktrace)", "SYNTH_TYPE_MISMATCH", "common_stacktrace"),
    ] {
        let error = made("sy u64 aa", handler).unwrap_err();
        assert_eq!((error.code(), error.fault()), ("EINVAL", (id, Some(part))), "{handler}");
    }
    let text = made("sy char aa[4]", "onmax($mx).sy(len)").unwrap_err();
    assert_eq!(text.fault().0, "SYNTH_TYPE_MISMATCH");
}
