#include "base/alloc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "gr/status.h"

#define ALIGN 64
#define HEADER ALIGN /* bytes for struct header, so that the block behind it is aligned */
#define OVERHEAD (HEADER + ALIGN)
#define ARENA_BLOCK (64 * 1024)
#define HUGE_PAGE ((uintptr_t)2 << 20)

static _Atomic uint64_t n_alloc, fail_at;
static _Atomic int fail_persistent;
static _Atomic size_t held, held_peak;

uint64_t gr_alloc_fail_at(uint64_t k, int persistent)
{
    uint64_t made = atomic_exchange(&n_alloc, 0);
    atomic_store(&fail_persistent, persistent);
    atomic_store(&fail_at, k);
    return made;
}

static int must_fail(void)
{
    uint64_t i = atomic_fetch_add(&n_alloc, 1) + 1, at = atomic_load(&fail_at);
    return at && (i == at || (i > at && atomic_load(&fail_persistent)));
}

size_t gr_alloc_held(size_t *peak)
{
    size_t now = atomic_load(&held);
    if (peak)
        *peak = atomic_exchange(&held_peak, now);
    return now;
}

static void count_held(size_t bytes)
{
    size_t now = atomic_fetch_add(&held, bytes) + bytes, peak = atomic_load(&held_peak);
    while (now > peak && !atomic_compare_exchange_weak(&held_peak, &peak, now))
        ;
}

/* Precedes every block. */
struct header {
    void *raw; /* address returned by malloc or calloc */
    size_t bytes;
    uint64_t budget; /* id of the budget that it is charged to, or 0 */
};

static _Thread_local struct gr_budget *budget; /* active budget, or NULL */

void gr_budget_begin(struct gr_budget *b)
{
    static _Atomic uint64_t n_budget;
    if (!b->id)
        b->id = atomic_fetch_add(&n_budget, 1) + 1;
    if (!budget)
        budget = b;
}

bool gr_budget_end(struct gr_budget *b)
{
    if (budget == b)
        budget = NULL;
    return b->exceeded;
}

/* Charges `total` bytes to the active budget; false when they exceed it. Without a budget: true. */
static bool charge(size_t total)
{
    if (!budget)
        return true;
    if (total > budget->limit - budget->held)
        return budget->exceeded = true, false;
    budget->held += total;
    return true;
}

static struct header *header_of(void *p)
{
    return (struct header *)(void *)((char *)p - HEADER);
}

/* Allocates a header and `bytes` behind it. Zeroed memory comes from calloc, which leaves the pages
 * of a large block untouched until they are used. */
static void *block_new(size_t bytes, bool zeroed)
{
    uint64_t total;
    char *raw = NULL;
    bool room =
        !must_fail() && gr_add(&total, (uint64_t)bytes, (uint64_t)OVERHEAD) && charge(total);
    if (room)
        raw = zeroed ? calloc(1, total) : malloc(total);
    if (room && !raw && budget)
        budget->held -= total;
    if (!raw) {
        (void)gr_fail(GR_E_NOMEM_HOST, "out of host memory: %zu bytes asked for", bytes);
        return NULL;
    }
    char *p = raw + HEADER + (ALIGN - (uintptr_t)raw % ALIGN) % ALIGN;
    *header_of(p) = (struct header){raw, bytes, budget ? budget->id : 0};
    count_held(bytes);
    return p;
}

void *gr_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (!gr_mul(&bytes, n, size))
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: %zu items of %zu bytes", n, size),
               NULL;
    return block_new(bytes, true);
}

void *gr_realloc(void *old, size_t n, size_t size)
{
    size_t bytes;
    if (!gr_mul(&bytes, n, size))
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: %zu items of %zu bytes", n, size),
               NULL;
    void *p = block_new(bytes, false);
    if (p && old) {
        memcpy(p, old, GR_MIN(header_of(old)->bytes, bytes));
        gr_free(old);
    }
    return p;
}

char *gr_strndup(const char *p, size_t n)
{
    char *s = gr_calloc(n + 1, 1);
    return s ? memcpy(s, p, n) : NULL;
}

void gr_free(void *p)
{
    if (!p)
        return;
    struct header *h = header_of(p);
    atomic_fetch_sub(&held, h->bytes);
    if (budget && h->budget == budget->id)
        budget->held -= h->bytes + OVERHEAD;
    free(h->raw);
}

void gr_alloc_huge(const void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t from = GR_PAD((uintptr_t)p, HUGE_PAGE),
              to = ((uintptr_t)p + bytes) & ~(HUGE_PAGE - 1);
    if (p && from < to)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

void *gr_vec_push(struct gr_vec *v, size_t item)
{
    if (v->n == v->cap) {
        size_t cap = v->cap ? v->cap * 2 : 16;
        void *p = gr_realloc(v->data, cap, item);
        if (!p)
            return NULL;
        v->data = p, v->cap = cap, v->item = item;
    }
    return memset((char *)v->data + item * v->n++, 0, item);
}

int gr_vec_reserve(struct gr_vec *v, size_t n, size_t item)
{
    if (n <= v->cap)
        return 0;
    void *p = gr_realloc(v->data, n, item);
    if (!p)
        return GR_E_NOMEM_HOST;
    v->data = p, v->cap = n, v->item = item;
    return 0;
}

int gr_vec_append(struct gr_vec *v, const void *items, size_t n, size_t item)
{
    if (n > v->cap - v->n && gr_vec_reserve(v, GR_MAX(v->cap * 2, v->n + n), item))
        return GR_E_NOMEM_HOST;
    if (n)
        memcpy((char *)v->data + item * v->n, items, item * n);
    v->n += n;
    return 0;
}

void gr_vec_fini(struct gr_vec *v)
{
    gr_free(v->data);
    *v = (struct gr_vec){0};
}

struct gr_arena_block {
    struct gr_arena_block *next;
    size_t used, size;
    _Alignas(16) char data[];
};

void *gr_arena_alloc(struct gr_arena *a, size_t n)
{
    uint64_t need;
    if (!gr_align_up(&need, (uint64_t)n, 16) ||
        (a->cap && need > a->cap - GR_MIN(a->cap, a->total)))
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: %zu bytes over a limit of %zu", n,
                       a->cap),
               NULL;
    struct gr_arena_block *b = a->head;
    if (!b || need > b->size - b->used) {
        size_t size = GR_MAX((size_t)need, (size_t)ARENA_BLOCK);
        b = gr_calloc(1, sizeof *b + size);
        if (!b)
            return NULL;
        b->next = a->head, b->size = size, a->head = b;
    }
    void *p = b->data + b->used;
    b->used += need;
    a->total += need;
    return p;
}

char *gr_arena_strndup(struct gr_arena *a, const char *p, size_t n)
{
    char *s = gr_arena_alloc(a, n + 1);
    return s ? memcpy(s, p, n) : NULL;
}

void gr_arena_fini(struct gr_arena *a)
{
    for (struct gr_arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        gr_free(b);
    }
    *a = (struct gr_arena){.cap = a->cap};
}
