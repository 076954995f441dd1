#!/usr/bin/env python3
"""Writes the SBOM of a release, and the licences of the crates that are in the program.

    scripts/release.py TARGET SBOM FOLDER
"""

import json
import os
import re
import shutil
import subprocess
import sys

# Texts that a licence asks to pass on.
LICENCE = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)


def write_sbom(source, folder):
    """Writes the SBOM without what differs from run to run and from folder to folder."""
    with open(source, encoding="utf-8") as file:
        text = file.read().replace(os.getcwd(), "/exoprobe")
    bom = json.loads(text)
    bom.pop("serialNumber", None)
    bom["metadata"].pop("timestamp", None)
    with open(os.path.join(folder, "exoprobe.cdx.json"), "w", encoding="utf-8") as file:
        json.dump(bom, file, indent=1, sort_keys=True)
        file.write("\n")
    return {(part["name"], part["version"]) for part in bom["components"]}


def linked(target):
    """Returns the registry's crates in the program, as (name, version)."""
    tree = ["cargo", "tree", "--locked", "--package", "exoprobe", "--edges", "normal"]
    tree += ["--target", target, "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(tree, check=True, capture_output=True, text=True).stdout.splitlines()
    crates = set()
    for line in lines:
        name, version, *rest = line.split()
        # Those of this workspace have their folder after them.
        if not any(word.startswith("(/") for word in rest):
            crates.add((name, version.removeprefix("v")))
    return crates


def copy_licences(crates, folder):
    """Copies each crate's own texts. Returns the crates that have none."""
    metadata = ["cargo", "metadata", "--locked", "--format-version", "1"]
    found = json.loads(subprocess.run(metadata, check=True, capture_output=True).stdout)
    packages = {(package["name"], package["version"]): package for package in found["packages"]}
    without = []
    for name, version in sorted(crates):
        source = os.path.dirname(packages[name, version]["manifest_path"])
        texts = [text for text in sorted(os.listdir(source)) if LICENCE.match(text)]
        texts = [text for text in texts if os.path.isfile(os.path.join(source, text))]
        if not texts:
            without.append(f"{name} {version}: {packages[name, version]['license']}")
            continue
        place = os.path.join(folder, f"{name}-{version}")
        os.makedirs(place)
        for text in texts:
            shutil.copyfile(os.path.join(source, text), os.path.join(place, text))
    return without


def main():
    target, sbom, folder = sys.argv[1:]
    listed = write_sbom(sbom, folder)
    crates = linked(target)
    missing = sorted(crates - listed)
    if missing:
        sys.exit(f"release: the SBOM lacks {missing}")
    licences = os.path.join(folder, "licences")
    os.makedirs(licences)
    without = copy_licences(crates, licences)
    with open(os.path.join(licences, "README"), "w", encoding="utf-8") as file:
        file.write("Licences of the crates in the program, as each has them.\n")
        if without:
            file.write("These contain no text, and name their licence only:\n\n")
            file.writelines(f"{line}\n" for line in without)


main()
