#include "base/mapped.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "gpurun.h"

/* [lo, hi); lo 0 = free. hi is written while lo is 0. */
struct range {
    _Atomic(uintptr_t) lo, hi;
};

/* Blocks are never freed, since a handler may walk them at any moment. They come from mmap rather
 * than gr_calloc, whose blocks must all be freed. */
struct block {
    _Atomic(struct block *) next;
    struct range range[255];
};

static _Atomic(struct block *) first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held by writers */

/* Returns the range that begins at lo, or with lo 0 the first free one; NULL: there is none. */
static struct range *find(uintptr_t lo)
{
    for (struct block *b = atomic_load(&first); b; b = atomic_load(&b->next))
        for (size_t i = 0; i < sizeof b->range / sizeof *b->range; i++)
            if (atomic_load(&b->range[i].lo) == lo)
                return &b->range[i];
    return NULL;
}

static struct range *new_block(void)
{
    void *p = mmap(NULL, sizeof(struct block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    struct block *b = p;
    atomic_store(&b->next, atomic_load(&first));
    atomic_store(&first, b);
    return b->range;
}

bool gr_mapped_add(const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    struct range *r = find(0);
    if (!r)
        r = new_block();
    if (r) {
        atomic_store(&r->hi, (uintptr_t)p + bytes);
        atomic_store(&r->lo, (uintptr_t)p);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void gr_mapped_remove(const void *p)
{
    pthread_mutex_lock(&lock);
    struct range *r = find((uintptr_t)p);
    if (r)
        atomic_store(&r->lo, 0);
    pthread_mutex_unlock(&lock);
}

/* Returns whether the address lies in the range, which another thread may replace meanwhile. */
static bool has(struct range *r, uintptr_t a)
{
    uintptr_t lo = atomic_load(&r->lo), hi = atomic_load(&r->hi);
    return lo && a >= lo && a < hi && atomic_load(&r->lo) == lo;
}

bool gr_mapped_has(const void *address)
{
    for (struct block *b = atomic_load(&first); b; b = atomic_load(&b->next))
        for (size_t i = 0; i < sizeof b->range / sizeof *b->range; i++)
            if (has(&b->range[i], (uintptr_t)address))
                return true;
    return false;
}

bool gr_in_model_file(const void *address)
{
    return gr_mapped_has(address);
}
