//! `--disk FILE[,readonly|overlay]`.

use exoprobe_vmm::{DiskConfig, DiskMode};

const FORMS: &str = "give FILE, FILE,readonly or FILE,overlay";

/// Reads a disk as the option has it. A file whose name has a comma is given with its mode
/// (`a,b,readwrite`).
pub(crate) fn parse(text: &str) -> Result<DiskConfig, String> {
    let (path, mode) = match text.rsplit_once(',') {
        Some((path, "readwrite")) => (path, DiskMode::ReadWrite),
        Some((path, "readonly")) => (path, DiskMode::ReadOnly),
        Some((path, "overlay")) => (path, DiskMode::Overlay),
        Some((_, word)) => return Err(format!("`{word}` is no mode of a disk: {FORMS}")),
        None => (text, DiskMode::ReadWrite),
    };
    if path.is_empty() {
        return Err(format!("the file is missing: {FORMS}"));
    }
    // Absolute, because a snapshot has it, too.
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    Ok(DiskConfig { path, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_a_file_and_a_mode() {
        let found = |text: &str| {
            let disk = parse(text).unwrap();
            (disk.path.to_str().unwrap().to_owned(), disk.mode)
        };
        assert_eq!(found("/a"), ("/a".to_owned(), DiskMode::ReadWrite));
        assert_eq!(found("/a,readonly"), ("/a".to_owned(), DiskMode::ReadOnly));
        assert_eq!(found("/a,overlay"), ("/a".to_owned(), DiskMode::Overlay));
        assert_eq!(found("/a,b,readwrite"), ("/a,b".to_owned(), DiskMode::ReadWrite));
        assert!(parse("a").unwrap().path.is_absolute());
        for (text, reason) in [
            ("", "the file is missing: give FILE"),
            (",readonly", "the file is missing"),
            ("/a,ro", "`ro` is no mode of a disk: give FILE, FILE,readonly or FILE,overlay"),
            ("/a,", "`` is no mode"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }
}
