//! State of routes about the kernel's code: the engine, and source lines where a file has them.

use std::sync::Arc;

use exoprobe_guest::Gva;
use exoprobe_introspect::{LineError, LinesError, SourceLines, SymbolTable};
use exoprobe_probes::{Engine, ProbeError};

use super::problem::Problem;
use super::wire::{CodeLine, DataPlace, Place, Source, SourceLine};

#[derive(Clone)]
pub(crate) struct CodeApi {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lines: Option<Arc<SourceLines>>,
}

impl CodeApi {
    /// Source of the instruction at an address, where known.
    pub(super) fn source(&self, table: &SymbolTable, at: Gva) -> Result<Option<Source>, Problem> {
        let Some(lines) = &self.lines else { return Ok(None) };
        let location = lines.lookup(at, lines.slide(table)?)?;
        Ok(location.map(Source::from))
    }

    /// Where a source line's code begins, in each function that has it.
    pub(super) fn addresses(
        &self,
        table: &SymbolTable,
        line: &SourceLine,
    ) -> Result<Vec<Gva>, Problem> {
        let malformed =
            || Problem::malformed("write a line as FILE:LINE, kernel/sys.c:950 for one");
        let (file, number) = line.parse().ok_or_else(malformed)?;
        let none = || {
            let why = "no file has source lines: start the service with --debug-info VMLINUX, that of the kernel's debug package";
            Problem::new("ENXIO", why)
        };
        let lines = self.lines.as_ref().ok_or_else(none)?;
        Ok(lines.code(file, number, lines.slide(table)?)?)
    }

    /// A function's instructions, with their source lines.
    pub(super) fn disassemble(&self, at: &Place) -> Result<Vec<CodeLine>, Problem> {
        let found = self.engine.disassemble(address_of(&self.engine, at)?)?;
        let addresses: Vec<Gva> = found.iter().map(|line| line.at).collect();
        let mut code: Vec<CodeLine> = found.into_iter().map(CodeLine::from).collect();
        if let Some(lines) = &self.lines {
            let slide = lines.slide(&self.engine.symbols()?)?;
            let places = lines.places(addresses, slide)?;
            let texts =
                places.into_iter().map(|place| place.map(|p| format!("{}:{}", p.file, p.line)));
            for (line, source) in code.iter_mut().zip(where_it_changes(texts)) {
                line.source = source;
            }
        }
        Ok(code)
    }
}

/// The address of a place; 400 where it cannot be read.
pub(super) fn address_of(engine: &Engine, Place(place): &Place) -> Result<Gva, Problem> {
    engine.address_of(place).map_err(place_problem)
}

/// The address of a place in memory, by a register of `vcpu` where it names one; 400 where it
/// cannot be read.
pub(super) fn address_at(
    engine: &Engine,
    DataPlace(place): &DataPlace,
    vcpu: u8,
) -> Result<Gva, Problem> {
    engine.address_at(place, vcpu).map_err(place_problem)
}

fn place_problem(error: ProbeError) -> Problem {
    match error {
        ProbeError::Syntax(_) | ProbeError::Register(_) | ProbeError::Place(_) => {
            Problem::from(error).malformed_request()
        }
        other => other.into(),
    }
}

/// Leaves those out that are as the last before them.
fn where_it_changes(
    places: impl Iterator<Item = Option<String>>,
) -> impl Iterator<Item = Option<String>> {
    let mut last = None;
    places.map(move |place| {
        let changed = place.filter(|place| last.as_ref() != Some(place))?;
        last = Some(changed.clone());
        Some(changed)
    })
}

impl From<LinesError> for Problem {
    fn from(error: LinesError) -> Self {
        Self::new("ENXIO", error.to_string())
    }
}

impl From<LineError> for Problem {
    fn from(error: LineError) -> Self {
        let code = match error {
            LineError::Lines(error) => return error.into(),
            LineError::Ambiguous { .. } => "EINVAL",
            LineError::NoFile { .. } | LineError::NoCode { .. } => "ENOENT",
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::where_it_changes;

    #[test]
    fn a_line_is_told_where_it_changes() {
        let places = [None, Some("a:1"), Some("a:1"), Some("b:1"), None, Some("b:1"), Some("a:1")];
        let told = where_it_changes(places.into_iter().map(|p| p.map(str::to_owned)));
        let told: Vec<_> = told.collect();
        let told: Vec<_> = told.iter().map(Option::as_deref).collect();
        assert_eq!(told, [None, Some("a:1"), None, Some("b:1"), None, None, Some("a:1")]);
    }
}
