use crate::circle::Imports;
use crate::read::read;

/// Circles of a made-up crate, as printed, with paths below its folder.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut tree = read(&folder.path().join("lib.rs")).unwrap();
    for file in &mut tree.files {
        *file = file.strip_prefix(folder.path()).unwrap().to_owned();
    }
    let circles = Imports::of(&tree).circles();
    circles.iter().map(ToString::to_string).collect()
}

#[test]
fn a_circle_is_found_with_the_names_that_tie_it() {
    let found = circles(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A(B); pub fn f() {}"),
        ("b.rs", "pub struct B; pub fn g() { super::c::h() }"),
        ("c.rs", "use super::a; pub fn h() { a::f() }"),
    ]);
    assert_eq!(
        found,
        ["circle of 3 files:\n    a.rs\n    b.rs\n    c.rs\n  \
          a.rs -> b.rs: B\n  b.rs -> c.rs: h\n  c.rs -> a.rs: f\n"]
    );
}

#[test]
fn a_circle_through_a_re_export_is_found() {
    let found = circles(&[
        ("lib.rs", "mod a; mod deep;"),
        ("a.rs", "use crate::deep::Renamed; pub struct A(Renamed);"),
        ("deep/mod.rs", "mod inner; pub use inner::*;"),
        ("deep/inner.rs", "mod more; pub use more::{B as Renamed};"),
        ("deep/inner/more.rs", "pub struct B; impl B { fn f(_: crate::a::A) {} }"),
    ]);
    assert_eq!(
        found,
        ["circle of 2 files:\n    a.rs\n    deep/inner/more.rs\n  \
          a.rs -> deep/inner/more.rs: B\n  deep/inner/more.rs -> a.rs: A\n"]
    );
}

#[test]
fn a_ladder_has_no_circle() {
    let found = circles(&[
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
        ("a.rs", "use crate::B; pub struct A(B);"),
        ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::A; }"),
    ]);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_parent_and_its_child_make_a_circle_if_each_needs_a_name_of_the_other() {
    let parent = ("lib.rs", "mod child; pub struct P; pub fn f() { child::g() }");
    assert_eq!(circles(&[parent, ("child.rs", "pub fn g() {}")]).len(), 0);
    assert_eq!(circles(&[parent, ("child.rs", "pub fn g() { let _ = super::P; }")]).len(), 1);
}

#[test]
fn names_in_macros_attributes_and_globs_count() {
    let circle = |a: &str, lib: &str| circles(&[("lib.rs", lib), ("a.rs", a)]).len();
    let lib = "mod a; pub fn check() {} pub struct L(a::A);";
    assert_eq!(circle("pub struct A; fn f() { println!(\"{:?}\", crate::check()) }", lib), 1);
    assert_eq!(circle("pub struct A(#[serde(with = \"crate::check\")] u8);", lib), 1);
    assert_eq!(circle("use super::*; pub struct A; fn f() { check() }", lib), 1);
    assert_eq!(circle("use super::*; pub struct A; fn f(x: u8) { x.check() }", lib), 0);
    assert_eq!(circle("pub struct A; #[cfg(all(test, unix))] fn f() { crate::check() }", lib), 0);
}

#[test]
fn a_re_export_by_itself_is_no_edge_but_its_use_is() {
    let child = ("child.rs", "pub struct C(super::P);");
    assert_eq!(
        circles(&[("lib.rs", "mod child; pub use child::C; pub struct P;"), child]).len(),
        0
    );
    let used = "mod child; pub use child::C; pub struct P; type T = C;";
    assert_eq!(circles(&[("lib.rs", used), child]).len(), 1);
}
