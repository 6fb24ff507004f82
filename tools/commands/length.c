#include "length.h"

#include <stdio.h>
#include <string.h>

#include "tools/cli/flags.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"

#define DEFAULT_CONTEXT 4096
#define UNBOUNDED_ROOM                                                                             \
    1024             /* cells kept for the text when -n does not bound it and -c is not given */
#define CELL_PAD 256 /* contexts are multiples of this many cells */
#define MOST_CONTEXT (1 << 24) /* the largest -c */
#define MOST_STRETCH 32        /* highest factor of YaRN, as published (arXiv 2309.00071) */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

enum gr_self_extend_mode gr_length_mode(const struct gr_options *o)
{
    return strcmp(o->grp_attn_mode, "window") ? GR_SELF_EXTEND_CLASSIC : GR_SELF_EXTEND_WINDOW;
}

bool gr_length_shifts(const struct gr_options *o)
{
    return o->context_shift && o->n_predict != -2;
}

/* ---- the context ---- */

/* Returns the tokens that the model is good for with these factors of Self-Extend. */
static int64_t capacity(const struct gr_length *l, int32_t n, int32_t w)
{
    return gr_self_extend_capacity(gr_length_mode(l->o), l->reach.n_good, n, n > 1 ? w : 1);
}

/* Returns -c (0: the trained context), or enough for the prompt and the text, at least 4096, but no
 * more than the model is good for with Self-Extend's factors; -gan auto chooses those for the
 * result. Never beyond learned positions. */
static int64_t tokens_wanted(const struct gr_length *l)
{
    const struct gr_options *o = l->o;
    int64_t need = (int64_t)l->n_prompt + 4;
    need += o->n_predict >= 0 ? o->n_predict : UNBOUNDED_ROOM;
    if (o->ctx_size >= 0)
        need = o->ctx_size ? o->ctx_size : l->info.n_ctx_train;
    else if (o->grp_attn_n < 0)
        need = larger(need, smaller(l->reach.n_good, DEFAULT_CONTEXT));
    else
        need = smaller(larger(need, DEFAULT_CONTEXT), capacity(l, o->grp_attn_n, o->grp_attn_w));
    if (l->info.n_learned_pos)
        need = smaller(need, l->info.n_learned_pos);
    return larger(need, 1);
}

/* Chooses Self-Extend's factors for l->n_ctx tokens; returns a status. */
static int choose_group(struct gr_length *l, struct gr_session_params *p)
{
    struct gr_tp_group g = {gr_length_mode(l->o), l->o->grp_attn_n, l->o->grp_attn_w};
    int rc = gr_context_limits(l->model, p, &l->reach);
    if (!rc && g.n < 0)
        rc = gr_self_extend_choose(g.mode, l->reach.n_good, l->n_ctx, &g.n, &g.w);
    if (g.mode == GR_SELF_EXTEND_WINDOW)
        p->self_extend_n = g.n, p->self_extend_w = g.w;
    l->group = g;
    return rc;
}

/* Chooses the length for l->o; returns a status. */
static int choose(struct gr_length *l, struct gr_session_params *p)
{
    int rc = gr_context_limits(l->model, p, &l->reach); /* n_good, which does not depend on the
                                                          context */
    if (rc)
        return rc;
    int64_t wanted = tokens_wanted(l);
    p->n_ctx = (uint32_t)((wanted + CELL_PAD - 1) / CELL_PAD * CELL_PAD);
    l->n_ctx = l->info.n_learned_pos ? (int32_t)wanted : (int32_t)p->n_ctx;
    return choose_group(l, p);
}

int32_t gr_length_learned(const struct gr_options *o, const struct gr_model_info *info,
                          int32_t n_ctx)
{
    int32_t most = info->n_learned_pos ? info->n_learned_pos : INT32_MAX;
    if (o->ctx_size > most)
        gr_say_warning("-c %d exceeds the %d positions that the model has learned, and it has no "
                       "others: the context is %d",
                       o->ctx_size, most, most);
    return n_ctx < most ? n_ctx : most;
}

int gr_length_choose(struct gr_length *l, const struct gr_options *o, struct gr_model *model,
                     size_t n_prompt, struct gr_session_params *p)
{
    *l = (struct gr_length){.o = o, .model = model, .n_prompt = n_prompt};
    gr_model_info(model, &l->info);
    int rc = choose(l, p);
    if (rc)
        return gr_say_status(rc);
    (void)gr_length_learned(o, &l->info, l->n_ctx);
    return 0;
}

int gr_length_self_extend(struct gr_length *l, const struct gr_options *o, struct gr_model *model,
                          int32_t n_ctx, struct gr_session_params *p)
{
    *l = (struct gr_length){.o = o, .model = model, .n_ctx = n_ctx};
    gr_model_info(model, &l->info);
    int rc = choose_group(l, p);
    return rc ? gr_say_status(rc) : 0;
}

struct gr_self_extend gr_length_classic(const struct gr_length *l)
{
    bool classic = l->group.mode == GR_SELF_EXTEND_CLASSIC;
    return (struct gr_self_extend){classic ? l->group.n : 1, l->group.w, 0};
}

const char *gr_length_summary(const struct gr_length *l, char buf[64])
{
    *buf = 0;
    if (l->group.n > 1)
        snprintf(buf, 64, ", Self-Extend %d / %d (%s)", l->group.n, l->group.w,
                 l->o->grp_attn_mode);
    return buf;
}

/* ---- flags to suggest, after trying them ---- */

/* Flags as given; with Self-Extend; with YaRN in place of Self-Extend. */
enum kind { AS_GIVEN, GROUPED, STRETCHED };

struct offer {
    struct gr_options o;
    char flags[96]; /* to be added to the command line */
};

/* Returns the factor of YaRN that makes the model good for n tokens; 0: none. */
static int yarn_factor(const struct gr_length *l, const struct gr_options *given, int64_t n)
{
    struct gr_options o = *given;
    struct gr_context_limits r;
    o.rope_scaling = "yarn", o.rope_scale = 1;
    struct gr_session_params p = gr_session_options(&o);
    if (gr_context_limits(l->model, &p, &r))
        return 0;
    int64_t f = (n + r.n_good - 1) / larger(r.n_good, 1);
    return f <= MOST_STRETCH ? (int)f : 0;
}

/* Makes flags of this kind that give a context of n_ctx tokens good for n; false: the kind
 * cannot. */
static bool make_offer(const struct gr_length *l, enum kind kind, int64_t n_ctx, int64_t n,
                       struct offer *f)
{
    *f = (struct offer){.o = *l->o};
    f->o.ctx_size = (int32_t)n_ctx;
    if (l->info.has_encoder && kind != AS_GIVEN) /* encoders have no such positions */
        return false;
    if (kind == GROUPED) {
        f->o.grp_attn_n = -1;
        snprintf(f->flags, sizeof f->flags, "-gan auto");
    }
    if (kind != STRETCHED)
        return n_ctx <= MOST_CONTEXT;
    int factor = yarn_factor(l, l->o, n);
    f->o.grp_attn_n = 1, f->o.rope_scaling = "yarn", f->o.rope_scale = (float)factor;
    snprintf(f->flags, sizeof f->flags, "%s--rope-scaling yarn --rope-scale %d",
             l->o->grp_attn_n == 1 ? "" : "-gan 1 ", factor);
    return factor > 0 && n_ctx <= MOST_CONTEXT;
}

/* Returns whether there is memory for a session with these parameters. */
static bool has_memory(const struct gr_length *l, const struct gr_session_params *p)
{
    struct gr_fit fit;
    uint64_t host = 0;
    gr_say_hush(true);
    int rc = gr_model_fit(l->model, p, &fit);
    gr_say_hush(false);
    if (rc)
        return false;
    for (int32_t d = 0; d < fit.n_device; d++)
        if (!fit.device[d].total_bytes)
            host += fit.device[d].cache + fit.device[d].work;
    return !fit.host_free || host <= fit.host_free;
}

/* Returns whether n tokens fit with these options: the model supports them and there is memory;
 * *good: the model is good for that many. */
static bool holds(const struct gr_length *l, const struct gr_session_params *params,
                  const struct gr_options *o, int64_t n, bool *good)
{
    struct gr_length t = {.o = o, .model = l->model, .info = l->info, .n_prompt = l->n_prompt};
    struct gr_session_params p = gr_session_options(o);
    p.n_rollback = params->n_rollback;
    p.n_batch = params->n_batch, p.n_ubatch = params->n_ubatch;
    if (choose(&t, &p) || t.n_ctx < n)
        return false;
    *good = capacity(&t, t.group.n, t.group.w) >= n;
    return (t.group.n == 1 || t.reach.can_extend[gr_length_mode(o)]) && has_memory(&t, &p);
}

/* ---- positions the model is good for ---- */

static const char *good_for(const struct gr_length *l, char buf[128])
{
    int32_t trained = l->info.n_ctx_train, good = l->reach.n_good;
    if (good == trained)
        snprintf(buf, 128, "%d tokens the model was trained for", trained);
    else
        snprintf(buf, 128, "%d tokens that the positions are good for (%.3g times the %d trained)",
                 good, (double)good / trained, trained);
    return buf;
}

/* Returns "; what helps: A or B", or "". */
static const char *what_helps(const struct gr_length *l, const struct gr_session_params *p,
                              char buf[256])
{
    struct offer f;
    size_t n = 0;
    bool good;
    *buf = 0;
    for (enum kind k = GROUPED; k <= STRETCHED; k++)
        if (make_offer(l, k, l->n_ctx, l->n_ctx, &f) && holds(l, p, &f.o, l->n_ctx, &good) && good)
            n += (size_t)snprintf(buf + n, 256 - n, "%s%s", n ? " or " : "; what helps: ", f.flags);
    return buf;
}

void gr_length_warn(const struct gr_length *l, const struct gr_session_params *p)
{
    const struct gr_options *o = l->o;
    int32_t n = l->group.n, w = l->group.w, good = l->reach.n_good;
    int64_t asked = o->ctx_size ? o->ctx_size : l->info.n_ctx_train, holds_n = capacity(l, n, w);
    char words[128], helps[256];
    if (n > 1 && w > good)
        gr_say_warning("-gaw %d exceeds the %s; at most a quarter of them is good", w,
                       good_for(l, words));
    else if (n > 1 && o->ctx_size > 0 && l->n_ctx > holds_n)
        gr_say_warning("-gan %d -gaw %d is good for %lld tokens of the context of %d%s", n, w,
                       (long long)holds_n, l->n_ctx, what_helps(l, p, helps));
    else if (n == 1 && smaller(asked, l->n_ctx) > good)
        gr_say_warning("-c %lld exceeds the %s%s", (long long)asked, good_for(l, words),
                       what_helps(l, p, helps));
}

/* ---- texts that do not fit ---- */

/* Returns whether --context-shift can be added to the given flags. */
static bool can_shift(const struct gr_length *l)
{
    const struct gr_options *o = l->o;
    return l->reach.can_shift && o->n_predict != -2 &&
           (o->grp_attn_n == 1 || gr_length_mode(o) == GR_SELF_EXTEND_WINDOW);
}

/* Returns flags ("-c 605 -gan auto") with which the whole prompt fits, preferably with positions
 * that the model is good for; "": none. */
static const char *flags_for_all(const struct gr_length *l, const struct gr_session_params *p,
                                 char buf[128], bool *good)
{
    int64_t n = (int64_t)l->n_prompt + 4;
    struct offer f;
    bool fits = false;
    *buf = 0;
    for (enum kind k = AS_GIVEN; k <= STRETCHED && !(fits && *good); k++)
        if (make_offer(l, k, n, n, &f) && (fits = holds(l, p, &f.o, n, good)) && (*good || !*buf))
            snprintf(buf, 128, "-c %lld %s", (long long)n, f.flags);
    if (*buf && buf[strlen(buf) - 1] == ' ')
        buf[strlen(buf) - 1] = 0;
    return buf;
}

static void say_remedies(const struct gr_length *l, const struct gr_session_params *p)
{
    char flags[128], words[128];
    bool good = false, shift = can_shift(l) && !l->info.has_encoder;
    const char *all = flags_for_all(l, p, flags, &good);
    if (*all)
        gr_say("%s takes it whole%s%s%s", all, good ? "" : ", beyond the ",
               good ? "" : good_for(l, words), shift ? "; --context-shift its newest part" : "");
    else if (shift)
        gr_say("--context-shift takes its newest part");
    else if (l->info.n_learned_pos)
        gr_say("the model has learned %d positions and has no others: give a shorter prompt",
               l->info.n_learned_pos);
    else
        gr_say("there is no larger context here: give a shorter prompt");
}

int gr_length_admit(const struct gr_length *l, const struct gr_session_params *p)
{
    /* The session refuses these factors with a message of its own. */
    bool refused_anyway = l->group.n > 1 && !l->reach.can_extend[gr_length_mode(l->o)];
    if ((int64_t)l->n_prompt <= l->n_ctx - 4 || refused_anyway)
        return 0;
    if (gr_length_shifts(l->o) && l->reach.can_shift && !l->info.has_encoder) {
        gr_say_warning("the prompt of %zu tokens exceeds the context of %d: --context-shift drops "
                       "its oldest text, but for --keep",
                       l->n_prompt, l->n_ctx);
        return 0;
    }
    gr_say_error("prompt is too long (%zu tokens, max %d)", l->n_prompt,
                 (int)larger(l->n_ctx - 4, 0));
    say_remedies(l, p);
    return 1;
}

void gr_length_say_full(const struct gr_length *l)
{
    bool shift = can_shift(l) && !l->o->context_shift;
    if (l->info.n_learned_pos && l->n_ctx >= l->info.n_learned_pos)
        gr_say_warning("the context of %d tokens is full: the model has learned no more positions",
                       l->n_ctx);
    else
        gr_say_warning("the context of %d tokens is full: -c N makes room for more%s", l->n_ctx,
                       shift ? ", --context-shift goes on without the oldest text" : "");
}
