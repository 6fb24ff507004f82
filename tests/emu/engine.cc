// The copy engine. A load poisons its destination when it is issued and reads and delivers at a
// random time; a store reads shared memory and writes at two of those, or at the wait that has to
// see it. So what waits too little meets poison, and what is reused too early is seen late.
#include "engine.hpp"

#include <stdarg.h>
#include <string.h>

#include <list>

#include "device/kernels/ptx.cuh"
#include "tensor_map.h"

namespace emu
{
enum class Stage { issued, read, done };

struct Transfer {
    enum Kind { bulk_load, tile_load, bulk_store, tile_store, arrival } kind;
    const char *what;
    Site site;
    uint64_t due;
    uint32_t smem, bytes, bar;
    unsigned char *memory;            // of a bulk copy
    uintptr_t memory_lo, memory_hi;   // of the allocation that was met last
    const struct emu_tensor_map *map; // of a tile, with its corner
    int at[3];
    uint32_t thread, group; // its issuer; the group of a store
    uint64_t copies;        // of an arrival: the cp.async before it
    Stage stage;
    bool waited; // the thread knows that a store has read
    std::vector<unsigned char> data;
};
static std::list<Transfer> transfers; // in the order of issue
uint64_t engine_now, engine_due;
bool engine_used = true;
static uint32_t group_of[max_threads]; // of stores, that is open

void fail_beside(Site site, const char *form, ...)
{
    char text[1024];
    va_list list;
    va_start(list, form);
    vsnprintf(text, sizeof text, form, list);
    va_end(list);
    fail_text(format("kernel %s, block (%u, %u, %u): %s: %s", launch.kernel->name, block_index.x,
                     block_index.y, block_index.z, place(site).c_str(), text));
}

// --- shared memory in use ---

static struct Piece {
    uint16_t held, arriving; // by so many readers; by so many loads
    uint16_t swizzle;        // 1 + that of the tile load that has brought it; 0: something else has
} pieces[max_smem / 16 + 1];

// Calls for each piece of dynamic shared memory in [addr, addr + bytes); true when it said so once.
template <class Call> static bool any_piece(uint32_t addr, uint32_t bytes, Call call)
{
    for (uint32_t i = addr / 16; i < (addr + bytes + 15) / 16; i++) {
        const uint32_t at = i - dynamic_at / 16;
        if (at <= max_smem / 16 && call(pieces[at]))
            return true;
    }
    return false;
}

void hold(uint32_t addr, uint32_t bytes)
{
    any_piece(addr, bytes, [](Piece &p) { return ++p.held, false; });
}
void release(uint32_t addr, uint32_t bytes)
{
    any_piece(addr, bytes, [](Piece &p) { return --p.held, false; });
}

static bool overlap(const Transfer &t, uint32_t addr, uint32_t bytes)
{
    return t.smem < addr + bytes && addr < t.smem + t.bytes;
}
static bool is_load(const Transfer &t)
{
    return t.kind == Transfer::bulk_load || t.kind == Transfer::tile_load;
}

static bool is_store(const Transfer &t)
{
    return t.kind == Transfer::bulk_store || t.kind == Transfer::tile_store;
}

void need_arrived(uint32_t addr, uint32_t bytes, const char *what, Site site)
{
    if (!any_piece(addr, bytes, [](Piece &p) { return p.arriving != 0; }))
        return;
    for (const Transfer &t : transfers)
        if (is_load(t) && overlap(t, addr, bytes))
            fail(site, "%s: meets the destination of a copy still in flight, the %s of %s", what,
                 t.what, place(t.site).c_str());
}

// Finds a product or a store that reads the bytes and has not been waited for.
static bool find_reader(uint32_t addr, uint32_t bytes, const char **what, Site *site)
{
    if (!any_piece(addr, bytes, [](Piece &p) { return p.held != 0; }))
        return false;
    *what = "wgmma";
    if (wgmma_reads(addr, bytes, site))
        return true;
    for (const Transfer &t : transfers)
        if (is_store(t) && !t.waited && overlap(t, addr, bytes)) {
            *what = t.what;
            *site = t.site;
            return true;
        }
    return false;
}

bool stored_while_held(uint32_t addr, uint32_t bytes, const char **what, Site *site)
{
    any_piece(addr, bytes, [](Piece &p) { return p.swizzle = 0, false; });
    return find_reader(addr, bytes, what, site);
}

void check_swizzle(uint32_t addr, uint32_t width, const char *what, Site site)
{
    any_piece(addr, 16, [&](Piece &p) {
        if (p.swizzle && p.swizzle != 1 + width)
            note(site, "%s: read with a swizzle of %u bytes, brought by a map with one of %u", what,
                 width, p.swizzle - 1u);
        return false;
    });
}

// A load is about to write there.
static void need_free(uint32_t addr, uint32_t bytes, const char *what, Site site)
{
    need_arrived(addr, bytes, what, site);
    const char *reader;
    Site at;
    if (find_reader(addr, bytes, &reader, &at))
        fail(site, "%s: writes shared memory that the %s of %s reads: it has not been waited for",
             what, reader, place(at).c_str());
}

// --- boxes ---

static uint32_t swizzle_bytes(const struct emu_tensor_map &m)
{
    return m.swizzle ? 16u << m.swizzle : 0;
}

// Elements [lo, hi) of 16 bytes of a box's row that begins at column x are inside the tensor.
static void inside(const struct emu_tensor_map &m, int64_t x, int *lo, int *hi)
{
    const int64_t n = 16 / m.element_bytes, left = (int64_t)m.last[0] + 1 - x;
    *lo = (int)(x >= 0 ? 0 : -x < n ? -x : n);
    *hi = (int)(left >= n ? n : left > 0 ? left : 0);
}

// Calls for every 16 bytes of the box: where they are in shared memory, where in the tensor, and
// which of them are inside.
template <class Call> static void each_chunk(const Transfer &t, Call call)
{
    const struct emu_tensor_map &m = *t.map;
    const uint32_t row_bytes = m.box[0] * m.element_bytes;
    uint32_t to = t.smem;
    for (int z = 0; z < (m.rank > 2 ? m.box[2] : 1); z++)
        for (int y = 0; y < m.box[1]; y++, to += row_bytes) {
            const int64_t at_y = (int64_t)t.at[1] + y, at_z = (int64_t)t.at[2] + z;
            const bool row_inside =
                at_y >= 0 && at_y <= m.last[1] && (m.rank < 3 || (at_z >= 0 && at_z <= m.last[2]));
            const int64_t row =
                at_y * (int64_t)m.stride[0] + (m.rank > 2 ? at_z * (int64_t)m.stride[1] : 0);
            for (uint32_t c = 0; c < row_bytes; c += 16) {
                const int64_t x = t.at[0] + (int64_t)(c / m.element_bytes);
                int lo = 0, hi = 0;
                if (row_inside)
                    inside(m, x, &lo, &hi);
                unsigned char *s =
                    shared_memory(swizzled(to + c, swizzle_bytes(m)), 16, 16, t.what, t.site);
                if (lo >= hi)
                    lo = hi = 0;
                call(s, reinterpret_cast<unsigned char *>(m.base) + row + x * m.element_bytes,
                     (uint32_t)lo * m.element_bytes, (uint32_t)hi * m.element_bytes);
            }
        }
}

// The copy reads or writes there.
static void access_memory(Transfer &t, const unsigned char *p, uint32_t bytes, bool write)
{
    const uintptr_t at = (uintptr_t)p;
    if (at < t.memory_lo || at + bytes > t.memory_hi) { // not the allocation of the one before
        if (!memory_range(p, &t.memory_lo, &t.memory_hi) || at + bytes > t.memory_hi)
            fail_beside(t.site, "%s: %u bytes out of bounds: %s", t.what, bytes, where(p).c_str());
    }
    check_access(block.thread[t.thread], p, bytes, write, t.site);
}

static void read_tile(Transfer &t)
{
    each_chunk(t, [&](unsigned char *s, const unsigned char *p, uint32_t lo, uint32_t hi) {
        memset(s, 0, 16);
        if (lo < hi) {
            access_memory(t, p + lo, hi - lo, false);
            memcpy(s + lo, p + lo, hi - lo);
        }
    });
}

// --- the stages of a transfer ---

static void end_load(Transfer &t)
{
    unsigned char *to = shared_memory(t.smem, t.bytes, 16, t.what, t.site);
    uint16_t swizzle = 0;
    if (t.kind == Transfer::tile_load) {
        read_tile(t);
        swizzle = (uint16_t)(1 + swizzle_bytes(*t.map));
    } else {
        access_memory(t, t.memory, t.bytes, false);
        memcpy(to, t.memory, t.bytes);
    }
    any_piece(t.smem, t.bytes, [&](Piece &p) { return --p.arriving, p.swizzle = swizzle, false; });
    check_copy_ends(block.thread[t.thread], to, t.bytes, t.site,
                    mbarrier_at(t.bar, t.what, t.site).open);
    mbarrier_bytes(t.bar, t.bytes, t.site);
}

static void read_store(Transfer &t)
{
    if (t.stage != Stage::issued)
        return;
    if (t.kind == Transfer::tile_store) { // in the order of the box
        each_chunk(t, [&](unsigned char *s, const unsigned char *, uint32_t, uint32_t) {
            t.data.insert(t.data.end(), s, s + 16);
        });
    } else {
        const unsigned char *s = shared_memory(t.smem, t.bytes, 16, t.what, t.site);
        t.data.assign(s, s + t.bytes);
    }
    t.stage = Stage::read;
}

static void write_store(Transfer &t)
{
    read_store(t);
    if (t.stage != Stage::read)
        return;
    const unsigned char *from = t.data.data();
    if (t.kind == Transfer::tile_store) {
        each_chunk(t, [&](unsigned char *, unsigned char *p, uint32_t lo, uint32_t hi) {
            if (lo < hi) {
                access_memory(t, p + lo, hi - lo, true);
                memcpy(p + lo, from + lo, hi - lo);
            }
            from += 16;
        });
    } else {
        access_memory(t, t.memory, t.bytes, true);
        memcpy(t.memory, from, t.bytes);
    }
    t.stage = Stage::done;
}

static uint64_t some_time_later()
{
    static const uint32_t spans[] = {16, 512, 16384};
    const uint32_t r = random_below(4);
    if (options.policy == EMU_IN_ORDER || r == 3)
        return UINT64_MAX; // when nothing else is left
    return engine_now + 1 + random_below(spans[r]);
}

static void set_due(Transfer &t)
{
    t.due = some_time_later();
    if (t.due < engine_due)
        engine_due = t.due;
}

static void begin(Transfer t)
{
    engine_used = true;
    set_due(t);
    transfers.push_back(std::move(t));
    progress();
}

// One stage on; whether the transfer is over.
static bool advance(Transfer &t)
{
    switch (t.kind) {
    case Transfer::bulk_load:
    case Transfer::tile_load:
        end_load(t);
        break;
    case Transfer::arrival:
        finish_copies(block.thread[t.thread], t.copies, mbarrier_at(t.bar, t.what, t.site).open);
        mbarrier_arrive(t.bar, 0, t.what, t.site);
        break;
    default:
        if (t.stage == Stage::issued)
            read_store(t);
        else
            write_store(t);
        if (t.stage != Stage::done)
            set_due(t);
        else
            t.due = UINT64_MAX;
        return t.stage == Stage::done && t.waited;
    }
    return true;
}

void engine_advance()
{
    engine_due = UINT64_MAX;
    for (auto t = transfers.begin(); t != transfers.end();) {
        const bool over = t->due <= engine_now && advance(*t);
        if (!over && t->due < engine_due)
            engine_due = t->due;
        t = over ? transfers.erase(t) : std::next(t);
    }
}

bool engine_idle()
{
    uint32_t n = 0;
    for (const Transfer &t : transfers)
        n += t.stage != Stage::done;
    if (!n)
        return false;
    uint32_t chosen = options.policy == EMU_IN_ORDER ? 0 : random_below(n);
    for (auto t = transfers.begin();; ++t)
        if (t->stage != Stage::done && chosen-- == 0) {
            if (advance(*t))
                transfers.erase(t);
            return true;
        }
}

// --- beginning and end of a block ---

void engine_begin()
{
    engine_now = 0;
    engine_due = UINT64_MAX;
    if (!engine_used)
        return;
    engine_used = false;
    transfers.clear();
    memset(pieces, 0, sizeof pieces);
    memset(group_of, 0, sizeof group_of);
    mbarriers_begin();
    wgmma_begin();
}

void engine_thread_ends(Thread &ended)
{
    if (!engine_used)
        return;
    wgmma_thread_ends(ended);
    const uint32_t number = thread_number(ended);
    for (auto t = transfers.begin(); t != transfers.end();) {
        const bool mine = !is_load(*t) && t->thread == number;
        if (mine && t->kind != Transfer::arrival && !t->waited)
            fail(t->site,
                 "%s: the thread has returned without bulk_wait_read: shared memory may "
                 "be gone before it is read",
                 t->what);
        if (mine && t->kind == Transfer::arrival) { // its cp.async go on without it
            advance(*t);
            t = transfers.erase(t);
        } else {
            ++t;
        }
    }
}

void engine_end()
{
    if (!engine_used)
        return;
    for (Transfer &t : transfers) {
        if (is_load(t))
            report_add(
                format("kernel %s, block (%u, %u, %u): %s: %s: still in flight at the end of "
                       "the block",
                       launch.kernel->name, block_index.x, block_index.y, block_index.z,
                       place(t.site).c_str(), t.what));
        else
            write_store(t);
    }
    mbarriers_end();
    transfers.clear();
}

// --- the instructions ---

void cp_async_mbar_arrive(uint32_t bar, Site site)
{
    Thread &t = self();
    mbarrier_at(bar, "cp_async_mbar_arrive", site);
    Transfer a = {};
    a.kind = Transfer::arrival;
    a.what = "cp_async_mbar_arrive";
    a.site = site;
    a.bar = bar;
    a.thread = thread_number(t);
    a.copies = copies_issued(t);
    begin(std::move(a));
}

void fence_proxy_async()
{
    mbarriers_fenced(thread_number(self()));
    check_proxy_fence(self());
}

static void issue_load(Transfer t)
{
    Mbarrier &b = mbarrier_at(t.bar, t.what, t.site);
    if (!b.fenced)
        fail(t.site,
             "%s: the copy engine does not know the mbarrier made at %s: fence_mbar_init by "
             "its maker is missing",
             t.what, place(b.made).c_str());
    need_free(t.smem, t.bytes, t.what, t.site);
    if (t.smem < t.bar + 8 && t.bar < t.smem + t.bytes)
        fail(t.site, "%s: its destination holds its mbarrier", t.what);
    t.thread = thread_number(self());
    unsigned char *to = shared_memory(t.smem, t.bytes, 16, t.what, t.site);
    check_copy_begins(self(), to, t.bytes, t.site);
    memset(to, 0xff, t.bytes);
    any_piece(t.smem, t.bytes, [](Piece &p) { return ++p.arriving, false; });
    begin(std::move(t));
}

static void issue_store(Transfer t)
{
    need_arrived(t.smem, t.bytes, t.what, t.site);
    check_proxy_read(self(), shared_memory(t.smem, t.bytes, 16, t.what, t.site), t.bytes, t.site);
    t.thread = thread_number(self());
    t.group = group_of[t.thread];
    hold(t.smem, t.bytes);
    begin(std::move(t));
}

static Transfer bulk(Transfer::Kind kind, const char *what, uint32_t smem, const void *memory,
                     uint32_t bytes, Site site)
{
    if (bytes == 0 || bytes % 16)
        fail(site, "%s: %u bytes: a multiple of 16 is expected", what, bytes);
    check_aligned(memory, 16, what, site);
    Transfer t = {};
    t.kind = kind;
    t.what = what;
    t.site = site;
    t.smem = smem;
    t.bytes = bytes;
    t.memory = static_cast<unsigned char *>(const_cast<void *>(memory));
    return t;
}

void bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, Site site)
{
    Transfer t = bulk(Transfer::bulk_load, "bulk_load", dst, src, bytes, site);
    t.bar = bar;
    issue_load(std::move(t));
}

void bulk_store(void *dst, uint32_t src, uint32_t bytes, Site site)
{
    issue_store(bulk(Transfer::bulk_store, "bulk_store", src, dst, bytes, site));
}

static const struct emu_tensor_map &map_at(const struct gr_tensor_map *map, int rank,
                                           const char *what, Site site)
{
    check_aligned(map, 64, what, site);
    const struct emu_tensor_map &m = *reinterpret_cast<const struct emu_tensor_map *>(map);
    if (m.magic != EMU_TENSOR_MAP_MAGIC)
        fail(site, "%s: this is not a tensor map", what);
    if (m.rank != rank)
        fail(site, "%s: a map of %u dimensions", what, m.rank);
    for (int i = 1; i < rank; i++)
        if (m.element_stride[i] != 1)
            fail(site, "%s: a map with strides between elements: not emulated", what);
    if (m.interleave || m.fill)
        fail(site, "%s: a map with interleaving or a fill other than zero: not emulated", what);
    const uint32_t inner = m.box[0] * m.element_bytes, width = swizzle_bytes(m);
    if (width && inner != width)
        fail(site, "%s: a box %u bytes wide with the %u-byte swizzle: not emulated", what, inner,
             width);
    return m;
}

static Transfer tile(Transfer::Kind kind, const char *what, const struct gr_tensor_map *map,
                     int rank, const int at[3], uint32_t smem, Site site)
{
    const struct emu_tensor_map &m = map_at(map, rank, what, site);
    const uint32_t width = swizzle_bytes(m), align = width > 16 ? 8 * width : 128;
    if (smem % align)
        fail(site, "%s: shared address 0x%x is not aligned to %u, %s", what, smem, align,
             width ? "the period of the map's swizzle" : "as tiles have to be");
    Transfer t = {};
    t.kind = kind;
    t.what = what;
    t.site = site;
    t.smem = smem;
    t.bytes = (uint32_t)m.box[0] * m.element_bytes * m.box[1] * (rank > 2 ? m.box[2] : 1u);
    t.map = &m;
    memcpy(t.at, at, sizeof t.at);
    return t;
}

void tma_load(uint32_t dst, const struct gr_tensor_map *map, int rank, const int at[3],
              uint32_t bar, Site site)
{
    Transfer t = tile(Transfer::tile_load, rank == 2 ? "tma_load_2d" : "tma_load_3d", map, rank, at,
                      dst, site);
    t.bar = bar;
    issue_load(std::move(t));
}

void tma_store(const struct gr_tensor_map *map, int rank, const int at[3], uint32_t src, Site site)
{
    issue_store(tile(Transfer::tile_store, rank == 2 ? "tma_store_2d" : "tma_store_3d", map, rank,
                     at, src, site));
}

void tma_prefetch_map(const struct gr_tensor_map *map, Site site)
{
    check_aligned(map, 64, "tma_prefetch_map", site);
}

void bulk_prefetch(const void *src, uint32_t bytes, Site site)
{
    bulk(Transfer::bulk_load, "bulk_prefetch", 0, src, bytes, site);
    if (!memory_owns(src, bytes))
        fail(site, "bulk_prefetch: access out of bounds: %s", where(src).c_str());
}

void one_block(uint32_t blocks, const char *what, Site site)
{
    if (blocks != 1)
        fail(site, "%s: blocks 0x%x of a cluster, which has block 0 alone", what, blocks);
}

void griddep_wait()
{
    check_launch_before(self());
}

void griddep_launch()
{
    check_launch_behind(self());
}

void bulk_commit()
{
    group_of[thread_number(self())]++;
}

void bulk_wait(uint32_t pending, bool read_only)
{
    const uint32_t number = thread_number(self()), open = group_of[number];
    for (auto t = transfers.begin(); t != transfers.end();) {
        const bool mine = is_store(*t) && t->thread == number;
        if (!mine || open - t->group <= pending) { // the open group has distance 0
            ++t;
            continue;
        }
        if (read_only)
            read_store(*t);
        else
            write_store(*t);
        if (!t->waited) { // until now it may have been reading
            release(t->smem, t->bytes);
            check_access(self(), shared_memory(t->smem, t->bytes, 16, t->what, t->site), t->bytes,
                         false, t->site);
        }
        t->waited = true;
        t = t->stage == Stage::done ? transfers.erase(t) : std::next(t);
    }
}
} // namespace emu
