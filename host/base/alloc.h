/* Every allocation of the library goes through here, so that tests can fail any one of them. */
#ifndef GR_BASE_ALLOC_H
#define GR_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n * size zeroed bytes, aligned to 64; NULL (and this thread's message set) when there is no
 * memory or the product overflows. Zero bytes give a valid pointer. Free with gr_free. */
void *gr_calloc(size_t n, size_t size) __attribute__((warn_unused_result));

/* `old` (or NULL) grown or shrunk to n * size bytes, contents kept, new bytes undefined; on failure
 * NULL and `old` is still valid. `old` must come from gr_realloc or gr_calloc. */
void *gr_realloc(void *old, size_t n, size_t size) __attribute__((warn_unused_result));

/* A zero-terminated copy of n bytes. */
char *gr_strndup(const char *p, size_t n) __attribute__((warn_unused_result));

/* Frees; NULL is fine. */
void gr_free(void *p);

/* Asks the system to keep the whole pages of 2 MiB within [p, p + bytes) as such, be they memory or
 * a mapped file's: what is read in streams spends up to half of its time looking up pages of 4 KiB,
 * most of all on a virtual machine. Advice only: what is never used is not taken, but one byte
 * takes its 2 MiB. */
void gr_alloc_huge(const void *p, size_t bytes);

/* A bound on what is made of one thing, an untrusted file for instance. Initialise with
 * {.limit = bytes}. */
struct gr_budget {
    size_t limit, held; /* bytes, those that keep account of a block included */
    uint64_t id;
    bool exceeded; /* an allocation has failed for the limit */
};
/* From here on b counts what this thread allocates, less what it frees of that: an allocation that
 * would go over the limit fails. It may be begun again after its end, and goes on then; begun while
 * another one counts, it counts nothing. */
void gr_budget_begin(struct gr_budget *b);
/* Ends it; returns b->exceeded. */
bool gr_budget_end(struct gr_budget *b);

/* Test hook: the k-th allocation from now fails (1 = the next one), and with `persistent` all after
 * it. 0 switches it off. Returns the number of allocations made since the last call. */
uint64_t gr_alloc_fail_at(uint64_t k, int persistent);

/* Test hook: bytes that are held now. *peak (when not NULL) gets the most that were held at once
 * since the last call with a peak. A realloc holds the old and the new block for a moment. */
size_t gr_alloc_held(size_t *peak);

/* A growing array: items of one size, contiguous. Zero-initialise with {0}; gr_vec_fini frees. */
struct gr_vec {
    void *data;
    size_t n, cap, item;
};
/* Space for one more item of `item` bytes at the end, zeroed, or NULL. The pointer is valid until
 * the next push. */
void *gr_vec_push(struct gr_vec *v, size_t item) __attribute__((warn_unused_result));
/* Room for n items in all, so that none up to there needs more; 0 or GR_E_NOMEM_HOST. */
int gr_vec_room(struct gr_vec *v, size_t n, size_t item) __attribute__((warn_unused_result));
/* Appends n items; 0 or GR_E_NOMEM_HOST. */
int gr_vec_append(struct gr_vec *v, const void *items, size_t n, size_t item)
    __attribute__((warn_unused_result));
void gr_vec_fini(struct gr_vec *v);

/* An arena: many small objects freed at once. Zero-initialise with {0}. `cap` (bytes, 0 = none)
 * bounds the total. */
struct gr_arena {
    struct gr_arena_block *head;
    size_t total, cap;
};
/* n zeroed bytes aligned to 16, or NULL. */
void *gr_arena_alloc(struct gr_arena *a, size_t n) __attribute__((warn_unused_result));
char *gr_arena_strndup(struct gr_arena *a, const char *p, size_t n)
    __attribute__((warn_unused_result));
void gr_arena_fini(struct gr_arena *a);

#endif
