/* Reads an answer and logs its deltas as one text, whatever the pieces were. */
#ifndef TESTS_HOST_ANSWER_READ_H
#define TESTS_HOST_ANSWER_READ_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "gpurun.h"
#include "gr/status.h"

enum { MOST_CALLS = 16 };

struct reading {
    struct gr_vec log; /* char: text(..)reasoning(..)call0(name,id)arguments0(..)done0 .. */
    struct gr_vec text, reasoning;
    struct gr_vec arguments[MOST_CALLS];
    char name[MOST_CALLS][GR_ANSWER_MAX_NAME + 1], id[MOST_CALLS][GR_ANSWER_MAX_NAME + 1];
    bool done[MOST_CALLS];
    int32_t n_call, n_done;
    enum gr_answer_part part; /* of the open bracket in the log */
    bool open;
};

static inline void add(struct gr_vec *v, const char *p, size_t n)
{
    cr_assert_eq(gr_vec_append(v, p, n, 1), 0);
}

static inline void add_text(struct gr_vec *v, const char *p)
{
    add(v, p, strlen(p));
}

static inline void close_log(struct reading *r)
{
    if (r->open)
        add_text(&r->log, ")");
    r->open = false;
}

/* Text of a part, after that of the same part without a word of its own. */
static inline void log_text(struct reading *r, const struct gr_answer_delta *d)
{
    char word[32];
    if (!r->open || r->part != d->part) {
        close_log(r);
        snprintf(word, sizeof word, "arguments%d(", d->call);
        add_text(&r->log, d->part == GR_ANSWER_TEXT        ? "text("
                          : d->part == GR_ANSWER_REASONING ? "reasoning("
                                                           : word);
    }
    r->open = true;
    r->part = d->part;
    add(&r->log, d->text, d->n);
}

static inline int take(const struct gr_answer_delta *d, void *user)
{
    struct reading *r = user;
    char line[2 * GR_ANSWER_MAX_NAME + 64];
    int32_t i = d->call;
    bool of_text = d->part == GR_ANSWER_TEXT || d->part == GR_ANSWER_REASONING;
    cr_assert(of_text ? i == -1 : i >= 0, "number %d", i);
    if (of_text || d->part == GR_ANSWER_ARGUMENTS) {
        cr_assert(d->n > 0, "no empty pieces");
        log_text(r, d);
        add(d->part == GR_ANSWER_TEXT        ? &r->text
            : d->part == GR_ANSWER_REASONING ? &r->reasoning
                                             : &r->arguments[i % MOST_CALLS],
            d->text, d->n);
        return 0;
    }
    close_log(r);
    if (d->part == GR_ANSWER_CALL) {
        cr_assert_eq(i, r->n_call, "calls are numbered");
        cr_assert(d->name && d->name[0] && d->id, "a call has a name");
        snprintf(line, sizeof line, "call%d(%s,%s)", i, d->name, d->id);
        snprintf(r->name[i % MOST_CALLS], sizeof r->name[0], "%s", d->name);
        snprintf(r->id[i % MOST_CALLS], sizeof r->id[0], "%s", d->id);
        r->arguments[i % MOST_CALLS].n = 0;
        r->n_call++;
    } else if (d->part == GR_ANSWER_ID) {
        snprintf(line, sizeof line, "id%d(%s)", i, d->id);
        snprintf(r->id[i % MOST_CALLS], sizeof r->id[0], "%s", d->id);
    } else if (d->part == GR_ANSWER_DONE) {
        cr_assert_eq(i, r->n_done, "calls are done in order");
        snprintf(line, sizeof line, "done%d", i);
        r->n_done++;
    } else {
        cr_assert_eq(i, r->n_done, "what is done is not withdrawn");
        snprintf(line, sizeof line, "withdrawn%d", i);
        r->n_call = i;
    }
    add_text(&r->log, line);
    return 0;
}

static inline void reading_fini(struct reading *r)
{
    gr_vec_fini(&r->log);
    gr_vec_fini(&r->text);
    gr_vec_fini(&r->reasoning);
    for (int i = 0; i < MOST_CALLS; i++)
        gr_vec_fini(&r->arguments[i]);
}

/* Reads n bytes in pieces of at most `piece` bytes, whose lengths are drawn when there is a
 * generator. tools: NULL: some, of which nothing is said; "": none. */
static inline void read_answer(struct reading *r, const char *format, const char *prompt,
                               const char *tools, const char *p, size_t n, size_t piece,
                               struct gr_rng *rng)
{
    struct gr_answer_params params = {.format = format, .fn = take, .user = r};
    struct gr_answer *a;
    *r = (struct reading){0};
    params.prompt = prompt, params.n_prompt = prompt ? strlen(prompt) : 0;
    tools = tools ? tools : "[]";
    params.tools = *tools ? tools : NULL, params.n_tools = strlen(tools);
    cr_assert_eq(gr_answer_new(&a, &params), 0, "%s", gr_error());
    for (size_t at = 0; at < n;) {
        size_t length = rng ? 1 + gr_rng_below(rng, (uint32_t)piece) : piece;
        length = length < n - at ? length : n - at;
        cr_assert_eq(gr_answer_push(a, p + at, length), 0, "%s", gr_error());
        at += length;
    }
    cr_assert_eq(gr_answer_end(a), 0, "%s", gr_error());
    close_log(r);
    add(&r->log, "", 1);
    cr_assert_eq(r->n_call, r->n_done, "at the end every call is done or withdrawn");
    gr_answer_free(&a);
}

/* Reads it whole, by bytes, and in random pieces, and expects the same each time. */
static inline void read_in_all_ways(struct reading *r, const char *format, const char *prompt,
                                    const char *tools, const char *p, size_t n)
{
    struct gr_rng rng = gr_rng_new(n);
    read_answer(r, format, prompt, tools, p, n, n + 1, NULL);
    for (int i = 0; i < 8; i++) {
        struct reading other;
        read_answer(&other, format, prompt, tools, p, n, i ? (size_t)1 << (i % 6) : 1,
                    i ? &rng : NULL);
        cr_assert_str_eq((char *)other.log.data, (char *)r->log.data, "%s, way %d", format, i);
        reading_fini(&other);
    }
}

#endif
