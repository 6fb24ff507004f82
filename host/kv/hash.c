#include "kv/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/cells.h"

uint64_t gr_hash_bytes(uint64_t hash, const void *p, size_t n)
{
    return XXH3_64bits_withSeed(p, n, hash);
}

static uint64_t hash_evicted(uint64_t hash, const struct gr_kv_evicted *evicted)
{
    hash = gr_hash_bytes(hash, &evicted->n, sizeof evicted->n);
    return gr_hash_bytes(hash, evicted->r, evicted->n * sizeof *evicted->r);
}

/* Hashes the used cells [c, end). */
static uint64_t hash_run(const struct gr_kv *kv, uint32_t c, uint32_t end, uint64_t hash)
{
    uint32_t n = end - c;
    hash = gr_hash_bytes(hash, &c, sizeof c);
    hash = gr_hash_bytes(hash, kv->pos + c, n * sizeof *kv->pos);
    hash = gr_hash_bytes(hash, kv->delta + c, n * sizeof *kv->delta);
    if (kv->row) {
        hash = gr_hash_bytes(hash, kv->row + c, n * sizeof *kv->row);
        hash = gr_hash_bytes(hash, kv->col + c, n * sizeof *kv->col);
    }
    hash = gr_hash_bytes(hash, kv->age + c, n * sizeof *kv->age);
    return gr_hash_bytes(hash, kv->set + (size_t)c * kv->n_set, n * kv->n_set * sizeof *kv->set);
}

static uint64_t hash_pool(const struct gr_kv *kv, const struct gr_kv_pool *pool, uint64_t hash)
{
    uint32_t c = gr_kv_find(kv, pool, 0, true);
    hash = gr_hash_bytes(hash, &pool->head, sizeof pool->head);
    while (c < kv->p.n_cell) {
        uint32_t end = gr_kv_find(kv, pool, c, false);
        hash = hash_run(kv, pool->base + c, pool->base + end, hash);
        c = end < kv->p.n_cell ? gr_kv_find(kv, pool, end, true) : end;
    }
    return hash;
}

uint64_t gr_kv_hash(const struct gr_kv *kv, uint64_t hash)
{
    hash = gr_hash_bytes(hash, &kv->clock, sizeof kv->clock);
    for (uint32_t i = 0; i < kv->p.n_kv_pool; i++)
        hash = hash_pool(kv, &kv->pool[i], hash);
    for (uint32_t i = 0; i < kv->p.n_seq_max; i++) {
        const struct gr_kv_seq *q = &kv->seq[i];
        hash = gr_hash_bytes(hash, &q->n, sizeof q->n);
        if (q->n)
            hash = gr_hash_bytes(hash, gr_kv_items(q), q->n * sizeof *q->cell);
        hash = hash_evicted(hash, &q->evicted);
    }
    return hash;
}
