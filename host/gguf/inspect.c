/* `gpurun inspect`: contents of a GGUF file, as text (long strings and arrays cut) and as JSON
 * (strings complete). Strings from the file are escaped, so that they can neither control a
 * terminal nor make the JSON invalid. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "gguf/gguf_impl.h"
#include "gpurun.h"
#include "gr/dtype.h"
#include "gr/status.h"

#define TEXT_BYTES 72 /* of a string, in text output */
#define TEXT_ITEMS 6  /* of an array, in text output */
#define JSON_ITEMS 16 /* of an array, in JSON */

/* Totals over the tensors of one storage type, or over all. */
struct total {
    uint64_t tensors, values, bytes;
};

static uint64_t values_of(const struct gr_gguf_tensor *t)
{
    return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; /* fits: the reader has checked it */
}

/* Sums over the tensors of type `dtype`, or over all of them. */
static struct total total_of(const struct gr_gguf *g, bool all, uint32_t dtype)
{
    struct total sum = {0};
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        if (!all && t->dtype != dtype)
            continue;
        sum.tensors++;
        sum.values += values_of(t);
        sum.bytes += t->bytes;
    }
    return sum;
}

static double bits_per_value(struct total sum)
{
    return sum.values ? 8 * (double)sum.bytes / (double)sum.values : 0;
}

/* Decodes the first character of s: returns its length in bytes; *c is its code point, or -1 for an
 * invalid byte. */
static size_t next_char(struct gr_str s, int32_t *c)
{
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s.p, (utf8proc_ssize_t)s.n, c);
    if (n > 0)
        return (size_t)n;
    *c = -1;
    return 1;
}

/* Returns whether a character is safe to print on a terminal: no control, format, private-use or
 * unassigned character. */
static bool is_plain(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k != UTF8PROC_CATEGORY_CC && k != UTF8PROC_CATEGORY_CF && k != UTF8PROC_CATEGORY_CS &&
           k != UTF8PROC_CATEGORY_CO && k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_ZL &&
           k != UTF8PROC_CATEGORY_ZP;
}

static void print_escaped(FILE *out, struct gr_str s)
{
    int32_t c;
    for (size_t n; s.n; s.p += n, s.n -= n) {
        n = next_char(s, &c);
        if (c == '\n')
            fputs("\\n", out);
        else if (c == '\t')
            fputs("\\t", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (char)c);
        else if (c < 0)
            fprintf(out, "\\x%02x", (unsigned char)s.p[0]);
        else if (is_plain(c))
            fwrite(s.p, 1, n, out);
        else
            fprintf(out, "\\u%04" PRIx32, (uint32_t)c);
    }
}

/* Prints a quoted string, cut to at most `limit` bytes (whole characters) and then followed by its
 * length. */
static void print_string(FILE *out, struct gr_str s, size_t limit)
{
    struct gr_str head = {s.p, GR_MIN(s.n, limit)};
    while (head.n < s.n && head.n > 0 && ((unsigned char)s.p[head.n] & 0xc0) == 0x80)
        head.n--;
    fputc('"', out);
    print_escaped(out, head);
    fputc('"', out);
    if (head.n < s.n)
        fprintf(out, "... (%zu bytes)", s.n);
}

/* Prints the fewest digits that convert back to the same f32 (f64). */
static void print_float(FILE *out, const struct gr_gguf_kv *kv, double x)
{
    char text[40];
    bool single = kv->item == GR_GGUF_F32;
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (single ? strtof(text, NULL) == (float)x : strtod(text, NULL) == x)
            break;
    }
    fputs(text, out);
}

/* Prints item i, which is not a string. */
static void print_number(FILE *out, const struct gr_gguf_kv *kv, uint64_t i)
{
    int64_t x;
    double d;
    if (kv->item == GR_GGUF_BOOL)
        fputs(gr_gguf_item_bool(kv, i) ? "true" : "false", out);
    else if (gr_gguf_item_f64(kv, i, &d))
        print_float(out, kv, d);
    else if (gr_gguf_item_i64(kv, i, &x))
        fprintf(out, "%" PRId64, x);
    else /* a u64 beyond the range of i64 */
        fprintf(out, "%" PRIu64, (uint64_t)x);
}

static void print_value(FILE *out, const struct gr_gguf_kv *kv)
{
    bool array = kv->type == GR_GGUF_ARRAY;
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    struct gr_str s;
    fputs(array ? "[" : "", out);
    for (uint64_t i = 0; i < GR_MIN(kv->n, (uint64_t)TEXT_ITEMS); i++) {
        fputs(i ? ", " : "", out);
        if (gr_gguf_str_next(&it, &s))
            print_string(out, s, array ? TEXT_BYTES / 3 : TEXT_BYTES);
        else
            print_number(out, kv, i);
    }
    fputs(kv->n > TEXT_ITEMS ? ", ..." : "", out);
    fputs(array ? "]" : "", out);
}

/* Returns the type as text: "u32", "string[32000]". */
static const char *type_text(char dst[48], const struct gr_gguf_kv *kv)
{
    if (kv->type == GR_GGUF_ARRAY)
        snprintf(dst, 48, "%s[%" PRIu64 "]", gr_gguf_type_name(kv->item), kv->n);
    else
        snprintf(dst, 48, "%s", gr_gguf_type_name(kv->type));
    return dst;
}

static const char *bytes_text(char dst[48], uint64_t n)
{
    static const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n;
    size_t u = 0;
    for (; x >= 1024 && u + 1 < GR_COUNT(units); u++)
        x /= 1024;
    snprintf(dst, 48, u ? "%.2f %s" : "%.0f %s", x, units[u]);
    return dst;
}

static const char *shape_text(char dst[96], const struct gr_gguf_tensor *t)
{
    int n = 0;
    for (uint32_t i = 0; i < t->n_dim; i++)
        n += snprintf(dst + n, (size_t)(96 - n), "%s%" PRIu64, i ? " x " : "", t->ne[i]);
    return dst;
}

/* Prints a name and pads to the column. */
static void print_name(FILE *out, struct gr_str name, size_t column)
{
    fputs("  ", out);
    print_escaped(out, name);
    fprintf(out, "%*s", (int)(name.n < column ? column - name.n : 0) + 2, "");
}

/* Returns llama.cpp's name of a general.file_type, or NULL. */
static const char *file_type_name(uint32_t file_type)
{
    switch (file_type) {
#define FILE_TYPE(NAME, number, TYPE)                                                              \
    case number:                                                                                   \
        return #NAME;
#include "gguf/file_type.def"
#undef FILE_TYPE
    case 39: /* written by converters only */
        return "NVFP4";
    default:
        return NULL;
    }
}

static void print_head(FILE *out, const struct gr_gguf *g)
{
    char size[48], meta[48];
    struct gr_str s;
    uint32_t file_type;
    fprintf(out,
            "%s: GGUF version %" PRIu32 ", %s (%" PRIu64 " bytes), metadata %s, alignment %" PRIu64
            "\n",
            gr_gguf_path(g, 0), gr_gguf_version(g), bytes_text(size, gr_gguf_bytes(g)),
            gr_gguf_bytes(g), bytes_text(meta, gr_gguf_meta_bytes(g)), gr_gguf_alignment(g));
    for (uint32_t k = 1; k < gr_gguf_n_part(g); k++)
        fprintf(out, "%s\n", gr_gguf_path(g, k));
    if (gr_gguf_opt_str(g, "general.architecture", "", &s) == 0 && s.n) {
        fputs("architecture ", out);
        print_escaped(out, s);
        if (gr_gguf_opt_u32(g, "general.file_type", UINT32_MAX, &file_type) == 0 &&
            file_type_name(file_type))
            fprintf(out, ", file type %s", file_type_name(file_type));
        fputc('\n', out);
    }
}

static void print_keys(FILE *out, const struct gr_gguf *g)
{
    char type[48];
    size_t column = 0;
    for (uint64_t i = 0; i < gr_gguf_n_kv(g); i++)
        column = GR_MAX(column, GR_MIN(gr_gguf_kv_at(g, i)->key.n, (size_t)48));
    fprintf(out, "\n%" PRIu64 " keys\n", gr_gguf_n_kv(g));
    for (uint64_t i = 0; i < gr_gguf_n_kv(g); i++) {
        const struct gr_gguf_kv *kv = gr_gguf_kv_at(g, i);
        print_name(out, kv->key, column);
        fprintf(out, "%-14s ", type_text(type, kv));
        print_value(out, kv);
        fputc('\n', out);
    }
}

static void print_tensors(FILE *out, const struct gr_gguf *g)
{
    char shape[96], size[48];
    size_t column = 0;
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++)
        column = GR_MAX(column, GR_MIN(gr_gguf_tensor_at(g, i)->name.n, (size_t)48));
    fprintf(out, "\n%" PRIu64 " tensors%s\n", gr_gguf_n_tensor(g),
            gr_gguf_n_tensor(g) ? " (shape: innermost dimension first)" : "");
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g); i++) {
        const struct gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
        print_name(out, t->name, column);
        fprintf(out, "%-8s %-22s %12s", gr_dtype_name(t->dtype), shape_text(shape, t),
                bytes_text(size, t->bytes));
        fprintf(out, gr_gguf_n_part(g) > 1 ? "  part %" PRIu32 "\n" : "\n", t->part + 1);
    }
}

static void print_totals(FILE *out, const struct gr_gguf *g)
{
    struct total all = total_of(g, true, 0);
    char size[48];
    if (all.tensors == 0)
        return;
    fputs("\nby type\n", out);
    for (uint32_t id = 0; id < 256; id++) {
        struct total sum = gr_dtype_find(id) ? total_of(g, false, id) : (struct total){0};
        if (sum.tensors)
            fprintf(out, "  %-8s %8" PRIu64 " tensors %15" PRIu64 " values %12s\n",
                    gr_dtype_name(id), sum.tensors, sum.values, bytes_text(size, sum.bytes));
    }
    fprintf(out, "  %-8s %8" PRIu64 " tensors %15" PRIu64 " values %12s  %.2f bits a value\n",
            "all", all.tensors, all.values, bytes_text(size, all.bytes), bits_per_value(all));
}

/* Makes a JSON string from any bytes: invalid UTF-8 becomes U+FFFD. */
static json_t *json_text(struct gr_str s)
{
    struct gr_vec v = {0};
    int32_t c;
    int rc = 0;
    for (size_t n; s.n && !rc; s.p += n, s.n -= n) {
        n = next_char(s, &c);
        rc = c < 0 ? gr_vec_append(&v, "\xef\xbf\xbd", 3, 1) : gr_vec_append(&v, s.p, n, 1);
    }
    json_t *j = rc ? NULL : json_stringn(v.n ? v.data : "", v.n);
    gr_vec_fini(&v);
    return j;
}

static json_t *json_item(const struct gr_gguf_kv *kv, uint64_t i)
{
    char text[32];
    int64_t x;
    double d;
    if (kv->item == GR_GGUF_BOOL)
        return json_boolean(gr_gguf_item_bool(kv, i));
    if (gr_gguf_item_f64(kv, i, &d)) /* JSON has no inf, no nan */
        return isfinite(d) ? json_real(d) : json_sprintf("%g", d);
    if (gr_gguf_item_i64(kv, i, &x))
        return json_integer(x);
    snprintf(text, sizeof text, "%" PRIu64, (uint64_t)x);
    return json_string(text);
}

/* {"type", "value"}; of an array {"type": "array", "item", "n", "value": the first items}. */
static json_t *json_kv(const struct gr_gguf_kv *kv)
{
    struct gr_gguf_strs it = gr_gguf_strs(kv);
    struct gr_str s;
    json_t *j = json_pack("{s:s}", "type", gr_gguf_type_name(kv->type)), *values = json_array();
    int bad = !j;
    for (uint64_t i = 0; i < GR_MIN(kv->n, (uint64_t)JSON_ITEMS); i++)
        bad |= json_array_append_new(values,
                                     gr_gguf_str_next(&it, &s) ? json_text(s) : json_item(kv, i));
    if (kv->type == GR_GGUF_ARRAY) {
        bad |= json_object_set_new(j, "item", json_string(gr_gguf_type_name(kv->item)));
        bad |= json_object_set_new(j, "n", json_integer((json_int_t)kv->n));
        bad |= json_object_set(j, "value", values);
    } else {
        bad |= json_object_set(j, "value", json_array_get(values, 0));
    }
    json_decref(values);
    if (!bad)
        return j;
    json_decref(j);
    return NULL;
}

static json_t *json_tensor(const struct gr_gguf_tensor *t)
{
    json_t *shape = json_array();
    int bad = 0;
    for (uint32_t i = 0; i < t->n_dim; i++)
        bad |= json_array_append_new(shape, json_integer((json_int_t)t->ne[i]));
    if (bad) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:o, s:s, s:o, s:I, s:I, s:I}", "name", json_text(t->name), "type",
                     gr_dtype_name(t->dtype), "shape", shape, "bytes", (json_int_t)t->bytes,
                     "offset", (json_int_t)t->offset, "part", (json_int_t)t->part + 1);
}

static json_t *json_total(struct total sum)
{
    return json_pack("{s:I, s:I, s:I, s:f}", "tensors", (json_int_t)sum.tensors, "values",
                     (json_int_t)sum.values, "bytes", (json_int_t)sum.bytes, "bits_per_value",
                     bits_per_value(sum));
}

/* Fills `top`; nonzero when memory ran out. */
static int json_fill(json_t *top, const struct gr_gguf *g)
{
    json_t *files = json_array(), *keys = json_object(), *tensors = json_array(),
           *types = json_object();
    int bad =
        json_object_set_new(top, "files", files) | json_object_set_new(top, "metadata", keys) |
        json_object_set_new(top, "tensors", tensors) | json_object_set_new(top, "types", types);
    bad |= json_object_set_new(top, "version", json_integer(gr_gguf_version(g)));
    bad |= json_object_set_new(top, "alignment", json_integer((json_int_t)gr_gguf_alignment(g)));
    bad |= json_object_set_new(top, "bytes", json_integer((json_int_t)gr_gguf_bytes(g)));
    bad |=
        json_object_set_new(top, "metadata_bytes", json_integer((json_int_t)gr_gguf_meta_bytes(g)));
    for (uint32_t k = 0; k < gr_gguf_n_part(g) && !bad; k++) {
        const char *path = gr_gguf_path(g, k);
        bad |= json_array_append_new(files, json_text((struct gr_str){path, strlen(path)}));
    }
    for (uint64_t i = 0; i < gr_gguf_n_kv(g) && !bad; i++) {
        json_t *key = json_text(gr_gguf_kv_at(g, i)->key);
        bad |= !key ||
               json_object_setn_new_nocheck(keys, json_string_value(key), json_string_length(key),
                                            json_kv(gr_gguf_kv_at(g, i)));
        json_decref(key);
    }
    for (uint64_t i = 0; i < gr_gguf_n_tensor(g) && !bad; i++)
        bad |= json_array_append_new(tensors, json_tensor(gr_gguf_tensor_at(g, i)));
    for (uint32_t id = 0; id < 256 && !bad; id++)
        if (gr_dtype_find(id) && total_of(g, false, id).tensors)
            bad |=
                json_object_set_new(types, gr_dtype_name(id), json_total(total_of(g, false, id)));
    return bad | json_object_set_new(top, "total", json_total(total_of(g, true, 0)));
}

static int print_json(FILE *out, const struct gr_gguf *g)
{
    json_t *top = json_object();
    bool bad = !top || json_fill(top, g);
    if (!bad && json_dumpf(top, out, JSON_INDENT(1)) == 0)
        fputc('\n', out);
    else
        bad = bad || !ferror(out); /* write errors are reported by the caller */
    json_decref(top);
    return bad ? gr_fail(GR_E_NOMEM_HOST, "out of host memory: JSON of %s", gr_gguf_path(g, 0)) : 0;
}

int gr_gguf_print(const struct gr_gguf *g, FILE *out, bool json)
{
    int rc = 0;
    if (json) {
        rc = print_json(out, g);
    } else {
        print_head(out, g);
        print_keys(out, g);
        print_tensors(out, g);
        print_totals(out, g);
    }
    if (!rc && (fflush(out) != 0 || ferror(out)))
        rc = gr_fail(GR_E_IO, "writing what is in %s failed", gr_gguf_path(g, 0));
    return rc;
}

int gr_inspect(const char *path, FILE *out, bool json)
{
    struct gr_gguf *g;
    int rc = gr_gguf_open(&g, path, false);
    if (!rc)
        rc = gr_gguf_print(g, out, json);
    gr_gguf_close(&g);
    return rc;
}
