//! Tests of variables and expressions.

use std::cell::RefCell;

use super::*;

#[test]
fn variables_are_listed_as_by_the_kernel() {
    let cases = [
        (
            "keys=pid:ts0=common_timestamp.usecs",
            "keys=pid:vals=hitcount:ts0=common_timestamp.usecs|:clock=global",
        ),
        ("x=i:keys=a:z=u:vals=i", "keys=a:vals=hitcount,i:x=i,z=u|"),
        ("keys=a:x=0x10,y=010", "keys=a:vals=hitcount:x=16,y=8|"),
        ("keys=a:x=-(i+u),y=-(1)-u", "keys=a:vals=hitcount:x=-(i+u),y=-(1)-u|"),
        (
            "keys=a:x=1+2*3,y=2-3,z=1+2+i,w=i+1+2",
            "keys=a:vals=hitcount:x=7,y=18446744073709551615,z=3+i,w=i+1+2|",
        ),
        ("keys=a:x=a*i-u/c", "keys=a:vals=hitcount:x=a*i-u/c|"),
        (
            "keys=a:x=i.hex+u,y=common_pid.execname",
            "keys=a:vals=hitcount:x=i.hex+u,y=common_pid.execname|",
        ),
        // A variable of the same histogram that is a field stands for the field.
        ("keys=a:z=$x+1,x=i,y=$x:vals=$x", "keys=a:vals=hitcount,i:z=i+1,x=i,y=i|"),
        ("keys=$x:x=i.hex", "keys=i.hex:vals=hitcount:x=i.hex|"),
        ("keys=a:vals=$lat,kprobes.e.$lat", "keys=a:vals=hitcount,$lat,kprobes.e.$lat|"),
        ("keys=a:x=kprobes.e.i", "keys=a:vals=hitcount:x=i|"),
        ("keys=a+i,1:vals=v-$ts0", "keys=a+i,1:vals=hitcount,v-$ts0|"),
        (
            "keys=a:lat=common_timestamp-$ts0",
            "keys=a:vals=hitcount:lat=common_timestamp-$ts0|:clock=global",
        ),
        ("keys=a:keysx=i,=u,a-b=c,$x=d", "keys=a:vals=hitcount:keysx=i,=u,a-b=c,$x=d|"),
    ];
    for (written, listed) in cases {
        let listed = format!("hist:{}", listed.replace('|', ":sort=hitcount:size=2048"));
        assert_eq!(added(&format!("hist:{written}")).to_string(), listed, "{written}");
        assert_eq!(added(&listed).to_string(), listed, "{written}");
    }
    let sorted = added("hist:keys=a:vals=$x,i+u:sort=x.descending,i+u").to_string();
    assert!(sorted.contains(":sort=$x.descending,i+u:"), "{sorted}");
    assert_eq!(added(&sorted).to_string(), sorted);
}

#[test]
fn faults_of_variables_have_their_place() {
    let cases = [
        ("x=", "EMPTY_ASSIGNMENT", "x="),
        ("x=i,y", "MALFORMED_ASSIGNMENT", "y"),
        ("x=i,x=u", "DUPLICATE_VAR", "x=i,x=u"),
        ("x=i:x=u", "DUPLICATE_VAR", "x=i:x=u"),
        ("x=1x", "EXPECT_NUMBER", "1x"),
        ("x=99999999999999999999", "EXPECT_NUMBER", "99999999999999999999"),
        ("x=-(i)+u", "UNARY_MINUS_SUBEXPR", "i)+u"),
        ("x=p+i+u+c+b", "TOO_MANY_SUBEXPR", "p+i+u+c+b"),
        ("x=p+i-u*c/b", "TOO_MANY_SUBEXPR", "u*c/b"),
        ("x=(i)", "FIELD_NOT_FOUND", "(i)"),
        ("x=u-(i)", "FIELD_NOT_FOUND", "(i)"),
        ("x=i=u", "FIELD_NOT_FOUND", "i=u"),
        ("x=$", "FIELD_NOT_FOUND", "$"),
        ("x=i.zz", "BAD_FIELD_MODIFIER", "zz"),
        // The kernel has no message for these.
        ("x=-1", "HIST_CREATE_FAIL", "1"),
        ("x=-(i", "HIST_CREATE_FAIL", "(i"),
        ("x=i+", "HIST_CREATE_FAIL", ""),
        ("x=*i", "HIST_CREATE_FAIL", "*i"),
        ("x=u+-(i)", "HIST_CREATE_FAIL", "-(i)"),
    ];
    for (written, id, rest) in cases {
        let command = format!("hist:keys=k:{written}");
        let error = parse_trigger(&command).unwrap_err();
        let at = command.len() - rest.len();
        let found = (error.id, command.get(error.position..).unwrap_or_default());
        // What was cut off after the fault does not count.
        assert!(
            found.0 == id && (error.position == at || found.1.starts_with(rest)),
            "{written}: {error:?}"
        );
    }
    let many = |number: usize| {
        let all: Vec<String> = (0..number).map(|n| format!("v{n}={n}")).collect();
        parse_trigger(&format!(
            "hist:keys=k:{}",
            all.join(if number.is_multiple_of(2) { "," } else { ":" })
        ))
    };
    assert!(many(16).is_ok());
    assert_eq!(many(17).unwrap_err().id, "TOO_MANY_VARS");
    assert_eq!(many(18).unwrap_err().id, "TOO_MANY_VARS");
}

/// Histograms, each of an event named `e0`, `e1`, ..., of which later ones refer to earlier ones.
#[derive(Default)]
struct Histograms(RefCell<Vec<HistTable>>);

impl Variables for Histograms {
    fn find(&self, name: &VariableName) -> Result<FoundVariable, VariableError> {
        let tables = self.0.borrow();
        let found = tables.iter().rev().find_map(|table| table.variable(&name.name));
        found.ok_or_else(|| VariableError::Unknown(name.clone()))
    }

    fn is_event(&self, _: &str, _: &str) -> bool {
        false
    }

    fn synthetic(&self, _: &str) -> Option<Arc<SyntheticDefinition>> {
        None
    }

    fn field_of_other(&self, field: &OtherField<'_>) -> Result<FoundVariable, TriggerError> {
        Ok(self.find(&field.variable())?)
    }
}

impl Histograms {
    fn add(&self, command: &str) -> Result<(), TriggerError> {
        let TriggerKind::Hist(hist) = added(&format!("hist:{command}")).kind else { panic!() };
        let table = HistTable::new(&hist, &fields(LINE), true, self)?;
        self.0.borrow_mut().push(table);
        Ok(())
    }

    fn new(commands: &[&str]) -> Self {
        let new = Self::default();
        commands.iter().for_each(|command| new.add(command).unwrap());
        new
    }

    fn hit(&self, index: usize, [fd, len, at]: [u64; 3]) {
        assert!(!self.0.borrow()[index].add(&hit([fd, len, at], 7, 250), &mut Vec::new()));
    }

    /// Hits and sums of the only entry of a histogram, if it has one.
    fn only(&self, index: usize) -> Option<(u64, Vec<u64>)> {
        let tables = self.0.borrow();
        let table = tables[index].at_once("LINE", &fields(LINE), None);
        assert!(table.entries.len() <= 1);
        let sums = |entry: &CountedEntry| {
            entry
                .sums
                .iter()
                .map(|sum| match sum {
                    HistogramNumber::Unsigned(number) => *number,
                    HistogramNumber::Signed(number) => number.cast_unsigned(),
                })
                .collect()
        };
        table.entries.first().map(|entry| (entry.hits, sums(entry)))
    }
}

#[test]
fn a_variable_is_read_by_equal_keys_and_by_operations_once() {
    let read = |second: &str| {
        let all = Histograms::new(&["keys=fd:x=len", second]);
        all.hit(1, [1, 30, 0]);
        all.hit(0, [1, 5, 0]);
        all.hit(0, [2, 9, 0]);
        all.hit(1, [1, 30, 0]);
        all.hit(1, [1, 31, 0]);
        all.hit(1, [3, 31, 0]);
        all.only(1)
    };
    // Hits and sums of Linux 6.12's tracer.
    assert_eq!(read("keys=fd:vals=$x"), Some((2, vec![10])));
    assert_eq!(read("keys=fd:y=$x"), Some((2, vec![])));
    assert_eq!(read("keys=fd:vals=-($x)"), Some((2, vec![(-10_i64).cast_unsigned()])));
    assert_eq!(read("keys=fd:vals=len-$x"), Some((1, vec![25])));
    assert_eq!(read("keys=fd:y=len-$x"), Some((1, vec![])));
    assert_eq!(read("keys=fd:vals=$x+$x"), Some((1, vec![10])));
    assert_eq!(read("keys=fd:vals=$x,len-$x"), Some((1, vec![5, 25])));
    assert_eq!(read("keys=fd:vals=len-$x:y=$x"), Some((1, vec![25])));
    assert_eq!(read("keys=fd.hex:vals=$x"), Some((2, vec![10])));
    assert_eq!(read("keys=len,fd:vals=$x"), None);
}

#[test]
fn variables_that_are_read_before_one_that_is_not_set_are_unset() {
    let all = Histograms::new(&["keys=fd:a=len", "keys=fd:b=len", "keys=fd:y=$a+$b"]);
    for (index, len) in [(0, 1), (2, 30), (1, 6), (2, 31), (0, 1), (2, 32), (2, 33)] {
        all.hit(index, [1, len, 0]);
    }
    assert_eq!(all.only(2), Some((1, vec![])));
}

#[test]
fn keys_are_compared_as_the_kernel_has_them() {
    let read = |first: &str, second: &str, [one, other]: [[u64; 3]; 2]| {
        let all =
            Histograms::new(&[&format!("keys={first}:x=7"), &format!("keys={second}:vals=$x")]);
        all.hit(0, one);
        all.hit(1, other);
        all.only(1).is_some()
    };
    let negative = u64::from(u32::MAX);
    assert!(read("fd", "len", [[3, 0, 0], [0, 3, 0]]));
    assert!(read("fd", "len", [[negative, 0, 0], [0, u64::MAX, 0]]), "the sign is extended");
    assert!(!read("fd,at", "len,at", [[negative, 0, 1], [0, u64::MAX, 1]]), "of several it is not");
    assert!(read("fd,at", "len,at", [[negative, 0, 1], [0, negative, 1]]));
    assert!(read("common_pid.execname", "len", [[0; 3], [0, 7, 0]]));
    assert!(read("fd.log2", "len", [[7, 0, 0], [0, 3, 0]]));
    assert!(read("len+1", "fd", [[0, 2, 0], [3, 0, 0]]));
    assert!(read("comm,common_stacktrace", "comm,common_stacktrace", [[0; 3]; 2]));
    assert!(!read("comm", "fd", [[0; 3]; 2]));
    assert!(read("fd", "fd,at", [[3, 0, 1], [3, 0, 2]]), "the first ones are enough");
    assert!(!read("fd", "fd,at", [[negative, 0, 1], [negative, 0, 1]]));
    assert!(!read("fd,at", "fd", [[3, 0, 0], [3, 0, 0]]));
}

#[test]
fn expressions_are_of_64_bits_without_a_sign() {
    let cases = [
        ("len+at", [0, 7, 3], 10),
        ("len-at", [0, 3, 7], u64::MAX - 3),
        ("len*at", [0, 1 << 40, 1 << 30], 0),
        ("len/at", [0, 100, 7], 14),
        ("len/at", [0, 100, 0], u64::MAX),
        ("len/7", [0, 100, 0], 14),
        ("len-at-1", [0, 7, 3], 3),
        ("len-at*2", [0, 7, 3], 1),
        ("len/at*2", [0, 7, 3], 4),
        ("-(fd)", [u64::from(u32::MAX), 0, 0], 1),
        ("fd+1", [u64::from(u32::MAX), 0, 0], 0),
        ("len.log2+1", [0, 9, 0], 5),
        ("len.buckets=5+1", [0, 9, 0], 6),
        ("hitcount+1", [0; 3], 2),
        ("100", [0; 3], 100),
        ("common_latency+common_timestamp", [0; 3], 1_250_000_000),
        ("common_timestamp.usecs-common_latency.usecs", [0; 3], 750_000),
    ];
    for (value, args, expected) in cases {
        let all =
            Histograms::new(&[&format!("keys=comm:vals={value}:x={value}"), "keys=comm:vals=$x"]);
        all.hit(0, args);
        all.hit(1, args);
        assert_eq!(all.only(0), Some((1, vec![expected])), "{value}");
        assert_eq!(all.only(1), Some((1, vec![expected])), "{value}");
    }
}

#[test]
fn variables_of_times_are_in_their_unit() {
    let read = |second: &str| {
        let first =
            "keys=comm:us=common_timestamp.usecs,ns=common_timestamp,took=common_latency.usecs";
        let all = Histograms::new(&[first, second]);
        all.hit(0, [0; 3]);
        all.hit(1, [0; 3]);
        all.only(1)
    };
    // The hit's time is 1 s, its call took 250 ms.
    assert_eq!(read("keys=comm:vals=$us,$ns"), Some((1, vec![1_000_000, 1_000_000_000])));
    assert_eq!(read("keys=comm:vals=$took"), Some((1, vec![250_000])));
    assert_eq!(read("keys=comm:vals=common_timestamp.usecs-$us"), Some((1, vec![0])));
    assert_eq!(read("keys=comm:vals=common_timestamp-$ns"), Some((1, vec![0])));
}

#[test]
fn entries_are_sorted_by_hits_also_where_a_variable_has_that_name() {
    let all = Histograms::new(&["keys=fd:hitcount=len", "keys=fd:vals=$hitcount"]);
    for (fd, len) in [(1, 9), (2, 1)] {
        all.hit(0, [fd, len, 0]);
    }
    for fd in [1, 2, 2] {
        all.hit(1, [fd, 0, 0]);
    }
    let tables = all.0.take();
    let shown = tables[1].at_once("LINE", &fields(LINE), None);
    assert_eq!(shown.entries.iter().map(|entry| entry.hits).collect::<Vec<_>>(), [1, 2]);
}

/// No command has it.
#[test]
fn buckets_of_nothing_are_refused() {
    let TriggerKind::Hist(mut hist) = added("hist:keys=fd.buckets=5").kind else { panic!() };
    let new = |hist: &Hist| HistTable::new(hist, &fields(LINE), true, &Histograms::default());
    assert!(new(&hist).is_ok());
    let Expression::Field(field) = &mut hist.keys[0] else { panic!() };
    field.modifier = Modifier::Buckets(0);
    assert_eq!(new(&hist).unwrap_err().fault().0, "BAD_FIELD_MODIFIER");
}

#[test]
fn what_is_no_number_or_not_there_is_refused() {
    let all = Histograms::new(&[
        "keys=fd:x=len,zero=0,ts=common_timestamp.usecs,d=common_timestamp.usecs-common_latency.usecs",
    ]);
    let refused = |command: &str| {
        let error = all.add(&format!("keys=fd:{command}")).unwrap_err();
        let (id, part) = error.fault();
        (error.code(), id, part.map(str::to_owned))
    };
    let cases = [
        ("y=$none", "VAR_NOT_FOUND", Some("none")),
        ("y=len+1:vals=$y", "VAR_NOT_FOUND", Some("y")),
        ("y=$y", "VAR_NOT_FOUND", Some("y")),
        ("keys=$x", "INVALID_REF_KEY", Some("$x")),
        ("keys=fd,$x+1", "INVALID_REF_KEY", Some("$x+1")),
        ("y=fd+comm", "INVALID_STR_OPERAND", Some("comm")),
        ("y=none+1", "FIELD_NOT_FOUND", Some("none")),
        ("y=len.log2", "BAD_FIELD_MODIFIER", Some("len.log2")),
        ("y=len.percent", "BAD_FIELD_MODIFIER", Some("percent")),
        ("y=common_timestamp-$ts", "TIMESTAMP_MISMATCH", None),
        ("y=common_timestamp.usecs+1", "TIMESTAMP_MISMATCH", None),
        ("y=$d-len", "TIMESTAMP_MISMATCH", None),
    ];
    for (command, id, part) in cases {
        assert_eq!(refused(command), ("EINVAL", id, part.map(str::to_owned)), "{command}");
    }
    for (command, part) in [("y=fd/0", "0"), ("y=8/0", "0"), ("y=fd/$zero", "$zero")] {
        assert_eq!(refused(command), ("EDOM", "DIVISION_BY_ZERO", Some(part.to_owned())));
    }
    for command in ["y=common_timestamp.usecs-$ts", "vals=$ts", "z=-($d)-$ts", "w=$x/$x"] {
        all.add(&format!("keys=fd:{command}")).unwrap();
    }
}

#[test]
fn variables_go_with_the_entries_and_are_of_their_memory() {
    let all = Histograms::new(&["keys=fd:size=128:x=len", "keys=fd:vals=$x", "keys=fd:size=128"]);
    for fd in 0..200 {
        all.hit(0, [fd, fd, 0]);
    }
    for fd in 0..200 {
        all.hit(1, [fd, 0, 0]);
    }
    let tables = all.0.take();
    assert_eq!(tables[0].counted().variables.len(), 128);
    assert_eq!(tables[1].counted().hits, 128, "an entry without room has no variables");
    assert!(tables[0].most_bytes() >= 2 * tables[2].most_bytes());
    tables[0].clear();
    assert!(tables[0].counted().variables.is_empty());
    assert!(tables[2].counted().variables.is_empty());
    assert!(tables[1].refers_to(&tables[0]) && !tables[0].refers_to(&tables[1]));
    let limits = [&tables[0], &tables[2]].map(|table| table.variable("x").is_some());
    assert_eq!(limits, [true, false]);
}
