/* RWKV World: greedy longest match, byte by byte. Tokens may be any bytes, so files hold them as
 * escaped Python byte strings. */
#include "gr/status.h"
#include "text/text_impl.h"

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes the escape after a backslash, at p[0, n), to *out; returns the number of characters
 * consumed. A truncated or malformed escape stands for its letter. */
static size_t escape(const char *p, size_t n, char *out)
{
    if (*p == 'x' && n >= 3 && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
        *out = (char)(hex(p[1]) * 16 + hex(p[2]));
        return 3;
    }
    *out = *p == 't' ? '\t' : *p == 'n' ? '\n' : *p == 'r' ? '\r' : *p;
    return 1;
}

size_t gr_rwkv_unescape(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; k++) {
        if (p[i] == '\\' && i + 1 < n)
            i += 1 + escape(p + i + 1, n - i - 1, out + k);
        else
            out[k] = p[i++];
    }
    return k;
}

int gr_rwkv_open(struct gr_vocab *v)
{
    int32_t *ids = gr_calloc((size_t)v->n_tok, sizeof *ids), equal[2];
    size_t n = 0;
    if (!ids)
        return GR_E_NOMEM_HOST;
    for (int32_t i = 0; i < v->n_tok; i++)
        if (gr_token_from_text(v, i) && v->type[i] != GR_TOKEN_UNUSED &&
            v->piece.off[i + 1] > v->piece.off[i])
            ids[n++] = i;
    int rc = gr_trie_build(&v->bytes, &v->piece, ids, n, equal);
    if (rc == GR_E_CORRUPT)
        (void)gr_fail(rc, "tokenizer.ggml.tokens: tokens %d and %d stand for the same bytes",
                      equal[0], equal[1]);
    gr_free(ids);
    return rc;
}

int gr_rwkv_run(struct gr_job *j, const char *p, size_t n)
{
    const struct gr_trie *t = &j->v->bytes;
    int32_t unknown = j->v->special[GR_SPECIAL_UNK];
    int rc = 0;
    for (size_t i = 0, end; i < n && !rc; i = end) {
        int32_t best = unknown;
        uint32_t node = 0;
        size_t k = i;
        end = i + 1;
        for (; k < n && (node = gr_trie_step(t, node, (uint8_t)p[k])); k++)
            if (t->id[node] >= 0)
                best = t->id[node], end = k + 1;
        rc = gr_job_count(j, k - i);
        if (!rc && best >= 0)
            rc = gr_job_push(j, best);
    }
    return rc;
}
