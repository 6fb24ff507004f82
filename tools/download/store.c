#include "store.h"

#include <dirent.h>
#include <errno.h>
#include <fts.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "choose.h"
#include "tools/cli/flags.h"
#include "tools/cli/say.h"

#define MOST_SNAPSHOTS 256
#define MOST_CACHED 100000 /* files of a snapshot */

static int failed(const char *path, int error)
{
    gr_say_error("%s: %s; LLAMA_CACHE or HF_HOME chooses another folder", path, strerror(error));
    return gr_status_exit(GR_E_IO);
}

/* ---- where it is ---- */

struct place {
    const char *variable, *rest;
};

/* Stores the first place whose variable is set; the last one is the home folder. */
static int find_place(const struct place *place, size_t n, char folder[GR_PATH_MAX])
{
    const char *base = NULL;
    size_t i = 0;
    for (; i < n && !(base && *base); i++)
        base = getenv(place[i].variable);
    if (!base || !*base) {
        const struct passwd *user = getpwuid(getuid());
        base = user ? user->pw_dir : NULL;
    }
    if (!base || !*base) {
        gr_say_error("there is no home folder to keep downloads in; LLAMA_CACHE names a folder");
        return gr_status_exit(GR_E_IO);
    }
    int n_path = snprintf(folder, GR_PATH_MAX, "%s%s", base, place[i - 1].rest);
    return n_path < GR_PATH_MAX ? 0 : failed(base, ENAMETOOLONG);
}

int gr_store_urls(char folder[GR_PATH_MAX])
{
    static const struct place places[] = {
        {"LLAMA_CACHE", ""}, {"XDG_CACHE_HOME", "/llama.cpp"}, {"HOME", "/.cache/llama.cpp"}};
    return find_place(places, sizeof places / sizeof *places, folder);
}

int gr_store_repo(const char *repo, char folder[GR_PATH_MAX])
{
    static const struct place places[] = {{"LLAMA_CACHE", ""},
                                          {"HF_HUB_CACHE", ""},
                                          {"HUGGINGFACE_HUB_CACHE", ""},
                                          {"HF_HOME", "/hub"},
                                          {"XDG_CACHE_HOME", "/huggingface/hub"},
                                          {"HOME", "/.cache/huggingface/hub"}};
    int rc = find_place(places, sizeof places / sizeof *places, folder);
    if (rc)
        return rc;
    size_t n = strlen(folder);
    const char *slash = strchr(repo, '/');
    if (snprintf(folder + n, GR_PATH_MAX - n, "/models--%.*s--%s", (int)(slash - repo), repo,
                 slash + 1) >= (int)(GR_PATH_MAX - n))
        return failed(folder, ENAMETOOLONG);
    return 0;
}

int gr_store_join(char path[GR_PATH_MAX], const char *folder, const char *rest)
{
    if (snprintf(path, GR_PATH_MAX, "%s/%s", folder, rest) < GR_PATH_MAX)
        return 0;
    return failed(folder, ENAMETOOLONG);
}

int gr_store_path(char path[GR_PATH_MAX], const char *folder, const char *rest)
{
    int rc = gr_store_join(path, folder, rest);
    if (rc)
        return rc;
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        int bad = mkdir(path, 0777) && errno != EEXIST ? errno : 0;
        if (bad)
            return failed(path, bad);
        *p = '/';
    }
    return 0;
}

bool gr_store_has(const char *path, int64_t size)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode) && st.st_size == size;
}

/* ---- what is there ---- */

struct snapshot {
    char commit[256];
    struct timespec changed;
    bool noted; /* by refs/main */
};

static void read_noted(const char *folder, const char *branch, char commit[256])
{
    char path[GR_PATH_MAX + 300];
    snprintf(path, sizeof path, "%s/refs/%s", folder, branch);
    FILE *in = fopen(path, "r");
    if (!in || !fgets(commit, 256, in))
        *commit = 0;
    if (in)
        fclose(in);
    commit[strcspn(commit, "\r\n")] = 0;
}

/* Orders snapshots: the noted one, then the newest first. */
static int order(const void *pa, const void *pb)
{
    const struct snapshot *a = pa, *b = pb;
    if (a->noted != b->noted)
        return a->noted ? -1 : 1;
    if (a->changed.tv_sec != b->changed.tv_sec)
        return a->changed.tv_sec > b->changed.tv_sec ? -1 : 1;
    return strcmp(a->commit, b->commit);
}

/* Lists at most MOST_SNAPSHOTS snapshots in this order; returns how many. */
static size_t list_snapshots(const char *folder, struct snapshot *list)
{
    char path[GR_PATH_MAX + 16], noted[256];
    size_t n = 0;
    read_noted(folder, "main", noted);
    snprintf(path, sizeof path, "%s/snapshots", folder);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && n < MOST_SNAPSHOTS && (e = readdir(dir));) {
        struct stat st;
        if (e->d_name[0] == '.' || fstatat(dirfd(dir), e->d_name, &st, 0) || !S_ISDIR(st.st_mode))
            continue;
        snprintf(list[n].commit, sizeof list[n].commit, "%s", e->d_name);
        list[n].changed = st.st_mtim;
        list[n].noted = !strcmp(e->d_name, noted);
        n++;
    }
    if (dir)
        closedir(dir);
    qsort(list, n, sizeof *list, order);
    return n;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void free_names(struct gr_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free((char *)(uintptr_t)names->v[i]);
    free(names->v);
    *names = (struct gr_names){NULL, 0};
}

/* Adds a name. False: no memory. */
static bool add_name(struct gr_names *names, const char *name, size_t *room)
{
    if (names->n == *room) {
        size_t more = *room ? *room * 2 : 64;
        const char **v = realloc(names->v, more * sizeof *v);
        if (!v)
            return false;
        names->v = v, *room = more;
    }
    char *copy = strdup(name);
    if (copy)
        names->v[names->n++] = copy;
    return copy != NULL;
}

/* Lists the files of a snapshot whose content is there, in the order of names. False: no memory. */
static bool list_files(char *snapshot, struct gr_names *names)
{
    char *roots[] = {snapshot, NULL};
    size_t head = strlen(snapshot) + 1, room = 0;
    bool good = true;
    struct stat st;
    FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    for (FTSENT *e; fts && good && names->n < MOST_CACHED && (e = fts_read(fts));) {
        bool file = e->fts_info == FTS_F || e->fts_info == FTS_SL;
        if (file && !stat(e->fts_path, &st) && S_ISREG(st.st_mode))
            good = add_name(names, e->fts_path + head, &room);
    }
    if (fts)
        fts_close(fts);
    if (names->n)
        qsort(names->v, names->n, sizeof *names->v, compare_names);
    return good;
}

/* Finds the model in one snapshot. */
static bool find_in(char *snapshot, const char *tag, const char *file, char **path)
{
    struct gr_names names = {NULL, 0};
    size_t *part = malloc(GR_MOST_PARTS * sizeof *part);
    int n;
    bool good = part && list_files(snapshot, &names);
    size_t chosen = !good  ? 0
                    : file ? gr_choose_by_name(names, file)
                           : gr_choose_by_tag(names, tag);
    if (good && chosen < names.n && !gr_choose_parts(names, chosen, part, &n))
        good = asprintf(path, "%s/%s", snapshot, names.v[part[0]]) >= 0;
    free_names(&names);
    free(part);
    return good;
}

int gr_store_find(const char *folder, const char *tag, const char *file, char **path)
{
    struct snapshot *list = malloc(MOST_SNAPSHOTS * sizeof *list);
    bool good = list != NULL;
    size_t n = good ? list_snapshots(folder, list) : 0;
    *path = NULL;
    for (size_t i = 0; i < n && good && !*path; i++) {
        char snapshot[GR_PATH_MAX + 300];
        snprintf(snapshot, sizeof snapshot, "%s/snapshots/%s", folder, list[i].commit);
        good = find_in(snapshot, tag, file, path);
    }
    free(list);
    return good ? 0 : gr_say_no_memory();
}

/* ---- what is added ---- */

int gr_store_link(const char *folder, const char *commit, const struct gr_hub_file *file)
{
    char rest[GR_PATH_MAX], path[GR_PATH_MAX], blob[GR_PATH_MAX], made[GR_PATH_MAX + 32];
    char target[256] = "../../";
    snprintf(rest, sizeof rest, "snapshots/%s/%s", commit, file->path);
    int rc = gr_store_path(path, folder, rest);
    if (rc)
        return rc;
    for (const char *p = file->path; *p; p++)
        if (*p == '/')
            strcat(target, "../"); /* at most 16 levels */
    strcat(target, "blobs/");
    strcat(target, file->oid);
    snprintf(made, sizeof made, "%s.link-%d", path, (int)getpid());
    unlink(made);
    if (!symlink(target, made)) {
        int error = rename(made, path) ? errno : 0;
        if (!error)
            return 0;
        unlink(made);
        return failed(path, error);
    }
    snprintf(rest, sizeof rest, "blobs/%s", file->oid);
    rc = gr_store_path(blob, folder, rest);
    if (rc)
        return rc;
    return rename(blob, path) ? failed(path, errno) : 0;
}

int gr_store_note(const char *folder, const char *branch, const char *commit)
{
    char rest[300], path[GR_PATH_MAX], noted[256];
    struct gr_output *out = NULL;
    read_noted(folder, branch, noted);
    if (!strcmp(noted, commit))
        return 0;
    snprintf(rest, sizeof rest, "refs/%s", branch);
    int rc = gr_store_path(path, folder, rest);
    if (rc)
        return rc;
    int status = gr_output_open(&out, path, 0);
    if (!status)
        status = gr_output_put(out, commit, strlen(commit));
    if (!status)
        status = gr_output_commit(&out);
    gr_output_abort(&out);
    return status ? gr_say_status(status) : 0;
}
