//! Link options of the guest binary: no libc, no start files, no dynamic loader.

fn main() {
    for arg in ["-nostartfiles", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"] {
        println!("cargo::rustc-link-arg-bin=init={arg}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
