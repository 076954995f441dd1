//! The same programs in Debian's bpftrace (0.17) and here: the same bytes, the same exit status.
//!
//! Needs Debian's package bpftrace and root: `scripts/setup.sh --bpftrace`.

mod generated;
mod programs;
mod run;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use exoprobe_script::Format;
use run::Ran;

/// Programs that are run together, since a start of bpftrace takes some 0.3 s.
const BATCH: usize = 6;

fn bpftrace(text: &str, params: &[String], format: Format) -> Ran {
    let mut command = Command::new("bpftrace");
    command.args(["-f", if format == Format::Text { "text" } else { "json" }, "--unsafe"]);
    command.args(["-e", text]).args(params);
    let ran = match command.output() {
        Ok(ran) => ran,
        Err(error) => panic!(
            "bpftrace: {error}: install Debian's package bpftrace: scripts/setup.sh --bpftrace"
        ),
    };
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    Ran { output, status: ran.status.code().unwrap_or(-1) }
}

/// JSON of bpftrace has two empty lines before the maps, which are no JSON: those are left out.
fn compared(ran: Ran, format: Format) -> Ran {
    match format {
        Format::Text => ran,
        Format::Json => {
            let lines = ran.output.lines().filter(|line| !line.is_empty());
            Ran { output: lines.map(|line| format!("{line}\n")).collect(), ..ran }
        }
    }
}

/// A program's statements with names of its own.
fn renamed(index: usize, statements: &str) -> String {
    let mut text = String::new();
    let mut in_text = false;
    let mut before = ' ';
    for char in statements.chars() {
        text.push(char);
        match char {
            '"' if before != '\\' => in_text = !in_text,
            '@' if !in_text => text.push_str(&format!("m{index:03}")),
            '$' if !in_text => text.push_str(&format!("v{index:03}")),
            _ => {}
        }
        before = char;
    }
    text
}

/// One script of several programs.
fn batch(start: usize, statements: &[String]) -> String {
    let mut text = String::from("BEGIN {\n");
    for (index, statements) in statements.iter().enumerate() {
        let index = start + index;
        text += &format!("printf(\"== {index}\\n\");\n{}\n", renamed(index, statements));
    }
    text + "exit();\n}\n"
}

/// Compares one script. Returns how it differs.
fn compare(text: &str, params: &[String], format: Format) -> Option<String> {
    let theirs = compared(bpftrace(text, params, format), format);
    let ours = compared(run::run(text, params, format), format);
    if theirs == ours {
        return None;
    }
    let why = run::program(text, params).err().map(|error| error.to_string());
    Some(format!(
        "--- {text}\n--- bpftrace: {theirs:#?}\n--- ours: {ours:#?}\n{}",
        why.unwrap_or_default()
    ))
}

/// Compares all scripts, on as many threads as there are CPUs.
fn compare_all(scripts: &[(String, Vec<String>, Format)]) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut different = Vec::new();
        while let Some((text, params, format)) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
            different.extend(compare(text, params, *format));
        }
        different
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn programs_print_the_same_as_in_bpftrace() {
    let mut pieces: Vec<String> = programs::STATEMENTS.iter().map(|it| (*it).to_owned()).collect();
    pieces.extend(generated::generated());
    let chunks = pieces.chunks(BATCH).enumerate();
    let mut scripts: Vec<_> = chunks
        .map(|(index, chunk)| (batch(index * BATCH, chunk), Vec::new(), Format::Text))
        .collect();
    let json = programs::JSON.chunks(BATCH).map(|chunk| {
        let chunk: Vec<String> = chunk.iter().map(|it| (*it).to_owned()).collect();
        (batch(0, &chunk), Vec::new(), Format::Json)
    });
    scripts.extend(json);
    scripts.extend(programs::WHOLE.iter().map(|(text, params)| {
        let params = params.iter().map(|param| (*param).to_owned()).collect();
        ((*text).to_owned(), params, Format::Text)
    }));
    let compared = pieces.len() + programs::JSON.len() + programs::WHOLE.len();
    assert!(compared >= 300, "only {compared} programs are compared");
    let different = compare_all(&scripts);
    assert!(
        different.is_empty(),
        "{} of {} differ:\n{}",
        different.len(),
        scripts.len(),
        different.join("\n")
    );
}

#[test]
fn wrong_programs_fail_in_both() {
    let scripts: Vec<_> =
        programs::WRONG.iter().map(|text| ((*text).to_owned(), Vec::new(), Format::Text)).collect();
    let different = compare_all(&scripts);
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn where_newer_versions_differ_the_newer_counts() {
    for (text, reason, output) in programs::NEWER {
        let script = format!("BEGIN {{ {text} exit(); }}");
        let ours = run::run(&script, &[], Format::Text).output;
        let ours = ours.strip_prefix("Attaching 1 probe...\n").unwrap_or(&ours);
        assert_eq!(ours, *output, "{text}: {reason}");
        let theirs = bpftrace(&script, &[], Format::Text).output;
        let theirs = theirs.strip_prefix("Attaching 1 probe...\n").unwrap_or(&theirs);
        assert_ne!(theirs, *output, "{text}: bpftrace 0.17 prints this too: no difference");
    }
}
