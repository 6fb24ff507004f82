/* The reader: every type and version is read, every kind of nonsense is refused with its place. */
#include "bytes.h"

#include "gr/dtype.h"

static struct gr_gguf *open_ok(const struct bytes *b)
{
    struct gr_gguf *g;
    int rc = gr_gguf_open_memory(&g, b->p, b->n, "x.gguf");
    cr_assert_eq(rc, 0, "%s", gr_error());
    return g;
}

/* Sixteen keys, one for each type and for each kind of array. */
static void put_all_types(struct bytes *b, uint32_t version)
{
    static const uint8_t f64[8] = {0x18, 0x2d, 0x44, 0x54, 0xfb, 0x21, 0x09, 0x40};
    put_head(b, version, 0, 16);
    put_key(b, "a.u8", GR_GGUF_U8), put_int(b, 200, 1);
    put_key(b, "a.i8", GR_GGUF_I8), put_int(b, (uint64_t)-100, 1);
    put_key(b, "a.u16", GR_GGUF_U16), put_int(b, 60000, 2);
    put_key(b, "a.i16", GR_GGUF_I16), put_int(b, (uint64_t)-30000, 2);
    put_kv_u32(b, "a.u32", 4000000000u);
    put_key(b, "a.i32", GR_GGUF_I32), put_int(b, (uint64_t)-2000000000, 4);
    put_key(b, "a.f32", GR_GGUF_F32), put_int(b, 0x3fc00000, 4);
    put_key(b, "a.bool", GR_GGUF_BOOL), put_int(b, 1, 1);
    put_kv_str(b, "a.str", "caf\xc3\xa9");
    put_key(b, "a.u64", GR_GGUF_U64), put_int(b, UINT64_MAX, 8);
    put_key(b, "a.i64", GR_GGUF_I64), put_int(b, (uint64_t)INT64_MIN, 8);
    put_key(b, "a.f64", GR_GGUF_F64), put(b, f64, 8);
    put_array(b, "b.u16", GR_GGUF_U16, 3), put_int(b, 0x000300020001, 6);
    put_array(b, "b.bool", GR_GGUF_BOOL, 2), put_int(b, 0x0100, 2);
    put_array(b, "b.none", GR_GGUF_F64, 0);
    put_array(b, "b.str", GR_GGUF_STR, 3), put_str(b, "one"), put_str(b, ""), put_str(b, "three");
}

static void check_all_types(const struct gr_gguf *g)
{
    uint32_t u;
    int64_t i;
    float f;
    double d;
    bool t;
    struct gr_str s;
    const struct gr_gguf_kv *kv;
    cr_assert(!gr_gguf_u32(g, "a.u8", &u) && u == 200);
    cr_assert(!gr_gguf_i64(g, "a.i8", &i) && i == -100);
    cr_assert(!gr_gguf_u32(g, "a.u16", &u) && u == 60000);
    cr_assert(!gr_gguf_i64(g, "a.i16", &i) && i == -30000);
    cr_assert(!gr_gguf_u32(g, "a.u32", &u) && u == 4000000000u);
    cr_assert(!gr_gguf_i64(g, "a.i32", &i) && i == -2000000000);
    cr_assert(!gr_gguf_i64(g, "a.i64", &i) && i == INT64_MIN);
    cr_assert(!gr_gguf_f32(g, "a.f32", &f) && f == 1.5f);
    cr_assert(!gr_gguf_f32(g, "a.f64", &f) && f == 3.14159265f);
    cr_assert(gr_gguf_item_f64(gr_gguf_find(g, "a.f64"), 0, &d) && d == 3.141592653589793);
    cr_assert(!gr_gguf_bool(g, "a.bool", &t) && t);
    cr_assert(!gr_gguf_str(g, "a.str", &s) && gr_str_is(s, "caf\xc3\xa9"));
    cr_assert(!gr_gguf_array(g, "b.u16", GR_GGUF_U16, &kv) && kv->n == 3);
    for (uint64_t k = 0; k < 3; k++)
        cr_assert(gr_gguf_item_i64(kv, k, &i) && i == (int64_t)k + 1);
    cr_assert(!gr_gguf_array(g, "b.bool", GR_GGUF_BOOL, &kv));
    cr_assert(!gr_gguf_item_bool(kv, 0) && gr_gguf_item_bool(kv, 1));
    cr_assert(!gr_gguf_array(g, "b.none", GR_GGUF_F64, &kv) && kv->n == 0);
    cr_assert(!gr_gguf_array(g, "b.str", GR_GGUF_STR, &kv) && kv->n == 3);
    const char *want[] = {"one", "", "three"};
    size_t k = 0;
    for (struct gr_gguf_strs it = gr_gguf_strs(kv); gr_gguf_str_next(&it, &s); k++)
        cr_assert(gr_str_is(s, want[k]));
    cr_assert_eq(k, 3);
}

Test(gguf_reader, every_type_of_both_versions)
{
    for (uint32_t version = 2; version <= 3; version++) {
        struct bytes b = {.n = 0};
        put_all_types(&b, version);
        struct gr_gguf *g = open_ok(&b);
        cr_assert_eq(gr_gguf_version(g), version);
        cr_assert_eq(gr_gguf_n_kv(g), 16);
        check_all_types(g);
        gr_gguf_close(&g);
        cr_assert_null(g);
    }
}

/* The type that is asked for decides, not that of the value: one line names key, expected, found,
 * offset. */
Test(gguf_reader, wrong_type_for_a_key)
{
    struct bytes b = {.n = 0};
    uint32_t u = 7, each[4];
    int64_t i = 7;
    float f = 7;
    bool t = true;
    struct gr_str s;
    const struct gr_gguf_kv *kv;
    put_all_types(&b, 3);
    struct gr_gguf *g = open_ok(&b);
    cr_assert_eq(gr_gguf_u32(g, "a.i8", &u), GR_E_CORRUPT);
    cr_assert_str_eq(
        gr_error(),
        "x.gguf: key 'a.i8': expected an integer from 0 to 2^32-1, found i8 -100 (byte 57)");
    cr_assert_eq(gr_gguf_u32(g, "no.such", &u), GR_E_CORRUPT);
    cr_assert_str_eq(
        gr_error(),
        "x.gguf: key 'no.such': expected an integer from 0 to 2^32-1, found no such key");
    cr_assert_eq(gr_gguf_u32(g, "of\nan architecture", &u), GR_E_CORRUPT);
    cr_assert(strstr(gr_error(), "key 'of\\x0aan architecture'"), "%s", gr_error());
    cr_assert_eq(gr_gguf_opt_f32(g, "b.u16", 1, &f), GR_E_CORRUPT);
    cr_assert(strstr(gr_error(), "expected a number of type f32, found an array of 3 u16 (byte "));
    cr_assert_eq(gr_gguf_u32(g, "a.u64", &u), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_i64(g, "a.u64", &i), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_i64(g, "a.f32", &i), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_i64(g, "a.bool", &i), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_i64(g, "b.u16", &i), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_f32(g, "a.u32", &f), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_bool(g, "a.u8", &t), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_bool(g, "b.bool", &t), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_str(g, "b.str", &s), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_str(g, "a.u8", &s), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_array(g, "a.u16", GR_GGUF_U16, &kv), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_array(g, "b.u16", GR_GGUF_I16, &kv), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_u32_each(g, "b.u16", each, 4), GR_E_CORRUPT);
    cr_assert_eq(gr_gguf_u32_each(g, "a.i8", each, 1), GR_E_CORRUPT);
    cr_assert(u == 7 && i == 7 && f == 7 && t, "a failing getter leaves its result alone");
    gr_gguf_close(&g);
}

Test(gguf_reader, optional_keys)
{
    struct bytes b = {.n = 0};
    uint32_t u, each[3];
    int64_t i;
    float f;
    bool t;
    struct gr_str s;
    const struct gr_gguf_kv *kv;
    put_all_types(&b, 3);
    struct gr_gguf *g = open_ok(&b);
    cr_assert(!gr_gguf_opt_u32(g, "none", 5, &u) && u == 5);
    cr_assert(!gr_gguf_opt_u32(g, "a.u8", 5, &u) && u == 200);
    cr_assert(!gr_gguf_opt_i64(g, "none", -5, &i) && i == -5);
    cr_assert(!gr_gguf_opt_i64(g, "a.i8", 5, &i) && i == -100);
    cr_assert(!gr_gguf_opt_f32(g, "none", 0.5f, &f) && f == 0.5f);
    cr_assert(!gr_gguf_opt_f32(g, "a.f32", 0, &f) && f == 1.5f);
    cr_assert(!gr_gguf_opt_bool(g, "none", true, &t) && t);
    cr_assert(!gr_gguf_opt_bool(g, "a.bool", false, &t) && t);
    cr_assert(!gr_gguf_opt_str(g, "none", "def", &s) && gr_str_is(s, "def"));
    cr_assert(!gr_gguf_opt_str(g, "a.str", "def", &s) && s.n == 5);
    cr_assert(!gr_gguf_opt_array(g, "none", GR_GGUF_STR, &kv) && !kv);
    cr_assert(!gr_gguf_opt_array(g, "b.str", GR_GGUF_STR, &kv) && kv->n == 3);
    cr_assert(!gr_gguf_u32_each(g, "b.u16", each, 3) && each[0] == 1 && each[2] == 3);
    cr_assert(!gr_gguf_u32_each(g, "a.u8", each, 3) && each[0] == 200 && each[2] == 200);
    cr_assert(!gr_gguf_u32_each(g, "b.bool", each, 2) && each[0] == 0 && each[1] == 1);
    gr_gguf_close(&g);
}

/* Two tensors in reverse file order, alignment 64; lookup, shape, data. */
Test(gguf_reader, tensors)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 2, 1);
    put_kv_u32(&b, "general.alignment", 64);
    put_tensor(&b, "second", 4, 3, GR_F32, 64);
    put_tensor(&b, "first", 32, 1, GR_Q8_0, 0);
    put_pad(&b, 64);
    size_t data = b.n;
    for (int i = 0; i < 64 + 48; i++)
        put_int(&b, (uint64_t)i, 1);
    struct gr_gguf *g = open_ok(&b);
    const struct gr_gguf_tensor *t = gr_gguf_find_tensor(g, "second");
    cr_assert(t == gr_gguf_tensor_at(g, 0) && gr_gguf_n_tensor(g) == 2);
    cr_assert(t->n_dim == 2 && t->ne[0] == 4 && t->ne[1] == 3 && t->ne[2] == 1 && t->ne[3] == 1);
    cr_assert(t->bytes == 48 && t->offset == data + 64 && t->data == b.p + data + 64);
    uint8_t got[48];
    cr_assert(!gr_gguf_read_tensor(g, t, got) && got[0] == 64 && got[47] == 111);
    cr_assert(!gr_gguf_read(g, t, 40, got, 8) && got[0] == 104);
    cr_assert_eq(gr_gguf_read(g, t, 41, got, 8), GR_E_INVALID);
    cr_assert_eq(got[0], 0);
    cr_assert_eq(gr_gguf_find_tensor(g, "first")->bytes, 34);
    cr_assert_null(gr_gguf_find_tensor(g, "third"));
    cr_assert(gr_gguf_alignment(g) == 64 && gr_gguf_bytes(g) == b.n && !gr_gguf_unchanged(g));
    gr_gguf_close(&g);
}
