/* Drafts of gpurun run: where they come from, and steps that use them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "prompt_cache.h"
#include "run.h"
#include "tools/cli/flags.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"
#include "tools/cli/together.h"

static bool from_text(const struct gr_options *o)
{
    return !strncmp(o->spec_type, "ngram", 5);
}

static bool from_model(const struct gr_options *o)
{
    return o->model_draft && strcmp(o->spec_type, "none") != 0;
}

bool gr_run_drafts(const struct gr_options *o)
{
    return from_text(o) || from_model(o);
}

void gr_run_draft_params(const struct run *r, struct gr_session_params *p)
{
    if (!gr_run_drafts(r->o))
        return;
    if (p->n_rollback < (uint32_t)r->o->draft_max + 1)
        p->n_rollback = (uint32_t)r->o->draft_max + 1;
    p->swa_full = true; /* rejected tokens must not have pushed others out of a window */
}

/* The options of the draft model: those of the model, but for the flags of its own, and for its
 * weights and positions, which are as its file says. */
static struct gr_options draft_options(const struct gr_options *o)
{
    struct gr_options d = *o;
    d.model = o->model_draft;
    d.lora.n = d.lora_scaled.n = d.control_vector.n = d.control_vector_scaled.n = 0;
    d.override_kv.n = d.override_tensor.n = 0;
    d.gpu_layers = o->gpu_layers_draft;
    d.device = o->device_draft ? o->device_draft : o->device;
    d.cache_type_k = o->cache_type_k_draft, d.cache_type_v = o->cache_type_v_draft;
    d.tensor_split = NULL;
    d.rope_scaling = "model", d.yarn_orig_ctx = 0;
    d.rope_scale = d.rope_freq_scale = d.rope_freq_base = NAN;
    d.yarn_ext_factor = d.yarn_attn_factor = d.yarn_beta_slow = d.yarn_beta_fast = NAN;
    return d;
}

static int open_draft_model(struct run *r)
{
    struct gr_options d = draft_options(r->o);
    if (gr_together_world()) {
        gr_say_error("-md: a draft model cannot be run by several processes; leave it out");
        return GR_EXIT_USAGE;
    }
    if (access(d.model, R_OK)) {
        gr_say_error("-md %s: %s; a model's file is expected, GGUF", d.model, strerror(errno));
        return gr_status_exit(GR_E_NO_MODEL);
    }
    int rc = gr_open_model(&d, false, &r->draft_model);
    if (rc)
        return rc;
    struct gr_session_params p = gr_session_options(&d);
    p.n_ctx = (uint32_t)r->n_ctx;
    p.n_rollback = (uint32_t)d.draft_max + 1;
    p.swa_full = true;
    int status = gr_session_open(&r->draft_session, r->draft_model, &p);
    return status ? gr_say_status(status) : 0;
}

static int check_drafts(const struct run *r)
{
    if (!strncmp(r->o->spec_type, "draft", 5) && !r->o->model_draft) {
        gr_say_error("--spec-type draft needs a draft model, -md FILE; --spec-type ngram drafts "
                     "from the text itself");
        return GR_EXIT_USAGE;
    }
    if (gr_run_drafts(r->o) && r->extend.n > 1) {
        gr_say_error("drafts and -gan both count on positions: leave one out, or use "
                     "--grp-attn-mode window");
        return GR_EXIT_USAGE;
    }
    if (gr_run_drafts(r->o) && r->o->draft_max >= r->o->batch_size) {
        gr_say_error("--draft-max is %d: less than -b %d is expected", r->o->draft_max,
                     r->o->batch_size);
        return GR_EXIT_USAGE;
    }
    if (gr_run_drafts(r->o) && r->o->draft_min > r->o->draft_max) {
        gr_say_error("--draft-min is %d: at most --draft-max is expected, which is %d",
                     r->o->draft_min, r->o->draft_max);
        return GR_EXIT_USAGE;
    }
    return 0;
}

int gr_run_begin_drafts(struct run *r)
{
    gr_draft_free(&r->draft);
    if (!gr_run_drafts(r->o))
        return 0;
    struct gr_draft_params p = gr_draft_params_default();
    p.n_max = r->o->draft_max, p.n_min = r->o->draft_min, p.p_min = r->o->draft_p_min;
    p.n_gram = from_text(r->o) ? r->o->spec_ngram : 0;
    p.adaptive = r->o->spec_adaptive;
    p.model = r->draft_model, p.session = r->draft_session;
    int status = gr_draft_new(&r->draft, &p, r->model);
    return status ? gr_say_status(status) : 0;
}

int gr_run_open_drafts(struct run *r)
{
    int rc = check_drafts(r);
    if (!rc && from_model(r->o))
        rc = open_draft_model(r);
    return rc ? rc : gr_run_begin_drafts(r);
}

void gr_run_close_drafts(struct run *r)
{
    gr_draft_free(&r->draft);
    gr_session_close(&r->draft_session);
    gr_model_close(&r->draft_model);
}

/* Returns the number of tokens before the one at which the profiler starts or stops. */
static int32_t until_profiler(const struct run *r)
{
    if (r->n_gen < r->profile_from)
        return r->profile_from - r->n_gen;
    return r->n_gen < r->profile_to ? r->profile_to - r->n_gen : INT32_MAX;
}

int gr_run_draft_step(struct run *r, int32_t last, int32_t room, int32_t *ids, int32_t *n)
{
    int64_t most = r->o->n_predict < 0 ? GR_MAX_DRAFT + 1 : r->o->n_predict - r->n_gen;
    most = most < room ? most : room;
    most = most < GR_MAX_DRAFT + 1 ? most : GR_MAX_DRAFT + 1;
    most = most < until_profiler(r) ? most : until_profiler(r);
    int rc = gr_draft_step(r->draft, r->session, 0, r->sampler, (int32_t)most, ids, n);
    if (rc)
        return rc;
    r->n_past += *n;
    gr_prompt_cache_add(&r->cache, &last, 1);
    gr_prompt_cache_add(&r->cache, ids, *n - 1);
    if (r->o->dump_kv_cache) {
        gr_say_break();
        gr_kv_dump(r->session, stderr);
    }
    return 0;
}
