"""Lines of the compiler that a commit makes Cargo compile again: those of the crates it touches and of all that depend on them.

    python tests/python/recompiled.py [--commits 40]

Lines are those of Rust below `src`, of the tree as it is, without tests, blank lines and comments. A commit counts where it
touches one of them.
"""

import argparse
import pathlib
import re
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = ROOT / "compiler"


def is_test(path):
    return any(part.endswith("tests") or part in ("tests.rs", "testing.rs", "node_case.rs") for part in path.parts)


def code_lines(folder):
    count = 0
    for file in folder.rglob("*.rs"):
        if is_test(file.relative_to(folder)):
            continue
        text = re.split(r"^#\[cfg\(test\)\]\s*mod tests \{", file.read_text(), flags=re.MULTILINE)[0]
        count += sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))
    return count


def crates():
    """Folder, lines and direct dependencies of each crate of the compiler."""
    found = {}
    for manifest in sorted([COMPILER / "Cargo.toml", *COMPILER.glob("*/Cargo.toml")]):
        data = tomllib.loads(manifest.read_text())
        uses = set(data.get("dependencies", {}))
        for target in data.get("target", {}).values():
            uses |= set(target.get("dependencies", {}))
        found[data["package"]["name"]] = (manifest.parent, code_lines(manifest.parent / "src"), uses)
    return found


def dependents(all_crates, touched):
    """The crates `touched` and all that are compiled again because of them."""
    again = set(touched)
    while True:
        more = {name for name, (_, _, uses) in all_crates.items() if uses & again} - again
        if not more:
            return again
        again |= more


def touched_by(all_crates, commit):
    names = subprocess.run(
        ["git", "-C", ROOT, "show", "--format=", "--name-only", commit], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    touched = set()
    for name in names:
        path = pathlib.Path(name)
        if path.suffix != ".rs" or is_test(path):
            continue
        for crate, (folder, _, _) in all_crates.items():
            if path.is_relative_to((folder / "src").relative_to(ROOT)):
                touched.add(crate)
    return touched


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=int, default=40)
    wanted = parser.parse_args().commits
    all_crates = crates()
    total = sum(lines for _, lines, _ in all_crates.values())
    log = ["git", "-C", ROOT, "log", "--no-merges", "--format=%h", "--", "compiler"]
    figures = []
    for commit in subprocess.run(log, capture_output=True, text=True, check=True).stdout.split():
        touched = touched_by(all_crates, commit)
        if touched:
            figures.append(sum(all_crates[name][1] for name in dependents(all_crates, touched)))
        if len(figures) == wanted:
            break
    figures.sort()
    mean = sum(figures) / len(figures)
    for name, (_, lines, _) in sorted(all_crates.items(), key=lambda entry: -entry[1][1]):
        again = sum(all_crates[other][1] for other in dependents(all_crates, {name}))
        print(f"{name:18} {lines:7} lines, {again:7} compiled again")
    print(f"{len(figures)} commits; as one crate {total} lines each")
    print(f"now {mean:.0f} on average ({mean / total:.0%}), median {figures[len(figures) // 2]}, {figures[0]} to {figures[-1]}")


if __name__ == "__main__":
    main()
