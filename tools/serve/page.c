#include "page.h"

#include <nettle/base64.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char gr_page_text[], gr_page_text_end[], gr_openapi_text[],
    gr_openapi_text_end[]; /* page.S */

enum { HASH = BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE) + 1 };

/* Writes the SHA-256 of a text as a Content-Security-Policy names it. */
static void hash(char out[HASH], const char *p, size_t n)
{
    struct sha256_ctx sha;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_init(&sha);
    sha256_update(&sha, n, (const uint8_t *)p);
    sha256_digest(&sha, sizeof digest, digest);
    base64_encode_raw(out, sizeof digest, digest);
    out[BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE)] = 0;
}

/* Hashes the text between the first `open` and the `close` behind it. */
static void hash_between(char out[HASH], const char *open, const char *close)
{
    const char *lo = strstr(gr_page_text, open) + strlen(open);
    hash(out, lo, (size_t)(strstr(lo, close) - lo));
}

/* Answers with an embedded file, which the client may keep until it is another one. */
static void answer_file(struct gr_exchange *x, const char *type, const char *text, size_t n)
{
    char whole[HASH], tag[HASH + 2];
    const char *known = gr_exchange_header(x, "If-None-Match");
    hash(whole, text, n);
    snprintf(tag, sizeof tag, "\"%s\"", whole);
    gr_exchange_add_header(x, "ETag", tag);
    gr_exchange_add_header(x, "Cache-Control", "no-cache");
    if (known && strstr(known, tag)) {
        gr_exchange_answer(x, 304, NULL, NULL, 0);
        return;
    }
    char *copy = malloc(n);
    if (copy)
        memcpy(copy, text, n);
    gr_exchange_answer(x, copy ? 200 : 503, type, copy, copy ? n : 0);
}

void gr_page(struct gr_exchange *x, void *user)
{
    char style[HASH], script[HASH], policy[320];
    (void)user;
    hash_between(style, "<style>", "</style>");
    hash_between(script, "<script>", "</script>");
    snprintf(policy, sizeof policy,
             "default-src 'none'; connect-src 'self'; style-src 'sha256-%s'; "
             "script-src 'sha256-%s'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             style, script);
    gr_exchange_add_header(x, "Content-Security-Policy", policy);
    gr_exchange_add_header(x, "Referrer-Policy", "no-referrer");
    /* cppcheck-suppress comparePointers ; both are labels of page.S */
    size_t n = (size_t)(gr_page_text_end - gr_page_text);
    answer_file(x, "text/html; charset=utf-8", gr_page_text, n);
}

void gr_openapi(struct gr_exchange *x, void *user)
{
    (void)user;
    /* cppcheck-suppress comparePointers ; likewise */
    size_t n = (size_t)(gr_openapi_text_end - gr_openapi_text);
    answer_file(x, "application/yaml", gr_openapi_text, n);
}
