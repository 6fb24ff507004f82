/* An answer is read byte by byte: text, in which marks are looked for; reasoning, up to its closing
 * mark; calls (call.c). */
#include "answer/answer.h"

#include <string.h>

#include "base/checked.h"
#include "gr/status.h"

/* ---- modes ---- */

static void begin_text(struct gr_answer *a, bool behind_block)
{
    a->mode = GR_MODE_TEXT;
    a->held.n = a->n_blank = 0;
    a->first = a->drop_blanks = behind_block;
    for (int32_t i = 0; i < a->n_mark; i++)
        a->finder[i].at = 0;
}

static void begin_reasoning(struct gr_answer *a, const char *close)
{
    a->mode = GR_MODE_REASONING;
    a->n_given = 0;
    a->held.n = a->n_blank = 0;
    a->drop_blanks = true;
    gr_finder_set(&a->close, close, strlen(close));
}

/* Begins a call with what is held as the beginning of its text; mark: -1: a bare call. */
static void begin_call(struct gr_answer *a, const char *rest, int32_t mark)
{
    a->mode = GR_MODE_CALL;
    a->call_mark = mark;
    a->n_opening = a->held.n;
    a->raw.n = 0;
    int rc = gr_vec_append(&a->raw, a->held.data, a->held.n, 1);
    a->rc = a->rc ? a->rc : rc;
    a->held.n = 0;
    gr_call_begin(a, rest);
}

/* Gives n bytes that were held back, without blanks between them and a block. */
static void release(struct gr_answer *a, enum gr_answer_part part, size_t n)
{
    const char *p = a->held.data;
    size_t skip = 0;
    if (!n)
        return;
    while (a->drop_blanks && skip < n && gr_is_blank(p[skip]))
        skip++;
    if (skip < n)
        a->drop_blanks = a->first = false;
    gr_answer_give(a, part, p + skip, n - skip);
    a->held.n -= n;
    if (a->held.n)
        memmove(a->held.data, p + n, a->held.n);
}

/* Gives what is held but for the last n_mark bytes and the blanks before them. */
static void release_before(struct gr_answer *a, enum gr_answer_part part, size_t n_mark)
{
    const char *p = a->held.data;
    size_t end = a->held.n - n_mark, last = end;
    while (last > a->n_blank && gr_is_blank(p[last - 1]))
        last--;
    if (last > a->n_blank)
        release(a, part, last), end -= last;
    a->n_blank = end;
}

/* ---- bytes ---- */

/* The mark that a byte completes, or -1; *n: bytes at the end that are or may become a mark. */
static int32_t find_mark(struct gr_answer *a, char c, size_t *n)
{
    int32_t found = -1;
    *n = 0;
    for (int32_t i = 0; i < a->n_mark; i++) {
        struct gr_finder *f = &a->finder[i];
        if (!gr_finder_put(f, c) && !f->at)
            continue;
        if (a->mark[i].first && !(a->first && a->held.n - f->at <= a->n_blank))
            continue;
        if (f->at == f->n && (found < 0 || f->n > a->finder[found].n))
            found = i;
        *n = GR_MAX(*n, f->at);
    }
    if (found >= 0)
        *n = a->finder[found].n;
    return found;
}

/* The call that begins with an object, without a mark; NULL: none. Without tools it is an answer in
 * JSON. */
static const char *find_bare_call(const struct gr_answer *a, char c)
{
    bool here =
        a->types && !a->no_calls && a->first && a->held.n == a->n_blank && (c == '{' || c == '[');
    for (int32_t i = 0; i < a->n_mark && here; i++)
        if (a->mark[i].kind == GR_MARK_CALL && !a->mark[i].n)
            return a->mark[i].rest;
    return NULL;
}

/* Reads a byte; false: the mode has changed, and it is still to be read. */
static bool put_text(struct gr_answer *a, char c)
{
    size_t n_mark;
    const char *bare = find_bare_call(a, c);
    if (bare) {
        begin_call(a, bare, -1);
        return false;
    }
    int rc = gr_vec_append(&a->held, &c, 1, 1);
    a->rc = a->rc ? a->rc : rc;
    if (a->rc)
        return true;
    int32_t i = find_mark(a, c, &n_mark);
    release_before(a, GR_ANSWER_TEXT, n_mark);
    if (i < 0)
        return true;
    const struct gr_mark *m = &a->mark[i];
    if (m->kind == GR_MARK_CALL)
        begin_call(a, m->rest, i);
    else if (m->kind == GR_MARK_REASONING)
        begin_reasoning(a, m->rest);
    else
        a->n_given = 0, begin_text(a, true);
    return true;
}

static void put_reasoning(struct gr_answer *a, char c)
{
    int rc = gr_vec_append(&a->held, &c, 1, 1);
    a->rc = a->rc ? a->rc : rc;
    if (a->rc)
        return;
    bool found = gr_finder_put(&a->close, c);
    release_before(a, GR_ANSWER_REASONING, a->close.at);
    if (found)
        begin_text(a, true);
}

/* The calls that were read are complete. */
static void finish_calls(struct gr_answer *a)
{
    gr_answer_flush(a);
    for (; a->n_open; a->n_open--)
        gr_answer_call_back(a,
                            &(struct gr_answer_delta){.part = GR_ANSWER_DONE, .call = a->n_done++});
    a->n_given = 0;
    begin_text(a, true);
}

/* Bytes of a mark without a call that may begin the same mark again: ">>" of ">>>" before ">". */
static size_t find_overlap(const struct gr_answer *a)
{
    if (a->call_mark < 0 || a->raw.n != a->n_opening)
        return 0;
    const struct gr_finder *f = &a->finder[a->call_mark];
    return f->border[f->n - 1];
}

/* There was no call: gives its text. */
static void withdraw(struct gr_answer *a)
{
    size_t skip = 0;
    const char *p = a->raw.data;
    gr_answer_flush(a);
    if (a->n_open)
        gr_answer_call_back(
            a, &(struct gr_answer_delta){.part = GR_ANSWER_WITHDRAWN, .call = a->n_done});
    a->n_open = 0;
    while (a->drop_blanks && skip < a->raw.n && gr_is_blank(p[skip]))
        skip++;
    size_t overlap = find_overlap(a);
    gr_answer_give(a, GR_ANSWER_TEXT, p + skip, a->raw.n - skip - overlap);
    begin_text(a, false);
    if (overlap) {
        int rc = gr_vec_append(&a->held, p + a->raw.n - overlap, overlap, 1);
        a->rc = a->rc ? a->rc : rc;
        a->finder[a->call_mark].at = overlap;
    }
    a->raw.n = 0;
}

static bool put_call(struct gr_answer *a, char c)
{
    int r = gr_call_put(a, c);
    if (r < 0 && !a->rc) {
        withdraw(a);
        return false;
    }
    int rc = gr_vec_append(&a->raw, &c, 1, 1);
    a->rc = a->rc ? a->rc : rc;
    if (r > 0 && !a->rc)
        finish_calls(a);
    return true;
}

static bool put(struct gr_answer *a, char c)
{
    if (a->mode == GR_MODE_TEXT)
        return put_text(a, c);
    if (a->mode == GR_MODE_CALL)
        return put_call(a, c);
    put_reasoning(a, c);
    return true;
}

static void put_all(struct gr_answer *a, const char *p, size_t n)
{
    for (size_t i = 0; i < n && !a->rc;)
        i += put(a, p[i]);
}

/* ---- the interface ---- */

/* Begins as the end of the prompt says: within reasoning, or behind the mark of a call. */
static void read_prompt(struct gr_answer *a, const char *p, size_t n)
{
    size_t n_blank;
    const struct gr_mark *mark = gr_format_opened(a->mark, a->n_mark, p, n, &n_blank);
    if (!mark || mark->kind == GR_MARK_SKIP)
        return;
    if (mark->kind == GR_MARK_REASONING) {
        begin_reasoning(a, mark->rest);
        return;
    }
    a->n_given = mark->n + n_blank;
    put_all(a, mark->text, mark->n);
    put_all(a, p + n - n_blank, n_blank);
}

/* Adds the parameters of a tool, of several of the same name those of the first. */
static bool add_type(json_t *types, json_t *tool)
{
    json_t *function = json_object_get(tool, "function");
    function = function ? function : tool;
    const char *name = json_string_value(json_object_get(function, "name"));
    if (!name || json_object_get(types, name))
        return true;
    json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
    return !json_object_set(types, name, properties ? properties : json_null());
}

static int read_tools(struct gr_answer *a, const char *p, size_t n)
{
    json_error_t e;
    json_t *tools = json_loadb(p, n, 0, &e);
    int rc = 0;
    if (!tools && json_error_code(&e) != json_error_out_of_memory)
        return gr_fail(GR_E_INVALID, "tools, line %d, column %d: %s", e.line, e.column,
                       gr_one_line(e.text));
    if (tools && !json_is_array(tools))
        rc = gr_fail(GR_E_INVALID, "tools: a JSON array is expected");
    a->types = json_object();
    bool fine = tools && a->types;
    for (size_t i = 0; i < json_array_size(tools) && fine; i++)
        fine = add_type(a->types, json_array_get(tools, i));
    json_decref(tools);
    return rc || fine ? rc : gr_fail(GR_E_NOMEM_HOST, "tools: out of host memory");
}

int gr_answer_new(struct gr_answer **out, const struct gr_answer_params *params)
{
    *out = NULL;
    struct gr_answer *a = gr_calloc(1, sizeof *a);
    if (!a)
        return GR_E_NOMEM_HOST;
    a->fn = params->fn;
    a->user = params->user;
    a->no_calls = params->no_calls;
    a->n_mark = gr_format_marks(params->format, !a->no_calls, a->mark);
    if (a->n_mark < 0)
        a->rc = gr_fail(GR_E_INVALID, "format of answers %s: there is none of this name",
                        gr_quote(params->format, strlen(params->format)));
    for (int32_t i = 0; i < a->n_mark; i++)
        gr_finder_set(&a->finder[i], a->mark[i].text, a->mark[i].n);
    if (!a->rc && params->tools)
        a->rc = read_tools(a, params->tools, params->n_tools);
    a->first = true;
    if (!a->rc && params->prompt)
        read_prompt(a, params->prompt, params->n_prompt);
    int rc = a->rc;
    if (rc)
        gr_answer_free(&a);
    *out = a;
    return rc;
}

int gr_answer_push(struct gr_answer *a, const char *p, size_t n)
{
    if (a->ended)
        return gr_fail(GR_E_INVALID, "the answer has ended");
    put_all(a, p, n);
    gr_answer_flush(a);
    return a->rc;
}

int gr_answer_end(struct gr_answer *a)
{
    if (a->ended || a->rc)
        return a->rc;
    a->ended = true;
    if (a->mode == GR_MODE_CALL && gr_call_end(a))
        finish_calls(a);
    else if (a->mode == GR_MODE_CALL)
        withdraw(a);
    release(a, a->mode == GR_MODE_REASONING ? GR_ANSWER_REASONING : GR_ANSWER_TEXT, a->held.n);
    gr_answer_flush(a);
    return a->rc;
}

void gr_answer_free(struct gr_answer **answer)
{
    struct gr_answer *a = answer ? *answer : NULL;
    if (!a)
        return;
    json_decref(a->types);
    gr_call_fini(&a->call);
    gr_vec_fini(&a->held);
    gr_vec_fini(&a->raw);
    gr_vec_fini(&a->run);
    gr_free(a);
    *answer = NULL;
}
