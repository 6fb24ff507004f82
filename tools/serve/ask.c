/* Fields that all requests for texts share. */
#include "ask.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "strengths.h"
#include "tools/cli/flags.h"

static void no_memory(struct gr_fields *f)
{
    gr_field_wrong(f, "", "out of memory");
}

/* ---- numbers of samplers ---- */

struct number {
    const char *name;
    size_t at; /* of the field in struct gr_sampler_params */
    double lo, hi;
};
#define AT(field) offsetof(struct gr_sampler_params, field)

static const struct number reals[] = {
    {"temperature", AT(temp), -1000, 1000},
    {"top_p", AT(top_p), 0, 1},
    {"min_p", AT(min_p), 0, 1},
    {"typical_p", AT(typical_p), 0, 1},
    {"top_n_sigma", AT(top_n_sigma), -1, 1000},
    {"xtc_probability", AT(xtc_probability), 0, 1},
    {"xtc_threshold", AT(xtc_threshold), 0, 1},
    {"dynatemp_range", AT(dynatemp_range), 0, 1000},
    {"dynatemp_exponent", AT(dynatemp_exponent), 0, 1000},
    {"repeat_penalty", AT(penalty_repeat), 0.001, 1000},
    {"frequency_penalty", AT(penalty_freq), -1000, 1000},
    {"presence_penalty", AT(penalty_present), -1000, 1000},
    {"dry_multiplier", AT(dry_multiplier), 0, 1000000},
    {"dry_base", AT(dry_base), 1, 1000},
    {"adaptive_target", AT(adaptive_target), -1, 1},
    {"adaptive_decay", AT(adaptive_decay), 0, 0.99},
    {"mirostat_tau", AT(mirostat_tau), 0, 1000},
    {"mirostat_eta", AT(mirostat_eta), 0, 1000},
};
/* The last of those that count tokens back have a limit by the context. */
static const struct number integers[] = {
    {"top_k", AT(top_k), INT32_MIN, INT32_MAX},
    {"mirostat", AT(mirostat), 0, 2},
    {"repeat_last_n", AT(penalty_last_n), -1, 0},
    {"dry_allowed_length", AT(dry_allowed_length), 0, 0},
    {"dry_penalty_last_n", AT(dry_penalty_last_n), -1, 0},
};

static void read_numbers(struct gr_sampler_params *p, struct gr_fields *f, int32_t n_ctx)
{
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        float *at = (float *)((char *)p + reals[i].at);
        if (gr_field(f, reals[i].name))
            *at = (float)gr_field_number(f, reals[i].name, 0, reals[i].lo, reals[i].hi);
    }
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const struct number *m = &integers[i];
        int32_t *at = (int32_t *)((char *)p + m->at);
        double hi = m->hi > 0 ? m->hi : n_ctx;
        if (gr_field(f, m->name))
            *at = (int32_t)gr_field_int(f, m->name, 0, (int64_t)m->lo, (int64_t)hi);
    }
}

/* ---- lists of samplers ---- */

/* The order: a list of names, or letters. */
static void read_order(struct gr_sampler_params *p, struct gr_fields *f)
{
    const json_t *v = gr_field(f, "samplers"), *name;
    char names[GR_MAX_SAMPLERS * 24] = "";
    size_t i, n = 0;
    if (!v)
        return;
    if (json_is_string(v)) {
        if (json_string_length(v) >= sizeof p->samplers)
            gr_field_wrong(f, "samplers", "samplers: %d at most", GR_MAX_SAMPLERS - 1);
        else
            strcpy(p->samplers, json_string_value(v));
        return;
    }
    if (!json_is_array(v))
        gr_field_wrong(f, "samplers", "samplers: a list of names or a string of letters");
    json_array_foreach(v, i, name)
    {
        const char *text = json_string_value(name);
        size_t more = text ? strlen(text) : sizeof names;
        if (n + more + 2 > sizeof names) {
            gr_field_wrong(f, "samplers", "samplers: names of samplers are expected");
            return;
        }
        memcpy(names + n, text, more);
        n += more;
        names[n++] = ';', names[n] = 0;
    }
    names[n ? n - 1 : 0] = 0;
    if (!n)
        *p->samplers = 0;
    else if (gr_sampler_letters(names, p->samplers))
        gr_field_wrong(f, "samplers", "samplers: %s", gr_error_message());
}

/* The breakers of DRY, whose texts are the request's. */
static void read_breakers(struct gr_ask *a, struct gr_fields *f)
{
    const json_t *v = gr_field_list(f, "dry_sequence_breakers"), *text;
    struct gr_sampler_choice *c = &a->sampler;
    size_t i;
    if (!v)
        return;
    if (json_array_size(v) > GR_MAX_DRY_BREAKERS) {
        gr_field_wrong(f, "dry_sequence_breakers", "dry_sequence_breakers: %d at most",
                       GR_MAX_DRY_BREAKERS);
        return;
    }
    char **copy = calloc(json_array_size(v) + 1, sizeof *copy);
    if (!copy) {
        no_memory(f);
        return;
    }
    for (int32_t k = 0; k < c->n_breaker; k++)
        free(c->breaker[k]);
    free((void *)c->breaker);
    c->breaker = copy, c->n_breaker = 0;
    json_array_foreach(v, i, text)
    {
        if (!json_is_string(text))
            gr_field_wrong(f, "dry_sequence_breakers", "dry_sequence_breakers: texts are expected");
        copy[i] = strdup(json_is_string(text) ? json_string_value(text) : "");
        c->n_breaker++;
        if (!copy[i])
            no_memory(f);
    }
    c->p.dry_breakers = (const char *const *)copy, c->p.n_dry_breakers = c->n_breaker;
}

/* ---- biases ---- */

static void add_bias(struct gr_ask *a, struct gr_fields *f, int64_t id, const json_t *value)
{
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (!json_is_false(value) && !json_is_number(value))
        gr_field_wrong(f, "logit_bias", "logit_bias: a number, or false, is expected for a token");
    else if (id < 0 || id >= a->sampler.p.n_vocab)
        gr_field_wrong(f, "logit_bias", "logit_bias: there is no token %lld: the last one is %d",
                       (long long)id, a->sampler.p.n_vocab - 1);
    else if (a->sampler.n_bias >= GR_ASK_BIASES)
        gr_field_wrong(f, "logit_bias", "logit_bias: %d tokens at most", GR_ASK_BIASES);
    else if (!gr_sampler_add_bias(&a->sampler, (int32_t)id, (float)bias))
        no_memory(f);
}

/* Returns the token that a key names, -1: none. */
static int64_t id_of(const char *key)
{
    char *end;
    long long id = strtoll(key, &end, 10);
    return *key && !*end ? id : -1;
}

/* A pair [token or text, bias]. */
static void read_pair(struct gr_ask *a, struct gr_fields *f, const json_t *pair)
{
    const json_t *what = json_array_get(pair, 0), *bias = json_array_get(pair, 1);
    int32_t *ids = NULL;
    size_t n = 0;
    if (json_array_size(pair) != 2 || (!json_is_integer(what) && !json_is_string(what))) {
        gr_field_wrong(f, "logit_bias", "logit_bias: pairs of a token, or a text, and its bias");
        return;
    }
    if (json_is_integer(what)) {
        add_bias(a, f, json_integer_value(what), bias);
        return;
    }
    int rc = gr_text_tokenize(a->sampler.p.model, json_string_value(what), json_string_length(what),
                              false, false, &ids, &n);
    if (rc)
        gr_field_wrong(f, "logit_bias", "logit_bias: %s", gr_error_message());
    for (size_t i = 0; i < n; i++)
        add_bias(a, f, ids[i], bias);
    gr_free_ids(ids);
}

static void read_biases(struct gr_ask *a, struct gr_fields *f)
{
    json_t *all = json_object_get(f->object, "logit_bias");
    if (json_is_object(all)) {
        for (void *at = json_object_iter(all); at; at = json_object_iter_next(all, at))
            add_bias(a, f, id_of(json_object_iter_key(at)), json_object_iter_value(at));
    } else if (json_is_array(all)) {
        for (size_t i = 0; i < json_array_size(all); i++)
            read_pair(a, f, json_array_get(all, i));
    } else if (gr_field(f, "logit_bias")) {
        gr_field_wrong(f, "logit_bias", "logit_bias: an object of tokens and their biases");
    }
    const struct gr_sampler_params *p = &a->sampler.p;
    for (int32_t id = 0; gr_field_bool(f, "ignore_eos", false) && id < p->n_vocab; id++) {
        if (gr_text_is_eog(p->model, id) && !gr_sampler_add_bias(&a->sampler, id, -INFINITY))
            no_memory(f);
    }
}

/* ---- stop strings ---- */

static void add_stop(struct gr_ask *a, struct gr_fields *f, const json_t *v)
{
    size_t n = json_string_length(v);
    if (!json_is_string(v) || !n || n > GR_ASK_STOP_BYTES)
        gr_field_wrong(f, "stop", "stop: strings of 1 to %d bytes", GR_ASK_STOP_BYTES);
    else if (a->n_stop >= GR_ASK_STOPS)
        gr_field_wrong(f, "stop", "stop: %d strings at most", GR_ASK_STOPS);
    else
        a->stop[a->n_stop] = json_string_value(v), a->stop_bytes[a->n_stop++] = n;
}

static void read_stops(struct gr_ask *a, struct gr_fields *f)
{
    const json_t *v = gr_field(f, "stop");
    if (v && !json_is_array(v))
        add_stop(a, f, v);
    for (size_t i = 0; i < json_array_size(v); i++)
        add_stop(a, f, json_array_get(v, i));
}

/* ---- grammars ---- */

static void set_schema(struct gr_ask *a, struct gr_fields *f, const char *name,
                       const json_t *schema)
{
    char *text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (!text)
        no_memory(f);
    else if (gr_grammar_schema(&a->grammar, a->sampler.p.model, text, strlen(text)))
        gr_field_wrong(f, name, "%s: %s", name, gr_error_message());
    free(text);
}

static void read_format(struct gr_ask *a, struct gr_fields *f)
{
    const char *const name = "response_format";
    const json_t *v = gr_field_object(f, name);
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!v || (type && !strcmp(type, "text")))
        return;
    const json_t *inner = json_object_get(v, "json_schema");
    const json_t *schema = json_object_get(inner, "schema");
    schema = schema ? schema : json_object_get(v, "schema");
    json_t *any = json_pack("{s:s}", "type", "object");
    if (type && !strcmp(type, "json_object"))
        set_schema(a, f, name, schema ? schema : any);
    else if (!type || strcmp(type, "json_schema") != 0)
        gr_field_wrong(f, name, "%s: its type is text, json_object or json_schema", name);
    else if (!schema)
        gr_field_wrong(f, name, "%s: json_schema with a schema is expected", name);
    else
        set_schema(a, f, name, schema);
    json_decref(any);
}

static void read_grammar(struct gr_ask *a, struct gr_fields *f)
{
    const char *text = gr_field_text(f, "grammar");
    const json_t *schema = gr_field(f, "json_schema");
    bool format = gr_field(f, "response_format") != NULL;
    text = text && *text ? text : NULL;
    if ((text != NULL) + (schema != NULL) + format > 1) {
        gr_field_wrong(f, text ? "grammar" : "json_schema",
                       "one of grammar, json_schema and response_format is expected");
    } else if (schema) {
        set_schema(a, f, "json_schema", schema);
    } else if (text) {
        if (gr_grammar_gbnf(&a->grammar, a->sampler.p.model, text, strlen(text)))
            gr_field_wrong(f, "grammar", "grammar: %s", gr_error_message());
    } else {
        read_format(a, f);
    }
}

/* ---- all ---- */

static void read_lengths(struct gr_ask *a, struct gr_fields *f, const struct gr_server *s)
{
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    a->n_predict = s->options->n_predict;
    for (int i = 2; i >= 0; i--)
        a->n_predict = (int32_t)gr_field_int(f, names[i], a->n_predict, -2, INT32_MAX);
    int64_t ms = gr_field_int(f, "t_max_predict_ms", 0, -1, INT32_MAX);
    a->predict_ms = ms > 0 ? ms : 0;
    a->n = (int32_t)gr_field_int(f, "n", 1, 1, GR_ASK_CHOICES);
    int64_t seed = gr_field_int(f, "seed", -1, INT64_MIN, INT64_MAX);
    a->seed = gr_field(f, "seed") && seed != -1 ? (uint64_t)seed : gr_choose_seed(s->options);
}

static void read_stream(struct gr_ask *a, struct gr_fields *f)
{
    a->stream = gr_field_bool(f, "stream", false);
    struct gr_fields inner = {.object = gr_field_object(f, "stream_options"),
                              .within = "stream_options."};
    a->include_usage = gr_field_bool(&inner, "include_usage", false);
    gr_fields_take(f, &inner);
}

/* Self-Extend, whose window is by default the largest multiple of n that -gaw has by default. */
static void read_extend(struct gr_ask *a, struct gr_fields *f, const struct gr_server *s)
{
    struct gr_fields inner = {.object = gr_field_object(f, "self_extend"),
                              .within = "self_extend."};
    int64_t n = gr_field_int(&inner, "n", 1, 1, GR_ASK_WINDOW);
    int64_t w = gr_field_int(&inner, "w", n < 512 ? 512 / n * n : n, 1, GR_ASK_WINDOW);
    if (inner.object && !gr_field(&inner, "n"))
        gr_field_wrong(&inner, "n", "self_extend.n: how many positions become one is expected");
    else if (w % n)
        gr_field_wrong(&inner, "w", "self_extend.w: a multiple of n = %lld is expected",
                       (long long)n);
    gr_fields_take(f, &inner);
    if (n > 1 && s->no_extend)
        gr_field_wrong(f, "self_extend", "self_extend: %s", s->no_extend);
    a->extend_n = (int32_t)n, a->extend_w = (int32_t)w;
}

static void read_shift(struct gr_ask *a, struct gr_fields *f, const struct gr_server *s)
{
    struct gr_fields inner = {.object = gr_field_object(f, "context_shift"),
                              .within = "context_shift."};
    a->shifts = inner.object;
    a->keep = (int32_t)gr_field_int(&inner, "keep", 0, -1, INT32_MAX / 2);
    a->discard = (int32_t)gr_field_int(&inner, "discard", 0, 0, INT32_MAX / 2);
    gr_fields_take(f, &inner);
    if (a->shifts && s->no_shift)
        gr_field_wrong(f, "context_shift", "context_shift: %s", s->no_shift);
    else if (a->shifts && a->n_predict < 0)
        gr_field_wrong(f, "context_shift",
                       "context_shift: the length of the answer is expected, as max_tokens");
    else if (a->shifts && a->extend_n > 1)
        gr_field_wrong(f, "context_shift", "context_shift: not with self_extend");
}

void gr_ask_read(struct gr_ask *a, struct gr_fields *f, const struct gr_server *s)
{
    *a = (struct gr_ask){.n_top = -1};
    if (gr_sampler_choose(&a->sampler, s->options, s->model))
        no_memory(f);
    a->sampler.p.n_ctx = s->n_ctx;
    read_lengths(a, f, s);
    read_stream(a, f);
    read_extend(a, f, s);
    read_shift(a, f, s);
    a->reuse = (int32_t)gr_field_int(f, "n_cache_reuse", s->options->cache_reuse, 0, INT32_MAX);
    int64_t slot = gr_field_int(f, "id_slot", -1, -1, s->n_parallel - 1);
    gr_strengths_read(s->strengths, f, a->adapters);
    a->slot = slot >= 0 ? (int32_t)slot + 1 : s->n_parallel == 1; /* the only one */
    read_numbers(&a->sampler.p, f, s->n_ctx);
    read_order(&a->sampler.p, f);
    read_breakers(a, f);
    read_biases(a, f);
    read_stops(a, f);
    if (!f->wrong)
        read_grammar(a, f);
    if (!f->wrong && gr_sampler_new(&a->like, &a->sampler.p))
        gr_field_wrong(f, "", "%s", gr_error_message());
}

void gr_ask_drop(struct gr_ask *a)
{
    gr_sampler_drop(&a->sampler);
    gr_sampler_free(&a->like);
    gr_grammar_free(&a->grammar);
    *a = (struct gr_ask){0};
}

const char *gr_ask_model(struct gr_fields *f, const struct gr_server *s)
{
    const char *name = gr_field_text(f, "model");
    if (name && strlen(name) > GR_ASK_NAME_BYTES)
        gr_field_wrong(f, "model", "model: a name has at most %d bytes", GR_ASK_NAME_BYTES);
    return name && *name ? name : s->name;
}

int32_t *gr_ask_tokens(const json_t *list, int32_t n_vocab, size_t *n)
{
    size_t most = json_array_size(list);
    int32_t *ids = malloc((most + 1) * sizeof *ids);
    for (*n = 0; ids && *n < most; ++*n) {
        const json_t *id = json_array_get(list, *n);
        json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= n_vocab) {
            free(ids);
            return NULL;
        }
        ids[*n] = (int32_t)v;
    }
    return ids;
}
