#include "engine/observe.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/imatrix.h"
#include "engine/session.h"
#include "gr/op.h"
#include "gr/status.h"

/* ---- progress ---- */

void gr_session_report_progress(struct gr_session *s, uint64_t part)
{
    const struct gr_progress *p = &s->observers.progress;
    if (p->fn && !p->fn(1000 * p->done + part, 1000 * (uint64_t)s->batch.n_tok, p->user))
        atomic_store(&s->cancel, 1);
}

/* Reports the finished share of a plan's nodes, all of equal weight; nothing for plans of shifts
 * and copies. */
static void on_node(int32_t n_node, void *user)
{
    struct gr_session *s = user;
    const struct gr_observers *o = &s->observers;
    uint64_t part = 1000 * (uint64_t)o->ubatch_tok,
             n = (uint64_t)o->segment_node + (uint64_t)n_node;
    if (part)
        gr_session_report_progress(s, part * n / (uint64_t)o->all_node);
}

void gr_session_progress(struct gr_session *s, gr_progress_fn *fn, void *user)
{
    struct gr_backend *cpu = s->device[0].backend;
    s->observers.progress.fn = fn, s->observers.progress.user = user;
    cpu->api->set_progress(cpu, fn ? on_node : NULL, s);
}

/* ---- values ---- */

static void on_tap(const struct gr_tap *tap, const struct gr_ten *t, void *user)
{
    struct gr_session *s = user;
    const struct gr_observers *o = &s->observers;
    if (tap->kind != GR_TAP_RESULT) {
        gr_imatrix_collect(&s->observers.imatrix, tap, t);
        return;
    }
    if (!o->tap_fn || (o->tap_name[0] && strcmp(o->tap_name, tap->name) != 0))
        return; /* the name differs, or the previous call has switched the tap off */
    float *rows = gr_calloc((size_t)(t->rows * t->cols), sizeof *rows);
    for (int64_t r = 0; rows && r < t->rows; r++)
        memcpy(rows + r * t->cols, gr_ten_row(t, 0, r), (size_t)t->cols * 4);
    if (rows)
        o->tap_fn(tap->name, tap->layer, rows, t->rows, t->cols, o->tap_user);
    gr_free(rows);
}

int gr_session_tap(struct gr_session *s, const char *name, gr_tensor_fn *fn, void *user)
{
    if (fn && s->ranks)
        return gr_fail(GR_E_INVALID,
                       "a tap sees only what its own rank computes: run the model on one rank "
                       "(--ranks 1)");
    char *copy = gr_strndup(name ? name : "", name ? strlen(name) : 0);
    if (!copy)
        return GR_E_NOMEM_HOST;
    gr_free(s->observers.tap_name);
    s->observers.tap_name = copy, s->observers.tap_fn = fn, s->observers.tap_user = user;
    return 0;
}

int gr_session_imatrix(struct gr_session *s, struct gr_imatrix *m, bool output)
{
    if (m && s->ranks)
        return gr_fail(GR_E_INVALID, "importances are seen on one rank only (--ranks 1)");
    s->observers.imatrix.imatrix = m, s->observers.imatrix.output = output;
    return 0;
}

gr_tap_fn *gr_observe_segment(struct gr_session *s, int32_t node, int32_t n_node)
{
    struct gr_observers *o = &s->observers;
    o->segment_start = o->time_fn ? gr_now_ns() - o->time_start : 0;
    o->segment_node = node, o->all_node = n_node;
    return o->tap_fn || o->imatrix.imatrix ? on_tap : NULL;
}

/* ---- times ---- */

static void on_time(const struct gr_op_time *t, void *user)
{
    const struct gr_session_device *v = user;
    struct gr_session *s = v->session;
    struct gr_op_sample sample = {.device = v->name,
                                  .op = gr_op_info(t->op)->name,
                                  .kernel = t->kernel,
                                  .layer = t->layer,
                                  .start_ns = s->observers.segment_start + t->start_ns,
                                  .ns = t->ns,
                                  .bytes = t->bytes};
    if (s->observers.time_fn)
        s->observers.time_fn(&sample, s->observers.time_user);
}

int gr_session_time(struct gr_session *s, gr_sample_fn *fn, void *user)
{
    int rc = 0;
    if (fn && s->ranks)
        return gr_fail(GR_E_INVALID,
                       "operations can be timed where one rank runs the whole model: take one "
                       "(--ranks 1, without mpirun); --trace shows what each rank is at");
    s->observers.time_fn = fn, s->observers.time_user = user;
    s->observers.time_start = gr_now_ns();
    for (int32_t d = 0; d < s->n_device && !rc; d++) {
        struct gr_session_device *v = &s->device[d];
        rc = v->backend->api->set_timer(v->backend, fn ? on_time : NULL, v);
    }
    return rc;
}

void gr_observers_fini(struct gr_observers *o)
{
    gr_free(o->tap_name);
    gr_imatrix_collector_fini(&o->imatrix);
}
