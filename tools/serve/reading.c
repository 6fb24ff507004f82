/* Answers of chats as they come. */
#include "reading.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "gpurun.h"

struct reading {
    struct gr_answer *answer;
    enum gr_reasoning reasoning;
    bool inside; /* of reasoning that is part of the text */
    gr_call_fn *call;
    int32_t n_calls;
    /* The call that is written: */
    char name[GR_ANSWER_MAX_NAME + 1], id[GR_ANSWER_MAX_NAME + 1];
    struct gr_writer arguments;
};

/* An id of nine letters and digits, which all templates accept. */
static void make_id(char id[10])
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    unsigned char random[9] = {0};
    (void)!getrandom(random, sizeof random, 0);
    for (int i = 0; i < 9; i++)
        id[i] = digits[random[i] % 62];
    id[9] = 0;
}

static void begin_call(struct reading *r, const struct gr_answer_delta *d)
{
    r->arguments.n = 0;
    snprintf(r->name, sizeof r->name, "%s", d->name);
    snprintf(r->id, sizeof r->id, "%s", d->id);
}

static void end_call(struct gr_choice *c, struct reading *r)
{
    if (!r->arguments.n)
        gr_write(&r->arguments, "{}", 2);
    if (!*r->id)
        make_id(r->id);
    c->calls.failed |= r->arguments.failed;
    if (!r->arguments.failed)
        r->call(c, r->name, r->id, r->arguments.p, r->arguments.n);
    r->n_calls++;
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
    switch (d->part) {
    case GR_ANSWER_TEXT:
        set_inside(c, r, false);
        gr_write(&c->text, d->text, d->n);
        break;
    case GR_ANSWER_REASONING:
        take_reasoning(c, r, d);
        break;
    case GR_ANSWER_CALL:
        begin_call(r, d);
        break;
    case GR_ANSWER_ARGUMENTS:
        gr_write(&r->arguments, d->text, d->n);
        break;
    case GR_ANSWER_ID:
        snprintf(r->id, sizeof r->id, "%s", d->id);
        break;
    case GR_ANSWER_DONE:
        end_call(c, r);
        break;
    case GR_ANSWER_WITHDRAWN:
        break;
    }
    return 0;
}

static int begin(struct gr_choice *c, const struct gr_reading_params *params, const char *tools)
{
    struct reading *r = c->own = calloc(1, sizeof *r);
    if (!r)
        return GR_E_NOMEM_HOST;
    r->reasoning = params->reasoning, r->call = params->call;
    if (!params->format)
        return 0;
    struct gr_answer_params p = {.format = params->format,
                                 .prompt = params->prompt,
                                 .n_prompt = params->n_prompt,
                                 .tools = tools,
                                 .n_tools = tools ? strlen(tools) : 0,
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
        gr_writer_free(&r->arguments);
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
