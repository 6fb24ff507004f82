/* Any bytes as an answer, the first of which choose its format, prompt and pieces: what is read
 * does not depend on the pieces; every call is done or withdrawn, in
 * order; memory is linear and given back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "gpurun.h"
#include "gr/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "broken promise: %s: %s\n", what, gr_error_message());
    abort();
}

struct reading {
    struct gr_vec
        text; /* char: of texts that are not withdrawn, with the part before each change */
    enum gr_answer_part part;
    int32_t n_call, n_done;
};

static void add(struct gr_vec *v, const char *p, size_t n)
{
    must(!gr_vec_append(v, p, n, 1), "memory");
}

static int take(const struct gr_answer_delta *d, void *user)
{
    struct reading *r = user;
    char part = (char)('0' + (int)d->part);
    if (d->part != r->part || (d->part != GR_ANSWER_TEXT && d->part != GR_ANSWER_REASONING &&
                               d->part != GR_ANSWER_ARGUMENTS))
        add(&r->text, &part, 1);
    r->part = d->part;
    add(&r->text, d->text, d->n);
    if (d->name)
        add(&r->text, d->name, strlen(d->name));
    if (d->part == GR_ANSWER_CALL)
        must(d->call == r->n_call++ && d->name[0], "numbers of calls, names");
    if (d->part == GR_ANSWER_DONE)
        must(d->call == r->n_done++, "numbers of calls that are done");
    if (d->part == GR_ANSWER_WITHDRAWN)
        must(d->call == r->n_done && r->n_call > d->call, "what is done is not withdrawn");
    if (d->part == GR_ANSWER_WITHDRAWN)
        r->n_call = d->call;
    return 0;
}

static void read_answer(struct reading *r, const struct gr_answer_params *params, const char *p,
                        size_t n, size_t piece)
{
    struct gr_answer *a;
    struct gr_answer_params of = *params;
    of.fn = take, of.user = r;
    must(!gr_answer_new(&a, &of), "a format that is known");
    for (size_t at = 0; at < n; at += piece)
        must(!gr_answer_push(a, p + at, n - at < piece ? n - at : piece), "any bytes are read");
    must(!gr_answer_end(a), "any bytes are an answer");
    must(r->n_call == r->n_done, "calls are done or withdrawn");
    gr_answer_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char *const prompts[] = {NULL, "<think>\n", ">>>", "<tool_call>\n"};
    static const char tools[] =
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": "
        "{\"a\": {\"type\": \"string\"}}}}}]";
    struct reading whole = {0}, cut = {0};
    int32_t n_format = 0;
    size_t peak, before = gr_alloc_held(&peak);
    if (n < 2)
        return 0;
    while (gr_answer_known(n_format, NULL))
        n_format++;
    struct gr_answer_params params = {.format = gr_answer_known(p[0] % n_format, NULL),
                                      .prompt = prompts[p[1] & 3],
                                      .tools = p[1] & 4 ? tools : NULL,
                                      .n_tools = sizeof tools - 1,
                                      .no_calls = p[1] & 128};
    params.n_prompt = params.prompt ? strlen(params.prompt) : 0;
    read_answer(&whole, &params, (const char *)p + 2, n - 2, n);
    read_answer(&cut, &params, (const char *)p + 2, n - 2, 1 + (p[1] >> 3) % 7);
    must(whole.text.n == cut.text.n &&
             (!cut.text.n || !memcmp(whole.text.data, cut.text.data, cut.text.n)),
         "pieces do not matter");
    gr_vec_fini(&whole.text);
    gr_vec_fini(&cut.text);
    gr_alloc_held(&peak);
    must(peak - before <= 64 * n + 65536, "memory is linear");
    must(gr_alloc_held(NULL) == before, "all memory is given back");
    return 0;
}
