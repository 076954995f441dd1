//! Probes: their text becomes places.

use std::sync::Arc;

use super::checker::Checker;
use super::place::{Class, Place, Point, Points};
use super::types::function_names;
use crate::diagnostic::{Diagnostic, Span};
use crate::program::AttachmentKind as Kind;
use crate::syntax::ast::{Action, Name};
use crate::syntax::parse_number;

/// Most probes of a script.
const POINTS_MAX: usize = 20_000;

/// Names of the kinds of probes, the short ones with them.
const KINDS: [(&str, &str); 34] = [
    ("BEGIN", "BEGIN"),
    ("END", "END"),
    ("begin", "BEGIN"),
    ("end", "END"),
    ("interval", "interval"),
    ("i", "interval"),
    ("profile", "profile"),
    ("p", "profile"),
    ("kprobe", "kprobe"),
    ("k", "kprobe"),
    ("kretprobe", "kretprobe"),
    ("kr", "kretprobe"),
    ("fentry", "fentry"),
    ("kfunc", "fentry"),
    ("f", "fentry"),
    ("fexit", "fexit"),
    ("kretfunc", "fexit"),
    ("fr", "fexit"),
    ("tracepoint", "tracepoint"),
    ("t", "tracepoint"),
    ("rawtracepoint", "rawtracepoint"),
    ("rt", "rawtracepoint"),
    ("uprobe", "uprobe"),
    ("u", "uprobe"),
    ("uretprobe", "uretprobe"),
    ("ur", "uretprobe"),
    ("watchpoint", "watchpoint"),
    ("w", "watchpoint"),
    ("asyncwatchpoint", "asyncwatchpoint"),
    ("usdt", "usdt"),
    ("hardware", "hardware"),
    ("software", "software"),
    ("iter", "iter"),
    ("self", "self"),
];

/// Why there is no probe.
enum NoPoint {
    /// Its text is wrong; the error was reported.
    Reported,
    /// The kernel has no such function.
    Missing(Diagnostic),
}

type Found = Result<Vec<Point>, NoPoint>;

impl Checker<'_> {
    /// The probes of an action; `None` if one is wrong.
    pub(super) fn points(&mut self, action: &Action) -> Option<Points> {
        if self.points > POINTS_MAX {
            return None;
        }
        let (mut points, mut missing) = (Vec::new(), Vec::new());
        let before = self.errors.len();
        for name in &action.points {
            match self.point(name) {
                Ok(mut found) => {
                    let is_of_pattern = name.text.contains(['*', '?', '[']);
                    found.iter_mut().for_each(|point| point.is_of_pattern = is_of_pattern);
                    points.extend(found);
                }
                Err(NoPoint::Missing(error)) => missing.push((name, error)),
                Err(NoPoint::Reported) => {}
            }
            if self.points + points.len() > POINTS_MAX {
                // Later actions add no probes, and no error of their own.
                self.points = POINTS_MAX + 1;
                let message = format!("limit `probes` of {POINTS_MAX} reached");
                self.errors.push(Diagnostic::new(name.span, message));
                return None;
            }
        }
        if points.is_empty() {
            self.errors.extend(missing.into_iter().map(|(_, error)| error));
        } else {
            // As in bpftrace: tools name functions of several kernels.
            let missing = missing.into_iter();
            self.missing
                .extend(missing.map(|(name, error)| format!("{}: {}", name.text, error.message)));
        }
        self.points += points.len();
        (self.errors.len() == before).then_some(Points { points })
    }

    fn point(&mut self, name: &Name) -> Found {
        let text = self.with_params(&name.text);
        let (kind, rest) = text.split_once(':').unwrap_or((&text, ""));
        let found = KINDS.iter().find(|(name, _)| *name == kind);
        let Some((_, kind)) = found else {
            let error = Diagnostic::new(name.span, format!("unknown kind of probe `{kind}`"));
            return self.wrong(error.near(kind, KINDS.iter().map(|(name, _)| *name)));
        };
        match *kind {
            "BEGIN" => Ok(vec![Self::timed(Kind::Begin, "BEGIN")]),
            "END" => Ok(vec![Self::timed(Kind::End, "END")]),
            "interval" | "profile" => self.clocked(kind, rest, name.span),
            "kprobe" | "kretprobe" => self.kprobes(kind, rest, name.span),
            "fentry" | "fexit" => self.by_btf(kind, rest, name.span),
            "tracepoint" | "rawtracepoint" => self.tracepoints(kind, rest, name.span),
            "uprobe" | "uretprobe" => {
                self.not_served(name.span, kind, "probes of processes are not served yet")
            }
            "watchpoint" | "asyncwatchpoint" => {
                self.not_served(name.span, kind, "watchpoints are not served yet")
            }
            _ => self.not_served(name.span, kind, "this kind of probe is not there"),
        }
    }

    fn not_served<T>(&mut self, span: Span, kind: &str, reason: &str) -> Result<T, NoPoint> {
        let help = "served are kprobe, kretprobe, fentry, fexit, tracepoint:syscalls, interval, \
                    profile, BEGIN and END";
        self.wrong(Diagnostic::new(span, format!("`{kind}`: {reason}")).help(help))
    }

    fn wrong<T>(&mut self, error: Diagnostic) -> Result<T, NoPoint> {
        self.errors.push(error);
        Err(NoPoint::Reported)
    }

    /// A probe's text with the values of `$1` and on.
    fn with_params(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut all = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let len = part.bytes().take_while(u8::is_ascii_digit).count();
            let number: usize = part[..len].parse().unwrap_or(0);
            let value = number.checked_sub(1).and_then(|index| self.script.params.get(index));
            match (value, number) {
                (Some(value), _) => all.push_str(value),
                (None, 0) => all.push('$'),
                (None, _) => {}
            }
            all.push_str(&part[len..]);
        }
        all
    }

    fn timed(kind: Kind, name: &str) -> Point {
        Point::new(kind, name.into(), Place::of(Class::Timed))
    }

    /// `interval:s:1`, `profile:hz:99`, `interval:1s`
    fn clocked(&mut self, kind: &str, rest: &str, span: Span) -> Found {
        let nanoseconds = match rest.split_once(':') {
            Some((unit, count)) => period(unit, count),
            // Newer: a duration.
            None if rest.ends_with(|char: char| char.is_ascii_digit()) => None,
            None => parse_number(rest).map(|(nanoseconds, _)| nanoseconds),
        };
        let Some(nanoseconds) = nanoseconds.filter(|nanoseconds| *nanoseconds > 0) else {
            let error = Diagnostic::new(span, format!("`{kind}` has no period: `{rest}`"));
            return self
                .wrong(error.help(format!(
                    "write {kind}:s:1, {kind}:ms:50, {kind}:us:900 or {kind}:hz:99"
                )));
        };
        let name: Arc<str> = format!("{kind}:{rest}").into();
        let (kind, class) = match kind {
            "interval" => (Kind::Interval { nanoseconds }, Class::Timed),
            _ => (Kind::Profile { nanoseconds }, Class::Profile),
        };
        Ok(vec![Point::new(kind, name, Place::of(class))])
    }

    fn kprobes(&mut self, kind: &str, rest: &str, span: Span) -> Found {
        let (module, rest) = match rest.split_once(':') {
            Some((module, rest)) => (Some(Arc::<str>::from(module)), rest),
            None => (None, rest),
        };
        let (pattern, offset) = match rest.split_once('+') {
            Some((pattern, offset)) => (pattern, parse_number(offset).map(|(offset, _)| offset)),
            None => (rest, Some(0)),
        };
        let Some(offset) = offset else {
            return self.wrong(Diagnostic::new(span, format!("not an offset: `{rest}`")));
        };
        if kind == "kretprobe" && offset != 0 {
            return self.wrong(Diagnostic::new(span, "a return has no offset"));
        }
        let names = self.functions(kind, module.as_deref(), pattern, span)?;
        let class = match (kind, offset) {
            ("kprobe", 0) => Class::Kprobe,
            ("kprobe", _) => Class::KprobeWithin,
            _ => Class::Kretprobe,
        };
        let point = |symbol: Arc<str>| {
            let module = module.clone();
            let shown = if offset == 0 { String::new() } else { format!("+{offset}") };
            let of = module.as_ref().map(|module| format!("{module}:")).unwrap_or_default();
            let name = format!("{kind}:{of}{symbol}{shown}").into();
            let kind = match class {
                Class::Kretprobe => Kind::Kretprobe { module, symbol },
                _ => Kind::Kprobe { module, symbol, offset },
            };
            Point::new(kind, name, Place::of(class))
        };
        Ok(names.into_iter().map(point).collect())
    }

    /// The functions that a pattern means: at least one.
    fn functions(
        &mut self,
        kind: &str,
        module: Option<&str>,
        pattern: &str,
        span: Span,
    ) -> Result<Vec<Arc<str>>, NoPoint> {
        if pattern.is_empty() {
            let error = Diagnostic::new(span, format!("`{kind}` names no function"));
            return self.wrong(error.help(format!("write {kind}:vfs_read")));
        }
        let names = self.kernel.functions(module, pattern);
        if !names.is_empty() {
            return Ok(names);
        }
        let of = module.map(|module| format!(" of {module}")).unwrap_or_default();
        let all = function_names(self.kernel);
        let error = Diagnostic::new(span, format!("no function{of} matches `{pattern}`"));
        Err(NoPoint::Missing(error.near(pattern, all.iter().map(|name| &**name))))
    }

    /// `fentry` and `fexit`: with what types say about the function.
    fn by_btf(&mut self, kind: &str, rest: &str, span: Span) -> Found {
        let (module, pattern) = match rest.split_once(':') {
            Some((module, rest)) => (Some(module), rest),
            None => (None, rest),
        };
        let names = self.functions(kind, module, pattern, span)?;
        let is_exact = names.len() == 1 && *names[0] == *pattern;
        let mut points = Vec::new();
        for symbol in names {
            let Some(prototype) = self.kernel.prototype(&symbol) else {
                if is_exact {
                    let message = format!("the kernel's types do not describe `{symbol}`");
                    return self.wrong(Diagnostic::new(span, message).help("use kprobe instead"));
                }
                continue;
            };
            let name = format!("{kind}:vmlinux:{symbol}").into();
            let class = if kind == "fentry" { Class::Fentry } else { Class::Fexit };
            let mut place = Place::of(class);
            place.arguments = Some(prototype.parameters.into());
            place.result = Some(prototype.result);
            let kind = match class {
                Class::Fentry => Kind::Fentry { symbol },
                _ => Kind::Fexit { symbol },
            };
            points.push(Point::new(kind, name, place));
        }
        Ok(points)
    }

    fn tracepoints(&mut self, kind: &str, rest: &str, span: Span) -> Found {
        let (group, event) = match (kind, rest.split_once(':')) {
            ("tracepoint", Some(parts)) => parts,
            // Newer: rawtracepoint:MODULE:EVENT.
            ("rawtracepoint", Some((_, event))) => ("raw_syscalls", event),
            ("rawtracepoint", None) => ("raw_syscalls", rest),
            _ => {
                let error = Diagnostic::new(span, "a tracepoint has a group and a name");
                return self.wrong(error.help("write tracepoint:syscalls:sys_enter_openat"));
            }
        };
        match (group, event) {
            ("raw_syscalls", "sys_enter" | "sys_exit") => {
                let enter = event == "sys_enter";
                let name = format!("{kind}:{rest}").into();
                let (kind, class) = match enter {
                    true => (Kind::SyscallEnter { name: None }, Class::AllSyscallsEnter),
                    false => (Kind::SyscallExit { name: None }, Class::AllSyscallsExit),
                };
                Ok(vec![Point::new(kind, name, Place::of(class))])
            }
            ("syscalls", event) => self.syscalls(event, span),
            _ => {
                let message = format!("`{kind}:{rest}`: this tracepoint is not there");
                let help = "served are those of system calls: syscalls:sys_enter_*, \
                            syscalls:sys_exit_*, raw_syscalls:sys_enter and raw_syscalls:sys_exit";
                self.wrong(Diagnostic::new(span, message).help(help))
            }
        }
    }

    fn syscalls(&mut self, event: &str, span: Span) -> Found {
        let all = self.kernel.syscalls();
        let names = |prefix: &'static str| {
            let matches = move |call: &&Arc<str>| {
                let name = format!("{prefix}{call}");
                exoprobe_introspect::glob_matches(event.as_bytes(), name.as_bytes())
            };
            all.iter().filter(matches)
        };
        let mut points = Vec::new();
        for call in names("sys_enter_") {
            let mut place = Place::of(Class::SyscallEnter);
            place.arguments = self.kernel.syscall(call).map(Into::into);
            let name = format!("tracepoint:syscalls:sys_enter_{call}").into();
            let kind = Kind::SyscallEnter { name: Some(Arc::clone(call)) };
            points.push(Point::new(kind, name, place));
        }
        for call in names("sys_exit_") {
            let name = format!("tracepoint:syscalls:sys_exit_{call}").into();
            let kind = Kind::SyscallExit { name: Some(Arc::clone(call)) };
            points.push(Point::new(kind, name, Place::of(Class::SyscallExit)));
        }
        if points.is_empty() {
            let known: Vec<String> = all
                .iter()
                .flat_map(|call| [format!("sys_enter_{call}"), format!("sys_exit_{call}")])
                .collect();
            let error = Diagnostic::new(span, format!("no system call matches `{event}`"));
            return Err(NoPoint::Missing(error.near(event, known.iter().map(String::as_str))));
        }
        Ok(points)
    }
}

/// Nanoseconds of a period.
fn period(unit: &str, count: &str) -> Option<u64> {
    let (count, _) = parse_number(count)?;
    match unit {
        "hz" => 1_000_000_000u64.checked_div(count),
        "s" => count.checked_mul(1_000_000_000),
        "ms" => count.checked_mul(1_000_000),
        "us" => count.checked_mul(1_000),
        _ => None,
    }
}
