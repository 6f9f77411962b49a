#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the compiler does not: who may include whom, and that every file
carries its licence and nothing of the machine it was written on.

  check_layers.py ROOT      prints one line per violation; exit code 1 if any
  check_layers.py --self-test

The rules:
  userspace/  rooms include only themselves and rooms to their left, and bpf/abi
  cupti/      includes only cupti and bpf/abi (it lives in the training process);
              cupti/board does not know cupti/nccl
  bpf/        includes only bpf
  tools/      the command does not include the lab, the lab not the command
  NCCL's binary interface (cupti/nccl/profiler_abi.h) is known to cupti, and to
              tools/lab and tests, which play NCCL
  tests/      is included by nobody else
A folder's README.md, where there is one, names each of its source files.
"""

import os
import re
import sys
import tempfile

ROOMS = ["base", "source", "decode", "align", "model", "detect", "attribute", "report", "store",
         "cluster"]
ABI = "cupti/nccl/profiler_abi.h"
SOURCES = (".h", ".cc", ".c")
# Files that must name their licence: sources, and what builds and runs them.
LICENSED = SOURCES + (".py", ".cmake", ".sh", ".js", ".proto", ".bpf.c")
PRUNED = {".git", "node_modules", "demo-out", "seeds", "corpus", "golden-recordings"}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
# Paths of somebody's machine: /home/NAME, /root/..., /Users/NAME, /work/..., but not
# as the tail of a longer path such as /proc/PID/root/.
MACHINE = re.compile(r"(?<![\w.})>*/-])/(?:home/(?!\$)\w+|root/\w|Users/\w+|work/\w+)")


def room_of(path):
    parts = path.split("/")
    if parts[0] == "userspace" and len(parts) > 2 and parts[1] in ROOMS:
        return parts[1]
    return None


def include_problem(path, included):
    """Why `path` may not include `included`, or None."""
    top = path.split("/")[0]
    to = included.split("/")
    if included == ABI and not path.startswith(("cupti/", "tools/lab/", "tests/")):
        return "only cupti, tools/lab and tests may know NCCL's binary interface"
    if to[0] not in ("bpf", "cupti", "userspace", "tools", "tests"):
        return None  # a system header in quotes, or a file beside it: see relative_problem
    if to[0] == "tests" and top != "tests":
        return "nobody includes tests"
    if top == "userspace":
        if to[0] == "bpf":
            return None if included.startswith("bpf/abi/") else "userspace may include bpf/abi only"
        if to[0] != "userspace":
            return "userspace may not include " + to[0]
        own, other = room_of(path), room_of(included)
        if own is None or other is None:
            return None if own == other else "not a room of userspace"
        if ROOMS.index(other) > ROOMS.index(own):
            return "%s is to the right of %s" % (other, own)
        return None
    if top == "cupti":
        if to[0] == "cupti":
            if path.startswith("cupti/board/") and included.startswith("cupti/nccl/"):
                return "the board does not know NCCL"
            return None
        if included.startswith("bpf/abi/"):
            return None
        if path.endswith("_test.cc"):
            return None  # tests may read what they wrote
        return "code inside the training process may include cupti and bpf/abi only"
    if top == "bpf" and to[0] != "bpf":
        return "bpf may include bpf only"
    if path.startswith("tools/mycroft/") and included.startswith("tools/lab/"):
        return "the command does not know the lab"
    if path.startswith("tools/lab/") and included.startswith("tools/mycroft/"):
        return "the lab does not know the command"
    return None


def files_below(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(d for d in folders
                            if d not in PRUNED and not d.startswith(("build", ".cache")))
        for name in sorted(names):
            full = os.path.join(folder, name)
            yield os.path.relpath(full, root).replace(os.sep, "/"), full


def is_script(name, text):
    return "." not in os.path.basename(name) and text.startswith("#!")


def check(root):
    problems = []
    by_folder = {}
    for name, full in files_below(root):
        try:
            with open(full, encoding="utf-8") as f:
                text = f.read()
        except (UnicodeDecodeError, OSError):
            continue  # not text
        lines = text.split("\n")
        licensed = (name.endswith(LICENSED) or os.path.basename(name) == "CMakeLists.txt"
                    or is_script(name, text))
        if licensed and not any("SPDX-License-Identifier:" in line for line in lines[:3]):
            problems.append("%s:1: no SPDX-License-Identifier in the first three lines" % name)
        if name != "tests/layers/check_layers.py":
            for number, line in enumerate(lines, 1):
                match = MACHINE.search(line)
                if match:
                    problems.append("%s:%d: a path of somebody's machine: %s" %
                                    (name, number, match.group(0)))
        if not name.endswith(SOURCES):
            continue
        by_folder.setdefault(os.path.dirname(name), []).append(os.path.basename(name))
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(1)
            if included.startswith("."):
                problems.append("%s:%d: relative include of %s; write it from the root" %
                                (name, number, included))
                continue
            why = include_problem(name, included)
            if why:
                problems.append("%s:%d: may not include %s: %s" % (name, number, included, why))
    for folder, names in sorted(by_folder.items()):
        readme = os.path.join(root, folder, "README.md")
        if not os.path.exists(readme):
            continue
        with open(readme, encoding="utf-8") as f:
            text = f.read()
        for name in names:
            stem = re.sub(r"((_bpf)?_test)?(\.bpf)?\.(h|cc|c)$", "", name)
            if stem not in text:
                problems.append("%s/README.md: does not name %s" % (folder, name))
    return problems


def self_test():
    """Every rule must catch its violation, and only that."""
    spdx = "// SPDX-License-Identifier: Apache-2.0\n"

    def inc(path):
        return spdx + '#include "%s"\n' % path

    good = {
        "userspace/model/a.h": inc("userspace/decode/snapshot.h"),
        "userspace/model/b.cc": inc("bpf/abi/board.h"),
        "userspace/base/c.cc": inc("userspace/base/c.h"),
        "cupti/nccl/d.cc": inc("cupti/board/board.h"),
        "cupti/board/e.cc": inc("bpf/abi/board.h"),
        "cupti/board/e_test.cc": inc("userspace/decode/board_decode.h"),
        "tools/lab/f.cc": inc(ABI),
        "tests/bench/g.cc": inc(ABI),
        "tools/mycroft/h.cc": inc("userspace/report/verdict.h"),
        "docs/i.md": "reads /proc/PID/root/usr and /home/$USER\n",
        "tools/run": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n",
        "userspace/align/README.md": "* x.h: y\n",
        "userspace/align/x.h": spdx,
    }
    bad = {
        "userspace/decode/a.h": (inc("userspace/model/job.h"), "to the right"),
        "userspace/base/b.h": (inc("userspace/source/proc.h"), "to the right"),
        "userspace/model/c.cc": (inc("cupti/board/board.h"), "may not include cupti"),
        "userspace/model/d.cc": (inc("tools/lab/x.h"), "may not include tools"),
        "userspace/model/e.cc": (inc("bpf/lib/x.h"), "bpf/abi only"),
        "cupti/nccl/f.cc": (inc("userspace/base/log.h"), "inside the training process"),
        "cupti/board/g.cc": (inc("cupti/nccl/names.h"), "does not know NCCL"),
        "tools/mycroft/h.cc": (inc(ABI), "binary interface"),
        "tools/mycroft/i.cc": (inc("tools/lab/job/job.h"), "does not know the lab"),
        "tools/lab/j.cc": (inc("tools/mycroft/main.h"), "does not know the command"),
        "bpf/abi/k.h": (inc("userspace/base/log.h"), "bpf only"),
        "userspace/base/l.cc": (inc("tests/lab/x.h"), "nobody includes tests"),
        "userspace/base/m.cc": (inc("../base/x.h"), "relative include"),
        "userspace/base/n.cc": ("int x;\n", "SPDX"),
        "tools/o": ("#!/bin/sh\n", "SPDX"),
        "CMakeLists.txt": ("project(x)\n", "SPDX"),
        "docs/p.md": ("see /home/somebody/x\n", "somebody's machine"),
        "docs/q.md": ("see `/root/x`\n", "somebody's machine"),
        "userspace/align/README.md": ("* nothing\n", "does not name"),
    }
    with tempfile.TemporaryDirectory() as root:
        def write(name, text):
            full = os.path.join(root, name)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)
        for name, text in good.items():
            write(name, text)
        failures = ["good tree: " + p for p in check(root)]
        for name, (text, expected) in bad.items():
            write(name, text)
            found = [p for p in check(root) if p.startswith(name)]
            if len(found) != 1 or expected not in found[0]:
                failures.append("%s: expected one problem with '%s', found %s" %
                                (name, expected, found))
            if name in good:
                write(name, good[name])
            else:
                os.remove(os.path.join(root, name))
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        problems = self_test()
        checked = "self-test"
    elif len(sys.argv) == 2 and os.path.isdir(sys.argv[1]):
        problems = check(sys.argv[1])
        checked = sys.argv[1]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    for problem in problems:
        print(problem)
    print("%s: %d problems" % (checked, len(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
