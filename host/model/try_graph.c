/* A plan recorded on trial, when a model is opened. */
#include "base/alloc.h"
#include "gr/status.h"
#include "graph/graph.h"
#include "model/model.h"

/* GR_E_UNSUPPORTED when an adapter changes a weight that the graph does not multiply with. */
static int refuse_unused(const struct gr_model *m, size_t at)
{
    char name[96];
    for (int32_t i = 0; i < m->n_lora; i++)
        if (gr_ten_is(&m->lora[i].a[at]))
            return gr_fail(GR_E_UNSUPPORTED,
                           "%s: architecture %s does not multiply with %s in a way that an adapter "
                           "can change",
                           gr_gguf_path(m->lora_file[i].gguf, 0), m->arch->name,
                           gr_slot_name((enum gr_slot)(at % GR_N_SLOT),
                                        gr_file_layer(&m->hp, (int)(at / GR_N_SLOT) - 1), false,
                                        name, sizeof name));
    return 0;
}

int gr_model_try_graph(const struct gr_model *m, const struct gr_hparams *hp,
                       const struct gr_share *share, const struct gr_ten *weight,
                       const struct gr_ten *bias, const struct gr_lora *lora)
{
    size_t n_pair = (size_t)(m->hp.n_layer + 1) * GR_N_SLOT;
    struct gr_ten *cache = gr_calloc((size_t)m->hp.n_layer, sizeof *cache);
    bool *used = gr_calloc(n_pair, sizeof *used);
    float ones[GR_MAX_ADAPTER];
    for (int i = 0; i < GR_MAX_ADAPTER; i++)
        ones[i] = 1;
    const struct gr_ten distances = {.rows = 1, .cols = 2 * GR_REL_MAX_DISTANCE + 1};
    struct gr_graph_env env = {.hp = hp,
                               .share = share,
                               .arch = m->arch,
                               .weight = weight,
                               .bias = bias,
                               .lora = lora,
                               .n_lora = lora ? m->n_lora : 0,
                               .lora_scale = ones,
                               .lora_used = used,
                               .scale = m->scale,
                               .k_cache = cache,
                               .v_cache = cache,
                               .conv_state = cache,
                               .ssm_state = cache,
                               .rel_rows = {distances, distances},
                               .vectors = m->arch->no_logits};
    env.rope[0].freq.cols = m->hp.rope.n_rot / 2, env.rope[1].freq.cols = m->hp.rope.n_rot_swa / 2;
    bool second = m->hp.swa.n_swa > 0 || m->hp.enc.n_layer > 0;
    struct gr_step_shape shape = {
        .n_tok = 1,
        .n_out = 1,
        .n_pos = 1,
        .n_full = 1,
        .n_swa = second,
        .n_seq = 1,
        .n_list = 32,
        .n_list_swa = second ? 32 : 0,
        .n_alibi = (m->hp.attn.max_alibi > 0 || m->hp.attn.n_bucket > 0) ? 32 : 0};
    struct gr_plan plan;
    int rc = cache && used ? gr_graph_build(&plan, &env, &shape) : GR_E_NOMEM_HOST;
    if (!rc)
        gr_plan_fini(&plan);
    if (!rc && hp->enc.n_layer)
        rc = gr_graph_build_encode(&plan, &env, &shape);
    if (!rc && hp->enc.n_layer)
        gr_plan_fini(&plan);
    for (size_t i = 0; lora && i < n_pair && !rc; i++)
        if (!used[i])
            rc = refuse_unused(m, i);
    gr_free(used);
    gr_free(cache);
    return rc;
}
