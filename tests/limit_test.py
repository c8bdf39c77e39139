#!/usr/bin/env python3
"""Checks limit.py with programs that print as a test program does."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LIMIT = Path(__file__).with_name("limit.py")


def run(script, **environment):
    """The status and the output of a program under the limit."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "it-0123456789abcdef")
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        settings = {name: value for name, value in os.environ.items() if name != "RUST_TEST_THREADS"}
        done = subprocess.run(
            [sys.executable, LIMIT, program], env={**settings, **environment}, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout


class Limit(unittest.TestCase):
    def test_a_program_that_hangs_is_ended_and_its_tests_are_named(self):
        long = "echo 'test {} has been running for over 60 seconds'"
        script = "\n".join([long.format("a::hangs"), long.format("b::ends"), "echo 'test b::ends ... ok'", "sleep 1000"])
        status, said = run(script, TEST_QUIET_SECS="0.3")
        self.assertEqual(status, 101)
        self.assertIn("it: no test has ended for 0.3 s. Still running: a::hangs\n", said)

    def test_a_program_that_fails_has_its_status(self):
        self.assertEqual(run("echo 'test a ... FAILED'; exit 101")[0], 101)
        self.assertEqual(run("kill -9 $$")[0], 137)

    def test_a_program_that_passes_has_threads_by_its_name(self):
        status, said = run("echo threads $RUST_TEST_THREADS")
        self.assertEqual(status, 0)
        self.assertIn(f"threads {4 * os.cpu_count()}\ntests: it: 0 s, 0 s of processor time\n", said)
        self.assertIn("threads 3\n", run("echo threads $RUST_TEST_THREADS", RUST_TEST_THREADS="3")[1])


if __name__ == "__main__":
    unittest.main()
