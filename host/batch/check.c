/* Checking a caller's batch. */
#include "batch/batch.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"

/* The state of a sequence after the tokens checked so far. */
struct seq_state {
    int32_t last; /* its last token in the batch, -1 = none */
    int32_t pos;  /* its largest position, from the cache or from `last`; -1 = none */
    int32_t end;  /* where a text continues: one past the largest position, row and column */
};

static int bad_token(int32_t i, const char *what, int64_t lo, int64_t hi, int64_t found)
{
    return gr_fail(GR_E_INVALID, "batch token %d: %s: %lld to %lld expected, %lld found", i, what,
                   (long long)lo, (long long)hi, (long long)found);
}

/* Checks the counts that array sizes depend on; *n_ids receives the number of sequence ids. */
static int check_counts(const struct gr_batch *in, const struct gr_batch_limits *l, int64_t *n_ids)
{
    if (in->n_tok < 1 || in->n_tok > l->n_batch)
        return gr_fail(GR_E_INVALID, "batch: 1 to %d tokens expected, %d found", l->n_batch,
                       in->n_tok);
    if (!in->token == !in->embd)
        return gr_fail(GR_E_INVALID, "batch: token ids or vectors expected, %s found",
                       in->token ? "both" : "NULL");
    if (in->embd && !l->n_embd)
        return gr_fail(GR_E_UNSUPPORTED, "batch: this model takes tokens alone, no vectors");
    if (in->pos_yx && !l->pos_2d)
        return gr_fail(GR_E_INVALID, "batch: no rows and columns of tokens expected, as the model "
                                     "has no such positions, some found");
    if (in->pos_yx && !in->pos)
        return gr_fail(GR_E_INVALID,
                       "batch: positions beside rows and columns expected, NULL found");
    *n_ids = 0;
    for (int32_t i = 0; i < in->n_tok; i++) {
        int32_t n = in->n_seq ? in->n_seq[i] : 1, most = in->seq ? l->n_seq_max : 1;
        if (n < 1 || n > most)
            return bad_token(i, in->seq ? "number of sequences" : "number of sequences, none named",
                             1, most, n);
        *n_ids += n;
    }
    if (*n_ids > INT32_MAX)
        return gr_fail(GR_E_TOO_LARGE, "batch: at most %d sequence ids expected, %lld found",
                       INT32_MAX, (long long)*n_ids);
    return 0;
}

/* Lays out the arrays for n tokens with n_ids sequence ids in the batch's memory, which is enlarged
 * when necessary. */
static int lay_out(struct gr_full_batch *b, size_t n, size_t n_ids)
{
    size_t words, bytes;
    if (!gr_mul(&words, n, (size_t)6) || !gr_add(&words, words, n_ids) ||
        !gr_mul(&bytes, words, sizeof(int32_t)) || !gr_add(&bytes, bytes, n))
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: a batch of %zu tokens", n);
    if (bytes > b->memory_bytes) {
        void *p = gr_realloc(b->memory, bytes, 1);
        if (!p)
            return GR_E_NOMEM_HOST;
        b->memory = p, b->memory_bytes = bytes;
    }
    b->token = b->memory;
    b->pos = b->token + n;
    b->row = b->pos + n;
    b->col = b->row + n;
    b->n_seq = b->col + n;
    b->seq_at = b->n_seq + n;
    b->seq = b->seq_at + n;
    b->logits = (int8_t *)(b->seq + n_ids);
    return 0;
}

/* Checks the sequences of token i: ids in range, none twice. */
static int check_ids(const struct gr_full_batch *b, int32_t i, const struct gr_batch_limits *l)
{
    uint64_t seen[GR_SEQ_MAX / 64] = {0};
    for (int32_t k = 0; k < b->n_seq[i]; k++) {
        int32_t s = b->seq[b->seq_at[i] + k];
        if (s < 0 || s >= l->n_seq_max)
            return bad_token(i, "sequence", 0, l->n_seq_max - 1, s);
        if (seen[s / 64] >> s % 64 & 1)
            return gr_fail(GR_E_INVALID,
                           "batch token %d: each sequence once expected, %d found twice", i, s);
        seen[s / 64] |= UINT64_C(1) << s % 64;
    }
    return 0;
}

/* Checks that the sequences of token i have the same past: the same last token (for which this held
 * when it was checked), or none of them a token in this batch, and the same cells. */
static int check_past(const struct gr_full_batch *b, int32_t i, const struct seq_state *st,
                      const struct gr_batch_limits *l)
{
    const int32_t *seq = b->seq + b->seq_at[i];
    for (int32_t k = 1; k < b->n_seq[i]; k++) {
        bool same = st[seq[k]].last == st[seq[0]].last && st[seq[k]].pos == st[seq[0]].pos;
        if (same && st[seq[0]].last < 0)
            same = l->same(l->cache, seq[0], seq[k]);
        if (!same)
            return gr_fail(GR_E_INVALID,
                           "batch token %d: sequences with the same tokens before it expected, %d "
                           "and %d differ",
                           i, seq[0], seq[k]);
    }
    return 0;
}

/* Sets and checks position, row and column of token i. A text continues without a gap; an empty
 * sequence may start anywhere. in->pos NULL: the next position. */
static int check_pos(struct gr_full_batch *b, int32_t i, const struct gr_batch *in,
                     const struct seq_state *st)
{
    int32_t seq = b->seq[b->seq_at[i]], last = st[seq].pos, next = st[seq].end;
    int32_t pos = in->pos ? in->pos[i] : next;
    b->pos[i] = pos;
    b->row[i] = in->pos_yx ? in->pos_yx[i] : pos;
    b->col[i] = in->pos_yx ? in->pos_yx[(size_t)in->n_tok + (size_t)i] : pos;
    b->pos_2d |= b->row[i] != pos || b->col[i] != pos;
    if (pos < 0 || pos > GR_POS_MAX)
        return bad_token(i, "position", 0, GR_POS_MAX, pos);
    if (b->row[i] < 0 || b->row[i] > GR_POS_MAX)
        return bad_token(i, "row", 0, GR_POS_MAX, b->row[i]);
    if (b->col[i] < 0 || b->col[i] > GR_POS_MAX)
        return bad_token(i, "column", 0, GR_POS_MAX, b->col[i]);
    if (last >= 0 && in->pos_yx && pos < last)
        return gr_fail(
            GR_E_INVALID,
            "batch token %d: position %d or more expected, as sequence %d ends at %d, %d found", i,
            last, seq, last, pos);
    if (last >= 0 && !in->pos_yx && pos != next)
        return gr_fail(GR_E_INVALID,
                       "batch token %d: position %d expected, as sequence %d ends at %d, %d found",
                       i, next, seq, next - 1, pos);
    return 0;
}

static int check_token(struct gr_full_batch *b, int32_t i, const struct gr_batch *in,
                       struct seq_state *st, const struct gr_batch_limits *l)
{
    if (b->token[i] < 0 || b->token[i] >= l->n_vocab)
        return bad_token(i, "id", 0, l->n_vocab - 1, b->token[i]);
    int rc = check_ids(b, i, l);
    if (!rc)
        rc = check_past(b, i, st, l);
    if (!rc)
        rc = check_pos(b, i, in, st);
    if (rc)
        return rc;
    int32_t end = 1 + GR_MAX(b->pos[i], GR_MAX(b->row[i], b->col[i]));
    for (int32_t k = 0; k < b->n_seq[i]; k++) {
        struct seq_state *s = &st[b->seq[b->seq_at[i] + k]];
        *s = (struct seq_state){i, b->pos[i], GR_MAX(s->end, end)};
    }
    return 0;
}

/* Copies the tokens, or checks the vectors that replace them. */
static int take_input(struct gr_full_batch *b, const struct gr_batch *in, int32_t n_embd)
{
    size_t n = (size_t)in->n_tok;
    b->embd = in->embd;
    if (in->token) {
        memcpy(b->token, in->token, n * sizeof *b->token);
        return 0;
    }
    memset(b->token, 0, n * sizeof *b->token);
    for (size_t i = 0; i < n * (size_t)n_embd; i++)
        if (!isfinite(in->embd[i]))
            return gr_fail(GR_E_INVALID,
                           "batch token %zu: a vector of finite numbers expected, %g found",
                           i / (size_t)n_embd, (double)in->embd[i]);
    return 0;
}

int gr_batch_check(struct gr_full_batch *b, const struct gr_batch *in,
                   const struct gr_batch_limits *l)
{
    struct seq_state st[GR_SEQ_MAX];
    int64_t n_ids = 0;
    b->n_tok = b->n_out = 0;
    b->pos_2d = false;
    int rc = check_counts(in, l, &n_ids);
    if (!rc)
        rc = lay_out(b, (size_t)in->n_tok, (size_t)n_ids);
    if (!rc)
        rc = take_input(b, in, l->n_embd);
    if (rc)
        return rc;
    if (in->seq)
        memcpy(b->seq, in->seq, (size_t)n_ids * sizeof *b->seq);
    else
        memset(b->seq, 0, (size_t)n_ids * sizeof *b->seq);
    for (int32_t s = 0; s < l->n_seq_max; s++) {
        int32_t pos = l->pos_max(l->cache, s);
        st[s] = (struct seq_state){-1, pos, l->pos_2d ? l->pos_end(l->cache, s) : pos + 1};
    }
    int32_t at = 0, n_out = 0;
    for (int32_t i = 0; i < in->n_tok; i++) {
        b->n_seq[i] = in->n_seq ? in->n_seq[i] : 1;
        b->seq_at[i] = at;
        at += b->n_seq[i];
        b->logits[i] = in->logits ? in->logits[i] != 0 : i == in->n_tok - 1;
        n_out += b->logits[i];
        rc = check_token(b, i, in, st, l);
        if (rc)
            return rc;
    }
    b->n_tok = in->n_tok, b->n_out = n_out;
    return 0;
}

void gr_batch_fini(struct gr_full_batch *b)
{
    gr_free(b->memory);
    *b = (struct gr_full_batch){0};
}
