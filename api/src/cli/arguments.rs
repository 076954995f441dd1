//! The command line, with the arguments of a file that it names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, Parser};

use crate::machine_file::MachineFile;

const RUN: &str = "run";
const CONFIG: &str = "--config";

/// Parses a command line, its first word the program's. Arguments of the file of `run --config` are
/// put in the place of that option, before those of the command line: of a pair the latter counts.
pub(super) fn parse<P: Parser>(mut args: Vec<OsString>) -> Result<P, clap::Error> {
    let mut command = P::command();
    if let Some(run) = position_of_run(&command, &args)
        && let Some(path) = take_config(&mut args, run + 1)
    {
        if take_config(&mut args, run + 1).is_some() {
            let text = format!("the argument '{CONFIG} <FILE>' cannot be used multiple times");
            return Err(P::command().error(ErrorKind::ArgumentConflict, text));
        }
        let file = MachineFile::load(&path);
        let file =
            file.map_err(|e| P::command().error(ErrorKind::ValueValidation, e.to_string()))?;
        let folder = std::path::absolute(&path)?;
        let folder = folder.parent().unwrap_or(Path::new("/"));
        args.splice(run + 1..run + 1, file.arguments(folder));
        command = command.mut_subcommand(RUN, |run| run.args_override_self(true));
    }
    let matches = command.try_get_matches_from_mut(args);
    P::from_arg_matches(&matches?).map_err(|error| error.format(&mut command))
}

/// The place of the word `run`, if that is the command: the first that is no option, nor the value
/// of one.
fn position_of_run(command: &Command, args: &[OsString]) -> Option<usize> {
    let takes_value = |word: &str| {
        let name = word.strip_prefix("--");
        let option = command.get_arguments().find(|option| name == option.get_long());
        option.is_some_and(|option| option.get_action().takes_values())
    };
    let mut words = args.iter().enumerate().skip(1);
    while let Some((at, word)) = words.next() {
        match word.to_str() {
            Some(word) if word.starts_with('-') => {
                if takes_value(word) {
                    words.next();
                }
            }
            word => return (word == Some(RUN)).then_some(at),
        }
    }
    None
}

/// Takes the option and its file out of the arguments from `start` on.
fn take_config(args: &mut Vec<OsString>, start: usize) -> Option<PathBuf> {
    let joined = |word: &OsString| {
        let path = word.to_str()?.strip_prefix(CONFIG)?.strip_prefix('=')?;
        Some(PathBuf::from(path))
    };
    let is_config = |word: &OsString| word == CONFIG || joined(word).is_some();
    let at = start + args[start..].iter().position(is_config)?;
    if let Some(path) = joined(&args[at]) {
        args.remove(at);
        return Some(path);
    }
    let path = args.get(at + 1).map(PathBuf::from)?;
    args.drain(at..at + 2);
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunArgs;

    #[derive(clap::Parser)]
    struct Program {
        #[arg(long, global = true)]
        url: Option<String>,
        #[command(subcommand)]
        command: Words,
    }

    #[derive(clap::Subcommand)]
    enum Words {
        Run(Box<RunArgs>),
        Ls,
    }

    fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
        let words = ["exoprobe"].iter().chain(words).map(OsString::from).collect();
        let program: Program = parse(words)?;
        match program.command {
            Words::Run(args) => Ok(*args),
            Words::Ls => panic!("ls, with {:?}", program.url),
        }
    }

    #[test]
    fn the_command_line_counts_before_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.toml");
        let text = "kernel = \"k\"\nmemory = 512\nvcpus = 2\nprobe = [\"p:a f\"]\n";
        std::fs::write(&path, text).unwrap();
        let path = path.to_str().unwrap();
        let args = run(&["run", "--config", path]).unwrap();
        assert_eq!((args.memory, args.vcpus, args.probes.len()), (512, 2, 1));
        assert_eq!(args.kernel.unwrap(), dir.path().join("k"));
        let joined = format!("--config={path}");
        let words = ["--url", "run", "run", "--memory", "64", &joined, "--probe", "p:b g"];
        let args = run(&words).unwrap();
        assert_eq!((args.memory, args.vcpus, args.probes.len()), (64, 2, 2));
        let twice = run(&["run", "--kernel", "k", "--memory", "1", "--memory", "2"]).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::ArgumentConflict, "without a file");
        let files = run(&["run", "--config", path, &joined]).unwrap_err();
        assert_eq!(files.kind(), ErrorKind::ArgumentConflict, "{files}");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_a_wrong_usage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.toml");
        for (text, reason) in [
            ("memory = 512", "--kernel <PATH>"),
            ("kernel = \"k\"\nevents = 0", "--events <N>"),
            ("kernel = \"k\"\nrestore = \"s\"\nmemory = 5", "cannot be used with"),
            ("kernal = \"k\"", "unknown field `kernal`"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = run(&["run", "--config", path.to_str().unwrap()]).unwrap_err();
            assert!(error.to_string().contains(reason), "{text}: {error}");
            assert!(error.use_stderr());
        }
        let error = run(&["run", "--config", "/nonexistent"]).unwrap_err();
        assert!(error.to_string().contains("/nonexistent: No such file"), "{error}");
    }
}
