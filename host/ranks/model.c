/* Opening and closing a model on all of its ranks. */
#include "model/model.h"

#include "gpurun.h"
#include "ranks/choose.h"
#include "ranks/start.h"

int gr_model_open(struct gr_model **out, const char *path, const struct gr_model_params *params)
{
    struct gr_model_params p = params ? *params : gr_model_params_default();
    struct gr_ranks ranks;
    int rc = gr_model_new(out, &p);
    if (!rc)
        rc = gr_ranks_choose(&ranks, &p);
    if (!rc)
        rc = gr_model_read(*out, path, &p);
    if (!rc)
        rc = gr_ranks_open(*out, &ranks);
    if (rc)
        gr_model_close(out);
    return rc;
}

void gr_model_close(struct gr_model **model)
{
    struct gr_model *m = model ? *model : NULL;
    if (!m)
        return;
    if (m->world && m->n_rank_model && !m->team) /* the other ranks wait for a QUIT */
        (void)gr_team_of(m, &m->team);
    gr_team_free(&m->team);
    gr_model_free(model);
}
