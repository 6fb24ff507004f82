// Options of launches, from GR_EMU and emu_set, and the random numbers of their schedules.
#include <stdlib.h>
#include <string.h>

#include "common.hpp"

namespace emu
{
struct emu_options options;
std::mutex running;
static uint64_t state = 1;

uint32_t random_below(uint32_t n)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
}

// The same seed gives the same schedules, launch for launch.
static void seed(uint64_t seed)
{
    state = (seed + 1) * 0x9e3779b97f4a7c15ull;
    state = (state ^ state >> 31) | 1;
}

// GR_EMU=policy:seed[:preempt]
__attribute__((constructor)) static void options_from_environment()
{
    static const char *const policies[] = {"in-order", "random", "priorities"};
    const char *text = getenv("GR_EMU");
    for (int i = 0; text && i < 3; i++) {
        size_t n = strlen(policies[i]);
        if (strncmp(text, policies[i], n) || (text[n] != ':' && text[n]))
            continue;
        options.policy = (enum emu_policy)i;
        char *end = nullptr;
        if (text[n])
            options.seed = strtoull(text + n + 1, &end, 10);
        if (end && *end == ':')
            options.preempt = (uint32_t)strtoul(end + 1, nullptr, 10);
    }
    seed(options.seed);
}
} // namespace emu

using namespace emu;

void emu_set(const struct emu_options *o)
{
    std::lock_guard<std::mutex> guard(running);
    options = *o;
    seed(o->seed);
}
