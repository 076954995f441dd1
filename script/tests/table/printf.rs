//! Conversions of `printf`.

use crate::common::printed;

/// Output of `printf` for a format with values.
fn shown(arguments: &str) -> String {
    let text = printed(&format!("kprobe:vfs_read {{ printf({arguments}); }}"), &[&[]]);
    text.strip_suffix("\n\n").unwrap().to_owned()
}

#[test]
fn i_is_d() {
    assert_eq!(shown("\"%i|%5i|%-5i|%05i\", -1, 2, 3, 4"), "-1|    2|3    |00004");
    assert_eq!(shown("\"%i %li\", 1 << 40, 1 << 40"), "0 1099511627776");
}

#[test]
fn flags_are_those_of_c() {
    for (arguments, wanted) in [
        ("\"%+d|%+d|%+d\", 5, -5, 0", "+5|-5|+0"),
        ("\"% d|% d\", 5, -5", " 5|-5"),
        ("\"%+ d\", 5", "+5"),
        ("\"%#x|%#X|%#o|%#x|%#o\", 255, 255, 8, 0, 0", "0xff|0XFF|010|0|0"),
        ("\"%#8x|%#08x|%-#8x|\", 255, 255, 255", "    0xff|0x0000ff|0xff    |"),
        ("\"%+06d|%-+6d|% 06d\", 42, 42, 42", "+00042|+42   | 00042"),
        ("\"%06d|%-06d|\", -42, -42", "-00042|-42   |"),
        // A precision takes the flag 0 away, and a conversion without a sign the flag +.
        ("\"%06.3d|%+u|% x\", 5, 5, 5", "   005|5|5"),
    ] {
        assert_eq!(shown(arguments), wanted, "{arguments}");
    }
}

#[test]
fn lengths_cut_numbers() {
    let number = "0x1122334485868788";
    for (length, signed, hex) in [
        ("hh", "-120", "88"),
        ("h", "-30840", "8788"),
        ("", "-2054781048", "85868788"),
        ("l", "1234605617243916168", "1122334485868788"),
        ("ll", "1234605617243916168", "1122334485868788"),
        ("j", "1234605617243916168", "1122334485868788"),
        ("z", "1234605617243916168", "1122334485868788"),
        ("t", "1234605617243916168", "1122334485868788"),
    ] {
        let arguments =
            format!("\"%{length}d %{length}x %{length}X\", {number}, {number}, {number}");
        assert_eq!(shown(&arguments), format!("{signed} {hex} {hex}"), "{length}");
        let arguments = format!("\"%{length}i %{length}u\", -1, 1");
        assert_eq!(shown(&arguments), "-1 1", "{length}");
    }
    assert_eq!(
        shown("\"%hhu %hu %u %lu\", -1, -1, -1, -1"),
        "255 65535 4294967295 18446744073709551615"
    );
    assert_eq!(shown("\"%hho %ho\", -1, -1"), "377 177777");
}
