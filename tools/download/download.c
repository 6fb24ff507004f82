#include "download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "choose.h"
#include "fetch.h"
#include "hub.h"
#include "store.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/numbers.h"
#include "tools/cli/say.h"

#define MOST_LINKS 40 /* from one to the next, as the system has it */

/* What is wanted, and where to. */
struct download {
    const struct gr_options *o;
    const char *spec;     /* USER/REPO[:QUANT]; NULL: a URL is given */
    const char *url;      /* NULL: spec is */
    const char *to;       /* file or folder; NULL: the cache */
    bool keeps;           /* `to` is replaced only with --overwrite */
    struct gr_http *http; /* NULL: not opened yet */
    char endpoint[GR_URL_MAX];
    char repo[257], folder[GR_PATH_MAX]; /* of a spec: its name, and its folder in the cache */
    const char *tag;                     /* "": none */
};

static int open_http(struct download *d)
{
    int rc = 0;
    const char *token = d->o->hf_token ? d->o->hf_token : getenv("HF_TOKEN");
    if (!d->http)
        d->http = gr_http_open(gr_hub_endpoint(d->endpoint), token && *token ? token : NULL, &rc);
    return rc;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* Follows symbolic links to the final name, which need not exist. */
static void follow(char path[GR_PATH_MAX])
{
    char to[GR_PATH_MAX], joined[GR_PATH_MAX];
    ssize_t n;
    for (int i = 0; i < MOST_LINKS && (n = readlink(path, to, sizeof to - 1)) > 0; i++) {
        int folder = *to == '/' ? 0 : (int)(base_of(path) - path);
        to[n] = 0;
        if (snprintf(joined, sizeof joined, "%.*s%s", folder, path, to) >= (int)sizeof joined)
            return;
        memcpy(path, joined, sizeof joined);
    }
}

/* Stores where a file of this name goes that is wanted outside the cache, links followed; checks
 * that it can be written, unless that of -m is there. */
static int place(const struct download *d, const char *name, char path[GR_PATH_MAX])
{
    bool folder = is_folder(d->to);
    if (snprintf(path, GR_PATH_MAX, "%s%s%s", d->to, folder ? "/" : "", folder ? name : "") >=
        GR_PATH_MAX) {
        gr_say_error("%s: the name is too long", d->to);
        return gr_status_exit(GR_E_IO);
    }
    struct stat st;
    if (!d->keeps && !stat(path, &st)) {
        follow(path);
        return 0;
    }
    unsigned how = GR_OUTPUT_SEEKS | (d->keeps && d->o->overwrite <= 0 ? GR_OUTPUT_KEEP : 0);
    int status = gr_output_check(path, how);
    if (status)
        return gr_say_status(status);
    follow(path);
    return 0;
}

/* Prints that several files need a folder. */
static int needs_folder(const struct download *d, int n)
{
    gr_say_error("%s: the model has %d files, and the name of a folder is expected", d->to, n);
    return GR_EXIT_USAGE;
}

static void set_title(char title[48], int k, int n)
{
    if (n > 1)
        snprintf(title, 48, "download %d of %d", k + 1, n);
    else
        snprintf(title, 48, "download");
}

static int copied(char **path, const char *from)
{
    *path = strdup(from);
    return *path ? 0 : gr_say_no_memory();
}

/* ---- a repository ---- */

/* The files that are wanted of a repository. */
struct selection {
    struct gr_hub_list list;
    struct gr_names names;
    size_t part[GR_MOST_PARTS];
    int n;
};

static int unreadable(const char *path)
{
    gr_say_error("%s: %s", path, strerror(errno));
    return gr_status_exit(GR_E_IO);
}

/* Copies a file of the cache. */
static int copy(const char *from, const char *to, bool overwrite)
{
    char piece[1 << 14];
    struct gr_output *out = NULL;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return unreadable(from);
    int status = gr_output_open(&out, to, GR_OUTPUT_SEEKS | (overwrite ? 0 : GR_OUTPUT_KEEP));
    ssize_t n = 0;
    while (!status && !gr_interrupted() && (n = read(fd, piece, sizeof piece)) > 0)
        status = gr_output_put(out, piece, (size_t)n);
    int rc = gr_interrupted() ? GR_EXIT_INTERRUPTED : 0;
    if (!status && n < 0 && !rc)
        rc = unreadable(from);
    if (!status && !rc)
        status = gr_output_commit(&out);
    gr_output_abort(&out);
    close(fd);
    return status ? gr_say_status(status) : rc;
}

/* Bytes of the parts behind this one that are not in the cache either. */
static int64_t bytes_behind(const struct download *d, const struct selection *s, int k)
{
    char blob[GR_PATH_MAX + 80];
    int64_t sum = 0;
    for (int i = k + 1; i < s->n; i++) {
        const struct gr_hub_file *file = &s->list.file[s->part[i]];
        snprintf(blob, sizeof blob, "%s/blobs/%s", d->folder, file->oid);
        bool fits = file->size < INT64_MAX - sum;
        sum = !fits ? INT64_MAX : gr_store_has(blob, file->size) ? sum : sum + file->size;
    }
    return sum;
}

static int fetch_part(struct download *d, const struct selection *s, int k, const char *path)
{
    const struct gr_hub_file *file = &s->list.file[s->part[k]];
    char url[GR_URL_MAX], name[1400], title[48], size[16];
    if (!gr_hub_url(d->endpoint, d->repo, s->list.commit, file->path, url)) {
        gr_say_error("%s: its URL is too long", file->path);
        return gr_status_exit(GR_E_IO);
    }
    const char *projector = k ? NULL : gr_find_projector(s->names);
    if (projector)
        gr_say("%s also has %s, for images or sound: gpurun works on text", d->repo, projector);
    snprintf(name, sizeof name, "%s/%s", d->repo, file->path);
    set_title(title, k, s->n);
    gr_say("download: %s, %s, to %s", name, gr_amount(size, (double)file->size, 1024), path);
    return gr_fetch(d->http, &(struct gr_fetch){.url = url,
                                                .path = path,
                                                .name = name,
                                                .title = title,
                                                .size = file->size,
                                                .oid = file->oid,
                                                .later = bytes_behind(d, s, k),
                                                .replaces = d->to != NULL});
}

/* Brings a part into the cache; *path: where it is. */
static int bring_part(struct download *d, const struct selection *s, int k, char path[GR_PATH_MAX])
{
    const struct gr_hub_file *file = &s->list.file[s->part[k]];
    char blob[GR_PATH_MAX], rest[GR_PATH_MAX];
    snprintf(rest, sizeof rest, "snapshots/%s/%s", s->list.commit, file->path);
    int rc = gr_store_join(path, d->folder, rest);
    if (rc || gr_store_has(path, file->size))
        return rc;
    snprintf(rest, sizeof rest, "blobs/%s", file->oid);
    rc = gr_store_path(blob, d->folder, rest);
    if (!rc && !gr_store_has(blob, file->size))
        rc = fetch_part(d, s, k, blob);
    return rc ? rc : gr_store_link(d->folder, s->list.commit, file);
}

/* Brings a part to where it is wanted: from the cache if it is there. */
static int put_part(struct download *d, const struct selection *s, int k, char path[GR_PATH_MAX])
{
    const struct gr_hub_file *file = &s->list.file[s->part[k]];
    char blob[GR_PATH_MAX + 80];
    int rc = place(d, base_of(file->path), path);
    if (rc)
        return rc;
    snprintf(blob, sizeof blob, "%s/blobs/%s", d->folder, file->oid);
    return gr_store_has(blob, file->size) ? copy(blob, path, d->o->overwrite > 0)
                                          : fetch_part(d, s, k, path);
}

/* Chooses among the files of the list. */
static int choose(const struct download *d, struct selection *s)
{
    const char *file = d->o->hf_file;
    char tags[600];
    size_t i = file ? gr_choose_by_name(s->names, file) : gr_choose_by_tag(s->names, d->tag);
    int missing = i < s->names.n ? gr_choose_parts(s->names, i, s->part, &s->n) : 0;
    if (i < s->names.n && !missing)
        return 0;
    gr_list_tags(s->names, tags, sizeof tags);
    if (missing > 0)
        gr_say_error("%s: part %d of %d of %s is missing", d->repo, missing, s->n, s->names.v[i]);
    else if (missing < 0)
        gr_say_error("%s: %s has more than %d parts", d->repo, s->names.v[i], GR_MOST_PARTS);
    else if (file)
        gr_say_error("%s has no file %s; the tags of its models are: %s", d->repo, file,
                     *tags ? tags : "none");
    else if (*tags)
        gr_say_error("%s has no model with the tag %s; its tags are: %s", d->repo, d->tag, tags);
    else
        gr_say_error("%s has no GGUF file", d->repo);
    return gr_status_exit(GR_E_NO_MODEL);
}

/* Fetches what was chosen. */
static int fetch_selection(struct download *d, struct selection *s, char **path)
{
    char at[GR_PATH_MAX];
    if (d->to && s->n > 1 && !is_folder(d->to))
        return needs_folder(d, s->n);
    int rc = 0;
    for (int k = 0; k < s->n && d->to && !rc; k++) /* before any work */
        rc = place(d, base_of(s->list.file[s->part[k]].path), at);
    for (int k = 0; k < s->n && !rc; k++) {
        rc = d->to ? put_part(d, s, k, at) : bring_part(d, s, k, at);
        if (!rc && k == 0)
            rc = copied(path, at);
    }
    return rc || d->to ? rc : gr_store_note(d->folder, s->list.branch, s->list.commit);
}

/* Asks the hub and fetches; with a cached copy that is used where the hub does not answer. */
static int ask_and_fetch(struct download *d, struct selection *s, const char *cached, char **path)
{
    char why[GR_WHY_MAX];
    int rc = gr_hub_ask(d->http, d->endpoint, d->repo, !cached, &s->list, why);
    if (rc && *why && cached) {
        gr_say_warning("%s; the copy in the cache is used", why);
        return copied(path, cached);
    }
    if (rc && *why)
        gr_say_error("%s", why);
    if (rc)
        return rc;
    s->names.v = malloc((s->list.n + 1) * sizeof *s->names.v);
    if (!s->names.v)
        return gr_say_no_memory();
    for (; s->names.n < s->list.n; s->names.n++)
        s->names.v[s->names.n] = s->list.file[s->names.n].path;
    rc = choose(d, s);
    return rc ? rc : fetch_selection(d, s, path);
}

/* Takes USER/REPO[:QUANT] apart. */
static int read_spec(struct download *d)
{
    const char *colon = strchr(d->spec, ':');
    size_t n = colon ? (size_t)(colon - d->spec) : strlen(d->spec);
    snprintf(d->repo, sizeof d->repo, "%.*s", (int)(n < 257 ? n : 256), d->spec);
    d->tag = colon ? colon + 1 : "";
    if (n < sizeof d->repo && gr_hub_is_repo(d->repo) && (!colon || colon[1]))
        return gr_store_repo(d->repo, d->folder);
    gr_say_error("'%s' is no repository: USER/REPO or USER/REPO:QUANT is expected", d->spec);
    return GR_EXIT_USAGE;
}

/* Copies a model of the cache with all its parts to where it is wanted. */
static int copy_cached(const struct download *d, char *cached, char **path)
{
    struct gr_part_name part = {.count = 1};
    char at[GR_PATH_MAX];
    if (!gr_part_name(cached, &part))
        part.count = 1;
    if (part.count > 1 && !is_folder(d->to))
        return needs_folder(d, part.count);
    int rc = 0;
    for (int k = 0; k < part.count && !rc; k++) {
        char number[16];
        snprintf(number, sizeof number, "%05d", k + 1);
        if (part.count > 1)
            memcpy(cached + part.prefix + 1, number, 5);
        rc = place(d, base_of(cached), at);
        if (!rc)
            rc = copy(cached, at, d->o->overwrite > 0);
        if (!rc && k == 0)
            rc = copied(path, at);
    }
    return rc;
}

static int fetch_repo(struct download *d, char **path)
{
    char *cached = NULL;
    int rc = read_spec(d);
    if (!rc)
        rc = gr_store_find(d->folder, d->tag, d->o->hf_file, &cached);
    if (!rc && d->o->offline && !cached) {
        gr_say_error("%s is not in the cache, %s, and --offline forbids to download it", d->spec,
                     d->folder);
        rc = gr_status_exit(GR_E_NO_MODEL);
    } else if (!rc && d->o->offline && !d->to) {
        *path = cached, cached = NULL;
    } else if (!rc && d->o->offline) {
        rc = copy_cached(d, cached, path);
    } else if (!rc && !(rc = open_http(d))) {
        struct selection *s = calloc(1, sizeof *s);
        rc = s ? ask_and_fetch(d, s, d->to ? NULL : cached, path) : gr_say_no_memory();
        if (s) {
            gr_hub_free(&s->list);
            free(s->names.v);
        }
        free(s);
    }
    free(cached);
    return rc;
}

/* ---- a URL ---- */

/* Stores the URL of part k, and the name of its file. */
static int part_url(const struct download *d, const struct gr_part_name *part, int k,
                    char url[GR_URL_MAX], char name[256])
{
    size_t n = strcspn(d->url, "?#");
    int at = part->count > 1 ? (int)(n - strlen("-00001-of-00001.gguf")) : (int)n;
    char numbers[32] = "";
    if (part->count > 1)
        snprintf(numbers, sizeof numbers, "-%05d-of-%05d.gguf", k + 1, part->count);
    int n_url = snprintf(url, GR_URL_MAX, "%.*s%s%s", at, d->url, numbers, d->url + n);
    const char *end = url + strcspn(url, "?#"), *base = end;
    while (base > url && base[-1] != '/')
        base--;
    n = (size_t)(end - base);
    snprintf(name, 256, "%.*s", (int)(n < 256 ? n : 255), base);
    if (n_url < GR_URL_MAX && n < 250 && gr_hub_is_safe(name))
        return 0;
    gr_say_error("the URL does not end with the name of a file, or is too long");
    return GR_EXIT_USAGE;
}

/* Decides about a file that exists; *done: it is used as it is. */
static int look(struct download *d, const struct gr_fetch *f, bool *done)
{
    char from[1024];
    enum gr_fetched origin = gr_fetched_from(f->path, f->url, from, sizeof from);
    *done = true;
    if (origin == GR_FETCHED_ELSEWHERE) {
        gr_say_error("%s is from %s; -m FILE puts this one elsewhere", f->path, from);
        return gr_status_exit(GR_E_NO_MODEL);
    }
    if (origin == GR_FETCHED_UNKNOWN)
        gr_say("%s is there and was not downloaded: it is used as it is", f->path);
    return origin == GR_FETCHED_UNKNOWN || d->o->offline ? 0 : gr_fetch_ask(d->http, f, done);
}

static int bring_url(struct download *d, const struct gr_fetch *f)
{
    struct stat st;
    bool done = false;
    int rc = !d->keeps && !stat(f->path, &st) ? look(d, f, &done) : 0;
    if (rc || done)
        return rc;
    if (d->o->offline) {
        gr_say_error("%s is not there, and --offline forbids to download it", f->path);
        return gr_status_exit(GR_E_NO_MODEL);
    }
    gr_say("download: %s, to %s", f->name, f->path);
    return gr_fetch(d->http, f);
}

/* Opens the client, unless nobody may be asked, and checks the URL. */
static int open_url(struct download *d)
{
    char shown[1024];
    int rc = d->o->offline ? 0 : open_http(d);
    const char *wrong = d->http ? gr_http_check_url(d->http, d->url) : NULL;
    if (!wrong)
        return rc;
    gr_say_error("'%s' cannot be downloaded: %s", gr_http_shown(d->url, shown, sizeof shown),
                 wrong);
    return GR_EXIT_USAGE;
}

/* Stores the URL of part k, and where its file goes. */
static int locate(const struct download *d, const struct gr_part_name *part, int k,
                  const char *folder, char url[GR_URL_MAX], char at[GR_PATH_MAX])
{
    char name[256];
    int rc = part_url(d, part, k, url, name);
    if (rc)
        return rc;
    return d->to ? place(d, name, at) : gr_store_path(at, folder, name);
}

/* Several files with -m FILE: all of them go into its folder. */
static int beside(struct download *d, int n, char folder[GR_PATH_MAX])
{
    if (d->keeps)
        return needs_folder(d, n);
    int n_folder = (int)(base_of(d->to) - d->to);
    snprintf(folder, GR_PATH_MAX, "%.*s", n_folder ? n_folder : 1, n_folder ? d->to : ".");
    d->to = folder;
    return 0;
}

static int fetch_url(struct download *d, char **path)
{
    char url[GR_URL_MAX], folder[GR_PATH_MAX], at[GR_PATH_MAX], shown[1200], title[48];
    struct gr_part_name part = {.count = 1};
    char *bare = strndup(d->url, strcspn(d->url, "?#"));
    int rc = bare ? open_url(d) : gr_say_no_memory();
    if (!rc)
        rc = gr_store_urls(folder);
    if (bare && !gr_part_name(bare, &part))
        part.count = 1;
    free(bare);
    if (!rc && part.count > GR_MOST_PARTS) {
        gr_say_error("the model has more than %d parts", GR_MOST_PARTS);
        rc = gr_status_exit(GR_E_UNSUPPORTED);
    }
    if (!rc && d->to && part.count > 1 && !is_folder(d->to))
        rc = beside(d, part.count, folder);
    for (int k = 0; k < part.count && d->keeps && !rc; k++) /* before any work */
        rc = locate(d, &part, k, folder, url, at);
    for (int k = 0; k < part.count && !rc; k++) {
        rc = locate(d, &part, k, folder, url, at);
        set_title(title, k, part.count);
        if (!rc)
            rc = bring_url(d, &(struct gr_fetch){.url = url,
                                                 .path = at,
                                                 .name = gr_http_shown(url, shown, sizeof shown),
                                                 .title = title,
                                                 .size = -1});
        if (!rc && k == 0)
            rc = copied(path, at);
    }
    return rc;
}

/* ---- what the options say ---- */

static int run(struct download *d, char **path)
{
    gr_catch_interrupts(NULL, NULL);
    int rc = d->spec ? fetch_repo(d, path) : fetch_url(d, path);
    gr_release_interrupts();
    gr_http_close(&d->http);
    if (rc) {
        free(*path);
        *path = NULL;
    }
    return rc;
}

/* How firmly a value was given: 2 on the command line, 1 by a variable, 0 not at all. */
static int weight(const struct gr_given *g)
{
    return !g->text ? 0 : g->by_flag ? 2 : 1;
}

static int two_models(const char *a, const char *b)
{
    gr_say_error("%s and %s both give the model: leave one out", a, b);
    return GR_EXIT_USAGE;
}

int gr_download_model(const struct gr_options *o, char **path)
{
    struct download d = {.o = o};
    bool argument = o->n_args && o->model == o->arg[0];
    int repo = weight(&o->given.hf_repo), url = weight(&o->given.model_url);
    int file = o->model && argument         ? 2
               : o->command == GR_CMD_bench ? weight(&o->given.models)
                                            : weight(&o->given.model);
    *path = NULL;
    if (repo && repo == url && url >= file)
        return two_models("-hf", "-mu");
    if (repo && repo == file && file > url)
        return two_models("-hf", "-m");
    if (repo > url && repo > file)
        d.spec = o->hf_repo;
    else if (url && url >= file)
        d.url = o->model_url;
    if (d.url && url == file && o->command == GR_CMD_bench)
        return two_models("-mu", "-m");
    if (d.url && url == file)
        d.to = o->model;
    if (!d.spec && o->given.hf_file.by_flag) {
        gr_say_error("-hff names a file of a repository: -hf USER/REPO is expected with it");
        return GR_EXIT_USAGE;
    }
    if (!d.spec && !d.url)
        return 0;
    return run(&d, path);
}

int gr_download_to(const struct gr_options *o, const char *name, const char *to, char **path)
{
    struct download d = {.o = o, .to = to, .keeps = to != NULL};
    bool is_url = name && strstr(name, "://");
    d.spec = name ? (is_url ? NULL : name) : o->hf_repo;
    d.url = name ? (is_url ? name : NULL) : o->model_url;
    *path = NULL;
    if (d.spec && d.url)
        return two_models("-hf", "-mu");
    if (!d.spec && !d.url) {
        gr_say_error("usage: gpurun pull %s", gr_commands[GR_CMD_pull].args);
        return GR_EXIT_USAGE;
    }
    return run(&d, path);
}
