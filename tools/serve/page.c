#include "page.h"

#include <nettle/base64.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char gr_page_text[], gr_page_text_end[]; /* page.S */

/* Writes the SHA-256 of a text as a Content-Security-Policy names it. */
static void hash(char out[BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE) + 1], const char *p,
                 size_t n)
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
static void hash_between(char out[BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE) + 1],
                         const char *open, const char *close)
{
    const char *lo = strstr(gr_page_text, open) + strlen(open);
    hash(out, lo, (size_t)(strstr(lo, close) - lo));
}

void gr_page(struct gr_exchange *x, void *user)
{
    char style[BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE) + 1], script[sizeof style],
        whole[sizeof style], tag[sizeof whole + 2], policy[320];
    /* cppcheck-suppress comparePointers ; both are labels of page.S */
    size_t n = (size_t)(gr_page_text_end - gr_page_text);
    const char *known = gr_exchange_header(x, "If-None-Match");
    (void)user;
    hash_between(style, "<style>", "</style>");
    hash_between(script, "<script>", "</script>");
    hash(whole, gr_page_text, n);
    snprintf(tag, sizeof tag, "\"%s\"", whole);
    snprintf(policy, sizeof policy,
             "default-src 'none'; connect-src 'self'; style-src 'sha256-%s'; "
             "script-src 'sha256-%s'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
             style, script);
    gr_exchange_add_header(x, "ETag", tag);
    gr_exchange_add_header(x, "Cache-Control", "no-cache");
    gr_exchange_add_header(x, "Content-Security-Policy", policy);
    gr_exchange_add_header(x, "Referrer-Policy", "no-referrer");
    if (known && strstr(known, tag)) {
        gr_exchange_answer(x, 304, NULL, NULL, 0);
        return;
    }
    char *copy = malloc(n);
    if (copy)
        memcpy(copy, gr_page_text, n);
    gr_exchange_answer(x, copy ? 200 : 503, "text/html; charset=utf-8", copy, copy ? n : 0);
}
