#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/vm/run promises: output, exit status, shares, time limit, clear errors.

  runner_test.py ROOT
"""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = ""


def tool(name, *arguments, **environment):
    result = subprocess.run([os.path.join(ROOT, "tools/vm", name), *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, **environment), check=False)
    print("$ %s %s -> %d\n%s" % (name, " ".join(arguments)[:120], result.returncode,
                                 result.stderr[-1500:]), flush=True)
    return result


class Usage(unittest.TestCase):
    def test_wrong_usage(self):
        for words, said in (([], "KERNEL"), (["6.1"], "no COMMAND"), (["6.1", "--"], "no COMMAND"),
                            (["5.4", "--", "true"], "'5.4'"),
                            (["6.1", "--timeout", "0", "--", "true"], "--timeout"),
                            (["6.1", "--cpus", "0", "--", "true"], "--cpus"),
                            (["6.1", "--memory", "2", "--", "true"], "--memory"),
                            (["6.1", "--topology", "ring", "--", "true"], "--topology"),
                            (["6.1", "--env", "A-B=1", "--", "true"], "A-B"),
                            (["6.1", "--no-such", "--", "true"], "--no-such"),
                            (["6.1", "--out", "/no/such", "--", "true"], "/no/such")):
            result = tool("run", *words)
            self.assertEqual(result.returncode, 2, words)
            self.assertIn(said, result.stderr, words)
            self.assertEqual(result.stdout, "", words)
        for words in ([], ["5.4"], ["--bogus", "6.1"], ["6.1", "6.12"]):
            self.assertEqual(tool("kernel", *words).returncode, 2, words)

    def test_help(self):
        for name in ("run", "kernel", "soft-roce", "pcie"):
            result = tool(name, "--help")
            self.assertEqual(result.returncode, 0, name)
            self.assertIn("usage", result.stdout.lower(), name)

    def test_no_kernel_in_a_folder(self):
        with tempfile.TemporaryDirectory() as empty:
            result = tool("run", empty, "--", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn("no unpacked kernel package", result.stderr)

    def test_offline(self):
        """An empty cache and an archive that does not answer: a reason, and nothing left."""
        with tempfile.TemporaryDirectory() as empty:
            offline = {"MYCROFT_VM_CACHE": empty, "http_proxy": "http://127.0.0.1:9",
                       "https_proxy": "http://127.0.0.1:9"}
            # By its own environment: another proxy of apt's configuration would win.
            config = os.path.join(empty, "apt.conf")
            with open(config, "w", encoding="ascii") as f:
                f.write('Acquire::http::Proxy "http://127.0.0.1:9";\nAcquire::Retries "0";\n')
            result = tool("run", "6.12", "--", "true", APT_CONFIG=config, **offline)
            self.assertEqual(result.returncode, 3)
            self.assertIn("kernel 6.12 is not in", result.stderr)
            self.assertIn("bookworm-backports", result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertEqual(set(os.listdir(empty)), {".lock", "apt.conf"})

    def test_not_on_the_host(self):
        for name, words in (("soft-roce", ["up"]), ("pcie", ["list"])):
            result = tool(name, *words)
            self.assertEqual(result.returncode, 2)
            self.assertIn("only inside tools/vm/run", result.stderr)


class Machine(unittest.TestCase):
    def test_output_status_shares(self):
        with tempfile.TemporaryDirectory() as out:
            console = os.path.join(out, "console")
            result = tool("run", "6.1", "--out", out, "--env", "WORD=a b'c", "--cpus", "1",
                          "--memory", "512M", "--console", console, "--", "sh", "-c",
                          "uname -r; echo \"$WORD\"; pwd; nproc; echo to stderr >&2; "
                          "id -u; echo result >/out/file; touch /tmp/gone-$WORD /etc/gone; "
                          "exit 7", "argument with ' quote")
            self.assertEqual(result.returncode, 7)
            lines = result.stdout.splitlines()
            self.assertRegex(lines[0], r"^6\.1\.0-\d+-amd64$")
            self.assertEqual(lines[1:], ["a b'c", os.getcwd(), "1", "0"])
            self.assertEqual(result.stderr, "to stderr\n")
            with open(os.path.join(out, "file"), encoding="ascii") as f:
                self.assertEqual(f.read(), "result\n")
            self.assertTrue(os.path.exists(console))
            self.assertFalse(os.path.exists("/etc/gone"))  # the guest's root is its own

    def test_timeout(self):
        result = tool("run", "6.1", "--timeout", "2", "--", "sh", "-c",
                      "echo started; sleep 1000; echo never")
        self.assertEqual(result.returncode, 124)
        self.assertEqual(result.stdout, "started\n")
        self.assertIn("timeout: the command did not end within 2 s", result.stderr)

    def test_a_guest_that_dies(self):
        result = tool("run", "6.1", "--", "sh", "-c",
                      "echo before; sync; echo c >/proc/sysrq-trigger; sleep 1000")
        self.assertEqual(result.returncode, 125)
        self.assertEqual(result.stdout, "before\n")
        self.assertIn("Kernel panic - not syncing: sysrq triggered crash", result.stderr)


if __name__ == "__main__":
    ROOT = os.path.realpath(sys.argv[1])
    sys.dont_write_bytecode = True
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
