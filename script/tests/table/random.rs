//! Actions over a kernel's probes with data of a hit at random: none makes the checker or the
//! evaluator panic, and each run stays within its limits.

use std::sync::Arc;

use exoprobe_script::{
    Collected, Datum, Diagnostics, Format, Hit, Limits, Options, OwnedDatum, Runtime, Script, check,
};
use proptest::prelude::*;

use crate::common::{Functions, Guest};

const TYPES: &str = "enum color { RED, GREEN = 5 };
union word { int whole; unsigned char bytes[4]; struct { short low:3; short high; }; };
struct node { struct node *next; char name[8]; unsigned char mac[6]; enum color color; union word words[3]; };
";

/// Statements over the memory and the values of a hit.
const STATEMENTS: &[&str] = &[
    "$p = (struct node *)arg0;",
    "$p = $p->next;",
    "$p++;",
    "$q = *$p;",
    "$n = $p->words[arg1].whole;",
    "$n = $p->words[$n % 3].bytes[1];",
    "$n = (uint64)$p->mac;",
    "$n = offsetof(struct node, color);",
    "$n = (int8)$p->words[2].low << arg1;",
    "$n = $n / arg1 % 7;",
    "@[$p->color, $p->name] = count();",
    "@n[$p->words[0].high] = stats($n);",
    "@h = hist($n, 2);",
    "@l = lhist($n, 0, 1000, 10);",
    "@t = tseries($n, 1us, 5);",
    "@x[arg1] = (str($p->name), $q);",
    "@u[usym(arg0), ksym(arg1)] = sum($n);",
    "@k[kstack(perf, 3)] = max($n);",
    "@k[kstack(raw, 3)] = max($n);",
    "@a[ustack] = avg($n);",
    "print($q);",
    "print(@x);",
    "print(@l, 2, 3);",
    "print(macaddr($p->mac));",
    "print(ntop($p->words[0].whole));",
    "print((enum color)arg1);",
    "print(strftime(\"%H:%M:%S.%f\", $n));",
    "print(buf(arg0, arg1));",
    "printf(\"%+5d|%#lx|%-8s|%c|%.3s\\n\", $n, $n, $p->name, $n, comm);",
    "printf(\"%r %rx %rh\\n\", buf(arg0, 6), $p->mac, $p->mac);",
    "errorf(\"%s %d\\n\", probe, jiffies);",
    "join(arg0);",
    "delete(@n, $n);",
    "delete(@x[arg1]);",
    "clear(@k);",
    "zero(@h);",
    "if (has_key(@n, $n)) { return; }",
    "if ($n > 5) { $p = (struct node *)arg1; } else { $n++; }",
    "for ($i : 0..arg1) { @i[$i] = $i; }",
    "for ($kv : @x) { print($kv.1.0); }",
    "while ($n < 20) { $n += 3; }",
    "unroll(3) { $p = $p->next; @c[$p->color] = count(); }",
    "override(arg1);",
    "exit(arg1);",
];

/// Probes; the first can have all statements.
const PROBES: &[&str] = &["kprobe:vfs_read", "kprobe:vfs_*", "kprobe:vfs_open+4"];

fn given() -> impl Strategy<Value = OwnedDatum> {
    prop_oneof![
        any::<u64>().prop_map(OwnedDatum::Int),
        (0u64..64).prop_map(OwnedDatum::Int),
        prop::collection::vec(any::<u8>(), 0..70).prop_map(OwnedDatum::Bytes),
        prop::collection::vec(any::<u64>(), 0..5).prop_map(OwnedDatum::Stack),
        Just(OwnedDatum::Fault),
    ]
}

/// A script of some statements, in an order at random.
fn scripts() -> impl Strategy<Value = String> {
    let statements = prop::collection::vec(prop::sample::select(STATEMENTS.to_vec()), 1..10);
    (prop::sample::select(PROBES.to_vec()), statements).prop_map(|(probe, all)| {
        let start = "$p = (struct node *)arg0; $q = *$p; $n = arg1;";
        format!("{TYPES}{probe} {{ {start} {} }}", all.join(" "))
    })
}

const LIMITS: Limits = Limits {
    map_entries: 16,
    map_bytes: 4096,
    text_bytes: 64,
    loop_rounds: 100,
    output_bytes: 4096,
    value_bytes: 512,
};

/// Runs all bodies of a script over hits. Returns the output, or the error of a wrong script.
fn output(text: &str, hits: &[Vec<OwnedDatum>], format: Format) -> Result<Collected, Diagnostics> {
    let script = Script::parse(text, &[])?;
    let options = Options { allow_unsafe: true, ..Options::default() };
    let program = Arc::new(check(&script, &Functions, &options)?);
    let mut runtime = Runtime::new(Arc::clone(&program), format, LIMITS);
    let mut out = Collected::default();
    for (time, hit) in (0..).step_by(700).zip(hits) {
        let values: Vec<Datum<'_>> = hit.iter().map(OwnedDatum::datum).collect();
        let hit = Hit { time, cpu: 0, values: &values };
        for (index, attachment) in program.attachments.iter().enumerate() {
            for body in &attachment.bodies {
                let before = out.bytes.len();
                let _ = runtime.run(index, *body, &hit, &Guest, &mut out);
                assert!(out.bytes.len() - before <= LIMITS.output_bytes);
            }
        }
    }
    runtime.finish(&Guest, &mut out);
    let maps: serde_json::Value = serde_json::from_str(&runtime.maps_json(&Guest)).unwrap();
    assert!(maps.is_object());
    Ok(out)
}

#[test]
fn each_statement_is_right_by_itself() {
    let needs = "@x[1] = (str($p->name), $q); @n[1] = stats(1); @k[kstack(raw, 3)] = max(1); @h = hist(1, 2); @l = lhist(1, 0, 1000, 10);";
    for statement in STATEMENTS {
        // Stacks of another mode are another type of key.
        let needs = if statement.contains("kstack(perf") { "" } else { needs };
        let start = "$p = (struct node *)arg0; $q = *$p; $n = arg1;";
        let text = format!("{TYPES}kprobe:vfs_read {{ {start} {needs} {statement} }}");
        if let Err(error) = output(&text, &[], Format::Text) {
            panic!("{error}");
        }
    }
}

proptest! {
    #[test]
    fn no_data_of_a_hit_makes_a_run_panic(
        text in scripts(),
        hits in prop::collection::vec(prop::collection::vec(given(), 0..12), 1..4),
    ) {
        let first = output(&text, &hits, Format::Text).ok().map(|out| out.bytes);
        let again = output(&text, &hits, Format::Text).ok().map(|out| out.bytes);
        prop_assert_eq!(first, again);
        let json = output(&text, &hits, Format::Json).map(|out| out.bytes).unwrap_or_default();
        for line in json.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line = String::from_utf8_lossy(line);
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{}", line);
        }
    }
}
