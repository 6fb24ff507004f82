/* Files with scales that the flags name: --lora FILE,... and --lora-scaled FILE:SCALE,...;
 * --control-vector and --control-vector-scaled alike. */
#include "adapters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "flags.h"
#include "say.h"

/* Adds the item p[0, n) of a flag's list, which it shares with no other. */
static int add(struct gr_adapters *a, const char *flag, const char *p, size_t n, bool scaled)
{
    const char *colon = scaled ? memrchr(p, ':', n) : NULL;
    char number[32], *end = number;
    double scale = 1;
    if (scaled) {
        size_t len = colon ? (size_t)(p + n - colon - 1) : 0;
        snprintf(number, sizeof number, "%.*s", (int)(len < 31 ? len : 31), colon ? colon + 1 : "");
        scale = strtod(number, &end);
        n = colon ? (size_t)(colon - p) : 0;
    }
    if (!n || (scaled && (end == number || *end || !isfinite((float)scale)))) {
        gr_say_error("%s: %s expected, separated by commas", flag,
                     scaled ? "FILE:SCALE, SCALE a number" : "files");
        return GR_EXIT_USAGE;
    }
    if (a->n == GR_MAX_ADAPTER) {
        gr_say_error("%s: at most %d files", flag, GR_MAX_ADAPTER);
        return GR_EXIT_USAGE;
    }
    char *path = strndup(p, n);
    if (!path)
        return gr_say_status(GR_E_NOMEM_HOST);
    a->v[a->n++] = (struct gr_adapter){path, (float)scale};
    return 0;
}

static int add_all(struct gr_adapters *a, const char *flag, const struct gr_str_list *list,
                   bool scaled)
{
    int rc = 0;
    for (int32_t i = 0; i < list->n && !rc; i++)
        for (const char *p = list->v[i], *next; p && !rc; p = next) {
            size_t n = strcspn(p, ",");
            next = p[n] ? p + n + 1 : NULL;
            rc = add(a, flag, p, n, scaled);
        }
    return rc;
}

int gr_adapters_read(struct gr_adapters *a, const struct gr_options *o)
{
    *a = (struct gr_adapters){.n = 0};
    int rc = add_all(a, "--lora", &o->lora, false);
    return rc ? rc : add_all(a, "--lora-scaled", &o->lora_scaled, true);
}

/* Reads "START END". */
static int read_range(const char *text, int32_t *first, int32_t *last)
{
    char end;
    *first = *last = 0;
    if (!text ||
        (sscanf(text, "%d%*1[ ,:-]%d%c", first, last, &end) == 2 && *first > 0 && *first <= *last))
        return 0;
    gr_say_error("--control-vector-layer-range is '%s': START END, two layers from 1 on, is "
                 "expected",
                 text);
    return GR_EXIT_USAGE;
}

int gr_control_vectors_read(struct gr_adapters *a, const struct gr_options *o, int32_t *first,
                            int32_t *last)
{
    *a = (struct gr_adapters){.n = 0};
    int rc = read_range(o->control_vector_layer_range, first, last);
    if (!rc)
        rc = add_all(a, "--control-vector", &o->control_vector, false);
    return rc ? rc : add_all(a, "--control-vector-scaled", &o->control_vector_scaled, true);
}

void gr_adapters_free(struct gr_adapters *a)
{
    while (a->n > 0)
        free((void *)(uintptr_t)a->v[--a->n].path);
}
