/* gpurun replay: runs a recorded session (session.h) and writes its outputs as NumPy arrays.
 *
 * DIR/<name>.npy, for operation i: rc_i, int32 of shape (): of a batch 0, 1 when the cache was
 * full, -1 when it was refused; of seq_rm 1, 0 when the cache cannot remove that. logits_i, float32
 * [rows, n_vocab], the tokens with logits = 1 in batch order; in a session of vectors embd_i
 * instead, [rows, n_embd] of such tokens or, pooled, of the batch's sequences in order; after a
 * sequence operation pos_i, int32 [n_seq_max, 2], the smallest and largest position of each
 * sequence (not of models that keep nothing from step to step). With --tap NAME also NAME-L-M_i,
 * float32 [rows, columns]: what layer L (embd and logits: -1) made of the M-th micro-batch.
 *
 * --hash prints one line, 16 hexadecimal digits: FNV-1a of 64 bits over the names, shapes and bytes
 * of all these arrays in order; it is equal for two runs with bitwise equal outputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "session.h"
#include "tools/cli/flags.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"

struct replay {
    const struct gr_options *o;
    struct gr_recording rec;
    struct gr_model *model;
    struct gr_session *session;
    struct gr_session_size size;
    bool has_encoder;
    int32_t n_vocab, n_embd; /* n_embd: 0 unless the session computes vectors */
    int n_written;
    uint64_t hash; /* over all arrays so far */
    struct slot {
        void *data;
        size_t n;
    } slot[GR_SESSION_SLOTS];
    /* taps of the current operation */
    int op, micro_batch, n_tapped, tap_rc;
    char first_tap[96]; /* first tap of each micro-batch */
};

/* ---- arrays ---- */

static void add_to_hash(struct replay *r, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++)
        r->hash = (r->hash ^ p[i]) * 0x100000001b3u;
}

/* Writes DIR/<name>_<op>.npy, format version 1.0: `bytes` of little-endian items. 0 or an exit
 * code, said. */
static int write_file(const struct replay *r, const char *name, int op, const char *type,
                      const char *shape, const void *data, size_t bytes)
{
    char path[4096], header[128];
    int n = snprintf(path, sizeof path, "%s/%s_%d.npy", r->o->output, name, op);
    struct gr_output *f = NULL;
    if (n >= (int)sizeof path) {
        gr_say_error("-o: the folder's name is too long: at most %zu bytes are expected",
                     sizeof path - 192);
        return 6;
    }
    /* Magic, version and length are 10 bytes; blanks and a newline fill the header up to a multiple
     * of 64. */
    n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 type, shape);
    int full = (10 + n + 1 + 63) / 64 * 64 - 10;
    char start[256] = "\x93NUMPY\x01";
    start[8] = (char)(full % 256), start[9] = (char)(full / 256);
    snprintf(start + 10, sizeof start - 10, "%s%*s", header, full - n, "\n");
    int status = gr_output_open(&f, path, GR_OUTPUT_QUICK);
    if (!status)
        status = gr_output_put(f, start, (size_t)full + 10);
    if (!status)
        status = gr_output_put(f, data, bytes);
    if (!status)
        status = gr_output_commit(&f);
    gr_output_abort(&f);
    return status ? gr_say_status(status) : 0;
}

/* Writes and hashes an array, as requested. */
static int write_array(struct replay *r, const char *name, int op, const char *type,
                       const char *shape, const void *data, size_t bytes)
{
    char label[128];
    int n = snprintf(label, sizeof label, "%s_%d %s", name, op, shape);
    if (r->o->hash) {
        add_to_hash(r, label, (size_t)n);
        add_to_hash(r, data, bytes);
    }
    r->n_written++;
    return r->o->output ? write_file(r, name, op, type, shape, data, bytes) : 0;
}

static int write_rc(struct replay *r, int op, int32_t rc)
{
    return write_array(r, "rc", op, "<i4", "()", &rc, sizeof rc);
}

/* Returns whether the model keeps any state from step to step. */
static bool remembers(const struct replay *r)
{
    return r->size.total > 0;
}

static int write_positions(struct replay *r, int op)
{
    if (!remembers(r))
        return 0;
    int32_t pos[256][2];
    char shape[32];
    int32_t n = (int32_t)r->rec.params.n_seq_max;
    for (int32_t s = 0; s < n; s++)
        pos[s][0] = gr_kv_seq_pos_min(r->session, s), pos[s][1] = gr_kv_seq_pos_max(r->session, s);
    snprintf(shape, sizeof shape, "(%d, 2)", n);
    return write_array(r, "pos", op, "<i4", shape, pos, (size_t)n * sizeof *pos);
}

/* Returns row i of the last batch: of a token or, pooled, of a sequence; NULL when there is
 * none. */
static const float *row_of(const struct replay *r, const struct gr_batch *b, int32_t i)
{
    if (gr_session_pooling(r->session) > GR_POOLING_NONE)
        return gr_embeddings_seq(r->session, i);
    if (!b->logits[i])
        return NULL;
    return r->n_embd ? gr_embeddings(r->session, i) : gr_logits(r->session, i);
}

static int write_rows(struct replay *r, int op, const struct gr_batch *b)
{
    bool pooled = gr_session_pooling(r->session) > GR_POOLING_NONE;
    int32_t n = pooled ? (int32_t)r->rec.params.n_seq_max : b->n_tok;
    size_t n_rows = 0, row = (size_t)(r->n_embd ? r->n_embd : r->n_vocab);
    char shape[64];
    float *all = calloc((size_t)n + 1, row * sizeof *all);
    if (!all)
        return gr_say_no_memory();
    for (int32_t i = 0; i < n; i++)
        if (row_of(r, b, i))
            memcpy(all + n_rows++ * row, row_of(r, b, i), row * sizeof *all);
    snprintf(shape, sizeof shape, "(%zu, %zu)", n_rows, row);
    int rc = write_array(r, r->n_embd ? "embd" : "logits", op, "<f4", shape, all,
                         n_rows * row * sizeof *all);
    free(all);
    return rc;
}

static void on_tap(const char *name, int layer, const float *data, int64_t rows, int64_t cols,
                   void *user)
{
    struct replay *r = user;
    char label[96], shape[64];
    snprintf(label, sizeof label, "%s-%d", name, layer);
    if (!r->first_tap[0])
        snprintf(r->first_tap, sizeof r->first_tap, "%s", label);
    else if (!strcmp(r->first_tap, label))
        r->micro_batch++;
    snprintf(label, sizeof label, "%s-%d-%d", name, layer, r->micro_batch);
    snprintf(shape, sizeof shape, "(%lld, %lld)", (long long)rows, (long long)cols);
    r->n_tapped++;
    if (!r->tap_rc)
        r->tap_rc =
            write_array(r, label, r->op, "<f4", shape, data, (size_t)(rows * cols) * sizeof *data);
}

/* ---- operations ---- */

static int failed(int op, int status)
{
    gr_say_error("op %d: %s", op, gr_error_message());
    return gr_status_exit(status);
}

static int run_batch(struct replay *r, int op, const struct gr_batch *b,
                     int (*batch)(struct gr_session *, const struct gr_batch *))
{
    r->op = op, r->micro_batch = 0, r->first_tap[0] = 0;
    int status = batch(r->session, b);
    if (r->tap_rc)
        return r->tap_rc;
    if (status == GR_E_KV_FULL || status == GR_E_INVALID)
        return write_rc(r, op, status == GR_E_KV_FULL ? 1 : -1);
    if (status)
        return failed(op, status);
    int rc = write_rc(r, op, 0);
    return rc ? rc : write_rows(r, op, b);
}

static int replay_decode(struct replay *r, int op, const struct gr_batch *b)
{
    return run_batch(r, op, b, gr_decode);
}

static int save_state(struct gr_session *s, struct slot *slot)
{
    gr_state_free(slot->data);
    return gr_state_save(s, -1, NULL, 0, &slot->data, &slot->n);
}

static int apply(struct replay *r, enum gr_op_kind kind, const int32_t *a)
{
    struct gr_session *s = r->session;
    switch (kind) {
    case GR_OP_state_save:
        return save_state(s, &r->slot[a[0]]);
    case GR_OP_state_load:
        return gr_state_load(s, -1, r->slot[a[0]].data, r->slot[a[0]].n, NULL, NULL);
    case GR_OP_seq_rm:
        return gr_kv_seq_rm(s, a[0], a[1], a[2]);
    case GR_OP_seq_add:
        return gr_kv_seq_add(s, a[0], a[1], a[2], a[3]);
    case GR_OP_seq_div:
        return gr_kv_seq_div(s, a[0], a[1], a[2], a[3]);
    case GR_OP_seq_cp:
        return gr_kv_seq_cp(s, a[0], a[1], a[2], a[3]);
    case GR_OP_seq_keep:
        return gr_kv_seq_keep(s, a[0]);
    default:
        gr_kv_clear(s);
        return 0;
    }
}

/* encode is for models with an encoder, and for bidirectional models without a cache. */
static int replay_encode(struct replay *r, int op, const struct gr_batch *b)
{
    if (r->has_encoder)
        return run_batch(r, op, b, gr_encode);
    if (!remembers(r))
        return replay_decode(r, op, b);
    gr_say_error("op %d: encode: this model goes on from what it keeps; decode is its operation",
                 op);
    return GR_EXIT_USAGE;
}

/* Returns whether the operation has no effect: seq_keep when each sequence has a pool of its own
 * (session.h). */
static bool keeps_all(const struct replay *r, enum gr_op_kind kind)
{
    return kind == GR_OP_seq_keep && r->size.n_kv_pool > 1 && !r->size.state;
}

static int replay_cells(struct replay *r, int i, enum gr_op_kind kind, const int32_t *arg)
{
    if (kind == GR_OP_state_load && !r->slot[arg[0]].data) {
        gr_say_error("op %d: slot %d: a state_save before it expected, none found", i, arg[0]);
        return GR_EXIT_USAGE;
    }
    int status = keeps_all(r, kind) ? 0 : apply(r, kind, arg), rc = 0;
    if (status && (kind != GR_OP_seq_rm || status != GR_E_UNSUPPORTED))
        return failed(i, status);
    if (kind == GR_OP_seq_rm)
        rc = write_rc(r, i, !status);
    return rc ? rc : write_positions(r, i);
}

static int replay_op(struct replay *r, int i)
{
    const struct gr_recorded_op *op = &r->rec.op[i];
    int rc;
    if (op->kind == GR_OP_decode)
        rc = replay_decode(r, i, &op->batch);
    else if (op->kind == GR_OP_encode)
        rc = replay_encode(r, i, &op->batch);
    else
        rc = replay_cells(r, i, op->kind, op->arg);
    if (!rc && (r->o->dump_kv_cache || r->o->dump_plan))
        fprintf(stderr, "op %d:\n", i);
    if (!rc && r->o->dump_kv_cache)
        gr_kv_dump(r->session, stderr);
    if (!rc && r->o->dump_plan)
        gr_session_plans(r->session, stderr);
    return rc;
}

static int open_session(struct replay *r)
{
    struct gr_options with_model = *r->o;
    struct gr_model_info info;
    if (!with_model.model)
        with_model.model = r->rec.model;
    int rc = gr_open_model(&with_model, false, &r->model);
    if (rc)
        return rc;
    gr_model_info(r->model, &info);
    r->n_vocab = info.n_vocab, r->has_encoder = info.has_encoder;
    struct gr_session_params p = r->rec.params;
    gr_cache_options(r->o, &p);
    p.n_threads = p.n_threads_batch = r->o->threads > 0 ? r->o->threads : 0;
    if (r->o->dry_run)
        return gr_print_size(r->o, r->model, &p);
    int status = gr_session_size(r->model, &p, &r->size);
    if (!status)
        status = gr_session_open(&r->session, r->model, &p);
    if (!status)
        r->n_embd = gr_session_n_embd(r->session);
    if (!status && r->o->tap)
        status = gr_session_tap(r->session, strcmp(r->o->tap, "all") ? r->o->tap : "", on_tap, r);
    return status ? gr_say_status(status) : 0;
}

static int make_folder(const struct gr_options *o)
{
    const char *dir = o->output;
    if (!dir && o->hash)
        return 0;
    if (!dir) {
        gr_say_error("-o DIR, the folder for the arrays, or --hash is needed");
        return GR_EXIT_USAGE;
    }
    int status = gr_output_folder(dir);
    return status ? gr_say_status(status) : 0;
}

static int replay_all(struct replay *r)
{
    int rc = 0;
    for (int i = 0; i < r->rec.n_op && !rc; i++)
        rc = replay_op(r, i);
    if (rc)
        return rc;
    if (r->o->tap && !r->n_tapped) {
        gr_say_error("no intermediate result is called '%s': layer, attn, q and embd are; --tap "
                     "all writes every one",
                     r->o->tap);
        return GR_EXIT_USAGE;
    }
    gr_say("replay: %d operations, %d arrays%s%s", r->rec.n_op, r->n_written,
           r->o->output ? " in " : "", r->o->output ? r->o->output : "");
    if (r->o->hash)
        printf("%016llx\n", (unsigned long long)r->hash);
    return 0;
}

int gr_tool_replay(const struct gr_options *o)
{
    struct replay r = {.o = o, .hash = 0xcbf29ce484222325u};
    int rc = gr_recording_read(&r.rec, o->arg[0]);
    if (!rc && !o->dry_run)
        rc = make_folder(o);
    if (!rc)
        rc = open_session(&r);
    if (!rc && !o->dry_run)
        rc = replay_all(&r);
    for (int i = 0; i < GR_SESSION_SLOTS; i++)
        gr_state_free(r.slot[i].data);
    gr_session_close(&r.session);
    gr_model_close(&r.model);
    gr_recording_fini(&r.rec);
    return rc;
}
