/* The sampler of gpurun run: parameters by default, by the model's file, by flags. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "run.h"
#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

/* ---- biases ---- */

/* A list of biases that grows. */
struct biases {
    struct gr_logit_bias *v;
    size_t n, cap;
};

static int add_bias(struct biases *b, int32_t id, float bias)
{
    if (b->n == b->cap) {
        size_t cap = 2 * b->cap + 16;
        struct gr_logit_bias *v = realloc(b->v, cap * sizeof *v);
        if (!v)
            return gr_say_no_memory();
        b->v = v, b->cap = cap;
    }
    b->v[b->n++] = (struct gr_logit_bias){id, bias};
    return 0;
}

/* Adds a bias for every token of a text. */
static int add_text(struct biases *b, const struct run *r, const struct gr_bias *given)
{
    int32_t *id = NULL;
    size_t n_id = 0;
    char *text = strndup(given->text, given->n_text);
    if (!text)
        return gr_say_no_memory();
    size_t n = r->o->escape ? gr_unescape(text) : given->n_text;
    int status = gr_text_tokenize(r->model, text, n, false, false, &id, &n_id);
    int rc = status ? gr_say_status(status) : 0;
    for (size_t i = 0; i < n_id && !rc; i++)
        rc = add_bias(b, id[i], given->bias);
    gr_free_ids(id);
    free(text);
    return rc;
}

/* Lists the biases of -l and, with --ignore-eos, -inf for every token that ends a text. */
static int list_biases(const struct run *r, struct biases *b)
{
    const struct gr_bias_list *list = &r->o->logit_bias;
    int rc = 0;
    for (int32_t i = 0; i < list->n && !rc; i++)
        rc = list->v[i].text ? add_text(b, r, &list->v[i])
                             : add_bias(b, list->v[i].id, list->v[i].bias);
    for (int32_t id = 0; r->o->ignore_eos && id < r->info.n_vocab && !rc; id++) {
        if (gr_text_is_eog(r->model, id))
            rc = add_bias(b, id, -INFINITY);
    }
    return rc;
}

/* ---- breakers of DRY ---- */

/* Returns copies of the texts of --dry-sequence-breaker, their escapes replaced; NULL: no
 * memory. */
static char **copy_breakers(const struct gr_options *o)
{
    char **text = calloc((size_t)o->dry_breaker.n + 1, sizeof *text);
    for (int32_t i = 0; text && i < o->dry_breaker.n; i++) {
        text[i] = strdup(o->dry_breaker.v[i]);
        if (text[i] && o->escape)
            (void)gr_unescape(text[i]);
    }
    return text;
}

static void free_breakers(char **text, int32_t n)
{
    for (int32_t i = 0; text && i < n; i++)
        free(text[i]);
    free((void *)text);
}

/* Sets the breakers to those of the flag behind the last "none". */
static int set_breakers(struct gr_sampler_params *p, const struct gr_options *o, char **text)
{
    int32_t first = 0;
    if (!text)
        return gr_say_no_memory();
    for (int32_t i = 0; i < o->dry_breaker.n; i++) {
        if (!text[i])
            return gr_say_no_memory();
        if (!strcmp(text[i], "none"))
            first = i + 1;
    }
    if (o->dry_breaker.n) {
        p->dry_breakers = (const char *const *)text + first;
        p->n_dry_breakers = o->dry_breaker.n - first;
    }
    return 0;
}

/* ---- parameters ---- */

static void set_f32(float *field, const struct gr_given *given, float value)
{
    if (given->text)
        *field = value;
}

static void set_i32(int32_t *field, const struct gr_given *given, int32_t value)
{
    if (given->text)
        *field = value;
}

/* Sets what is given by flags. */
static void set_given(struct gr_sampler_params *p, const struct gr_options *o)
{
    set_f32(&p->temp, &o->given.temp, o->temp);
    set_i32(&p->top_k, &o->given.top_k, o->top_k);
    set_f32(&p->top_p, &o->given.top_p, o->top_p);
    set_f32(&p->min_p, &o->given.min_p, o->min_p);
    set_f32(&p->typical_p, &o->given.typical, o->typical);
    set_f32(&p->top_n_sigma, &o->given.top_n_sigma, o->top_n_sigma);
    set_f32(&p->xtc_probability, &o->given.xtc_probability, o->xtc_probability);
    set_f32(&p->xtc_threshold, &o->given.xtc_threshold, o->xtc_threshold);
    set_f32(&p->dynatemp_range, &o->given.dynatemp_range, o->dynatemp_range);
    set_f32(&p->dynatemp_exponent, &o->given.dynatemp_exp, o->dynatemp_exp);
    set_i32(&p->penalty_last_n, &o->given.repeat_last_n, o->repeat_last_n);
    set_f32(&p->penalty_repeat, &o->given.repeat_penalty, o->repeat_penalty);
    set_f32(&p->penalty_freq, &o->given.frequency_penalty, o->frequency_penalty);
    set_f32(&p->penalty_present, &o->given.presence_penalty, o->presence_penalty);
    set_f32(&p->dry_multiplier, &o->given.dry_multiplier, o->dry_multiplier);
    set_f32(&p->dry_base, &o->given.dry_base, o->dry_base);
    set_i32(&p->dry_allowed_length, &o->given.dry_allowed_length, o->dry_allowed_length);
    set_i32(&p->dry_penalty_last_n, &o->given.dry_penalty_last_n, o->dry_penalty_last_n);
    set_f32(&p->adaptive_target, &o->given.adaptive_target, o->adaptive_target);
    set_f32(&p->adaptive_decay, &o->given.adaptive_decay, o->adaptive_decay);
    set_i32(&p->mirostat, &o->given.mirostat, o->mirostat);
    set_f32(&p->mirostat_tau, &o->given.mirostat_ent, o->mirostat_ent);
    set_f32(&p->mirostat_eta, &o->given.mirostat_lr, o->mirostat_lr);
    if (o->samplers)
        (void)gr_sampler_letters(o->samplers, p->samplers); /* checked before */
    if (o->sampler_seq)
        snprintf(p->samplers, sizeof p->samplers, "%s", o->sampler_seq);
}

uint64_t gr_run_seed(const struct gr_options *o)
{
    uint32_t random = UINT32_MAX;
    if (o->seed < 0 && getrandom(&random, sizeof random, 0) == sizeof random)
        return random;
    return (uint64_t)o->seed;
}

static struct gr_sampler_params choose_params(struct run *r)
{
    struct gr_sampler_params p = gr_sampler_params_default();
    int32_t n = gr_model_sampling(r->model, &p);
    set_given(&p, r->o);
    p.seed = r->seed;
    p.n_vocab = r->info.n_vocab, p.n_ctx = r->n_ctx, p.model = r->model;
    r->temp = p.temp;
    if (n && r->index <= 1 && !r->turn)
        gr_say(
            "sampling: temperature %g, top-k %d, top-p %g, min-p %g; the model's file sets %d of "
            "the parameters, which flags override",
            (double)p.temp, p.top_k, (double)p.top_p, (double)p.min_p, n);
    return p;
}

int gr_run_open_sampler(struct run *r)
{
    struct biases bias = {0};
    struct gr_sampler_params p = choose_params(r);
    char **breakers = copy_breakers(r->o);
    int rc = set_breakers(&p, r->o, breakers);
    if (!rc)
        rc = list_biases(r, &bias);
    p.logit_bias = bias.v, p.n_logit_bias = (int32_t)bias.n;
    int status = rc ? 0 : gr_sampler_new(&r->sampler, &p);
    free(bias.v);
    free_breakers(breakers, r->o->dry_breaker.n);
    return status ? gr_say_status(status) : rc;
}

int gr_run_accept_prompt(struct run *r)
{
    int rc = 0;
    for (size_t i = 0; i < r->n_prompt && !rc; i++)
        rc = gr_sampler_accept(r->sampler, r->prompt[i]);
    if (!rc && r->draft)
        rc = gr_draft_accept(r->draft, r->prompt, r->n_prompt);
    return rc ? rc : gr_sampler_set_grammar(r->sampler, r->grammar);
}

int gr_run_say_no_pick(void)
{
    bool logits = !strncmp(gr_error_message(), "non-finite", 10);
    gr_say_error("%s%s", gr_error_message(),
                 logits ? "; the weights or the cache hold values that are not finite, and "
                          "--check-tensors names such weights"
                        : "");
    return 1;
}
