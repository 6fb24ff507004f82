// Facts about each kernel on which the two readings of it agree: its source compiled as C++
// (libcuda_emu.so), and its PTX.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "test.hpp"

namespace
{
const std::map<std::string, uint32_t> static_bytes = {
#define STATIC(kernel, bytes) {#kernel, bytes},
#include "tests/emu/static_smem.def"
#undef STATIC
};

std::vector<std::string> entries_of(const std::string &texts)
{
    std::vector<std::string> names;
    const std::string begin = ".visible .entry ";
    for (size_t at = 0; (at = texts.find(begin, at)) != std::string::npos;) {
        at += begin.size();
        names.push_back(texts.substr(at, texts.find('(', at) - at));
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

void compare(const struct emu_kernel &ptx, const struct emu_kernel *source, int cc)
{
    EXPECT(source, "%s, %d: the source has no such kernel", ptx.name, cc);
    if (!source)
        return;
    const uint32_t end = ptx.n_param ? ptx.param_at[0] + ptx.param_bytes[0] : 0;
    EXPECT(ptx.n_param <= 1 && end == source->args_bytes,
           "%s, %d: %u parameters, the first ends at %u; the struct has %zu bytes", ptx.name, cc,
           ptx.n_param, end, source->args_bytes);
    EXPECT(ptx.max_threads == source->max_threads && ptx.min_blocks == source->min_blocks,
           "%s, %d: launch bounds %u, %u; %u, %u of the source", ptx.name, cc, ptx.max_threads,
           ptx.min_blocks, source->max_threads, source->min_blocks);
    const auto known = static_bytes.find(ptx.name);
    const uint32_t bytes = known == static_bytes.end() ? 0 : known->second;
    EXPECT(ptx.static_bytes == bytes, "%s, %d: %u bytes of static shared memory, %u by ptxas",
           ptx.name, cc, ptx.static_bytes, bytes);
}
} // namespace

TEST(fronts_agree)
{
    // its own emu_ functions, not those of this program's front
    void *emu = dlopen(EMU_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    const auto find =
        emu ? reinterpret_cast<const struct emu_kernel *(*)(const char *)>(dlsym(emu, "emu_find"))
            : nullptr;
    EXPECT(find, "%s", find ? "" : dlerror());
    size_t n_90 = 0, n_80 = 0, n_static = 0;
    for (const auto &file : std::filesystem::directory_iterator(KERNEL_TEXTS)) {
        if (!find || file.path().extension() != ".texts")
            continue;
        std::ifstream in(file.path(), std::ios::binary);
        const std::string texts{std::istreambuf_iterator<char>(in), {}};
        for (int cc : {90, 80}) {
            const char *why;
            struct emu_image *image = emu_image_open(texts.c_str(), cc, &why);
            EXPECT(image || !why, "%s: %s", file.path().c_str(), why);
            for (const std::string &name : entries_of(texts)) {
                const struct emu_kernel *k =
                    image ? emu_image_find(image, name.c_str(), &why) : nullptr;
                EXPECT(k || !why, "%s", why);
                if (!k)
                    continue;
                compare(*k, find(name.c_str()), cc);
                (cc == 90 ? n_90 : n_80)++;
                n_static += static_bytes.count(name) && cc == 90;
            }
            if (image)
                emu_image_close(image);
        }
    }
    EXPECT(n_90 > n_80 && n_80 > 100 && n_static == static_bytes.size(),
           "%zu kernels for 9.0, %zu for 8.0, %zu of %zu with static shared memory", n_90, n_80,
           n_static, static_bytes.size());
    if (emu)
        dlclose(emu);
}
