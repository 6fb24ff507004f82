#include "keys.h"

#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/flags.h"
#include "tools/cli/input.h"
#include "tools/cli/say.h"

#define MOST_KEYS 4096
#define MOST_KEY 4096 /* bytes */

struct gr_keys {
    size_t n;
    uint8_t digest[][SHA256_DIGEST_SIZE]; /* [n] */
};

static void digest(uint8_t to[SHA256_DIGEST_SIZE], const char *key, size_t n)
{
    struct sha256_ctx sha256;
    sha256_init(&sha256);
    sha256_update(&sha256, n, (const uint8_t *)key);
    sha256_digest(&sha256, SHA256_DIGEST_SIZE, to);
}

/* Adds a key. 0 or an exit code, after printing the error. */
static int add(struct gr_keys **keys, const char *key, size_t n, const char *source)
{
    size_t have = *keys ? (*keys)->n : 0;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)key[i] <= ' ' || (unsigned char)key[i] >= 127) {
            gr_say_error("%s: an API key is made of visible ASCII characters", source);
            return GR_EXIT_USAGE;
        }
    }
    if (have == MOST_KEYS || n > MOST_KEY) {
        gr_say_error("%s: at most %d API keys of %d characters", source, MOST_KEYS, MOST_KEY);
        return GR_EXIT_USAGE;
    }
    struct gr_keys *grown = realloc(*keys, sizeof *grown + (have + 1) * sizeof *grown->digest);
    if (!grown)
        return gr_say_no_memory();
    *keys = grown;
    grown->n = have + 1;
    digest(grown->digest[have], key, n);
    return 0;
}

/* Adds the words between separators; lines of a file that begin with # are none. */
static int add_all(struct gr_keys **keys, const char *text, const char *separators,
                   const char *source)
{
    int rc = 0;
    for (const char *p = text; *p && !rc;) {
        size_t n = strcspn(p, separators), m = n;
        while (m && (p[m - 1] == '\r' || p[m - 1] == ' ' || p[m - 1] == '\t'))
            m--;
        if (m && (*separators != '\n' || *p != '#'))
            rc = add(keys, p, m, source);
        p += n;
        p += *p != 0;
    }
    return rc;
}

static int read_file(struct gr_keys **keys, const char *path)
{
    char *text = NULL;
    size_t n = 0, before = *keys ? (*keys)->n : 0;
    int rc = gr_read_all(path, &text, &n);
    if (!rc)
        rc = add_all(keys, text, "\n", path);
    if (text)
        memset(text, 0, n);
    free(text);
    if (!rc && (*keys ? (*keys)->n : 0) == before) {
        gr_say_error("%s: there is no API key in it, one a line", path);
        rc = GR_EXIT_USAGE;
    }
    return rc;
}

int gr_keys_open(struct gr_keys **out, const struct gr_options *o)
{
    int rc = 0;
    *out = NULL;
    if (o->given.api_key.by_flag)
        gr_say_warning("--api-key: other users of this machine see the command line; "
                       "--api-key-file FILE or the variable GPURUN_API_KEY hides the key");
    for (int32_t i = 0; i < o->api_key.n && !rc; i++)
        rc = add_all(out, o->api_key.v[i], ",", "--api-key");
    if (!rc && o->api_key.n && !*out) {
        gr_say_error("--api-key: the key is empty");
        rc = GR_EXIT_USAGE;
    }
    if (!rc && o->api_key_file)
        rc = read_file(out, o->api_key_file);
    if (rc)
        gr_keys_close(out);
    return rc;
}

void gr_keys_close(struct gr_keys **k)
{
    free(*k);
    *k = NULL;
}

uint64_t gr_keys_find(const struct gr_keys *k, const char *key)
{
    uint8_t asked[SHA256_DIGEST_SIZE];
    uint64_t found = 0, number;
    digest(asked, key, strlen(key));
    for (size_t i = 0; i < k->n; i++)
        found |= (uint64_t)memeql_sec(asked, k->digest[i], sizeof asked);
    memcpy(&number, asked, sizeof number);
    return found ? number | !number : 0;
}
