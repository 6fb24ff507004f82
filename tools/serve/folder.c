/* The folder of --models-dir. */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SUFFIX ".gguf"
#define PART "-00001-of-00001" /* the end of a part's name */

struct list {
    struct gr_folder_file *file;
    size_t n, room;
};

static bool are_digits(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] >= '0' && p[i] <= '9')
        i++;
    return i == n;
}

/* Returns the length of a model's name in that of a file; 0: it is none, or not the first part. */
static size_t name_length(const char *file)
{
    size_t n = strlen(file), part = sizeof PART - 1, suffix = sizeof SUFFIX - 1;
    if (n <= suffix || strcmp(file + n - suffix, SUFFIX) != 0 || *file == '.')
        return 0;
    n -= suffix;
    const char *end = n > part ? file + n - part : "";
    if (*end != '-' || !are_digits(end + 1, 5) || strncmp(end + 6, "-of-", 4) != 0 ||
        !are_digits(end + 10, 5))
        return n;
    return !strncmp(end + 1, "00001", 5) ? n - part : 0;
}

/* Returns whether a file goes with a model and is none. */
static bool goes_with(const char *file)
{
    static const char *const drafts[] = {"mtp-", "dspark-", "dflash-"};
    bool draft = false;
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++)
        draft |= !strncmp(file, drafts[i], strlen(drafts[i]));
    return draft || strstr(file, "mmproj");
}

static bool is_utf8(const char *name)
{
    json_t *text = json_string(name);
    json_decref(text);
    return text != NULL;
}

static char *join(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path)
        snprintf(path, n, "%s/%s", dir, name);
    return path;
}

/* Adds a model; false: no memory. */
static bool add(struct list *l, const char *dir, const char *file, const char *name, size_t n_name,
                const struct stat *st)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 16;
        void *grown = realloc(l->file, room * sizeof *l->file);
        if (!grown)
            return false;
        l->file = grown, l->room = room;
    }
    struct gr_folder_file f = {.name = strndup(name, n_name),
                               .path = join(dir, file),
                               .modified = st->st_mtime,
                               .n_bytes = (uint64_t)st->st_size};
    if (!f.name || !f.path) {
        free(f.name);
        free(f.path);
        return false;
    }
    if (is_utf8(f.name)) {
        l->file[l->n++] = f;
        return true;
    }
    free(f.name);
    free(f.path);
    return true;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Calls fn with each entry that is a file (or leads to one) or a folder; returns 0 or errno. */
static int each(struct list *l, const char *dir, const char *name,
                int (*fn)(struct list *l, const char *dir, const char *name, const char *file,
                          const struct stat *st))
{
    struct dirent **entry = NULL;
    int rc = 0, n = scandir(dir, &entry, NULL, by_name);
    if (n < 0)
        return errno;
    for (int i = 0; i < n; i++) {
        struct stat st;
        char *path = join(dir, entry[i]->d_name);
        if (!path)
            rc = ENOMEM;
        else if (!rc && *entry[i]->d_name != '.' && !lstat(path, &st) &&
                 (!S_ISLNK(st.st_mode) || (!stat(path, &st) && S_ISREG(st.st_mode))))
            rc = fn(l, dir, name, entry[i]->d_name, &st);
        free(path);
        free(entry[i]);
    }
    free(entry);
    return rc;
}

/* An entry of a folder within: its first model has the folder's name. */
static int take_inner(struct list *l, const char *dir, const char *name, const char *file,
                      const struct stat *st)
{
    bool known = l->n && !strcmp(l->file[l->n - 1].name, name);
    if (known || !S_ISREG(st->st_mode) || goes_with(file) || !name_length(file))
        return 0;
    return add(l, dir, file, name, strlen(name), st) ? 0 : ENOMEM;
}

static int take(struct list *l, const char *dir, const char *name, const char *file,
                const struct stat *st)
{
    (void)name;
    if (S_ISREG(st->st_mode) && !goes_with(file) && name_length(file))
        return add(l, dir, file, file, name_length(file), st) ? 0 : ENOMEM;
    char *inner = S_ISDIR(st->st_mode) ? join(dir, file) : NULL;
    int rc = inner ? each(l, inner, file, take_inner) : 0;
    free(inner);
    return rc == ENOMEM ? rc : 0; /* one that cannot be read has no models */
}

/* Orders by name; of one name the file comes first, whose path is shorter than that of one within
 * a folder of this name. */
static int compare(const void *a, const void *b)
{
    const struct gr_folder_file *p = a, *q = b;
    int by = strcmp(p->name, q->name);
    size_t m = strlen(p->path), n = strlen(q->path);
    return by ? by : (m > n) - (m < n);
}

int gr_folder_read(const char *dir, struct gr_folder_file **files, size_t *n)
{
    struct list l = {0};
    int rc = each(&l, dir, NULL, take);
    size_t kept = 0;
    if (rc) {
        gr_folder_free(l.file, l.n);
        return rc;
    }
    if (l.n)
        qsort(l.file, l.n, sizeof *l.file, compare);
    for (size_t i = 0; i < l.n; i++) {
        if (kept && !strcmp(l.file[kept - 1].name, l.file[i].name)) {
            free(l.file[i].name);
            free(l.file[i].path);
        } else {
            l.file[kept++] = l.file[i];
        }
    }
    *files = l.file, *n = kept;
    return 0;
}

void gr_folder_free(struct gr_folder_file *files, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(files[i].name);
        free(files[i].path);
    }
    free(files);
}
