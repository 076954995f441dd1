//! Every example of every `--help` is one that the command line takes.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::Cli;

/// Words that end a command in a shell's line.
const OPERATORS: [&str; 6] = ["|", "||", "&&", ";", "&", "do"];
/// Words that may stand before a command.
const BEFORE: [&str; 4] = ["until", "while", "if", "sudo"];
const REDIRECTIONS: [&str; 4] = [">", ">>", "<", "2>"];

/// The lines of a help's blocks `Example:` and `Examples:`, those joined that a `\` continues.
fn example_lines(help: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (mut is_example, mut goes_on) = (false, false);
    for line in help.lines() {
        if matches!(line.trim_end(), "Example:" | "Examples:") {
            is_example = true;
            continue;
        }
        is_example &= line.starts_with("  ");
        if !is_example {
            continue;
        }
        let text = line.trim().trim_end_matches('\\');
        match lines.last_mut().filter(|_| goes_on) {
            Some(last) => last.push_str(text),
            None => lines.push(text.to_owned()),
        }
        goes_on = line.ends_with('\\');
    }
    lines
}

/// The commands `exoprobe ...` in a line of a shell, each as its words.
fn commands(line: &str) -> Vec<Vec<String>> {
    // A `;` that follows a word ends the command, too.
    let spaced = line.replace("; ", " ; ");
    let words = shlex::split(&spaced).unwrap_or_else(|| panic!("an open quotation: {line}"));
    let each = words.split(|word| OPERATORS.contains(&word.as_str())).map(|command| {
        let is_assignment = |word: &str| {
            word.split_once('=').is_some_and(|(name, _)| {
                name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
            })
        };
        let begin = |word: &&String| BEFORE.contains(&word.as_str()) || is_assignment(word);
        let command = command.iter().skip_while(begin);
        let is_redirection = |word: &&String| REDIRECTIONS.contains(&word.as_str());
        command.take_while(|word| !is_redirection(word)).cloned().collect()
    });
    each.filter(|words: &Vec<String>| words.first().is_some_and(|word| word == "exoprobe"))
        .collect()
}

/// Checks the examples of a command and of those below it; returns how many there were.
fn check(command: &clap::Command, path: &str) -> usize {
    let helps = [command.get_after_help(), command.get_after_long_help()];
    let helps: Vec<String> = helps.into_iter().flatten().map(ToString::to_string).collect();
    let mut count = 0;
    for line in helps.iter().flat_map(|help| example_lines(help)) {
        let commands = commands(&line);
        assert!(!commands.is_empty() || !line.contains("exoprobe "), "{path}: what is `{line}`?");
        count += commands.len();
        for words in commands {
            match Cli::try_parse_from(&words) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::DisplayHelp => {}
                Err(error) => panic!("an example of `{path} --help` is refused: {line}: {error}"),
            }
        }
    }
    assert!(count > 0 || command.has_subcommands(), "{path} has no example of `exoprobe`");
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    count + below.map(|below| check(below, &format!("{path} {}", below.get_name()))).sum::<usize>()
}

#[test]
fn every_example_is_taken() {
    let count = check(&Cli::command(), "exoprobe");
    assert!(count > 90, "only {count} examples were found");
}

#[test]
fn examples_are_read_as_a_shell_reads_them() {
    let help = "Example:\n  exoprobe a \\\n      --b 'c | d' | jq .x   # why\n  A=1 exoprobe e > f\n\nExamples:\n  \
        until exoprobe g; do sleep 1; done\n  cat h\nexoprobe is no example\n  exoprobe nor is this";
    let found: Vec<Vec<String>> =
        example_lines(help).iter().flat_map(|line| commands(line)).collect();
    assert_eq!(
        found,
        [&["exoprobe", "a", "--b", "c | d"][..], &["exoprobe", "e"], &["exoprobe", "g"]]
    );
}
