#include "kv/recurrent.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gr/status.h"
#include "kv/hash.h"
#include "kv/state.h"

/* The rows of each sequence, newest first: [0] holds its present state (the tail), the others are
 * snapshots, each one token older than the one in front of it. */
struct chains {
    int32_t *row; /* [n_seq_max][1 + n_rollback] */
    int32_t *n;   /* [n_seq_max] */
};

/* Loss when a row that no sequence refers to now is overwritten: what an abort cannot restore. */
enum { NOTHING, SNAPSHOT, STATE, N_LOSS };

struct gr_rs {
    struct gr_rs_params p;
    uint32_t n_row;
    int32_t *pos;           /* [n_row] position of the last token of the state; -1: free row */
    int32_t *n_ref;         /* [n_row] occurrences in `now` */
    int32_t *n_old;         /* [n_row] occurrences in `old`, during a batch */
    int32_t *n_read;        /* [n_row] sequences of the present micro-batch that read the row */
    uint8_t *loss;          /* [n_row] NOTHING, SNAPSHOT or STATE; in gr_rs_place */
    uint32_t next[N_LOSS];  /* in gr_rs_place: no row before it has this loss and is available */
    struct chains now, old; /* old: before the batch, as far as not overwritten */
    bool *lost;             /* [n_seq_max] the old state was overwritten */
    bool under_way;         /* between reserve and commit or abort */
};

static int32_t *chain(const struct gr_rs *rs, const struct chains *c, int32_t seq)
{
    return c->row + (size_t)seq * (1 + rs->p.n_rollback);
}

uint32_t gr_rs_n_row(const struct gr_rs_params *p)
{
    return p->n_rollback ? p->n_seq_max * (1 + p->n_rollback) : p->n_seq_max + p->n_seq_max / 2;
}

int32_t gr_rs_n_rollback(const struct gr_rs *rs)
{
    return (int32_t)rs->p.n_rollback;
}

static int check_params(const struct gr_rs_params *p)
{
    if (p->n_seq_max < 1 || p->n_seq_max > GR_SEQ_MAX)
        return gr_fail(GR_E_INVALID, "recurrent states: 1 to %d sequences expected, %u found",
                       GR_SEQ_MAX, p->n_seq_max);
    if (p->n_rollback > GR_RS_ROLLBACK_MAX)
        return gr_fail(GR_E_INVALID,
                       "recurrent states: at most %d earlier ones of a sequence expected, %u found",
                       GR_RS_ROLLBACK_MAX, p->n_rollback);
    return 0;
}

static bool new_chains(struct chains *c, const struct gr_rs_params *p)
{
    c->row = gr_calloc((size_t)p->n_seq_max * (1 + p->n_rollback), sizeof *c->row);
    c->n = gr_calloc(p->n_seq_max, sizeof *c->n);
    return c->row && c->n;
}

int gr_rs_new(struct gr_rs **out, const struct gr_rs_params *p)
{
    *out = NULL;
    int rc = check_params(p);
    if (rc)
        return rc;
    struct gr_rs *rs = gr_calloc(1, sizeof *rs);
    if (!rs)
        return GR_E_NOMEM_HOST;
    rs->p = *p;
    rs->n_row = gr_rs_n_row(p);
    rs->pos = gr_calloc(rs->n_row, sizeof *rs->pos);
    rs->n_ref = gr_calloc(rs->n_row, sizeof *rs->n_ref);
    rs->n_old = gr_calloc(rs->n_row, sizeof *rs->n_old);
    rs->n_read = gr_calloc(rs->n_row, sizeof *rs->n_read);
    rs->loss = gr_calloc(rs->n_row, sizeof *rs->loss);
    rs->lost = gr_calloc(p->n_seq_max, sizeof *rs->lost);
    bool ok = rs->pos && rs->n_ref && rs->n_old && rs->n_read && rs->loss && rs->lost;
    ok = ok && new_chains(&rs->now, p) && new_chains(&rs->old, p);
    if (!ok) {
        gr_rs_free(&rs);
        return GR_E_NOMEM_HOST;
    }
    gr_rs_clear(rs);
    *out = rs;
    return 0;
}

void gr_rs_free(struct gr_rs **rs)
{
    struct gr_rs *r = *rs;
    if (r) {
        gr_free(r->pos), gr_free(r->n_ref), gr_free(r->n_old), gr_free(r->n_read);
        gr_free(r->now.row), gr_free(r->now.n), gr_free(r->old.row), gr_free(r->old.n);
        gr_free(r->loss), gr_free(r->lost);
        gr_free(r);
    }
    *rs = NULL;
}

/* ---- rows and chains ---- */

static void count_refs(const struct gr_rs *rs, const struct chains *c, int32_t *n_ref)
{
    memset(n_ref, 0, rs->n_row * sizeof *n_ref);
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++)
        for (int32_t i = 0; i < c->n[s]; i++)
            if (chain(rs, c, s)[i] >= 0) /* -1 only within gr_rs_place */
                n_ref[chain(rs, c, s)[i]]++;
}

/* Recounts the references after chains have changed, and frees the rows without any. */
static void settle(struct gr_rs *rs)
{
    count_refs(rs, &rs->now, rs->n_ref);
    for (uint32_t r = 0; r < rs->n_row; r++)
        if (!rs->n_ref[r] && !rs->n_old[r])
            rs->pos[r] = -1;
}

static void copy_chain(struct gr_rs *rs, int32_t dst, int32_t src, int32_t first)
{
    int32_t n = rs->now.n[src] - first;
    memmove(chain(rs, &rs->now, dst), chain(rs, &rs->now, src) + first, (size_t)n * sizeof n);
    rs->now.n[dst] = n;
    rs->lost[dst] = false;
}

/* Index in a sequence's chain of the state after the tokens before position `end`; -1 when it was
 * not kept. Positions do not decrease, so it is the newest state that is before `end`. */
static int32_t find_state(const struct gr_rs *rs, int32_t seq, int32_t end)
{
    const int32_t *row = chain(rs, &rs->now, seq);
    for (int32_t i = 0; i < rs->now.n[seq]; i++)
        if (rs->pos[row[i]] < end)
            return i;
    return -1;
}

/* ---- sequence operations ---- */

static int check_seq(const struct gr_rs *rs, int32_t seq)
{
    if (rs->under_way)
        return gr_fail(GR_E_INTERNAL, "recurrent states: changed while a batch is under way");
    if (seq < 0 || seq >= (int32_t)rs->p.n_seq_max)
        return gr_fail(GR_E_INVALID, "sequence: 0 to %u expected, %d found", rs->p.n_seq_max - 1,
                       seq);
    return 0;
}

/* Returns whether no token of a sequence is in the range. */
static bool is_nothing(const struct gr_rs *rs, int32_t seq, int32_t lo, int32_t hi)
{
    return lo >= hi || lo > gr_rs_pos_max(rs, seq);
}

static int refuse_cut(const struct gr_rs *rs, int32_t seq, bool rm, int32_t lo, int32_t hi)
{
    char kept[96] = "";
    int32_t min = gr_rs_pos_min(rs, seq), max = gr_rs_pos_max(rs, seq);
    if (min < max)
        snprintf(kept, sizeof kept, "; states to turn back to: after positions %d to %d", min,
                 max - 1);
    return gr_fail(GR_E_UNSUPPORTED,
                   "sequence %d: positions %d to %d cannot be %s alone, as the recurrent state "
                   "after position %d stands for all up to it%s; %s",
                   seq, lo, GR_MIN(hi - 1, max), rm ? "removed" : "copied", max, kept,
                   rm ? "remove the whole sequence and run what is to stay again"
                      : "run their tokens in the other sequence");
}

static int can_rm(const struct gr_rs *rs, int32_t seq, int32_t lo, int32_t hi)
{
    if (is_nothing(rs, seq, lo, hi))
        return 0;
    bool to_end = hi > gr_rs_pos_max(rs, seq);
    if (to_end && (lo == 0 || find_state(rs, seq, lo) >= 0))
        return 0;
    return refuse_cut(rs, seq, true, lo, hi);
}

static int can_cp(const struct gr_rs *rs, int32_t src, int32_t dst, int32_t lo, int32_t hi)
{
    int rc = check_seq(rs, dst);
    if (rc || src == dst || is_nothing(rs, src, lo, hi))
        return rc;
    int32_t i = lo == 0 ? find_state(rs, src, hi) : -1;
    if (i < 0)
        return refuse_cut(rs, src, false, lo, hi);
    if (rs->now.n[dst] && gr_rs_tail(rs, dst) != chain(rs, &rs->now, src)[i])
        return gr_fail(GR_E_UNSUPPORTED,
                       "sequence %d has a recurrent state of its own, which cannot be merged with "
                       "that of sequence %d: remove it first",
                       dst, src);
    return 0;
}

static int can_move(const struct gr_rs *rs, const struct gr_kv_op *op, int32_t lo, int32_t hi)
{
    bool div = op->kind == GR_KV_DIV;
    if (div && op->by < 1)
        return gr_fail(GR_E_INVALID,
                       "sequence %d: divisor of positions: 1 or more expected, %d found", op->seq,
                       op->by);
    if (op->by == div || is_nothing(rs, op->seq, lo, hi))
        return 0;
    return gr_fail(GR_E_UNSUPPORTED,
                   "sequence %d: positions cannot be %s, because they are part of a recurrent "
                   "state; remove the sequence and run its tokens at the new positions",
                   op->seq, div ? "divided" : "moved");
}

/* Positions [lo, hi) of an operation. */
static int32_t low(const struct gr_kv_op *op)
{
    return GR_MAX(op->p0, 0);
}

static int32_t high(const struct gr_kv_op *op)
{
    return op->p1 < 0 ? INT32_MAX : op->p1;
}

int gr_rs_can(const struct gr_rs *rs, const struct gr_kv_op *op)
{
    bool all = op->kind == GR_KV_RM && op->seq < 0;
    int rc = check_seq(rs, all ? 0 : op->seq);
    if (rc)
        return rc;
    switch (op->kind) {
    case GR_KV_RM:
        for (int32_t s = all ? 0 : op->seq; !rc && s < (int32_t)rs->p.n_seq_max; s++)
            if (all || s == op->seq)
                rc = can_rm(rs, s, low(op), high(op));
        return rc;
    case GR_KV_CP:
    case GR_KV_DUP:
        return can_cp(rs, op->seq, op->dst, low(op), high(op));
    case GR_KV_ADD:
    case GR_KV_DIV:
        return can_move(rs, op, low(op), high(op));
    case GR_KV_KEEP:
        break;
    }
    return 0;
}

static void do_rm(struct gr_rs *rs, int32_t seq, int32_t lo, int32_t hi)
{
    if (lo == 0 && hi > GR_MAX(gr_rs_pos_max(rs, seq), 0)) {
        rs->now.n[seq] = 0;
        rs->lost[seq] = false;
    } else if (!is_nothing(rs, seq, lo, hi)) {
        copy_chain(rs, seq, seq, find_state(rs, seq, lo));
    }
}

void gr_rs_do(struct gr_rs *rs, const struct gr_kv_op *op)
{
    bool copy = op->kind == GR_KV_CP || op->kind == GR_KV_DUP;
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++)
        if (op->kind == GR_KV_RM && (op->seq < 0 || op->seq == s))
            do_rm(rs, s, low(op), high(op));
        else if (op->kind == GR_KV_KEEP && op->seq != s)
            do_rm(rs, s, 0, INT32_MAX);
    /* A dst that already has this state keeps its own snapshots. */
    if (copy && !is_nothing(rs, op->seq, low(op), high(op)) && !rs->now.n[op->dst])
        copy_chain(rs, op->dst, op->seq, find_state(rs, op->seq, high(op)));
    settle(rs);
    assert(gr_rs_check(rs) == 0);
}

void gr_rs_clear(struct gr_rs *rs)
{
    memset(rs->now.n, 0, rs->p.n_seq_max * sizeof *rs->now.n);
    memset(rs->old.n, 0, rs->p.n_seq_max * sizeof *rs->old.n);
    memset(rs->n_old, 0, rs->n_row * sizeof *rs->n_old);
    memset(rs->lost, 0, rs->p.n_seq_max * sizeof *rs->lost);
    rs->under_way = false;
    settle(rs);
    assert(gr_rs_check(rs) == 0);
}

/* ---- placing a batch ---- */

int gr_rs_reserve(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t n_ub)
{
    if (rs->under_way)
        return gr_fail(GR_E_INTERNAL, "recurrent states: a batch is under way already");
    for (int32_t u = 0; u < n_ub; u++)
        if (ub[u].n_seq < 1)
            return gr_fail(GR_E_INTERNAL,
                           "recurrent states: micro-batches of equally long sequences expected");
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++) {
        size_t n = (size_t)rs->now.n[s];
        memcpy(chain(rs, &rs->old, s), chain(rs, &rs->now, s), n * sizeof(int32_t));
    }
    memcpy(rs->old.n, rs->now.n, rs->p.n_seq_max * sizeof *rs->old.n);
    count_refs(rs, &rs->old, rs->n_old);
    rs->under_way = true;
    return 0;
}

/* The last token of sequence k of a micro-batch; all tokens of k are in the same sequences. */
static int32_t last_token(const struct gr_ubatch *ub, int32_t k)
{
    int32_t each = ub->n_tok / ub->n_seq;
    return ub->tok[(k + 1) * each - 1];
}

/* Opens an entry for a new tail in the chains of token t's sequences. The old tails become
 * snapshots when the step is one token long. */
static void push(struct gr_rs *rs, const struct gr_full_batch *b, int32_t t, bool single)
{
    for (int32_t i = 0; i < b->n_seq[t]; i++) {
        int32_t s = b->seq[b->seq_at[t] + i], *row = chain(rs, &rs->now, s);
        int32_t n = single ? GR_MIN(rs->now.n[s], (int32_t)rs->p.n_rollback) : 0;
        memmove(row + 1, row, (size_t)n * sizeof *row);
        row[0] = -1;
        rs->now.n[s] = n + 1;
    }
}

/* Sets the loss of each row: what an abort would need of it. */
static void grade(struct gr_rs *rs)
{
    for (uint32_t r = 0; r < rs->n_row; r++)
        rs->loss[r] = rs->n_old[r] ? SNAPSHOT : NOTHING;
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++)
        if (rs->old.n[s])
            rs->loss[chain(rs, &rs->old, s)[0]] = STATE;
    memset(rs->next, 0, sizeof rs->next);
}

/* Returns whether a sequence may write the row it reads. */
static bool can_stay(const struct gr_rs *rs, int32_t src)
{
    return src >= 0 && !rs->n_ref[src] && rs->n_read[src] == 1;
}

/* The row to write for a sequence that reads row src (-1 = none): the one with the least loss,
 * among equals its own. Rows that others read are excluded. There always is one, because
 * gr_rs_n_row counts enough. */
static int32_t find_row(struct gr_rs *rs, int32_t src)
{
    int least = can_stay(rs, src) ? rs->loss[src] : N_LOSS;
    for (int loss = NOTHING; loss < least; loss++) {
        uint32_t *r = &rs->next[loss];
        while (*r < rs->n_row && (rs->loss[*r] != loss || rs->n_ref[*r] || rs->n_read[*r]))
            ++*r;
        if (*r < rs->n_row)
            return (int32_t)*r;
    }
    assert(least < N_LOSS);
    return src;
}

/* Removes a row that is about to be written from the old chains, with the states before it. */
static void overwrite(struct gr_rs *rs, int32_t row)
{
    for (int32_t s = 0; rs->n_old[row] && s < (int32_t)rs->p.n_seq_max; s++) {
        const int32_t *old = chain(rs, &rs->old, s);
        int32_t i = 0, n = rs->old.n[s];
        while (i < n && old[i] != row)
            i++;
        if (i == n)
            continue;
        rs->old.n[s] = i;
        rs->lost[s] = i == 0;
        while (n-- > i)
            if (!--rs->n_old[old[n]]) {
                rs->loss[old[n]] = NOTHING;
                rs->next[NOTHING] = GR_MIN(rs->next[NOTHING], (uint32_t)old[n]);
            }
    }
}

/* Makes `row` the new tail of sequence k of a micro-batch. */
static void give(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t k, int32_t row)
{
    const struct gr_full_batch *b = ub->batch;
    int32_t t = last_token(ub, k);
    overwrite(rs, row);
    rs->pos[row] = b->pos[t];
    for (int32_t i = 0; i < b->n_seq[t]; i++) {
        int32_t s = b->seq[b->seq_at[t] + i];
        chain(rs, &rs->now, s)[0] = row;
        rs->n_ref[row]++;
    }
}

void gr_rs_place(struct gr_rs *rs, const struct gr_ubatch *ub, int32_t *src, int32_t *dst)
{
    const struct gr_full_batch *b = ub->batch;
    for (int32_t k = 0; k < ub->n_seq; k++) {
        int32_t t = last_token(ub, k);
        src[k] = gr_rs_tail(rs, b->seq[b->seq_at[t]]);
        dst[k] = -1;
        if (src[k] >= 0)
            rs->n_read[src[k]]++;
        push(rs, b, t, ub->n_tok == ub->n_seq);
    }
    count_refs(rs, &rs->now, rs->n_ref);
    grade(rs);
    /* Sequences that cannot stay in their row go first: no other takes the last free one. */
    for (int stay = 0; stay < 2; stay++)
        for (int32_t k = 0; k < ub->n_seq; k++)
            if (dst[k] < 0 && can_stay(rs, src[k]) == (stay == 1)) {
                dst[k] = find_row(rs, src[k]);
                give(rs, ub, k, dst[k]);
            }
    memset(rs->n_read, 0, rs->n_row * sizeof *rs->n_read);
    settle(rs);
    assert(gr_rs_check(rs) == 0);
}

/* Ends a batch: discards the old chains. */
static void finish(struct gr_rs *rs)
{
    memset(rs->n_old, 0, rs->n_row * sizeof *rs->n_old);
    memset(rs->old.n, 0, rs->p.n_seq_max * sizeof *rs->old.n);
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++)
        rs->lost[s] = rs->lost[s] && !rs->now.n[s];
    rs->under_way = false;
    settle(rs);
    assert(gr_rs_check(rs) == 0);
}

void gr_rs_commit(struct gr_rs *rs)
{
    finish(rs);
}

void gr_rs_abort(struct gr_rs *rs)
{
    struct chains now = rs->now;
    if (rs->under_way)
        rs->now = rs->old, rs->old = now;
    finish(rs);
}

bool gr_rs_incomplete(const struct gr_rs *rs, int32_t seq)
{
    return rs->lost[seq] && !rs->now.n[seq];
}

/* ---- questions ---- */

int32_t gr_rs_tail(const struct gr_rs *rs, int32_t seq)
{
    bool any = seq >= 0 && seq < (int32_t)rs->p.n_seq_max && rs->now.n[seq];
    return any ? chain(rs, &rs->now, seq)[0] : -1;
}

int32_t gr_rs_pos_max(const struct gr_rs *rs, int32_t seq)
{
    int32_t row = gr_rs_tail(rs, seq);
    return row < 0 ? -1 : rs->pos[row];
}

int32_t gr_rs_pos_min(const struct gr_rs *rs, int32_t seq)
{
    bool any = gr_rs_tail(rs, seq) >= 0;
    return any ? rs->pos[chain(rs, &rs->now, seq)[rs->now.n[seq] - 1]] : -1;
}

bool gr_rs_seq_same(const struct gr_rs *rs, int32_t a, int32_t b)
{
    return gr_rs_tail(rs, a) == gr_rs_tail(rs, b);
}

uint64_t gr_rs_hash(const struct gr_rs *rs, uint64_t hash)
{
    hash = gr_hash_bytes(hash, rs->pos, rs->n_row * sizeof *rs->pos);
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++) {
        size_t n = (size_t)rs->now.n[s];
        hash = gr_hash_bytes(hash, &rs->now.n[s], sizeof rs->now.n[s]);
        hash = gr_hash_bytes(hash, chain(rs, &rs->now, s), n * sizeof *rs->now.row);
        hash = gr_hash_bytes(hash, &rs->lost[s], sizeof rs->lost[s]);
    }
    return hash;
}

uint32_t gr_rs_n_used(const struct gr_rs *rs)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < rs->n_row; r++)
        n += rs->pos[r] >= 0;
    return n;
}

struct gr_rs_row gr_rs_row(const struct gr_rs *rs, uint32_t i)
{
    struct gr_rs_row row = {rs->pos[i], 0, -1, false};
    int32_t owner = -1;
    for (int32_t s = (int32_t)rs->p.n_seq_max - 1; s >= 0; s--)
        for (int32_t k = 0; k < rs->now.n[s]; k++)
            if (chain(rs, &rs->now, s)[k] == (int32_t)i) {
                if (k == 0)
                    row.n_seq++, row.seq = s;
                else
                    row.snapshot = true, owner = s;
            }
    if (!row.n_seq)
        row.seq = owner;
    return row;
}

void gr_rs_print(const struct gr_rs *rs, FILE *out)
{
    fprintf(out, "recurrent states: %u of %u rows used\n", gr_rs_n_used(rs), rs->n_row);
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++) {
        int32_t tail = gr_rs_tail(rs, s);
        if (tail < 0)
            continue;
        struct gr_rs_row row = gr_rs_row(rs, (uint32_t)tail);
        fprintf(out, "%10d  after position %d in row %d", s, row.pos, tail);
        if (row.n_seq > 1)
            fprintf(out, ", shared by %d sequences", row.n_seq);
        if (rs->now.n[s] > 1)
            fprintf(out, ", %d earlier from position %d on", rs->now.n[s] - 1,
                    gr_rs_pos_min(rs, s));
        fputc('\n', out);
    }
}

/* ---- invariants ---- */

static int check_chains(const struct gr_rs *rs, const struct chains *c, const int32_t *n_ref)
{
    int64_t total = 0;
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++) {
        const int32_t *row = chain(rs, c, s);
        if (c->n[s] < 0 || c->n[s] > 1 + (int32_t)rs->p.n_rollback)
            return gr_fail(GR_E_INTERNAL, "recurrent states: sequence %d: %d rows found", s,
                           c->n[s]);
        for (int32_t i = 0; i < c->n[s]; i++) {
            if (row[i] < 0 || row[i] >= (int32_t)rs->n_row || rs->pos[row[i]] < 0)
                return gr_fail(GR_E_INTERNAL,
                               "recurrent states: sequence %d: a used row "
                               "expected, %d found",
                               s, row[i]);
            if (i && rs->pos[row[i]] > rs->pos[row[i - 1]])
                return gr_fail(GR_E_INTERNAL,
                               "recurrent states: sequence %d: position %d before %d found", s,
                               rs->pos[row[i]], rs->pos[row[i - 1]]);
            for (int32_t k = 0; k < i; k++)
                if (row[k] == row[i])
                    return gr_fail(GR_E_INTERNAL,
                                   "recurrent states: sequence %d: row %d found twice", s, row[i]);
        }
        total += c->n[s];
    }
    for (uint32_t r = 0; r < rs->n_row; r++)
        total -= n_ref[r];
    return total ? gr_fail(GR_E_INTERNAL, "recurrent states: %lld references not counted",
                           (long long)total)
                 : 0;
}

static int check_row(const struct gr_rs *rs, uint32_t r)
{
    bool used = rs->n_ref[r] || rs->n_old[r];
    if (rs->pos[r] < -1 || rs->pos[r] > GR_POS_MAX || used != (rs->pos[r] >= 0))
        return gr_fail(GR_E_INTERNAL, "recurrent states: row %u: %d references, position %d found",
                       r, rs->n_ref[r] + rs->n_old[r], rs->pos[r]);
    if (rs->n_read[r] || (!rs->under_way && rs->n_old[r]))
        return gr_fail(GR_E_INTERNAL, "recurrent states: row %u: held without a batch", r);
    int32_t n = 0;
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max; s++) {
        for (int32_t i = 0; i < rs->now.n[s]; i++)
            n += chain(rs, &rs->now, s)[i] == (int32_t)r;
    }
    return n == rs->n_ref[r] ? 0
                             : gr_fail(GR_E_INTERNAL,
                                       "recurrent states: row %u: %d references expected, %d found",
                                       r, n, rs->n_ref[r]);
}

int gr_rs_check(const struct gr_rs *rs)
{
    int rc = check_chains(rs, &rs->now, rs->n_ref);
    if (!rc)
        rc = check_chains(rs, &rs->old, rs->n_old);
    for (uint32_t r = 0; !rc && r < rs->n_row; r++)
        rc = check_row(rs, r);
    return rc;
}

/* ---- saving and restoring ---- */

/* Appends a row to the items unless it is there already; index [row] is its item + 1, 0: none. */
static int save_row(const struct gr_rs *rs, int32_t row, int32_t *index, struct gr_vec *items,
                    struct gr_vec *pairs)
{
    struct gr_saved_item item = {.pos = rs->pos[row]};
    struct gr_kv_pair pair = {(int32_t)items->n, row};
    if (index[row])
        return 0;
    index[row] = (int32_t)items->n + 1;
    int rc = gr_vec_append(items, &item, 1, sizeof item);
    return rc ? rc : gr_vec_append(pairs, &pair, 1, sizeof pair);
}

static int save_chain(const struct gr_rs *rs, int32_t seq, int32_t *index, struct gr_vec parts[3],
                      struct gr_vec *pairs)
{
    const int32_t *row = chain(rs, &rs->now, seq);
    struct gr_saved_seq q = {seq, rs->now.n[seq], 0};
    int rc = q.lo ? gr_vec_append(&parts[0], &q, 1, sizeof q) : 0;
    for (int32_t i = 0; i < q.lo && !rc; i++) {
        rc = save_row(rs, row[i], index, &parts[1], pairs);
        int32_t id = index[row[i]] - 1;
        if (!rc)
            rc = gr_vec_append(&parts[2], &id, 1, sizeof id);
    }
    return rc;
}

int gr_rs_save(const struct gr_rs *rs, int32_t seq, struct gr_vec *block, struct gr_vec *pairs)
{
    struct gr_vec parts[3] = {{0}};
    int32_t *index = gr_calloc(rs->n_row, sizeof *index);
    int rc = index ? 0 : GR_E_NOMEM_HOST;
    for (int32_t s = 0; s < (int32_t)rs->p.n_seq_max && !rc; s++)
        if (seq < 0 || s == seq)
            rc = save_chain(rs, s, index, parts, pairs);
    if (!rc)
        rc = gr_saved_join(block, parts);
    for (int i = 0; i < 3; i++)
        gr_vec_fini(&parts[i]);
    gr_free(index);
    return rc;
}

/* Checks one chain of a block: items exist, none twice, newest first. seen [n_item]: the chain in
 * which an item was last found, + 1. */
static int check_chain(const struct gr_saved *v, const char *name, const int32_t *id, uint32_t k,
                       int32_t *seen)
{
    const struct gr_saved_seq *q = &v->seq[k];
    for (int32_t i = 0; i < q->lo; i++) {
        if (id[i] < 0 || id[i] >= (int64_t)v->head.n_item || seen[id[i]] == (int32_t)k + 1)
            return gr_fail(GR_E_CORRUPT, "%s: sequence %d: state %d is not one of its own", name,
                           q->id, id[i]);
        int32_t pos = v->item[id[i]].pos, max = i ? v->item[id[i - 1]].pos : GR_POS_MAX;
        if (pos < 0 || pos > max)
            return gr_fail(GR_E_CORRUPT,
                           "%s: sequence %d: a state after position 0 to %d expected, %d found",
                           name, q->id, max, pos);
        seen[id[i]] = (int32_t)k + 1;
    }
    return 0;
}

static int check_chains_of(const struct gr_saved *v, const char *name, int32_t *seen)
{
    uint32_t at = 0;
    int rc = 0;
    for (uint32_t k = 0; k < v->head.n_seq && !rc; k++) {
        const struct gr_saved_seq *q = &v->seq[k];
        if (q->lo < 1 || (uint32_t)q->lo > v->head.n_id - at || q->hi)
            return gr_fail(GR_E_CORRUPT, "%s: sequence %d: 1 to %u states expected, %d found", name,
                           q->id, v->head.n_id - at, q->lo);
        rc = check_chain(v, name, v->id + at, k, seen);
        at += (uint32_t)q->lo;
    }
    if (!rc && at != v->head.n_id)
        rc = gr_fail(GR_E_CORRUPT, "%s: %u states expected, %u found", name, at, v->head.n_id);
    return rc;
}

int gr_rs_load_plan(struct gr_kv_load *l, struct gr_rs *rs, const char *name, const void *block,
                    size_t n, int32_t seq)
{
    l->seq = seq;
    int rc = gr_saved_parse(&l->saved, name, block, n, seq, rs->p.n_seq_max);
    if (rc)
        return rc;
    l->work = gr_calloc(l->saved.head.n_item, sizeof *l->work);
    l->pair = gr_calloc(l->saved.head.n_item, sizeof *l->pair);
    if (!l->work || !l->pair)
        return GR_E_NOMEM_HOST;
    rc = check_chains_of(&l->saved, name, l->work);
    memset(l->work, 0xff, l->saved.head.n_item * sizeof *l->work);
    return rc;
}

/* The row of an item: the one it has already, or the next free one at or after *next. */
static int32_t load_row(struct gr_kv_load *l, struct gr_rs *rs, int32_t item, int32_t *next)
{
    if (l->work[item] < 0) {
        /* A row is free: there is one for each item that chains can have. */
        while (rs->pos[*next] >= 0)
            ++*next;
        rs->pos[*next] = l->saved.item[item].pos;
        l->work[item] = *next;
        l->pair[l->n_pair++] = (struct gr_kv_pair){item, *next};
    }
    return l->work[item];
}

void gr_rs_load_do(struct gr_kv_load *l, struct gr_rs *rs)
{
    const int32_t *id = l->saved.id;
    const struct gr_kv_op rm = {.kind = GR_KV_RM, .seq = l->seq, .p0 = -1, .p1 = -1};
    int32_t next = 0;
    gr_rs_do(rs, &rm);
    for (uint32_t k = 0; k < l->saved.head.n_seq; id += l->saved.seq[k++].lo) {
        int32_t s = l->seq >= 0 ? l->seq : l->saved.seq[k].id;
        int32_t n = GR_MIN(l->saved.seq[k].lo, 1 + (int32_t)rs->p.n_rollback);
        for (int32_t i = 0; i < n; i++)
            chain(rs, &rs->now, s)[i] = load_row(l, rs, id[i], &next);
        rs->now.n[s] = n;
        rs->lost[s] = false;
    }
    settle(rs);
    assert(gr_rs_check(rs) == 0);
}
