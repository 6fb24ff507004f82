"""scripts/mutate on a made-up project: which mutants are drawn, which of them its tests kill, and what is refused."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(sys.argv.pop(1), "scripts", "mutate")
FILES = {
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.22)
project(made C)
enable_testing()
add_library(made STATIC host/kv/sum.c)
add_executable(t_kv test.c)
target_link_libraries(t_kv made)
add_test(NAME kv COMMAND t_kv)
add_executable(t_other other.c)
target_link_libraries(t_other made)
add_test(NAME other COMMAND t_other)
""",
    "host/kv/sum.c": """/* a < b in a comment, and "a < b" in a string, are no code */
int sum(int a, int b)
{
    return a + b;
}
int other(int a, int b)
{
    return a < b;
}
int forever(int n)
{
    volatile int sum = 0;
    while (n > 0)
        sum = (sum + n--) % 1000;
    return sum;
}
""",
    "test.c": """#include <sys/wait.h>
#include <unistd.h>
int sum(int, int), forever(int);
int main(void)
{
    int status = 0;
    if (fork() == 0) { /* in a session of its own, as Criterion does */
        setsid();
        return forever(4) != 10;
    }
    wait(&status);
    return sum(2, 3) != 5 || status;
}
""",
    "other.c": """#include <stdio.h>
int other(int, int);
int main(void)
{
    FILE *f = fopen("ran", "a");
    fputs("once\\n", f);
    fclose(f);
    return !other(1, 2);
}
""",
}


def call(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600, **more)


def readlink(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Mutate(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        self.write(FILES)
        os.makedirs(self.root + "/scripts")
        shutil.copy(SCRIPT, self.root + "/scripts/mutate")
        self.commit()

    def write(self, files):
        for name, text in files.items():
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)

    def commit(self):
        for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", "--no-verify"]):
            self.assertEqual(call("git", "-C", self.root, *words).returncode, 0)

    def mutate(self, *words):
        return call(self.root + "/scripts/mutate", "--folder", self.root + "/build", *words)

    def test_killed_and_survivors(self):
        out = self.root + "/out.json"
        done = self.mutate("--rooms", "host/kv", "--out", out)
        with open(out, encoding="utf-8") as f:
            rows = {(r["line"], r["before"], r["after"]): r["killer"] for r in map(json.loads, f)}
        self.assertFalse([r for r in rows if r[0] == 1], "changed a comment or a string")
        self.assertEqual(rows[4, "+", "-"], "kv")
        self.assertIsNone(rows[8, "<", "<="])
        self.assertEqual(rows[8, "<", ">"], "other")
        with open(self.root + "/build/build/ran", encoding="utf-8") as f:
            self.assertEqual(len(f.readlines()), 1 + 1 + 2, "runs for the lines that it covers only")
        self.assertEqual(rows[13, ">", ">="], None)  # the same sum: n = 0 adds nothing
        self.assertEqual(rows[14, "--", "++"], "kv")  # killed for its time
        left = [p for p in glob.glob("/proc/[0-9]*/exe") if self.root in readlink(p)]
        self.assertFalse(left, "processes are left behind")
        killed = sum(k is not None for k in rows.values())
        self.assertIn(f"{killed} of {len(rows)} mutants killed by ctest -LE long", done.stdout)
        with open(self.root + "/host/kv/sum.c", encoding="utf-8") as f:
            self.assertEqual(f.read(), FILES["host/kv/sum.c"])
        again = self.mutate("--again", out, "--require", "1")  # only the survivors
        self.assertIn(f"0 of {len(rows) - killed} mutants", again.stdout)
        self.assertEqual((done.returncode, again.returncode), (0, 1))

    def test_refused(self):
        done = self.mutate("--rooms", "host/none")
        self.assertEqual((done.returncode, done.stderr), (2, "mutate: there is nothing to change in host/none\n"))
        self.write({"test.c": "int main(void) { return 1; }\n"})
        self.commit()
        done = self.mutate("--rooms", "host/kv")
        self.assertEqual((done.returncode, done.stderr), (2, "mutate: the test kv fails without a mutant\n"))


if __name__ == "__main__":
    unittest.main()
