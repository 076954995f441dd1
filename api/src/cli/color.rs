//! Colours of what is printed.

use std::io;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use clap::{Args, ColorChoice};

/// Whether to print in colour.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ColorArgs {
    /// Print in colour; `auto`: where standard output is a terminal, unless NO_COLOR is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

impl ColorArgs {
    /// The colours to print to standard output in.
    pub(super) fn palette(self) -> Palette {
        let colored = match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
        };
        if colored { Palette::COLORED } else { Palette::PLAIN }
    }
}

/// Colors of the parts of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    /// Time and vCPU.
    pub(super) when: Style,
    /// Name and number of a task.
    pub(super) task: Style,
    /// Name of an event, or of a column.
    pub(super) name: Style,
    /// Where in the kernel.
    pub(super) place: Style,
    /// Name of a value.
    pub(super) key: Style,
    /// A value that could not be read.
    pub(super) fault: Style,
    /// A missing value.
    pub(super) lost: Style,
}

impl Palette {
    /// No colours: styles that print nothing.
    pub(super) const PLAIN: Self = {
        let plain = Style::new();
        Self {
            when: plain,
            task: plain,
            name: plain,
            place: plain,
            key: plain,
            fault: plain,
            lost: plain,
        }
    };
    /// Colours of the terminal's own sixteen, so that they are readable on its background.
    pub(super) const COLORED: Self = Self {
        when: Style::new().dimmed(),
        task: AnsiColor::Green.on_default(),
        name: Style::new().bold(),
        place: AnsiColor::Cyan.on_default(),
        key: AnsiColor::Blue.on_default(),
        fault: AnsiColor::Red.on_default(),
        lost: AnsiColor::Red.on_default().bold(),
    };
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        color: ColorArgs,
    }

    fn bold(args: &[&str]) -> bool {
        let command = Command::try_parse_from([&["x"], args].concat()).unwrap();
        command.color.palette().name == Style::new().bold()
    }

    #[test]
    fn colours_come_when_they_are_asked_for() {
        assert!(bold(&["--color", "always"]));
        assert!(!bold(&["--color", "never"]));
        assert!(Command::try_parse_from(["x", "--color", "maybe"]).is_err());
    }
}
