"""Jane Austen's six novels out of the Debian package r-cran-janeaustenr (apt-get download, dpkg -x): chapters(FOLDER).

The texts are those of Project Gutenberg and in the public domain; the package around them, by Julia Silge, has the MIT licence.
"""
import pathlib
import re
import struct
import zlib

BOOKS = ["sensesensibility", "prideprejudice", "mansfieldpark", "emma", "northangerabbey", "persuasion"]
HEADING = re.compile(r"(volume|chapter)\b.{0,12}|[ivxl]+\.?|the end|finis", re.IGNORECASE)


def vectors(database):
    """The vectors of texts in a database of R's lazy loading: records of a length and what zlib made of R's serialised form.

    A vector of n texts is the tag 16 and n; a text is a word with the tag 9 in its lowest byte, a length and its bytes
    (R Internals, 1.8 "Serialization Formats")."""
    at = 0
    while at < len(database):
        unpack = zlib.decompressobj()
        data = unpack.decompress(database[at + 4:])
        at = len(database) - len(unpack.unused_data)
        start = data.find(struct.pack(">I", 16))
        count, = struct.unpack_from(">I", data, start + 4)
        lines, place = [], start + 8
        for _ in range(count):
            tag, length = struct.unpack_from(">Ii", data, place)
            if tag & 255 != 9:
                raise ValueError(f"a text of R has the tag 9, not {tag & 255}, at byte {place}")
            lines.append(data[place + 8:place + 8 + length].decode())
            place += 8 + length
        yield lines


def chapters(folder):
    """Each chapter as one text, a paragraph a line."""
    folder = pathlib.Path(folder)
    database = (folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    found = []
    for lines in vectors(database):
        paragraphs, words = [], []
        for line in [*lines, "", "The End"]:
            line = line.strip()
            if HEADING.fullmatch(line):
                if len(paragraphs) > 5:
                    found.append("\n".join(paragraphs))
                paragraphs, words = [], []
            elif line:
                words.append(line)
            elif words:
                paragraphs.append(re.sub(r"[_\[\]{}*]", "", " ".join(words)).replace("--", " -- "))
                words = []
    return [re.sub(r" +", " ", chapter) for chapter in found]
