// t_ptx [NAME]: tests of the interpreter, or those whose names begin with NAME. Exit code 1 when
// one failed, 2 when there is none.
#include "test.hpp"

#include <stdarg.h>
#include <stdio.h>

#include <memory>

namespace
{
struct Known {
    const char *name;
    void (*run)();
};
std::vector<Known> &tests()
{
    static std::vector<Known> all;
    return all;
}
int n_wrong; // of the running test
} // namespace

Test::Test(const char *name, void (*run)())
{
    tests().push_back({name, run});
}

void expect_at(bool is, const char *file, int line, const char *form, ...)
{
    if (is || ++n_wrong > 10)
        return;
    va_list list;
    va_start(list, form);
    printf("%s:%d: ", file, line);
    vprintf(form, list);
    printf("\n");
    va_end(list);
}

Kernel::Kernel(int n_param, const std::string &body, const std::string &outside)
{
    std::string text =
        ".version 8.6\n.target sm_90a\n.address_size 64\n" + outside + "\n.visible .entry k(";
    for (int i = 0; i < n_param; i++)
        text += (i ? ", " : "") + (".param .u64 p" + std::to_string(i));
    text += ")\n{\n" + body + "\nret;\n}\n";
    const char *line = nullptr;
    image = emu_image_open(text.c_str(), 90, &line);
    kernel = image ? emu_image_find(image, "k", &line) : nullptr;
    if (!kernel)
        why = line ? line : "no entry k";
}

Kernel::~Kernel()
{
    if (image)
        emu_image_close(image);
}

std::string Kernel::run(const std::vector<uint64_t> &params, uint32_t threads, uint32_t blocks,
                        uint32_t smem_bytes, uint32_t cluster) const
{
    if (!kernel)
        return "refused: " + why;
    const struct emu_shape shape = {
        {blocks, 1, 1}, {threads, 1, 1}, {cluster, cluster != 0, cluster != 0}, smem_bytes, 0};
    return emu_launch(kernel, &shape, params.data()) ? emu_report() : "";
}

int main(int argc, char **argv)
{
    int n_failed = 0, n_run = 0;
    for (const Known &t : tests()) {
        if (argc > 1 && strncmp(t.name, argv[1], strlen(argv[1])))
            continue;
        n_wrong = 0;
        t.run();
        n_run++;
        n_failed += n_wrong > 0;
        printf("%s %s%s\n", n_wrong ? "FAIL" : "ok", t.name,
               n_wrong > 10 ? (" (" + std::to_string(n_wrong) + " differences)").c_str() : "");
    }
    printf("%d tests, %d failed\n", n_run, n_failed);
    return n_failed ? 1 : n_run ? 0 : 2;
}
