#include "digest.h"

#include <errno.h>
#include <nettle/sha1.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/say.h"

#define PIECE (1 << 20)
#define N_SHA256 64 /* hexadecimal digits */
#define N_GIT 40

bool gr_oid_is_known(const char *oid)
{
    size_t n = strspn(oid, "0123456789abcdef");
    return !oid[n] && (n == N_SHA256 || n == N_GIT);
}

static void print_hex(char *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        snprintf(to + 2 * i, 3, "%02x", bytes[i]);
}

/* Reads all of the file into one of the two digests. */
static int feed(int fd, const char *path, uint64_t size, struct sha256_ctx *sha256,
                struct sha1_ctx *sha1)
{
    uint8_t *piece = malloc(PIECE);
    int rc = piece ? 0 : gr_say_no_memory();
    gr_bar_begin("check", (double)size, GR_BAR_BYTES);
    for (uint64_t at = 0; at < size && !rc;) {
        ssize_t n = pread(fd, piece, size - at < PIECE ? size - at : PIECE, (off_t)at);
        if (n <= 0) {
            gr_say_error("%s: %s", path, n ? strerror(errno) : "it has become shorter");
            rc = gr_status_exit(GR_E_IO);
            break;
        }
        if (sha256)
            sha256_update(sha256, (size_t)n, piece);
        else
            sha1_update(sha1, (size_t)n, piece);
        at += (uint64_t)n;
        gr_bar_add((double)n);
        rc = gr_interrupted() ? GR_EXIT_INTERRUPTED : 0;
    }
    gr_bar_end();
    free(piece);
    return rc;
}

int gr_oid_of(int fd, const char *path, uint64_t size, const char *oid, char found[GR_OID_MAX])
{
    uint8_t bytes[SHA256_DIGEST_SIZE];
    int rc;
    if (strlen(oid) == N_SHA256) {
        struct sha256_ctx sha256;
        sha256_init(&sha256);
        rc = feed(fd, path, size, &sha256, NULL);
        sha256_digest(&sha256, SHA256_DIGEST_SIZE, bytes);
        print_hex(found, bytes, SHA256_DIGEST_SIZE);
        return rc;
    }
    struct sha1_ctx sha1;
    char head[32];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)size);
    sha1_init(&sha1);
    sha1_update(&sha1, (size_t)n + 1, (const uint8_t *)head); /* with its zero */
    rc = feed(fd, path, size, NULL, &sha1);
    sha1_digest(&sha1, SHA1_DIGEST_SIZE, bytes);
    print_hex(found, bytes, SHA1_DIGEST_SIZE);
    return rc;
}
