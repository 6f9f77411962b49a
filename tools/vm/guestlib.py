# SPDX-License-Identifier: Apache-2.0
"""What the programs inside the guest share: truth files and running commands."""

import json
import os
import subprocess
import sys
import time


def fail(text, code=1):
    print("%s: %s" % (os.path.basename(sys.argv[0]), text), file=sys.stderr)
    sys.exit(code)


def require_guest():
    """These programs break network devices on purpose: in the guest only."""
    if not os.path.exists("/run/vm/command.sh"):
        fail("this works only inside tools/vm/run", 2)


def run(*command, text=None):
    result = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, check=False)
    if result.returncode != 0:
        fail("%s: %s" % (" ".join(command), (result.stderr or result.stdout).strip()))
    return result.stdout


def read(path, default=None):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return default


def write(path, text):
    try:
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
    except OSError as e:
        fail("%s: %s" % (path, e.strerror))


class Truth:
    """One fault, written to a file when it begins and again when it ends.

    The keys are those of the lab job's truth file: {"faults": [{"kind", "component",
    "amount", "unit", "onset", "clear", "windows", ...}]}, times in nanoseconds of
    CLOCK_MONOTONIC, `clear` 0 while the fault holds. The onset is taken just before the
    fault is made and the end just after it is undone, so that the window contains it.
    """

    def __init__(self, path, **fault):
        self.path = path
        self.fault = dict(fault, onset=0, clear=0, windows=[])

    def begin(self):
        now = time.monotonic_ns()
        self.fault["onset"] = self.fault["onset"] or now
        self.fault["clear"] = 0
        self.fault["windows"].append([now, 0])
        return self

    def end(self):
        now = time.monotonic_ns()
        self.fault["clear"] = now
        self.fault["windows"][-1][1] = now
        self.save()

    def save(self):
        if self.path is None:
            return
        with open(self.path + ".new", "w", encoding="ascii") as f:
            json.dump({"faults": [self.fault]}, f, indent=1)
            f.write("\n")
        os.rename(self.path + ".new", self.path)
