/* Answers of chats as they come. */
#include "reading.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "gpurun.h"

/* A call that is not known to be one yet. */
struct call {
    char name[GR_ANSWER_MAX_NAME + 1], id[GR_ANSWER_MAX_NAME + 1];
    struct gr_writer arguments;
};

struct reading {
    struct gr_answer *answer;
    enum gr_reasoning reasoning;
    bool inside; /* of reasoning that is part of the text */
    bool several;
    gr_call_fn *call;
    int32_t n_calls;   /* complete ones */
    struct call *open; /* [n_open] that follow */
    int32_t n_open;
};

/* An id of nine letters and digits, which all templates accept. */
static void make_id(char *id)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char random[9] = {0};
    (void)!getrandom(random, sizeof random, 0);
    for (int i = 0; i < 9; i++)
        id[i] = digits[random[i] % 62];
    id[9] = 0;
}

static void begin_call(struct gr_choice *c, struct reading *r, const struct gr_answer_delta *d)
{
    struct call *open = realloc(r->open, (size_t)(r->n_open + 1) * sizeof *open);
    if (!open) {
        c->calls.failed = true;
        return;
    }
    r->open = open;
    struct call *k = &open[r->n_open++];
    *k = (struct call){0};
    snprintf(k->name, sizeof k->name, "%s", d->name);
    snprintf(k->id, sizeof k->id, "%s", d->id);
}

/* Returns the open call of a delta; NULL: memory ran out when it began. */
static struct call *call_of(const struct reading *r, const struct gr_answer_delta *d)
{
    int32_t i = d->call - r->n_calls;
    return i >= 0 && i < r->n_open ? &r->open[i] : NULL;
}

/* Passes on the first of the open calls, which is complete, unless it is one too many. */
static void end_call(struct gr_choice *c, struct reading *r)
{
    if (!r->n_open)
        return;
    struct call *k = &r->open[0];
    if (!k->arguments.n)
        gr_write(&k->arguments, "{}", 2);
    if (!*k->id)
        make_id(k->id);
    c->calls.failed |= k->arguments.failed;
    if (!k->arguments.failed && (r->several || !r->n_calls))
        r->call(c, k->name, k->id, k->arguments.p, k->arguments.n);
    gr_writer_free(&k->arguments);
    memmove(k, k + 1, (size_t)--r->n_open * sizeof *k);
    r->n_calls++;
}

static void drop_calls(struct reading *r)
{
    while (r->n_open)
        gr_writer_free(&r->open[--r->n_open].arguments);
}

/* Marks where reasoning within the text begins or ends. */
static void set_inside(struct gr_choice *c, struct reading *r, bool inside)
{
    if (r->inside != inside)
        gr_writef(&c->text, inside ? "<think>\n" : "\n</think>\n\n");
    r->inside = inside;
}

static void take_reasoning(struct gr_choice *c, struct reading *r, const struct gr_answer_delta *d)
{
    if (r->reasoning == GR_REASONING_APART) {
        gr_write(&c->reasoning, d->text, d->n);
    } else if (r->reasoning == GR_REASONING_INLINE) {
        set_inside(c, r, true);
        gr_write(&c->text, d->text, d->n);
    }
}

/* A gr_answer_fn. */
static int take_delta(const struct gr_answer_delta *d, void *user)
{
    struct gr_choice *c = user;
    struct reading *r = c->own;
    struct call *k = call_of(r, d);
    switch (d->part) {
    case GR_ANSWER_TEXT:
        set_inside(c, r, false);
        gr_write(&c->text, d->text, d->n);
        break;
    case GR_ANSWER_REASONING:
        take_reasoning(c, r, d);
        break;
    case GR_ANSWER_CALL:
        begin_call(c, r, d);
        break;
    case GR_ANSWER_ARGUMENTS:
        if (k)
            gr_write(&k->arguments, d->text, d->n);
        break;
    case GR_ANSWER_ID:
        if (k)
            snprintf(k->id, sizeof k->id, "%s", d->id);
        break;
    case GR_ANSWER_DONE:
        end_call(c, r);
        break;
    case GR_ANSWER_WITHDRAWN:
        drop_calls(r);
        break;
    }
    return 0;
}

static int begin(struct gr_choice *c, const struct gr_reading_params *params, const char *tools)
{
    struct reading *r = c->own = calloc(1, sizeof *r);
    if (!r)
        return GR_E_NOMEM_HOST;
    r->reasoning = params->reasoning, r->call = params->call, r->several = params->several;
    if (!params->format)
        return 0;
    struct gr_answer_params p = {.format = params->format,
                                 .prompt = params->prompt,
                                 .n_prompt = params->n_prompt,
                                 .tools = tools,
                                 .n_tools = tools ? strlen(tools) : 0,
                                 .no_calls = !tools,
                                 .fn = take_delta,
                                 .user = c};
    return gr_answer_new(&r->answer, &p);
}

int gr_reading_begin(struct gr_generation *g, const struct gr_reading_params *params)
{
    char *tools = params->tools ? json_dumps(params->tools, 0) : NULL;
    int rc = params->tools && !tools ? GR_E_NOMEM_HOST : 0;
    for (int32_t i = 0; i < g->n_choice && !rc; i++)
        rc = begin(&g->choice[i], params, tools);
    free(tools);
    return rc;
}

void gr_reading_free(struct gr_generation *g)
{
    for (int32_t i = 0; i < g->n_choice; i++) {
        struct reading *r = g->choice[i].own;
        if (!r)
            continue;
        gr_answer_free(&r->answer);
        drop_calls(r);
        free(r->open);
        free(r);
    }
}

void gr_reading_push(struct gr_choice *c, const char *p, size_t n)
{
    struct reading *r = c->own;
    if (!r->answer)
        gr_write(&c->text, p, n);
    else if (n && gr_answer_push(r->answer, p, n))
        c->text.failed = true;
}

void gr_reading_end(struct gr_choice *c)
{
    struct reading *r = c->own;
    if (r->answer && gr_answer_end(r->answer))
        c->text.failed = true;
}

int32_t gr_reading_calls(const struct gr_choice *c)
{
    return ((const struct reading *)c->own)->n_calls;
}
