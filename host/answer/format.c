/* The table of formats, and which one a chat template asks for. */
#include "answer/format.h"

#include <string.h>

#include "base/checked.h"
#include "gpurun.h"

static const struct gr_format_row row[] = {
#define FORMAT(name, signs, models)                                                                \
    {.kind = GR_MARK_FORMAT, .text = name, .more = signs, .about = models},
#define CALL(pattern) {.kind = GR_MARK_CALL, .text = pattern},
#define SKIP(mark) {.kind = GR_MARK_SKIP, .text = mark},
#define REASONING(open, close) {.kind = GR_MARK_REASONING, .text = open, .more = close},
#define WRITE(...) {.kind = GR_MARK_WRITE, .writing = {__VA_ARGS__}},
#include "answer/format.def"
#undef FORMAT
#undef CALL
#undef SKIP
#undef REASONING
#undef WRITE
};

/* The row of the i-th format, NULL past the last one. */
static const struct gr_format_row *find_format(int32_t i)
{
    for (size_t k = 0; k < GR_COUNT(row) && i >= 0; k++)
        if (row[k].kind == GR_MARK_FORMAT && !i--)
            return &row[k];
    return NULL;
}

const char *gr_answer_known(int32_t i, const char **about)
{
    const struct gr_format_row *f = find_format(i);
    if (about)
        *about = f ? f->about : NULL;
    return f ? f->text : NULL;
}

static bool has_signs(const char *signs, const char *text, size_t n)
{
    bool all = true;
    while (*signs && all) {
        size_t length = strcspn(signs, " ");
        all = memmem(text, n, signs, length) != NULL;
        signs += length + (signs[length] == ' ');
    }
    return all;
}

const char *gr_answer_format(const char *template_text, size_t n)
{
    const struct gr_format_row *f = find_format(0);
    for (int32_t i = 1; !has_signs(f->more, template_text, n); i++)
        f = find_format(i); /* the last one has no signs */
    return f->text;
}

static void add_mark(const struct gr_format_row *r, struct gr_mark *m)
{
    *m = (struct gr_mark){.kind = r->kind, .text = r->text, .rest = r->more};
    if (r->kind == GR_MARK_CALL) {
        m->first = !strncmp(r->text, "%^", 2);
        m->text += m->first ? 2 : 0;
        m->n = strcspn(m->text, "%");
        m->rest = m->text + m->n;
    } else {
        m->first = r->kind == GR_MARK_REASONING;
        m->n = strlen(m->text);
    }
}

/* Returns whether a mark to drop is one around calls: it is part of what a grammar has written. */
static bool is_around_calls(const struct gr_format_row *r, const struct gr_writing *w)
{
    return r->kind == GR_MARK_SKIP && w &&
           (strstr(w->open, r->text) || strstr(w->call, r->text) || strstr(w->close, r->text));
}

int32_t gr_format_marks(const char *name, bool calls, struct gr_mark *mark)
{
    const struct gr_writing *w = calls ? NULL : gr_format_writing(name);
    int32_t n = 0;
    bool ours = true, found = false; /* rows above the first format belong to all */
    for (size_t i = 0; i < GR_COUNT(row); i++) {
        if (row[i].kind == GR_MARK_FORMAT) {
            ours = !strcmp(row[i].text, name);
            found = found || ours;
        } else if (ours && row[i].kind != GR_MARK_WRITE && !is_around_calls(&row[i], w) &&
                   n < GR_MAX_MARK) {
            add_mark(&row[i], &mark[n++]);
        }
    }
    return found ? n : -1;
}

const struct gr_mark *gr_format_opened(const struct gr_mark *mark, int32_t n_mark, const char *p,
                                       size_t n, size_t *n_blank)
{
    const struct gr_mark *found = NULL;
    size_t end = n;
    while (end && strchr(" \n\r\t", p[end - 1]) && p[end - 1])
        end--;
    *n_blank = n - end;
    for (int32_t i = 0; i < n_mark; i++)
        if (mark[i].n && mark[i].n <= end && (!found || mark[i].n > found->n) &&
            !memcmp(p + end - mark[i].n, mark[i].text, mark[i].n))
            found = &mark[i];
    return found;
}

const struct gr_writing *gr_format_writing(const char *name)
{
    bool ours = false;
    for (size_t i = 0; i < GR_COUNT(row) && name; i++) {
        if (row[i].kind == GR_MARK_FORMAT)
            ours = !strcmp(row[i].text, name);
        else if (ours && row[i].kind == GR_MARK_WRITE)
            return &row[i].writing;
    }
    return NULL;
}

/* ---- alternatives of patterns ---- */

const char *gr_pattern_first(const char *p)
{
    return p + 2;
}

/* The next %| (or only %}) of the alternatives that p stands within. */
static const char *find_end(const char *p, bool last)
{
    for (int depth = 0; *p; p++) {
        if (*p != '%')
            continue;
        p++;
        depth += *p == '{';
        if (!depth && (*p == '}' || (*p == '|' && !last)))
            return p - 1;
        depth -= *p == '}';
    }
    return p;
}

const char *gr_pattern_next(const char *p)
{
    p = find_end(p, false);
    return p[0] && p[1] == '|' ? p + 2 : NULL;
}

const char *gr_pattern_behind(const char *p)
{
    p = find_end(p, true);
    return *p ? p + 2 : p;
}
