/* The text of tokens against its definition: all characters of all tokens, cut before the string
 * that is complete first. */
#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "gpurun.h"
#include "text/utf8.h"

#define N_TOKEN 60
#define MOST_TEXT 4096

TestSuite(text_stream, .timeout = 120);

static struct gr_model *open_model(void)
{
    struct gr_model *m;
    cr_assert_eq(gr_model_open(&m, NULL, NULL), 0, "%s", gr_error_message());
    return m;
}

/* The text of all tokens, by the detokenizer alone. */
static size_t whole_text(const struct gr_model *m, const int32_t *id, char *text)
{
    struct gr_detok *d;
    const char *p;
    size_t n, all = 0;
    cr_assert_eq(gr_detok_new(&d, m, false), 0);
    for (int i = 0; i <= N_TOKEN; i++) {
        int rc = i < N_TOKEN ? gr_detok_push(d, id[i], &p, &n) : gr_detok_flush(d, &p, &n);
        cr_assert(!rc && all + n < MOST_TEXT);
        memcpy(text + all, p, n);
        all += n;
    }
    gr_detok_free(&d);
    return all;
}

/* Length of the text before its stop string; *found: which. */
static size_t cut(const char *text, size_t n, const char *const *stop, const size_t *n_stop,
                  int32_t n_stops, int32_t *found)
{
    *found = -1;
    for (size_t end = 1; end <= n; end++) {
        for (int32_t i = 0; i < n_stops; i++) {
            bool ends = n_stop[i] <= end && !memcmp(text + end - n_stop[i], stop[i], n_stop[i]);
            if (ends && (*found < 0 || n_stop[i] > n_stop[*found]))
                *found = i;
        }
        if (*found >= 0)
            return end - n_stop[*found];
    }
    return n;
}

static void expect_characters(const char *p, size_t n)
{
    uint32_t cp;
    for (size_t at = 0; at < n;) {
        int k = gr_utf8_next(p + at, n - at, &cp);
        cr_assert_gt(k, 0, "not UTF-8, or cut");
        at += (size_t)k;
    }
}

/* The text that the stream gives; *found: the string that ends it. */
static size_t streamed(struct gr_text_stream *t, const int32_t *id, char *text, int32_t *found)
{
    const char *p;
    size_t n, all = 0;
    int32_t stop;
    *found = -1;
    for (int i = 0; i <= N_TOKEN; i++) {
        int rc = i < N_TOKEN ? gr_text_stream_push(t, id[i], &p, &n, &stop)
                             : gr_text_stream_flush(t, &p, &n, &stop);
        cr_assert(!rc && all + n < MOST_TEXT, "%s", gr_error_message());
        cr_assert(stop < 0 || *found < 0, "a second end");
        cr_assert(*found < 0 || !n, "text behind the end");
        *found = stop >= 0 ? stop : *found;
        expect_characters(p, n);
        memcpy(text + all, p, n);
        all += n;
    }
    return all;
}

static size_t character_at(const char *text, size_t n, size_t at)
{
    while (at < n && ((unsigned char)text[at] & 0xc0) == 0x80)
        at++;
    return at;
}

Test(text_stream, equals_its_definition)
{
    struct gr_model *m = open_model();
    struct gr_model_info info;
    struct gr_rng rng = gr_rng_new(17);
    int n_found = 0, n_replaced = 0;
    static char text[MOST_TEXT], got[MOST_TEXT];
    gr_model_info(m, &info);
    for (int turn = 0; turn < 2000; turn++) {
        int32_t id[N_TOKEN], found, expected;
        const char *stop[3];
        size_t n_stop[3];
        /* Tokens of single bytes too, whose characters are cut and broken. */
        for (int i = 0; i < N_TOKEN; i++)
            id[i] = 1 + (int32_t)gr_rng_below(&rng, turn % 2 ? 256 : (uint32_t)info.n_vocab - 1);
        size_t n = whole_text(m, id, text);
        int32_t n_stops = (int32_t)gr_rng_below(&rng, 4);
        for (int32_t i = 0; i < n_stops; i++) {
            size_t from = character_at(text, n, gr_rng_below(&rng, (uint32_t)n - 12));
            size_t to = character_at(text, n, from + 1 + gr_rng_below(&rng, 8));
            stop[i] = text + from, n_stop[i] = to - from;
        }
        struct gr_text_stream *t;
        cr_assert_eq(gr_text_stream_new(&t, m, false, stop, n_stop, n_stops), 0, "%s",
                     gr_error_message());
        size_t n_text = cut(text, n, stop, n_stop, n_stops, &expected);
        for (int again = 0; again < 2; again++) { /* flushing begins anew */
            size_t n_got = streamed(t, id, got, &found);
            cr_assert(found == expected && n_got == n_text && !memcmp(got, text, n_got),
                      "turn %d: %zu bytes, string %d; expected %zu, %d", turn, n_got, found, n_text,
                      expected);
        }
        n_found += expected >= 0;
        n_replaced += memmem(text, n_text, "\xef\xbf\xbd", 3) != NULL;
        gr_text_stream_free(&t);
    }
    cr_expect(n_found > 1000 && n_found < 1900 && n_replaced > 300, "%d, %d", n_found, n_replaced);
    gr_model_close(&m);
}

/* The name of a control token stops at the token, which has no text. */
Test(text_stream, stops_at_a_control_token)
{
    struct gr_model *m = open_model();
    struct gr_text_stream *t;
    const char *const stop[] = {"xyz", "<|endoftext|>"}, *p;
    int32_t *id, eos = gr_text_eos(m), found;
    size_t n_id, n;
    cr_assert_eq(gr_text_tokenize(m, "ab xy", 5, false, true, &id, &n_id), 0);
    cr_assert_eq(gr_text_stream_new(&t, m, false, stop, NULL, 2), 0);
    char text[64] = "";
    for (size_t i = 0; i < n_id; i++) {
        cr_assert_eq(gr_text_stream_push(t, id[i], &p, &n, &found), 0);
        strncat(text, p, n);
        cr_assert_eq(found, -1);
    }
    cr_assert_str_eq(text, "ab ");
    cr_assert_eq(gr_text_stream_push(t, eos, &p, &n, &found), 0);
    cr_assert(found == 1 && n == 0);
    cr_assert_eq(gr_text_stream_push(t, id[0], &p, &n, &found), 0);
    cr_assert(found == -1 && n == 0, "text behind the end");
    cr_assert_eq(gr_text_stream_flush(t, &p, &n, &found), 0);
    cr_assert(n == 2 && !memcmp(p, "xy", 2), "what was held back is lost");
    cr_assert_eq(gr_text_stream_push(t, id[0], &p, &n, &found), 0);
    cr_assert(n > 0, "flushing begins anew");
    gr_free_ids(id);
    gr_text_stream_free(&t);
    gr_model_close(&m);
}

Test(text_stream, refuses_strings)
{
    struct gr_model *m = open_model();
    struct gr_text_stream *t;
    const char *const bad[] = {"", "\xff"};
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(gr_text_stream_new(&t, m, false, &bad[i], NULL, 1), GR_E_INVALID);
        cr_expect_null(t);
        cr_expect(strstr(gr_error_message(), "stop string 1"), "%s", gr_error_message());
    }
    const char *p;
    size_t n;
    int32_t found;
    cr_assert_eq(gr_text_stream_new(&t, m, false, NULL, NULL, 0), 0);
    cr_expect_eq(gr_text_stream_push(t, -1, &p, &n, &found), GR_E_INVALID);
    cr_expect_eq(gr_text_stream_push(t, 1 << 30, &p, &n, &found), GR_E_INVALID);
    gr_text_stream_free(&t);
    gr_text_stream_free(&t);
    gr_model_close(&m);
}
