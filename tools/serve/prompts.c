/* Prompts of requests. */
#include "prompts.h"

#include <stdlib.h>
#include <string.h>

#include "gpurun.h"
#include "sessions.h"

/* ---- texts and tokens ---- */

static void add_text(struct gr_generation *g, struct gr_fields *f, const json_t *text)
{
    int32_t *ids = NULL;
    size_t n = 0;
    bool begins = !g->session || !gr_chat_session_length(g->session);
    if (gr_text_tokenize(g->server->model, json_string_value(text), json_string_length(text),
                         begins, true, &ids, &n))
        gr_field_wrong(f, "prompt", "prompt: %s", gr_error_message());
    else
        gr_generation_add(g, f, ids, n);
    gr_free_ids(ids);
}

static void add_tokens(struct gr_generation *g, struct gr_fields *f, const json_t *list)
{
    size_t n = 0;
    int32_t *ids = gr_ask_tokens(list, g->ask.sampler.p.n_vocab, &n);
    if (ids)
        gr_generation_add(g, f, ids, n);
    else
        gr_field_wrong(f, "prompt", "prompt: tokens are numbers from 0 to %d",
                       g->ask.sampler.p.n_vocab - 1);
    free(ids);
}

/* A text or a list of tokens. */
static void add_prompt(struct gr_generation *g, struct gr_fields *f, const json_t *v)
{
    if (json_is_string(v))
        add_text(g, f, v);
    else if (json_is_array(v))
        add_tokens(g, f, v);
    else
        gr_field_wrong(f, "prompt", "prompt: a text, a list of tokens, or a list of these");
}

void gr_prompts_read(struct gr_generation *g, struct gr_fields *f)
{
    const json_t *v = gr_field(f, "prompt"), *one;
    size_t i;
    if (!json_is_array(v) || json_is_integer(json_array_get(v, 0))) {
        add_prompt(g, f, v);
        return;
    }
    if (!json_array_size(v) || json_array_size(v) > GR_ASK_TEXTS)
        gr_field_wrong(f, "prompt", "prompt: 1 to %d prompts", GR_ASK_TEXTS);
    json_array_foreach(v, i, one)
    {
        if (!f->wrong)
            add_prompt(g, f, one);
    }
}

/* ---- texts with a gap ---- */

enum { PREFIX, SUFFIX, MIDDLE };

/* Names of the tokens in front of the parts, of the families of models that have them. */
static const char *const known[][3] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>"},
    {"<PRE>", "<SUF>", "<MID>"},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81hole\xef\xbd\x9c>",
     "<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>"},
    {"[PREFIX]", "[SUFFIX]", "[MIDDLE]"},
};

/* Returns the control token of this name, -1: there is none. */
static int32_t token_of(const struct gr_model *model, const char *name)
{
    int32_t *ids = NULL, id = -1;
    size_t n = 0, n_plain = 0, n_piece = 0;
    const char *piece, *plain;
    if (!gr_text_tokenize(model, name, strlen(name), false, true, &ids, &n) && n == 1 &&
        !gr_text_piece(model, ids[0], true, &piece, &n_piece) &&
        !gr_text_piece(model, ids[0], false, &plain, &n_plain) && n_piece == strlen(name) &&
        !memcmp(piece, name, n_piece) && !n_plain)
        id = ids[0];
    gr_free_ids(ids);
    return id;
}

static bool find_tokens(const struct gr_model *model, int32_t id[3])
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int k = 0;
        while (k < 3 && (id[k] = token_of(model, known[i][k])) >= 0)
            k++;
        if (k == 3)
            return true;
    }
    return false;
}

bool gr_prompts_can_infill(const struct gr_model *model)
{
    int32_t id[3];
    return find_tokens(model, id);
}

/* Appends the tokens of a text, in which no control token is recognised. */
static bool append(const struct gr_model *model, int32_t **ids, size_t *n, const char *text,
                   size_t n_text)
{
    int32_t *more = NULL;
    size_t n_more = 0;
    if (gr_text_tokenize(model, text, n_text, false, false, &more, &n_more))
        return false;
    int32_t *all = realloc(*ids, (*n + n_more + 3) * sizeof *all);
    if (all && n_more)
        memcpy(all + *n, more, n_more * sizeof *all);
    gr_free_ids(more);
    if (!all)
        return false;
    *ids = all, *n += n_more;
    return true;
}

/* Begins as the model wants texts to begin. */
static bool begin(const struct gr_model *model, int32_t **ids, size_t *n)
{
    int32_t *special = NULL, bos = gr_text_bos(model);
    size_t n_special = 0;
    bool good = append(model, ids, n, "", 0) &&
                !gr_text_tokenize(model, "", 0, true, false, &special, &n_special);
    if (good && n_special && special[0] == bos)
        (*ids)[(*n)++] = bos;
    gr_free_ids(special);
    return good;
}

void gr_prompts_infill(struct gr_generation *g, struct gr_fields *f, const char *prefix,
                       const char *suffix)
{
    const struct gr_model *model = g->server->model;
    const char *const names[] = {prefix, suffix};
    int32_t id[3], *ids = NULL;
    size_t n = 0;
    if (!find_tokens(model, id)) {
        gr_field_wrong(f, suffix, "the model has no tokens for filling in a gap");
        return;
    }
    bool good = begin(model, &ids, &n);
    for (int i = 0; i < 2 && good; i++) {
        ids[n++] = id[i];
        const char *text = gr_field_text(f, names[i]);
        size_t n_text = text ? json_string_length(gr_field(f, names[i])) : 0;
        good = append(model, &ids, &n, text ? text : "", n_text);
    }
    if (good) {
        ids[n++] = id[MIDDLE];
        gr_generation_add(g, f, ids, n);
    } else {
        gr_field_wrong(f, prefix, "%s", gr_error_message());
    }
    free(ids);
}
