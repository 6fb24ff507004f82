/* Parameters of a sampler. */
#include "sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "flags.h"
#include "input.h"
#include "say.h"

/* ---- biases ---- */

bool gr_sampler_add_bias(struct gr_sampler_choice *c, int32_t id, float bias)
{
    if (c->n_bias == c->cap_bias) {
        size_t cap = 2 * c->cap_bias + 16;
        struct gr_logit_bias *v = realloc(c->bias, cap * sizeof *v);
        if (!v)
            return false;
        c->bias = v, c->cap_bias = cap;
    }
    c->bias[c->n_bias++] = (struct gr_logit_bias){id, bias};
    c->p.logit_bias = c->bias, c->p.n_logit_bias = (int32_t)c->n_bias;
    return true;
}

/* Adds a bias for every token of a text. */
static int add_text(struct gr_sampler_choice *c, const struct gr_options *o,
                    const struct gr_bias *given)
{
    int32_t *id = NULL;
    size_t n_id = 0;
    char *text = strndup(given->text, given->n_text);
    if (!text)
        return gr_say_no_memory();
    size_t n = o->escape ? gr_unescape(text) : given->n_text;
    int status = gr_text_tokenize(c->p.model, text, n, false, false, &id, &n_id);
    int rc = status ? gr_say_status(status) : 0;
    for (size_t i = 0; i < n_id && !rc; i++)
        rc = gr_sampler_add_bias(c, id[i], given->bias) ? 0 : gr_say_no_memory();
    gr_free_ids(id);
    free(text);
    return rc;
}

/* Lists the biases of -l and, with --ignore-eos, -inf for every token that ends a text. */
static int list_biases(struct gr_sampler_choice *c, const struct gr_options *o)
{
    const struct gr_bias_list *list = &o->logit_bias;
    int rc = 0;
    for (int32_t i = 0; i < list->n && !rc; i++) {
        const struct gr_bias *b = &list->v[i];
        if (b->text)
            rc = add_text(c, o, b);
        else
            rc = gr_sampler_add_bias(c, b->id, b->bias) ? 0 : gr_say_no_memory();
    }
    for (int32_t id = 0; o->ignore_eos && id < c->p.n_vocab && !rc; id++) {
        if (gr_text_is_eog(c->p.model, id) && !gr_sampler_add_bias(c, id, -INFINITY))
            rc = gr_say_no_memory();
    }
    return rc;
}

/* ---- breakers of DRY ---- */

/* Copies the texts of --dry-sequence-breaker, their escapes replaced; those behind the last "none"
 * count. */
static int copy_breakers(struct gr_sampler_choice *c, const struct gr_options *o)
{
    int32_t first = 0;
    if (!o->dry_breaker.n)
        return 0;
    c->breaker = calloc((size_t)o->dry_breaker.n, sizeof *c->breaker);
    if (!c->breaker)
        return gr_say_no_memory();
    for (; c->n_breaker < o->dry_breaker.n; c->n_breaker++) {
        char *text = strdup(o->dry_breaker.v[c->n_breaker]);
        if (!text)
            return gr_say_no_memory();
        c->breaker[c->n_breaker] = text;
        if (o->escape)
            (void)gr_unescape(text);
        if (!strcmp(text, "none"))
            first = c->n_breaker + 1;
    }
    c->p.dry_breakers = (const char *const *)c->breaker + first;
    c->p.n_dry_breakers = c->n_breaker - first;
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

uint64_t gr_choose_seed(const struct gr_options *o)
{
    uint32_t random = UINT32_MAX;
    if (o->seed < 0 && getrandom(&random, sizeof random, 0) == sizeof random)
        return random;
    return (uint64_t)o->seed;
}

int gr_sampler_choose(struct gr_sampler_choice *c, const struct gr_options *o,
                      const struct gr_model *model)
{
    struct gr_model_info info;
    gr_model_info(model, &info);
    *c = (struct gr_sampler_choice){.p = gr_sampler_params_default()};
    c->n_file = gr_model_sampling(model, &c->p);
    c->p.n_vocab = info.n_vocab, c->p.model = model;
    set_given(&c->p, o);
    int rc = copy_breakers(c, o);
    return rc ? rc : list_biases(c, o);
}

void gr_sampler_drop(struct gr_sampler_choice *c)
{
    for (int32_t i = 0; i < c->n_breaker; i++)
        free(c->breaker[i]);
    free((void *)c->breaker);
    free(c->bias);
    *c = (struct gr_sampler_choice){0};
}
