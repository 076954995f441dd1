//! Properties of the parser and the evaluator, over scripts made at random.

use std::sync::Arc;

use exoprobe_script::{
    Collected, Datum, Format, Hit, Limits, NoHost, NoKernel, Options, Runtime, Script, check,
};
use proptest::prelude::*;

/// Output of a run of `BEGIN { body }`; `None` if the script is wrong.
fn printed(body: &str, format: Format) -> Option<String> {
    let script = Script::parse(&format!("BEGIN {{ {body} }}"), &[]).ok()?;
    let program = Arc::new(check(&script, &NoKernel, &Options::default()).ok()?);
    let limits = Limits { loop_rounds: 1000, map_entries: 100, ..Limits::default() };
    let mut runtime = Runtime::new(Arc::clone(&program), format, limits);
    let mut out = Collected::default();
    let values = [Datum::Int(5); 4];
    for (index, attachment) in program.attachments.iter().enumerate() {
        for body in &attachment.bodies {
            let hit = Hit { time: 1, cpu: 0, values: &values };
            let _ = runtime.run(index, *body, &hit, &NoHost, &mut out);
        }
    }
    runtime.finish(&NoHost, &mut out);
    Some(String::from_utf8(out.bytes).unwrap())
}

/// The number that an expression prints.
fn number(expr: &str) -> i64 {
    let text = printed(&format!("print({expr});"), Format::Text).unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

/// Words of scripts.
const WORDS: &[&str] = &[
    "$a",
    "@",
    "@m",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ";",
    ",",
    "=",
    "+=",
    "++",
    "--",
    "+",
    "-",
    "*",
    "/",
    "%",
    "<<",
    "&&",
    "?",
    ":",
    "1",
    "0x7f",
    "1e6",
    "\"s\"",
    "'c'",
    "pid",
    "comm",
    "nsecs",
    "count()",
    "hist(",
    "lhist(",
    "sum(",
    "avg(",
    "print(",
    "printf(",
    "\"%d %s\"",
    "delete(",
    "clear(",
    "exit()",
    "if",
    "else",
    "while",
    "unroll",
    "for",
    "let",
    "break",
    "return",
    "(uint8)",
    "(struct s *)",
    "->x",
    ".x",
    ".0",
    "sizeof(",
    "str(",
    "buf(",
    "$1",
    "..",
    "kprobe:f",
    "BEGIN",
    "END",
    "interval:s:1",
    "struct s",
    "macro",
    "config",
    "#define A 1\n",
    "#ifdef A\n",
    "#else\n",
    "#endif\n",
    "enum e { A = 1, B }",
    "union u { int x; }",
    "(enum e)",
    "offsetof(",
    "let @m = hash(",
    "max_strlen",
    "nsecs(boot)",
    "kstack(perf",
    "strftime(",
    "errorf(",
    "A",
    "100ms",
];

/// Statements.
const STATEMENTS: &[&str] = &[
    "@c[pid % 3] = count();",
    "@h = hist($i);",
    "@l = lhist($i, 0, 50, 5);",
    "$i = $i + 1;",
    "@m[$i] = $i * 3;",
    "@s = stats($i);",
    "delete(@m[$i]);",
    "zero(@h);",
    "clear(@m);",
    "print(@m, 2);",
    "print((1, $i));",
    "while ($i < 10) { $i++; }",
    "@t = (1, \"x\");",
    "unroll(3) { @u++; }",
    "if ($i > 3) { $i = 0; } else { @e++; }",
    "@mi = min($i);",
    "for ($k : @m) { print($k.0); }",
    "for ($j : 0..$i) { @j[$j] = 1; }",
    "print(@h);",
    "@x[\"a\", $i] = \"v\";",
    "printf(\"%d %x %s\\n\", $i, $i, comm);",
    "@av = avg(-$i);",
];

/// Pieces of scripts, right and wrong ones.
fn pieces() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..30)
        .prop_map(|words| words.join(" "))
}

/// Statements that are right most of the time.
fn statements() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(STATEMENTS.to_vec()), 1..20)
        .prop_map(|all| format!("$i = 1; {}", all.join(" ")))
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_or_checker_panic(text in ".{0,200}") {
        if let Ok(script) = Script::parse(&text, &[]) {
            let _ = check(&script, &NoKernel, &Options::default());
        }
    }

    #[test]
    fn no_order_of_words_makes_the_parser_or_checker_panic(text in pieces()) {
        for text in [text.clone(), format!("BEGIN {{ {text} }}")] {
            match Script::parse(&text, &[]) {
                Ok(script) => drop(check(&script, &NoKernel, &Options::default())),
                Err(error) => prop_assert!(error.to_string().contains("error: ")),
            }
        }
    }

    #[test]
    fn scripts_run_to_their_end_and_print_the_same_again(body in statements()) {
        let first = printed(&body, Format::Text);
        prop_assert_eq!(&first, &printed(&body, Format::Text));
        for line in printed(&body, Format::Json).unwrap_or_default().lines() {
            prop_assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{}", line);
        }
    }

    #[test]
    fn arithmetic_is_that_of_64_bits(a: i64, b in any::<i64>()) {
        let expr = |op: &str| number(&format!("(int64)({a}) {op} (int64)({b})"));
        prop_assert_eq!(expr("+"), a.wrapping_add(b));
        prop_assert_eq!(expr("-"), a.wrapping_sub(b));
        prop_assert_eq!(expr("*"), a.wrapping_mul(b));
        prop_assert_eq!(expr("^"), a ^ b);
        prop_assert_eq!(expr("<"), i64::from(a < b));
        prop_assert_eq!(expr(">="), i64::from(a >= b));
    }

    #[test]
    fn sums_and_histograms_count_every_number(numbers in prop::collection::vec(0u32..100_000, 1..40)) {
        let body: String = numbers.iter().map(|n| format!("@s = sum({n}); @c = count(); @h = hist({n}); @l = lhist({n}, 0, 100000, 1000); ")).collect();
        let text = printed(&body, Format::Text).unwrap();
        let sum: u64 = numbers.iter().map(|n| u64::from(*n)).sum();
        let (count, sum) = (format!("@c: {}\n", numbers.len()), format!("@s: {sum}\n"));
        prop_assert!(text.contains(&count) && text.contains(&sum));
        let bars = text.lines().filter(|line| line.ends_with('|'));
        let counts = bars.map(|line| line[16..24].trim().parse::<usize>().unwrap());
        prop_assert_eq!(counts.sum::<usize>(), 2 * numbers.len());
    }
}
