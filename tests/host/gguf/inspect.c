/* Output of `gpurun inspect`: facts of the file, and text of the file only in escaped form. */
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

#include "bytes.h"
#include "gpurun.h"
#include "gr/dtype.h"

/* Names and strings with escapes, controls, bytes that are not UTF-8, right-to-left marks; floats
 * that are no numbers. */
static const char *put_example(const char *name)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 3, 10);
    put_kv_str(&b, "general.architecture", "llama");
    put_kv_str(&b, "nasty\x1b[31m",
               "caf\xc3\xa9 \"q\" \\ \n\x07\xff \xe2\x80\xae"
               "end");
    put_kv_str(
        &b, "long",
        "0123456789012345678901234567890123456789012345678901234567890123456789\xe2\x82\xac rest");
    put_key(&b, "eps", GR_GGUF_F32), put_int(&b, 0x3727c5ac, 4);
    put_key(&b, "nan", GR_GGUF_F32), put_int(&b, 0x7fc00000, 4);
    put_key(&b, "big", GR_GGUF_U64), put_int(&b, UINT64_MAX, 8);
    put_array(&b, "flags", GR_GGUF_BOOL, 2), put_int(&b, 0x0100, 2);
    put_array(&b, "tokens", GR_GGUF_STR, 20);
    for (int i = 0; i < 20; i++)
        put_str(&b, "t");
    put_array(&b, "none", GR_GGUF_I32, 0);
    put_kv_u32(&b, "general.file_type", 26);
    put_tensor(&b, "w", 32, 2, GR_Q8_0, 0);
    put_tensor(&b, "v", 4, 2, GR_F32, 96);
    put_tensor(&b, "u", 2, 1, GR_F32, 128);
    put_pad(&b, 32);
    for (int i = 0; i < 136; i++)
        put_int(&b, 0, 1);
    return put_file(&b, name);
}

/* The output, or "" when it failed (gr_free has no part in it: free). */
static char *inspected(const char *path, bool json, int *rc)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    *rc = gr_inspect(path, out, json);
    fclose(out);
    return text;
}

static long n_left; /* allocations of JSON until one fails; 0: none does */

static void *json_memory(size_t n)
{
    return n_left && --n_left == 0 ? NULL : malloc(n);
}

/* JSON is whole or an error: no value is another one for want of memory. */
Test(gguf_inspect, no_memory_at_any_point)
{
    const char *path = put_example("no-memory.gguf");
    int rc;
    json_set_alloc_funcs(json_memory, free);
    char *whole = inspected(path, true, &rc);
    cr_assert_eq(rc, 0, "%s", gr_error());
    long k = 1;
    for (bool done = false; !done; k++) {
        n_left = k;
        char *text = inspected(path, true, &rc);
        done = n_left > 0;
        n_left = 0;
        cr_assert_eq(rc, done ? 0 : GR_E_NOMEM_HOST, "allocation %ld: %d", k, rc);
        cr_assert(!done || strcmp(text, whole) == 0);
        free(text);
    }
    cr_assert_gt(k, 100);
    free(whole);
}

Test(gguf_inspect, text)
{
    static const char *lines[] = {
        "inspect.gguf: GGUF version 3, ",
        ", alignment 32\narchitecture llama, file type IQ3_S\n\n10 keys\n  general.architecture  "
        "string         "
        "\"llama\"\n",
        "  nasty\\u001b[31m     ",
        "\"caf\xc3\xa9 \\\"q\\\" \\\\ \\n\\u0007\\xff \\u202eend\"\n",
        "01234567890123456789\"... (78 bytes)\n", /* the character that would be cut is left out */
        "f32            1e-05\n",
        "f32            nan\n",
        "u64            18446744073709551615\n",
        "bool[2]        [false, true]\n",
        "string[20]     [\"t\", \"t\", \"t\", \"t\", \"t\", \"t\", ...]\n",
        "i32[0]         []\n",
        ("3 tensors (shape: innermost dimension first)\n"
         "  w  q8_0     32 x 2                         68 B\n"),
        "by type\n  f32             2 tensors              10 values         40 B\n",
        "  q8_0            1 tensors              64 values         68 B\n",
        "  all             3 tensors              74 values        108 B  11.68 bits a value\n",
    };
    int rc;
    char *text = inspected(put_example("inspect.gguf"), false, &rc);
    const char *at = text;
    cr_assert_eq(rc, 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *found = strstr(at, lines[i]);
        cr_assert(found, "expected '%s' in:\n%s", lines[i], at);
        at = found;
    }
    for (const char *p = text; *p; p++)
        cr_assert((unsigned char)*p >= 32 || *p == '\n', "control character %d", *p);
    free(text);
}

/* The value of a metadata key. */
static json_t *value_of(json_t *top, const char *key)
{
    return json_object_get(json_object_get(json_object_get(top, "metadata"), key), "value");
}

Test(gguf_inspect, json)
{
    int rc;
    char *text = inspected(put_example("json-inspect.gguf"), true, &rc);
    json_error_t error;
    cr_assert_eq(rc, 0);
    json_t *top = json_loads(text, 0, &error);
    cr_assert(top, "%s", error.text);
    cr_assert_str_eq(json_string_value(value_of(top, "nasty\x1b[31m")),
                     "caf\xc3\xa9 \"q\" \\ \n\x07\xef\xbf\xbd \xe2\x80\xae"
                     "end");
    cr_assert_eq(json_string_length(value_of(top, "long")), 78);
    cr_assert_float_eq(json_real_value(value_of(top, "eps")), 1e-5, 1e-12);
    cr_assert_str_eq(json_string_value(value_of(top, "nan")), "nan");
    cr_assert_str_eq(json_string_value(value_of(top, "big")), "18446744073709551615");
    cr_assert_eq(json_array_size(value_of(top, "tokens")), 16);
    json_t *tokens = json_object_get(json_object_get(top, "metadata"), "tokens");
    cr_assert_eq(json_integer_value(json_object_get(tokens, "n")), 20);
    cr_assert_str_eq(json_string_value(json_object_get(tokens, "item")), "string");
    json_t *w = json_array_get(json_object_get(top, "tensors"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(w, "type")), "q8_0");
    cr_assert_eq(json_integer_value(json_array_get(json_object_get(w, "shape"), 0)), 32);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(top, "total"), "values")), 74);
    json_t *f32 = json_object_get(json_object_get(top, "types"), "f32");
    cr_assert_eq(json_integer_value(json_object_get(f32, "bytes")), 40);
    json_decref(top);
    free(text);
}

/* Values are counted over all four dimensions. */
Test(gguf_inspect, four_dimensions)
{
    struct bytes b = {.n = 0};
    int rc;
    put_head(&b, 3, 1, 1);
    put_kv_str(&b, "general.architecture", "llama");
    put_record(&b);
    put_str(&b, "w"), put_int(&b, 4, 4);
    for (int k = 0; k < 4; k++)
        put_int(&b, (uint64_t)(2 + k), 8); /* 2 x 3 x 4 x 5 */
    put_int(&b, GR_F32, 4), put_int(&b, 0, 8);
    put_pad(&b, 32);
    for (int i = 0; i < 120; i++)
        put_int(&b, 0, 4);
    char *text = inspected(put_file(&b, "four.gguf"), false, &rc);
    cr_assert_eq(rc, 0, "%s", gr_error());
    cr_assert(strstr(text, "2 x 3 x 4 x 5  "), "%s", text);
    cr_assert(strstr(text, "  all             1 tensors             120 values        480 B"), "%s",
              text);
    free(text);
}

/* A name of more than 48 bytes does not move the columns of the others. */
Test(gguf_inspect, long_names)
{
    struct bytes b = {.n = 0};
    char name[61], key[80], tensor[80];
    int rc;
    memset(name, 'n', 60), name[60] = 0;
    put_head(&b, 3, 2, 3);
    put_kv_str(&b, "general.architecture", "llama");
    put_kv_str(&b, name, "a");
    put_kv_str(&b, "k", "b");
    put_tensor(&b, name, 1, 1, GR_F32, 0);
    put_tensor(&b, "w", 1, 1, GR_F32, 32);
    put_pad(&b, 32);
    for (int i = 0; i < 36; i++)
        put_int(&b, 0, 1);
    snprintf(key, sizeof key, "\n  %-48s  string ", "k");
    snprintf(tensor, sizeof tensor, "\n  %-48s  f32 ", "w");
    char *text = inspected(put_file(&b, "long-names.gguf"), false, &rc);
    cr_assert_eq(rc, 0, "%s", gr_error());
    cr_expect(strstr(text, key) && strstr(text, tensor), "%s", text);
    free(text);
}

Test(gguf_inspect, errors)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 0, 1);
    const char *path = put_file(&b, "inspect-bad.gguf");
    for (int json = 0; json < 2; json++) {
        int rc;
        char *text = inspected(path, json, &rc);
        cr_assert(rc == GR_E_CORRUPT && text[0] == 0 &&
                  strstr(gr_error(), "inspect-bad.gguf: number of keys"));
        free(text);
    }
    FILE *full = fopen("/dev/full", "w");
    cr_assert_eq(gr_inspect(put_example("more-inspect.gguf"), full, false), GR_E_IO);
    fclose(full);
}
