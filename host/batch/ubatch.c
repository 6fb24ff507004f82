/* Splitting a batch into micro-batches. */
#include <string.h>

#include "base/checked.h"
#include "batch/batch.h"

/* A batch being split. Tokens of a sequence are taken in order, so all up to done[s] are taken.
 * Sequences whose next token is the same one advance together; the lowest of them is their lead. */
struct cut {
    const struct gr_full_batch *b;
    int32_t n_tail;
    int32_t done[GR_SEQ_MAX]; /* the last token taken, -1 = none */
    int32_t left[GR_SEQ_MAX]; /* tokens not taken */
    /* In this round: */
    int32_t lead[GR_SEQ_MAX]; /* of each sequence; NOT_YET: its next token was not seen yet, WAITS:
                                 it belongs to no run */
    int32_t run[GR_SEQ_MAX];  /* of a lead: consecutive tokens that can be taken at once */
    int32_t body[GR_SEQ_MAX]; /* number of them that are not in the tail of a sequence */
};

enum { NOT_YET = -1, WAITS = -2 };

static int32_t lowest(const struct gr_full_batch *b, int32_t t)
{
    const int32_t *seq = b->seq + b->seq_at[t];
    int32_t min = seq[0];
    for (int32_t k = 1; k < b->n_seq[t]; k++)
        min = GR_MIN(min, seq[k]);
    return min;
}

static bool taken(const struct cut *c, int32_t t)
{
    return t <= c->done[c->b->seq[c->b->seq_at[t]]];
}

/* Returns whether token t, the next one of all its sequences, begins or continues the run of its
 * lead: its sequences must be the n sequences of the run's first token. */
static bool joins(const struct cut *c, int32_t t, int32_t lead, int32_t n)
{
    const int32_t *seq = c->b->seq + c->b->seq_at[t];
    int32_t before = c->lead[lead];
    if (before != NOT_YET && (before != lead || c->b->n_seq[t] != n))
        return false;
    for (int32_t k = 0; k < c->b->n_seq[t]; k++)
        if (c->lead[seq[k]] != before)
            return false;
    return true;
}

/* Finds the runs of a round. A token that does not join a run ends those of its sequences. */
static void find_runs(struct cut *c)
{
    const struct gr_full_batch *b = c->b;
    int32_t n_member[GR_SEQ_MAX], left[GR_SEQ_MAX];
    for (int32_t s = 0; s < GR_SEQ_MAX; s++) {
        c->lead[s] = NOT_YET;
        c->run[s] = c->body[s] = n_member[s] = 0;
    }
    memcpy(left, c->left, sizeof left);
    for (int32_t t = 0; t < b->n_tok; t++) {
        if (taken(c, t))
            continue;
        int32_t lead = lowest(b, t);
        bool join = joins(c, t, lead, n_member[lead]), tail = false;
        for (int32_t k = 0; k < b->n_seq[t]; k++) {
            int32_t s = b->seq[b->seq_at[t] + k];
            c->lead[s] = join ? lead : WAITS;
            tail |= left[s]-- <= c->n_tail;
        }
        n_member[lead] = b->n_seq[t];
        c->run[lead] += join;
        c->body[lead] += join && !tail;
    }
}

/* Chooses up to n_max leads for a micro-batch of at most n_ubatch tokens; *each receives the number
 * of tokens of each. Tails wait until nothing else is left, so that they do not split other
 * sequences into single tokens. */
static int32_t choose(const struct cut *c, int32_t n_max, int32_t n_ubatch, int32_t *chosen,
                      int32_t *each)
{
    int32_t n = 0, most = 0;
    bool bodies = false;
    for (int32_t s = 0; s < GR_SEQ_MAX; s++)
        bodies |= c->body[s] > 0;
    for (int32_t s = 0; s < GR_SEQ_MAX && n < n_max; s++) {
        int32_t len = bodies ? c->body[s] : GR_MIN(c->run[s], 1);
        if (!len)
            continue;
        most = n ? GR_MIN(most, len) : len;
        chosen[n++] = s;
    }
    *each = GR_MIN(most, n_ubatch / n);
    return n;
}

/* Takes the first `each` tokens of each chosen lead: tok [n * each]. */
static void take(struct cut *c, const int32_t *chosen, int32_t n, int32_t each, int32_t *tok)
{
    const struct gr_full_batch *b = c->b;
    int32_t at[GR_SEQ_MAX], end[GR_SEQ_MAX];
    memset(at, 0, sizeof at);
    memset(end, 0, sizeof end);
    for (int32_t k = 0; k < n; k++) {
        at[chosen[k]] = k * each;
        end[chosen[k]] = (k + 1) * each;
    }
    for (int32_t t = 0; t < b->n_tok; t++) {
        int32_t lead = lowest(b, t);
        if (taken(c, t) || at[lead] == end[lead])
            continue;
        tok[at[lead]++] = t;
        for (int32_t k = 0; k < b->n_seq[t]; k++) {
            int32_t s = b->seq[b->seq_at[t] + k];
            c->done[s] = t;
            c->left[s]--;
        }
    }
}

static int32_t n_out(const struct gr_full_batch *b, const int32_t *tok, int32_t n)
{
    int32_t out = 0;
    for (int32_t i = 0; i < n; i++)
        out += b->logits[tok[i]];
    return out;
}

static int32_t split_simple(const struct gr_full_batch *b, int32_t n_ubatch, int32_t *tok,
                            struct gr_ubatch *ub)
{
    int32_t n = 0;
    for (int32_t t = 0; t < b->n_tok; t++)
        tok[t] = t;
    for (int32_t first = 0; first < b->n_tok; first += ub[n++].n_tok) {
        int32_t n_tok = GR_MIN(n_ubatch, b->n_tok - first);
        ub[n] = (struct gr_ubatch){b, tok + first, n_tok, n_out(b, tok + first, n_tok), 0};
    }
    return n;
}

int32_t gr_batch_split(const struct gr_full_batch *b, enum gr_split mode, int32_t n_ubatch,
                       int32_t n_tail, int32_t *tok, struct gr_ubatch *ub)
{
    if (mode == GR_SPLIT_SIMPLE)
        return split_simple(b, n_ubatch, tok, ub);
    struct cut c = {.b = b, .n_tail = n_tail};
    memset(c.done, 0xff, sizeof c.done);
    for (int32_t t = 0; t < b->n_tok; t++)
        for (int32_t k = 0; k < b->n_seq[t]; k++)
            c.left[b->seq[b->seq_at[t] + k]]++;
    int32_t n = 0;
    for (int32_t first = 0; first < b->n_tok; first += ub[n++].n_tok) {
        int32_t chosen[GR_SEQ_MAX], each;
        find_runs(&c);
        int32_t n_max = mode == GR_SPLIT_SEQ ? 1 : GR_MIN(n_ubatch, GR_SEQ_MAX);
        int32_t n_seq = choose(&c, n_max, n_ubatch, chosen, &each), n_tok = n_seq * each;
        take(&c, chosen, n_seq, each, tok + first);
        ub[n] = (struct gr_ubatch){b, tok + first, n_tok, n_out(b, tok + first, n_tok), n_seq};
    }
    return n;
}
