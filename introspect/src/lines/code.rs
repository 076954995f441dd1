//! The code of a source line: from the line to its addresses.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use gimli::{Error, FileEntry, LineProgramHeader, Reader as _, UnitRef};

use super::context::{DebugInfo, relative, short};
use super::place::SourceLocation;
use super::section::Reader;

/// Code of one source file, of what was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileCode {
    /// Addresses of the line, each in another function or inlined call: the lowest there.
    pub(super) addresses: BTreeSet<u64>,
    /// The next line that has code, where there is one.
    pub(super) next: Option<u32>,
}

/// Whether `path` is `name`, or ends with it, folders whole.
fn is_named(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

impl DebugInfo {
    /// The code of a line, by each file whose path ends with `name`.
    pub(super) fn code(
        &mut self,
        name: &str,
        line: u32,
    ) -> Result<BTreeMap<String, FileCode>, Error> {
        let mut files = self.scan(|this| {
            let mut files = BTreeMap::new();
            let mut headers = this.dwarf().units();
            while let Some(header) = headers.next()? {
                let unit = this.dwarf().unit(header)?;
                gather(UnitRef::new(this.dwarf(), &unit), name, line, &mut files)?;
            }
            Ok(files)
        })?;
        for (path, code) in &mut files {
            code.addresses = self.first_of_each_copy(path, line, &code.addresses)?;
        }
        Ok(files)
    }

    /// Of addresses in one function, and one inlined call in it, gives the lowest.
    fn first_of_each_copy(
        &mut self,
        path: &str,
        line: u32,
        addresses: &BTreeSet<u64>,
    ) -> Result<BTreeSet<u64>, Error> {
        let mut copies = HashSet::new();
        let mut first = BTreeSet::new();
        for address in addresses {
            let Some(found) = self.location(*address)? else { continue };
            let SourceLocation { place, function, inlined } = found;
            if place.file == path && place.line == line && copies.insert((function, inlined)) {
                first.insert(*address);
            }
        }
        Ok(first)
    }
}

/// Adds the rows of a unit that are of the line; of each file the next line with code.
fn gather(
    unit: UnitRef<'_, Reader>,
    name: &str,
    line: u32,
    files: &mut BTreeMap<String, FileCode>,
) -> Result<(), Error> {
    let Some(program) = unit.line_program.clone() else { return Ok(()) };
    let paths = paths(unit, program.header(), name)?;
    if paths.is_empty() {
        return Ok(());
    }
    let mut rows = program.rows();
    while let Some((_, row)) = rows.next_row()? {
        let Some(path) = paths.get(&row.file_index()) else { continue };
        let here = row.line().and_then(|line| u32::try_from(line.get()).ok());
        let Some(here) = here.filter(|_| row.is_stmt() && !row.end_sequence()) else { continue };
        if here < line || row.address() == 0 {
            continue;
        }
        let code = files.entry(path.clone()).or_default();
        if here > line {
            code.next = Some(code.next.map_or(here, |next| next.min(here)));
        } else {
            code.addresses.insert(row.address());
        }
    }
    Ok(())
}

/// The unit's files of that name, by their number in its rows.
fn paths(
    unit: UnitRef<'_, Reader>,
    header: &LineProgramHeader<Reader>,
    name: &str,
) -> Result<BTreeMap<u64, String>, Error> {
    let mut paths = BTreeMap::new();
    let first = u64::from(header.version() < 5);
    for (index, file) in (first..).zip(header.file_names()) {
        // Most files are not it: their paths are not made.
        let own = unit.attr_string(file.path_name())?;
        let own = own.to_string_lossy()?;
        if !(is_named(&own, name) || is_named(name, own.rsplit('/').next().unwrap_or(&own))) {
            continue;
        }
        let path = path(unit, header, file, &own)?;
        if let Some(path) = short(&path).filter(|path| is_named(path, name)) {
            paths.insert(index, path.to_owned());
        }
    }
    Ok(paths)
}

/// A file's path as lookups by address give it.
fn path(
    unit: UnitRef<'_, Reader>,
    header: &LineProgramHeader<Reader>,
    file: &FileEntry<Reader>,
    own: &str,
) -> Result<String, Error> {
    let directory = match &unit.comp_dir {
        Some(directory) => directory.to_string_lossy()?.into_owned(),
        None => String::new(),
    };
    let mut path = directory.clone();
    if file.directory_index() != 0
        && let Some(folder) = file.directory(header)
    {
        push(&mut path, &unit.attr_string(folder)?.to_string_lossy()?);
    }
    push(&mut path, own);
    Ok(relative(&path, &directory).to_owned())
}

/// Appends a path; one that is whole takes its place.
fn push(path: &mut String, more: &str) {
    if more.starts_with('/') {
        path.clear();
    } else if !path.is_empty() && !path.ends_with('/') {
        path.push('/');
    }
    path.push_str(more);
}
