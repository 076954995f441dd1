//! Are two measurements the same?

use std::path::Path;
use std::process::ExitCode;

use crate::report::{Report, RowCounts, SCHEMA};

/// Prints how the counts in two files differ: status 1 if they do.
pub(crate) fn files(a: &Path, b: &Path) -> Result<ExitCode, String> {
    let (left, right) = (read(a)?, read(b)?);
    for (name, one, other) in [
        ("host", format!("{:?}", left.host), format!("{:?}", right.host)),
        ("clock", format!("{:?}", left.clock), format!("{:?}", right.clock)),
    ] {
        if one != other {
            println!("{name}: {one}, not {other}");
        }
    }
    let differences = differences(&left.rows, &right.rows);
    if differences.is_empty() {
        println!("the same: {} rows", left.rows.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("- {}\n+ {}", a.display(), b.display());
    differences.iter().for_each(|line| println!("{line}"));
    Ok(ExitCode::FAILURE)
}

fn read(path: &Path) -> Result<Report, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| at(&e))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| at(&e))?;
    let schema = &value["schema"];
    if *schema != SCHEMA {
        return Err(at(&format!("schema {schema} is not {SCHEMA}, which this program reads")));
    }
    serde_json::from_value(value).map_err(|e| at(&e))
}

fn differences(left: &[RowCounts], right: &[RowCounts]) -> Vec<String> {
    let find = |rows: &[RowCounts], name: &str| rows.iter().position(|row| row.name == name);
    let mut lines = Vec::new();
    for row in left {
        match find(right, &row.name) {
            None => lines.push(format!("- {}", row.name)),
            Some(other) => lines.extend(row_differences(row, &right[other])),
        }
    }
    let new = right.iter().filter(|row| find(left, &row.name).is_none());
    lines.extend(new.map(|row| format!("+ {}", row.name)));
    lines
}

fn row_differences(left: &RowCounts, right: &RowCounts) -> Vec<String> {
    let mut lines = Vec::new();
    for ((column, old), (_, new)) in left.cells().into_iter().zip(right.cells()) {
        if old != new {
            lines.push(format!("  {}, {column}:\n-   {old}\n+   {new}", left.name));
        }
    }
    lines
}
