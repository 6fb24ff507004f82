/* Saving and restoring a whole session or one sequence, in memory or a file; a session with another
 * number of cells can restore it. kv/state.h has the format of cells, engine/state_file.h that of
 * the file; here the rows of the caches' tensors are moved, in pieces of 4 MiB at most, or one row
 * if that is larger. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "engine/cache_rows.h"
#include "engine/fingerprint.h"
#include "engine/memory.h"
#include "engine/sequences.h"
#include "engine/session_devices.h"
#include "engine/state.h"
#include "engine/state_file.h"
#include "engine/step.h"
#include "gr/dtype.h"
#include "gr/status.h"
#include "kv/state.h"

#define PIECE (4u << 20)

/* Items of a part and their cells: pairs ordered by piece, within a piece by cell. */
struct rows {
    struct gr_kv_pair *pair;
    uint32_t n_pair, n_item;
};

/* A save or a restore in progress. */
struct transfer {
    struct gr_session *s;
    uint32_t n_piece;     /* items moved at once */
    char *stage, *gather; /* [n_piece] rows: in the order of items, and of cells */
    int32_t *cell;        /* [n_piece] cells of the rows in `gather` */
    struct rows rows[GR_N_STATE_PART];
    struct gr_state_section *table; /* the expected sections; the writer sets the sums */
    uint32_t n_section, first_data;
    char fingerprint[GR_FINGERPRINT_MAX];
};

static bool has_part(const struct gr_session *s, int part)
{
    return part == GR_STATE_PART_STATES ? s->cache.rs != NULL : s->cache.kv[part] != NULL;
}

/* Number of tensors of all layers, including ones that a layer does not have. */
static uint32_t n_tensor(const struct gr_session *s)
{
    return (uint32_t)s->rank_model->hp.n_layer * GR_N_CACHE_TENSOR;
}

/* Returns tensor i, in the order of the file, and the part whose rows it holds; NULL when the layer
 * has none of its own. */
static const struct gr_ten *tensor_at(const struct gr_session *s, uint32_t i, int *part)
{
    const struct gr_hparams *hp = &s->rank_model->hp;
    uint32_t n = (uint32_t)hp->n_layer, il = i / GR_N_CACHE_TENSOR, w = i % GR_N_CACHE_TENSOR;
    struct gr_ten shape;
    if (!gr_memory_tensor(&s->memory, hp, (int)il, (enum gr_cache_tensor)w, &shape))
        return NULL;
    *part = w >= GR_T_CONV      ? GR_STATE_PART_STATES
            : hp->swa.layer[il] ? GR_CACHE_SWA
                                : GR_CACHE_FULL;
    return &s->tensors[w * n + il];
}

/* ---- rows ---- */

/* Bytes of a whole row, even where ranks share the layer. */
static size_t row_of(const struct gr_session *s, const struct gr_ten *t)
{
    return gr_rows_bytes(s, (uint32_t)(t - s->tensors));
}

static uint64_t largest_row(const struct gr_session *s)
{
    uint64_t row = 1;
    int part;
    for (uint32_t i = 0; i < n_tensor(s); i++) {
        const struct gr_ten *t = tensor_at(s, i, &part);
        row = t ? GR_MAX(row, (uint64_t)row_of(s, t)) : row;
    }
    return row;
}

/* The largest number of items that a part can have. */
static uint64_t most_items(const struct gr_session *s)
{
    uint64_t n = s->memory.n_row;
    for (int k = 0; k < GR_N_CACHE_KIND; k++)
        if (s->cache.kv[k])
            n = GR_MAX(n, gr_kv_n_cell(s->cache.kv[k]));
    return n;
}

static int transfer_init(struct transfer *x, struct gr_session *s)
{
    uint64_t row = largest_row(s), n = GR_MIN(PIECE / row, most_items(s));
    *x = (struct transfer){.s = s, .n_piece = (uint32_t)GR_MAX(1, n)};
    x->stage = gr_calloc(x->n_piece, row);
    x->gather = gr_calloc(x->n_piece, row);
    x->cell = gr_calloc(x->n_piece, sizeof *x->cell);
    x->table = gr_calloc(2 + GR_N_STATE_PART + n_tensor(s), sizeof *x->table);
    if (!x->stage || !x->gather || !x->cell || !x->table)
        return GR_E_NOMEM_HOST;
    return gr_fingerprint(s, x->fingerprint);
}

static void transfer_fini(struct transfer *x)
{
    gr_free(x->stage);
    gr_free(x->gather);
    gr_free(x->cell);
    gr_free(x->table);
}

/* Compares pairs by piece, then by cell. */
static int by_place(const void *a, const void *b, void *n_piece)
{
    const struct gr_kv_pair *x = a, *y = b;
    uint32_t n = *(const uint32_t *)n_piece, p = (uint32_t)x->item / n, q = (uint32_t)y->item / n;
    if (p != q)
        return p < q ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

static void set_rows(struct transfer *x, int part, struct gr_kv_pair *pair, uint32_t n_pair,
                     uint32_t n_item)
{
    if (n_pair)
        qsort_r(pair, n_pair, sizeof *pair, by_place, &x->n_piece);
    x->rows[part] = (struct rows){pair, n_pair, n_item};
}

/* Copies rows between x->stage, in the order of items, and x->gather, in the order of cells. */
static void copy_items(struct transfer *x, const struct gr_kv_pair *pair, uint32_t n, size_t row,
                       bool save)
{
    for (uint32_t k = 0; k < n; k++) {
        char *item = x->stage + (uint32_t)pair[k].item % x->n_piece * row;
        char *at = x->gather + k * row;
        memcpy(save ? item : at, save ? at : item, row);
    }
}

/* Moves the rows of one piece, from pair *at on, between the tensor and x->stage. */
static int move_piece(struct transfer *x, const struct gr_ten *t, const struct rows *r,
                      uint32_t piece, uint32_t *at, bool save)
{
    size_t row = row_of(x->s, t);
    int rc = 0;
    while (!rc && *at < r->n_pair && (uint32_t)r->pair[*at].item / x->n_piece == piece) {
        const struct gr_kv_pair *p = r->pair + *at;
        uint32_t n = 0;
        for (; n < x->n_piece && *at + n < r->n_pair && (uint32_t)p[n].item / x->n_piece == piece;
             n++)
            x->cell[n] = p[n].cell;
        if (!save)
            copy_items(x, p, n, row, false);
        rc = gr_rows_move(x->s, (uint32_t)(t - x->s->tensors), x->cell, n, x->gather, save);
        if (!rc && save)
            copy_items(x, p, n, row, true);
        *at += n;
    }
    return rc;
}

/* ---- saving ---- */

static void add_section(struct transfer *x, enum gr_state_kind kind, uint32_t index, uint64_t bytes)
{
    x->table[x->n_section++] =
        (struct gr_state_section){.kind = kind, .index = index, .bytes = bytes};
}

/* Adds the sections of all tensors, sized by the items of their parts. */
static void add_data(struct transfer *x)
{
    int part;
    x->first_data = x->n_section;
    for (uint32_t i = 0; i < n_tensor(x->s); i++) {
        const struct gr_ten *t = tensor_at(x->s, i, &part);
        if (t)
            add_section(x, GR_STATE_DATA, i, (uint64_t)row_of(x->s, t) * x->rows[part].n_item);
    }
}

static int save_data(struct transfer *x, struct gr_state_writer *w)
{
    int rc = 0, part;
    for (uint32_t i = 0; i < n_tensor(x->s) && !rc; i++) {
        const struct gr_ten *t = tensor_at(x->s, i, &part);
        const struct rows *r = t ? &x->rows[part] : NULL;
        uint32_t at = 0;
        for (uint32_t k = 0; t && k < r->n_item && !rc; k += x->n_piece) {
            uint32_t n = GR_MIN(x->n_piece, r->n_item - k);
            rc = move_piece(x, t, r, k / x->n_piece, &at, true);
            if (!rc)
                rc = gr_state_writer_put(w, x->stage, n * row_of(x->s, t));
        }
    }
    return rc;
}

/* A caller's request: what to save, and where. */
struct request {
    int32_t seq;
    const char *path; /* NULL: memory */
    const void *note;
    size_t n_note;
    void **data;
    size_t *n;
};

static int write_state(struct transfer *x, const struct gr_vec *block, const struct request *q)
{
    struct gr_state_writer w;
    size_t n = strlen(x->fingerprint);
    add_section(x, GR_STATE_CONFIG, 0, n);
    add_section(x, GR_STATE_NOTE, 0, q->n_note);
    for (int p = 0; p < GR_N_STATE_PART; p++)
        if (has_part(x->s, p))
            add_section(x, p == GR_STATE_PART_STATES ? GR_STATE_ROWS : GR_STATE_CELLS, (uint32_t)p,
                        block[p].n);
    add_data(x);
    int rc = gr_state_writer_open(&w, q->path, x->table, x->n_section, q->seq < 0);
    if (rc)
        return rc;
    rc = gr_state_writer_put(&w, x->fingerprint, n);
    if (!rc)
        rc = gr_state_writer_put(&w, q->note, q->n_note);
    for (int p = 0; p < GR_N_STATE_PART && !rc; p++)
        if (has_part(x->s, p))
            rc = gr_state_writer_put(&w, block[p].data, block[p].n);
    if (!rc)
        rc = save_data(x, &w);
    if (!rc)
        rc = gr_state_writer_commit(&w, q->data, q->n);
    gr_state_writer_close(&w);
    return rc;
}

static int check_seq(const struct gr_session *s, int32_t seq)
{
    if (s->running)
        return gr_fail(GR_E_INVALID, "a tap may not save or restore the cells under its batch");
    if (seq < -1 || seq >= (int32_t)s->params.n_seq_max)
        return gr_fail(GR_E_INVALID, "sequence: 0 to %u, or -1 for all, expected, %d found",
                       s->params.n_seq_max - 1, seq);
    return s->ranks ? s->ranks->check(s) : 0;
}

static int save(struct gr_session *s, const struct request *q)
{
    struct transfer x = {0};
    struct gr_vec block[GR_N_STATE_PART] = {{0}}, pairs[GR_N_STATE_PART] = {{0}};
    int rc = check_seq(s, q->seq);
    if (!rc)
        rc = gr_apply_shift(s);
    if (!rc)
        rc = transfer_init(&x, s);
    for (int p = 0; p < GR_N_STATE_PART && !rc; p++) {
        if (!has_part(s, p))
            continue;
        rc = p == GR_STATE_PART_STATES ? gr_rs_save(s->cache.rs, q->seq, &block[p], &pairs[p])
                                       : gr_kv_save(s->cache.kv[p], q->seq, &block[p], &pairs[p]);
        set_rows(&x, p, pairs[p].data, (uint32_t)pairs[p].n, (uint32_t)pairs[p].n);
    }
    if (!rc)
        rc = write_state(&x, block, q);
    for (int p = 0; p < GR_N_STATE_PART; p++)
        gr_vec_fini(&block[p]), gr_vec_fini(&pairs[p]);
    transfer_fini(&x);
    return rc;
}

int gr_state_save(struct gr_session *s, int32_t seq, const void *note, size_t n_note, void **data,
                  size_t *n)
{
    *data = NULL, *n = 0;
    return save(s, &(struct request){seq, NULL, note, n_note, data, n});
}

int gr_state_save_file(struct gr_session *s, int32_t seq, const void *note, size_t n_note,
                       const char *path)
{
    return save(s, &(struct request){seq, path, note, n_note, NULL, NULL});
}

void gr_state_free(void *data)
{
    gr_free(data);
}

/* ---- restoring ---- */

/* A restore, checked before it is performed. */
struct restore {
    struct transfer x;
    struct gr_state_reader in;
    int32_t seq;
    char *block[GR_N_STATE_PART];
    size_t block_bytes[GR_N_STATE_PART];
    struct gr_kv_load load[GR_N_STATE_PART];
};

/* Reads section i; the caller frees *out, also after a failure. */
static int read_section(struct gr_state_reader *in, uint32_t i, char **out)
{
    gr_state_reader_seek(in, i);
    *out = gr_calloc(GR_MAX(in->left, 1), 1);
    return *out ? gr_state_reader_get(in, *out, (size_t)in->left) : GR_E_NOMEM_HOST;
}

static int check_scope(const struct restore *r)
{
    bool all = r->in.scope == 1;
    if (r->in.scope > 1)
        return gr_fail(GR_E_CORRUPT, "%s: neither of a session nor of a sequence", r->in.name);
    if (all == (r->seq < 0))
        return 0;
    return gr_fail(GR_E_INVALID, "%s: a state of %s expected, of %s found: %s", r->in.name,
                   all ? "one sequence" : "a whole session",
                   all ? "a whole session" : "one sequence",
                   all ? "restore it as a whole" : "say which sequence is to get it");
}

static int check_fingerprint(struct restore *r)
{
    char *found = NULL;
    int rc = 0;
    if (r->in.n_section < 2 || r->in.table[0].kind != GR_STATE_CONFIG)
        return gr_fail(GR_E_CORRUPT, "%s: it does not say what it belongs to", r->in.name);
    rc = read_section(&r->in, 0, &found);
    if (!rc)
        rc =
            gr_fingerprint_check(r->in.name, r->x.fingerprint, found, (size_t)r->in.table[0].bytes);
    gr_free(found);
    return rc;
}

static int plan_part(struct restore *r, int part, uint32_t section)
{
    struct gr_cache *c = &r->x.s->cache;
    struct gr_kv_load *l = &r->load[part];
    int rc = read_section(&r->in, section, &r->block[part]);
    if (rc)
        return rc;
    size_t n = r->block_bytes[part] = (size_t)r->in.table[section].bytes;
    rc = part == GR_STATE_PART_STATES
             ? gr_rs_load_plan(l, c->rs, r->in.name, r->block[part], n, r->seq)
             : gr_kv_load_plan(l, c->kv[part], r->in.name, r->block[part], n, r->seq);
    r->x.rows[part].n_item = l->saved.head.n_item;
    return rc;
}

/* Checks that the sections are those of this session, with data of all items. */
static int check_sections(const struct restore *r)
{
    bool same = r->in.n_section == r->x.n_section;
    for (uint32_t i = 0; same && i < r->x.n_section; i++) {
        const struct gr_state_section *a = &r->in.table[i], *b = &r->x.table[i];
        same = a->kind == b->kind && a->index == b->index && a->bytes == b->bytes;
    }
    return same ? 0
                : gr_fail(GR_E_CORRUPT,
                          "%s: its sections are not those of its cells: it is damaged", r->in.name);
}

/* Checks everything that can be refused, before anything changes. */
static int plan(struct restore *r, struct gr_session *s)
{
    uint32_t section = 2;
    int rc = gr_state_reader_verify(&r->in);
    if (!rc)
        rc = check_scope(r);
    if (!rc)
        rc = transfer_init(&r->x, s);
    if (!rc)
        rc = check_fingerprint(r);
    if (rc)
        return rc;
    add_section(&r->x, GR_STATE_CONFIG, 0, r->in.table[0].bytes);
    add_section(&r->x, GR_STATE_NOTE, 0, r->in.table[1].bytes);
    for (int p = 0; p < GR_N_STATE_PART && !rc; p++) {
        if (!has_part(s, p))
            continue;
        if (section >= r->in.n_section)
            return check_sections(r);
        add_section(&r->x, p == GR_STATE_PART_STATES ? GR_STATE_ROWS : GR_STATE_CELLS, (uint32_t)p,
                    r->in.table[section].bytes);
        rc = plan_part(r, p, section++);
    }
    if (rc)
        return rc;
    add_data(&r->x);
    return check_sections(r);
}

static int load_tensor(struct restore *r, uint32_t section, const struct gr_ten *t,
                       const struct rows *rows)
{
    struct transfer *x = &r->x;
    uint32_t at = 0;
    int rc = 0;
    gr_state_reader_seek(&r->in, section);
    for (uint32_t k = 0; k < rows->n_item && !rc; k += x->n_piece) {
        uint32_t n = GR_MIN(x->n_piece, rows->n_item - k);
        rc = gr_state_reader_get(&r->in, x->stage, n * row_of(r->x.s, t));
        if (!rc)
            rc = move_piece(x, t, rows, k / x->n_piece, &at, false);
    }
    return rc;
}

static int load_data(struct restore *r)
{
    uint32_t section = r->x.first_data;
    int rc = 0, part;
    for (uint32_t i = 0; i < n_tensor(r->x.s) && !rc; i++) {
        const struct gr_ten *t = tensor_at(r->x.s, i, &part);
        if (t)
            rc = load_tensor(r, section++, t, &r->x.rows[part]);
    }
    for (int32_t d = 1; d < r->x.s->n_device; d++)
        gr_session_mark_queued(&r->x.s->device[d]);
    int synced = gr_session_sync(r->x.s);
    return rc ? rc : synced;
}

/* Empties the target after a failure: its cells have no valid contents. */
static int empty_target(struct restore *r, int status)
{
    struct gr_kv_moves none[GR_N_CACHE_KIND];
    char why[512], which[32] = "the session";
    snprintf(why, sizeof why, "%s", gr_error());
    if (r->seq < 0)
        gr_session_clear(r->x.s);
    else
        gr_cache_op(&r->x.s->cache,
                    &(struct gr_kv_op){.kind = GR_KV_RM, .seq = r->seq, .p0 = -1, .p1 = -1}, none);
    if (r->seq >= 0)
        snprintf(which, sizeof which, "sequence %d", r->seq);
    return gr_fail(status, "%s; %s is empty now", why, which);
}

/* Has the other ranks restore the same cells; the rows follow. */
static int broadcast_restore(const struct restore *r, uint64_t hash)
{
    struct gr_session *s = r->x.s;
    struct gr_state_cells cells = {.seq = r->seq};
    for (int p = 0; p < GR_N_STATE_PART; p++)
        cells.block[p] = r->block[p], cells.bytes[p] = r->block_bytes[p];
    return s->ranks ? s->ranks->restore(s, &cells, hash) : 0;
}

static int perform(struct restore *r)
{
    struct gr_cache *c = &r->x.s->cache;
    uint64_t hash = c->hash;
    for (int p = 0; p < GR_N_STATE_PART; p++) {
        struct gr_kv_load *l = &r->load[p];
        if (!has_part(r->x.s, p))
            continue;
        if (p == GR_STATE_PART_STATES)
            gr_rs_load_do(l, c->rs);
        else
            gr_kv_load_do(l, c->kv[p]);
        set_rows(&r->x, p, l->pair, l->n_pair, l->saved.head.n_item);
    }
    int rc = broadcast_restore(r, hash);
    if (!rc)
        rc = load_data(r);
    return rc ? empty_target(r, rc) : 0;
}

/* ---- restoring cells alone ---- */

static int restore_part(struct gr_session *s, int part, const struct gr_state_cells *cells)
{
    struct gr_cache *c = &s->cache;
    struct gr_kv_load l = {0};
    const char *block = cells->block[part];
    size_t n = cells->bytes[part];
    if (!has_part(s, part))
        return n ? gr_fail(GR_E_CORRUPT, "command RESTORE: cells that there are none of") : 0;
    int rc = part == GR_STATE_PART_STATES
                 ? gr_rs_load_plan(&l, c->rs, "state", block, n, cells->seq)
                 : gr_kv_load_plan(&l, c->kv[part], "state", block, n, cells->seq);
    if (!rc && part == GR_STATE_PART_STATES)
        gr_rs_load_do(&l, c->rs);
    else if (!rc)
        gr_kv_load_do(&l, c->kv[part]);
    gr_kv_load_fini(&l);
    return rc;
}

int gr_state_restore_cells(struct gr_session *s, const struct gr_state_cells *cells)
{
    int rc = 0;
    for (int p = 0; p < GR_N_STATE_PART && !rc; p++)
        rc = restore_part(s, p, cells);
    return rc;
}

/* ---- restoring, for callers ---- */

/* Restores from the file, or with path NULL from the n bytes of data. */
static int load(struct gr_session *s, int32_t seq, const char *path, const void *data, size_t n,
                void **note, size_t *n_note)
{
    struct restore r = {.seq = seq};
    char *kept = NULL;
    int rc = check_seq(s, seq);
    if (!rc)
        rc = gr_state_reader_open(&r.in, path, data, n);
    if (rc)
        return rc;
    rc = plan(&r, s);
    if (!rc && note)
        rc = read_section(&r.in, 1, &kept);
    if (!rc)
        rc = perform(&r);
    if (!rc && note)
        *note = kept, *n_note = (size_t)r.in.table[1].bytes, kept = NULL;
    gr_free(kept);
    for (int p = 0; p < GR_N_STATE_PART; p++) {
        gr_kv_load_fini(&r.load[p]);
        gr_free(r.block[p]);
    }
    transfer_fini(&r.x);
    gr_state_reader_close(&r.in);
    return rc;
}

int gr_state_load(struct gr_session *s, int32_t seq, const void *data, size_t n, void **note,
                  size_t *n_note)
{
    if (note)
        *note = NULL, *n_note = 0;
    return load(s, seq, NULL, data, n, note, n_note);
}

int gr_state_load_file(struct gr_session *s, int32_t seq, const char *path, void **note,
                       size_t *n_note)
{
    if (note)
        *note = NULL, *n_note = 0;
    return load(s, seq, path, NULL, 0, note, n_note);
}
