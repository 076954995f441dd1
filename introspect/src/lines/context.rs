//! Lookups in DWARF, by link-time address.

use std::sync::Arc;

use addr2line::{Context, Location};
use gimli::{Dwarf, Error, SectionId};

use super::place::{InlinedCall, SourceLocation, SourcePlace};
use super::section::{Reader, Work};

/// Most reads that finding the units may take: 4 million for a small Linux 6.12 (32 MiB of .debug_info); a
/// distribution's is some ten times that.
const OPEN_WORK: u64 = 1 << 27;
/// Most reads of one call: the largest units of that kernel take 0.3 million.
const CALL_WORK: u64 = 1 << 24;
/// Reads whose results are kept. Behind that they are dropped, and units are found anew.
const KEPT_WORK: u64 = 1 << 27;
/// Longest path or function name given, in bytes; a longer one is taken for none.
const MAX_TEXT: usize = 4096;

/// DWARF in memory, and what was parsed of it. A unit is parsed when it is first asked for.
pub(super) struct DebugInfo {
    context: Context<Reader>,
    dwarf: Arc<Dwarf<Reader>>,
    work: Arc<Work>,
    /// Reads since the units were found.
    spent: u64,
}

impl DebugInfo {
    /// Finds the units in sections, which are empty where there are none.
    pub(super) fn new(mut bytes: impl FnMut(SectionId) -> Vec<u8>) -> Result<Self, Error> {
        let work = Arc::new(Work::default());
        let load = |id| Ok::<_, Error>(Reader::new(bytes(id), Arc::clone(&work)));
        let dwarf = Arc::new(Dwarf::load(load)?);
        let context = units(&dwarf, &work)?;
        Ok(Self { context, dwarf, work, spent: 0 })
    }

    /// Where the code at an address comes from, with the inlined calls that it is in.
    pub(super) fn location(&mut self, address: u64) -> Result<Option<SourceLocation>, Error> {
        self.call(|this| this.find_location(address))
    }

    /// Where the code at each of some addresses comes from.
    pub(super) fn places(
        &mut self,
        addresses: impl Iterator<Item = u64>,
    ) -> Result<Vec<Option<SourcePlace>>, Error> {
        self.call(|this| addresses.map(|address| this.find_place(address)).collect())
    }

    /// The sections.
    pub(super) fn dwarf(&self) -> &Dwarf<Reader> {
        &self.dwarf
    }

    /// Looks through all units, which takes as much as finding them does.
    pub(super) fn scan<T>(&self, find: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        self.work.begin(OPEN_WORK);
        find(self)
    }

    fn call<T>(&mut self, find: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.spent > KEPT_WORK {
            self.context = units(&self.dwarf, &self.work)?;
            self.spent = 0;
        }
        self.work.begin(CALL_WORK);
        let found = find(self);
        self.spent = self.spent.saturating_add(CALL_WORK - self.work.left());
        found
    }

    fn find_place(&self, address: u64) -> Result<Option<SourcePlace>, Error> {
        let Some(address) = looked_up(address) else { return Ok(None) };
        let Some(location) = self.context.find_location(address)? else { return Ok(None) };
        Ok(place(Some(&location), &self.directory(address)?))
    }

    fn find_location(&self, address: u64) -> Result<Option<SourceLocation>, Error> {
        let Some(address) = looked_up(address) else { return Ok(None) };
        let directory = self.directory(address)?;
        let mut frames = self.context.find_frames(address).skip_all_loads()?;
        let (mut innermost, mut function, mut inlined) = (None, None, Vec::new());
        let mut is_first = true;
        while let Some(frame) = frames.next()? {
            let here = place(frame.location.as_ref(), &directory);
            if is_first {
                (innermost, is_first) = (here, false);
            } else {
                // The frame before was called from here, and is no function of its own.
                inlined.push(InlinedCall { function: function.take(), caller: here });
            }
            function = match frame.function {
                Some(name) => short(&name.raw_name()?).map(str::to_owned),
                None => None,
            };
        }
        Ok(innermost.map(|place| SourceLocation { place, function, inlined }))
    }

    /// Where the compiler ran.
    fn directory(&self, address: u64) -> Result<String, Error> {
        let unit = self.context.find_dwarf_and_unit(address).skip_all_loads();
        match unit.as_ref().and_then(|unit| unit.comp_dir.as_ref()) {
            Some(directory) => Ok(gimli::Reader::to_string_lossy(directory)?.into_owned()),
            None => Ok(String::new()),
        }
    }
}

fn units(dwarf: &Arc<Dwarf<Reader>>, work: &Work) -> Result<Context<Reader>, Error> {
    work.begin(OPEN_WORK);
    Context::from_arc_dwarf(Arc::clone(dwarf))
}

/// addr2line adds 1.
fn looked_up(address: u64) -> Option<u64> {
    (address != u64::MAX).then_some(address)
}

fn place(location: Option<&Location<'_>>, directory: &str) -> Option<SourcePlace> {
    let location = location?;
    let file = relative(short(location.file?)?, directory);
    let column = location.column.filter(|column| *column != 0);
    Some(SourcePlace { file: file.to_owned(), line: location.line?, column })
}

/// A path from where the compiler ran; whole where it leads elsewhere.
pub(super) fn relative<'a>(path: &'a str, directory: &str) -> &'a str {
    let inside = path.strip_prefix(directory.trim_end_matches('/'));
    let inside = inside.and_then(|rest| rest.strip_prefix('/')).filter(|_| !directory.is_empty());
    let inside = inside.map(|rest| rest.strip_prefix("./").unwrap_or(rest));
    inside.filter(|rest| !rest.is_empty() && !rest.starts_with('/')).unwrap_or(path)
}

pub(super) fn short(text: &str) -> Option<&str> {
    (!text.is_empty() && text.len() <= MAX_TEXT).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::relative;

    #[test]
    fn paths_are_relative_to_the_build() {
        for (path, directory, shown) in [
            ("/build/linux/kernel/sys.c", "/build/linux", "kernel/sys.c"),
            ("/build/linux/./include/a.h", "/build/linux/", "include/a.h"),
            ("/build/linux-6.1/kernel/sys.c", "/build/linux", "/build/linux-6.1/kernel/sys.c"),
            ("/usr/include/a.h", "/build", "/usr/include/a.h"),
            ("kernel/sys.c", "", "kernel/sys.c"),
            ("/kernel/sys.c", "", "/kernel/sys.c"),
            ("/build", "/build", "/build"),
        ] {
            assert_eq!(relative(path, directory), shown, "{path} in {directory}");
        }
    }
}
