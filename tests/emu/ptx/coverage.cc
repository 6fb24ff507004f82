// GR_EMU_COVERAGE=FOLDER: the instructions that launches of any process execute, for `coverage`.
//
// For each decoded entry FOLDER/TARGET/NAME.executed has one byte for each instruction, not 0 if it
// was executed, and NAME.lines one line for each: the place in the source, the PTX.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "machine.hpp"

namespace ptx
{
static unsigned char ignored; // of all instructions without GR_EMU_COVERAGE

// n bytes of a file, shared with other processes; mapped until the process ends.
static unsigned char *map_file(const std::string &path, size_t n)
{
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *p = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)n))
        p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        refuse("GR_EMU_COVERAGE: %s: %s", path.c_str(), strerror(errno));
    close(fd);
    return static_cast<unsigned char *>(p);
}

static void write_lines(const Entry &e, const std::string &path)
{
    const std::string made = path + "." + std::to_string(getpid());
    std::ofstream out(made);
    for (const Inst &i : e.code)
        out << place_of(e, i) << '\t' << text_of(e, i) << '\n';
    out.close();
    if (!out || rename(made.c_str(), path.c_str())) // other processes write the same lines
        refuse("GR_EMU_COVERAGE: %s: %s", path.c_str(), strerror(errno));
}

void begin_coverage(Entry &e)
{
    const char *folder = getenv("GR_EMU_COVERAGE");
    unsigned char *executed = nullptr;
    if (folder) {
        const std::string target = std::string(folder) + "/" + e.module->target;
        std::error_code error;
        std::filesystem::create_directories(target, error);
        executed = map_file(target + "/" + e.name + ".executed", e.code.size());
        write_lines(e, target + "/" + e.name + ".lines");
    }
    for (size_t k = 0; k < e.code.size(); k++)
        e.code[k].executed = executed ? executed + k : &ignored;
}
} // namespace ptx
