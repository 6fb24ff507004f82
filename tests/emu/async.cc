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
    check_aligned(src, bytes, "cp_async", site); // even if nothing is read
    if (src_bytes && !memory_owns(src, src_bytes))
        fail(site, "cp_async: reads %u bytes out of bounds: %s", src_bytes, where(src).c_str());
    unsigned char *to = shared_memory(dst, bytes, bytes, "cp_async", site);
    check_copy_begins(t, to, bytes, site);
    if (src_bytes)
        check_access(t, src, src_bytes, false, site);
    memset(to, 0xff, bytes);
    t.copies.push_back({to, src, bytes, src_bytes, t.group, site});
}

void cp_async_commit()
{
    self().group++;
}

// The n oldest copies of t end; other threads know it by the clock.
static void finish(Thread &t, size_t n, Clock *clock)
{
    for (size_t i = 0; i < n; i++) {
        const Copy &c = t.copies[i];
        memcpy(c.dst, c.src, c.src_bytes);
        memset(c.dst + c.src_bytes, 0, c.bytes - c.src_bytes);
        if (clock)
            check_copy_ends(t, c.dst, c.bytes, c.site, *clock);
        else
            check_copy_ends(t, c.dst, c.bytes, c.site);
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
    finish(t, n, nullptr);
}

uint64_t copies_issued(const Thread &t)
{
    return t.n_finished + t.copies.size();
}

void finish_copies(Thread &t, uint64_t issued_before, Clock &c)
{
    if (issued_before > t.n_finished)
        finish(t, issued_before - t.n_finished, &c);
}

void forget_copies(Thread &t)
{
    t.copies.clear();
    t.group = 0;
    t.n_finished = 0;
}
} // namespace emu
