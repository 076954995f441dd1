//! Runs bodies over hits.

mod call;
mod expr;
mod number;
mod statement;

use std::sync::Arc;

use crate::diagnostic::Span;
use crate::host::{Host, Output};
use crate::ir::MapInfo;
use crate::limits::{LimitError, Limits, limit};
use crate::maps::{MapBudget, MapBudgets, MapStore};
use crate::print::{Format, Printer};
use crate::program::{Body, Hit, Program};
use crate::value::Value;

pub(crate) use number::{arithmetic, bits, from_bytes, narrow};

/// A running script: its maps, and how it shows them.
#[derive(Debug)]
pub struct Runtime {
    program: Arc<Program>,
    maps: Vec<MapStore>,
    format: Format,
    limits: Limits,
    started: u64,
    /// Values of variables; kept so that a hit allocates none.
    variables: Vec<Value>,
}

/// Outcome of a run of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub flow: Flow,
    /// The result that `override()` wants the function to have.
    pub override_return: Option<u64>,
}

/// How a run of a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It ran.
    Ran,
    /// Its filter did not let it run.
    Filtered,
    /// It ran, and the script must end with this exit status.
    Exit(i32),
}

/// Next step after a statement.
enum Step {
    Next,
    Break,
    Continue,
    Return,
    Exit(i32),
}

/// One run of a body.
struct Run<'a> {
    program: &'a Program,
    body: &'a Body,
    attachment: usize,
    maps: &'a mut Vec<MapStore>,
    variables: &'a mut Vec<Value>,
    format: Format,
    limits: &'a Limits,
    started: u64,
    hit: &'a Hit<'a>,
    host: &'a dyn Host,
    out: &'a mut dyn Output,
    rounds: u64,
    written: usize,
    override_return: Option<u64>,
    /// Kept for keys, so that most hits allocate none.
    keys: Vec<Value>,
}

type Evaluated<T> = Result<T, LimitError>;

impl Runtime {
    /// Makes a runtime with empty maps.
    #[must_use]
    pub fn new(program: Arc<Program>, format: Format, limits: Limits) -> Self {
        Self::within(program, format, limits, MapBudget::of_scripts(usize::MAX))
    }

    /// Makes a runtime with empty maps, whose memory is of a budget of all scripts, too.
    #[must_use]
    pub fn within(
        program: Arc<Program>,
        format: Format,
        limits: Limits,
        all: Arc<MapBudget>,
    ) -> Self {
        let entries = |own: Option<usize>| {
            let script = program.map_entries.map(|entries| entries as usize);
            own.or(script).unwrap_or(limits.map_entries).min(limits.map_entries)
        };
        let budgets = MapBudgets::new(MapBudget::of_one(limits.map_bytes), all);
        let store = |info: &MapInfo| MapStore::new(info, entries(info.entries), budgets.clone());
        let maps = program.maps.iter().map(store).collect();
        Self { program, maps, format, limits, started: 0, variables: Vec::new() }
    }

    /// Notes the guest's time for `elapsed`, and writes the number of probes as bpftrace does.
    pub fn start(&mut self, time: u64, out: &mut dyn Output) {
        self.started = time;
        let probes = self.program.attachments.iter().map(|it| it.bodies.len()).sum();
        out.write(&crate::print::attached(self.format, probes));
    }

    /// Runs a body of an attachment over a hit. An index that does not exist runs nothing.
    ///
    /// # Errors
    ///
    /// The limit that it reached. What it did before stays.
    pub fn run(
        &mut self,
        attachment: usize,
        body: usize,
        hit: &Hit<'_>,
        host: &dyn Host,
        out: &mut dyn Output,
    ) -> Result<Outcome, LimitError> {
        let program = Arc::clone(&self.program);
        let Some(body) = program.bodies.get(body) else {
            return Ok(Outcome { flow: Flow::Ran, override_return: None });
        };
        self.variables.clear();
        self.variables.resize(body.variables, Value::Int(0));
        let mut run = Run {
            program: &program,
            body,
            attachment,
            maps: &mut self.maps,
            variables: &mut self.variables,
            format: self.format,
            limits: &self.limits,
            started: self.started,
            hit,
            host,
            out,
            rounds: 0,
            written: 0,
            override_return: None,
            keys: Vec::new(),
        };
        let flow = run.body()?;
        Ok(Outcome { flow, override_return: run.override_return })
    }

    /// Writes all maps, by name, as bpftrace does at its end.
    pub fn finish(&self, host: &dyn Host, out: &mut dyn Output) {
        if !self.program.print_maps {
            return;
        }
        if self.format == Format::Text {
            out.write(b"\n\n");
        }
        let mut order: Vec<usize> = (0..self.maps.len()).collect();
        order.sort_by_key(|id| &self.program.maps[*id].name);
        let printer = Printer { host, format: self.format };
        for id in order {
            out.write(&printer.map(&self.program.maps[id], &self.maps[id], 0, 0));
        }
    }

    /// All maps as JSON: an object with a member for each.
    #[must_use]
    pub fn maps_json(&self, host: &dyn Host) -> String {
        let printer = Printer { host, format: Format::Json };
        let mut text = String::from("{");
        for (info, map) in self.program.maps.iter().zip(&self.maps) {
            text.push_str(if text.len() > 1 { "," } else { "" });
            printer.push_map(info, map, &mut text);
        }
        text + "}"
    }

    /// The place in the script of a body, for messages about it.
    #[must_use]
    pub fn body_span(&self, body: usize) -> Option<Span> {
        self.program.bodies.get(body).map(|body| body.span)
    }
}

impl Run<'_> {
    fn body(&mut self) -> Evaluated<Flow> {
        let body = self.body;
        if let Some(filter) = &body.filter
            && !self.eval(filter)?.is_true()
        {
            return Ok(Flow::Filtered);
        }
        match self.statements(&body.statements)? {
            Step::Exit(code) => Ok(Flow::Exit(code)),
            _ => Ok(Flow::Ran),
        }
    }

    fn printer(&self) -> Printer<'_> {
        Printer { host: self.host, format: self.format }
    }

    /// Writes output, if the run may write so much.
    fn write(&mut self, bytes: &[u8]) -> Evaluated<()> {
        self.written = self.written.saturating_add(bytes.len());
        if self.written > self.limits.output_bytes {
            return Err(limit("output_bytes", self.limits.output_bytes));
        }
        self.out.write(bytes);
        Ok(())
    }

    /// Counts a round of a loop.
    fn round(&mut self) -> Evaluated<()> {
        self.rounds += 1;
        if self.rounds > self.limits.loop_rounds {
            return Err(LimitError { name: "loop_rounds", limit: self.limits.loop_rounds });
        }
        Ok(())
    }
}
