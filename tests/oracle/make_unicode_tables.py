"""Writes src/data/unicode_tables.cpp: the code points that Hugging Face `tokenizers` calls \\p{L}, \\p{N} and \\s.

The tables are asked from that library (its own regex engine, every code point), so that our pre-tokenizer cuts where it
does. Run: pip install tokenizers==0.23.3; python tests/oracle/make_unicode_tables.py > src/data/unicode_tables.cpp
"""
import tokenizers
from tokenizers import Regex, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, POINTS))


def ranges(pattern):
    matches = pre_tokenizers.Split(Regex(pattern + "+"), behavior="removed", invert=True)
    found = [(POINTS[begin], POINTS[end - 1]) for _, (begin, end) in matches.pre_tokenize_str(TEXT)]
    assert not any(lo < 0xD800 <= hi for lo, hi in found)
    return found


def emit(name, pattern):
    table = ranges(pattern)
    print(f"// {pattern}: {sum(hi - lo + 1 for lo, hi in table)} code points\nconst CodeRange {name}[] = {{")
    line = "   "
    for lo, hi in table:
        item = f" {{0x{lo:X}, 0x{hi:X}}},"
        if len(line) + len(item) > 118:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")
    print(f"const size_t {name}Count = sizeof({name}) / sizeof({name}[0]);\n")


assert tokenizers.__version__.startswith("0.23."), tokenizers.__version__
print("// Written by tests/oracle/make_unicode_tables.py from tokenizers " + tokenizers.__version__ + "\n// (Unicode 16.0). Do not edit.")
print('#include "data/unicode_tables.h"\n\nnamespace llmops {\n')
emit("kLetters", r"\p{L}")
emit("kNumbers", r"\p{N}")
emit("kSpaces", r"\s")
print("}  // namespace llmops")
