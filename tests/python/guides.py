"""Runs the guides of the book as a reader does, on a machine with onnxc installed and nothing of the repository but the book's pages.

    python3 guides.py --book book/src --model minilm_dyn.onnx c cpp cmake go python rust

Each guide gets an empty folder with the model and the files that its page shows; its commands run one after the other, and what they
print ends with what the page says. tests/container.md has the commands for a fresh container.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile


def blocks(page):
    """The words behind each fence of a page, and the text up to the next one."""
    for part in page.read_text().split("\n```")[1::2]:
        words, _, text = part.partition("\n")
        yield words.split(","), text + "\n"


def run(page, model):
    """Runs one guide. Gives what is wrong, or None."""
    printed, compared = "", 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(model, folder / "minilm_dyn.onnx")
        all_blocks = list(blocks(page))
        for words, text in all_blocks:
            for name in (word.removeprefix("file=") for word in words if word.startswith("file=")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        for words, text in all_blocks:
            if words == ["sh"]:
                done = subprocess.run(["bash", "-e", "-c", text], cwd=folder, stdout=subprocess.PIPE, text=True)
                if done.returncode != 0:
                    return f"exit code {done.returncode} of\n{text}"
                printed = done.stdout
            elif words == ["text", "output"]:
                compared += 1
                if not printed.endswith(text):
                    return f"printed\n{printed}\nnot\n{text}"
    return None if compared else "no output is compared"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--book", type=pathlib.Path, required=True, help="the folder of the pages")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="minilm_dyn.onnx")
    parser.add_argument("guides", nargs="+", help="names of pages")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.guides:
        wrong = run(arguments.book / f"{name}.md", arguments.model)
        failed += wrong is not None
        print(f"{name}: {wrong or 'as the page says'}", flush=True)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
