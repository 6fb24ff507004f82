/* --override-tensor PATTERN=DEVICE,... */
#include "weight_homes.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "flags.h"
#include "say.h"

/* Finds the "=DEVICE" that ends the first item: a word behind "=" with a comma or nothing behind
 * it, so that a pattern may have both signs. NULL: none. *n: length of the word. */
static const char *find_end(const char *item, size_t *n)
{
    for (const char *p = item; (p = strchr(p, '=')) != NULL; p++) {
        for (*n = 0; isalnum((unsigned char)p[*n + 1]) || p[*n + 1] == '_';)
            ++*n;
        if (*n && (p[*n + 1] == ',' || !p[*n + 1]))
            return p;
    }
    return NULL;
}

static int add(struct gr_weight_home_list *list, const char *item, size_t n, const char *device,
               size_t n_device)
{
    struct gr_weight_home *v = realloc(list->v, ((size_t)list->n + 1) * sizeof *v);
    if (!v)
        return gr_say_status(GR_E_NOMEM_HOST);
    list->v = v;
    v[list->n++] = (struct gr_weight_home){strndup(item, n), strndup(device, n_device)};
    return v[list->n - 1].pattern && v[list->n - 1].device ? 0 : gr_say_status(GR_E_NOMEM_HOST);
}

static int add_all(struct gr_weight_home_list *list, const char *text)
{
    int rc = 0;
    for (const char *p = text; !rc && p;) {
        size_t n = 0;
        const char *end = find_end(p, &n);
        if (!end || end == p || list->n == GR_MAX_WEIGHT_HOME) {
            gr_say_error("-ot is '%s': PATTERN=DEVICE, separated by commas and at most %d of them, "
                         "is expected, as in exps=CPU",
                         text, GR_MAX_WEIGHT_HOME);
            return GR_EXIT_USAGE;
        }
        rc = add(list, p, (size_t)(end - p), end + 1, n);
        p = end[n + 1] ? end + n + 2 : NULL;
    }
    return rc;
}

int gr_weight_homes_of(struct gr_weight_home_list *list, const struct gr_options *o)
{
    int rc = 0;
    *list = (struct gr_weight_home_list){NULL, 0};
    for (int32_t i = 0; i < o->override_tensor.n && !rc; i++)
        rc = add_all(list, o->override_tensor.v[i]);
    return rc;
}

void gr_weight_home_list_free(struct gr_weight_home_list *list)
{
    while (list->n > 0) {
        list->n--;
        free((void *)(uintptr_t)list->v[list->n].pattern);
        free((void *)(uintptr_t)list->v[list->n].device);
    }
    free(list->v);
    list->v = NULL;
}
