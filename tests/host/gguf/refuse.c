/* Files that must be refused, each with the place and the fact in one line. */
#include "bytes.h"

#include "gr/dtype.h"

/* A good file: one key, two tensors of 64 and 34 bytes, data of 128 bytes. */
static void put_good(struct bytes *b, const char *name0, uint64_t offset0, const char *name1,
                     uint64_t offset1)
{
    put_head(b, 3, 2, 1);
    put_kv_str(b, "general.architecture", "none");
    put_tensor(b, name0, 4, 4, GR_F32, offset0);
    put_tensor(b, name1, 32, 1, GR_Q8_0, offset1);
    put_pad(b, 32);
    for (int i = 0; i < 128; i++)
        put_int(b, (uint64_t)i, 1);
}

Test(gguf_refuse, not_gguf)
{
    static const struct {
        const char *p;
        size_t n;
        const char *text;
    } files[] = {
        {"version https://git-lfs.github.com/spec/v1\noid", 46, "a Git LFS pointer"},
        {"<!DOCTYPE html><html>", 21, "an HTML page"},
        {"<html><head>", 12, "an HTML page"},
        {"PK\3\4\24\0\0\0\10\0\0\0", 12, "a zip file"},
        {"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}", 27, "safetensors"},
        {"\x80\2}q\0X", 6, "a Python pickle"},
        {"tjgg\3\0\0\0", 8, "the format before GGUF"},
        {"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16, "an unfinished download"},
        {"\x1f\x8b\x08\0", 4, "gzip"},
        {"plain words\n", 12,
         "not a GGUF file: expected 'GGUF', found 'plain words\\x0a' (byte 0)"},
        {"GGU", 3, "expected 'GGUF', found 'GGU'"},
        {"", 0, "it is empty"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct bytes b = {.n = 0};
        put(&b, files[i].p, files[i].n);
        refused(&b, GR_E_CORRUPT, files[i].text);
    }
}

Test(gguf_refuse, versions_and_byte_order)
{
    static const struct {
        uint32_t v;
        const char *text;
    } versions[] = {
        {0, "expected version 2 or 3, found 0 (byte 4)"},
        {1, "expected version 2 or 3, found 1 (byte 4)"},
        {4, "expected version 2 or 3, found 4 (byte 4)"},
        {0x03000000, "big-endian file: expected version 2 or 3, found 0x03000000 (byte 4)"},
    };
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct bytes b = {.n = 0};
        put_head(&b, versions[i].v, 0, 0);
        refused(&b, GR_E_UNSUPPORTED, versions[i].text);
    }
}

Test(gguf_refuse, counts)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 0, 1ull << 63);
    refused(&b, GR_E_CORRUPT,
            "number of keys: expected at most 65536, found 9223372036854775808 (byte 16)");
    b.n = 0, put_head(&b, 3, UINT64_MAX, 0);
    refused(&b, GR_E_CORRUPT,
            "number of tensors: expected at most 1048576, found 18446744073709551615 (byte 8)");
    b.n = 0, put_head(&b, 3, 0, 2), put_kv_u32(&b, "a", 1);
    refused(&b, GR_E_CORRUPT,
            "number of keys: expected at most 1 (what the rest of the file can hold), found 2");
    b.n = 0, put_head(&b, 3, 0, 1), put_array(&b, "a", GR_GGUF_U64, 1ull << 61), put_int(&b, 0, 64);
    refused(&b, GR_E_CORRUPT,
            "key 'a': array length: expected at most 8 (what the rest of the file can hold), found "
            "2305843009213693952 (byte 41)");
    b.n = 0, put_head(&b, 3, 0, 1), put_array(&b, "a", GR_GGUF_STR, 3), put_int(&b, 0, 16);
    refused(&b, GR_E_CORRUPT, "array length");
    b.n = 0, put_head(&b, 3, 0, 1), put_key(&b, "a", GR_GGUF_STR), put_int(&b, UINT64_MAX - 7, 8);
    refused(&b, GR_E_CORRUPT,
            "key 'a': the file ends inside the string: expected 18446744073709551608 more bytes, "
            "found 0 (byte 45)");
}

Test(gguf_refuse, keys_and_values)
{
    struct bytes b = {.n = 0};
    put_head(&b, 3, 0, 2), put_kv_u32(&b, "a", 1), put_kv_str(&b, "a", "x");
    refused(&b, GR_E_CORRUPT, "key 'a': occurs twice (values at bytes 37 and 54)");
    b.n = 0, put_head(&b, 3, 0, 1), put_kv_u32(&b, "", 1), put_int(&b, 0, 8);
    refused(&b, GR_E_CORRUPT,
            "key number 0: length of the name: expected 1 to 65535, found 0 (byte 24)");
    b.n = 0, put_head(&b, 3, 0, 1), put_key(&b, "a\n", 13), put_int(&b, 0, 8);
    refused(&b, GR_E_UNSUPPORTED,
            "key 'a\\x0a': unknown value type: expected 0 to 12, found 13 (byte 34)");
    b.n = 0, put_head(&b, 3, 0, 1), put_array(&b, "a", 77, 1), put_int(&b, 0, 8);
    refused(&b, GR_E_UNSUPPORTED,
            "key 'a': unknown item type: expected 0 to 12, found 77 (byte 37)");
    b.n = 0, put_head(&b, 3, 0, 1), put_array(&b, "a", GR_GGUF_ARRAY, 1), put_int(&b, 0, 20);
    refused(&b, GR_E_UNSUPPORTED, "key 'a': arrays of arrays are not supported (byte 37)");
    b.n = 0, put_head(&b, 3, 0, 1), put_key(&b, "a", GR_GGUF_BOOL), put_int(&b, 2, 1);
    refused(&b, GR_E_CORRUPT, "key 'a': expected a bool of 0 or 1, found 2 (byte 37)");
    b.n = 0, put_head(&b, 3, 0, 1), put_array(&b, "a", GR_GGUF_BOOL, 3), put_int(&b, 0xff0001, 3);
    refused(&b, GR_E_CORRUPT, "key 'a': expected a bool of 0 or 1, found 255 (byte 51)");
}

Test(gguf_refuse, alignment)
{
    static const uint64_t bad[] = {0, 1, 4, 24, 33, 1u << 25, 1u << 31, UINT32_MAX};
    struct bytes b = {.n = 0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        b.n = 0, put_head(&b, 3, 0, 1), put_kv_u32(&b, "general.alignment", (uint32_t)bad[i]);
        refused(&b, GR_E_CORRUPT,
                "key 'general.alignment': expected a power of two from 8 to 16777216, found ");
    }
    b.n = 0, put_head(&b, 3, 0, 1), put_key(&b, "general.alignment", GR_GGUF_U64),
    put_int(&b, 32, 8);
    refused(&b, GR_E_CORRUPT, "key 'general.alignment': expected a u32, found type u64 (byte 53)");
    b.n = 0, put_head(&b, 3, 0, 1), put_array(&b, "general.alignment", GR_GGUF_U32, 1),
    put_int(&b, 32, 4);
    refused(&b, GR_E_CORRUPT, "expected a u32, found type array");
}

/* One tensor of the given shape and type, and plenty of data. */
static void put_one(struct bytes *b, uint32_t n_dim, uint64_t ne0, uint64_t ne1, uint32_t dtype,
                    uint64_t offset)
{
    b->n = 0;
    put_head(b, 3, 1, 0);
    put_str(b, "t");
    put_int(b, n_dim, 4);
    for (uint32_t i = 0; i < n_dim && i < 8; i++)
        put_int(b, i == 0 ? ne0 : i == 1 ? ne1 : 1, 8);
    put_int(b, dtype, 4);
    put_int(b, offset, 8);
    put_pad(b, 32);
    put_int(b, 0, 512);
}

Test(gguf_refuse, tensor_shapes_and_types)
{
    struct bytes b = {.n = 0};
    put_one(&b, 0, 1, 1, GR_F32, 0);
    refused(&b, GR_E_CORRUPT, "tensor 't': expected 1 to 4 dimensions, found 0 (byte 33)");
    put_one(&b, 5, 1, 1, GR_F32, 0);
    refused(&b, GR_E_CORRUPT, "tensor 't': expected 1 to 4 dimensions, found 5 (byte 33)");
    put_one(&b, UINT32_MAX, 1, 1, GR_F32, 0);
    refused(&b, GR_E_CORRUPT, "expected 1 to 4 dimensions, found 4294967295");
    put_one(&b, 2, 0, 1, GR_F32, 0);
    refused(&b, GR_E_CORRUPT, "tensor 't': dimension 0 is 0 (byte 37)");
    put_one(&b, 2, 1, 0, GR_F32, 0);
    refused(&b, GR_E_CORRUPT, "tensor 't': dimension 1 is 0 (byte 45)");
    put_one(&b, 2, 48, 1, GR_Q4_0, 0);
    refused(&b, GR_E_CORRUPT,
            "tensor 't': dimension 0: expected a multiple of 32 for type q4_0, found 48 (byte 37)");
    put_one(&b, 2, 1ull << 32, 1ull << 31, GR_F32, 0);
    refused(&b, GR_E_CORRUPT,
            "dimensions 4294967296 x 2147483648 x 1 x 1 of type f32 are too large (byte 37)");
    put_one(&b, 2, UINT64_MAX, 1, GR_I8, 0);
    refused(&b, GR_E_CORRUPT, "too large");
    put_one(&b, 2, 1ull << 62, 1, GR_F32, 0);
    refused(&b, GR_E_CORRUPT, "too large");
    put_one(&b, 2, 32, 1, 4, 0);
    refused(&b, GR_E_UNSUPPORTED, "tensor 't': unknown storage type 4 (byte 53)");
    put_one(&b, 2, 32, 1, UINT32_MAX, 0);
    refused(&b, GR_E_UNSUPPORTED, "unknown storage type 4294967295");
}

Test(gguf_refuse, tensor_places)
{
    struct bytes b = {.n = 0};
    struct gr_gguf *g;
    put_one(&b, 2, 64, 2, GR_F32, 0);
    cr_assert_eq(gr_gguf_open_memory(&g, b.p, b.n, "x.gguf"), 0, "512 bytes are just enough: %s",
                 gr_error());
    gr_gguf_close(&g);
    put_one(&b, 2, 64, 2, GR_F32, 32);
    refused(&b, GR_E_CORRUPT,
            "tensor 't': expected 512 bytes at offset 32 of the data, which begins at byte 96; the "
            "file has 608 "
            "bytes: it may be truncated (byte 57)");
    put_one(&b, 2, 4, 1, GR_F32, 16);
    refused(&b, GR_E_CORRUPT,
            "tensor 't': offset: expected a multiple of the alignment 32, found 16 (byte 57)");
    put_one(&b, 2, 4, 1, GR_F32, UINT64_MAX - 31);
    refused(&b, GR_E_CORRUPT, "bytes at offset 18446744073709551584");
    b.n = 0, put_good(&b, "a", 0, "a", 64);
    refused(&b, GR_E_CORRUPT, "tensor 'a': occurs twice (data at bytes 160 and 224)");
    b.n = 0, put_good(&b, "a", 0, "b", 32);
    refused(&b, GR_E_CORRUPT,
            "tensor 'a': its data overlaps tensor 'b': expected it to end at or before byte 192, "
            "found 224 (byte 160)");
    b.n = 0, put_good(&b, "a", 32, "b", 32);
    refused(&b, GR_E_CORRUPT, "overlaps");
    b.n = 0, put_good(&b, "a", 32, "b", 0);
    refused(&b, GR_E_CORRUPT, "tensor 'b': its data overlaps tensor 'a'");
    b.n = 0, put_head(&b, 3, 2, 0); /* by one byte */
    put_tensor(&b, "a", 33, 1, GR_I8, 0), put_tensor(&b, "b", 1, 1, GR_I8, 32), put_pad(&b, 32),
        put_int(&b, 0, 64);
    refused(&b, GR_E_CORRUPT, "tensor 'a': its data overlaps tensor 'b'");
    b.n = 0, put_good(&b, "a", 64, "b", 0);
    cr_assert_eq(gr_gguf_open_memory(&g, b.p, b.n, "x.gguf"), 0, "any order is fine: %s",
                 gr_error());
    gr_gguf_close(&g);
}

Test(gguf_refuse, files_that_are_none)
{
    struct gr_gguf *g;
    for (int mapped = 0; mapped < 2; mapped++) {
        cr_assert_eq(gr_gguf_open(&g, GR_BINARY_DIR "/no-such.gguf", mapped), GR_E_NO_MODEL);
        cr_assert(!g && strstr(gr_error(), "no-such.gguf: "));
        cr_assert_eq(gr_gguf_open(&g, GR_BINARY_DIR, mapped), GR_E_IO);
        cr_assert(!g && strstr(gr_error(), "not a regular file"));
    }
}
