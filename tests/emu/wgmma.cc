// Products of warpgroups. Threads note what they issue; accumulators are NaN from then on. Once all
// 128 wait, the products that the wait covers read shared memory, and the accumulators come back.
// So a stage that is given back too early is read too late, and what is read too early is NaN. Sums
// are made in f32 in the order of k; real devices round differently.
#include <string.h>

#include "base/f16.h"
#include "device/kernels/wgmma.cuh"
#include "engine.hpp"

namespace emu
{
static constexpr uint32_t max_n = 256, group_size = 128, most_groups = max_threads / group_size;

// Tiles in shared memory: where pieces of 8 elements (16 bytes) are.
struct Tile {
    uint32_t addr, lbo, sbo, width; // width of the swizzle in bytes
    bool mn_major;
    // Piece i of 8 of mn at one k (MN-major), or of 8 of k at one mn (K-major): j is the other one.
    uint32_t piece(uint32_t i, uint32_t j) const
    {
        uint32_t at;
        if (!mn_major) // i: k / 8, j: mn
            at = width ? j % 8 * width + j / 8 * sbo + 16 * i : j % 8 * 16 + j / 8 * sbo + i * lbo;
        else if (width) // i: mn / 8, j: k
            at = i % (width / 16) * 16 + i / (width / 16) * lbo + j % 8 * width + j / 8 * sbo;
        else
            at = i * sbo + j % 8 * 16 + j / 8 * lbo;
        return swizzled(addr + at, width);
    }
};

struct Product {
    WgmmaForm form;
    uint64_t desc_a, desc_b;
    bool accumulate;
    Tile a, b;
    uint32_t sums;  // which accumulators
    uint32_t group; // of products
    Site site;
    std::vector<uint32_t> registers; // a of each thread, [128][4]
};

// d [64, n] of one array of each thread, from its first product in flight until the last is over.
struct Sums {
    bool used;
    int n;
    uint32_t in_flight;
    std::vector<float> d;
    float *of[group_size]; // null: that thread has not issued the product yet
};

struct Issuer { // a thread of the group
    uint32_t issued, groups;
    bool fenced; // since it last waited
};

struct Group {
    std::vector<Product> log; // issued by some thread and not over; first: the number of log[0]
    uint32_t first;
    std::vector<Sums> sums;
    Issuer issuer[group_size];
    // the meeting of all threads
    const char *what;
    uint32_t value, arrived, lanes[4];
    Site site;
    uint32_t registers; // of a thread; 0: as at launch
};
static Group groups[most_groups];
static uint32_t free_registers, waiting_for_registers[max_threads / 32];
uint32_t wgmma_in_flight;

static Group &group_of(const Thread &t)
{
    return groups[thread_number(t) / group_size];
}
static uint32_t number_in_group(const Thread &t)
{
    return thread_number(t) % group_size;
}

// --- all threads of a warpgroup meet ---

template <class Compute>
static void meet_group(const char *what, uint32_t value, Site site, Compute compute)
{
    Thread &t = self();
    Group &g = group_of(t);
    const uint32_t first = thread_number(t) - number_in_group(t);
    if (first + group_size > block.n_thread)
        fail(site, "%s: threads %u .. %u are not a whole warpgroup", what, first,
             block.n_thread - 1);
    if (g.arrived && (strcmp(g.what, what) || g.value != value))
        fail(site, "%s(%u): other threads of the warpgroup are in %s(%u) at %s", what, value,
             g.what, g.value, place(g.site).c_str());
    engine_used = true;
    if (!g.arrived) {
        g.what = what;
        g.value = value;
        g.site = site;
    }
    g.lanes[number_in_group(t) / 32] |= 1u << t.lane;
    if (++g.arrived < group_size) {
        wait(what, site);
        return;
    }
    compute(g);
    g.arrived = 0;
    g.lanes[number_in_group(t) / 32] &= ~(1u << t.lane);
    for (uint32_t w = 0; w < 4; w++) {
        wake(block.warp[first / 32 + w], g.lanes[w]);
        g.lanes[w] = 0;
    }
    progress();
    yield();
}

// --- accumulators: element i of thread t is at this row and column ---

static uint32_t row_of(uint32_t t, int i)
{
    return t / 32 * 16 + t % 32 / 4 + (uint32_t)i / 2 % 2 * 8;
}
static uint32_t column_of(uint32_t t, int i)
{
    return (uint32_t)i / 4 * 8 + t % 4 * 2 + (uint32_t)i % 2;
}

static void need_untouched(const Sums &s, uint32_t thread, Site site)
{
    static const std::vector<unsigned char> poison(max_n / 2 * sizeof(float), 0xff);
    if (memcmp(s.of[thread], poison.data(), (size_t)s.n / 2 * sizeof(float)))
        fail(site, "wgmma: its accumulators were written while it is in flight: no wgmma_wait "
                   "came before");
}

static void take_sums(Sums &s, uint32_t thread, float *d)
{
    s.of[thread] = d;
    for (int i = 0; i < s.n / 2; i++)
        s.d[row_of(thread, i) * (uint32_t)s.n + column_of(thread, i)] = d[i];
    memset(d, 0xff, (size_t)s.n / 2 * sizeof(float));
}

static void give_sums(Sums &s, Site site)
{
    for (uint32_t t = 0; t < group_size; t++) {
        need_untouched(s, t, site);
        for (int i = 0; i < s.n / 2; i++)
            s.of[t][i] = s.d[row_of(t, i) * (uint32_t)s.n + column_of(t, i)];
    }
    s.used = false;
}

// The sums in flight that d of this thread is, or all of them.
static uint32_t find_sums(const Group &g, uint32_t thread, const float *d)
{
    uint32_t i = 0;
    while (i < g.sums.size() && !(g.sums[i].used && g.sums[i].of[thread] == d))
        i++;
    return i;
}

static uint32_t new_sums(Group &g, int n)
{
    uint32_t i = 0;
    while (i < g.sums.size() && g.sums[i].used)
        i++;
    if (i == g.sums.size())
        g.sums.emplace_back();
    Sums &s = g.sums[i];
    s.used = true;
    s.n = n;
    s.in_flight = 0;
    s.d.resize((size_t)64 * (uint32_t)n);
    memset(s.of, 0, sizeof s.of);
    return i;
}

// --- descriptors ---

static Tile decode(uint64_t desc, bool mn_major, const char *what, Site site)
{
    static const uint32_t widths[] = {0, 128, 64, 32};
    const uint64_t unused = 0x3ull << 14 | 0x3ull << 30 | 0x7ull << 46 | 0x3ffull << 52;
    Tile t;
    t.addr = (uint32_t)(desc & 0x3fff) << 4;
    t.lbo = (uint32_t)(desc >> 16 & 0x3fff) << 4;
    t.sbo = (uint32_t)(desc >> 32 & 0x3fff) << 4;
    t.width = widths[desc >> 62];
    t.mn_major = mn_major;
    if (desc & unused)
        fail(site, "wgmma: descriptor of %s 0x%016llx: bits that have no meaning are set", what,
             (unsigned long long)desc);
    if (desc >> 49 & 7)
        fail(site, "wgmma: descriptor of %s: a base offset of %u: not emulated, align the tile",
             what, (unsigned)(desc >> 49 & 7));
    if (t.width && t.addr % (8 * t.width) >= t.width)
        fail(site,
             "wgmma: descriptor of %s: the tile at shared address 0x%x is not aligned to %u, "
             "the period of its swizzle",
             what, t.addr, 8 * t.width);
    return t;
}

// Calls for every piece of a [64, 16] or b [16, n].
template <class Call> static void each_piece(const Tile &t, uint32_t mn, Call call)
{
    const uint32_t n_i = t.mn_major ? mn / 8 : 2, n_j = t.mn_major ? 16 : mn;
    for (uint32_t j = 0; j < n_j; j++)
        for (uint32_t i = 0; i < n_i; i++)
            call(t.piece(i, j), i, j);
}

static void check_tile(const Tile &t, uint32_t mn, const char *what, Site site)
{
    each_piece(t, mn, [&](uint32_t addr, uint32_t, uint32_t) {
        shared_memory(addr, 16, 16, what, site);
        need_arrived(addr, 16, what, site);
        hold(addr, 16);
    });
}

// The checker: each warp's first lane reads the tiles when it issues the product, and one when all
// have waited. Every lane of the warp knows then that this is over.
static void check_reads(const Product &p, const Thread &t)
{
#if EMU_CHECK
    const auto read = [&](const Tile &tile, const char *what, uint32_t mn) {
        each_piece(tile, mn, [&](uint32_t addr, uint32_t, uint32_t) {
            check_proxy_read(t, shared_memory(addr, 16, 16, what, p.site), 16, p.site);
            check_swizzle(addr, tile.width, what, p.site);
        });
    };
    if (!p.form.a_registers)
        read(p.a, "wgmma: a", 64);
    read(p.b, "wgmma: b", (uint32_t)p.form.n);
#else
    (void)p;
    (void)t;
#endif
}

static void release_tile(const Tile &t, uint32_t mn)
{
    each_piece(t, mn, [](uint32_t addr, uint32_t, uint32_t) { release(addr, 16); });
}

static bool tile_has(const Tile &t, uint32_t mn, uint32_t addr, uint32_t bytes)
{
    bool found = false;
    each_piece(t, mn, [&](uint32_t at, uint32_t, uint32_t) {
        found |= at < addr + bytes && addr < at + 16;
    });
    return found;
}

bool wgmma_reads(uint32_t addr, uint32_t bytes, Site *site)
{
    for (const Group &g : groups)
        for (const Product &p : g.log)
            if ((p.registers.empty() && tile_has(p.a, 64, addr, bytes)) ||
                tile_has(p.b, (uint32_t)p.form.n, addr, bytes)) {
                *site = p.site;
                return true;
            }
    return false;
}

bool wgmma_holds(const void *p, Site *site)
{
    const Thread &t = self();
    const Group &g = group_of(t);
    for (const Product &x : g.log) {
        const float *d = g.sums[x.sums].of[number_in_group(t)];
        if (d && (uintptr_t)p - (uintptr_t)d < (size_t)x.form.n / 2 * sizeof(float)) {
            *site = x.site;
            return true;
        }
    }
    return false;
}

// --- issue ---

static void need_same(const Product &p, const WgmmaForm &f, uint64_t desc_a, uint64_t desc_b,
                      bool accumulate, uint32_t group, Site site)
{
    const char *differs = nullptr;
    if (p.form.bf16 != f.bf16 || p.form.n != f.n || p.form.a_mn != f.a_mn ||
        p.form.b_mn != f.b_mn || p.form.a_registers != f.a_registers)
        differs = "the product's form";
    else if (p.desc_a != desc_a || p.desc_b != desc_b)
        differs = "a descriptor";
    else if (p.accumulate != accumulate)
        differs = "whether to accumulate";
    else if (p.group != group)
        differs = "the number of wgmma_commit before it";
    if (differs)
        fail(site, "wgmma: threads of the warpgroup disagree with those at %s about %s",
             place(p.site).c_str(), differs);
}

// The first thread of the group that comes here: the product's entry of the log.
static Product begin_product(Group &g, const WgmmaForm &f, uint64_t desc_a, uint64_t desc_b,
                             bool accumulate, uint32_t sums, uint32_t group, Site site)
{
    Product p = {f, desc_a, desc_b, accumulate, {}, {}, sums, group, site, {}};
    if (f.a_registers) {
        p.registers.resize(group_size * 4);
    } else {
        p.a = decode(desc_a, f.a_mn, "a", site);
        check_tile(p.a, 64, "wgmma: a", site);
    }
    p.b = decode(desc_b, f.b_mn, "b", site);
    check_tile(p.b, (uint32_t)f.n, "wgmma: b", site);
    g.sums[sums].in_flight++;
    wgmma_in_flight++;
    return p;
}

void wgmma(const WgmmaForm &f, float *d, const uint32_t *registers, uint64_t desc_a,
           uint64_t desc_b, bool accumulate, Site site)
{
    Thread &t = self();
    Group &g = group_of(t);
    const uint32_t me = number_in_group(t);
    Issuer &is = g.issuer[me];
    engine_used = true;
    const uint32_t at = is.issued - g.first;
    uint32_t sums = find_sums(g, me, d);
    const bool in_flight = sums < g.sums.size();
    if (!in_flight && !is.fenced)
        fail(site, "wgmma: no wgmma_fence since these accumulators could be touched");
    if (at == g.log.size()) {
        if (!in_flight)
            sums = new_sums(g, f.n);
        g.log.push_back(begin_product(g, f, desc_a, desc_b, accumulate, sums, is.groups, site));
    }
    Product &p = g.log[at];
    need_same(p, f, desc_a, desc_b, accumulate, is.groups, site);
    Sums &s = g.sums[p.sums];
    if (s.n != f.n || (in_flight && sums != p.sums) || (!in_flight && s.of[me]))
        fail(site, "wgmma: these accumulators are in flight in another product");
    if (s.of[me])
        need_untouched(s, me, site);
    else
        take_sums(s, me, d);
    if (f.a_registers)
        memcpy(&p.registers[4 * me], registers, 16);
    if (t.lane == 0)
        check_reads(p, t);
    is.issued++;
}

void wgmma_fence()
{
    Thread &t = self();
    engine_used = true;
    group_of(t).issuer[number_in_group(t)].fenced = true;
}

void wgmma_commit()
{
    Thread &t = self();
    engine_used = true;
    group_of(t).issuer[number_in_group(t)].groups++;
}

// --- products ---

static float value(bool bf16, uint16_t bits)
{
    return bf16 ? gr_bf16_to_f32(bits) : f16_to_f32(bits);
}

typedef float float8 __attribute__((vector_size(32), aligned(4)));

// The 8 elements of a piece.
static float8 widen(bool bf16, const unsigned char *piece)
{
    typedef uint16_t half8 __attribute__((vector_size(16)));
    typedef uint32_t word8 __attribute__((vector_size(32)));
    half8 v;
    memcpy(&v, piece, sizeof v);
    if (bf16)
        return (float8)(__builtin_convertvector(v, word8) << 16);
    float8 f = {};
#ifdef __F16C__
    __asm__("vcvtph2ps %1, %0" : "=x"(f) : "x"(v));
#else
    for (int i = 0; i < 8; i++)
        f[i] = value(false, v[i]);
#endif
    return f;
}

// Puts them `pitch` apart.
static void get_piece(bool bf16, uint32_t addr, float *to, uint32_t pitch, Site site)
{
    const float8 f = widen(bf16, shared_memory(addr, 16, 16, "wgmma", site));
    if (pitch == 1)
        *reinterpret_cast<float8 *>(to) = f;
    else
        for (uint32_t i = 0; i < 8; i++)
            to[i * pitch] = f[i];
}

static void get_a(const Product &p, float a[64][16])
{
    const bool bf16 = p.form.bf16;
    if (p.form.a_registers) {
        for (uint32_t t = 0; t < group_size; t++)
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t r = i / 2, word = p.registers[4 * t + r];
                a[t / 32 * 16 + t % 32 / 4 + r % 2 * 8][t % 4 * 2 + i % 2 + r / 2 * 8] =
                    value(bf16, (uint16_t)(word >> i % 2 * 16));
            }
        return;
    }
    each_piece(p.a, 64, [&](uint32_t addr, uint32_t i, uint32_t j) {
        if (p.a.mn_major)
            get_piece(bf16, addr, &a[8 * i][j], 16, p.site);
        else
            get_piece(bf16, addr, &a[j][8 * i], 1, p.site);
    });
}

static void get_b(const Product &p, float *b) // [16][n]
{
    const uint32_t n = (uint32_t)p.form.n;
    each_piece(p.b, n, [&](uint32_t addr, uint32_t i, uint32_t j) {
        if (p.b.mn_major)
            get_piece(p.form.bf16, addr, b + j * n + 8 * i, 1, p.site);
        else
            get_piece(p.form.bf16, addr, b + 8 * i * n + j, n, p.site);
    });
}

// d [64, n] += a b, in blocks of 8 x 8: n is a multiple of 8.
static void multiply(float *d, const float a[64][16], const float *b, uint32_t n)
{
    for (uint32_t row = 0; row < 64; row += 8)
        for (uint32_t c = 0; c < n; c += 8) {
            float8 s[8];
            for (uint32_t r = 0; r < 8; r++)
                s[r] = *reinterpret_cast<const float8 *>(d + (row + r) * n + c);
            for (uint32_t k = 0; k < 16; k++) {
                const float8 v = *reinterpret_cast<const float8 *>(b + k * n + c);
                for (uint32_t r = 0; r < 8; r++)
                    s[r] += a[row + r][k] * v;
            }
            for (uint32_t r = 0; r < 8; r++)
                *reinterpret_cast<float8 *>(d + (row + r) * n + c) = s[r];
        }
}

static void compute(Group &g, Product &p)
{
    static float a[64][16], b[16 * max_n];
    Sums &s = g.sums[p.sums];
    check_reads(p, self().warp->thread[0]); // of the last warp that waits
    get_a(p, a);
    get_b(p, b);
    if (!p.accumulate)
        memset(s.d.data(), 0, s.d.size() * sizeof(float));
    multiply(s.d.data(), a, b, (uint32_t)p.form.n);
    if (!p.form.a_registers)
        release_tile(p.a, 64);
    release_tile(p.b, (uint32_t)p.form.n);
    wgmma_in_flight--;
    if (--s.in_flight == 0)
        give_sums(s, p.site);
}

static void compute_groups(Group &g, uint32_t pending)
{
    const Issuer &one = g.issuer[0];
    for (const Issuer &is : g.issuer)
        if (is.issued != one.issued || is.groups != one.groups)
            fail(g.site,
                 "wgmma_wait: threads of the warpgroup have issued %u and %u products, "
                 "%u and %u groups",
                 one.issued, is.issued, one.groups, is.groups);
    size_t n = 0;
    for (; n < g.log.size() && one.groups - g.log[n].group > pending; n++)
        compute(g, g.log[n]);
    g.log.erase(g.log.begin(), g.log.begin() + (ptrdiff_t)n);
    g.first += (uint32_t)n;
    for (Issuer &is : g.issuer)
        is.fenced = false;
}

void wgmma_wait(uint32_t pending, Site site)
{
    const uint32_t first = thread_number(self()) / group_size * 4; // warp
    meet_group("wgmma_wait", pending, site, [&](Group &g) {
        compute_groups(g, pending);
        for (uint32_t w = first; w < first + 4; w++)
            check_waited(block.warp[w]);
    });
}

// --- registers ---

// Registers that ptxas gives each thread of a kernel that uses setmaxnreg: all that its launch
// bounds allow.
static uint32_t registers_at_launch()
{
    const uint32_t threads =
        (launch.kernel->max_threads + group_size - 1) / group_size * group_size;
    const uint32_t each = 65536 / (threads * launch.kernel->min_blocks) / 8 * 8;
    return each < 256 ? each : 256;
}

// All of a warpgroup but the last wait in meet_group while that one waits for registers here.
static void change_registers(Group &g, uint32_t wanted, bool more)
{
    const uint32_t now = g.registers ? g.registers : registers_at_launch();
    if (more ? wanted < now : wanted > now)
        fail(g.site, "%s: to %u registers a thread, and there are %u", g.what, wanted, now);
    if (!more) {
        free_registers += (now - wanted) * group_size;
        for (uint32_t w = 0; w < block.n_warp; w++) {
            wake(block.warp[w], waiting_for_registers[w]);
            waiting_for_registers[w] = 0;
        }
    }
    while (more && free_registers < (wanted - now) * group_size) {
        const Thread &t = self();
        waiting_for_registers[t.warp - block.warp] |= 1u << t.lane;
        wait("setmaxnreg_inc", g.site);
    }
    free_registers -= more ? (wanted - now) * group_size : 0;
    g.registers = wanted;
}

void setmaxnreg(uint32_t registers, bool more, Site site)
{
    meet_group(more ? "setmaxnreg_inc" : "setmaxnreg_dec", registers, site,
               [&](Group &g) { change_registers(g, registers, more); });
}

// --- beginning and end ---

void wgmma_begin()
{
    wgmma_in_flight = free_registers = 0;
    memset(waiting_for_registers, 0, sizeof waiting_for_registers);
    for (Group &g : groups) {
        g.log.clear();
        g.sums.clear();
        g.first = g.arrived = g.registers = 0;
        memset(g.issuer, 0, sizeof g.issuer);
        memset(g.lanes, 0, sizeof g.lanes);
    }
}

void wgmma_thread_ends(Thread &t)
{
    const Group &g = group_of(t);
    if (g.issuer[number_in_group(t)].issued != g.first)
        fail(g.log.empty() ? Site::here() : g.log[0].site,
             "wgmma: the thread has returned while it is in flight: no wgmma_wait came behind it");
}
} // namespace emu
