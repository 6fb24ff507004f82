/* GGUF model files: metadata (key, typed value) and a table of tensors, versions 2 and 3,
 * little-endian, one file or split into parts.
 *
 * The metadata is copied into memory when a file is opened and checked completely: an open file has
 * no truncated item, duplicate name, unknown type, overlapping or misplaced tensor. Callers check
 * only what the values mean for a model. Strings and arrays are views into that copy: they are
 * valid until gr_gguf_close, are not zero-terminated, and numbers in arrays are not aligned (use
 * memcpy or the gr_gguf_item_ functions). An open file is immutable; threads may share it.
 *
 * Messages name file, key or tensor, what was expected and found, and the byte offset. Statuses:
 * GR_E_CORRUPT (broken file, missing key, wrong type), GR_E_UNSUPPORTED (version, byte order,
 * storage type), GR_E_NO_MODEL (no such file or part), GR_E_IO, GR_E_NOMEM_HOST. */
#ifndef GR_GGUF_H
#define GR_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A view of n bytes; not zero-terminated. */
struct gr_str {
    const char *p;
    size_t n;
};

/* Type of a metadata value; the numbers are those of the file format. */
enum gr_gguf_type {
    GR_GGUF_U8,
    GR_GGUF_I8,
    GR_GGUF_U16,
    GR_GGUF_I16,
    GR_GGUF_U32,
    GR_GGUF_I32,
    GR_GGUF_F32,
    GR_GGUF_BOOL,
    GR_GGUF_STR,
    GR_GGUF_ARRAY,
    GR_GGUF_U64,
    GR_GGUF_I64,
    GR_GGUF_F64,
    GR_GGUF_N_TYPE
};

/* Limits on files. */
#define GR_GGUF_MAX_META (128u << 20) /* bytes of metadata and tensor table of one part */
#define GR_GGUF_MAX_KV (1u << 16)     /* keys of one part */
#define GR_GGUF_MAX_TENSOR (1u << 20) /* tensors of one part */
#define GR_GGUF_MAX_NAME 65535u       /* bytes of a key or tensor name */
#define GR_GGUF_MIN_ALIGN 8u          /* general.alignment is a power of two from MIN to MAX */
#define GR_GGUF_MAX_ALIGN (1u << 24)
#define GR_GGUF_DEFAULT_ALIGN 32u

/* Limit on the memory, in bytes, of a file's metadata and everything derived from it: tables,
 * vocabulary, names of scores. */
#define GR_GGUF_MAX_HELD ((size_t)512 << 20)
/* Sets the message for a file that exceeds it; returns GR_E_CORRUPT. */
int gr_gguf_too_much(const char *path);

/* One metadata entry. A scalar is an array of one: n == 1 and item == type. `data` holds the n
 * items as in the file: little-endian, packed, unaligned; a string is a u64 length and its bytes
 * (read them with gr_gguf_str_next). */
struct gr_gguf_kv {
    struct gr_str key;
    enum gr_gguf_type type; /* GR_GGUF_ARRAY for arrays */
    enum gr_gguf_type item; /* type of the items, never GR_GGUF_ARRAY */
    uint64_t n;             /* items */
    const void *data;       /* the items, `bytes` long */
    uint64_t bytes;
    uint64_t offset; /* of `data` in the file */
};

/* One tensor. */
struct gr_gguf_tensor {
    struct gr_str name;
    uint32_t dtype;  /* enum gr_dtype, always a known one */
    uint32_t n_dim;  /* 1 to 4 */
    uint64_t ne[4];  /* innermost first, padded with 1; none is 0 */
    uint64_t bytes;  /* gr_tensor_bytes of the shape */
    uint64_t offset; /* of its data, from the start of its part's file */
    uint32_t part;
    const void *data; /* its data when the file is mapped or in memory, else NULL */
};

struct gr_gguf;

/* Opens `path`; when it is the first part of a split file, all parts. `mapped`: maps the files, so
 * that tensors have `data`; where mapping is refused `data` is NULL and gr_gguf_read still works.
 * *out is NULL on failure. */
int gr_gguf_open(struct gr_gguf **out, const char *path, bool mapped);

/* The same for a complete, unsplit file p[0, n) in memory, which must outlive *out; `name` is used
 * in messages. */
int gr_gguf_open_memory(struct gr_gguf **out, const void *p, size_t n, const char *name);

/* Closes and sets *g to NULL; NULL is fine. */
void gr_gguf_close(struct gr_gguf **g);

/* Replaces the value of a key, or adds one, in this open file alone: "KEY=TYPE:VALUE", TYPE int,
 * float, bool (true, false) or str. Before other threads use it; views of that key are no longer
 * valid. GR_E_INVALID: not of that form, of another type than the file's, or a key that counts only
 * while a file is opened. */
int gr_gguf_override(struct gr_gguf *g, const char *text);

/* Properties of the file. Keys are those of the first part; parts are counted from 0. */
const char *gr_gguf_path(const struct gr_gguf *g, uint32_t part);
uint32_t gr_gguf_n_part(const struct gr_gguf *g);
uint32_t gr_gguf_version(const struct gr_gguf *g);
uint64_t gr_gguf_alignment(const struct gr_gguf *g);
uint64_t gr_gguf_bytes(const struct gr_gguf *g);      /* size of all parts */
uint64_t gr_gguf_meta_bytes(const struct gr_gguf *g); /* metadata and tensor tables of all parts */

/* Entries in file order; i below the count. */
uint64_t gr_gguf_n_kv(const struct gr_gguf *g);
const struct gr_gguf_kv *gr_gguf_kv_at(const struct gr_gguf *g, uint64_t i);
uint64_t gr_gguf_n_tensor(const struct gr_gguf *g);
const struct gr_gguf_tensor *gr_gguf_tensor_at(const struct gr_gguf *g, uint64_t i);

/* Find an entry by name; NULL: none. O(log n). */
const struct gr_gguf_kv *gr_gguf_find(const struct gr_gguf *g, const char *key);
const struct gr_gguf_tensor *gr_gguf_find_tensor(const struct gr_gguf *g, const char *name);

/* Typed values of required keys: GR_E_CORRUPT when the key is missing or of another type; *out is
 * unchanged then. The integer functions accept every integer type whose value fits, gr_gguf_f32
 * accepts f32 and f64. */
int gr_gguf_u32(const struct gr_gguf *g, const char *key, uint32_t *out);
int gr_gguf_i64(const struct gr_gguf *g, const char *key, int64_t *out);
int gr_gguf_f32(const struct gr_gguf *g, const char *key, float *out);
int gr_gguf_bool(const struct gr_gguf *g, const char *key, bool *out);
int gr_gguf_str(const struct gr_gguf *g, const char *key, struct gr_str *out);
/* An array whose items have exactly type `item`. */
int gr_gguf_array(const struct gr_gguf *g, const char *key, enum gr_gguf_type item,
                  const struct gr_gguf_kv **out);

/* Optional keys: `def` (NULL for the array) when the key is missing; a key of another type still
 * fails. */
int gr_gguf_opt_u32(const struct gr_gguf *g, const char *key, uint32_t def, uint32_t *out);
int gr_gguf_opt_i64(const struct gr_gguf *g, const char *key, int64_t def, int64_t *out);
int gr_gguf_opt_f32(const struct gr_gguf *g, const char *key, float def, float *out);
int gr_gguf_opt_bool(const struct gr_gguf *g, const char *key, bool def, bool *out);
int gr_gguf_opt_str(const struct gr_gguf *g, const char *key, const char *def, struct gr_str *out);
int gr_gguf_opt_array(const struct gr_gguf *g, const char *key, enum gr_gguf_type item,
                      const struct gr_gguf_kv **out);

/* Reads one value for each of n layers to dst[0, n): the key holds an array of at least n integers,
 * or one integer for all layers. Bools count as 0 and 1. */
int gr_gguf_u32_each(const struct gr_gguf *g, const char *key, uint32_t *dst, uint64_t n);

/* Item i < kv->n as a number. False when the item is of another kind (bools and strings are no
 * numbers) or does not fit. */
bool gr_gguf_item_i64(const struct gr_gguf_kv *kv, uint64_t i,
                      int64_t *out); /* every integer type */
bool gr_gguf_item_f64(const struct gr_gguf_kv *kv, uint64_t i, double *out); /* f32 and f64 */
bool gr_gguf_item_bool(const struct gr_gguf_kv *kv, uint64_t i);             /* bool items only */

/* Iterates over the strings of an entry, O(1) each: for (it = gr_gguf_strs(kv);
 * gr_gguf_str_next(&it, &s);). No iterations when the items are not strings. */
struct gr_gguf_strs {
    const unsigned char *p;
    uint64_t left;
};
struct gr_gguf_strs gr_gguf_strs(const struct gr_gguf_kv *kv);
bool gr_gguf_str_next(struct gr_gguf_strs *it, struct gr_str *out);

/* Name of a type ("u32"); "?" outside the enum. */
const char *gr_gguf_type_name(enum gr_gguf_type type);
/* Bytes of one item, 0 for strings and arrays. */
size_t gr_gguf_type_bytes(enum gr_gguf_type type);
bool gr_str_is(struct gr_str s, const char *text);

/* Copy bytes [off, off + n) of tensor t, or all of it, to dst. Files are read by pread, mapped or
 * not, so a truncated file gives GR_E_IO instead of SIGBUS; dst is zeroed on failure. GR_E_INVALID
 * when the range is not inside the tensor. */
int gr_gguf_read(const struct gr_gguf *g, const struct gr_gguf_tensor *t, uint64_t off, void *dst,
                 size_t n);
int gr_gguf_read_tensor(const struct gr_gguf *g, const struct gr_gguf_tensor *t, void *dst);

/* Returns 0 when no part has changed on disk since it was opened, else GR_E_CORRUPT. Call it after
 * reading weights. */
int gr_gguf_unchanged(const struct gr_gguf *g);

/* --- Writing
 * -------------------------------------------------------------------------------------------------------
 * Order of calls: new, set keys, add tensors, begin, write the data of the tensors in order,
 * commit. Each function refuses what the reader would refuse (GR_E_INVALID). The complete file
 * appears under its name at commit; free without commit leaves an existing file as it was. Files
 * are version 3. general.alignment takes effect when it is set. */
struct gr_gguf_writer;

int gr_gguf_writer_new(struct gr_gguf_writer **out);
void gr_gguf_writer_free(struct gr_gguf_writer **w); /* also after commit; NULL is fine */

/* Setting a key again replaces its value and keeps its position. */
int gr_gguf_set_u32(struct gr_gguf_writer *w, const char *key, uint32_t value);
int gr_gguf_set_f32(struct gr_gguf_writer *w, const char *key, float value);
int gr_gguf_set_bool(struct gr_gguf_writer *w, const char *key, bool value);
int gr_gguf_set_str(struct gr_gguf_writer *w, const char *key, const char *text);
/* Sets a scalar of any fixed-size type; *value is in host representation. */
int gr_gguf_set_scalar(struct gr_gguf_writer *w, const char *key, enum gr_gguf_type type,
                       const void *value);
/* Set an array of n items of a fixed-size type, or of n strings. */
int gr_gguf_set_array(struct gr_gguf_writer *w, const char *key, enum gr_gguf_type item,
                      const void *items, uint64_t n);
int gr_gguf_set_strs(struct gr_gguf_writer *w, const char *key, const struct gr_str *items,
                     uint64_t n);
/* Copy one entry of an open file, or all of them except split.* (the writer makes one file). */
int gr_gguf_copy_kv(struct gr_gguf_writer *w, const struct gr_gguf_kv *kv);
int gr_gguf_copy_all(struct gr_gguf_writer *w, const struct gr_gguf *g);

/* Returns "prefix-00001-of-00003.gguf" for part 0 of 3, or `prefix` itself when n_part is 1
 * (gr_free); NULL when there is no memory. */
char *gr_gguf_part_name(const char *prefix, uint32_t part, uint32_t n_part);

int gr_gguf_add_tensor(struct gr_gguf_writer *w, struct gr_str name, uint32_t dtype, uint32_t n_dim,
                       const uint64_t *ne);

/* Writes metadata and tensor table; keys and tensors are fixed from here on. */
int gr_gguf_begin(struct gr_gguf_writer *w, const char *path);
/* Writes the next n bytes of the current tensor; when it is complete the next one begins. A call
 * may not cross a tensor's end. */
int gr_gguf_write(struct gr_gguf_writer *w, const void *data, size_t n);
/* Completes the file: syncs it and renames it to its final name. GR_E_INVALID when data is
 * missing. */
int gr_gguf_commit(struct gr_gguf_writer *w);

#endif
