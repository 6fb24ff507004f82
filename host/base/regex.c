#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/checked.h"
#include "gr/status.h"

/* Backtracking steps for one text, how deep they may nest, and KiB of memory for them. */
enum { MATCH_LIMIT = 1000000, DEPTH_LIMIT = 10000, HEAP_LIMIT = 4096 };
enum { MAX_PATTERN = 1 << 16 }; /* bytes */

int gr_regex_new(struct gr_regex **out, const char *pattern, size_t n, const char *what)
{
    int error = 0;
    PCRE2_SIZE at = 0;
    char why[128] = "";
    *out = NULL;
    if (n > MAX_PATTERN)
        return gr_fail(GR_E_INVALID, "%s: a regular expression of %zu bytes, at most %d are taken",
                       what, n, MAX_PATTERN);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, n, 0, &error, &at, NULL);
    *out = (struct gr_regex *)code;
    if (code)
        return 0;
    if (error == PCRE2_ERROR_NOMEMORY)
        return gr_fail(GR_E_NOMEM_HOST, "%s: no memory for the regular expression", what);
    (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    return gr_fail(GR_E_INVALID, "%s: no regular expression at character %zu: %s", what,
                   (size_t)at + 1, why);
}

void gr_regex_free(struct gr_regex **regex)
{
    pcre2_code_free((pcre2_code *)*regex);
    *regex = NULL;
}

bool gr_regex_occurs(const struct gr_regex *regex, const char *text, size_t n)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    int rc = PCRE2_ERROR_NOMEMORY;
    if (data && limits) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        pcre2_set_depth_limit(limits, DEPTH_LIMIT);
        pcre2_set_heap_limit(limits, HEAP_LIMIT);
        rc = pcre2_match((const pcre2_code *)regex, (PCRE2_SPTR)text, n, 0, 0, data, limits);
    }
    pcre2_match_context_free(limits);
    pcre2_match_data_free(data);
    return rc >= 0;
}
