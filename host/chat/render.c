/* A render, from context to result. */
#include <locale.h>
#include <string.h>

#include "chat/json.h"
#include "chat/run.h"
#include "gr/status.h"

/* Copies the output and its marks as spans. */
static int give(struct gr_render *r, struct gr_prompt *prompt)
{
    const struct gr_text *t = r->out;
    struct gr_vec spans = {0};
    int rc = 0;
    for (size_t i = 0, end; t->mark && i < t->n && !rc; i = end) {
        for (end = i; end < t->n && t->mark[end] == t->mark[i];)
            end++;
        struct gr_text_span span = {i, end};
        if (t->mark[i])
            rc = gr_vec_append(&spans, &span, 1, sizeof span);
    }
    char *text = rc ? NULL : gr_strndup(t->n ? t->p : "", t->n);
    if (!text) {
        gr_vec_fini(&spans);
        return GR_E_NOMEM_HOST;
    }
    *prompt = (struct gr_prompt){text, t->n, spans.data, spans.n};
    return 0;
}

int gr_template_render(const struct gr_template *t, const char *context, size_t n, int64_t now,
                       struct gr_prompt *prompt)
{
    *prompt = (struct gr_prompt){0};
    struct gr_render *r = gr_calloc(1, sizeof *r);
    if (!r)
        return GR_E_NOMEM_HOST;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), was = uselocale(c);
    struct gr_text text = {0};
    r->prog = t, r->now = now, r->out = &text;
    r->find_method = gr_method_find, r->find_filter = gr_filter_find;
    r->context = gr_context_read(r, context, n);
    r->scope = gr_scope_new(r, NULL);
    if (!r->rc)
        gr_run(r);
    int rc = r->rc ? r->rc : give(r, prompt);
    uselocale(was);
    if (c)
        freelocale(c);
    gr_arena_fini(&r->mem);
    gr_free(r);
    return rc;
}

void gr_prompt_free(struct gr_prompt *prompt)
{
    if (!prompt)
        return;
    gr_free(prompt->text);
    gr_free(prompt->input);
    *prompt = (struct gr_prompt){0};
}
