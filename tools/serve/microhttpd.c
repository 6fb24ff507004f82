#include "microhttpd.h"

#include <dlfcn.h>
#include <stdio.h>

#include "tools/cli/say.h"

/* Returns the first function that the library lacks; NULL: none. */
static const char *fill(struct gr_microhttpd *t, void *library)
{
    const char *missing = NULL;
    /* POSIX lets the object pointer that dlsym returns be stored this way */
#define FN(name)                                                                                   \
    *(void **)(void *)&t->name = dlsym(library, "MHD_" #name);                                     \
    if (!t->name && !missing)                                                                      \
        missing = "MHD_" #name;
#include "microhttpd.def"
#undef FN
    return missing;
}

/* 0.9.72 brought connections that are added beside running loops, 0.9.74 a size of the header that
 * is right, 1.0 strict lines. */
#define OLDEST 9074
#define STRICT 1000000

/* Returns 9075 for "0.9.75". */
static int version_number(const char *version)
{
    int major = 0, minor = 0, patch = 0;
    (void)sscanf(version, "%d.%d.%d", &major, &minor, &patch);
    return major * 1000000 + minor * 1000 + patch;
}

const struct gr_microhttpd *gr_microhttpd(void)
{
    static struct gr_microhttpd table;
    static bool usable;
    char why[256] = "";
    if (usable)
        return &table;
    void *library = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    const char *missing = library ? fill(&table, library) : NULL;
    if (!library)
        snprintf(why, sizeof why, "%s", dlerror());
    else if (missing)
        snprintf(why, sizeof why, "it has no %s", missing);
    else if (version_number(table.get_version()) < OLDEST)
        snprintf(why, sizeof why, "it is version %s, older than 0.9.74", table.get_version());
    usable = !*why;
    table.strict = usable && version_number(table.get_version()) >= STRICT;
    if (usable)
        return &table;
    gr_say_error("serving takes libmicrohttpd (Debian: libmicrohttpd12), which cannot be used: %s; "
                 "install it, or have gpurun run -p TEXT continue a text without a server",
                 why);
    return NULL;
}
