//! The lab's initramfs, and the CD that Bochs boots.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpio::newc;

use crate::error::{LabError, at};

const ISOLINUX: &str = "/usr/lib/ISOLINUX/isolinux.bin";
const LDLINUX: &str = "/usr/lib/syslinux/modules/bios/ldlinux.c32";
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Files of the initramfs: path in the lab, and the file here.
pub(crate) type Contents = Vec<(String, PathBuf)>;

/// Writes an initramfs with the folders that `contents` need; all files may be executed.
pub(crate) fn initramfs(contents: &Contents, to: &Path) -> Result<(), LabError> {
    let out = File::create(to).map_err(at(to))?;
    let mut out = BufWriter::new(out);
    let mut folders = std::collections::BTreeSet::new();
    for (name, _) in contents {
        folders.extend(Path::new(name).ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()));
    }
    let mut inode = 0;
    let mut entry = |name: &str, mode| {
        inode += 1;
        newc::Builder::new(name).ino(inode).nlink(1).mode(mode)
    };
    for folder in folders {
        let builder = entry(&folder.to_string_lossy(), DIRECTORY);
        out = builder.write(out, 0).finish().map_err(at(to))?;
    }
    for (name, path) in contents {
        let mut file = File::open(path).map_err(at(path))?;
        let len = file.metadata().map_err(at(path))?.len();
        let len = u32::try_from(len).map_err(|_| std::io::ErrorKind::FileTooLarge.into());
        let mut writer = entry(name, PROGRAM).write(out, len.map_err(at(path))?);
        std::io::copy(&mut file, &mut writer).map_err(at(path))?;
        out = writer.finish().map_err(at(to))?;
    }
    newc::trailer(out).map_err(at(to))?.into_inner().map_err(|e| e.into_error()).map_err(at(to))?;
    Ok(())
}

/// Makes `lab.iso` in `dir` from a kernel, an initramfs and a command line.
pub(crate) fn iso(
    dir: &Path,
    kernel: &Path,
    initramfs: &Path,
    cmdline: &str,
) -> Result<(), LabError> {
    let tree = dir.join("iso");
    let boot = tree.join("isolinux");
    std::fs::create_dir_all(&boot).map_err(at(&boot))?;
    let copies = [
        (Path::new(ISOLINUX), boot.join("isolinux.bin")),
        (Path::new(LDLINUX), boot.join("ldlinux.c32")),
        (kernel, tree.join("vmlinuz")),
        (initramfs, tree.join("initrd")),
    ];
    for (from, to) in copies {
        let copied = std::fs::copy(from, &to);
        copied.map_err(|source| LabError::Package { path: from.to_owned(), source })?;
    }
    let config = boot.join("isolinux.cfg");
    let text = format!(
        "default lab\nprompt 0\nlabel lab\n kernel /vmlinuz\n append initrd=/initrd {cmdline}\n"
    );
    std::fs::write(&config, text).map_err(at(&config))?;
    let xorriso = Command::new("xorriso")
        .current_dir(dir)
        .args(["-as", "mkisofs", "-quiet", "-o", "lab.iso"])
        .args(["-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat"])
        .args(["-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", "iso"])
        .output()
        .map_err(|source| LabError::Start { program: "xorriso", source })?;
    if !xorriso.status.success() {
        eprint!("{}", String::from_utf8_lossy(&xorriso.stderr));
        return Err(LabError::Failed { program: "xorriso", how: xorriso.status.to_string() });
    }
    std::fs::remove_dir_all(&tree).map_err(at(&tree))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_initramfs_has_the_folders_before_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let (source, archive) = (dir.path().join("x"), dir.path().join("initrd"));
        std::fs::write(&source, b"content").unwrap();
        let contents = ["a/b/x", "init"].map(|name| (name.to_owned(), source.clone()));
        initramfs(&contents.into(), &archive).unwrap();
        let mut file = File::open(&archive).unwrap();
        let mut names = Vec::new();
        loop {
            let mut reader = newc::Reader::new(file).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut text).unwrap();
            names.push((reader.entry().name().to_owned(), reader.entry().mode(), text));
            file = reader.finish().unwrap();
        }
        let expected =
            [("a", DIRECTORY), ("a/b", DIRECTORY), ("a/b/x", PROGRAM), ("init", PROGRAM)];
        assert_eq!(names.len(), expected.len());
        for ((name, mode, text), (wanted, wanted_mode)) in names.iter().zip(expected) {
            assert_eq!((name.as_str(), *mode), (wanted, wanted_mode));
            assert_eq!(text, if *mode == PROGRAM { &b"content"[..] } else { b"" });
        }
    }
}
