/* Self-Extend, as the flags ask for it. */
#include <stdio.h>
#include <string.h>

#include "tools.h"

enum gr_group_mode gr_group_wanted(const struct gr_options *o)
{
    return strcmp(o->grp_attn_mode, "window") ? GR_GROUP_CLASSIC : GR_GROUP_WINDOW;
}

int gr_group_choose(struct gr_group *g, const struct gr_options *o, int32_t n_train, int32_t n_ctx)
{
    *g = (struct gr_group){gr_group_wanted(o), o->grp_attn_n, o->grp_attn_w, {1, 1, 0}};
    if (g->n > 1 && g->w % g->n) {
        gr_say_error("Self-Extend: -gaw: a multiple of -gan %d expected, %d found", g->n, g->w);
        return GR_EXIT_USAGE;
    }
    int rc = g->n > 0 ? 0 : gr_self_extend_choose(g->mode, n_train, n_ctx, &g->n, &g->w);
    bool window = g->mode == GR_GROUP_WINDOW;
    g->classic = (struct gr_self_extend){window ? 1 : g->n, g->w, 0};
    return rc ? gr_say_status(rc) : 0;
}

void gr_group_params(const struct gr_group *g, struct gr_session_params *p)
{
    if (g->mode == GR_GROUP_WINDOW)
        p->group_n = g->n, p->group_w = g->w;
}

void gr_group_warn(const struct gr_group *g, const struct gr_options *o, int32_t n_train,
                   int32_t n_asked, int32_t n_ctx)
{
    int32_t n = g->n, w = g->w;
    int64_t capacity = gr_self_extend_capacity(g->mode, n_train, n, w);
    if (n > 1 && w > n_train)
        gr_say_warning("-gaw %d exceeds the %d tokens the model was trained for; at most a quarter "
                       "of them is good",
                       w, n_train);
    else if (n > 1 && n_ctx > capacity && n_asked > 0)
        gr_say_warning("-gan %d -gaw %d is good for %lld tokens of the context of %d; -gan auto "
                       "finds what is good for all",
                       n, w, (long long)capacity, n_ctx);
    else if (n == 1 && n_asked > n_train && !strcmp(o->rope_scaling, "model"))
        gr_say_warning("-c %d exceeds the %d tokens the model was trained for; -gan auto or "
                       "--rope-scaling help",
                       n_asked, n_train);
}

const char *gr_group_summary(const struct gr_group *g, const struct gr_options *o, char buf[64])
{
    buf[0] = 0;
    if (g->n > 1)
        snprintf(buf, 64, ", Self-Extend %d / %d (%s)", g->n, g->w, o->grp_attn_mode);
    return buf;
}
