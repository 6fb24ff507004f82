/* Commands as bytes: every kind comes back as it was; whatever else is read is refused, and nothing
 * is looked at beyond it. */
#include "ranks/command.h"

#include <criterion/criterion.h>
#include <string.h>

#include "base/checked.h"
#include "base/rng.h"
#include "gr/status.h"

#define STRUCT_MAX 512
#define ITEMS_MAX 20

/* A struct of any kind, as its fields say it is. */
struct any {
    _Alignas(16) char bytes[STRUCT_MAX];
};

struct array {
    const void *p;
    uint64_t n;
};

static struct array array_at(const struct any *a, const struct gr_command_field *f)
{
    struct array x;
    memcpy(&x, a->bytes + f->offset, sizeof x);
    return x;
}

/* Random numbers and arrays, whose items are in `pool`. */
static void fill(struct any *a, uint32_t kind, struct gr_rng *rng, char *pool)
{
    int n;
    const struct gr_command_field *f = gr_command_fields(kind, &n);
    for (int i = 0; i < n; i++) {
        cr_assert(f[i].offset + 16 <= STRUCT_MAX);
        struct array x = {pool, gr_rng_below(rng, ITEMS_MAX)};
        size_t bytes = f[i].array ? (size_t)x.n * f[i].size : f[i].size;
        for (size_t k = 0; k < bytes; k++)
            *(f[i].array ? pool + k : a->bytes + f[i].offset + k) = (char)gr_rng_below(rng, 256);
        if (f[i].array) {
            memcpy(a->bytes + f[i].offset, &x, sizeof x);
            pool += GR_PAD(bytes, 8);
        }
    }
}

static void expect_same(const struct any *a, const struct any *b, uint32_t kind)
{
    int n;
    const struct gr_command_field *f = gr_command_fields(kind, &n);
    for (int i = 0; i < n; i++) {
        struct array x = array_at(a, &f[i]), y = array_at(b, &f[i]);
        if (f[i].array)
            cr_assert(x.n == y.n && (!x.n || !memcmp(x.p, y.p, (size_t)x.n * f[i].size)), "%s, %s",
                      gr_command_name(kind), f[i].name);
        else
            cr_assert_eq(memcmp(a->bytes + f[i].offset, b->bytes + f[i].offset, f[i].size), 0,
                         "%s, %s", gr_command_name(kind), f[i].name);
    }
}

/* Exactly n bytes of their own, so that a sanitizer sees what is read behind them. */
static int read_copy(struct any *out, uint32_t kind, const void *bytes, size_t n)
{
    static void *copy;
    gr_free(copy);
    copy = gr_calloc(GR_MAX(n, 1), 1);
    if (n)
        memcpy(copy, bytes, n);
    return gr_command_read(out, kind, copy, n);
}

Test(command, comes_back_as_it_was)
{
    static _Alignas(16) char pool[1 << 14];
    struct gr_rng rng = gr_rng_new(1);
    int n_with_fields = 0;
    for (uint32_t kind = 1; kind < GR_N_COMMAND; kind++)
        for (int round = 0; round < 50; round++) {
            struct any a = {{0}}, b = {{0}};
            struct gr_vec bytes = {0};
            int n;
            gr_command_fields(kind, &n);
            n_with_fields += n > 0;
            fill(&a, kind, &rng, pool);
            cr_assert_eq(gr_command_write(&bytes, kind, &a), 0);
            cr_assert_eq(bytes.n % 8, 0);
            cr_assert_eq(gr_command_read(&b, kind, bytes.data, bytes.n), 0, "%s", gr_error());
            expect_same(&a, &b, kind);
            gr_vec_fini(&bytes);
        }
    cr_assert(n_with_fields > 500);
}

/* Cut off anywhere, with something behind it, or with counts that are too large. */
Test(command, what_is_damaged_is_refused)
{
    static _Alignas(16) char pool[1 << 14];
    struct gr_rng rng = gr_rng_new(2);
    for (uint32_t kind = 1; kind < GR_N_COMMAND; kind++) {
        struct any a = {{0}}, b;
        struct gr_vec bytes = {0};
        fill(&a, kind, &rng, pool);
        cr_assert_eq(gr_command_write(&bytes, kind, &a), 0);
        for (size_t n = 0; n < bytes.n; n++)
            cr_assert_eq(read_copy(&b, kind, bytes.data, n), GR_E_CORRUPT, "%s, %zu of %zu bytes",
                         gr_command_name(kind), n, bytes.n);
        cr_assert_eq(gr_vec_append(&bytes, "        ", 8, 1), 0);
        cr_assert_eq(read_copy(&b, kind, bytes.data, bytes.n), GR_E_CORRUPT);
        gr_vec_fini(&bytes);
    }
    struct any b;
    static const uint64_t huge[] = {0, 0, 0, UINT64_MAX, 0, UINT64_MAX / 4 + 1, UINT64_MAX - 6};
    cr_assert_eq(read_copy(&b, GR_COMMAND_DECODE, huge, sizeof huge), GR_E_CORRUPT);
    cr_assert_eq(read_copy(&b, GR_COMMAND_DECODE, huge + 4, 24), GR_E_CORRUPT);
    cr_assert_eq(read_copy(&b, GR_N_COMMAND, huge, 0), GR_E_CORRUPT);
    cr_assert_eq(read_copy(&b, GR_COMMAND_NONE, huge, 0), GR_E_CORRUPT);
    cr_assert_str_eq(gr_command_name(UINT32_MAX), "?");
}

/* Random bytes, and good orders with some of them changed: refused, or arrays that lie inside. */
Test(command, random_bytes)
{
    static _Alignas(16) char pool[1 << 14];
    struct gr_rng rng = gr_rng_new(3);
    int n_good = 0, n_bad = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t kind = 1 + gr_rng_below(&rng, GR_N_COMMAND - 1);
        struct any a = {{0}}, b = {{0}};
        struct gr_vec bytes = {0};
        fill(&a, kind, &rng, pool);
        cr_assert_eq(gr_command_write(&bytes, kind, &a), 0);
        for (uint32_t k = gr_rng_below(&rng, 4); bytes.n && k-- > 0;)
            ((char *)bytes.data)[gr_rng_below(&rng, (uint32_t)bytes.n)] =
                (char)gr_rng_below(&rng, 256);
        char *copy = gr_calloc(GR_MAX(bytes.n, 1), 1);
        if (bytes.n)
            memcpy(copy, bytes.data, bytes.n);
        int rc = gr_command_read(&b, kind, copy, bytes.n), n;
        const struct gr_command_field *f = gr_command_fields(kind, &n);
        cr_assert(rc == 0 || rc == GR_E_CORRUPT);
        rc ? n_bad++ : n_good++;
        for (int i = 0; i < n && !rc; i++) {
            struct array x = array_at(&b, &f[i]);
            const char *p = x.p;
            if (f[i].array)
                cr_assert(p >= copy && p + x.n * f[i].size <= copy + bytes.n);
        }
        gr_free(copy);
        gr_vec_fini(&bytes);
    }
    cr_assert(n_good > 1000 && n_bad > 1000, "%d good, %d bad", n_good, n_bad);
}
