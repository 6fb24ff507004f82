/* --override-kv KEY=TYPE:VALUE,... */
#include "metadata.h"

#include <stdlib.h>
#include <string.h>

#include "flags.h"
#include "say.h"

/* Returns whether the text begins with KEY=TYPE: of a further item, and not with the rest of a
 * string that has a comma in it. */
static bool is_item(const char *text)
{
    static const char *const types[] = {"=int:", "=float:", "=bool:", "=str:"};
    const char *eq = text + strcspn(text, "=,");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strncmp(eq, types[i], strlen(types[i])))
            return true;
    return false;
}

/* Length of the first item. */
static size_t length_of(const char *text)
{
    size_t n = strcspn(text, ",");
    while (text[n] && !is_item(text + n + 1))
        n += 1 + strcspn(text + n + 1, ",");
    return n;
}

static int add(char ***list, size_t *n, const char *text, size_t len)
{
    char **v = realloc(*list, (*n + 2) * sizeof *v);
    if (!v)
        return gr_say_status(GR_E_NOMEM_HOST);
    *list = v;
    v[*n] = strndup(text, len);
    v[*n + 1] = NULL;
    return v[(*n)++] ? 0 : gr_say_status(GR_E_NOMEM_HOST);
}

int gr_metadata_of(char ***list, const struct gr_options *o)
{
    size_t n = 0;
    int rc = 0;
    *list = NULL;
    for (int32_t i = 0; i < o->override_kv.n && !rc; i++)
        for (const char *p = o->override_kv.v[i]; p && !rc;) {
            size_t len = length_of(p);
            rc = add(list, &n, p, len);
            p = p[len] ? p + len + 1 : NULL;
        }
    return rc;
}

void gr_metadata_free(char ***list)
{
    for (char **v = *list; v && *v; v++)
        free(*v);
    free(*list);
    *list = NULL;
}
