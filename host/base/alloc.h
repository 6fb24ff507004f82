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

/* Returns a zero-terminated copy of n bytes (gr_free), or NULL when there is no memory. */
char *gr_strndup(const char *p, size_t n) __attribute__((warn_unused_result));

/* Frees; NULL is fine. */
void gr_free(void *p);

/* Advises the system to back the whole 2 MiB pages within [p, p + bytes), of memory or of a mapped
 * file, by huge pages: streaming reads spend up to half of their time on address translation with 4
 * KiB pages, most of all on a virtual machine. Untouched pages are not allocated, but touching one
 * byte allocates its 2 MiB. */
void gr_alloc_huge(const void *p, size_t bytes);

/* Limit on the memory that one thing (an untrusted file, for instance) may allocate. Initialise
 * with {.limit = bytes}. */
struct gr_budget {
    size_t limit, held; /* bytes, including the header and alignment of each block */
    uint64_t id;
    bool exceeded; /* an allocation has failed for the limit */
};
/* Starts charging this thread's allocations to b, and crediting it when they are freed: an
 * allocation that would exceed the limit fails. A budget may be started again after gr_budget_end
 * and goes on from its count; one started while another is active counts nothing. */
void gr_budget_begin(struct gr_budget *b);
/* Stops charging to b; returns b->exceeded. */
bool gr_budget_end(struct gr_budget *b);

/* Test hook: the k-th allocation from now fails (1 = the next one), and with `persistent` all after
 * it. 0 switches it off. Returns the number of allocations made since the last call. */
uint64_t gr_alloc_fail_at(uint64_t k, int persistent);

/* Test hook: returns the bytes allocated now. *peak (unless NULL) receives the highest number since
 * the last call with a peak. A realloc holds the old and the new block for a moment. */
size_t gr_alloc_held(size_t *peak);

/* A growing array: items of one size, contiguous. Zero-initialise with {0}; gr_vec_fini frees. */
struct gr_vec {
    void *data;
    size_t n, cap, item;
};
/* Appends one zeroed item of `item` bytes; returns its address, or NULL. The pointer is valid until
 * the next push. */
void *gr_vec_push(struct gr_vec *v, size_t item) __attribute__((warn_unused_result));
/* Reserves capacity for n items in all: pushes up to there cannot fail; 0 or GR_E_NOMEM_HOST. */
int gr_vec_reserve(struct gr_vec *v, size_t n, size_t item) __attribute__((warn_unused_result));
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
/* Returns n zeroed bytes aligned to 16, or NULL. */
void *gr_arena_alloc(struct gr_arena *a, size_t n) __attribute__((warn_unused_result));
char *gr_arena_strndup(struct gr_arena *a, const char *p, size_t n)
    __attribute__((warn_unused_result));
void gr_arena_fini(struct gr_arena *a);

#endif
