#include "text/pre.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/text.h"
#include "gr/status.h"
#include "text/utf8.h"

#define MAX_STEP 6
#define MATCH_LIMIT 100000000  /* backtracking steps for one match; 8 more per byte */
#define HEAP_LIMIT (64 * 1024) /* KiB for one match by the interpreter */
#define JIT_STACK_MIN (32 * 1024)
#define JIT_STACK_MAX (16 * 1024 * 1024)

struct def {
    const char *name;
    const char *step[MAX_STEP + 1];
    unsigned flags;
};

#include "text/pre.def"
/* clang-format off */
#define STEPS(...) {__VA_ARGS__}
/* clang-format on */
static const struct def defs[] = {
#define PRE(name, steps, flags) {name, steps, flags},
#include "text/pre.def"
};

struct gr_pre {
    const struct def *def;
    pcre2_general_context *memory;
    pcre2_code *code[MAX_STEP]; /* NULL for a step that is not a regular expression */
};

const char *gr_pre_name(size_t i)
{
    return i < GR_COUNT(defs) ? defs[i].name : NULL;
}

unsigned gr_pre_flags(const struct gr_pre *pre)
{
    return pre->def->flags;
}

/* --- opening --- */

static void *take(size_t n, void *user)
{
    (void)user;
    return gr_realloc(NULL, n, 1);
}

static void give(void *p, void *user)
{
    (void)user;
    gr_free(p);
}

/* Returns the expression with \s and \S expanded, because PCRE2 counts U+180E as white space, which
 * it has not been since Unicode 6.3. NULL when there is no memory; free with gr_free. */
static char *spell_out(const char *regex)
{
    static const char set[] = "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}"
                              "\\x{202F}\\x{205F}\\x{3000}";
    bool class = false;
    size_t n = 0, longest = sizeof set + 3;
    char *out = gr_calloc(strlen(regex), longest);
    for (const char *p = regex; out && *p; p++) {
        if (*p != '\\') {
            class = *p == '[' || (class && *p != ']');
            out[n++] = *p;
        } else if (*++p == 's' || *p == 'S') {
            const char *form = class ? "%s" : *p == 's' ? "[%s]" : "[^%s]";
            n += (size_t)snprintf(out + n, longest, form, set);
        } else {
            out[n++] = '\\', out[n++] = *p;
        }
    }
    return out;
}

static int compile(struct gr_pre *p, int i, const char *regex)
{
    int error;
    size_t at;
    pcre2_compile_context *ctx = pcre2_compile_context_create(p->memory);
    char *text = ctx ? spell_out(regex) : NULL;
    if (text)
        p->code[i] = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &at, ctx);
    gr_free(text);
    pcre2_compile_context_free(ctx);
    if (!text)
        return GR_E_NOMEM_HOST;
    if (!p->code[i] && error == PCRE2_ERROR_HEAP_FAILED)
        return GR_E_NOMEM_HOST;
    if (!p->code[i])
        return gr_fail(GR_E_INTERNAL,
                       "pre-tokenizer \"%s\", step %d: PCRE2 error %d at offset %zu of %s",
                       p->def->name, i, error, at, regex);
    /* Without JIT the interpreter is used. */
    (void)pcre2_jit_compile(p->code[i], PCRE2_JIT_COMPLETE);
    return 0;
}

static const struct def *find(struct gr_str name)
{
    const struct def *nearest = NULL;
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < GR_COUNT(defs); i++) {
        if (gr_str_is(name, defs[i].name))
            return &defs[i];
        size_t d = gr_edit_distance(name.p, name.n, defs[i].name, strlen(defs[i].name));
        if (d < least)
            least = d, nearest = &defs[i];
    }
    (void)gr_fail(GR_E_UNSUPPORTED,
                  "tokenizer.ggml.pre: unknown pre-tokenizer %s; the nearest known one is \"%s\"",
                  gr_quote(name.p, name.n), nearest->name);
    return NULL;
}

int gr_pre_open(struct gr_pre **out, struct gr_str name)
{
    *out = NULL;
    const struct def *def = name.n ? find(name) : &defs[0];
    if (!def)
        return GR_E_UNSUPPORTED;
    struct gr_pre *p = gr_calloc(1, sizeof *p);
    if (!p)
        return GR_E_NOMEM_HOST;
    p->def = def;
    p->memory = pcre2_general_context_create(take, give, NULL);
    int rc = p->memory ? 0 : GR_E_NOMEM_HOST;
    for (int i = 0; def->step[i] && !rc; i++)
        if (def->step[i][0] != '#')
            rc = compile(p, i, def->step[i]);
    if (rc)
        gr_pre_free(&p);
    *out = p;
    return rc;
}

void gr_pre_free(struct gr_pre **pre)
{
    if (!*pre)
        return;
    for (int i = 0; i < MAX_STEP; i++)
        pcre2_code_free((*pre)->code[i]);
    pcre2_general_context_free((*pre)->memory);
    gr_free(*pre);
    *pre = NULL;
}

/* --- splitting --- */

struct gr_splitter {
    const struct gr_pre *pre;
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;
    /* uint32_t: ends of words after the previous step, and after the current one */
    struct gr_vec ends, cut;
};

int gr_splitter_new(struct gr_splitter **out, const struct gr_pre *pre)
{
    struct gr_splitter *s = *out = gr_calloc(1, sizeof *s);
    if (!s)
        return GR_E_NOMEM_HOST;
    s->pre = pre;
    s->data = pcre2_match_data_create(1, pre->memory);
    s->ctx = pcre2_match_context_create(pre->memory);
    s->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, pre->memory);
    if (!s->data || !s->ctx || !s->stack) {
        gr_splitter_free(out);
        return gr_fail(GR_E_NOMEM_HOST, "out of host memory: PCRE2 match data");
    }
    pcre2_set_heap_limit(s->ctx, HEAP_LIMIT);
    pcre2_jit_stack_assign(s->ctx, NULL, s->stack);
    return 0;
}

void gr_splitter_free(struct gr_splitter **s)
{
    if (!*s)
        return;
    pcre2_match_data_free((*s)->data);
    pcre2_match_context_free((*s)->ctx);
    pcre2_jit_stack_free((*s)->stack);
    gr_vec_fini(&(*s)->ends);
    gr_vec_fini(&(*s)->cut);
    gr_free(*s);
    *s = NULL;
}

static int add_end(struct gr_vec *ends, size_t end)
{
    uint32_t e = (uint32_t)end;
    return gr_vec_append(ends, &e, 1, sizeof e);
}

/* Splits the word text[a, b) at the matches of one expression, which sees only this word. */
static int cut_regex(struct gr_splitter *s, const pcre2_code *code, const char *text, size_t a,
                     size_t b)
{
    size_t *at = pcre2_get_ovector_pointer(s->data);
    int rc = 0;
    for (size_t i = a; i < b && !rc;) {
        int found = pcre2_match(code, (PCRE2_SPTR)(text + a), b - a, i - a, PCRE2_NO_UTF_CHECK,
                                s->data, s->ctx);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found == PCRE2_ERROR_HEAPLIMIT || found == PCRE2_ERROR_NOMEMORY)
            return gr_fail(GR_E_NOMEM_HOST,
                           "pre-tokenizer: PCRE2 has no memory for a text of %zu bytes", b - a);
        if (found < 0 || at[1] == at[0])
            return gr_fail(GR_E_INVALID, "pre-tokenizer: PCRE2 error %d at byte %zu of the text",
                           found, i);
        if (a + at[0] > i)
            rc = add_end(&s->cut, a + at[0]);
        i = a + at[1];
        if (!rc && i < b)
            rc = add_end(&s->cut, i);
    }
    return rc ? rc : add_end(&s->cut, b);
}

/* Returns whether the character at p[0, n) is a word character for \b of Oniguruma, which the
 * models' tokenizers use: a letter (also enclosed), a mark, a decimal or letter number, a
 * connector, or a Latin-1 character of category No. */
static bool continues_word(const char *p, size_t n)
{
    uint32_t cp;
    if (!n || gr_utf8_next(p, n, &cp) <= 0)
        return false;
    int c = utf8proc_category((utf8proc_int32_t)cp);
    bool letter = (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
                  (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC ||
           letter || (c == UTF8PROC_CATEGORY_NO && cp < 0x100);
}

/* Returns the length in bytes of the decimal digit at p, or 0. */
static size_t digit(const char *p, size_t n)
{
    uint32_t cp;
    int k = n ? gr_utf8_next(p, n, &cp) : 0;
    return k > 0 && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND ? (size_t)k : 0;
}

/* Splits the word text[a, b) around runs of digits, and these into groups of three from the right.
 * mode: second character of the step ("#", "#b", "#<"). */
static int cut_digits(char mode, const char *text, size_t a, size_t b, struct gr_vec *ends)
{
    int rc = 0;
    for (size_t i = a, end, count, k; i < b && !rc; i = end) {
        for (end = i, count = 0; (k = digit(text + end, b - end)); end += k)
            count++;
        if (!count)
            end = i + gr_utf8_step(text + i, b - i);
        if (!count || (mode == 'b' && continues_word(text + end, b - end)))
            continue;
        if (i > a && (mode != '<' || count % 3 == 0))
            rc = add_end(ends, i);
        for (size_t left = count; --left && !rc;) {
            i += digit(text + i, b - i);
            if (left % 3 == 0)
                rc = add_end(ends, i);
        }
        if (!rc && end < b && mode != '<')
            rc = add_end(ends, end);
    }
    return rc ? rc : add_end(ends, b);
}

int gr_splitter_run(struct gr_splitter *s, const char *text, size_t n, const uint32_t **end,
                    size_t *n_end)
{
    const struct gr_pre *pre = s->pre;
    pcre2_set_match_limit(s->ctx, (uint32_t)GR_MIN(MATCH_LIMIT + 8 * n, (size_t)UINT32_MAX));
    s->ends.n = 0;
    int rc = add_end(&s->ends, n);
    for (int step = 0; pre->def->step[step] && !rc; step++) {
        const uint32_t *word = s->ends.data;
        s->cut.n = 0;
        for (size_t i = 0, a = 0; i < s->ends.n && !rc; a = word[i++])
            rc = pre->code[step] ? cut_regex(s, pre->code[step], text, a, word[i])
                                 : cut_digits(pre->def->step[step][1], text, a, word[i], &s->cut);
        struct gr_vec swap = s->ends;
        s->ends = s->cut, s->cut = swap;
    }
    *end = s->ends.data, *n_end = s->ends.n;
    return rc;
}
