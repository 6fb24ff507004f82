/* Metadata that counts in place of a file's. */
#include <criterion/criterion.h>
#include <math.h>

#include "bytes.h"

/* Keys of every kind; no tensors. */
static struct gr_gguf *open_some(struct bytes *b)
{
    struct gr_gguf *g;
    *b = (struct bytes){.n = 0};
    put_head(b, 3, 0, 5);
    put_str(b, "a.int"), put_int(b, GR_GGUF_U32, 4), put_int(b, 7, 4);
    put_str(b, "b.float"), put_int(b, GR_GGUF_F32, 4), put_int(b, 0x3f000000, 4);
    put_str(b, "c.bool"), put_int(b, GR_GGUF_BOOL, 4), put_int(b, 1, 1);
    put_str(b, "d.str"), put_int(b, GR_GGUF_STR, 4), put_str(b, "old");
    put_str(b, "e.list"), put_int(b, GR_GGUF_ARRAY, 4), put_int(b, GR_GGUF_U32, 4);
    put_int(b, 1, 8), put_int(b, 3, 4);
    cr_assert_eq(gr_gguf_open_memory(&g, b->p, b->n, "some"), 0, "%s", gr_error());
    return g;
}

Test(gguf_override, values_of_every_type)
{
    static struct bytes b;
    struct gr_gguf *g = open_some(&b);
    uint32_t u;
    int64_t i;
    float f;
    bool flag;
    struct gr_str s;
    static const char *const good[] = {
        "a.int=int:12",       "b.float=float:-2.5e3", "c.bool=bool:false", "d.str=str:new: a=b, c",
        "new.key=int:-9",     "aa.first=str:",        "a.int=int:13",      "new.bool=bool:true",
        "new.real=float:0.1", "b.float=float:1"};
    for (size_t k = 0; k < sizeof good / sizeof *good; k++)
        cr_assert_eq(gr_gguf_override(g, good[k]), 0, "%s: %s", good[k], gr_error());
    cr_assert(!gr_gguf_u32(g, "a.int", &u) && u == 13);
    cr_assert(!gr_gguf_f32(g, "b.float", &f) && f == 1);
    cr_assert(!gr_gguf_bool(g, "c.bool", &flag) && !flag);
    cr_assert(!gr_gguf_str(g, "d.str", &s) && gr_str_is(s, "new: a=b, c"));
    cr_assert(!gr_gguf_i64(g, "new.key", &i) && i == -9);
    cr_assert(!gr_gguf_str(g, "aa.first", &s) && s.n == 0);
    cr_assert(!gr_gguf_bool(g, "new.bool", &flag) && flag);
    cr_assert(!gr_gguf_f32(g, "new.real", &f) && f == 0.1f);
    cr_assert_eq(gr_gguf_n_kv(g), 9);
    for (uint64_t k = 0; k < gr_gguf_n_kv(g); k++) { /* every key is found, in its new order */
        char name[32];
        const struct gr_gguf_kv *kv = gr_gguf_kv_at(g, k);
        snprintf(name, sizeof name, "%.*s", (int)kv->key.n, kv->key.p);
        cr_assert_eq(gr_gguf_find(g, name), kv, "%s", name);
    }
    cr_assert_eq(gr_gguf_u32(g, "new.key", &u), GR_E_CORRUPT); /* checked as one of the file's */
    gr_gguf_close(&g);
}

Test(gguf_override, what_is_none)
{
    static struct bytes b;
    static const char *const bad[] = {"",
                                      "a.int",
                                      "a.int=12",
                                      "=int:1",
                                      "a.int=int",
                                      "a.int=i32:1",
                                      "a.int=int:",
                                      "a.int=int:1x",
                                      "a.int=int: 1",
                                      "a.int=int:99999999999999999999",
                                      "b.float=float:",
                                      "b.float=float:nan",
                                      "b.float=float:1e999",
                                      "b.float=float:x",
                                      "c.bool=bool:yes",
                                      "c.bool=bool:1",
                                      "a.int=str:12",
                                      "a.int=float:12",
                                      "d.str=int:1",
                                      "c.bool=int:1",
                                      "b.float=int:1",
                                      "e.list=int:4",
                                      "split.count=int:3",
                                      "general.alignment=int:32"};
    struct gr_gguf *g = open_some(&b);
    uint32_t u;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        cr_assert_eq(gr_gguf_override(g, bad[k]), GR_E_INVALID, "%s", bad[k]);
        cr_assert(strstr(gr_error(), "metadata '"), "%s", gr_error());
    }
    cr_assert(!gr_gguf_u32(g, "a.int", &u) && u == 7, "a failure changes nothing");
    gr_gguf_close(&g);
}

/* The file stays as it is when memory ends at any point. */
Test(gguf_override, no_memory_at_any_point)
{
    static struct bytes b;
    uint32_t u;
    int rc = 1;
    for (uint64_t n = 1; rc; n++) {
        struct gr_gguf *g = open_some(&b);
        gr_alloc_fail_at(n, 0);
        rc = gr_gguf_override(g, "a.int=int:12");
        if (!rc)
            rc = gr_gguf_override(g, "a.new=int:5");
        gr_alloc_fail_at(0, 0);
        cr_assert(!rc || rc == GR_E_NOMEM_HOST);
        cr_assert(!gr_gguf_u32(g, "a.int", &u) && (u == 7 || u == 12));
        cr_assert(rc || (!gr_gguf_u32(g, "a.new", &u) && u == 5));
        gr_gguf_close(&g);
        cr_assert(n < 100);
    }
}
