"""scripts/structure on a made-up tree with circles of files and of rooms.   structure.py SOURCE_DIR CC"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE, CC = os.path.abspath(sys.argv[1]), sys.argv[2]

# Two rooms without a circle: a source and its header are two files, so one header that includes another makes none.
TREE = {
    "include/gr/ok.h": "int gr_ok(void);\n",
    "host/low/low.h": '#include "gr/ok.h"\nint gr_low(void);\n',
    "host/low/low.c": '#include "low/low.h"\nint gr_worker_thread(void);\nint gr_low(void) { return gr_worker_thread(); }\n',
    "host/low/helper.c": '#include "low.h"\nint gr_worker_thread(void) { return gr_low(); }\n',
    "host/high/high.h": '  #  include "low/low.h"\nint gr_high(void);\n',
    "host/high/high.c": '#include "high/high.h"\nint gr_high(void) { return gr_low(); }\n',
    "tools/main.c": "int gr_high(void);\nint main(void) { return gr_high(); }\n",
}


class Structure(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = os.path.join(self.folder.name, "build")
        os.mkdir(self.build)
        for path, text in TREE.items():
            self.write(path, text)

    def write(self, path, text):
        full = os.path.join(self.folder.name, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "a", encoding="utf-8") as f:
            f.write(text)

    def compile(self):
        commands = []
        for folder, _, names in os.walk(self.folder.name):
            for name in sorted(names):
                source = os.path.join(folder, name)
                if name.endswith(".c"):
                    out = os.path.relpath(source, self.folder.name).replace("/", "_") + ".o"
                    flags = ["-I", f"{self.folder.name}/include", "-I", f"{self.folder.name}/host", "-o", out, "-c", source]
                    subprocess.run([CC, *flags], cwd=self.build, check=True)
                    commands.append({"directory": self.build, "command": f"cc {' '.join(flags)}", "file": source})
        with open(os.path.join(self.build, "compile_commands.json"), "w", encoding="utf-8") as f:
            json.dump(commands, f)

    def run_it(self, *arguments):
        done = subprocess.run([f"{SOURCE}/scripts/structure", "--root", self.folder.name, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def judged(self, *arguments):
        status, out, err = self.run_it("--json", *arguments)
        self.assertEqual(err, "")
        return status, json.loads(out)

    def test_no_circle_of_rooms(self):
        self.compile()
        status, found = self.judged()
        self.assertEqual((status, found["circles of rooms"]), (0, []))
        self.assertEqual(found["circles of files"], [["host/low/helper.c", "host/low/low.c"]], "two files may use each other")
        self.assertEqual(found["rooms"]["host/high"], {"host/low": 2})
        self.assertEqual((found["files"], found["rooms"]["tools"]), (7, {"host/high": 1}))

    def test_three_files_of_a_room(self):
        self.write("host/low/low.c", "int gr_third(void);\nint gr_more(void) { return gr_third(); }\n")
        self.write("host/low/third.c", "int gr_worker_thread(void);\nint gr_third(void) { return gr_worker_thread(); }\n")
        self.compile()
        status, found = self.judged()
        self.assertEqual((status, found["circles of rooms"]), (1, []))
        self.assertEqual(found["circles of files"], [["host/low/helper.c", "host/low/low.c", "host/low/third.c"]])

    def test_rooms_by_a_symbol(self):
        self.write("host/low/helper.c", "int gr_back(void);\nint gr_more(void) { return gr_back(); }\n")
        self.write("host/high/back.c", "int gr_back(void) { return 1; }\n")
        self.compile()
        status, found = self.judged()
        self.assertEqual((status, found["circles of rooms"]), (1, [["host/high", "host/low"]]))
        self.assertEqual(len(found["circles of files"]), 1, "no file of the circle of rooms is in one itself")
        status, out, _ = self.run_it("host/low", "host/high/")
        self.assertEqual((status, out), (0, "host/low/helper.c -> host/high/back.c: gr_back\n"))
        self.assertEqual(self.judged("--includes")[0], 0)
        self.assertIn("circle of 2 rooms:\n    host/high -> host/low 2\n    host/low -> host/high 1\n", self.run_it()[1])

    def test_rooms_by_includes(self):
        self.write("host/low/low.h", '#include "high/high.h"\n')
        status, found = self.judged("--includes")
        self.assertEqual((status, found["circles of rooms"]), (1, [["host/high", "host/low"]]))
        self.assertEqual(found["circles of files"], [["host/high/high.h", "host/low/low.h"]])

    def test_a_symbol_of_two_files(self):
        self.write("host/low/helper.c", "int gr_either(void);\nint gr_more(void) { return gr_either(); }\n")
        for name in ("one", "two"):
            self.write(f"host/high/{name}.c", "int gr_either(void) { return 1; }\n")
        self.compile()
        self.assertEqual(self.judged()[1]["rooms"]["host/low"], {"include/gr": 1}, "which one is meant is not known")

    def test_object_files_are_needed(self):
        status, out, err = self.run_it()
        self.assertEqual((status, out), (2, ""))
        self.assertIn("no object files", err)
        self.compile()
        os.utime(os.path.join(self.folder.name, "host/low/low.c"), (4e9, 4e9))
        status, out, err = self.run_it()
        self.assertEqual((status, out), (2, ""))
        self.assertIn("of host/low/low.c:", err)

    def test_wrong_rooms(self):
        for rooms in (["host/low"], ["host/low", "host/none"]):
            self.assertEqual(self.run_it("--includes", *rooms)[:2], (2, ""))


unittest.main(argv=sys.argv[:1])
