#include "libedit.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

/* Returns the first function that the library lacks; NULL: none. */
static const char *fill(struct gr_libedit *t, void *library)
{
    const char *missing = NULL;
    /* POSIX lets the object pointer that dlsym returns be stored this way */
#define FN(name)                                                                                   \
    *(void **)(void *)&t->name = dlsym(library, #name);                                            \
    if (!t->name && !missing)                                                                      \
        missing = #name;
#include "libedit.def"
#undef FN
    return missing;
}

const struct gr_libedit *gr_libedit(const char **why)
{
    static struct gr_libedit table;
    static char reason[256];
    static bool usable;
    if (usable)
        return &table;
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    const char *missing = library ? fill(&table, library) : NULL;
    if (!library)
        snprintf(reason, sizeof reason, "%s", dlerror());
    else if (missing)
        snprintf(reason, sizeof reason, "libedit has no %s", missing);
    usable = library && !missing;
    *why = reason;
    return usable ? &table : NULL;
}
