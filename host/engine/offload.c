/* Offload: in steps of many tokens a GPU computes layers, and products with single matrices of
 * layers of its own, whose weights are on the CPU. The weights are uploaded while the GPU computes
 * earlier operations. Keys and values, and attention over them, stay on the CPU. */
#include "engine/offload.h"

#include "base/checked.h"
#include "cpu/cpu.h"
#include "engine/session.h"
#include "gr/status.h"

/* Number of tokens from which on uploading the weights takes less time than computing on the CPU;
 * the GPU's computation and the CPU's attention are neglected. The rates of the link and of CPU
 * threads are known by their kinds, not measured: how a prompt is computed, and so the last bits of
 * its results, must not depend on how busy the machine was when the session was opened. */
static int32_t least_tokens(const struct gr_session *s, int32_t device)
{
    const struct gr_offload_weights *w = &s->offload.weights;
    struct gr_backend *b = s->rank_model->backend[device];
    double link_s = (double)w->bytes / b->api->offload_rate(b);
    double token_s = 2 * (double)w->n_mul / gr_cpu_prompt_ops(s->device[0].backend);
    double n_tok = token_s > 0 ? link_s / token_s + 1 : INT32_MAX;
    return GR_MAX((int32_t)GR_MIN(n_tok, (double)INT32_MAX), GR_PLAN_FEW + 1);
}

static int32_t first_gpu(const struct gr_session *s, const struct gr_placement *p)
{
    for (int32_t il = 0; il <= s->rank_model->hp.n_layer; il++)
        if (p->stage[il] == s->rank_model->stage && p->layer[il])
            return p->layer[il];
    return 0;
}

int gr_offload_begin(struct gr_session *s, const struct gr_weights *weights)
{
    const struct gr_session_params *p = &s->params;
    int32_t device = first_gpu(s, &weights->place);
    gr_offload_end(s);
    if (p->offload_from < 0 || s->rank_model->n_shard > 1 || !device ||
        !s->rank_model->backend[device]->api->offload)
        return 0;
    int rc = gr_offload_weights_describe(&s->offload.weights, s->rank_model, weights, device);
    if (rc || !s->offload.weights.item.n)
        return gr_offload_end(s), rc == GR_E_UNSUPPORTED ? 0 : rc;
    s->offload.device = device;
    s->offload.from = p->offload_from ? p->offload_from : least_tokens(s, device);
    if ((uint32_t)s->offload.from > p->n_ubatch)
        gr_offload_end(s);
    return 0;
}

void gr_offload_end(struct gr_session *s)
{
    gr_offload_weights_fini(&s->offload.weights);
    s->offload.device = 0;
}

struct gr_graph_env gr_offload_env(const struct gr_session *s, const struct gr_step_shape *shape)
{
    const struct gr_offload_weights *w = &s->offload.weights;
    struct gr_graph_env env = s->env;
    if (!s->offload.device || shape->n_tok < s->offload.from)
        return env;
    env.weight = w->weight, env.bias = w->bias, env.lora = w->lora;
    env.device = w->device;
    env.offload_items = (struct gr_offload_items){w->item.data, w->item.n};
    return env;
}

/* ---- running ---- */

static int offload_for(struct gr_session *s, const struct gr_plan *p,
                       const struct gr_plan_segment *seg)
{
    const struct gr_offload *f = (const struct gr_offload *)p->offload.data + seg->offload;
    struct gr_session_device *v = &s->device[seg->device];
    int rc = 0;
    for (int32_t i = 0; i < seg->n_offload && !rc; i++)
        rc = v->backend->api->offload(v->backend, f[i].weight->host, f[i].weight->matrix,
                                      gr_session_at(s, p, f[i].value), i + 1 == seg->n_offload);
    return rc;
}

int gr_offload_request(struct gr_session *s, const struct gr_plan *p, int32_t i)
{
    const struct gr_plan_segment *seg = p->segment.data;
    int rc = 0;
    for (int32_t k = 0; p->offload.n && k < (int32_t)p->segment.n && !rc; k++)
        if (seg[k].n_offload && seg[k].ask == i)
            rc = offload_for(s, p, &seg[k]);
    return rc;
}
