#include "text/charsmap.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "gr/status.h"

#define KEY "tokenizer.ggml.precompiled_charsmap"
#define MAX_MATCH 256 /* bytes; the units of a corrupt map may form loops */

struct gr_charsmap {
    uint32_t n_unit, n_text;
    uint32_t *unit;
    char *text; /* ends with a zero byte */
};

static uint32_t u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

int gr_charsmap_open(struct gr_charsmap **out, const uint8_t *p, uint64_t n)
{
    *out = NULL;
    uint32_t trie = n >= 4 ? u32(p) : 0;
    if (n < 4 || n > UINT32_MAX || trie % 4 || trie > n - 4)
        return gr_fail(GR_E_CORRUPT, KEY ": %llu bytes, with a trie of %u bytes inside",
                       (unsigned long long)n, trie);
    uint32_t n_text = (uint32_t)(n - 4 - trie);
    if (n_text && p[n - 1])
        return gr_fail(GR_E_CORRUPT, KEY ": the last replacement does not end with a zero byte");
    struct gr_charsmap *m = gr_calloc(1, sizeof *m);
    if (!m)
        return GR_E_NOMEM_HOST;
    m->n_unit = trie / 4, m->n_text = n_text;
    m->unit = gr_calloc(m->n_unit, sizeof *m->unit);
    m->text = gr_calloc((size_t)n_text + 1, 1);
    if (!m->unit || !m->text) {
        gr_charsmap_free(&m);
        return GR_E_NOMEM_HOST;
    }
    for (uint32_t i = 0; i < m->n_unit; i++)
        m->unit[i] = u32(p + 4 + 4 * (size_t)i);
    if (n_text)
        memcpy(m->text, p + 4 + trie, n_text);
    *out = m;
    return 0;
}

void gr_charsmap_free(struct gr_charsmap **m)
{
    if (!*m)
        return;
    gr_free((*m)->unit);
    gr_free((*m)->text);
    gr_free(*m);
    *m = NULL;
}

/* Offset of a unit's children. A Darts-clone unit: bits 0-7 the byte that leads to it (bit 31 set:
 * it is a leaf), bit 8 whether it has a value, bits 10-30 the offset of its children, in units of
 * 256 when bit 9 is set. */
static uint32_t children(uint32_t unit)
{
    return (unit >> 10) << ((unit & 0x200u) >> 6);
}

size_t gr_charsmap_match(const struct gr_charsmap *m, const char *p, size_t n, const char **to,
                         size_t *n_to)
{
    size_t best = 0;
    uint32_t at = m->n_unit ? children(m->unit[0]) : 0;
    for (size_t i = 0; i < n && i < MAX_MATCH && p[i]; i++) {
        at ^= (uint8_t)p[i];
        if (at >= m->n_unit || (m->unit[at] & 0x800000ffu) != (uint8_t)p[i])
            break;
        bool has_value = m->unit[at] >> 8 & 1;
        at ^= children(m->unit[at]);
        uint32_t value = has_value && at < m->n_unit ? m->unit[at] & 0x7fffffffu : UINT32_MAX;
        if (value < m->n_text)
            best = i + 1, *to = m->text + value;
    }
    if (best)
        *n_to = strlen(*to);
    return best;
}
