/* Parts of a text that stand elsewhere. A part of `least` tokens has a whole block of half as many
 * of the text in the cache, where blocks begin at multiples of their length: those are looked up by
 * a rolling hash, and what is found is compared and extended to both sides. */
#include "chunks.h"

#include <stdlib.h>
#include <string.h>

#define FACTOR UINT64_C(0x9e3779b97f4a7c15)
#define WORK_BY_TOKEN 64 /* tokens that are compared for each one of the text, at most */

/* A block of the cache. */
struct block {
    uint64_t hash;
    int32_t seq, at; /* seq -1: none */
};

struct search {
    const struct gr_prefixes *p;
    const int32_t *token;
    int32_t lo, hi, least;
    int32_t size;        /* tokens of a block */
    uint64_t first;      /* power of FACTOR for the first token of a block */
    struct block *block; /* [mask + 1], by their hashes */
    size_t mask;
    int64_t work; /* comparisons that are left */
    struct gr_chunk *chunk;
    int32_t n;
};

static uint64_t hash_of(const int32_t *token, int32_t n)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < n; i++)
        h = h * FACTOR + (uint64_t)token[i] + 1;
    return h;
}

/* Returns the place of a hash, or the empty one where it belongs. */
static struct block *place_of(const struct search *s, uint64_t hash)
{
    size_t i = (size_t)(hash ^ hash >> 32) * (size_t)FACTOR >> 8;
    while (s->block[i & s->mask].seq >= 0 && s->block[i & s->mask].hash != hash)
        i++;
    return &s->block[i & s->mask];
}

/* Returns the first token of a sequence whose cell none of those before it shares. */
static int32_t first_own(const struct gr_prefixes *p, int32_t seq, uint64_t owner)
{
    int32_t most = 0;
    for (int32_t i = 0; i < seq; i++) {
        int32_t same = p->seq[i].owner == owner ? gr_prefixes_shared(p, i, seq) : 0;
        most = same > most ? same : most;
    }
    return most;
}

/* Makes the table of all blocks of the owner's texts; false: there are none, or no memory. */
static bool make_table(struct search *s, uint64_t owner)
{
    const struct gr_prefixes *p = s->p;
    size_t n = 0;
    for (int32_t i = 0; i < p->n_seq; i++)
        n += p->seq[i].owner == owner && p->seq[i].usable > 0 ? (size_t)(p->seq[i].usable / s->size)
                                                              : 0;
    for (s->mask = 1; s->mask < 2 * n; s->mask = 2 * s->mask + 1)
        ;
    s->block = n ? malloc((s->mask + 1) * sizeof *s->block) : NULL;
    if (!s->block)
        return false;
    memset(s->block, 0xff, (s->mask + 1) * sizeof *s->block); /* seq -1 */
    for (int32_t i = 0; i < p->n_seq; i++) {
        const struct gr_prefix *q = &p->seq[i];
        int32_t at = q->owner == owner && q->n ? first_own(p, i, owner) / s->size * s->size : 0;
        for (; q->owner == owner && at + s->size <= q->usable; at += s->size) {
            uint64_t hash = hash_of(q->token + at, s->size);
            struct block *b = place_of(s, hash);
            if (b->seq < 0)
                *b = (struct block){hash, i, at};
        }
    }
    return true;
}

/* Returns the chunk around token i, where a block may stand; n = 0: it does not. lo: where it
 * begins at the earliest. */
static struct gr_chunk extend(struct search *s, const struct block *b, int32_t i, int32_t lo)
{
    const struct gr_prefix *q = &s->p->seq[b->seq];
    int32_t back = 0, n = 0;
    while (i + n < s->hi && b->at + n < q->usable && s->token[i + n] == q->token[b->at + n])
        n++;
    while (n && i - back > lo && b->at > back &&
           s->token[i - back - 1] == q->token[b->at - back - 1])
        back++;
    s->work -= back + n;
    return (struct gr_chunk){i - back, b->seq, b->at - back, back + n};
}

static bool add(struct search *s, const struct gr_chunk *c)
{
    struct gr_chunk *grown = s->chunk;
    if (s->n % 16 == 0)
        grown = realloc(s->chunk, ((size_t)s->n + 16) * sizeof *grown);
    if (!grown)
        return false;
    s->chunk = grown;
    s->chunk[s->n++] = *c;
    return true;
}

/* Adds the next token to the hash of the block at i, and takes the first one out. */
static uint64_t roll(const struct search *s, uint64_t hash, int32_t i)
{
    if (i + s->size >= s->hi)
        return hash;
    hash -= s->first * ((uint64_t)s->token[i] + 1);
    return hash * FACTOR + (uint64_t)s->token[i + s->size] + 1;
}

static void walk(struct search *s)
{
    uint64_t hash = hash_of(s->token + s->lo, s->size);
    int32_t lo = s->lo; /* end of the chunk before */
    for (int32_t i = s->lo; i + s->size <= s->hi && s->work > 0;) {
        const struct block *b = place_of(s, hash);
        struct gr_chunk c = {0};
        if (b->seq >= 0)
            c = extend(s, b, i, lo);
        int32_t end = c.at + c.n; /* a block within what was compared finds the same again */
        int32_t next = end - s->size >= i ? end - s->size + 1 : i + 1;
        if (c.n >= s->least) {
            if (!add(s, &c))
                return;
            next = lo = end;
        }
        for (; i < next; i++)
            hash = roll(s, hash, i);
    }
}

int32_t gr_chunks_find(const struct gr_prefixes *p, uint64_t owner, const int32_t *token,
                       int32_t lo, int32_t hi, int32_t least, struct gr_chunk **out)
{
    struct search s = {.p = p, .token = token, .lo = lo, .hi = hi, .least = least};
    *out = NULL;
    if (hi - lo < least)
        return 0;
    s.size = least - least / 2;
    s.first = 1;
    for (int32_t i = 1; i < s.size; i++)
        s.first *= FACTOR;
    s.work = (int64_t)WORK_BY_TOKEN * (hi - lo);
    if (make_table(&s, owner))
        walk(&s);
    free(s.block);
    *out = s.chunk;
    return s.n;
}
