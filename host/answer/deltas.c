/* Deltas of an answer, and pieces that its readers share: string finders, copies of names. */
#include <string.h>

#include "answer/answer.h"
#include "base/checked.h"

/* ---- finders ---- */

static void step(struct gr_finder *f, char c)
{
    while (f->at && (f->at == f->n || f->text[f->at] != c))
        f->at = f->border[f->at - 1];
    f->at += f->text[f->at] == c;
}

void gr_finder_set(struct gr_finder *f, const char *text, size_t n)
{
    *f = (struct gr_finder){.text = text, .n = GR_MIN(n, (size_t)GR_FINDER_MAX)};
    for (size_t i = 1; i < f->n; i++) {
        step(f, text[i]);
        f->border[i] = (uint8_t)f->at;
    }
    f->at = 0;
}

bool gr_finder_put(struct gr_finder *f, char c)
{
    if (f->n)
        step(f, c);
    return f->n && f->at == f->n;
}

/* ---- deltas ---- */

void gr_answer_call_back(struct gr_answer *a, const struct gr_answer_delta *delta)
{
    if (!a->rc)
        a->rc = a->fn(delta, a->user);
}

static int32_t last_call(const struct gr_answer *a)
{
    return a->n_done + a->n_open - 1;
}

void gr_answer_flush(struct gr_answer *a)
{
    bool arguments = a->run_part == GR_ANSWER_ARGUMENTS;
    if (a->run.n)
        gr_answer_call_back(a, &(struct gr_answer_delta){.part = a->run_part,
                                                         .call = arguments ? last_call(a) : -1,
                                                         .text = a->run.data,
                                                         .n = a->run.n});
    a->run.n = 0;
}

void gr_answer_give(struct gr_answer *a, enum gr_answer_part part, const char *p, size_t n)
{
    if (part == GR_ANSWER_TEXT && a->n_given) { /* what is the prompt's is not the answer's */
        size_t given = GR_MIN(n, a->n_given);
        a->n_given -= given, p += given, n -= given;
    }
    if (!n || (part == GR_ANSWER_ARGUMENTS && a->call.unwanted))
        return;
    if (a->run_part != part)
        gr_answer_flush(a);
    a->run_part = part;
    int rc = gr_vec_append(&a->run, p, n, 1);
    a->rc = a->rc ? a->rc : rc;
}

void gr_answer_begin_call(struct gr_answer *a)
{
    a->call.unwanted |= a->no_calls;
    if (a->call.begun || a->call.unwanted)
        return;
    gr_answer_flush(a);
    a->call.begun = true;
    a->n_open++;
    gr_answer_call_back(a, &(struct gr_answer_delta){.part = GR_ANSWER_CALL,
                                                     .call = last_call(a),
                                                     .name = a->call.name,
                                                     .id = a->call.id});
}

void gr_answer_give_id(struct gr_answer *a)
{
    gr_answer_flush(a);
    gr_answer_call_back(
        a, &(struct gr_answer_delta){.part = GR_ANSWER_ID, .call = last_call(a), .id = a->call.id});
}

/* ---- names ---- */

bool gr_call_copy(char *to, size_t *n_to, const char *p, size_t n)
{
    if (!n || n > GR_ANSWER_MAX_NAME)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)p[i] < 0x20)
            return false;
    memcpy(to, p, n);
    to[n] = 0;
    *n_to = n;
    return true;
}
