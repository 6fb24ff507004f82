// Report of the faults of a launch, in words.
#include <stdio.h>
#include <string.h>

#include <map>

#include "engine.hpp"

namespace emu
{
// --- places ---

std::string place(Site site)
{
    return format("%s:%d", site.file, site.line);
}

static constexpr uint32_t is_site = 1u << 31;
static std::vector<Site> sites;

uint32_t place_of(Site site)
{
    static std::map<std::pair<const char *, int>, uint32_t> numbers;
    auto [at, fresh] = numbers.insert({{site.file, site.line}, is_site | (uint32_t)sites.size()});
    if (fresh)
        sites.push_back(site);
    return at->second;
}

uint32_t place_of_code(const void *from)
{
    return (uint32_t)((uintptr_t)from - 1 - image.base);
}

std::string place_text(uint32_t number)
{
    return number & is_site ? place(sites[number & ~is_site]) : format("{%x}", number);
}

// The lines that addr2line gives for one address: of the innermost function, which may be inlined,
// first. The one that is wanted is not in the models.
static std::string line_of(const std::string &address)
{
    std::string best = address;
    FILE *f =
        popen(("addr2line -i -e '" + image.path + "' " + address + " 2>/dev/null").c_str(), "r");
    char line[1024];
    for (bool found = false; f && fgets(line, sizeof line, f);) {
        std::string at(line, strcspn(line, " \n"));
        if (found || at[0] == '?')
            continue;
        best = at;
        found = at.find("tests/emu/device/") == std::string::npos;
    }
    if (f)
        pclose(f);
    size_t root = strlen(EMU_ROOT);
    return best.compare(0, root, EMU_ROOT) ? best : best.substr(root);
}

// Code addresses in the report become lines.
void tell_lines()
{
    std::map<std::string, std::string> lines;
    size_t at = 0;
    while ((at = report.find('{', at)) != std::string::npos) {
        size_t end = report.find('}', at);
        std::string address = "0x" + report.substr(at + 1, end - at - 1);
        if (!lines.count(address))
            lines[address] = line_of(address);
        report.replace(at, end - at + 1, lines[address]);
    }
}

static std::string where_block()
{
    return format("kernel %s, block (%u, %u, %u)", launch.kernel->name, block_index.x,
                  block_index.y, block_index.z);
}

std::string here()
{
    uint3 t = current->thread;
    return where_block() + format(", thread (%u, %u, %u)", t.x, t.y, t.z);
}

void fail_text(const std::string &text)
{
    report_add(text);
    void *unused;
    emu_switch(&unused, block.outside);
    __builtin_unreachable();
}

void fail(Site site, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    std::string text = format_list(form, list);
    va_end(list);
    fail_text(here() + ": " + place(site) + ": " + text);
}

void note(Site site, const char *form, ...)
{
    va_list list;
    va_start(list, form);
    std::string text = format_list(form, list);
    va_end(list);
    report_add(here() + ": " + place(site) + ": " + text);
}

// "0-31, 40": numbers of threads, ascending.
static std::string ranges(const std::vector<uint32_t> &number)
{
    std::string text;
    for (size_t i = 0, k; i < number.size(); i = k) {
        for (k = i + 1; k < number.size() && number[k] == number[k - 1] + 1;)
            k++;
        text += format(k - i > 1 ? "%s%u-%u" : "%s%u", i ? ", " : "", number[i], number[k - 1]);
    }
    return text;
}

void fail_stuck()
{
    std::map<std::string, std::vector<uint32_t>> waiting;
    std::vector<uint32_t> ended;
    for (uint32_t i = 0; i < block.n_thread; i++) {
        const Thread &t = block.thread[i];
        if (t.warp->ended >> t.lane & 1)
            ended.push_back(i);
        else
            waiting[format("wait in %s at %s", t.waits_for, place(t.site).c_str())].push_back(i);
    }
    std::string text = where_block() + ": no thread can go on:";
    const char *join = " ";
    for (const auto &[what, threads] : waiting) {
        text += join + ("threads " + ranges(threads)) + " " + what;
        join = "; ";
    }
    if (!ended.empty())
        text += join + ("threads " + ranges(ended)) + " have returned";
    fail_text(text + engine_state());
}
} // namespace emu
