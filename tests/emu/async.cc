// cp.async at its latest: the destination is poisoned when a copy is issued, and the bytes are
// read and delivered only by the wait that has to see them.
#include <string.h>

#include "device/kernels/ptx.cuh"
#include "engine.hpp"

namespace emu
{
void cp_async(uint32_t dst, const void *src, uint32_t bytes, uint32_t src_bytes, Site site)
{
    Thread &t = self();
    if (src_bytes > bytes)
        fail(site, "cp_async: %u bytes from the source of a copy of %u", src_bytes, bytes);
    if (src_bytes)
        check_aligned(src, bytes, "cp_async", site);
    unsigned char *to = shared_memory(dst, bytes, bytes, "cp_async", site);
    memset(to, 0xff, bytes);
    t.copies.push_back({to, src, bytes, src_bytes, t.group, site});
}

void cp_async_commit()
{
    self().group++;
}

// The n oldest copies of t end.
static void finish(Thread &t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const Copy &c = t.copies[i];
        if (c.src_bytes && !memory_owns(c.src, c.src_bytes) && where_shared(c.src).empty())
            fail(c.site, "cp_async: reads %s", where(c.src).c_str());
        memcpy(c.dst, c.src, c.src_bytes);
        memset(c.dst + c.src_bytes, 0, c.bytes - c.src_bytes);
    }
    t.copies.erase(t.copies.begin(), t.copies.begin() + (ptrdiff_t)n);
    t.n_finished += n;
}

void cp_async_wait(uint32_t pending)
{
    Thread &t = self();
    size_t n = 0;
    while (n < t.copies.size() && t.copies[n].group != t.group && // not open, not of the newest
           t.group - t.copies[n].group > pending)
        n++;
    finish(t, n);
}

uint64_t copies_issued(const Thread &t)
{
    return t.n_finished + t.copies.size();
}

void finish_copies(Thread &t, uint64_t issued_before)
{
    if (issued_before > t.n_finished)
        finish(t, issued_before - t.n_finished);
}

void forget_copies(Thread &t)
{
    t.copies.clear();
    t.group = 0;
    t.n_finished = 0;
}
} // namespace emu
