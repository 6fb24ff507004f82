/* Sessions with several sequences, as llama.cpp answers to them: which batches are accepted, and
 * the positions that every sequence holds after each operation (tests/golden/kv/make.py has the
 * format).
 *
 * Where a session gives each sequence its own pool of cells, seq_keep reaches the kept
 * sequence's pool alone and so removes nothing; this test leaves it out there. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "gr/status.h"
#include "kv/cache.h"

#define N_SEQ_MAX 8
#define N_SLOT 8

struct session {
    struct gr_cache cache;
    struct gr_full_batch full;
    int n_cell, n_batch, n_seq_max, unified;
    /* The operations that led from an empty cache to its present state, and to each saved one. */
    struct history {
        char *line[64];
        int n;
    } now, saved[N_SLOT];
    int accepted, refused, compared;
};

static void decode(struct session *s, char *p)
{
    int32_t token[64] = {0}, pos[64], seq[64], cells[64], tok[64], n_ub;
    int rc = (int)strtol(p, &p, 10);
    struct gr_batch in = {
        .n_tok = (int32_t)strtol(p, &p, 10), .token = token, .pos = pos, .seq = seq};
    struct gr_ubatch ub[64];
    struct gr_batch_limits limits = {.n_vocab = 128, .n_batch = s->n_batch};
    cr_assert_leq(in.n_tok, 64);
    for (int32_t i = 0; i < in.n_tok; i++) {
        pos[i] = (int32_t)strtol(p, &p, 10);
        seq[i] = (int32_t)strtol(p, &p, 10);
    }
    gr_cache_limits(&s->cache, &limits);
    int got = gr_batch_check(&s->full, &in, &limits);
    cr_assert_eq(got, rc ? GR_E_INVALID : 0, "%s", gr_error());
    if (got) {
        s->refused++;
        return;
    }
    n_ub = gr_cache_split(&s->cache, &s->full, 16, tok, ub);
    cr_assert_eq(gr_cache_reserve(&s->cache, ub, n_ub), 0, "%s", gr_error());
    for (int32_t u = 0; u < n_ub; u++)
        gr_cache_place(&s->cache, &ub[u], &(struct gr_placed){.cells = {cells}});
    gr_cache_commit(&s->cache);
    s->accepted++;
}

static void operate(struct session *s, const char *name, const int32_t *a)
{
    struct gr_kv_moves moves[GR_N_CACHE_KIND];
    struct gr_kv_op op = {GR_KV_RM, a[0], 0, a[1], a[2], 0};
    if (!strcmp(name, "seq_add")) {
        op.kind = GR_KV_ADD, op.by = a[3];
    } else if (!strcmp(name, "seq_cp")) {
        op = (struct gr_kv_op){GR_KV_CP, a[0], a[1], a[2], a[3], 0};
    } else if (!strcmp(name, "seq_keep")) {
        if (!s->unified)
            return;
        op.kind = GR_KV_KEEP;
    } else if (strcmp(name, "seq_rm") != 0) {
        cr_assert_str_eq(name, "state_save");
        return;
    }
    cr_assert_eq(gr_cache_op(&s->cache, &op, moves), 0, "%s", gr_error());
}

static void compare(struct session *s, char *p, const char *line)
{
    for (int32_t q = 0; q < s->n_seq_max; q++) {
        long lo = strtol(p, &p, 10), hi = strtol(p, &p, 10);
        cr_assert(gr_cache_pos_min(&s->cache, q) == lo && gr_cache_pos_max(&s->cache, q) == hi,
                  "%s: sequence %d: %ld to %ld expected, %d to %d found", line, q, lo, hi,
                  gr_cache_pos_min(&s->cache, q), gr_cache_pos_max(&s->cache, q));
        s->compared++;
    }
    cr_assert_eq(gr_cache_check(&s->cache), 0, "%s", gr_error());
}

/* Any operation but state_load. */
static void run_line(struct session *s, char *line)
{
    char op[16], *end;
    int32_t args[4];
    int used, n = 0;
    cr_assert_eq(sscanf(line, "%15s%n", op, &used), 1);
    char *p = line + used;
    cr_assert_lt(s->now.n, 64);
    if (strcmp(op, "state_save") != 0)
        s->now.line[s->now.n++] = line;
    if (!strcmp(op, "decode")) {
        decode(s, p);
        return;
    }
    for (long v; n < 4 && (v = strtol(p, &end, 10), end > p); p = end)
        args[n++] = (int32_t)v;
    if (!strcmp(op, "state_save"))
        s->saved[args[0]] = s->now;
    else
        operate(s, op, args);
    compare(s, strchr(line, '=') + 1, line);
}

static void run(struct session *s, char *line)
{
    const struct history *h = s->saved;
    int slot;
    if (sscanf(line, "state_load %d", &slot) != 1) {
        run_line(s, line);
        return;
    }
    gr_cache_clear(&s->cache);
    s->now.n = 0;
    for (int i = 0; i < h[slot].n; i++)
        run_line(s, h[slot].line[i]);
    compare(s, strchr(line, '=') + 1, line);
}

static void open_cache(struct session *s)
{
    struct gr_cache_params p = {.n_seq_max = (uint32_t)s->n_seq_max, .has = {true}};
    p.kv[GR_CACHE_FULL] =
        (struct gr_kv_params){.n_cell = (uint32_t)s->n_cell,
                              .n_kv_pool = s->unified ? 1 : (uint32_t)s->n_seq_max,
                              .n_seq_max = (uint32_t)s->n_seq_max,
                              .n_pad = 256};
    cr_assert_eq(gr_cache_init(&s->cache, &p), 0, "%s", gr_error());
}

Test(kv_sessions, positions_and_return_codes)
{
    char *text, *line[256], *rest;
    size_t n;
    int n_line = 0, n_session = 0, accepted = 0, refused = 0, compared = 0;
    cr_assert_eq(gr_file_slurp(GR_SOURCE_DIR "/tests/golden/kv/sessions.txt", 1 << 20, &text, &n),
                 0, "%s", gr_error());
    for (char *p = strtok_r(text, "\n", &rest); p; p = strtok_r(NULL, "\n", &rest)) {
        cr_assert_lt(n_line, 256);
        line[n_line++] = p;
    }
    for (int i = 0; i < n_line; n_session++) {
        static struct session s;
        s = (struct session){0};
        cr_assert_eq(sscanf(line[i++], "session %*s %d %d %d %d", &s.n_cell, &s.n_batch,
                            &s.n_seq_max, &s.unified),
                     4);
        open_cache(&s);
        while (i < n_line && strncmp(line[i], "session", 7) != 0)
            run(&s, line[i++]);
        accepted += s.accepted, refused += s.refused, compared += s.compared;
        gr_batch_fini(&s.full);
        gr_cache_fini(&s.cache);
    }
    cr_assert_eq(n_session, 6);
    cr_assert(accepted > 60 && refused == 3 && compared > 200, "%d %d %d", accepted, refused,
              compared);
    gr_free(text);
}
