#include "hub.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/flags.h"
#include "tools/cli/say.h"

#define MOST_BYTES (16 << 20) /* of one answer */
#define MOST_PAGES 100
#define MOST_FILES 100000
#define MOST_LEVELS 16 /* of folders */
#define MOST_PATH 1024
#define MOST_NAME 255

/* ---- names ---- */

/* Letters, digits and "_", and between them single "-", "." and one "/". */
bool gr_hub_is_repo(const char *text)
{
    int slashes = 0;
    bool between = true; /* at the beginning, or behind one of "-./" */
    for (const char *p = text; *p; p++) {
        bool mark = strchr("-./", *p) != NULL;
        if (!mark && !isalnum((unsigned char)*p) && *p != '_')
            return false;
        if (mark && between)
            return false;
        slashes += *p == '/';
        between = mark;
    }
    return !between && slashes == 1 && strlen(text) <= 256;
}

bool gr_hub_is_safe(const char *path)
{
    int levels = 0;
    if (!*path || strlen(path) > MOST_PATH)
        return false;
    for (const char *p = path;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || n > MOST_NAME || ++levels > MOST_LEVELS)
            return false;
        if ((n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < ' ' || p[i] == 127 || p[i] == '\\')
                return false;
        p += n;
        if (!*p)
            return true;
    }
}

static bool is_commit(const char *text)
{
    return strlen(text) == 40 && !text[strspn(text, "0123456789abcdef")];
}

const char *gr_hub_endpoint(char buf[GR_URL_MAX])
{
    const char *names[] = {"MODEL_ENDPOINT", "HF_ENDPOINT"}, *url = NULL;
    for (int i = 0; i < 2 && !(url && *url); i++)
        url = getenv(names[i]);
    snprintf(buf, GR_URL_MAX, "%s", url && *url ? url : "https://huggingface.co");
    size_t n = strlen(buf);
    while (n && buf[n - 1] == '/')
        buf[--n] = 0;
    return buf;
}

bool gr_hub_url(const char *endpoint, const char *repo, const char *commit, const char *path,
                char url[GR_URL_MAX])
{
    int n = snprintf(url, GR_URL_MAX, "%s/%s/resolve/%s/", endpoint, repo, commit);
    size_t at = n > 0 && n < GR_URL_MAX ? (size_t)n : GR_URL_MAX;
    for (const char *p = path; *p && at + 4 < GR_URL_MAX; p++)
        at += (size_t)snprintf(url + at, GR_URL_MAX - at,
                               isalnum((unsigned char)*p) || strchr("-._~/", *p) ? "%c" : "%%%02X",
                               (unsigned char)*p);
    return at + 4 < GR_URL_MAX;
}

/* ---- answers ---- */

struct text {
    char *p;
    size_t n, room;
};

static bool begin(struct gr_http_get *get, const struct gr_http_reply *reply)
{
    struct text *t = get->user;
    t->n = 0;
    get->expected = reply->length;
    return true;
}

static bool data(struct gr_http_get *get, const void *p, size_t n)
{
    struct text *t = get->user;
    if (t->n + n > t->room) {
        size_t room = (t->n + n) * 2;
        char *more = t->n + n > MOST_BYTES ? NULL : realloc(t->p, room);
        if (!more)
            return false;
        t->p = more, t->room = room;
    }
    memcpy(t->p + t->n, p, n);
    t->n += n;
    get->expected -= get->expected > 0 ? (int64_t)n : 0;
    return true;
}

/* Gets a JSON document. *rc and `why` as gr_hub_ask; `next` [GR_URL_MAX] receives the URL of the
 * next page, or "". */
static json_t *get_json(struct gr_http *http, const char *url, const char *repo, bool patient,
                        char *next, int *rc, char why[GR_WHY_MAX])
{
    struct text t = {NULL, 0, 0};
    struct gr_http_get get = {
        .url = url, .patient = patient, .small = true, .begin = begin, .data = data, .user = &t};
    json_error_t error;
    json_t *json = NULL;
    enum gr_http_end end = gr_http_get(http, &get);
    *why = 0;
    *rc = 0;
    snprintf(next, GR_URL_MAX, "%s", get.reply.next);
    if (end == GR_HTTP_STOPPED)
        *rc = GR_EXIT_INTERRUPTED;
    else if (end == GR_HTTP_FAILED)
        *rc = gr_status_exit(GR_E_IO), snprintf(why, GR_WHY_MAX, "%s: %s", repo, get.why);
    else if (get.ended)
        *rc = gr_status_exit(GR_E_IO),
        snprintf(why, GR_WHY_MAX, "%s: the hub's answer does not fit into %d MiB", repo,
                 MOST_BYTES >> 20);
    else if (get.reply.status != 200)
        *rc = gr_http_refused(repo, &get.reply, why);
    else if (!(json = json_loadb(t.p ? t.p : "", t.n, 0, &error)))
        *rc = gr_status_exit(GR_E_IO),
        snprintf(why, GR_WHY_MAX, "%s: the hub's answer is no JSON: %s", repo, error.text);
    free(t.p);
    return json;
}

/* ---- the branch ---- */

static int read_branches(const json_t *json, const char *repo, struct gr_hub_list *list,
                         char why[GR_WHY_MAX])
{
    const json_t *branches = json_object_get(json, "branches"), *branch;
    size_t i;
    json_array_foreach(branches, i, branch)
    {
        const char *name = json_string_value(json_object_get(branch, "name"));
        const char *commit = json_string_value(json_object_get(branch, "targetCommit"));
        if (!name || !commit || !is_commit(commit) || !gr_hub_is_safe(name) ||
            strlen(name) >= sizeof list->branch)
            continue;
        if (*list->commit && strcmp(name, "main") != 0)
            continue;
        snprintf(list->branch, sizeof list->branch, "%s", name);
        snprintf(list->commit, sizeof list->commit, "%s", commit);
    }
    if (*list->commit)
        return 0;
    snprintf(why, GR_WHY_MAX, "%s: the hub lists no branch of it", repo);
    return gr_status_exit(GR_E_NO_MODEL);
}

/* ---- the files ---- */

/* Adds a file; entries that are none, or not as the API says, are left out. False: no memory. */
static bool add_file(struct gr_hub_list *list, const json_t *item, size_t *room)
{
    const json_t *lfs = json_object_get(item, "lfs");
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *path = json_string_value(json_object_get(item, "path"));
    const char *oid = json_string_value(json_object_get(lfs ? lfs : item, "oid"));
    const json_t *size = json_object_get(lfs ? lfs : item, "size");
    if (!type || strcmp(type, "file") != 0 || !path || !oid || !gr_oid_is_known(oid) ||
        !json_is_integer(size) || json_integer_value(size) < 0)
        return true;
    if (!gr_hub_is_safe(path)) {
        gr_say_warning("the hub lists a file whose name leads out of a folder, or is none: it is "
                       "left out");
        return true;
    }
    if (list->n == *room) {
        size_t more = *room ? *room * 2 : 64;
        struct gr_hub_file *file = realloc(list->file, more * sizeof *file);
        if (!file)
            return false;
        list->file = file, *room = more;
    }
    struct gr_hub_file *f = &list->file[list->n];
    *f = (struct gr_hub_file){.path = strdup(path), .size = json_integer_value(size)};
    snprintf(f->oid, sizeof f->oid, "%s", oid);
    list->n += f->path != NULL;
    return f->path != NULL;
}

static int read_tree(const json_t *json, const char *repo, struct gr_hub_list *list, size_t *room,
                     char why[GR_WHY_MAX])
{
    const json_t *item;
    size_t i;
    if (!json_is_array(json)) {
        snprintf(why, GR_WHY_MAX, "%s: the hub's answer is no list of files", repo);
        return gr_status_exit(GR_E_IO);
    }
    json_array_foreach(json, i, item)
    {
        if (list->n == MOST_FILES) {
            snprintf(why, GR_WHY_MAX, "%s: it has more than %d files", repo, MOST_FILES);
            return gr_status_exit(GR_E_UNSUPPORTED);
        }
        if (!add_file(list, item, room)) {
            snprintf(why, GR_WHY_MAX, "out of host memory");
            return gr_status_exit(GR_E_NOMEM_HOST);
        }
    }
    return 0;
}

/* Checks where a list goes on, after page `page` of it at `url`; next "": it ends there. */
static int check_next(struct gr_http *http, const char *repo, const char *url, const char *next,
                      int page, char why[GR_WHY_MAX])
{
    const char *wrong = *next ? gr_http_check_step(http, url, next) : NULL;
    if (wrong) {
        snprintf(why, GR_WHY_MAX, "%s: its list goes on elsewhere: %s", repo, wrong);
        return gr_status_exit(GR_E_IO);
    }
    if (*next && page == MOST_PAGES) {
        snprintf(why, GR_WHY_MAX, "%s: its list has more than %d pages", repo, MOST_PAGES);
        return gr_status_exit(GR_E_UNSUPPORTED);
    }
    return 0;
}

int gr_hub_ask(struct gr_http *http, const char *endpoint, const char *repo, bool patient,
               struct gr_hub_list *list, char why[GR_WHY_MAX])
{
    char url[GR_URL_MAX], next[GR_URL_MAX];
    size_t room = 0;
    int rc;
    *list = (struct gr_hub_list){.n = 0};
    snprintf(url, sizeof url, "%s/api/models/%s/refs", endpoint, repo);
    json_t *json = get_json(http, url, repo, patient, next, &rc, why);
    if (!rc)
        rc = read_branches(json, repo, list, why);
    json_decref(json);
    snprintf(next, sizeof next, "%s/api/models/%s/tree/%s?recursive=true", endpoint, repo,
             list->commit);
    for (int page = 1; !rc && *next; page++) {
        snprintf(url, sizeof url, "%s", next);
        json = get_json(http, url, repo, patient, next, &rc, why);
        if (!rc)
            rc = read_tree(json, repo, list, &room, why);
        if (!rc)
            rc = check_next(http, repo, url, next, page, why);
        json_decref(json);
    }
    return rc;
}

void gr_hub_free(struct gr_hub_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->file[i].path);
    free(list->file);
    *list = (struct gr_hub_list){.n = 0};
}
