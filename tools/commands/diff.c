/* gpurun diff: runs one prompt with two sets of flags and finds the first node that differs by more
 * than rounding explains (diff_nodes.c), where, and by how much.
 *
 * Each side runs the prompt as a whole and then token by token: untapped, as a user gets it, and
 * tapped, where every node has launches of its own. For the untapped logits the whole prompt runs
 * twice and each token is a step like the one before, so that graphs are used. Side A's nodes are
 * kept, rows of all steps one after another, and B's are compared as they come. */
#include "diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/model.h"
#include "tools/cli/say.h"

/* ---- sides ---- */

/* Returns whether a flag may occur in -a and -b. */
static bool of_a_side(const struct gr_flag *f)
{
    return f->group == MEMORY || f->group == ROPE ||
           f->offset == offsetof(struct gr_options, lora) ||
           f->offset == offsetof(struct gr_options, lora_scaled);
}

/* Returns the flag of this command that the word names; NULL: none. */
static const struct gr_flag *flag_of(const char *word)
{
    size_t n = strcspn(word, "="), m;
    for (const struct gr_flag *f = gr_flags; f->names; f++) {
        const char *at = f->names, *name;
        bool off = false;
        while (f->commands & 1u << GR_CMD_diff && gr_flag_next_name(&at, &name, &m, &off))
            if (m == n && !memcmp(name, word, n))
                return f;
    }
    return NULL;
}

/* Makes the side's command line: the common flags, the side's, split at blanks, then "--" and what
 * follows it. */
static int cut(struct gr_diff_side *s, const struct gr_options *o, int *n_words)
{
    int n = 0, lo = 0;
    s->split = strdup(s->flags);
    s->words = malloc(((size_t)o->n_words + strlen(s->flags) / 2 + 2) * sizeof *s->words);
    if (!s->split || !s->words)
        return gr_say_no_memory();
    while (lo < o->n_words && strcmp(o->words[lo], "--") != 0)
        s->words[n++] = o->words[lo++];
    char *save = NULL;
    for (char *w = strtok_r(s->split, " \t\n", &save); w; w = strtok_r(NULL, " \t\n", &save)) {
        const struct gr_flag *f = flag_of(w);
        if (f && f->kind < GR_FLAG_NOOP && !of_a_side(f)) {
            gr_say_error("%s belongs to the whole command: flags about devices, memory, positions "
                         "and adapters are expected",
                         w);
            return GR_EXIT_USAGE;
        }
        s->words[n++] = w;
    }
    while (lo < o->n_words)
        s->words[n++] = o->words[lo++];
    *n_words = n;
    return 0;
}

static int read_side(struct gr_diff_side *s, const struct gr_options *o)
{
    int n = 0;
    gr_say_within(s->name);
    int rc = cut(s, o, &n);
    if (!rc)
        rc = gr_options_parse(&s->o, GR_CMD_diff, n, s->words);
    s->o.model = o->model; /* which may have been downloaded */
    if (!rc && s->o.n_args != o->n_args) {
        gr_say_error("unexpected argument '%s': flags alone are expected", s->o.arg[0]);
        rc = GR_EXIT_USAGE;
    }
    gr_say_within("");
    return rc;
}

/* ---- running one ---- */

/* Runs the prompt from an empty cache, in pieces of `most` tokens, with or without logits. */
static int play(struct gr_diff *d, int32_t most, bool wanted)
{
    int8_t *all = malloc((size_t)most);
    int rc = all ? 0 : gr_say_no_memory();
    gr_kv_clear(d->at->session);
    for (size_t at = 0; at < d->n && !rc; at += (size_t)most) {
        int32_t n = d->n - at < (size_t)most ? (int32_t)(d->n - at) : most;
        struct gr_batch b = {.n_tok = n, .token = d->ids + at, .logits = all};
        memset(all, 1, (size_t)n);
        int status = gr_decode(d->at->session, &b);
        rc = status ? gr_say_status(status) : d->rc;
        for (int32_t i = 0; i < n && wanted && !rc; i++)
            gr_diff_logits(d, at + (size_t)i, gr_logits(d->at->session, i));
    }
    free(all);
    return rc;
}

static int play_way(struct gr_diff *d, enum gr_diff_way way, int32_t most)
{
    int rc = gr_diff_begin(d, way);
    if (!rc && way == GR_WAY_WHOLE)
        rc = play(d, most, false);
    if (!rc)
        rc = play(d, most, true);
    int status = rc ? 0 : gr_session_tap(d->at->session, "", gr_diff_tap, d);
    if (rc || status)
        return rc ? rc : gr_say_status(status);
    rc = play(d, most, false);
    (void)gr_session_tap(d->at->session, "", NULL, NULL);
    return rc;
}

/* Refuses, with a message, models that cannot be compared. */
static int check_model(const struct gr_model_info *info)
{
    if (info->no_logits)
        gr_say_error("a %s model leaves vectors: gpurun diff compares logits, and what is before "
                     "them",
                     info->arch);
    else if (info->has_encoder)
        gr_say_error(
            "a %s model has an encoder and a decoder: gpurun diff is for models without an "
            "encoder",
            info->arch);
    else
        return 0;
    return gr_status_exit(GR_E_UNSUPPORTED);
}

static int read_prompt(struct gr_diff *d)
{
    char *text = NULL;
    size_t n = 0;
    bool given;
    int rc = gr_read_text(d->o, &text, &n, &given);
    int status = rc ? 0 : gr_text_tokenize(d->at->model, text, n, true, true, &d->ids, &d->n);
    free(text);
    if (status)
        return gr_say_status(status);
    if (!rc && (!n || !d->n)) {
        gr_say_error("there is no text: give it by -p, -f or standard input");
        rc = GR_EXIT_USAGE;
    }
    return rc;
}

/* "CPU 2 layers, CUDA0 31 layers (NVIDIA H200)" */
static int say_where(struct gr_diff_side *s)
{
    static struct gr_fit fit;
    size_t n = 0;
    int status = gr_session_fit(s->session, &fit);
    for (int32_t i = 0; i < fit.n_device && i < GR_FIT_MAX && !status; i++) {
        const struct gr_fit_device *f = &fit.device[i];
        if (f->n_layer && n < sizeof s->where)
            n += (size_t)snprintf(s->where + n, sizeof s->where - n, "%s%s %d layers%s%s%s",
                                  n ? ", " : "", f->name, f->n_layer, *f->description ? " (" : "",
                                  f->description, *f->description ? ")" : "");
    }
    return status;
}

static int open_session(struct gr_diff *d, struct gr_diff_side *s, int32_t *most)
{
    struct gr_session_params p = gr_session_options(&s->o);
    struct gr_model_info info;
    p.n_ctx = s->o.ctx_size > 0 ? (uint32_t)s->o.ctx_size : (uint32_t)d->n;
    int status = gr_session_open(&s->session, s->model, &p);
    if (!status)
        status = say_where(s);
    gr_model_info(s->model, &info);
    d->n_vocab = info.n_vocab, d->n_embd = info.n_embd, d->n_layer = info.n_layer;
    s->steps = gr_diff_steps(&s->o, &info);
    *most = (int32_t)p.n_batch;
    return status ? gr_say_status(status) : 0;
}

static int run_side(struct gr_diff *d, struct gr_diff_side *s)
{
    struct gr_model_info info;
    int32_t most = 0;
    gr_say_within(s->name);
    int rc = gr_open_model(&s->o, false, &s->model);
    d->at = s;
    if (!rc) {
        gr_model_info(s->model, &info);
        rc = check_model(&info);
    }
    if (!rc && !d->ids) {
        gr_say_within(""); /* the text is common to both sides */
        rc = read_prompt(d);
        gr_say_within(s->name);
    }
    if (!rc)
        rc = open_session(d, s, &most);
    if (!rc)
        rc = play_way(d, GR_WAY_WHOLE, most);
    if (!rc)
        rc = play_way(d, GR_WAY_EACH, 1);
    gr_session_close(&s->session);
    gr_model_close(&s->model);
    gr_say_within("");
    return rc;
}

int gr_tool_diff(const struct gr_options *o)
{
    struct gr_diff d = {.o = o,
                        .side = {{.name = "-a", .flags = o->side_a ? o->side_a : ""},
                                 {.name = "-b", .flags = o->side_b ? o->side_b : ""}}};
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++)
        rc = read_side(&d.side[i], o);
    for (int i = 0; i < 2 && !rc; i++)
        rc = run_side(&d, &d.side[i]);
    if (!rc)
        rc = gr_diff_report(&d);
    for (size_t i = 0; i < d.n_node; i++)
        free(d.node[i].x);
    for (int i = 0; i < GR_N_WAY; i++)
        free(d.logits[i].a);
    for (int i = 0; i < 2; i++) {
        gr_options_fini(&d.side[i].o);
        free(d.side[i].words);
        free(d.side[i].split);
    }
    free(d.node);
    gr_free_ids(d.ids);
    return rc;
}
