#include "curl.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#include "tools/cli/say.h"

/* With OpenSSL; with GnuTLS, as Debian calls it. */
static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

/* Returns the first function that the library lacks; NULL: none. */
static const char *fill(struct gr_curl *curl, void *library)
{
    const char *missing = NULL;
    /* POSIX lets the object pointer that dlsym returns be stored this way */
#define FN(name)                                                                                   \
    *(void **)(void *)&curl->name = dlsym(library, "curl_" #name);                                 \
    if (!curl->name && !missing)                                                                   \
        missing = "curl_" #name;
#include "curl.def"
#undef FN
    return missing;
}

const struct gr_curl *gr_curl(void)
{
    static struct gr_curl curl;
    static bool usable;
    void *library = NULL;
    char why[256] = "";
    if (usable)
        return &curl;
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !library; i++) {
        library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && !*why)
            snprintf(why, sizeof why, "%s", dlerror());
    }
    const char *missing = library ? fill(&curl, library) : NULL;
    if (missing)
        snprintf(why, sizeof why, "it is too old: it has no %s", missing);
    else if (library && curl.global_init(CURL_GLOBAL_DEFAULT))
        snprintf(why, sizeof why, "it does not start");
    else
        usable = library != NULL;
    if (usable)
        return &curl;
    gr_say_error("downloading takes libcurl (Debian: libcurl4), which cannot be used: %s; install "
                 "it, or take what is in the cache by --offline",
                 why);
    return NULL;
}
