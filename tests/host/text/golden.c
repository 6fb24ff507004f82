/* Words and ids that other tokenizers gave (tests/golden/text has the scripts that asked them). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "gr/status.h"
#include "text/pre.h"
#include "util.h"

static char *slurp(const char *name)
{
    char path[512], *data;
    size_t n;
    snprintf(path, sizeof path, "%s/tests/golden/text/%s", GR_SOURCE_DIR, name);
    cr_assert_eq(gr_file_slurp(path, 1 << 20, &data, &n), 0, "%s", gr_error());
    return data;
}

/* The bytes that the hexadecimal digits at the beginning of s stand for; returns their number. */
static size_t unhex(const char *s, char *out, size_t cap)
{
    size_t n = 0;
    unsigned x;
    for (; sscanf(s, "%2x", &x) == 1 && s[0] != ' '; s += 2) {
        cr_assert_lt(n, cap);
        out[n++] = (char)x;
    }
    return n;
}

/* True when the line has these numbers. */
static bool same(const char *line, const uint32_t *x, size_t n)
{
    char *end;
    for (size_t i = 0; i < n; i++, line = end)
        if (strtoul(line, &end, 10) != x[i] || end == line)
            return false;
    return !line[strspn(line, " ")];
}

/* The rest of the line behind `key` and a blank, or NULL. */
static const char *after(const char *line, const char *key)
{
    size_t n = strlen(key);
    return !strncmp(line, key, n) && (line[n] == ' ' || !line[n]) ? line + n + (line[n] == ' ')
                                                                  : NULL;
}

#define LINES(line, data)                                                                          \
    for (char *save_, *line = strtok_r(data, "\n", &save_); line;                                  \
         line = strtok_r(NULL, "\n", &save_))

Test(golden, words_of_every_pre_tokenizer)
{
    static char text[64][512];
    size_t len[64], n_text = 0, i = 0, checked = 0;
    char *data = slurp("pre.txt");
    struct gr_pre *p = NULL;
    struct gr_splitter *cut = NULL;
    const uint32_t *end;
    size_t n_end;
    LINES(line, data)
    {
        const char *arg;
        if ((arg = after(line, "text"))) {
            len[n_text] = unhex(arg, text[n_text], sizeof *text);
            n_text++;
        } else if ((arg = after(line, "pre"))) {
            gr_splitter_free(&cut);
            gr_pre_free(&p);
            cr_assert_eq(gr_pre_open(&p, (struct gr_str){arg, strlen(arg)}), 0, "%s", gr_error());
            cr_assert_eq(gr_splitter_new(&cut, p), 0);
            i = 0;
        } else {
            cr_assert(p && i < n_text);
            cr_assert_eq(gr_splitter_run(cut, text[i], len[i], &end, &n_end), 0, "%s", gr_error());
            cr_assert(same(line, end, n_end), "words of %s; expected ends: %s",
                      gr_quote(text[i], len[i]), line);
            i++, checked++;
        }
    }
    cr_assert_gt(checked, 1000);
    gr_splitter_free(&cut);
    gr_pre_free(&p);
    gr_free(data);
}

/* Every name opens, and cuts a text into words that cover it. */
Test(golden, every_name_opens)
{
    static const char text[] = "It's 12345 o'clock,\r\n\n  \xe4\xb8\xad\xe6\x96\x87 na\xc3\xafve "
                               "\xd9\xa3\xd9\xa4 <x>\t!!  ";
    const uint32_t *end;
    size_t n = 0, n_end;
    for (const char *name; (name = gr_pre_name(n)); n++) {
        struct gr_pre *p;
        struct gr_splitter *cut;
        cr_assert_eq(gr_pre_open(&p, (struct gr_str){name, strlen(name)}), 0, "%s", gr_error());
        cr_assert_eq(gr_splitter_new(&cut, p), 0);
        cr_assert_eq(gr_splitter_run(cut, text, strlen(text), &end, &n_end), 0, "%s", gr_error());
        for (size_t i = 0; i < n_end; i++)
            cr_assert_gt(end[i], i ? end[i - 1] : 0, "%s", name);
        cr_assert_eq(end[n_end - 1], strlen(text));
        gr_splitter_free(&cut);
        gr_pre_free(&p);
    }
    cr_assert_gt(n, 80);
}

static void set_flag(struct gr_vocab_source *s, const char *arg)
{
    char name[64];
    int on;
    cr_assert_eq(sscanf(arg, "%63s %d", name, &on), 2);
    int8_t *flag = !strcmp(name, "add_space_prefix")           ? &s->add_space_prefix
                   : !strcmp(name, "remove_extra_whitespaces") ? &s->remove_extra_whitespaces
                   : !strcmp(name, "lowercase")                ? &s->lowercase
                                                               : &s->strip_accents;
    *flag = (int8_t)on;
}

static void add_token(struct small *s, const char *arg)
{
    char text[64];
    size_t n = unhex(arg, text, sizeof text);
    float score;
    int type;
    cr_assert_eq(sscanf(strchr(arg, ' '), "%f %d", &score, &type), 2);
    int32_t id = small_token_n(s, text, n, score, (enum gr_token_type)type);
    if (type == GR_TOKEN_UNKNOWN || (n == 5 && !memcmp(text, "[UNK]", 5)))
        s->source.special[GR_SPECIAL_UNK] = id;
}

/* The ids of a text are those of the line. */
static void check_ids(const struct gr_vocab *v, const char *text, size_t n, const char *line)
{
    struct gr_vec ids = tokenize(v, text, n, false, false);
    char got[512] = "";
    for (size_t i = 0, k = 0; i < ids.n && k < sizeof got - 16; i++)
        k += (size_t)snprintf(got + k, sizeof got - k, " %d", ((int32_t *)ids.data)[i]);
    cr_assert(same(line, ids.data, ids.n), "text %s: expected %s, got%s", gr_quote(text, n), line,
              got);
    gr_vec_fini(&ids);
}

Test(golden, ids)
{
    static uint8_t map[4096];
    char text[512], *data = slurp("vocab.txt");
    size_t n = 0, checked = 0;
    struct small s = {0};
    struct gr_vocab *v = NULL;
    LINES(line, data)
    {
        const char *arg;
        if ((arg = after(line, "model"))) {
            gr_vocab_close(&v);
            small_fini(&s);
            s = small_new(arg, "");
        } else if ((arg = after(line, "flag"))) {
            set_flag(&s.source, arg);
        } else if ((arg = after(line, "charsmap"))) {
            s.source.charsmap_bytes = unhex(arg, (char *)map, sizeof map);
            s.source.charsmap = map;
        } else if ((arg = after(line, "token"))) {
            add_token(&s, arg);
        } else if ((arg = after(line, "text"))) {
            v = v ? v : small_open(&s);
            n = unhex(arg, text, sizeof text);
        } else if ((arg = after(line, "ids"))) {
            check_ids(v, text, n, arg);
            checked++;
        }
    }
    cr_assert_gt(checked, 150);
    gr_vocab_close(&v);
    small_fini(&s);
    gr_free(data);
}

/* The shared Unigram vocabulary with its real normalisation. */
Test(golden, nomic_bert_moe)
{
    char text[512], *data = slurp("nomic.txt");
    size_t n = 0, checked = 0;
    struct gr_vocab *v = shared_vocab("nomic-bert-moe");
    LINES(line, data)
    {
        const char *arg;
        if ((arg = after(line, "text")))
            n = unhex(arg, text, sizeof text);
        else if ((arg = after(line, "ids")))
            check_ids(v, text, n, arg), checked++;
    }
    cr_assert_gt(checked, 50);
    gr_vocab_close(&v);
    gr_free(data);
}
