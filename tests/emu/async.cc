// cp.async at its latest: the destination is poisoned when a copy is issued, and the bytes are
// read and delivered only by the wait that has to see them.
#include <string.h>

#include "core.hpp"
#include "device/kernels/ptx.cuh"

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

void cp_async_wait(uint32_t pending)
{
    Thread &t = self();
    size_t n = 0;
    for (; n < t.copies.size(); n++) {
        const Copy &c = t.copies[n];
        if (c.group == t.group || t.group - c.group <= pending) // open, or one of the newest
            break;
        if (c.src_bytes && !memory_owns(c.src, c.src_bytes) && where_shared(c.src).empty())
            fail(c.site, "cp_async: reads %s", where(c.src).c_str());
        memcpy(c.dst, c.src, c.src_bytes);
        memset(c.dst + c.src_bytes, 0, c.bytes - c.src_bytes);
    }
    t.copies.erase(t.copies.begin(), t.copies.begin() + (ptrdiff_t)n);
}

void forget_copies(Thread &t)
{
    t.copies.clear();
    t.group = 0;
}
} // namespace emu
