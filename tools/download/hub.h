/* The hub's API: the files of a repository. */
#ifndef GR_TOOLS_HUB_H
#define GR_TOOLS_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "digest.h"
#include "http.h"

struct gr_hub_file {
    char *path; /* within the repository; safe to append to a folder's */
    char oid[GR_OID_MAX];
    int64_t size;
};

/* The files of a repository's main branch. */
struct gr_hub_list {
    char branch[256], commit[41];
    struct gr_hub_file *file; /* [n] */
    size_t n;
};

/* Returns whether the text is a repository's name, USER/NAME. */
bool gr_hub_is_repo(const char *text);
/* Returns whether a path stays within the folder that it is appended to. */
bool gr_hub_is_safe(const char *path);
/* Returns the URL of the hub without a slash at its end, in buf: the variable MODEL_ENDPOINT, or
 * HF_ENDPOINT, or huggingface.co. */
const char *gr_hub_endpoint(char buf[GR_URL_MAX]);

/* Asks the hub. 0, or an exit code with the reason in `why`, "" when it was an interrupt; nothing
 * is printed. *list is freed by gr_hub_free in both cases. */
int gr_hub_ask(struct gr_http *http, const char *endpoint, const char *repo, bool patient,
               struct gr_hub_list *list, char why[GR_WHY_MAX]);
void gr_hub_free(struct gr_hub_list *list);

/* Stores the URL of a file. False: it is too long. */
bool gr_hub_url(const char *endpoint, const char *repo, const char *commit, const char *path,
                char url[GR_URL_MAX]);

#endif
