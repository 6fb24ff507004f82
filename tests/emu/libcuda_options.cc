// The emulated driver: what each call begins with, options, failures on request, counts, reports.
#include "tests/emu/libcuda_state.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace drv
{

state S;

// --- the current context of each thread ---

static pthread_key_t context_key()
{
    static const pthread_key_t key = [] {
        pthread_key_t k;
        if (pthread_key_create(&k, nullptr))
            abort(); // out of keys: nothing here would work
        return k;
    }();
    return key;
}

void *current_context()
{
    return pthread_getspecific(context_key());
}

void set_current_context(void *handle)
{
    pthread_setspecific(context_key(), handle);
}

// --- reports ---

const char *of_handle(bool was)
{
    return was ? "destroyed" : "not one";
}

void misuse(context *ctx, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (S.lines.size() < 200)
        S.lines.push_back(line);
    else
        S.lines_lost++;
    if (!S.opt.quiet)
        fprintf(stderr, "emulated driver: %s\n", line);
    if (S.opt.strict && ctx && !ctx->error)
        ctx->error = CU_UNKNOWN;
}

// --- counts and failures ---

static const char *const symbols[] = {
#define FN(name, symbol, params) #symbol,
#include "cuda/driver.def"
#undef FN
#define FN(type, name, symbol, since, params) #symbol,
#include "cuda/nccl.def"
#undef FN
#define FN(type, name, symbol, params) #symbol,
#include "cuda/cublaslt.def"
#undef FN
    "kernel",
    "early",
};

static bool is_symbol(const char *name)
{
    for (const char *s : symbols)
        if (!strcmp(s, name))
            return true;
    for (const char *const *s = nccl_faults; *s; s++)
        if (!strcmp(*s, name))
            return true;
    return false;
}

void count_bytes(const char *symbol, uint64_t bytes)
{
    S.counters[symbol].bytes += (int64_t)bytes;
}

bool is_sticky(int error) // raised by the device while it worked
{
    return error == 214 || error == 700 || error == 702 || error == 710 ||
           (error >= 714 && error <= 719);
}

int add_failure(const std::string &symbol, int64_t nth, int error)
{
    if (!symbol.empty() && !is_symbol(symbol.c_str()))
        return 1;
    if (nth <= 0)
        S.failures.clear();
    else
        S.failures.push_back({symbol, nth, error});
    return 0;
}

int take_failure(const char *symbol, bool entry_point)
{
    int error = CU_OK;
    for (size_t i = 0; i < S.failures.size();) {
        failure &f = S.failures[i];
        bool meant = f.symbol.empty() ? entry_point : f.symbol == symbol;
        if (meant && --f.nth == 0) {
            error = f.error;
            S.failures.erase(S.failures.begin() + (ptrdiff_t)i);
        } else {
            i++;
        }
    }
    return error;
}

// --- calls ---

static void configure(const char *text)
{
    forget_everything();
    S.bad_options.clear();
    S.opt = options();
    S.configured = true;
    if (parse_options(text ? text : "", &S.opt, &S.bad_options))
        misuse(nullptr, "GR_EMU_DEVICE: %s", S.bad_options.c_str());
    S.rng.seed(S.opt.seed);
    S.devices.resize((size_t)S.opt.devices);
    S.initialized = S.initialized && S.opt.devices > 0;
}

call::call(const char *s, int need) : symbol(s), guard(S.lock)
{
    if (!S.configured)
        configure(getenv("GR_EMU_DEVICE"));
    while (S.held == symbol && !pthread_equal(S.holder, pthread_self()))
        nap();
    S.counters[symbol].calls++;
    auto at = S.contexts.find((uint64_t)(uintptr_t)current_context());
    if (at != S.contexts.end())
        ctx = at->second;
    prepare(need);
    if (refused)
        return;
    int injected = take_failure(symbol, true);
    if (injected == CU_OK)
        return;
    if (is_sticky(injected) && ctx)
        ctx->error = injected;
    error = injected;
    refused = !(need & releases);
}

// Checks the conditions of every call.
void call::prepare(int need)
{
    if ((need & initialized) && !S.initialized)
        error = NOT_INITIALIZED;
    else if ((need & current) == current && !current_context())
        error = INVALID_CONTEXT;
    else if ((need & current) == current && !ctx)
        error = CONTEXT_IS_DESTROYED;
    refused = error != CU_OK;
    if (!refused && ctx && ctx->error && (need & current) == current) {
        error = ctx->error;
        refused = !(need & releases);
    }
}

int call::done(int result)
{
    if (error == CU_OK && result == CU_OK && ctx && ctx->error && !ctx->gone)
        return ctx->error; // it came up in this call, or misuse was made one
    return error ? error : result;
}

void forget_everything()
{
    forget_queue();
    forget_comms();
    forget_products();
    S.execs.live.clear();
    S.graphs.live.clear();
    S.events.live.clear();
    S.streams.live.clear();
    S.functions.live.clear();
    S.modules.live.clear();
    size_t memory, host;
    for (auto &c : S.contexts) {
        free_memory_of(c.second.get(), &memory, &host);
        c.second->legacy.reset();
    }
    S.contexts.clear();
    S.devices.clear();
    S.counters.clear();
    S.failures.clear();
    S.held.clear();
    S.lines.clear();
    S.lines_lost = 0;
}

// --- options ---

static bool number(const std::string &text, uint64_t *n)
{
    char *end;
    if (text.empty() || text[0] == '-')
        return false;
    *n = strtoull(text.c_str(), &end, 10);
    switch (*end) {
    case 'K':
        *n <<= 10, end++;
        break;
    case 'M':
        *n <<= 20, end++;
        break;
    case 'G':
        *n <<= 30, end++;
        break;
    default:
        break;
    }
    return *end == 0;
}

static bool parse_driver(const std::string &text, options *o) // "12.8" is 12080
{
    int major, minor, n = 0;
    if (sscanf(text.c_str(), "%d.%d%n", &major, &minor, &n) != 2 || (size_t)n != text.size())
        return false;
    o->driver = major * 1000 + minor * 10;
    return true;
}

static bool parse_version(const std::string &text, int *version) // "2.28.9" is 22809
{
    int major, minor, patch, n = 0;
    if (sscanf(text.c_str(), "%d.%d.%d%n", &major, &minor, &patch, &n) != 3 ||
        (size_t)n != text.size())
        return false;
    *version = major * 10000 + minor * 100 + patch;
    return true;
}

static bool parse_order(const std::string &text, options *o)
{
    if (text == "eager")
        o->order = order::eager;
    else if (text == "late")
        o->order = order::late;
    else if (text == "random")
        o->order = order::random;
    else
        return false;
    return true;
}

static bool parse_failure(const std::string &text) // "cuMemAlloc_v2:3:2", "any:17:999"
{
    char symbol[64];
    long nth;
    int error, n = 0;
    if (sscanf(text.c_str(), "%63[^:]:%ld:%d%n", symbol, &nth, &error, &n) != 3 ||
        (size_t)n != text.size() || nth <= 0)
        return false;
    return add_failure(strcmp(symbol, "any") ? symbol : "", nth, error) == 0;
}

static bool parse_plant(const std::string &text, options *o) // "hang:gr_rope"
{
    size_t colon = text.find(':');
    o->plant = text.substr(0, colon);
    o->planted_in = colon == std::string::npos ? "" : text.substr(colon + 1);
    for (const char *kind : {"hang", "crash", "wrong", "lose"})
        if (o->plant == kind)
            return !o->planted_in.empty();
    return false;
}

static bool parse_number(const std::string &key, const std::string &value, options *o)
{
    struct {
        const char *key;
        int *to;
        uint64_t lo, hi;
    } const ints[] = {
        {"devices", &o->devices, 0, 16},   {"cc", &o->cc, 50, 199},       {"sm", &o->sm, 1, 1024},
        {"smem", &o->smem, 1024, 1 << 20}, {"l2", &o->l2, 1024, 1 << 30},
    };
    uint64_t n;
    if (!number(value, &n))
        return false;
    for (const auto &i : ints)
        if (key == i.key) {
            *i.to = (int)n;
            return n >= i.lo && n <= i.hi;
        }
    uint64_t *to = key == "memory" ? &o->memory
                   : key == "busy" ? &o->busy
                   : key == "seed" ? &o->seed
                                   : nullptr;
    if (to)
        *to = n;
    return to;
}

static bool parse_option(const std::string &item, options *o)
{
    size_t eq = item.find('=');
    std::string key = item.substr(0, eq);
    if (eq == std::string::npos) {
        if (key == "no-device")
            o->devices = 0;
        else if (key == "no-peer")
            o->peers = false;
        else if (key == "no-clusters")
            o->clusters = false;
        else if (key == "strict")
            o->strict = true;
        else if (key == "quiet")
            o->quiet = true;
        else
            return key.empty();
        return true;
    }
    std::string value = item.substr(eq + 1);
    if (key == "driver")
        return parse_driver(value, o);
    if (key == "nccl" || key == "cublaslt")
        return parse_version(value, key == "nccl" ? &o->nccl : &o->cublaslt);
    if (key == "order")
        return parse_order(value, o);
    if (key == "fail")
        return parse_failure(value);
    if (key == "plant")
        return parse_plant(value, o);
    if (key == "name" || key == "lost" || key == "launches") {
        (key == "name" ? o->name : key == "lost" ? o->lost : o->launches) = value;
        return true;
    }
    return parse_number(key, value, o);
}

int parse_options(const char *text, options *o, std::string *why)
{
    std::string rest = text;
    while (!rest.empty()) {
        size_t comma = rest.find(',');
        std::string item = rest.substr(0, comma);
        if (!parse_option(item, o)) {
            *why = "'" + item +
                   "' is not an option of the emulated device; tests/emu/README.md lists them";
            return 1;
        }
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    }
    return 0;
}

} // namespace drv

// --- what tests call ---

using namespace drv;
#define API extern "C" __attribute__((visibility("default")))

API int emu_driver_configure(const char *text)
{
    std::lock_guard<std::mutex> guard(S.lock);
    configure(text ? text : getenv("GR_EMU_DEVICE"));
    return !S.bad_options.empty();
}

API int emu_driver_fail(const char *symbol, int64_t nth, int error)
{
    std::lock_guard<std::mutex> guard(S.lock);
    if (!S.configured)
        configure(getenv("GR_EMU_DEVICE"));
    return add_failure(symbol ? symbol : "", nth, error);
}

API int emu_driver_hold(const char *symbol)
{
    std::lock_guard<std::mutex> guard(S.lock);
    S.held = symbol ? symbol : "";
    S.holder = pthread_self();
    return symbol && !is_symbol(symbol);
}

API int64_t emu_driver_count(const char *symbol)
{
    std::lock_guard<std::mutex> guard(S.lock);
    if (symbol)
        return is_symbol(symbol) ? S.counters[symbol].calls : -1;
    int64_t n = 0;
    for (const auto &c : S.counters)
        n += c.first == "kernel" || c.first == "early" ? 0 : c.second.calls;
    return n;
}

API int64_t emu_driver_bytes(const char *symbol)
{
    std::lock_guard<std::mutex> guard(S.lock);
    return is_symbol(symbol) ? S.counters[symbol].bytes : -1;
}

API int64_t emu_driver_live(const char *kind)
{
    std::lock_guard<std::mutex> guard(S.lock);
    const std::pair<const char *, size_t> kinds[] = {
        {"context", S.contexts.size()},       {"module", S.modules.live.size()},
        {"stream", S.streams.live.size()},    {"event", S.events.live.size()},
        {"graph", S.graphs.live.size()},      {"exec", S.execs.live.size()},
        {"memory", S.memory.size()},          {"host", S.host.size()},
        {"product", (size_t)live_products()},
    };
    int64_t n = 0;
    for (const auto &k : kinds) {
        if (kind && !strcmp(kind, k.first))
            return (int64_t)k.second;
        n += (int64_t)k.second;
    }
    return kind ? -1 : n;
}

API const char *emu_driver_report(void)
{
    std::lock_guard<std::mutex> guard(S.lock);
    S.report.clear();
    for (const std::string &line : S.lines)
        S.report += line + "\n";
    if (S.lines_lost)
        S.report += "and " + std::to_string(S.lines_lost) + " more\n";
    return S.report.c_str();
}

API void emu_driver_report_clear(void)
{
    std::lock_guard<std::mutex> guard(S.lock);
    S.lines.clear();
    S.lines_lost = 0;
}
