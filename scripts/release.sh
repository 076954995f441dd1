#!/usr/bin/env bash
# Makes the release archive of the commit that is checked out, in target/release-archive/: the
# program, its documents, the licences of all crates in it, and a list of them (SBOM, CycloneDX).
# The same commit gives the same archive, byte by byte, where the compilers and the folder are the
# same.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { echo "release: $*" >&2; exit 1; }

[[ -z $(git status --porcelain --untracked-files=no) ]] ||
    die "the tree has changes that are not committed"
target=x86_64-unknown-linux-gnu
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
[[ -n $version ]] || die "Cargo.toml has no version"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
name=exoprobe-$version-$target
out=target/release-archive
folder=$out/$name
rm -rf "$folder"
mkdir -p "$folder"

# No path of this machine is in the program.
flags="--remap-path-prefix=$PWD=/exoprobe"
flags+=$'\x1f'"--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
CARGO_ENCODED_RUSTFLAGS=$flags CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$out/build \
    cargo build --quiet --release --locked --target "$target" --package exoprobe
cp "$out/build/$target/release/exoprobe" "$folder/"
cp -r README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE-APACHE LICENSE-MIT docs "$folder/"
mkdir "$folder/guest"
cp guest/README.md guest/cmdline "$folder/guest/"

# The tool is built once, without optimization, into ${EXOPROBE_CACHE:-~/.cache/exoprobe}.
version=0.5.9
tool=${EXOPROBE_CACHE:-$HOME/.cache/exoprobe}/cargo-cyclonedx/$version
if [[ ! -x $tool/bin/cargo-cyclonedx ]]; then
    echo "release: building cargo-cyclonedx $version (once, a minute or two)" >&2
    CARGO_TARGET_DIR=$out/tools CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256 \
        cargo install --quiet --locked --root "$tool" "cargo-cyclonedx@$version"
fi
sbom=release-sbom
# It writes one file beside the manifest of each crate of the workspace.
trap 'git ls-files "*Cargo.toml" | while read -r manifest; do rm -f "$(dirname "$manifest")/$sbom.json"; done' EXIT
"$tool/bin/cargo-cyclonedx" cyclonedx --quiet --manifest-path api/Cargo.toml --format json --target "$target" \
    --no-build-deps --override-filename "$sbom"
scripts/release.py "$target" "api/$sbom.json" "$folder"

find "$folder" -type d -exec chmod 755 {} +
find "$folder" -type f -exec chmod 644 {} +
chmod 755 "$folder/exoprobe"
tar --directory "$out" --create --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner "$name" | gzip --no-name -9 >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" | tee "$name.tar.gz.sha256")
