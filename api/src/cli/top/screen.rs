//! The terminal while `top` has it.

use std::io::{self, Write};

use crossterm::QueueableCommand;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::look::Look;
use crate::cli::color::Palette;

/// What stands above the probes: the sum, and the names of the columns.
const HEAD: usize = 2;

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// A screen of its own, so that what the terminal showed before is there again afterwards.
pub(super) struct Screen<'a>(&'a mut dyn Write);

impl<'a> Screen<'a> {
    /// Takes the terminal, until this is dropped.
    pub(super) fn enter(out: &'a mut dyn Write) -> io::Result<Self> {
        // Made first, so that the terminal is given back also where taking it fails halfway.
        let screen = Self(out);
        screen.0.queue(EnterAlternateScreen)?.queue(Hide)?.flush()?;
        Ok(screen)
    }

    /// How much it shows.
    pub(super) fn size() -> io::Result<Size> {
        let (columns, rows) = terminal::size()?;
        Ok(Size { columns: columns.into(), rows: rows.into() })
    }

    fn give_back(&mut self) -> io::Result<()> {
        self.0.queue(Show)?.queue(LeaveAlternateScreen)?.flush()
    }

    /// Shows lines, as many as there are rows at most, in place of those before.
    pub(super) fn draw(&mut self, lines: &[String], size: Size) -> io::Result<()> {
        let mut lines = lines.iter();
        for row in 0..u16::try_from(size.rows).unwrap_or(u16::MAX) {
            // Cleared first: at the end of a line as long as the row, that would take its last character.
            self.0.queue(MoveTo(0, row))?.queue(Clear(ClearType::CurrentLine))?;
            if let Some(line) = lines.next() {
                write!(self.0, "{line}")?;
            }
        }
        self.0.flush()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // There is nobody left to tell what goes wrong.
        let _ = self.give_back();
    }
}

/// The lines of a screen: no more than it has rows, and none longer than it has columns.
pub(super) fn frame(look: &Look<'_>, size: Size, palette: &Palette) -> Vec<String> {
    let count = look.rows.len();
    let plural = if count == 1 { "" } else { "s" };
    let sum = format!("{:.1} hits/s, {count} probe{plural}; q or Ctrl-C ends it", look.total());
    let table = look.table();
    let fitting = size.rows.saturating_sub(HEAD);
    let shown = if count > fitting { fitting.saturating_sub(1) } else { count };
    let mut lines = vec![cut(&sum, size.columns)];
    for (at, line) in table.lines().take(shown + 1).enumerate() {
        let lost = at.checked_sub(1).is_some_and(|row| look.rows[row].probe.lost > 0);
        let line = cut(line, size.columns);
        lines.push(match at {
            0 => format!("{0}{line}{0:#}", palette.name),
            _ if lost => format!("{0}{line}{0:#}", palette.lost),
            _ => line,
        });
    }
    if count > shown {
        let more = format!("... and {} more: make the window higher", count - shown);
        lines.push(cut(&more, size.columns));
    }
    lines.truncate(size.rows);
    lines
}

/// As much of a line as is no wider than that.
fn cut(line: &str, columns: usize) -> String {
    if line.width() <= columns {
        return line.to_owned();
    }
    let mut width = 0;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width <= columns
    };
    line.chars().take_while(fits).collect()
}
