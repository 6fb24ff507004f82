/* Limits of a session's positions: how far they go, and whether stored cells can be moved. */
#include "arch/rope.h"
#include "engine/memory.h"
#include "engine/open.h"
#include "engine/session.h"

int gr_context_limits(const struct gr_model *model, const struct gr_session_params *params,
                      struct gr_context_limits *limits)
{
    struct gr_session_params p = params ? *params : gr_session_params_default();
    const struct gr_hparams *hp = &model->hp;
    struct gr_memory m;
    *limits = (struct gr_context_limits){0};
    p.self_extend_n = 0;
    int rc = gr_session_fill(model, &p);
    if (!rc)
        rc = gr_memory_plan(&m, hp, &p);
    if (rc)
        return rc;
    const struct gr_kv_params *swa = &m.cache.kv[GR_CACHE_SWA];
    /* windowed layers keep fewer cells than the context */
    bool cut = m.cache.has[GR_CACHE_SWA] && swa->n_cell < m.n_ctx_seq;
    bool moves = !hp->embd.n_learned_pos && !hp->no_cache && !m.cache.has_rs;
    limits->n_good = gr_rope_max_positions(hp, &p);
    limits->can_shift = moves && !(cut && swa->chunked);
    limits->can_extend[GR_SELF_EXTEND_CLASSIC] = moves && !cut;
    limits->can_extend[GR_SELF_EXTEND_WINDOW] =
        hp->rope.kind != GR_ROPE_NONE && !hp->embd.n_learned_pos && !hp->no_cache;
    return 0;
}
