/* Stop strings against a naive search, over texts cut at random. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/rng.h"
#include "gpurun.h"
#include "gr/status.h"

#define MOST 200 /* bytes of a text */

static struct gr_stop *open_stop(const char *const *strings, int32_t n)
{
    struct gr_stop *s;
    cr_assert_eq(gr_stop_new(&s, strings, NULL, n), 0, "%s", gr_error());
    return s;
}

/* Whether a string ends at text[0, n). */
static bool ends_with(const char *text, size_t n, const char *string)
{
    size_t m = strlen(string);
    return m <= n && !memcmp(text + n - m, string, m);
}

/* The first byte after which a string is complete, and the longest that is; -1: none. */
static int32_t naive(const char *text, size_t n, const char *const *strings, int32_t n_string,
                     size_t *before)
{
    for (size_t end = 1; end <= n; end++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n_string; i++)
            if (ends_with(text, end, strings[i]) &&
                (best < 0 || strlen(strings[i]) > strlen(strings[best])))
                best = i;
        if (best >= 0) {
            *before = end - strlen(strings[best]);
            return best;
        }
    }
    *before = n;
    return -1;
}

/* Bytes at the end of a text that are a beginning of a string. */
static size_t naive_held(const char *text, size_t n, const char *const *strings, int32_t n_string)
{
    for (size_t held = n; held > 0; held--)
        for (int32_t i = 0; i < n_string; i++)
            if (held < strlen(strings[i]) && !memcmp(text + n - held, strings[i], held))
                return held;
    return 0;
}

/* One text in pieces: what is returned, and when. */
static void compare(struct gr_stop *s, const char *text, size_t n, const char *const *strings,
                    int32_t n_string, struct gr_rng *rng)
{
    char out[MOST];
    size_t n_out = 0, before, m, done = 0;
    const char *p;
    int32_t want = naive(text, n, strings, n_string, &before), found = -1, got;
    while (done < n) {
        size_t piece = gr_rng_below(rng, 9);
        piece = GR_MIN(piece, n - done);
        cr_assert_eq(gr_stop_push(s, text + done, piece, &p, &m, &got), 0);
        done += piece;
        cr_assert(n_out + m <= n && (found < 0 || (!m && got < 0)));
        memcpy(out + n_out, p, m);
        n_out += m;
        found = got >= 0 ? got : found;
        if (found < 0)
            cr_assert_eq(done - n_out, naive_held(text, done, strings, n_string));
    }
    gr_stop_flush(s, &p, &m);
    cr_assert_leq(n_out + m, n);
    memcpy(out + n_out, p, m);
    n_out += m;
    cr_assert_eq(found, want, "'%.*s': %d", (int)n, text, found);
    cr_assert(n_out == before && !memcmp(out, text, n_out), "'%.*s': '%.*s'", (int)n, text,
              (int)n_out, out);
}

Test(stop, equals_a_naive_search)
{
    struct gr_rng rng = gr_rng_new(11);
    int n_found = 0;
    for (int turn = 0; turn < 20000; turn++) {
        static char store[6][16], text[MOST];
        const char *strings[6];
        int32_t n_string = 1 + (int32_t)gr_rng_below(&rng, 6);
        uint32_t letters = 1 + gr_rng_below(&rng, 3);
        for (int32_t i = 0; i < n_string; i++) {
            size_t m = 1 + gr_rng_below(&rng, turn % 2 ? 12 : 5);
            for (size_t j = 0; j < m; j++)
                store[i][j] = (char)('a' + gr_rng_below(&rng, letters));
            store[i][m] = 0, strings[i] = store[i];
        }
        struct gr_stop *s = open_stop(strings, n_string);
        for (int k = 0; k < 3; k++) { /* a matcher serves several texts */
            size_t n = gr_rng_below(&rng, MOST), before;
            for (size_t j = 0; j < n; j++)
                text[j] = (char)('a' + gr_rng_below(&rng, letters + (turn % 3 == 0)));
            compare(s, text, n, strings, n_string, &rng);
            n_found += naive(text, n, strings, n_string, &before) >= 0;
        }
        gr_stop_free(&s);
    }
    cr_assert(n_found > 20000 && n_found < 59000, "%d of 60000 texts had one", n_found);
}

/* What is held back is never more than is needed, and comes when it turns out to be something
 * else. */
Test(stop, holds_back_and_gives_back)
{
    static const char *const strings[] = {"</s>", "é!", "\n\nUser:"};
    struct gr_stop *s = open_stop(strings, 3);
    static const struct {
        const char *piece, *out;
        int32_t found;
    } step[] = {
        {"Hi", "Hi", -1},       {"<", "", -1},      {"/", "", -1},
        {"b>", "</b>", -1},     {" \xc3", " ", -1}, {"\xa8", "\xc3\xa8", -1},
        {"caf\xc3", "caf", -1}, {"\xa9", "", -1},   {"\n", "\xc3\xa9", -1},
        {"\n\n", "\n", -1},     {"User", "", -1},   {": x", "", 2},
        {"more", "", -1},
    };
    const char *p;
    size_t n;
    int32_t found;
    for (size_t i = 0; i < GR_COUNT(step); i++) {
        cr_assert_eq(gr_stop_push(s, step[i].piece, strlen(step[i].piece), &p, &n, &found), 0);
        cr_expect(n == strlen(step[i].out) && !memcmp(p, step[i].out, n), "step %zu: '%.*s'", i,
                  (int)n, p);
        cr_expect_eq(found, step[i].found, "step %zu", i);
    }
    gr_stop_flush(s, &p, &n);
    cr_expect_eq(n, 0);
    cr_assert_eq(gr_stop_push(s, "a</", 3, &p, &n, &found), 0);
    gr_stop_flush(s, &p, &n);
    cr_expect(n == 2 && !memcmp(p, "</", 2));
    gr_stop_free(&s);
    gr_stop_free(&s);
}

Test(stop, zeros_are_bytes)
{
    const char *const strings[] = {"a\0b"};
    const size_t lengths[] = {3};
    struct gr_stop *s;
    const char *p;
    size_t n;
    int32_t found;
    cr_assert_eq(gr_stop_new(&s, strings, lengths, 1), 0);
    cr_assert_eq(gr_stop_push(s, "xa\0b", 4, &p, &n, &found), 0);
    cr_expect(n == 1 && *p == 'x' && found == 0);
    gr_stop_free(&s);
}

static void refuse(const char *const *strings, const size_t *lengths, int32_t n, const char *words)
{
    struct gr_stop *s = (void *)&n;
    cr_expect_eq(gr_stop_new(&s, strings, lengths, n), GR_E_INVALID);
    cr_expect_null(s);
    cr_expect(strstr(gr_error(), words), "%s", gr_error());
}

Test(stop, refuses_what_is_no_string)
{
    static const char *const strings[] = {"good", "", "a\xc3", "\xff"};
    const size_t long_one = GR_MAX_STOP_BYTES + 1;
    refuse(strings, NULL, 2, "stop string 2 is empty");
    refuse(strings + 2, NULL, 1, "not UTF-8 from its byte 1");
    refuse(strings + 3, NULL, 1, "not UTF-8 from its byte 0");
    refuse(strings, &long_one, 1, "at most 65536");
    refuse(strings, NULL, GR_MAX_STOP + 1, "at most 256");
    refuse(strings, NULL, -1, "-1 stop strings");
    struct gr_stop *s = open_stop(NULL, 0);
    const char *p;
    size_t n;
    int32_t found;
    cr_assert_eq(gr_stop_push(s, "abc", 3, &p, &n, &found), 0);
    cr_expect(n == 3 && found == -1);
    gr_stop_free(&s);
}

/* Every allocation failing once is reported and leaks nothing; a piece can be given again. */
Test(stop, out_of_memory)
{
    static const char *const strings[] = {"abc", "de"};
    size_t held = gr_alloc_held(NULL);
    int n_failed = 0;
    for (uint64_t k = 1, done = 0; !done; k++) {
        struct gr_stop *s;
        gr_alloc_fail_at(k, 0);
        int rc = gr_stop_new(&s, strings, NULL, 2);
        done = !rc;
        n_failed += rc == GR_E_NOMEM_HOST;
        const char *p;
        size_t n;
        int32_t found;
        gr_alloc_fail_at(!rc, 0);
        if (!rc) {
            cr_expect_eq(gr_stop_push(s, "xab", 3, &p, &n, &found), GR_E_NOMEM_HOST);
            gr_alloc_fail_at(0, 0);
            cr_expect_eq(gr_stop_push(s, "xab", 3, &p, &n, &found), 0);
            cr_expect(n == 1 && *p == 'x' && found == -1);
        }
        gr_alloc_fail_at(0, 0);
        gr_stop_free(&s);
    }
    cr_expect_gt(n_failed, 4);
    cr_expect_eq(gr_alloc_held(NULL), held);
}
